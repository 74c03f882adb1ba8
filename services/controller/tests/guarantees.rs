//! Deadlines, reservations, time windows and paths: met, or reported as not met.

mod common;

use common::node::{Node, Shared, turns};
use common::{Client, Running, config, directory, now_s, request, submit};
use serde_json::{Value, json};

struct Site {
    keep: tempfile::TempDir,
    path: std::path::PathBuf,
    running: Running,
    nodes: Vec<Node>,
}

/// Starts a controller, and nodes whose transfers never finish.
fn start(more: &str, hosts: &[&str]) -> Site {
    let (keep, path) = directory();
    let running = Running::start(config(&path, more), &path);
    let world = Shared::default();
    let node = |name: &&str| Node::idle(name, running.address, &world);
    let nodes = hosts.iter().map(node).collect();
    Site { keep, path, running, nodes }
}

/// Returns rate and reason of the only order of a request.
async fn order(client: &mut Client, request: &str) -> Option<(i64, String, Value)> {
    let why = client.get(&format!("{request}/why")).await;
    let one = why["orders"].as_array()?.first()?.clone();
    Some((one["rate_bps"].as_i64()?, one["reason"].as_str()?.to_owned(), one))
}

#[test]
fn deadline_raises_rate_with_reason() {
    let Site { keep: _keep, running, mut nodes, .. } = start("", &["c1", "c2", "t1", "t2"]);
    let mut client = running.client("operator");
    running.block(async {
        // The detour is closed, so that both share the direct link: 37.6 Gb/s of files.
        let down = json!({ "down": true, "reason": "a test" });
        assert_eq!(client.ask("PUT", "/api/v1/links/round-1", &down).await.0, 200);
        let plain = submit(&mut client, &request("production", "/plain", 1 << 40)).await;
        let urgent = submit(&mut client, &request("production", "/urgent", 375_000_000_000)).await;
        let equal = 18_800_000_000;
        turns(&mut nodes, async || {
            let rates = [order(&mut client, &plain).await, order(&mut client, &urgent).await];
            rates.iter().flatten().filter(|(rate, ..)| *rate == equal).count() == 2
        })
        .await;
        // The deadline needs 30 Gb/s for a hundred seconds; the margin grows a little as seconds pass.
        let body = json!({ "deadline_unix_seconds": now_s() + 100 });
        assert_eq!(client.ask("PATCH", &urgent, &body).await.0, 200);
        turns(&mut nodes, async || {
            let (rate, reason, _) = order(&mut client, &urgent).await.unwrap();
            rate >= 30_000_000_000 && reason.contains("of it are promised")
        })
        .await;
        assert!(order(&mut client, &plain).await.unwrap().0 < 8_000_000_000);
        // A deadline beyond any link is reported.
        let body = json!({ "deadline_unix_seconds": now_s() + 20 });
        assert_eq!(client.ask("PATCH", &urgent, &body).await.0, 200);
        turns(&mut nodes, async || {
            let (rate, reason, _) = order(&mut client, &urgent).await.unwrap();
            rate >= 30_000_000_000 && rate < 2 * equal && reason.contains("can be guaranteed")
        })
        .await;
        let facts = client.get(&urgent).await;
        let problem = facts["deadline_problem"].as_str().unwrap_or_default();
        assert!(problem.contains("beside reservations carries"), "{facts}");
    });
}

