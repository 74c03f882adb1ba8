//! ALTO documents, the rate limit of clients, and retention.

mod common;

use std::time::Duration;

use common::node::{Node, Shared, turns};
use common::{Running, config, directory, on_both};
use serde_json::{Value, json};

const SITES: &str = "[[controller.site]]\nname = \"cern\"\nnetworks = [\"192.0.2.0/24\", \"2001:db8:1::/48\"]\n\
                     [[controller.site]]\nname = \"caltech\"\nnetworks = [\"198.51.100.0/24\"]\n";

/// Reads the directory as a client does that knows only the RFC. Returns id, media type and content.
async fn discover(client: &mut common::Client) -> Vec<(String, String, Value)> {
    let entry = client.get("/api/v1/alto/directory").await;
    // RFC 7285 section 9.1.
    assert_eq!(client.headers["content-type"], "application/alto-directory+json");
    let resources = entry["resources"].as_object().unwrap().clone();
    let mut found = Vec::new();
    for (id, resource) in resources {
        let document = client.get(resource["uri"].as_str().unwrap()).await;
        assert_eq!(
            client.headers["content-type"],
            resource["media-type"].as_str().unwrap(),
            "{id}"
        );
        for used in resource["uses"].as_array().into_iter().flatten() {
            assert!(entry["resources"].get(used.as_str().unwrap()).is_some(), "{id} uses {used}");
        }
        for name in resource["capabilities"]["cost-type-names"].as_array().into_iter().flatten() {
            let kind = &entry["meta"]["cost-types"][name.as_str().unwrap()];
            let meant = &document["meta"]["cost-type"];
            assert_eq!(meant["cost-mode"], kind["cost-mode"], "{document}");
            assert_eq!(meant["cost-metric"], kind["cost-metric"], "{document}");
        }
        found.push((id, resource["media-type"].as_str().unwrap().to_owned(), document));
    }
    found
}

fn of<'a>(found: &'a [(String, String, Value)], kind: &str) -> (&'a str, &'a Value) {
    let media = format!("application/alto-{kind}+json");
    let one = found.iter().find(|(_, of, _)| *of == media).unwrap();
    (&one.0, &one.2)
}

#[test]
fn alto_maps_follow_rfc() {
    let (_keep, path) = directory();
    let running = Running::start(config(&path, SITES), &path);
    running.block(async {
        let mut client = running.client("producer");
        let found = discover(&mut client).await;
        let (id, network) = of(&found, "networkmap");
        let (_, costs) = of(&found, "costmap");
        // Section 11.2.3.6: costs refer to that version of the map.
        let vtag = &network["meta"]["vtag"];
        assert_eq!(
            (vtag["resource-id"].as_str(), vtag),
            (Some(id), &costs["meta"]["dependent-vtags"][0])
        );
        let pids = network["network-map"].as_object().unwrap();
        assert_eq!(pids["cern"]["ipv4"], json!(["192.0.2.0/24"]));
        assert_eq!(pids["cern"]["ipv6"], json!(["2001:db8:1::/48"]));
        // Section 5: every address is in one PID, also those outside every site.
        let all = |family: &str, whole: &str| {
            pids.values().any(|group| {
                group[family].as_array().is_some_and(|list| list.contains(&json!(whole)))
            })
        };
        assert!(all("ipv4", "0.0.0.0/0") && all("ipv6", "::/0"), "{network}");
        let map = costs["cost-map"].as_object().unwrap();
        for (from, row) in map {
            assert!(pids.contains_key(from));
            assert!(row.as_object().unwrap().keys().all(|to| pids.contains_key(to)), "{row}");
        }
        // 70 ms over the link between the sites, in microseconds, plus one for the link.
        let cost = costs["cost-map"]["cern"]["caltech"].as_f64().unwrap();
        assert_eq!(cost, 70_001.0, "{costs}");

        // A link that is down changes costs, not the map; unreachable pairs have no cost.
        let mut operator = running.client("operator");
        for (link, wanted) in [("direct", json!(100_002.0)), ("round-2", Value::Null)] {
            let link = format!("/api/v1/links/{link}");
            assert_eq!(operator.ask("PUT", &link, &json!({ "down": true })).await.0, 200);
            let found = discover(&mut client).await;
            let (_, costs) = of(&found, "costmap");
            assert_eq!(
                costs["cost-map"]["cern"].get("caltech").cloned().unwrap_or_default(),
                wanted
            );
            assert_eq!(of(&found, "networkmap").1["meta"]["vtag"], *vtag);
        }
        assert_eq!(
            running.client("c1").ask("GET", "/api/v1/alto/networkmap", &Value::Null).await.0,
            403
        );
        assert_eq!(
            running.client("nobody").ask("GET", "/api/v1/alto/directory", &Value::Null).await.0,
            401
        );
    });
}

