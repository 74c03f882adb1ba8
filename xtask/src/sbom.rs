//! Third-party software in the binary: a bill of materials (CycloneDX 1.5) and the texts of the licences.
//!
//! Crates are those that `cargo tree` finds linked into `penstock`, without macros and build scripts; their data comes from
//! `cargo metadata`, checksums from `Cargo.lock`, texts from the sources of each crate. Beside them are the npm packages of
//! the dashboard and the libraries that a static build takes from the machine. Same inputs give the same bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::program::output_text;
use crate::static_build::TARGET;

/// Libraries of the build machine in a static binary: name, licence, program that prints the version, text on Debian.
const SYSTEM_LIBRARIES: [(&str, &str, &[&str], &str); 3] = [
    (
        "glibc",
        "LGPL-2.1-or-later",
        &["getconf", "GNU_LIBC_VERSION"],
        "/usr/share/common-licenses/LGPL-2.1",
    ),
    (
        "libgcc",
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        &["cc", "-dumpfullversion"],
        "/usr/share/common-licenses/GPL-3",
    ),
    ("rust-std", "MIT OR Apache-2.0", &["rustc", "--version"], ""),
];

/// Starts of the names of files with terms of a licence.
const LICENSE_NAMES: [&str; 6] =
    ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Ends of names that begin like those, but are sources.
const SOURCE_EXTENSIONS: [&str; 6] = ["rs", "c", "h", "py", "html", "json"];

/// Third-party software of one build.
#[derive(Debug)]
pub struct SoftwareInventory {
    components: Vec<SoftwareComponent>,
    /// Package URLs of what the sources of this checkout use directly.
    direct: BTreeSet<String>,
}

#[derive(Debug)]
struct SoftwareComponent {
    name: String,
    version: String,
    /// Package URL, which names the component in the document.
    purl: String,
    /// SPDX expression.
    license: String,
    sha256: Option<String>,
    uses: BTreeSet<String>,
    /// Texts of licences with the names of their files.
    texts: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct CargoMetadata {
    packages: Vec<CargoPackage>,
    resolve: CargoResolve,
}

#[derive(Debug, Deserialize)]
struct CargoPackage {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct CargoResolve {
    nodes: Vec<CargoNode>,
}

#[derive(Debug, Deserialize)]
struct CargoNode {
    id: String,
    deps: Vec<CargoDependency>,
}

#[derive(Debug, Deserialize)]
struct CargoDependency {
    pkg: String,
}

#[derive(Debug, Deserialize)]
struct CargoLockfile {
    package: Vec<LockedPackage>,
}

#[derive(Debug, Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

impl SoftwareInventory {
    /// Reads what the checkout at `root` links into `penstock`.
    ///
    /// # Errors
    /// When cargo fails or a file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let linked = linked_crates(root)?;
        let text = cargo(root, &["metadata", "--format-version=1", "--filter-platform", TARGET])?;
        let metadata: CargoMetadata = serde_json::from_str(&text)?;
        let lockfile: CargoLockfile =
            toml::from_str(&fs::read_to_string(root.join("Cargo.lock"))?)?;
        let mut checksums: HashMap<_, _> = lockfile
            .package
            .into_iter()
            .map(|package| ((package.name, package.version), package.checksum))
            .collect();
        let packages: BTreeMap<&str, &CargoPackage> = metadata
            .packages
            .iter()
            .filter(|package| linked.contains(&(package.name.clone(), package.version.clone())))
            .map(|package| (package.id.as_str(), package))
            .collect();
        let mut inventory = Self { components: Vec::new(), direct: BTreeSet::new() };
        for node in &metadata.resolve.nodes {
            let Some(package) = packages.get(node.id.as_str()) else { continue };
            let uses = node.deps.iter().filter_map(|dependency| {
                let package = packages.get(dependency.pkg.as_str())?;
                package
                    .source
                    .as_ref()
                    .map(|_| package_url("cargo", &package.name, &package.version))
            });
            if package.source.is_none() {
                inventory.direct.extend(uses);
                continue;
            }
            let folder = package.manifest_path.parent().context("a manifest without a folder")?;
            let license = package.license.as_deref().unwrap_or("NOASSERTION");
            let key = (package.name.clone(), package.version.clone());
            inventory.components.push(SoftwareComponent {
                purl: package_url("cargo", &package.name, &package.version),
                name: package.name.clone(),
                version: package.version.clone(),
                // The separator of old manifests.
                license: license.replace('/', " OR "),
                sha256: checksums.remove(&key).flatten(),
                uses: uses.collect(),
                texts: license_texts(folder, folder)?,
            });
        }
        inventory.add_dashboard(root)?;
        inventory.add_system_libraries()?;
        inventory.components.sort_by(|one, two| one.purl.cmp(&two.purl));
        Ok(inventory)
    }

    /// Adds the npm packages that the table of `dashboard/vendor/README.md` lists.
    fn add_dashboard(&mut self, root: &Path) -> Result<()> {
        let vendor = root.join("dashboard/vendor");
        let table = fs::read_to_string(vendor.join("README.md"))?;
        let text = fs::read_to_string(vendor.join("LICENSES.txt"))?;
        for row in table.lines().filter(|row| row.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [_, _, package, license, ..] = cells[..] else { continue };
            let mut words = package.split([' ', ',']);
            let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
            let license = license.split(';').next().unwrap_or(license);
            let texts = vec![("dashboard/vendor/LICENSES.txt".to_owned(), text.clone())];
            self.add(package_url("npm", name, version), name, version, license, texts);
        }
        Ok(())
    }

