//! Rucio, whose replication rules the controller fulfils through its unchanged transfertool for FTS3.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::agents::{self, listed, node};
use crate::common::write_private;
use crate::operator::{Transfers, USER_TOKEN, python_programs};
use crate::site::{Site, TOKEN};
use crate::xrootd::Xrootd;

/// Version of Rucio on PyPI.
const RUCIO: &str = "rucio==41.5.1";

/// Server and daemons of Rucio with one rule.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fts/rucio_rule.py");

/// Files of each rule over HTTP, between gateways and to XRootD.
const RULE_FILES: usize = 200;

/// Files of the rule between agents of the controller.
const AGENT_FILES: usize = 200;

/// A storage as the script reads it.
fn storage(name: &str, url: &str, prefix: &str, data: &Path) -> Value {
    let authority = url.strip_prefix("https://").unwrap().split('/').next().unwrap();
    let (host, port) = authority.rsplit_once(':').unwrap();
    let port: u16 = port.parse().unwrap();
    json!({"name": name, "host": host, "port": port, "prefix": prefix, "data": data})
}

/// Files below a directory with their contents, by relative path.
fn tree(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().to_path_buf();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Files of jobs that are not finished.
fn unfinished(all: &Transfers) -> Vec<Value> {
    let jobs = all.get("jobs");
    let ids = jobs.as_array().unwrap().iter().map(|job| job["job_id"].as_str().unwrap().to_owned());
    let files = ids.flat_map(|id| all.get(&format!("jobs/{id}/files")).as_array().unwrap().clone());
    files.filter(|file| file["file_state"] != "FINISHED").collect()
}

#[test]
fn rucio_rules_end_in_ok() {
    let Some(programs) = python_programs("rucio-venv", RUCIO, "rucio") else { return };
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        write_private(&path, text);
        path
    };
    // Rucio sends no tokens of storages where they have no OpenID Connect: the controller has them.
    let token = write("storage.token", TOKEN);
    let config = format!(
        "storages = [\"127.0.0.1\", \"localhost\"]\n\
         [[controller.fts.storage_token]]\nstorage = \"127.0.0.1\"\nfile = {token:?}\n"
    );
    let Some(mut all) = Transfers::start(&config) else { return };
    let Some(xrootd) = Xrootd::start(&all.certificate) else { return };
    let gateway = |name: &str, site: &Site| {
        let data = site.data.join("rucio");
        fs::create_dir_all(&data).unwrap();
        storage(name, &site.url("https"), "/store/data/rucio", &data)
    };
    let (c, d) = (node(&all, "dtn-a"), node(&all, "dtn-b"));
    let ((url_c, table_c), (url_d, table_d)) = (agents::gateway(&c), agents::gateway(&d));
    all.controller.append(&format!("{table_c}{table_d}"));
    fs::create_dir_all(c.path("rucio")).unwrap();
    let sites = [
        gateway("SITEA", &all.a),
        gateway("SITEB", &all.b),
        storage("XROOTD", &xrootd.url(""), "/data/rucio", &xrootd.data),
        storage("AGENTA", &url_c, "/data/rucio", &c.path("rucio")),
        storage("AGENTB", &url_d, "/data/rucio", &d.path("rucio")),
    ];
    let rule = |source: &str, destination: &str, files: usize| json!({"source": source, "destination": destination, "files": files});
    let rules = [
        rule("SITEA", "SITEB", RULE_FILES),
        rule("SITEA", "XROOTD", RULE_FILES),
        rule("AGENTA", "AGENTB", AGENT_FILES),
    ];
    let fts = format!("http://{}/fts", all.controller.listen);
    let given = json!({
        "home": directory.path().join("rucio"), "fts": fts, "sites": sites, "rules": rules,
    });
    let netrc = write("netrc", &format!("machine 127.0.0.1 login rucio password {USER_TOKEN}\n"));
    let mut rucio = Command::new(programs.join("python"));
    rucio.arg(SCRIPT).env("NETRC", netrc).env("HOME", directory.path());
    let spawned = rucio.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut rucio = spawned.unwrap();
    rucio.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = rucio.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let rules: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let last = &log[log.len().saturating_sub(4000)..];
    for (rule, files) in rules.iter().zip([RULE_FILES, RULE_FILES, AGENT_FILES]) {
        assert_eq!(rule["state"], "OK", "{rules:?}\n{:?}\n{last}", unfinished(&all));
        assert_eq!(rule["locks_ok_cnt"], files, "{rules:?}");
    }
    let sent = tree(&all.a.data.join("rucio"));
    assert_eq!(sent.len(), RULE_FILES);
    assert!(sent == tree(&all.b.data.join("rucio")), "the files of SITEB");
    let at_xrootd = tree(&xrootd.data.join("rucio"));
    assert!(sent == at_xrootd, "the files of XROOTD");
    let sent = tree(&c.path("rucio"));
    assert_eq!(sent.len(), AGENT_FILES);
    assert!(sent == tree(&d.path("rucio")), "the files of AGENTB");
    let requests = listed(&all.controller);
    assert_eq!(requests.len(), AGENT_FILES, "{requests:?}");
    assert!(requests.iter().all(|request| request["state"] == "done"), "{requests:?}");
}
