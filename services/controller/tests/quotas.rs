//! Quotas of clients, over real HTTP, on both databases.

mod common;

use common::node::{Node, Shared, turns};
use common::{Running, Store, config, directory, on_both, request, submit};
use serde_json::{Value, json};

fn start(store: &Store, quotas: &str) -> (tempfile::TempDir, Running) {
    let (keep, path) = directory();
    let more = format!("{}\n{quotas}", store.line());
    let running = Running::start(config(&path, &more), &path);
    (keep, running)
}

/// Refused for its quota, with a reason that has these words.
fn assert_over_quota((status, answer): &(u16, Value), words: &str) {
    assert_eq!(*status, 429, "{answer}");
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("quota") && detail.contains(words), "{detail}");
}

#[test]
fn requests_beyond_quota_are_refused() {
    let quotas = "[[controller.quota]]\nclient = \"produc*\"\nrequests = 2";
    on_both(|store| {
        let (_keep, running) = start(store, quotas);
        let (mut client, mut other) = (running.client("producer"), running.client("operator"));
        running.block(async {
            let mut first = request("production", "/1", 10);
            first["key"] = json!("first");
            let path = submit(&mut client, &first).await;
            submit(&mut client, &request("production", "/2", 10)).await;
            let third = request("production", "/3", 10);
            assert_over_quota(&client.ask("POST", "/api/v1/requests", &third).await, "2 requests");
            // A retry adds nothing, a changed request under a known key is a conflict.
            assert_eq!(client.ask("POST", "/api/v1/requests", &first).await.0, 200);
            first["to"] = json!("/4");
            assert_eq!(client.ask("POST", "/api/v1/requests", &first).await.0, 409);
            // Another client has its own requests, and no quota here.
            for to in ["/5", "/6", "/7"] {
                submit(&mut other, &request("production", to, 10)).await;
            }
            assert_eq!(client.ask("DELETE", &path, &Value::Null).await.0, 200);
            client.until(&path, |request| request["state"] == "cancelled").await;
            submit(&mut client, &third).await;
            let fourth = request("production", "/8", 10);
            assert_over_quota(&client.ask("POST", "/api/v1/requests", &fourth).await, "2 requests");
        });
    });
}

#[test]
fn bytes_beyond_quota_are_refused() {
    let quotas = "[[controller.quota]]\nclient = \"producer\"\nbytes = 1000";
    on_both(|store| {
        let (_keep, running) = start(store, quotas);
        let mut client = running.client("producer");
        running.block(async {
            let mut open = request("production", "/1", 400);
            open["open"] = json!(true);
            let path = submit(&mut client, &open).await;
            let large = request("production", "/2", 601);
            assert_over_quota(&client.ask("POST", "/api/v1/requests", &large).await, "1001 B");
            // What a client says of files that it will add counts.
            let mut estimated = request("production", "/3", 1);
            estimated["size_estimate_bytes"] = json!(601);
            assert_over_quota(&client.ask("POST", "/api/v1/requests", &estimated).await, "1001 B");
            let more = |bytes| json!({ "at": 1, "files": [{ "path": "b", "size": bytes }] });
            let append = format!("{path}/files");
            assert_over_quota(&client.ask("POST", &append, &more(601)).await, "1001 B");
            assert_eq!(client.ask("POST", &append, &more(600)).await.0, 200);
            let empty = request("production", "/4", 0);
            submit(&mut client, &empty).await;
            let one = request("production", "/5", 1);
            assert_over_quota(&client.ask("POST", "/api/v1/requests", &one).await, "1001 B");
        });
    });
}

#[test]
fn reload_changes_quotas() {
    let (_keep, path) = directory();
    let quota = |requests| format!("[[controller.quota]]\nclient = \"*\"\nrequests = {requests}");
    let running = Running::start(config(&path, &quota(0)), &path);
    let mut client = running.client("producer");
    running.block(async {
        let one = request("production", "/1", 1);
        assert_over_quota(&client.ask("POST", "/api/v1/requests", &one).await, "0 requests");
    });
    config(&path, &quota(1));
    running.reload().unwrap();
    running.block(async {
        submit(&mut client, &request("production", "/1", 1)).await;
    });
}

#[test]
fn huge_sizes_stop_nothing() {
    let most = 1_u64 << 50;
    on_both(|store| {
        let (_keep, running) =
            start(store, "[[controller.quota]]\nclient = \"producer\"\nbytes = 1000");
        let (mut client, mut limited) = (running.client("operator"), running.client("producer"));
        let world = Shared::default();
        running.block(async {
            for size in [most + 1, i64::MAX as u64, u64::MAX] {
                let huge = request("production", "/huge", size);
                assert_eq!(client.ask("POST", "/api/v1/requests", &huge).await.0, 422, "{size}");
            }
            // Sums above 64 bits.
            for number in 0..3 {
                let mut many = request("production", &format!("/many{number}"), 1);
                let files =
                    (0..10_000).map(|file| json!({"path": format!("f{file}"), "size": most}));
                many["files"] = files.collect();
                submit(&mut client, &many).await;
                assert_over_quota(&limited.ask("POST", "/api/v1/requests", &many).await, "1000 B");
            }
            // Work that comes later still begins and ends.
            let path = submit(&mut client, &request("analysis", "/small", 10)).await;
            let mut nodes = vec![
                Node::new("c1", running.address, &world),
                Node::new("t1", running.address, &world),
            ];
            turns(&mut nodes, async || client.get(&path).await["state"] == "done").await;
        });
    });
}
