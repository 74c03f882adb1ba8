//! Transfers between agents of the controller: requests move the files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::site::{Node, Operations, token};
use crate::common::{run, seeded, wait_until, write_file};
use crate::operator::{Transfers, USER_TOKEN};

const CLASS: &str =
    "[[controller.class]]\nname = \"default\"\n[[controller.class]]\nname = \"analysis\"\n";

const ACTIVITIES: &str = "activities = { \"User Subscriptions\" = \"analysis\" }\n";

const NONE: &str = "storages = []\n";

/// Starts the agent of a host with a gateway.
pub(crate) fn node(all: &Transfers, host: &str) -> Node {
    let gateway = format!("[gateway]\nlisten = [\"127.0.0.1:0\"]\n{}", all.certificate.config());
    Node::under(&all.controller.listen, &token(host), host, "127.0.0.1:0", &gateway)
}

/// URL of the gateway of an agent, and the table by which the controller knows it.
pub(crate) fn gateway(node: &Node) -> (String, String) {
    let url = node.agent.facts["webdav"][0].as_str().unwrap().trim_end_matches('/').to_owned();
    let storage = url.strip_prefix("https://").unwrap();
    let host = &node.name;
    let table = format!(
        "[[controller.fts.gateway]]\nstorage = \"{storage}\"\nhost = \"{host}\"\nexport = \"/data\"\n"
    );
    (url, table)
}

/// Submits a job of the file format of the client.
pub(crate) fn submit(all: &Transfers, directory: &Path, job: &Value) -> String {
    let file = directory.join("job.json");
    fs::write(&file, job.to_string()).unwrap();
    // Without the flag, the client asks for no comparison whatever the file says.
    let words = ["--compare-checksum", "-f", file.to_str().unwrap()];
    let printed = all.run("fts-rest-transfer-submit", &words);
    printed.split_whitespace().next_back().unwrap().to_owned()
}

/// A transfer of a job; the client wants tokens, which agents do not need.
fn transfer(source: &str, destination: &str) -> Value {
    json!({
        "sources": [source], "destinations": [destination],
        "source_tokens": ["unused"], "destination_tokens": ["unused"],
    })
}

/// Requests of the controller as `penstock list` prints them.
pub(crate) fn listed(controller: &Operations) -> Vec<Value> {
    let done = run(controller.ask(&["list", "--limit", "1000", "--json"])).good();
    done.json["requests"].as_array().unwrap().clone()
}

/// Adler-32 (RFC 1950) of a file.
fn adler32(path: &Path) -> String {
    let sums = fs::read(path).unwrap().into_iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(byte)) % 65521;
        (a, (b + a) % 65521)
    });
    format!("{:08x}", sums.1 << 16 | sums.0)
}

#[test]
fn gateway_urls_move_by_request() {
    let Some(mut all) = Transfers::start(&format!("{NONE}{ACTIVITIES}{CLASS}")) else { return };
    let (a, b) = (node(&all, "dtn-a"), node(&all, "dtn-b"));
    let ((from, table_a), (to, table_b)) = (gateway(&a), gateway(&b));
    all.controller.append(&format!("{table_a}{table_b}"));
    fs::create_dir_all(a.path("x")).unwrap();
    let mut files = Vec::new();
    for (index, name) in ["f", "x/g h"].into_iter().enumerate() {
        write_file(&mut seeded(2410 + index as u64), &a.path(name), 3_000_001);
        let sum = adler32(&a.path(name));
        let name = name.replace(' ', "%20");
        let destination = format!("{}/data/in/{name}", to.replace("https", "davs"));
        let mut file = transfer(&format!("{from}/data/{name}"), &destination);
        file["checksum"] = json!(format!("ADLER32:{sum}"));
        file["activity"] = json!("User Subscriptions");
        file["filesize"] = json!(3_000_001);
        files.push(file);
    }
    let job = json!({"files": files});
    let job = all.wait(&submit(&all, a.dir.path(), &job));
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert_eq!(job["vo_name"], "analysis");
    assert_eq!(job["files"][1]["transferred"], 3_000_001, "{job}");
    for name in ["f", "x/g h"] {
        assert!(fs::read(a.path(name)).unwrap() == fs::read(b.path("in").join(name)).unwrap());
    }
    let requests = listed(&all.controller);
    assert_eq!(requests.len(), 2, "{requests:?}");
    for request in &requests {
        assert_eq!(
            (&request["state"], &request["class"], &request["client"]),
            (&json!("done"), &json!("analysis"), &json!("alice")),
            "{request}"
        );
    }
}

