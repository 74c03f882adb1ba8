//! Requests that do not move state why, and end though their hosts are gone; errors hide what a client may not see.

mod common;

use std::time::{Duration, Instant};

use common::node::{Node, Shared, turns};
use common::{Client, Running, config, directory, now_s, on_both, request, submit, token};
use penstock_control::orders::PathForecast;
use penstock_controller::config::Config;
use penstock_scitags::Registry;
use serde_json::{Value, json};

/// Returns the text of a field.
fn words<'a>(facts: &'a Value, field: &str) -> &'a str {
    facts[field].as_str().unwrap_or_default()
}

#[test]
fn waiting_requests_name_their_reason() {
    on_both(|store| {
        let (_keep, path) = directory();
        let running = Running::start(config(&path, &store.line()), &path);
        let world = Shared::default();
        let mut client = running.client("operator");
        running.block(async {
            let first = submit(&mut client, &request("production", "/in", 1 << 40)).await;
            let facts = client.get(&first).await;
            assert_eq!(
                words(&facts, "waiting"),
                "no host of cern is up; c1 never reported, c2 never reported"
            );
            assert_eq!(facts["forecast_seconds"], Value::Null, "{facts}");
            let listed = client.get("/api/v1/requests").await;
            assert_eq!(listed["requests"][0]["waiting"], facts["waiting"]);

            // Once the source reports, the destination is missing.
            let mut nodes = vec![
                Node::idle("c1", running.address, &world),
                Node::idle("c2", running.address, &world),
            ];
            turns(&mut nodes, async || {
                words(&client.get(&first).await, "waiting").starts_with("no host of caltech is up")
            })
            .await;
            nodes.push(Node::idle("t1", running.address, &world));
            turns(&mut nodes, async || {
                let facts = client.get(&first).await;
                facts["waiting"].is_null()
                    && facts["bits_per_second"].as_u64() > Some(0)
                    && facts["forecast_seconds"].as_u64() > Some(0)
            })
            .await;
            client.ask("PATCH", &first, &json!({ "paused": true })).await;
            turns(&mut nodes, async || {
                words(&client.get(&first).await, "waiting") == "it is paused"
            })
            .await;
            client.ask("PATCH", &first, &json!({ "paused": false })).await;
            turns(&mut nodes, async || client.get(&first).await["waiting"].is_null()).await;

            // Both ends fall silent: no stale rate is reported, and the reason names them.
            let begun = Instant::now();
            let silent =
                client.until(&first, |facts| words(facts, "waiting").contains("silent for")).await;
            assert!(begun.elapsed() < Duration::from_secs(20));
            assert_eq!(
                (&silent["bits_per_second"], &silent["forecast_seconds"]),
                (&json!(0), &Value::Null)
            );
            for path in ["/api/v1/orders", &format!("{first}/why")] {
                let orders = client.get(path).await;
                assert_eq!(orders["orders"][0]["bits_per_second"], 0, "{orders}");
            }
            let classes = client.get("/api/v1/classes").await;
            assert_eq!(classes["classes"][0]["measured_bps"], 0, "{classes}");
            let hosts = client.get("/api/v1/hosts").await;
            assert!(hosts["hosts"].as_array().unwrap().iter().all(|host| host["sent_bps"] == 0));
        });
    });
}

#[test]
fn forecast_has_range_of_earlier_transfers() {
    on_both(|store| {
        let (_keep, path) = directory();
        let running = Running::start(config(&path, &store.line()), &path);
        let world = Shared::default();
        let mut client = running.client("operator");
        running.block(async {
            let first = submit(&mut client, &request("production", "/in", 1 << 40)).await;
            let mut nodes = vec![
                Node::idle("c1", running.address, &world),
                Node::idle("t1", running.address, &world),
            ];
            let mut running_facts = async |nodes: &mut Vec<Node>, has_range: bool| {
                turns(nodes, async || {
                    let facts = client.get(&first).await;
                    facts["forecast_seconds"].is_u64()
                        && facts["forecast_p10_seconds"].is_u64() == has_range
                })
                .await;
                client.get(&first).await
            };
            // Without earlier transfers there is no range.
            let facts = running_facts(&mut nodes, false).await;
            assert_eq!(facts["forecast_transfers"], Value::Null, "{facts}");
            // Rates far below those that the class may use, and above: the range is that of the path.
            let path =
                PathForecast { p10_bps: 1 << 20, p50_bps: 1 << 21, p90_bps: 1 << 22, transfers: 9 };
            nodes[0].path_forecast = Some(path);
            let facts = running_facts(&mut nodes, true).await;
            let number = |field: &str| facts[field].as_u64().unwrap_or_default();
            assert_eq!(number("forecast_transfers"), 9, "{facts}");
            // 2^43 bits.
            assert_eq!(number("forecast_p90_seconds"), 1 << 23, "{facts}");
            // The node moves faster than its path did, and the range reaches to its rate.
            assert_eq!(facts["forecast_p10_seconds"], facts["forecast_seconds"], "{facts}");
            nodes[0].path_forecast = None;
            running_facts(&mut nodes, false).await;
        });
    });
}

