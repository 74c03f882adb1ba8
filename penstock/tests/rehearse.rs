//! `penstock rehearse` by its command line: a short run of the experiment ten-sites, in memory and with the controller's
//! store.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn experiment() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments/ten-sites")
}

fn rehearse(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_penstock"))
        .arg("rehearse")
        .args(arguments)
        .output()
        .expect("the binary starts")
}

fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Copies the experiment with 0.1 % of its files to a temporary directory.
fn small() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["penstock.toml", "topology.toml", "demand.toml"] {
        let text = std::fs::read_to_string(experiment().join(file)).unwrap();
        let text = text
            .replace("files_per_day = 75_000_000", "files_per_day = 75_000")
            .replace("files = [200, 10_000]", "files = [2, 100]")
            .replace("files = [1000, 10_000]", "files = [10, 100]")
            .replace("files = [20, 500]", "files = [2, 20]");
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    directory
}

#[test]
fn memory_and_store_place_same_files() {
    let directory = small();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (config, demand, page) = (path("penstock.toml"), path("demand.toml"), path("page"));
    // A link fails at 3:00 and recovers at 3:30.
    let arguments = ["--from", "178m", "--for", "4m", "--finish", "--json"];
    let memory = [&[config.as_str(), &demand][..], &arguments, &["--output", &page]].concat();
    let store = [&[config.as_str(), &demand][..], &arguments, &["--database", "sqlite"]].concat();
    let (memory, store) = (object(&rehearse(&memory)), object(&rehearse(&store)));
    for outcome in [&memory, &store] {
        assert!(outcome["files_submitted"].as_u64().unwrap() > 100, "{outcome}");
        assert_eq!(outcome["files_done"], outcome["files_submitted"], "{outcome}");
        assert_eq!(outcome["requests_open"], 0, "{outcome}");
        assert!(outcome["finish_seconds"].as_u64().is_some(), "{outcome}");
    }
    assert_eq!(memory["files_submitted"], store["files_submitted"]);
    assert_eq!(store["database"]["files"], store["files_submitted"]);
    assert!(store["database"]["bytes_per_file"].as_f64().unwrap() > 50.0, "{store}");
    let page = std::fs::read_to_string(directory.path().join("page/report.html")).unwrap();
    assert!(page.contains("Rates allotted to classes") && page.contains("published"), "{page}");
}

/// Every file fails once and arrives at the second attempt, in memory and with the store.
#[test]
fn all_files_may_fail_once() {
    let directory = small();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let demand = std::fs::read_to_string(path("demand.toml")).unwrap();
    let all = demand.replace("faults_permille = 10", "faults_permille = 1000");
    std::fs::write(path("demand.toml"), all).unwrap();
    let (config, demand) = (path("penstock.toml"), path("demand.toml"));
    let arguments = [config.as_str(), &demand, "--for", "1m", "--finish", "--json"];
    for more in [&[][..], &["--database", "sqlite"]] {
        let outcome = object(&rehearse(&[&arguments[..], more].concat()));
        assert_eq!(outcome["files_done"], outcome["files_submitted"], "{outcome}");
        assert_eq!(outcome["requests_open"], 0, "{outcome}");
    }
}

#[test]
fn ended_requests_leave_the_store() {
    let directory = small();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (config, demand) = (path("penstock.toml"), path("demand.toml"));
    let arguments = [
        config.as_str(),
        &demand,
        "--for",
        "20m",
        "--database",
        "sqlite",
        "--keep",
        "1m",
        "--json",
    ];
    let outcome = object(&rehearse(&arguments));
    let (held, all) = (&outcome["database"]["files"], &outcome["files_submitted"]);
    assert!(held.as_u64().unwrap() * 2 < all.as_u64().unwrap(), "{outcome}");
}

#[test]
fn same_demand_gives_same_result() {
    let directory = small();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (config, demand) = (path("penstock.toml"), path("demand.toml"));
    let day = || {
        let mut day = object(&rehearse(&[&config, &demand, "--for", "10m", "--json"]));
        // Wall-clock measurements differ.
        for name in ["wall_seconds", "plan", "round", "reports"] {
            day[name] = Value::Null;
        }
        day
    };
    assert_eq!(day(), day());
}

#[test]
fn mistakes_print_one_line_with_remedy() {
    let directory = small();
    let config = directory.path().join("penstock.toml").display().to_string();
    let demand = directory.path().join("demand.toml");
    let good = std::fs::read_to_string(&demand).unwrap();
    for (from, to, words) in [
        ("class = \"user\"", "class = \"usr\"", "no class 'usr'"),
        ("name = \"bnl\"", "name = \"bln\"", "no site 'bln'"),
        ("host = \"cern1\"", "host = \"cern9\"", "no host 'cern9'"),
        ("swing = 0.7", "swing = 7", "swing from 0 to 1"),
        ("peak_hour = 16", "peek_hour = 16", "line "),
    ] {
        std::fs::write(&demand, good.replace(from, to)).unwrap();
        let output = rehearse(&[&config, &demand.display().to_string()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    }
}
