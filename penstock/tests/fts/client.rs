//! The programs `fts-rest-*`: jobs that copy real files, and jobs that fail.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{seeded, write_file};
use crate::kinds;
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
    let ban = |storage: &str, status: &str| {
        kinds::post(&all, "ban/se", &json!({ "storage": storage, "status": status }))
    };
    assert_eq!(ban("davs://127.0.0.1", "wait"), json!([]));
    let status = || all.get("ban/se")[0]["status"].clone();
    assert_eq!((status(), all.get("ban/se").as_array().unwrap().len()), (json!("WAIT"), 1));
    let davs = g.replace("https", "davs");
    let file = json!([{ "sources": [davs], "destinations": ["http://localhost/h"] }]);
    let submit = || kinds::post(&all, "jobs", &json!({ "files": file }))["message"].to_string();
    assert!(submit().contains("is banned"), "{}", submit());
    let refused = ban("https://127.0.0.1", "foo");
    assert!(refused["message"].as_str().unwrap().contains("CANCEL or WAIT"), "{refused}");
    assert_eq!(ban("https://127.0.0.1", "cancel"), json!([]));
    assert_eq!(status(), "CANCEL");
    all.run("fts-rest-ban", &["--storage", "davs://127.0.0.1", "--unban"]);
    // A port that a URL leaves out is that of its scheme.
    ban("http://localhost:80", "wait");
    assert!(submit().contains("http://localhost:80 is banned"), "{}", submit());
    assert_eq!(all.copy(&f, &g, &[])["job_state"], "FINISHED");
}

#[test]
fn file_is_not_copied_onto_itself() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    let f = url(&all.a, "f");
    let other_names = [f.clone(), f.replace("https", "davs"), f.replace("/f", "//%66?x=y")];
    for (destination, words) in other_names
        .iter()
        .map(|name| (name.as_str(), "the same file"))
        .chain([(format!("{f}#x").as_str(), "%23")])
    {
        let file = json!([{ "sources": [f], "destinations": [destination] }]);
        let answer = kinds::post(&all, "jobs", &json!({ "files": file }));
        assert_eq!(answer["status"], "400 Bad Request", "{destination}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(words), "{answer}");
    }
}

#[test]
fn hidden_jobs_take_no_places() {
    const OTHER_TOKEN: &str = "the-token-of-bob-who-sees-his-jobs";
    let Some(mut all) = Transfers::start(LOCAL) else { return };
    let (name, class) = ("bob", "analysis");
    let digest = crate::operator::sha256(OTHER_TOKEN);
    all.controller.append(&format!(
        "[[controller.token]]\nname = \"{name}\"\nsha256 = \"{digest}\"\nscopes = [\"submit:{class}\"]\n\
         [[controller.class]]\nname = \"default\"\n[[controller.class]]\nname = \"{class}\"\n"
    ));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = json!([{
        "sources": [format!("https://{closed}/f")], "destinations": [format!("https://{closed}/g")],
    }]);
    let job = json!({ "files": file });
    let own = kinds::post_as(OTHER_TOKEN, &all, "jobs", &job)["job_id"].clone();
    kinds::submit(&all, &file, &json!({}));
    let list = |query: &str| {
        let path = format!("http://{}/fts/jobs?limit=1{query}", all.controller.listen);
        let user = format!("{name}:{OTHER_TOKEN}");
        let output = Command::new("curl").args(["-s", "-u", &user, &path]).output().unwrap();
        let jobs: Value = serde_json::from_slice(&output.stdout).unwrap();
        jobs.as_array().unwrap().iter().map(|job| job["job_id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(list(""), std::slice::from_ref(&own));
    let id = all.get(&format!("jobs/{}", own.as_str().unwrap()))["cred_id"].clone();
    let delegated = list(&format!("&dlg_id={}", id.as_str().unwrap()));
    assert_eq!(delegated, std::slice::from_ref(&own));
    // An operator sees both jobs, and finds those of one client.
    let of_client = all.get(&format!("jobs?limit=1&dlg_id={}", id.as_str().unwrap()));
    assert_eq!(of_client[0]["job_id"], own, "{of_client}");
    assert!(list("&dlg_id=0").is_empty());
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