#[test]
fn cancelled_request_of_gone_hosts_ends() {
    on_both(|store| {
        for is_said in [false, true] {
            let (_keep, path) = directory();
            let more =
                format!("{}\n{}", store.line(), if is_said { "" } else { "gone_after = \"6s\"" });
            let running = Running::start(config(&path, &more), &path);
            let world = Shared::default();
            let mut client = running.client("operator");
            running.block(async {
                let first = submit(&mut client, &request("production", "/in", 1 << 40)).await;
                let mut nodes = vec![
                    Node::idle("c1", running.address, &world),
                    Node::idle("t1", running.address, &world),
                ];
                turns(&mut nodes, async || client.get(&first).await["files_active"] == 1).await;
                let gone = json!({ "gone": true, "reason": "a test" });
                let (status, refused) = client.ask("PUT", "/api/v1/hosts/c1/drain", &gone).await;
                assert_eq!(
                    (status, words(&refused["errors"][0], "pointer")),
                    (409, "/gone"),
                    "{refused}"
                );
                let (status, cancelling) = client.ask("DELETE", &first, &Value::Null).await;
                assert_eq!((status, &cancelling["cancelling"]), (200, &json!(true)));
                let both_silent = |facts: &Value| {
                    ["c1", "t1"]
                        .iter()
                        .all(|host| words(facts, "waiting").contains(&format!("{host} silent for")))
                };
                let facts = client.until(&first, both_silent).await;
                assert!(words(&facts, "waiting").contains("--gone"), "{facts}");
                if is_said {
                    // One gone end is not enough: the other may be receiving from it.
                    for host in ["c1", "t1"] {
                        assert_eq!(client.get(&first).await["cancelling"], true);
                        let path = format!("/api/v1/hosts/{host}/drain");
                        let (status, answer) = client.ask("PUT", &path, &gone).await;
                        assert_eq!(status, 200, "{answer}");
                    }
                }
                let ended = client.until(&first, |facts| facts["state"] == "cancelled").await;
                assert_eq!(
                    (&ended["files_cancelled"], &ended["files_active"]),
                    (&json!(1), &json!(0))
                );
                // Its destinations are free, and a returning host receives no orders of it.
                let again = request("production", "/in", 1 << 40);
                assert_eq!(client.ask("POST", "/api/v1/requests", &again).await.0, 201);
                assert!(nodes[0].report().await);
                assert_eq!(nodes[0].last.orders, []);
            });
        }
    });
}

#[test]
fn cancellation_skips_silent_source() {
    let (_keep, path) = directory();
    let lost_after = Duration::from_secs(20);
    let running = Running::start(Config { lost_after, ..config(&path, "") }, &path);
    let world = Shared::default();
    let mut client = running.client("operator");
    running.block(async {
        let first = submit(&mut client, &request("production", "/in", 1 << 40)).await;
        let mut nodes = vec![
            Node::idle("c1", running.address, &world),
            Node::idle("t1", running.address, &world),
        ];
        turns(&mut nodes, async || client.get(&first).await["files_active"] == 1).await;
        let silent_since = Instant::now();
        let source = nodes.remove(0);
        client.ask("DELETE", &first, &Value::Null).await;
        turns(&mut nodes, async || client.get(&first).await["state"] == "cancelled").await;
        assert!(silent_since.elapsed() < lost_after, "it waited until the source was lost");
        // The source returns: the order is not listed any more.
        nodes.push(source);
        assert!(nodes[1].report().await);
        assert_eq!(nodes[1].last.orders, []);
    });
}