    fn add_system_libraries(&mut self) -> Result<()> {
        for (name, license, program, file) in SYSTEM_LIBRARIES {
            let text = output_text(Command::new(program[0]).args(&program[1..]), "build")?;
            let is_number = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_digit());
            let version = text.split_whitespace().find(is_number).unwrap_or_default();
            let texts = fs::read_to_string(file).map(|text| vec![(name.to_owned(), text)]);
            let purl = package_url("generic", name, version);
            self.add(purl, name, version, license, texts.unwrap_or_default());
        }
        Ok(())
    }

    fn add(
        &mut self,
        purl: String,
        name: &str,
        version: &str,
        license: &str,
        texts: Vec<(String, String)>,
    ) {
        self.direct.insert(purl.clone());
        self.components.push(SoftwareComponent {
            name: name.to_owned(),
            version: version.to_owned(),
            purl,
            license: license.to_owned(),
            sha256: None,
            uses: BTreeSet::new(),
            texts,
        });
    }

    /// The document in JSON; `time` is that of the build in seconds since 1970.
    ///
    /// # Errors
    /// When `time` is not a number.
    pub fn cyclonedx(&self, time: &str) -> Result<String> {
        let mut date = Command::new("date");
        let time = output_text(date.args(["-u", "-d", &format!("@{time}"), "+%FT%TZ"]), "package")?;
        let version = env!("CARGO_PKG_VERSION");
        let root = format!("pkg:generic/penstock@{version}");
        let components = self.components.iter().map(|component| {
            let mut value = json!({
                "type": "library",
                "bom-ref": component.purl,
                "name": component.name,
                "version": component.version,
                "purl": component.purl,
                "licenses": [{ "expression": component.license }],
            });
            if let Some(digest) = &component.sha256 {
                value["hashes"] = json!([{ "alg": "SHA-256", "content": digest }]);
            }
            value
        });
        let own = json!({ "ref": root, "dependsOn": self.direct });
        let uses = self
            .components
            .iter()
            .map(|component| json!({ "ref": component.purl, "dependsOn": component.uses }));
        let document = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": time,
                "component": {
                    "type": "application",
                    "bom-ref": root,
                    "name": "penstock",
                    "version": version,
                    "purl": root,
                    "licenses": [{ "expression": "Apache-2.0" }],
                },
            },
            "components": components.collect::<Vec<Value>>(),
            "dependencies": std::iter::once(own).chain(uses).collect::<Vec<Value>>(),
        });
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    /// The components with their licences, then each text once with the components that it is of.
    #[must_use]
    pub fn license_document(&self) -> String {
        let mut lines = String::from(
            "Third-party software in penstock\n\n\
             Each component with the SPDX expression of its licence; (*): its package has no text.\n\n",
        );
        let mut texts: Vec<(&str, Vec<String>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for SoftwareComponent { name, version, license, texts: own, .. } in &self.components {
            let mark = if own.is_empty() { " (*)" } else { "" };
            lines += &format!("{name} {version}: {license}{mark}\n");
            for (file, text) in own {
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let place = *places.entry(words).or_insert(texts.len());
                if place == texts.len() {
                    texts.push((text, Vec::new()));
                }
                texts[place].1.push(format!("{name} {version} ({file})"));
            }
        }
        for (text, users) in texts {
            let rule = "=".repeat(80);
            lines += &format!("\n{rule}\n{}\n{rule}\n\n{}\n", users.join("\n"), text.trim_end());
        }
        lines
    }
}

/// Names and versions of the packages that a release build of `penstock` links.
fn linked_crates(root: &Path) -> Result<BTreeSet<(String, String)>> {
    let edges = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"];
    let text = cargo(
        root,
        &[&["tree", "--package", "penstock", "--target", TARGET], &edges[..]].concat(),
    )?;
    let pairs = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" v")?;
        Some((name.to_owned(), rest.split_whitespace().next()?.to_owned()))
    });
    Ok(pairs.collect())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    output_text(Command::new("cargo").args(arguments).arg("--locked").current_dir(root), "build")
}

/// CargoPackage URL of a version, whose `+` stands for a space otherwise.
fn package_url(kind: &str, name: &str, version: &str) -> String {
    format!("pkg:{kind}/{name}@{}", version.replace('+', "%2B"))
}

/// Texts of licences below a folder, with paths from `top`.
fn license_texts(top: &Path, folder: &Path) -> Result<Vec<(String, String)>> {
    let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut texts = Vec::new();
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            texts.extend(license_texts(top, &path)?);
        } else if is_license(&path) {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
            texts.push((path.strip_prefix(top)?.display().to_string(), text));
        }
    }
    Ok(texts)
}

fn is_license(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    (folder == "LICENSES" || LICENSE_NAMES.iter().any(|start| name.starts_with(start)))
        && !SOURCE_EXTENSIONS.contains(&extension.as_str())
}