#[test]
fn rate_limit_affects_one_client() {
    let (_keep, path) = directory();
    let running = Running::start(config(&path, "requests_per_second = 2"), &path);
    running.block(async {
        let mut greedy = running.client("reader");
        let mut refused = None;
        for _ in 0..1000 {
            let (status, answer) = greedy.ask("GET", "/api/v1/classes", &Value::Null).await;
            if status == 429 {
                refused = Some(answer);
                break;
            }
            assert_eq!(status, 200, "{answer}");
        }
        let refused = refused.expect("two in a second are admitted, not a thousand");
        assert!(
            refused["detail"].as_str().unwrap().contains("more than 2 requests in a second"),
            "{refused}"
        );
        assert_eq!(greedy.headers["content-type"], "application/problem+json");
        assert_eq!(greedy.headers["retry-after"], "1");
        assert_eq!(
            running.client("operator").ask("GET", "/api/v1/classes", &Value::Null).await.0,
            200
        );
        // After the second given by Retry-After.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(greedy.ask("GET", "/api/v1/classes", &Value::Null).await.0, 200);
    });
}

#[test]
fn retention_purges_ended_requests_only() {
    on_both(|store| {
        let (_keep, path) = directory();
        let mut config = config(&path, &store.line());
        config.keep = Duration::from_millis(300);
        let running = Running::start(config, &path);
        let world = Shared::default();
        let mut nodes = ["c1", "t1"].map(|name| Node::new(name, running.address, &world));
        let mut client = running.client("operator");
        running.block(async {
            let body = |to: &str, count: usize| {
                let files: Vec<Value> = (0..count).map(|n| json!({ "path": format!("{n}") })).collect();
                json!({ "class": "production", "source": "cern", "destination": "caltech", "from": "/data",
                    "to": to, "files": files, "key": to })
            };
            let (_, done) = client.ask("POST", "/api/v1/requests", &body("/in", 50)).await;
            let done = format!("/api/v1/requests/{}", done["id"]);
            turns(&mut nodes, async || client.ask("GET", &done, &Value::Null).await.0 == 404).await;
            let (status, _) = client.ask("GET", &format!("{done}/files"), &Value::Null).await;
            assert_eq!(status, 404);
            assert_eq!(world.lock().unwrap().written.len(), 50);
            assert_eq!(client.get("/api/v1/requests").await["requests"], json!([]));
            // A request that has not begun is as old, and stays.
            let (status, waits) = client.ask("POST", "/api/v1/requests", &body("/later", 3)).await;
            assert_eq!(status, 201);
            let paused = format!("/api/v1/requests/{}", waits["id"]);
            assert_eq!(client.ask("PATCH", &paused, &json!({ "paused": true })).await.0, 200);
            // Its key and its destinations are free again.
            let (status, again) = client.ask("POST", "/api/v1/requests", &body("/in", 50)).await;
            assert_eq!(status, 201, "{again}");
            let again = format!("/api/v1/requests/{}", again["id"]);
            turns(&mut nodes, async || client.ask("GET", &again, &Value::Null).await.0 == 404).await;
            assert_eq!(client.get(&paused).await["files"], 3);
            // The audit log is kept longer.
            let log = client.get("/api/v1/audit").await.to_string();
            assert!(log.contains("submit"), "{log}");
        });
    });
}
