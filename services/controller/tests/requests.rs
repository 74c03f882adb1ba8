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
fn requested_files_are_transferred_once() {
    on_both(|store| {
        let (_keep, running, world, mut nodes) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            let body = request("/in", (0..2500).map(|n| format!("run/{n}.raw")));
            let (status, made) = client.ask("POST", "/api/v1/requests", &body).await;
            assert_eq!(status, 201, "{made}");
            assert_eq!(
                (made["state"].as_str(), made["files"].as_u64()),
                (Some("staged"), Some(2500))
            );
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

#[test]
fn submission_names_path_of_request() {
    on_both(|store| {
        let (_keep, running, _, _) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            let mut body = request("/in", ["a".to_owned()]);
            body["key"] = json!("run 7");
            for expected in [201, 200] {
                let (status, made) = client.ask("POST", "/api/v1/requests", &body).await;
                assert_eq!(status, expected, "{made}");
                let path = format!("/api/v1/requests/{}", made["id"]);
                assert_eq!(client.headers["location"], path.as_str());
                assert_eq!(client.get(&path).await["id"], made["id"]);
            }
        });
    });
}

#[test]
fn submission_key_is_idempotent() {
    on_both(|store| {
        let (_keep, running, _, _) = start(store);
        let (mut one, mut other) = (running.client("producer"), running.client("operator"));
        running.block(async {
            let mut body = request("/in", ["a".to_owned()]);
            body["key"] = json!("run 7");
            let (status, made) = one.ask("POST", "/api/v1/requests", &body).await;
            assert_eq!(status, 201, "{made}");
            let (status, same) = one.ask("POST", "/api/v1/requests", &body).await;
            assert_eq!((status, &same["id"]), (200, &made["id"]));
            body["priority"] = json!(5);
            let (status, refused) = one.ask("POST", "/api/v1/requests", &body).await;
            assert_eq!(
                (status, refused["errors"][0]["pointer"].as_str()),
                (409, Some("/key")),
                "{refused}"
            );
            body["to"] = json!("/elsewhere");
            let (status, others) = other.ask("POST", "/api/v1/requests", &body).await;
            assert_eq!(status, 201, "a key is each client's own: {others}");
            let all = "/api/v1/requests?key=run%207";
            let of_producer = format!("{all}&client=producer");
            for (listed, expected) in [
                (one.get(all).await, &made),
                (other.get(all).await, &others),
                (other.get(&of_producer).await, &made),
            ] {
                let found = listed["requests"].as_array().unwrap();
                assert_eq!((found.len(), &found[0]["id"]), (1, &expected["id"]), "{listed}");
            }
        });
    });
}

#[test]
fn conflicting_destination_is_refused() {
    on_both(|store| {
        let (_keep, running, _, mut nodes) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            let first = request("/in", ["a", "b"].map(str::to_owned));
            let (_, made) = client.ask("POST", "/api/v1/requests", &first).await;
            let second = request("/in", ["c", "b"].map(str::to_owned));
            let (status, refused) = client.ask("POST", "/api/v1/requests", &second).await;
            assert_eq!(status, 409, "{refused}");
            assert_eq!(refused["errors"][0]["pointer"], "/files/1/path");
            assert!(
                refused["detail"].as_str().unwrap().contains(&format!("request {}", made["id"]))
            );
            // The rejected request left nothing behind.
            let third = request("/in", ["c".to_owned()]);
            assert_eq!(client.ask("POST", "/api/v1/requests", &third).await.0, 201);
            let path = format!("/api/v1/requests/{}", made["id"]);
            turns(&mut nodes, async || is_over(&client.get(&path).await)).await;
            let again = client.ask("POST", "/api/v1/requests", &first).await;
            assert_eq!(again.0, 201, "a request that ended does not conflict: {again:?}");
            let twice = request("/in", ["d", "d"].map(str::to_owned));
            let (status, refused) = client.ask("POST", "/api/v1/requests", &twice).await;
            assert_eq!(
                (status, refused["errors"][0]["pointer"].as_str()),
                (422, Some("/files/1/path"))
            );
        });
    });
}