#[test]
fn work_of_gone_hosts_moves() {
    let (_keep, path) = directory();
    let running = Running::start(config(&path, ""), &path);
    let world = Shared::default();
    let mut client = running.client("operator");
    running.block(async {
        let first = submit(&mut client, &request("production", "/in", 1 << 40)).await;
        let mut nodes = vec![
            Node::idle("c1", running.address, &world),
            Node::idle("t1", running.address, &world),
        ];
        turns(&mut nodes, async || client.get(&first).await["files_active"] == 1).await;
        nodes.iter_mut().for_each(Node::crash);
        let mut others = vec![
            Node::new("c2", running.address, &world),
            Node::new("t2", running.address, &world),
        ];
        let is_silent = async |client: &mut Client| {
            words(&client.get(&first).await, "waiting").contains("t1 silent for")
        };
        turns(&mut others, async || is_silent(&mut client).await).await;
        for host in ["c1", "t1"] {
            let path = format!("/api/v1/hosts/{host}/drain");
            assert_eq!(client.ask("PUT", &path, &json!({ "gone": true })).await.0, 200);
        }
        turns(&mut others, async || client.get(&first).await["state"] == "done").await;
    });
}

#[test]
fn conflict_hides_requests_of_others() {
    on_both(|store| {
        let (_keep, path) = directory();
        let running = Running::start(config(&path, &store.line()), &path);
        let (mut producer, mut analyst) = (running.client("producer"), running.client("analyst"));
        running.block(async {
            let first = submit(&mut producer, &request("production", "/in", 1)).await;
            let id = first.rsplit('/').next().unwrap().to_owned();
            let (status, refused) =
                analyst.ask("POST", "/api/v1/requests", &request("analysis", "/in", 1)).await;
            assert_eq!((status, words(&refused["errors"][0], "pointer")), (409, "/files/0/path"));
            assert!(!refused.to_string().contains(&format!("request {id}")), "{refused}");
            let mut open = request("analysis", "/other", 1);
            open["open"] = json!(true);
            let mine = submit(&mut analyst, &open).await;
            analyst.ask("PATCH", &mine, &json!({ "priority": 1 })).await;
            let mut taken = request("production", "/other", 1);
            taken["files"] = json!([{ "path": "b", "size": 1 }]);
            submit(&mut producer, &taken).await;
            let more = json!({ "at": 1, "files": [{ "path": "b", "size": 1 }] });
            let (status, refused) = analyst.ask("POST", &format!("{mine}/files"), &more).await;
            assert_eq!(status, 409, "{refused}");
            assert!(words(&refused, "detail").contains("for another request"), "{refused}");
        });
    });
}

#[test]
fn token_class_is_default() {
    let (_keep, path) = directory();
    let running = Running::start(config(&path, ""), &path);
    let mut body = request("", "/in", 1);
    body.as_object_mut().unwrap().remove("class");
    running.block(async {
        let (status, made) = running.client("analyst").ask("POST", "/api/v1/requests", &body).await;
        assert_eq!((status, words(&made, "class")), (201, "analysis"), "{made}");
        let (status, refused) =
            running.client("operator").ask("POST", "/api/v1/requests", &body).await;
        assert_eq!(status, 422);
        assert!(words(&refused, "detail").contains("production, analysis"), "{refused}");
        let (status, refused) =
            running.client("reader").ask("POST", "/api/v1/requests", &body).await;
        assert_eq!(status, 403, "{refused}");
    });
}

#[test]
fn unreachable_deadline_reported_at_submission() {
    let (_keep, path) = directory();
    let running = Running::start(config(&path, ""), &path);
    running.block(async {
        let mut client = running.client("operator");
        // 30 Gb/s may be guaranteed: 37 GB in ten seconds.
        let mut body = request("production", "/far", 100_000_000_000);
        body["deadline_unix_seconds"] = json!(now_s() + 10);
        let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
        assert!(words(&made, "deadline_problem").contains("beside reservations carries"), "{made}");
        let mut body = request("production", "/near", 100_000_000_000);
        body["deadline_unix_seconds"] = json!(now_s() + 60);
        let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
        assert_eq!(made["deadline_problem"], Value::Null, "{made}");
        // Reserved capacity does not count for it.
        let reserve = json!({
            "class": "analysis", "source": "cern", "destination": "caltech", "rate_bps": 25_000_000_000_u64,
            "begin_unix_seconds": now_s(), "end_unix_seconds": now_s() + 3600,
        });
        let (status, answer) = client.ask("POST", "/api/v1/reservations", &reserve).await;
        assert_eq!(status, 201, "{answer}");
        body["to"] = json!("/crowded");
        let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
        assert!(words(&made, "deadline_problem").contains("beside reservations carries"), "{made}");
        body["to"] = json!("/past");
        body["deadline_unix_seconds"] = json!(now_s() - 60);
        let (_, made) = client.ask("POST", "/api/v1/requests", &body).await;
        assert!(words(&made, "deadline_problem").contains("has passed"), "{made}");
    });
}

