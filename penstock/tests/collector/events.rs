//! Alerts through their life, events, the history of links and traffic from site to site.

use std::fs;

use penstock_testkit::http::TestRequest;
use serde_json::{Value, json};

use crate::persistence::end;
use crate::site::{CONFIG, Collector, Exporter, FRAME_BYTES, Mark, packet, test_dir};

const ALERTS: &str = "/api/v1/telemetry/alerts";

/// Status and body of a modifying request.
fn change(http: &str, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let response = TestRequest::new(http, method, path).token(token).json(body).send();
    (response.status, response.json())
}

fn kinds(collector: &Collector, query: &str) -> Vec<String> {
    let response = collector.get(&format!("/api/v1/telemetry/events?{query}"));
    let events = response["events"].as_array().unwrap().iter();
    events.map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn alert_life_survives_a_restart() {
    let dir = test_dir();
    let config = format!(
        "{CONFIG}
[[collector.alert]]
name = \"much/unlabelled\"
kind = \"unlabelled\"
above = \"50%\"
for = \"2s\"
severity = \"critical\"
"
    );
    let collector = Collector::start(dir.path(), &config);
    let token = fs::read_to_string(dir.path().join("state/token")).unwrap();
    let token = token.trim();
    let first = collector.get(ALERTS);
    assert_eq!(first["alerts"][0]["state"], "no_data", "{first}");
    let acknowledgement = format!("{ALERTS}/much%2Funlabelled/acknowledgement");
    let http = collector.agent.http.to_string();
    let comment = json!({ "comment": "ticket 7" });
    assert_eq!(change(&http, "PUT", &acknowledgement, "", &comment).0, 401);
    assert_eq!(change(&http, "PUT", &acknowledgement, token, &comment).0, 409);
    let none = format!("{ALERTS}/none/acknowledgement");
    assert_eq!(change(&http, "PUT", &none, token, &comment).0, 404);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    let mut states = Vec::new();
    collector.until(ALERTS, |response| {
        for datagram in exporter.samples(&packet(1, 2, Mark::None, 3001), 100) {
            socket.send(&datagram).unwrap();
        }
        let state = response["alerts"][0]["state"].as_str().unwrap().to_owned();
        if state == "pending" {
            assert_eq!(response["pending"], 1, "{response}");
            assert!(response["alerts"][0]["pending_since_s"].is_f64(), "{response}");
        }
        if states.last() != Some(&state) {
            states.push(state);
        }
        (response["firing"] == 1).then_some(())
    });
    assert_eq!(states.last().map(String::as_str), Some("firing"));
    assert!(states.contains(&"pending".to_owned()), "{states:?}");
    let (status, alert) = change(&http, "PUT", &acknowledgement, token, &comment);
    assert_eq!((status, &alert["acknowledged"]["comment"]), (200, &"ticket 7".into()));
    assert_eq!(collector.get(ALERTS)["unacknowledged"], 0);
    let since = alert["since_s"].clone();
    let subject = "subject=much/unlabelled";
    assert_eq!(kinds(&collector, subject), ["alert_acknowledged", "alert_firing"]);
    end(collector);

    let collector = Collector::start(dir.path(), &config);
    let response = collector.get(ALERTS);
    let alert = &response["alerts"][0];
    assert_eq!((&alert["state"], &alert["severity"]), (&"firing".into(), &"critical".into()));
    assert_eq!(
        (&alert["since_s"], &alert["acknowledged"]["comment"]),
        (&since, &"ticket 7".into())
    );
    assert_eq!(kinds(&collector, subject), ["alert_acknowledged", "alert_firing"]);
    let http = collector.agent.http.to_string();
    let (status, alert) = change(&http, "DELETE", &acknowledgement, token, &Value::Null);
    assert_eq!((status, &alert["acknowledged"]), (200, &Value::Null));
    assert_eq!(kinds(&collector, "kind=alert_un"), ["alert_unacknowledged"]);
    let (status, body) = collector.ask("/api/v1/telemetry/events?colour=red");
    assert!(status == 400 && body.contains("colour"), "{body}");
    end(collector);
}

const NETWORK: &str = "
name = \"n\"
[[site]]
name = \"a\"
[[switch]]
name = \"left\"
site = \"a\"
[[switch]]
name = \"right\"
site = \"a\"
[[link]]
ends = [\"left\", \"right\"]
name = \"trunk\"
rate = \"400G\"
";

#[test]
fn link_has_history_and_failures() {
    let dir = test_dir();
    fs::write(dir.path().join("network.toml"), NETWORK).unwrap();
    let config = CONFIG
        .replace("[collector]", "[collector]\ntopology = \"network.toml\"")
        .replace("name = \"dtn1\"", "name = \"left\"\nlinks = { 1 = \"trunk\" }");
    let collector = Collector::start(dir.path(), &config);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    socket.send(&exporter.counters(1_000, 0)).unwrap();
    let path = "/api/v1/telemetry/links/trunk/series?from=-60&step=60";
    let series = collector.until(path, |response| {
        for datagram in exporter.samples(&packet(1, 2, Mark::None, 3001), 50) {
            socket.send(&datagram).unwrap();
        }
        let bps =
            response["b_to_a"]["bps"].as_array()?.iter().filter_map(Value::as_f64).sum::<f64>();
        (bps > 0.0).then(|| response.clone())
    });
    // Ingress of `left` is the direction from `right`; the other direction is idle.
    assert_eq!((&series["a"], &series["b"]), (&"left".into(), &"right".into()));
    assert_eq!(series["capacity_bps"], 400_000_000_000_u64);
    let out = series["a_to_b"]["bps"].as_array().unwrap().iter().filter_map(Value::as_f64);
    assert_eq!(out.sum::<f64>(), 0.0);
    assert_eq!(collector.ask("/api/v1/telemetry/links?to=0").0, 200);
    let links = collector.get("/api/v1/telemetry/links?from=-60&to=0");
    assert!(links["links"][0]["b_to_a"]["bps"].as_f64().unwrap() > 0.0, "{links}");
    let (status, body) = collector.ask("/api/v1/telemetry/links/none/series");
    assert!(status == 404 && body.contains("no link 'none'"), "{body}");
    // The interface goes down after a snapshot, taken every 2 s, has recorded it up.
    let snapshot = |count: u64| {
        let before = collector.get("/api/v1/telemetry/status")["live_seconds"]["used"].as_u64();
        let path = "/api/v1/telemetry/status";
        collector.until(path, |now| {
            (now["live_seconds"]["used"].as_u64() >= before.map(|before| before + count))
                .then_some(())
        });
    };
    socket.send(&exporter.state(1, 3, 2_000, 0)).unwrap();
    snapshot(5);
    socket.send(&exporter.state(1, 1, 3_000, 0)).unwrap();
    collector.until("/api/v1/telemetry/events?link=trunk", |response| {
        (response["count"] == 1).then_some(())
    });
    assert_eq!(kinds(&collector, "link=trunk"), ["interface_down"]);
}

#[test]
fn sites_and_flows_take_filters() {
    let dir = test_dir();
    fs::write(dir.path().join("hosts"), "2001:db8:1::1 dtn1.uvic.example.org\n").unwrap();
    let config = CONFIG.replace("[collector]", "[collector]\nhosts = \"hosts\"");
    let collector = Collector::start(dir.path(), &config);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    let cms = Mark::Label(3, 14);
    let matrix = collector.until("/api/v1/telemetry/matrix", |response| {
        for header in [packet(1, 2, cms, 3001), packet(2, 1, Mark::None, 3001)] {
            for datagram in exporter.samples(&header, 60) {
                socket.send(&datagram).unwrap();
            }
        }
        (response["cells"].as_array()?.len() == 2).then(|| response.clone())
    });
    let sites: Vec<_> = matrix["sites"].as_array().unwrap().iter().map(|s| &s["key"]).collect();
    assert_eq!(sites, ["cern", "uvic"], "{matrix}");
    for cell in matrix["cells"].as_array().unwrap() {
        assert!(
            cell["bps"].as_f64().unwrap() > f64::from(FRAME_BYTES)
                && cell["source"] != cell["destination"]
        );
    }
    let only = collector.get("/api/v1/telemetry/matrix?owner=cms");
    assert_eq!(only["cells"].as_array().unwrap().len(), 1, "{only}");
    assert_eq!(
        (&only["cells"][0]["source"], &only["cells"][0]["destination"]),
        (&"uvic".into(), &"cern".into())
    );
    let pairs = collector.get("/api/v1/telemetry/series?by=owner&site_pair=uvic%3Ecern&from=-60");
    assert_eq!(pairs["series"][0]["key"], "cms", "{pairs}");
    assert_eq!(pairs["filters"][0]["name"], "uvic to cern");
    let flows = |query: &str| {
        let response = collector.get(&format!("/api/v1/telemetry/talkers?from=-60&{query}"));
        response["talkers"].as_array().unwrap().clone()
    };
    assert_eq!(flows("n=5").len(), 2);
    for (query, source) in [
        ("owner=cms", "2001:db8:1::1"),
        ("owner=unlabelled", "2001:db8:2::1"),
        ("host=2001:db8:1::1&direction=in", "2001:db8:2::1"),
        ("site=uvic&direction=out", "2001:db8:1::1"),
        ("site_pair=cern%3Euvic", "2001:db8:2::1"),
        ("prefix=2001:db8:1::/64&direction=out", "2001:db8:1::1"),
    ] {
        let response = flows(query);
        assert_eq!(response.len(), 1, "{query}: {response:?}");
        assert_eq!(response[0]["source"], source, "{query}");
    }
    assert_eq!(flows("ip_version=4").len(), 0);
    assert_eq!(flows("owner=cms")[0]["source_name"], "dtn1.uvic.example.org");
    let hosts = collector.get("/api/v1/telemetry/series?by=host&from=-60");
    let names: Vec<_> =
        hosts["series"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert!(names.contains(&&Value::from("dtn1.uvic.example.org")), "{names:?}");
    let (status, body) = collector.ask("/api/v1/telemetry/talkers?vlan=3001");
    assert!(status == 400 && body.contains("not kept by vlan"), "{body}");
    let status = collector.get("/api/v1/telemetry/status");
    let age = status["now_s"].as_f64().unwrap() - status["closed_until_s"].as_f64().unwrap();
    assert!((-1.0..30.0).contains(&age), "{status}");
}