#[test]
fn transient_faults_retry_permanent_fail() {
    use penstock_control::orders::FaultKind;
    on_both(|store| {
        let (_keep, running, world, mut nodes) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            world.lock().unwrap().faults = [
                ("once".to_owned(), (FaultKind::Transient, 1)),
                ("broken".to_owned(), (FaultKind::Integrity, 1)),
                ("gone".to_owned(), (FaultKind::Permanent, 9)),
                ("ever".to_owned(), (FaultKind::Transient, 99)),
            ]
            .into();
            let mut body =
                request("/in", ["fine", "once", "broken", "gone", "ever"].map(str::to_owned));
            body["attempts"] = json!(2);
            let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
            let path = format!("/api/v1/requests/{}", made["id"]);
            turns(&mut nodes, async || is_over(&client.get(&path).await)).await;
            let ended = client.get(&path).await;
            assert_eq!(
                (ended["state"].as_str(), ended["files_done"].as_u64()),
                (Some("partial"), Some(3)),
                "{ended}"
            );
            let list = client.get(&format!("{path}/files?state=failed")).await;
            let failed: Vec<_> = list["files"].as_array().unwrap().iter().collect();
            assert_eq!(failed.len(), 2);
            assert_eq!(
                (failed[0]["path"].as_str(), failed[0]["attempts"].as_u64()),
                (Some("gone"), Some(1))
            );
            assert_eq!(
                (failed[1]["path"].as_str(), failed[1]["attempts"].as_u64()),
                (Some("ever"), Some(2))
            );
            assert!(failed[0]["fault"].as_str().unwrap().contains("a fault of the test"));
            let history = client.get(&format!("{path}/history")).await;
            let kinds: Vec<_> = history["events"]
                .as_array()
                .unwrap()
                .iter()
                .map(|event| event["kind"].as_str().unwrap())
                .collect();
            assert_eq!((kinds[0], *kinds.last().unwrap()), ("submitted", "partial"), "{kinds:?}");
        });
    });
}

#[test]
fn directory_is_listed_first() {
    use penstock_control::orders::ListedFile;
    on_both(|store| {
        let (_keep, running, world, mut nodes) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            let entry = |n| ListedFile { path: format!("deep/{n}"), bytes: 1000 };
            world.lock().unwrap().directories.insert("/data".into(), (0..300).map(entry).collect());
            let directory = |from: &str| {
                json!({ "class": "production", "source": "cern", "destination": "caltech", "from": from,
                    "to": format!("/in{from}"), "directory": true })
            };
            let (status, made) = client.ask("POST", "/api/v1/requests", &directory("/data")).await;
            assert_eq!((status, made["state"].as_str()), (201, Some("submitted")), "{made}");
            let (_, none) = client.ask("POST", "/api/v1/requests", &directory("/none")).await;
            let paths = [&made, &none].map(|made| format!("/api/v1/requests/{}", made["id"]));
            turns(&mut nodes, async || {
                is_over(&client.get(&paths[0]).await) && is_over(&client.get(&paths[1]).await)
            })
            .await;
            let done = client.get(&paths[0]).await;
            assert_eq!((done["state"].as_str(), done["files_done"].as_u64()), (Some("done"), Some(300)), "{done}");
            let failed = client.get(&paths[1]).await;
            assert_eq!(failed["state"], "failed", "{failed}");
            assert!(failed["trouble"].as_str().unwrap().contains("no such directory"));
        });
    });
}

#[test]
fn files_append_until_sealed() {
    on_both(|store| {
        let (_keep, running, _, mut nodes) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            let mut body = request("/in", ["0".to_owned()]);
            body["open"] = json!(true);
            let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
            let path = format!("/api/v1/requests/{}", made["id"]);
            let more = |at: u64, name: &str, seal: bool| json!({ "at": at, "files": files([name.to_owned()]), "seal": seal });
            let append = format!("{path}/files");
            for _ in 0..2 {
                let (status, there) = client.ask("POST", &append, &more(1, "1", false)).await;
                assert_eq!((status, there["files"].as_u64()), (200, Some(2)), "the same call twice: {there}");
            }
            let (status, refused) = client.ask("POST", &append, &more(7, "2", false)).await;
            assert_eq!((status, refused["errors"][0]["pointer"].as_str()), (409, Some("/at")));
            let (status, there) = client.ask("POST", &append, &more(2, "2", true)).await;
            assert_eq!((status, there["files"].as_u64(), there["open"].as_bool()), (200, Some(3), Some(false)), "{there}");
            assert_eq!(client.ask("POST", &append, &more(3, "3", false)).await.0, 409);
            turns(&mut nodes, async || is_over(&client.get(&path).await)).await;
            assert_eq!(client.get(&path).await["files_done"], 3);
        });
    });
}

