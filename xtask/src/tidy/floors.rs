//! The floors: a crate may depend on its own floor and on those below, and nothing depends on the binary.
//!
//! Reads the manifests alone, so a fault shows before anything is built. Dev-dependencies are free: a test may use what
//! the product may not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::Fault;

/// Floors from the lowest: a crate may use its own floor and those before it.
const FLOORS: [&str; 4] = ["core", "system", "services", "testing"];
/// Above every floor.
const TOP: [&str; 2] = ["penstock", "xtask"];

struct Crate {
    manifest: PathBuf,
    floor: usize,
    dependencies: Vec<String>,
}

pub(super) fn check(root: &Path) -> Result<Vec<Fault>> {
    let crates = read_crates(root)?;
    let mut faults = Vec::new();
    for one in crates.values() {
        for wanted in &one.dependencies {
            let message = match crates.get(wanted) {
                _ if wanted == "penstock" => {
                    "depends on `penstock`: the binary is nobody's library".to_owned()
                }
                None => format!("depends on `{wanted}`, which no folder of this workspace holds"),
                Some(other) if other.floor > one.floor => format!(
                    "depends on `{wanted}` of the floor `{}`: a floor only calls down; move the code or turn the call into a value",
                    floor_name(other.floor)
                ),
                Some(_) => continue,
            };
            faults.push(Fault { path: one.manifest.clone(), line: 0, message });
        }
    }
    Ok(faults)
}

fn floor_name(floor: usize) -> &'static str {
    FLOORS.get(floor).copied().unwrap_or("penstock")
}

fn read_crates(root: &Path) -> Result<BTreeMap<String, Crate>> {
    let mut crates = BTreeMap::new();
    let mut folders: Vec<(usize, PathBuf)> =
        TOP.iter().map(|top| (FLOORS.len(), PathBuf::from(top))).collect();
    for (floor, name) in FLOORS.iter().enumerate() {
        let Ok(entries) = std::fs::read_dir(root.join(name)) else {
            continue;
        };
        for entry in entries {
            folders.push((floor, Path::new(name).join(entry?.file_name())));
        }
    }
    for (floor, folder) in folders {
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
            Crate { floor, dependencies: house_dependencies(&table), manifest },
        );
    }
    Ok(crates)
}

/// Normal and build dependencies among our own crates, those under `[target.*]` included.
fn house_dependencies(manifest: &Table) -> Vec<String> {
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
