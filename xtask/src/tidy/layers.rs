//! Layering of crates: a crate depends only on its own layer and lower ones, and no crate depends on the binary.
//!
//! Reads only the manifests, so that it works without a build. Dev-dependencies are exempt: tests may use any crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::TidyFault;

/// Layers, lowest first.
const LAYERS: [&str; 4] = ["core", "system", "services", "testing"];
/// Crates above all layers.
const TOP: [&str; 2] = ["penstock", "xtask"];

struct Crate {
    manifest: PathBuf,
    layer: usize,
    dependencies: Vec<String>,
}

pub(super) fn check(root: &Path) -> Result<Vec<TidyFault>> {
    let crates = read_crates(root)?;
    let mut faults = Vec::new();
    for one in crates.values() {
        for wanted in &one.dependencies {
            let message = match crates.get(wanted) {
                _ if wanted == "penstock" => {
                    "depends on `penstock`: the binary is not a library".to_owned()
                }
                None => format!("depends on `{wanted}`, which no folder of this workspace holds"),
                Some(other) if other.layer > one.layer => format!(
                    "depends on `{wanted}` of the layer `{}`: a layer depends only on lower ones; move the code or turn the call into a value",
                    layer_name(other.layer)
                ),
                Some(_) => continue,
            };
            faults.push(TidyFault { path: one.manifest.clone(), line: 0, message });
        }
    }
    Ok(faults)
}

fn layer_name(layer: usize) -> &'static str {
    LAYERS.get(layer).copied().unwrap_or("penstock")
}

fn read_crates(root: &Path) -> Result<BTreeMap<String, Crate>> {
    let mut crates = BTreeMap::new();
    let mut folders: Vec<(usize, PathBuf)> =
        TOP.iter().map(|top| (LAYERS.len(), PathBuf::from(top))).collect();
    for (layer, name) in LAYERS.iter().enumerate() {
        let Ok(entries) = std::fs::read_dir(root.join(name)) else {
            continue;
        };
        for entry in entries {
            folders.push((layer, Path::new(name).join(entry?.file_name())));
        }
    }
    for (layer, folder) in folders {
        let manifest = folder.join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(root.join(&manifest)) else {
            continue;
        };
        let table: Table =
            toml::from_str(&text).with_context(|| format!("cannot read {}", manifest.display()))?;
        let name = table
            .get("package")
            .and_then(|p| p.get("name"))
            .and_then(Value::as_str)
            .unwrap_or_default();
        crates.insert(
            name.to_owned(),
            Crate { layer, dependencies: workspace_dependencies(&table), manifest },
        );
    }
    Ok(crates)
}

/// Normal and build dependencies among our own crates, those under `[target.*]` included.
fn workspace_dependencies(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables =
        targets.into_iter().flat_map(Table::values).filter_map(Value::as_table).chain([manifest]);
    let mut names = Vec::new();
    for table in tables {
        for kind in ["dependencies", "build-dependencies"] {
            for (key, value) in table.get(kind).and_then(Value::as_table).into_iter().flatten() {
                let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                if package == "penstock" || package.starts_with("penstock-") {
                    names.push(package.to_owned());
                }
            }
        }
    }
    names
}