#[test]
fn append_of_other_client_is_refused() {
    on_both(|store| {
        let (_keep, running, _, _nodes) = start(store);
        let mut client = running.client("producer");
        running.block(async {
            let mut body = request("/in", ["0".to_owned()]);
            body["open"] = json!(true);
            let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
            let append = format!("/api/v1/requests/{}/files", made["id"]);
            let more = |names: [&str; 2], seal: bool| json!({ "at": 1, "files": files(names.map(str::to_owned)), "seal": seal });
            assert_eq!(client.ask("POST", &append, &more(["1", "2"], false)).await.0, 200);
            // As many files at the same place are no retry.
            for names in [["1", "3"], ["2", "1"]] {
                let (status, refused) = client.ask("POST", &append, &more(names, true)).await;
                assert_eq!((status, refused["errors"][0]["pointer"].as_str()), (409, Some("/at")), "{refused}");
            }
            let (status, sealed) = client.ask("POST", &append, &more(["1", "2"], true)).await;
            assert_eq!((status, sealed["files"].as_u64(), sealed["open"].as_bool()), (200, Some(3), Some(false)), "{sealed}");
        });
    });
}

#[test]
fn requests_are_paused_resumed_and_cancelled() {
    on_both(|store| {
        let (_keep, running, world, mut nodes) = start(store);
        nodes.iter_mut().for_each(|node| node.speed = 5);
        let mut client = running.client("producer");
        running.block(async {
            let body = request("/in", (0..3000).map(|n| format!("{n}")));
            let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
            let path = format!("/api/v1/requests/{}", made["id"]);
            turns(&mut nodes, async || client.get(&path).await["files_done"].as_u64() > Some(20))
                .await;
            let (status, paused) = client.ask("PATCH", &path, &json!({ "paused": true })).await;
            assert_eq!((status, paused["paused"].as_bool()), (200, Some(true)), "{paused}");
            turns(&mut nodes, async || client.get(&path).await["files_active"] == 0).await;
            let held = client.get(&path).await["files_done"].as_u64().unwrap();
            for _ in 0..10 {
                for node in &mut nodes {
                    node.turn().await;
                }
            }
            assert_eq!(
                client.get(&path).await["files_done"].as_u64(),
                Some(held),
                "it stands still"
            );
            client.ask("PATCH", &path, &json!({ "paused": false, "priority": 5 })).await;
            turns(&mut nodes, async || {
                client.get(&path).await["files_done"].as_u64() > Some(held + 20)
            })
            .await;
            let (status, cancelling) = client.ask("DELETE", &path, &Value::Null).await;
            assert_eq!(
                (status, cancelling["cancelling"].as_bool()),
                (200, Some(true)),
                "{cancelling}"
            );
            turns(&mut nodes, async || is_over(&client.get(&path).await)).await;
            let ended = client.get(&path).await;
            assert_eq!(ended["state"], "cancelled", "{ended}");
            let count = |name: &str| ended[name].as_u64().unwrap();
            assert_eq!(count("files_done") + count("files_cancelled"), 3000, "{ended}");
            assert!(world.lock().unwrap().written.values().all(|times| *times == 1));
            assert_eq!(client.ask("PATCH", &path, &json!({ "priority": 1 })).await.0, 409);
        });
    });
}

