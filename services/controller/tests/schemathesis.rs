//! The API against its own document, by schemathesis (PyPI): every response matches the document.
//!
//! Skipped if `schemathesis` is not on the PATH: `pip install schemathesis`.

mod common;

use std::process::{Command, Stdio};

use common::{OWNER, Running, config, directory};

/// Endpoints that do not fit: an endless response, and reports of nodes, which have no schema here.
const EXCLUDED: &str = "/events|/agents/";

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

#[test]
fn responses_match_document() {
    let program =
        std::env::var("PENSTOCK_SCHEMATHESIS").unwrap_or_else(|_| "schemathesis".to_owned());
    let version = Command::new(&program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !version.is_ok_and(|status| status.success()) {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            "schemathesis is not installed (pip install schemathesis)",
        );
        return;
    }
    let (_keep, path) = directory();
    let running = Running::start(config(&path, ""), &path);
    let document = path.join("openapi.json");
    std::fs::write(&document, penstock_controller::document().to_json().unwrap()).unwrap();
    let output = Command::new(&program)
        .arg("run")
        .arg(&document)
        .args(["--url", &format!("http://{}", running.address)])
        .args(["--header", &format!("Authorization: Bearer {OWNER}")])
        .args(["--exclude-path-regex", EXCLUDED, "--checks", CHECKS])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--seed", "1"])
        .args(["--generation-database", "none", "--request-timeout", "30", "--no-color"])
        .current_dir(&path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}
