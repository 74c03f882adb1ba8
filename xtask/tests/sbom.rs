//! The bill of materials and the licences of third parties in the packages.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use penstock_testkit::{Requirement, skip};
use serde_json::Value;
use xtask::sbom::SoftwareInventory;
use xtask::workspace_root;

/// Version of the PyPI package that has the published schema.
const VALIDATOR: &str = "cyclonedx-python-lib[json-validation]==11.12.0";

const VALIDATE: &str = "
import sys
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
validator = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_5)
error = validator.validate_str(sys.stdin.read())
sys.exit(str(error) if error else 0)
";

fn document() -> Value {
    let inventory = SoftwareInventory::read(&workspace_root()).unwrap();
    serde_json::from_str(&inventory.cyclonedx("1700000000").unwrap()).unwrap()
}

fn names(document: &Value) -> BTreeSet<&str> {
    let components = document["components"].as_array().unwrap();
    components.iter().filter_map(|component| component["name"].as_str()).collect()
}

/// Runs a program in the virtual environment of the validator; true if it succeeds.
fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn sbom_has_linked_crates_only() {
    let document = document();
    let names = names(&document);
    for linked in ["rustls", "aws-lc-sys", "tokio", "preact", "glibc", "rust-std"] {
        assert!(names.contains(linked), "{linked} is missing");
    }
    for other in ["penstock-mover", "serde_derive", "cc", "syn", "xtask"] {
        assert!(!names.contains(other), "{other} is not linked");
    }
}

#[test]
fn sbom_dependencies_are_components() {
    let document = document();
    let components = document["components"].as_array().unwrap();
    let known: BTreeSet<&str> =
        components.iter().filter_map(|component| component["bom-ref"].as_str()).collect();
    let entries = document["dependencies"].as_array().unwrap();
    let used: BTreeSet<&str> = entries
        .iter()
        .flat_map(|entry| entry["dependsOn"].as_array().unwrap())
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(known, used);
}

#[test]
fn crates_have_checksums_and_licences() {
    let document = document();
    for component in document["components"].as_array().unwrap() {
        let purl = component["purl"].as_str().unwrap();
        let license = component["licenses"][0]["expression"].as_str().unwrap();
        assert!(license != "NOASSERTION" && !license.contains('/'), "{purl}: {license}");
        let digest = component["hashes"][0]["content"].as_str().unwrap_or_default();
        assert_eq!(digest.len() == 64, purl.starts_with("pkg:cargo/"), "{purl}: {digest}");
    }
}

#[test]
fn licence_texts_name_their_components() {
    let inventory = SoftwareInventory::read(&workspace_root()).unwrap();
    let text = inventory.license_document();
    assert!(text.contains("\nring 0."), "a component is missing");
    assert!(text.contains("Permission is hereby granted, free of charge"));
    assert!(text.contains("Jason Miller"), "the dashboard's licences are missing");
    let without: Vec<&str> = text.lines().filter(|line| line.ends_with("(*)")).collect();
    assert!(without.len() <= 3, "components without a text: {without:?}");
}

#[test]
fn sbom_follows_published_schema() {
    let folder = workspace_root().join("target/sbom-schema");
    let python = folder.join("bin/python");
    let is_installed =
        |python: &Path| succeeds(Command::new(python).args(["-c", "import cyclonedx, jsonschema"]));
    if !is_installed(&python) {
        succeeds(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        succeeds(Command::new(&python).args(["-m", "pip", "install", "-q", VALIDATOR]));
    }
    if !is_installed(&python) {
        return skip(Requirement::Program, &format!("{VALIDATOR} of PyPI in {}", folder.display()));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), document().to_string()).unwrap();
    let mut command = Command::new(&python);
    let output = command.args(["-c", VALIDATE]).stdin(file.reopen().unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
