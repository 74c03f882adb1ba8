//! Kinds of jobs beside plain ones (several hops, alternative sources), priorities and scitags.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{LOCAL, url};
use crate::common::{seeded, wait_until, write_file};
use crate::operator::{Transfers, USER_TOKEN};
use crate::site::{Site, TOKEN};

/// Sends JSON to a path of the interface, and returns the answer.
#[track_caller]
pub(crate) fn post(all: &Transfers, path: &str, body: &Value) -> Value {
    post_as(USER_TOKEN, all, path, body)
}

/// Sends JSON to a path of the interface with the token of a client, and returns the answer.
#[track_caller]
pub(crate) fn post_as(token: &str, all: &Transfers, path: &str, body: &Value) -> Value {
    let output = Command::new("curl")
        .args(["-s", "-u", &format!("user:{token}"), "-X", "POST", "-d", &body.to_string()])
        .arg(format!("http://{}/fts/{path}", all.controller.listen))
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{path}: {output:?}"))
}

/// Submits a job with these files and parameters; returns its id.
#[track_caller]
pub(crate) fn submit(all: &Transfers, files: &Value, params: &Value) -> String {
    let answer = post(all, "jobs", &json!({ "files": files, "params": params }));
    answer["job_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// A file of a job, with the token of all storages.
fn file(sources: &[String], destination: &str) -> Value {
    json!({
        "sources": sources, "destinations": [destination],
        "source_tokens": vec![TOKEN; sources.len()], "destination_tokens": [TOKEN],
        "scitag": 206,
    })
}

fn states(job: &Value) -> Vec<&str> {
    let files = job["files"].as_array().unwrap().iter();
    files.map(|file| file["file_state"].as_str().unwrap()).collect()
}

/// True if a transfer of the site has the path and the scitag of [`file`].
fn is_tagged(site: &Site, name: &str) -> bool {
    site.transfers().iter().any(|one| {
        one["path"].as_str().unwrap().ends_with(name)
            && (&one["scitag"], &one["owner"]) == (&206.into(), &"cms".into())
    })
}

#[test]
fn hops_follow_one_another() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2411), &all.a.data.join("f"), 3_000_003);
    let (first, middle, last) = (url(&all.a, "f"), url(&all.b, "middle"), url(&all.a, "last"));
    let multihop = json!({ "multihop": true });
    let hops = json!([file(&[first], &middle), file(std::slice::from_ref(&middle), &last)]);
    let job = all.wait(&submit(&all, &hops, &multihop));
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert_eq!(states(&job), ["FINISHED", "FINISHED"], "{job}");
    let content = fs::read(all.a.data.join("f")).unwrap();
    assert!(fs::read(all.a.data.join("last")).unwrap() == content);
    assert!(is_tagged(&all.b, "middle") && is_tagged(&all.a, "last"));
    // A failed hop needs no later one.
    let hops = json!([
        file(&[url(&all.a, "missing")], &url(&all.b, "m2")),
        file(&[url(&all.b, "m2")], &url(&all.a, "l2")),
    ]);
    let job = all.wait(&submit(&all, &hops, &multihop));
    assert_eq!((&job["job_state"], states(&job)[0]), (&"FAILED".into(), "FAILED"), "{job}");
    assert_ne!(states(&job)[1], "FINISHED", "{job}");
    assert!(!all.a.data.join("l2").exists());
}

#[test]
fn second_source_replaces_failed_one() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2412), &all.a.data.join("f"), 500_000);
    let sources = [url(&all.a, "missing"), url(&all.a, "f")];
    let job = all.wait(&submit(&all, &json!([file(&sources, &url(&all.b, "g"))]), &json!({})));
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert_eq!(states(&job), ["FAILED", "FINISHED"], "{job}");
    assert!(fs::read(all.b.data.join("g")).unwrap() == fs::read(all.a.data.join("f")).unwrap());
}

#[test]
fn higher_priority_goes_first() {
    let Some(all) = Transfers::start(&format!("{LOCAL}copies = 1\n")) else { return };
    write_file(&mut seeded(2413), &all.a.data.join("f"), 1000);
    // It accepts connections and says nothing, so that this copy takes the only place until it is cancelled.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = format!("https://{}/f", silent.local_addr().unwrap());
    let blocking = submit(&all, &json!([file(&[held], &url(&all.b, "held"))]), &json!({}));
    wait_until("the place is taken", std::time::Duration::from_secs(30), || {
        (all.get(&format!("jobs/{blocking}"))["job_state"] == "ACTIVE").then_some(())
    });
    let copy = |name: &str, priority: i64| {
        let files = json!([file(&[url(&all.a, "f")], &url(&all.b, name))]);
        submit(&all, &files, &json!({ "priority": priority }))
    };
    let (low, middle, raised) = (copy("low", 1), copy("middle", 3), copy("raised", 1));
    let answer = post(&all, &format!("jobs/{raised}"), &json!({ "params": { "priority": 5 } }));
    assert_eq!(answer["priority"], 5, "{answer}");
    let set = |priority: Value| {
        post(&all, &format!("jobs/{raised}"), &json!({ "params": { "priority": priority } }))
    };
    assert_eq!(set(json!("4"))["priority"], 4);
    let refused = set(json!(9));
    assert!(refused["message"].as_str().unwrap().contains("from 1 to 5"), "{refused}");
    assert_eq!(set(json!(5))["priority"], 5);
    all.run("fts-rest-transfer-cancel", &[&blocking]);
    for id in [&low, &middle, &raised] {
        assert_eq!(all.wait(id)["job_state"], "FINISHED");
    }
    let mut transfers = all.b.transfers();
    transfers.sort_by_key(|one| one["id"].as_u64());
    let paths = transfers.iter().map(|one| one["path"].as_str().unwrap().rsplit('/').next());
    let order: Vec<_> = paths.flatten().filter(|name| *name != "held").collect();
    assert_eq!(order, ["raised", "middle", "low"]);
}
