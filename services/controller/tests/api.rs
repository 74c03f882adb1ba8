//! Refusals of the API with their messages, scopes, and event streams.

mod common;

use common::node::{Node, Shared};
use common::{Running, config, directory, submit};
use penstock_testkit::http::{EventFeed, FeedEvent};
use serde_json::{Value, json};

fn start() -> (tempfile::TempDir, Running) {
    let (keep, path) = directory();
    let running = Running::start(config(&path, ""), &path);
    (keep, running)
}

fn request() -> Value {
    json!({
        "class": "production", "source": "cern", "destination": "caltech", "from": "/data", "to": "/in",
        "files": [{ "path": "a", "size": 1 }],
    })
}

#[test]
fn invalid_field_is_named_by_pointer() {
    let (_keep, running) = start();
    let mut client = running.client("producer");
    running.block(async {
        let long: Vec<Value> = (0..10_001).map(|n| json!({ "path": format!("{n}") })).collect();
        for (field, value, pointer, words) in [
            ("source", json!("mars"), "/source", "no site 'mars'"),
            ("class", json!("none"), "/class", "no class 'none'"),
            ("from", json!("data"), "/from", "begin with /"),
            ("to", json!("/in/../x"), "/to", "'..'"),
            ("priority", json!(9), "/priority", "1 (can wait)"),
            ("priority", json!("high"), "/priority", "invalid type"),
            ("attempts", json!(0), "/attempts", "give 1"),
            ("files", json!([]), "/files", "nothing is asked for"),
            ("files", json!(long), "/files", "more than 10000"),
            ("files", json!([{ "path": "/abs" }]), "/files/0/path", "begins with /"),
            (
                "files",
                json!([{ "path": "a" }, { "path": "b", "size": -1 }]),
                "/files/1/size",
                "invalid value",
            ),
            ("files", json!([{ "path": "a", "digest": "md5" }]), "/files/0/digest", "crc32c:"),
            ("files", json!([{ "path": "a", "mode": 1 }]), "/files/0/mode", "unknown field"),
            ("directory", json!(true), "/directory", "either directory"),
            ("verify", json!("maybe"), "/verify", "unknown variant"),
            ("tune", json!("on"), "/tune", "unknown variant"),
            ("transport", json!("quic"), "/transport", "unknown variant"),
            ("transport", json!("rdma"), "/transport", "does not encrypt"),
            ("deadline_unix_seconds", json!(-1), "/deadline_unix_seconds", "since 1970"),
            ("key", json!(""), "/key", "1 to 256"),
            ("colour", json!("red"), "/colour", "unknown field"),
        ] {
            let mut body = request();
            body[field] = value;
            let (status, problem) = client.ask("POST", "/api/v1/requests", &body).await;
            assert_eq!(status, 422, "{field}: {problem}");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
            assert_eq!(problem["error"], problem["detail"]);
        }
        for (body, words) in [
            (&b"{"[..], "no JSON"),
            (b"{} {}", "missing field"),
            (b"\xff", "no JSON"),
            (b"[]", "invalid length"),
        ] {
            let (status, problem) = client.try_ask("POST", "/api/v1/requests", body).await.unwrap();
            assert!(matches!(status, 400 | 422), "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
        }
        let huge = vec![b' '; penstock_controller::api::BODY_BYTES_MAX + 1];
        let answer = client.try_ask("POST", "/api/v1/requests", &huge).await;
        // The server may close the connection before the whole body is sent.
        assert!(answer.is_err() || answer.as_ref().unwrap().0 == 413, "{answer:?}");
    });
}

#[test]
fn lists_refuse_unknown_filters() {
    let (_keep, running) = start();
    let mut client = running.client("operator");
    running.block(async {
        let path = submit(&mut client, &request()).await;
        let files = format!("{path}/files");
        let history = format!("{path}/history");
        for (path, query, words) in [
            ("/api/v1/requests", "limit=0", "from 1 to 1000"),
            ("/api/v1/requests", "state=active,new", "write one of submitted, staged, active"),
            (files.as_str(), "state=new", "write one of queued, active"),
        ] {
            let (status, problem) =
                client.ask("GET", &format!("{path}?{query}"), &Value::Null).await;
            assert_eq!(status, 422, "{path}: {problem}");
            assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
        }
        for path in ["requests", "classes", "hosts", "links", "orders", "reservations", "rounds"]
            .map(|list| format!("/api/v1/{list}"))
            .into_iter()
            .chain(["audit", "events", "events/network"].map(|list| format!("/api/v1/{list}")))
            .chain([files, history])
        {
            let (status, problem) =
                client.ask("GET", &format!("{path}?what=1"), &Value::Null).await;
            assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!("what")), "{path}");
        }
    });
}

