//! The programs `fts-rest-*`: jobs that copy real files, and jobs that fail.

use std::fs;

use crate::common::{seeded, write_file};
use crate::operator::Transfers;
use crate::site::Site;
use crate::xrootd::Xrootd;

pub(crate) const LOCAL: &str = "storages = [\"127.0.0.1\", \"localhost\"]\n";

pub(crate) fn url(site: &Site, name: &str) -> String {
    format!("{}store/data/{name}", site.url("https"))
}

#[test]
fn cli_copies_between_gateways() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2401), &all.a.data.join("f"), 5_000_003);
    let whoami = all.run("fts-rest-whoami", &[]);
    assert!(whoami.contains("alice") && whoami.contains("default"), "{whoami}");
    let more = ["--compare-checksum", "-o", "--scitag", "65"];
    let job = all.copy(&url(&all.a, "f"), &url(&all.b, "g"), &more);
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert_eq!(job["files"][0]["transferred"], 5_000_003);
    let content = fs::read(all.a.data.join("f")).unwrap();
    assert!(fs::read(all.b.data.join("g")).unwrap() == content);
    let id = job["job_id"].as_str().unwrap();
    assert!(all.run("fts-rest-transfer-status", &[id]).contains("FINISHED"));
    assert!(all.run("fts-rest-transfer-list", &["--voname", "default"]).contains(id));
    assert!(all.run("fts-rest-server-status", &[]).contains("active: 0"));
}

#[test]
fn failures_name_their_cause() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2402), &all.a.data.join("f"), 10_000);
    let (f, g) = (url(&all.a, "f"), url(&all.b, "g"));
    let fails = |source: &str, destination: &str, more: &[&str], words: &str| {
        let job = all.copy(source, destination, more);
        assert_eq!(job["job_state"], "FAILED", "{job}");
        assert!(job["files"][0]["reason"].as_str().unwrap().contains(words), "{job}");
    };
    fails(&url(&all.a, "missing"), &g, &[], "No such file");
    fails(&url(&all.a, ""), &g, &[], "it is a directory");
    let wrong = &["--checksum-mode", "target", "ADLER32:00000001"][..];
    fails(&f, &g, wrong, "checksum mismatch");
    assert!(!all.b.data.join("g").exists());
    fs::write(all.b.data.join("g"), b"old").unwrap();
    let replacing = [&["--overwrite"], wrong].concat();
    fails(&f, &g, &replacing, "the copy is deleted, and so is a file that it replaced");
    assert!(!all.b.data.join("g").exists());
    fs::write(all.b.data.join("old"), b"old").unwrap();
    fails(&f, &url(&all.b, "old"), &[], "Destination file exists and overwrite is not enabled");
    assert_eq!(fs::read(all.b.data.join("old")).unwrap(), b"old");
    let output = all.run_as("a-wrong-token-of-nobody", "fts-rest-whoami", &[]);
    assert!(!output.status.success(), "{output:?}");
    let refused = all.run_as(
        "the-token-of-an-fts-user",
        "fts-rest-transfer-submit",
        &["--src-access-token", "x", "--dst-access-token", "x", "https://192.0.2.1/f", &g],
    );
    let text = format!("{refused:?}");
    assert!(!refused.status.success() && text.contains("not among storages"), "{text}");
}

#[test]
fn cancelled_job_copies_nothing() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2403), &all.a.data.join("f"), 10_000);
    // No attempt succeeds, and all of them take minutes.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let more = ["--retry", "9"];
    let id = all.submit(&format!("https://{closed}/f"), &url(&all.b, "g"), &more);
    let cancelled = all.run("fts-rest-transfer-cancel", &[&id]);
    assert!(cancelled.contains("CANCELED"), "{cancelled}");
    assert_eq!(all.get(&format!("jobs/{id}"))["job_state"], "CANCELED");
    assert!(!all.b.data.join("g").exists());
}

#[test]
fn restarted_controller_finishes_jobs() {
    let Some(mut all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2404), &all.a.data.join("f"), 40_000_000);
    let id = all.submit(&url(&all.a, "f"), &url(&all.b, "g"), &["-o"]);
    all.controller.serve.as_mut().unwrap().kill();
    all.controller.restart();
    let job = all.wait(&id);
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    let content = fs::read(all.a.data.join("f")).unwrap();
    assert!(fs::read(all.b.data.join("g")).unwrap() == content);
}

#[test]
fn banned_storage_takes_no_jobs() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2405), &all.a.data.join("f"), 100);
    all.run("fts-rest-ban", &["--storage", "https://127.0.0.1"]);
    let (f, g) = (url(&all.a, "f"), url(&all.b, "g"));
    let tokens = ["--src-access-token", "x", "--dst-access-token", "x", &f, &g];
    let refused = all.run_as("the-token-of-an-fts-user", "fts-rest-transfer-submit", &tokens);
    let text = format!("{refused:?}");
    assert!(!refused.status.success() && text.contains("is banned"), "{text}");
    all.run("fts-rest-ban", &["--storage", "https://127.0.0.1", "--unban"]);
    assert_eq!(all.copy(&f, &g, &[])["job_state"], "FINISHED");
}

#[test]
fn xrootd_pulls_from_gateway() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    let Some(xrootd) = Xrootd::start(&all.certificate) else { return };
    write_file(&mut seeded(2406), &all.a.data.join("f"), 3_000_000);
    let content = fs::read(all.a.data.join("f")).unwrap();
    xrootd.put("g", b"old");
    let job = all.copy(&url(&all.a, "f"), &xrootd.url("g"), &["-o", "--compare-checksum"]);
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert!(fs::read(xrootd.data.join("g")).unwrap() == content);
    let job = all.copy(&xrootd.url("g"), &url(&all.b, "h"), &["--compare-checksum"]);
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert!(fs::read(all.b.data.join("h")).unwrap() == content);
}