/// Time of the day this many hours from now, as a window writes it.
fn clock(hours: i64) -> String {
    let minutes = (now_s() / 60 + hours * 60).rem_euclid(24 * 60);
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

fn window(from: i64, to: i64) -> String {
    let (from, to) = (clock(from), clock(to));
    format!("[[controller.class]]\nname = \"nights\"\nwindows = [\"{from}-{to}\"]\n")
}

#[test]
fn class_windows_apply_after_reload() {
    let Site { keep: _keep, running, mut nodes, path, .. } = start(&window(2, 4), &["c1", "t1"]);
    let mut client = running.client("operator");
    running.block(async {
        let night = submit(&mut client, &request("nights", "/night", 1 << 40)).await;
        let day = submit(&mut client, &request("production", "/day", 1 << 40)).await;
        turns(&mut nodes, async || order(&mut client, &day).await.is_some()).await;
        assert_eq!(client.get(&night).await["state"], "staged");
        let classes = client.get("/api/v1/classes").await;
        let facts = classes["classes"].as_array().unwrap();
        let facts = facts.iter().find(|one| one["name"] == "nights").unwrap();
        assert_eq!((&facts["open"], &facts["queued_files"]), (&json!(false), &json!(1)), "{facts}");
        let opens = facts["opens_unix_seconds"].as_i64().unwrap() - now_s();
        assert!((3600..=2 * 3600).contains(&opens), "{facts}");

        // Its window is open: it begins.
        let _ = config(&path, &window(-2, 2));
        running.reload().unwrap();
        turns(&mut nodes, async || order(&mut client, &night).await.is_some()).await;
        // Its window is closed: running orders are withdrawn, and wait.
        let _ = config(&path, &window(2, 4));
        running.reload().unwrap();
        turns(&mut nodes, async || client.get(&night).await["files_active"] == 0).await;
        let history = client.get(&format!("{night}/history")).await.to_string();
        assert!(history.contains("class nights may not run now"), "{history}");
        assert!(order(&mut client, &day).await.is_some(), "others go on");

        // A file with a mistake changes nothing.
        std::fs::write(path.join("penstock.toml"), "[controller]\nround = 7\n").unwrap();
        assert!(running.reload().unwrap_err().contains("penstock.toml:2"));
        assert_eq!(client.get("/api/v1/classes").await["classes"].as_array().unwrap().len(), 3);
    });
}

#[test]
fn reload_replaces_tokens_and_topology() {
    let Site { keep: _keep, running, path, .. } = start("", &[]);
    let mut client = running.client("operator");
    running.block(async {
        let text = std::fs::read_to_string(path.join("penstock.toml")).unwrap();
        let without = text.replace("name = \"operator\"", "name = \"somebody\"");
        std::fs::write(path.join("penstock.toml"), &without).unwrap();
        let network = std::fs::read_to_string(path.join("network.toml")).unwrap();
        let renamed = network.replace("name = \"direct\"", "name = \"straight\"");
        std::fs::write(path.join("network.toml"), renamed).unwrap();
        assert_eq!(client.ask("GET", "/api/v1/audit", &Value::Null).await.0, 200);
        running.reload().unwrap();
        // The same token has a new name; the scopes of the old name are void.
        let (status, links) = client.ask("GET", "/api/v1/links", &Value::Null).await;
        assert_eq!(status, 200);
        assert!(links.to_string().contains("straight") && !links.to_string().contains("direct"));
        let gone = without.replace("\"operate\", ", "");
        std::fs::write(path.join("penstock.toml"), gone).unwrap();
        running.reload().unwrap();
        assert_eq!(client.ask("GET", "/api/v1/audit", &Value::Null).await.0, 403);
    });
}

#[test]
fn off_path_transfer_is_reported() {
    let Site { keep: _keep, running, mut nodes, .. } = start("", &["c1", "t1"]);
    let mut client = running.client("operator");
    running.block(async {
        let path = submit(&mut client, &request("production", "/in", 1 << 50)).await;
        let flagged = |one: &Option<(i64, String, Value)>| {
            one.as_ref().is_some_and(|(.., order)| order["off_path"] == true)
        };
        turns(&mut nodes, async || {
            order(&mut client, &path).await.is_some_and(|(rate, ..)| rate > 1_000_000_000)
        })
        .await;
        // Its interface counts none of the bytes that it reports.
        nodes[0].honest = false;
        turns(&mut nodes, async || flagged(&order(&mut client, &path).await)).await;
        let rounds = client.get("/api/v1/rounds?limit=1000").await.to_string();
        assert!(rounds.contains("does not show at interface eth0 of c1"), "{rounds}");
        nodes[0].honest = true;
        turns(&mut nodes, async || !flagged(&order(&mut client, &path).await)).await;
    });
}

fn wish(class: &str, rate_bps: u64, begin: i64, end: i64) -> Value {
    json!({
        "class": class, "source": "cern", "destination": "caltech", "rate_bps": rate_bps,
        "begin_unix_seconds": begin, "end_unix_seconds": end,
    })
}

#[test]
fn reservation_admission_and_refusal_offer() {
    let Site { keep: _keep, running, .. } = start("", &[]);
    let (mut client, mut analyst) = (running.client("producer"), running.client("analyst"));
    let place = "/api/v1/reservations";
    running.block(async {
        let begin = now_s() + 1000;
        let (status, first) = client
            .ask("POST", place, &wish("production", 20_000_000_000, begin, begin + 600))
            .await;
        assert_eq!((status, &first["path"]), (201, &json!(["direct"])), "{first}");
        assert_eq!((&first["active"], &first["circuit"]), (&json!(false), &Value::Null));
        // Of 30.08 Gb/s reservable on the direct link 10.08 are left, and all again afterwards.
        let again = wish("production", 20_000_000_000, begin + 300, begin + 900);
        let (status, refused) = client.ask("POST", place, &again).await;
        assert_eq!(
            (status, refused["errors"][0]["pointer"].as_str()),
            (409, Some("/rate_bps")),
            "{refused}"
        );
        let detail = refused["detail"].as_str().unwrap();
        assert!(
            detail.contains("10.1 Gb/s") && detail.contains(&(begin + 600).to_string()),
            "{detail}"
        );
        let later = wish("production", 20_000_000_000, begin + 600, begin + 900);
        assert_eq!(client.ask("POST", place, &later).await.0, 201);
        let less = wish("production", 10_000_000_000, begin, begin + 900);
        assert_eq!(client.ask("POST", place, &less).await.0, 201);
        // What does not fit there fits nowhere: packets between single interfaces have one path.
        let (status, refused) =
            client.ask("POST", place, &wish("production", 7_000_000_000, begin, begin + 60)).await;
        assert_eq!(status, 409, "{refused}");

        // Once ended it is free again; other clients can neither see nor end it.
        let one = format!("{place}/{}", first["id"]);
        assert_eq!(analyst.ask("DELETE", &one, &Value::Null).await.0, 404);
        assert_eq!(analyst.get(place).await["reservations"], json!([]));
        assert_eq!(running.client("reader").ask("DELETE", &one, &Value::Null).await.0, 403);
        assert_eq!(client.ask("DELETE", &one, &Value::Null).await.0, 200);
        assert_eq!(client.ask("DELETE", &one, &Value::Null).await.0, 404);
        let (status, made) = client
            .ask("POST", place, &wish("production", 20_000_000_000, begin, begin + 600))
            .await;
        assert_eq!(status, 201, "{made}");

        for (field, value, pointer) in [
            ("class", json!("none"), "/class"),
            ("source", json!("mars"), "/source"),
            ("rate_bps", json!(0), "/rate_bps"),
            ("begin_unix_seconds", json!(-5), "/begin_unix_seconds"),
            ("end_unix_seconds", json!(begin), "/end_unix_seconds"),
            ("circuit", json!(true), "/circuit"),
            ("colour", json!("red"), "/colour"),
        ] {
            let mut body = wish("production", 1, begin, begin + 60);
            body[field] = value;
            let (status, problem) = client.ask("POST", place, &body).await;
            assert_eq!(
                (status, problem["errors"][0]["pointer"].as_str()),
                (422, Some(pointer)),
                "{problem}"
            );
        }
        assert_eq!(
            analyst.ask("POST", place, &wish("production", 1, begin, begin + 60)).await.0,
            403
        );
        let log = running.client("operator").get("/api/v1/audit").await.to_string();
        assert!(
            log.contains("20.0 Gb/s from cern to caltech for 10m00s") && log.contains("unreserve"),
            "{log}"
        );
    });
}

#[test]
fn reservation_rate_applies_while_active() {
    let Site { keep: _keep, running, mut nodes, .. } = start("", &["c1", "c2", "t1", "t2"]);
    let mut client = running.client("operator");
    running.block(async {
        let down = json!({ "down": true });
        assert_eq!(client.ask("PUT", "/api/v1/links/round-1", &down).await.0, 200);
        // Weights are three to one.
        let big = submit(&mut client, &request("production", "/big", 1 << 50)).await;
        let small = submit(&mut client, &request("analysis", "/small", 1 << 50)).await;
        turns(&mut nodes, async || {
            order(&mut client, &big).await.is_some_and(|(rate, ..)| rate == 28_200_000_000)
        })
        .await;
        let begin = now_s();
        let (status, made) = client
            .ask(
                "POST",
                "/api/v1/reservations",
                &wish("analysis", 20_000_000_000, begin, begin + 600),
            )
            .await;
        assert_eq!(status, 201, "{made}");
        turns(&mut nodes, async || {
            let (rate, reason, _) = order(&mut client, &small).await.unwrap();
            rate >= 20_000_000_000 && reason.contains("promised")
        })
        .await;
        let one = format!("/api/v1/reservations/{}", made["id"]);
        assert_eq!(client.ask("DELETE", &one, &Value::Null).await.0, 200);
        turns(&mut nodes, async || {
            order(&mut client, &big).await.is_some_and(|(rate, ..)| rate == 28_200_000_000)
        })
        .await;
    });
}