#[test]
fn agent_urls_compare_checksums() {
    let Some(all) = Transfers::start(NONE) else { return };
    let (a, b) = (node(&all, "dtn-a"), node(&all, "dtn-b"));
    write_file(&mut seeded(2413), &a.path("f"), 100_000);
    let job = |sum: &str, to: &str| {
        let mut file =
            transfer("penstock://dtn-a/data/f", &format!("penstock://dtn-b/data/{to}/f"));
        file["checksum"] = json!(sum);
        // The delays before five retries would exceed the wait for the end of the job.
        json!({"files": [file], "params": {"retry": 5}})
    };
    let wrong = all.wait(&submit(&all, a.dir.path(), &job("ADLER32:00000001", "wrong")));
    assert_eq!(wrong["job_state"], "FAILED", "{wrong}");
    let reason = wrong["files"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("checksum mismatch"), "{reason}");
    assert!(!b.path("wrong").join("f").exists());
    let sum = adler32(&a.path("f"));
    let right = all.wait(&submit(&all, a.dir.path(), &job(&format!("ADLER32:{sum}"), "right")));
    assert_eq!(right["job_state"], "FINISHED", "{right}");
    assert!(fs::read(b.path("right").join("f")).unwrap() == fs::read(a.path("f")).unwrap());
}

#[test]
fn cancelled_job_cancels_its_request() {
    let Some(all) = Transfers::start(NONE) else { return };
    let a = node(&all, "dtn-a");
    write_file(&mut seeded(2414), &a.path("f"), 1000);
    // No agent runs at the destination, so that the request waits.
    let job = json!({"files": [transfer("penstock://dtn-a/data/f", "penstock://dtn-c/data/f")]});
    let id = submit(&all, a.dir.path(), &job);
    wait_until("a request", Duration::from_secs(20), || {
        (all.get(&format!("jobs/{id}"))["job_state"] == "READY").then_some(())
    });
    all.run("fts-rest-transfer-cancel", &[&id]);
    assert_eq!(all.wait(&id)["job_state"], "CANCELED");
    wait_until("its end", Duration::from_secs(20), || {
        (listed(&all.controller)[0]["state"] == "cancelled").then_some(())
    });
    // And a request that an operator cancels ends its file.
    let id = submit(&all, a.dir.path(), &job);
    let request = wait_until("a request", Duration::from_secs(20), || {
        let first = listed(&all.controller)[0].clone();
        (first["state"] != "cancelled").then(|| first["id"].to_string())
    });
    run(all.controller.ask(&["cancel", &request])).good();
    assert_eq!(all.wait(&id)["job_state"], "CANCELED");
}

#[test]
fn storage_tokens_stay_secret() {
    let Some(mut all) = Transfers::start("storages = [\"localhost\"]\n") else { return };
    all.controller.verbose = true;
    all.controller.append("");
    let secrets = ["secret-of-the-source", "secret-of-the-destination"];
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("https://localhost:{}/f", closed.port());
    let job = json!({
        "files": [{
            "sources": [url], "destinations": [format!("{url}2")],
            "source_tokens": [secrets[0]], "destination_tokens": [secrets[1]],
        }],
        "params": {"retry": 9, "retry_delay": 3600},
    });
    let id = submit(&all, all.certificate.path("").as_path(), &job);
    let stored = || {
        let database = all.controller.state.join("controller.db");
        let text = "import sqlite3,sys\nfor row in sqlite3.connect(sys.argv[1]).execute('SELECT source_token, \
                    destination_token FROM fts_file'): print(*row)";
        let output = Command::new("python3").args(["-c", text]).arg(database).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    wait_until("an attempt", Duration::from_secs(20), || {
        let job = all.get(&format!("jobs/{id}?files=reason"));
        job["files"][0]["reason"].as_str().map(str::to_owned)
    });
    let encrypted = stored();
    assert!(encrypted.split(' ').all(|token| token.starts_with("aes256gcm:")), "{encrypted}");
    let database = fs::read(all.controller.state.join("controller.db")).unwrap();
    let wal = fs::read(all.controller.state.join("controller.db-wal")).unwrap_or_default();
    for bytes in [database, wal] {
        assert!(!bytes.windows(9).any(|part| part == b"secret-of"), "a token in clear text");
    }
    for path in ["jobs", &format!("jobs/{id}"), &format!("jobs/{id}/files"), "ban/se", "whoami"] {
        let text = all.get(path).to_string();
        assert!(!text.contains("secret-of"), "{path}: {text}");
    }
    all.run("fts-rest-transfer-cancel", &[&id]);
    assert_eq!(stored(), "None None");
    let log = all.controller.serve.as_ref().unwrap().log();
    assert!(log.contains("attempt 1 of an FTS3 file failed"), "{log}");
    assert!(!log.contains("secret-of") && !log.contains(USER_TOKEN), "{log}");
}