#[test]
fn scopes_limit_api_access() {
    let (_keep, running) = start();
    running.block(async {
        let mut producer = running.client("producer");
        let (status, made) = producer.ask("POST", "/api/v1/requests", &request()).await;
        assert_eq!(status, 201, "{made}");
        let path = format!("/api/v1/requests/{}", made["id"]);
        let mut analysis = request();
        analysis["class"] = json!("analysis");
        let none = Value::Null;
        for (name, method, path, body, status) in [
            ("producer", "POST", "/api/v1/requests", &analysis, 403),
            ("reader", "POST", "/api/v1/requests", &analysis, 403),
            ("c1", "POST", "/api/v1/requests", &analysis, 403),
            ("reader", "GET", path.as_str(), &none, 200),
            ("analyst", "GET", &path, &none, 404),
            ("analyst", "DELETE", &path, &none, 404),
            ("reader", "DELETE", &path, &none, 403),
            ("c1", "GET", &path, &none, 404),
            ("c1", "GET", "/api/v1/requests", &none, 403),
            ("analyst", "GET", "/api/v1/rounds", &none, 403),
            ("reader", "GET", "/api/v1/rounds", &none, 200),
            ("reader", "GET", "/api/v1/audit", &none, 403),
            ("operator", "GET", "/api/v1/audit", &none, 200),
            ("c1", "GET", "/api/v1/agents/c2/orders/2", &none, 403),
            ("c1", "GET", "/api/v1/agents/c1/orders/2", &none, 404),
            ("reader", "POST", "/api/v1/agents/c1/report", &none, 403),
            ("nobody", "GET", "/api/v1/requests", &none, 401),
        ] {
            let (got, answer) = running.client(name).ask(method, path, body).await;
            assert_eq!(got, status, "{name} {method} {path}: {answer}");
        }
        let seen = |answer: Value| answer["requests"].as_array().unwrap().len();
        assert_eq!(seen(running.client("analyst").get("/api/v1/requests").await), 0);
        assert_eq!(seen(running.client("producer").get("/api/v1/requests").await), 1);
        assert_eq!(seen(running.client("reader").get("/api/v1/requests?state=staged").await), 1);
        let classes = running.client("analyst").get("/api/v1/classes").await;
        assert_eq!(classes["classes"].as_array().unwrap().len(), 1, "{classes}");
        let log = running.client("operator").get("/api/v1/audit").await;
        assert_eq!(log["entries"][0]["who"], "producer", "{log}");
    });
}

#[test]
fn node_reports_are_confined() {
    let (_keep, running) = start();
    running.block(async {
        let world = Shared::default();
        let mut nodes: Vec<Node> =
            ["c1", "t1"].map(|name| Node::new(name, running.address, &world)).into();
        let mut client = running.client("producer");
        let mut body = request();
        body.as_object_mut().unwrap().remove("files");
        body["directory"] = json!(true);
        let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
        let entry =
            |path: &str| penstock_control::orders::ListedFile { path: path.into(), bytes: 1 };
        let entries = ["good", "../etc/passwd", "/abs", "a//b", "good"].map(entry).to_vec();
        world.lock().unwrap().directories.insert("/data".into(), entries);
        let path = format!("/api/v1/requests/{}", made["id"]);
        common::node::turns(&mut nodes, async || client.get(&path).await["state"] == "done").await;
        let list = client.get(&format!("{path}/files")).await;
        let paths: Vec<_> =
            list["files"].as_array().unwrap().iter().map(|file| file["path"].clone()).collect();
        assert_eq!(paths, ["good"], "{list}");
        // An outcome of an order that is not the node's, and of a file that is not in it.
        let (_, made) = client
            .ask("POST", "/api/v1/requests", &{
                let mut body = request();
                body["to"] = json!("/other");
                body
            })
            .await;
        let path = format!("/api/v1/requests/{}", made["id"]);
        let mut order = 0;
        while order == 0 {
            nodes.iter_mut().for_each(|node| node.speed = 0);
            for node in &mut nodes {
                node.turn().await;
            }
            order = nodes[0].last.orders.first().map_or(0, |active| active.order.number());
        }
        let report = |order: u64, file: u32| {
            json!({ "start": "x", "version": "x", "addresses": [], "fingerprint": "",
                "capacity": { "transfers": 1, "streams": 1 },
                "orders": [{ "order": order, "run": 1, "phase": "running",
                    "outcomes": [{ "file": file, "bytes": 1 }] }] })
        };
        let (status, _) =
            running.client("t1").ask("POST", "/api/v1/agents/t1/report", &report(order, 0)).await;
        assert_eq!(status, 200);
        let (status, _) =
            running.client("c1").ask("POST", "/api/v1/agents/c1/report", &report(order, 77)).await;
        assert_eq!(status, 200);
        assert_eq!(client.get(&path).await["files_done"], 0);
    });
}

#[test]
fn event_stream_resumes_at_cursor() {
    let (_keep, running) = start();
    let mut client = running.client("producer");
    let mut submit = |to: &str| {
        let mut body = request();
        body["to"] = json!(to);
        running.block(client.ask("POST", "/api/v1/requests", &body));
    };
    submit("/first");
    let token = common::token("producer");
    let mut feed = EventFeed::open_as(running.address, "/api/v1/events?after=0", &token);
    let is_submitted = |event: &FeedEvent| event.kind == "submitted";
    let first = feed.find(is_submitted).unwrap();
    assert_eq!(first.id, "1");
    submit("/second");
    let second = feed.find(is_submitted).unwrap();
    assert_ne!(first.data["request"], second.data["request"]);
    assert!(first.data["request"].is_u64(), "{first:?}");
}