#[test]
fn drained_or_lost_work_moves() {
    on_both(|store| {
        let (_keep, running, world, mut nodes) = start(store);
        nodes.iter_mut().for_each(|node| node.speed = 3);
        let (mut client, mut operator) = (running.client("producer"), running.client("operator"));
        running.block(async {
            let (status, refused) = client.ask("PUT", "/api/v1/hosts/c2/drain", &Value::Null).await;
            assert_eq!(status, 403, "{refused}");
            let (status, _) = operator
                .ask("PUT", "/api/v1/hosts/c2/drain", &json!({ "reason": "new disks" }))
                .await;
            assert_eq!(status, 200);
            let body = request("/in", (0..400).map(|n| format!("{n}")));
            let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
            let path = format!("/api/v1/requests/{}", made["id"]);
            turns(&mut nodes, async || client.get(&path).await["files_done"].as_u64() > Some(10))
                .await;
            let orders = client.get(&format!("{path}/why")).await;
            assert!(
                orders["orders"].as_array().unwrap().iter().all(|order| order["from"] == "c1"),
                "{orders}"
            );
            assert_eq!(operator.ask("DELETE", "/api/v1/hosts/c2/drain", &Value::Null).await.0, 200);
            // From here on the first host is silent; its process is gone.
            nodes[0].crash();
            nodes.remove(0);
            turns(&mut nodes, async || is_over(&client.get(&path).await)).await;
            let ended = client.get(&path).await;
            assert_eq!(
                (ended["state"].as_str(), ended["files_done"].as_u64()),
                (Some("done"), Some(400)),
                "{ended}"
            );
            let world = world.lock().unwrap();
            assert_eq!(world.written.len(), 400);
            assert!(world.written.values().all(|times| *times == 1));
        });
    });
}

#[test]
fn state_survives_restart() {
    on_both(|store| {
        let (_keep, path) = directory();
        let line = store.line();
        let world = Shared::default();
        let first = Running::start(config(&path, &line), &path);
        let mut nodes: Vec<Node> =
            ["c1", "t1"].map(|name| Node::new(name, first.address, &world)).into();
        nodes.iter_mut().for_each(|node| node.speed = 5);
        let mut client = first.client("producer");
        let request = first.block(async {
            let body = request("/in", (0..500).map(|n| format!("{n}")));
            let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
            let path = format!("/api/v1/requests/{}", made["id"]);
            turns(&mut nodes, async || client.get(&path).await["files_done"].as_u64() > Some(30))
                .await;
            path
        });
        first.stop();
        let second = Running::start(config(&path, &line), &path);
        let mut client = second.client("producer");
        nodes.iter_mut().for_each(|node| node.client.move_to(second.address));
        second.block(async {
            turns(&mut nodes, async || is_over(&client.get(&request).await)).await;
            let ended = client.get(&request).await;
            assert_eq!(
                (ended["state"].as_str(), ended["files_done"].as_u64()),
                (Some("done"), Some(500)),
                "{ended}"
            );
            assert!(world.lock().unwrap().written.values().all(|times| *times == 1));
        });
    });
}

#[test]
fn failed_link_is_bypassed() {
    on_both(|store| {
        let (_keep, running, _, mut nodes) = start(store);
        nodes.iter_mut().for_each(|node| node.speed = 1);
        let mut operator = running.client("operator");
        running.block(async {
            let (_, made) = operator
                .ask("POST", "/api/v1/requests", &request("/in", (0..5000).map(|n| format!("{n}"))))
                .await;
            let why = format!("/api/v1/requests/{}/why", made["id"]);
            let over = |orders: &Value, link: &str| {
                let orders = orders["orders"].as_array().unwrap();
                !orders.is_empty()
                    && orders
                        .iter()
                        .all(|order| order["path"].as_array().unwrap().contains(&json!(link)))
            };
            turns(&mut nodes, async || over(&operator.get(&why).await, "direct")).await;
            let down = json!({ "down": true, "reason": "a ship's anchor" });
            assert_eq!(operator.ask("PUT", "/api/v1/links/direct", &down).await.0, 200);
            turns(&mut nodes, async || over(&operator.get(&why).await, "round-1")).await;
            let orders = operator.get(&why).await;
            let rates = orders["orders"].as_array().unwrap().iter();
            let sum: i64 = rates.map(|order| order["rate_bps"].as_i64().unwrap()).sum();
            assert!(sum <= 10_000_000_000, "{orders}");
            let links = operator.get("/api/v1/links").await;
            let direct = links["links"]
                .as_array()
                .unwrap()
                .iter()
                .find(|link| link["name"] == "direct")
                .unwrap()
                .clone();
            assert_eq!(
                (direct["down"].as_bool(), direct["orders"].as_i64()),
                (Some(true), Some(0)),
                "{direct}"
            );
        });
    });
}