#[test]
fn last_round_has_no_rates() {
    let (_keep, path) = directory();
    let running = Running::start(config(&path, ""), &path);
    let world = Shared::default();
    running.block(async {
        let mut client = running.client("operator");
        let first = submit(&mut client, &request("production", "/in", 1 << 40)).await;
        let mut nodes = vec![
            Node::idle("c1", running.address, &world),
            Node::idle("t1", running.address, &world),
        ];
        let rate = |rounds: &Value| rounds["rounds"][0]["classes"][0]["allotted_bps"].as_i64();
        turns(&mut nodes, async || rate(&client.get("/api/v1/rounds").await) > Some(0)).await;
        nodes.iter_mut().for_each(|node| node.speed = 1);
        turns(&mut nodes, async || client.get(&first).await["state"] == "done").await;
        let rounds = client.until("/api/v1/rounds", |rounds| rate(rounds) == Some(0)).await;
        assert_eq!(rounds["rounds"][0]["orders"], 0, "{rounds}");
        // Without changes no further round is recorded.
        let last = rounds["rounds"][0]["id"].clone();
        for _ in 0..20 {
            for node in &mut nodes {
                node.turn().await;
            }
        }
        assert_eq!(client.get("/api/v1/rounds").await["rounds"][0]["id"], last);
    });
}

#[test]
fn sites_on_one_switch_take_reservations() {
    let (_keep, path) = directory();
    let mut network = "name = \"one\"\n[[switch]]\nname = \"s\"\n".to_owned();
    for (host, site) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        if !network.contains(&format!("[[site]]\nname = \"{site}\"")) {
            network += &format!("[[site]]\nname = \"{site}\"\n");
        }
        network += &format!(
            "[[host]]\nname = \"{host}\"\nsite = \"{site}\"\ninterface = [{{ name = \"eth0\", rate = \"10G\" }}]\n\
             [[link]]\nends = [\"{host}:eth0\", \"s\"]\nrate = \"10G\"\n"
        );
    }
    std::fs::write(path.join("one.toml"), network).unwrap();
    let sha256 = {
        let digest =
            aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token("operator").as_bytes());
        penstock_http::tokens::hex(digest.as_ref())
    };
    let text = format!(
        "[controller]\ntopology = \"one.toml\"\n[[controller.token]]\nname = \"operator\"\nsha256 = \"{sha256}\"\n\
         scopes = [\"operate\", \"submit:*\"]\n"
    );
    let file = path.join("one-controller.toml");
    std::fs::write(&file, text).unwrap();
    let config = Config::load(Some(&file), Registry::builtin()).unwrap();
    let running = Running::start(config, &path);
    running.block(async {
        let mut client = running.client("operator");
        let mut ask = async |source: &str, destination: &str, gigabits: u64| {
            let body = json!({
                "class": "default", "source": source, "destination": destination,
                "rate_bps": gigabits * 1_000_000_000,
                "begin_unix_seconds": now_s(), "end_unix_seconds": now_s() + 3600,
            });
            client.ask("POST", "/api/v1/reservations", &body).await
        };
        let (status, made) = ask("a", "b", 5).await;
        assert_eq!(status, 201, "{made}");
        // The one host of b has 10 Gb/s, of which 7.52 are reservable.
        let (status, refused) = ask("a", "b", 5).await;
        assert_eq!(status, 409, "{refused}");
        assert!(words(&refused, "detail").contains("hosts of b, receiving"), "{refused}");
        let (status, made) = ask("a", "a", 5).await;
        assert_eq!(status, 201, "within a site: {made}");
        let (status, refused) = ask("b", "b", 1).await;
        assert_eq!(status, 409, "one host has no peer: {refused}");
        assert!(words(&refused, "detail").contains("two where both are one site"), "{refused}");
    });
}
