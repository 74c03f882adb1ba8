//! A real Prometheus takes the shipped configuration and rules, scrapes a daemon and fires alerts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use penstock_testkit::http::TestRequest;
use penstock_testkit::missing_program;
use serde_json::Value;

use crate::common::{run, wait_until};
use crate::site::{CONFIG, Collector, POLL_TIMEOUT, test_dir};

const RULES: &str = "../deploy/prometheus/penstock.rules.yml";
const CASES: &str = "../deploy/prometheus/penstock.rules.test.yml";

/// A server with its own directory; killed when dropped.
struct Prometheus {
    child: Child,
    http: SocketAddr,
}

impl Prometheus {
    /// Starts a server with the shipped configuration, which scrapes `target` each second.
    fn start(dir: &Path, target: &str) -> Self {
        fs::create_dir(dir).unwrap();
        let shipped = fs::read_to_string("../deploy/prometheus/prometheus.yml").unwrap();
        let config = shipped.replace("127.0.0.1:8621", target).replace("10s", "1s");
        assert!(config.contains(target) && config.contains("1s"), "{shipped}");
        fs::write(
            dir.join("prometheus.yml"),
            format!("global:\n  evaluation_interval: 1s\n{config}"),
        )
        .unwrap();
        fs::copy(RULES, dir.join("penstock.rules.yml")).unwrap();
        let log = dir.join("log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let http = wait_until("Prometheus listens", POLL_TIMEOUT, || {
            let text = fs::read_to_string(&log).unwrap();
            let line = text.lines().find(|line| line.contains("\"Listening on\""))?;
            line.split("address=").nth(1)?.split_whitespace().next()?.parse().ok()
        });
        let server = Self { child, http };
        wait_until("Prometheus is ready", POLL_TIMEOUT, || {
            let answer = TestRequest::new(http, "GET", "/-/ready").send();
            (answer.status == 200).then_some(())
        });
        server
    }

    /// Value of `data` in the answer of its API.
    fn get(&self, path: &str) -> Value {
        let answer = TestRequest::new(self.http, "GET", path).send();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()["data"].take()
    }

    /// Names and labels of the alerts that fire.
    fn firing(&self) -> Vec<Value> {
        let mut alerts = self.get("/api/v1/alerts");
        let alerts = std::mem::take(alerts["alerts"].as_array_mut().unwrap());
        alerts.into_iter().filter(|alert| alert["state"] == "firing").collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Names of the alerts in a file of rules or cases.
fn alert_names(path: &str, key: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap();
    let names = text.lines().filter_map(|line| line.trim().strip_prefix(key));
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn every_rule_fires_on_its_case() {
    if missing_program("promtool") {
        return;
    }
    let rules = alert_names(RULES, "- alert:");
    assert!(rules.len() > 20, "{rules:?}");
    assert_eq!(rules, alert_names(CASES, "alertname:"));
    for (words, file) in [(&["check", "rules"], RULES), (&["test", "rules"], CASES)] {
        let done = run(Command::new("promtool").args(words).arg(file));
        assert_eq!(done.code, 0, "{done:?}");
    }
}

#[test]
fn prometheus_scrapes_and_alerts() {
    if missing_program("prometheus") {
        return;
    }
    let dir = test_dir();
    let alert = "[[collector.alert]]\nname = \"gone\"\nkind = \"silence\"\nkey = \"192.0.2.99\"\nabove = \"1s\"\n";
    let mut collector = Collector::start(dir.path(), &format!("{CONFIG}\n{alert}"));
    let server = Prometheus::start(&dir.path().join("prometheus"), &collector.agent.http);
    let fired = wait_until("the collector's alert fires in Prometheus", POLL_TIMEOUT, || {
        let mut firing = server.firing().into_iter();
        firing.find(|alert| alert["labels"]["alertname"] == "PenstockAlert")
    });
    assert_eq!(fired["labels"]["alert"], "gone", "{fired}");
    let summary = fired["annotations"]["summary"].as_str().unwrap();
    assert!(summary.contains("gone fires at 127.0.0.1:"), "{summary}");
    let targets = server.get("/api/v1/targets?state=active");
    let target = &targets["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()), "{targets}");
    let rules = server.get("/api/v1/rules");
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    for rule in rules {
        assert_ne!(rule["health"], "err", "{rule}");
    }
    collector.agent.kill();
    wait_until("a silent daemon is pending", POLL_TIMEOUT, || {
        let alerts = server.get("/api/v1/alerts");
        let down = |alert: &Value| alert["labels"]["alertname"] == "PenstockDown";
        alerts["alerts"].as_array().unwrap().iter().find(|alert| down(alert)).map(|_| ())
    });
}
