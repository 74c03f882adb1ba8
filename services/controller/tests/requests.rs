//! Requests from their submission to their end, over real HTTP, on both databases, with simulated nodes.

mod common;

use common::node::{Node, Shared, turns};
use common::{Running, Store, config, directory, on_both};
use serde_json::{Value, json};

fn files(names: impl IntoIterator<Item = String>) -> Value {
    names.into_iter().map(|path| json!({ "path": path, "size": 1000 })).collect()
}

fn request(to: &str, names: impl IntoIterator<Item = String>) -> Value {
    json!({
        "class": "production", "source": "cern", "destination": "caltech", "from": "/data", "to": to,
        "files": files(names),
    })
}

fn start(store: &Store) -> (tempfile::TempDir, Running, Shared, Vec<Node>) {
    let (keep, path) = directory();
    let running = Running::start(config(&path, &store.line()), &path);
    let world = Shared::default();
    let nodes = ["c1", "c2", "t1", "t2"].map(|name| Node::new(name, running.address, &world));
    (keep, running, world, nodes.into())
}

fn is_over(request: &Value) -> bool {
    !matches!(request["state"].as_str().unwrap(), "submitted" | "staged" | "active")
}

#[test]
fn files_that_are_asked_for_are_moved_once() {
    on_both(|store| {
        let (_keep, running, world, mut nodes) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            let body = request("/in", (0..2500).map(|n| format!("run/{n}.raw")));
            let (status, made) = client.ask("POST", "/api/v1/requests", &body).await;
            assert_eq!(status, 201, "{made}");
            assert_eq!((made["state"].as_str(), made["files"].as_u64()), (Some("staged"), Some(2500)));
            let path = format!("/api/v1/requests/{}", made["id"]);
            turns(&mut nodes, async || is_over(&client.get(&path).await)).await;
            let ended = client.get(&path).await;
            assert_eq!(ended["state"], "done", "{ended}");
            assert_eq!(ended["files_done"], 2500);
            assert_eq!(ended["bytes_done"], 2_500_000);
            assert_eq!(ended["files_active"], 0);
            let world = world.lock().unwrap();
            assert_eq!(world.written.len(), 2500);
            assert!(world.written.values().all(|times| *times == 1));
        });
    });
}
