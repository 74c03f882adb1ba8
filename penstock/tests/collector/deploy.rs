//! Shipped Prometheus rules and Grafana dashboards use only exported metrics.

use std::collections::BTreeSet;
use std::fs;

use penstock_testkit::http::TestRequest;
use serde_json::Value;

use crate::common::site::{Operations, token};
use crate::common::{Agent, TestEnv, penstock, wait_until, write_private};
use crate::site::{
    CONFIG, Collector, Exporter, Mark, POLL_TIMEOUT, packet, second_ended, taken, test_dir,
};

/// Files under `deploy` that ask for metrics.
const FILES: [&str; 3] =
    ["prometheus/penstock.rules.yml", "grafana/telemetry.json", "grafana/transfers.json"];

/// Metric that agents with the built-in registry do not have.
const OF_RENEWED_REGISTRIES: &str = "penstock_agent_scitags_checked_time_seconds";

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !word(c))
        .filter(|name| name.starts_with("penstock_") && name.matches('_').count() > 1)
        .map(str::to_owned)
        .collect()
}

/// Names of the series in the metrics of a daemon.
fn series(metrics: &str) -> BTreeSet<String> {
    let series = metrics.lines().filter(|line| !line.starts_with('#'));
    series.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// Metrics of a collector that has taken samples and has an alert.
fn collector_metrics() -> String {
    let dir = test_dir();
    let alert = "[[collector.alert]]\nname = \"a\"\nkind = \"unlabelled\"\nabove = 0.5\n";
    let collector = Collector::start(dir.path(), &format!("{CONFIG}\n{alert}"));
    let socket = collector.socket("sflow");
    for datagram in Exporter::new(1, 1000).samples(&packet(1, 2, Mark::Label(3, 14), 1), 50) {
        socket.send(&datagram).unwrap();
    }
    taken(&collector, 50);
    second_ended(&collector);
    collector.ask("/metrics").1
}

/// Metrics of a head node that takes orders of a controller, and those of the controller once it leads.
fn agent_and_controller_metrics() -> String {
    let operations = Operations::start("");
    let env = TestEnv::new();
    write_private(&env.path("redirect.key"), "f00dfeedf00dfeedf00dfeedf00dfeed");
    write_private(&env.path("token"), token("dtn-a"));
    let text = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n\
         [agent.controller]\nurl = \"http://{}\"\ntoken = \"token\"\nhost = \"dtn-a\"\n\
         [gateway]\nplaintext = [\"127.0.0.1:0\"]\nroot = [\"127.0.0.1:0\"]\n\
         [gateway.head]\nkey = \"redirect.key\"\nagents = [\"http://127.0.0.1:9/\"]\n\
         [[export]]\nname = \"/data\"\npath = \"root\"\nmode = \"read-write\"\nwho = [\"*\"]\n",
        operations.listen
    );
    fs::write(env.path("penstock.toml"), text).unwrap();
    let mut command = penstock(&env.state);
    command.args(["serve", "--json", "--roles", "agent", "--config"]);
    command.arg(env.path("penstock.toml"));
    let agent = Agent::spawn(command);
    let metrics = |http: &str| TestRequest::new(http, "GET", "/metrics").send().text();
    let led = wait_until("the controller knows the agent", POLL_TIMEOUT, || {
        let text = metrics(&operations.listen);
        text.contains("penstock_controller_hosts{state=\"up\"} 1").then_some(text)
    });
    led + &metrics(&agent.http)
}

#[test]
fn rules_and_dashboards_use_exported_metrics() {
    let metrics = collector_metrics() + &agent_and_controller_metrics();
    let mut exported = series(&metrics);
    exported.insert(OF_RENEWED_REGISTRIES.to_owned());
    for file in FILES {
        let path = format!("../deploy/{file}");
        let text = fs::read_to_string(&path).unwrap();
        let asked = names(&text);
        assert!(asked.len() >= 5, "{path} asks for {asked:?}");
        let missing: Vec<_> = asked.difference(&exported).collect();
        assert!(missing.is_empty(), "{path} asks for {missing:?}, which is not in\n{metrics}");
    }
    for file in FILES.iter().filter(|file| file.ends_with(".json")) {
        let text = fs::read_to_string(format!("../deploy/{file}")).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        assert!(dashboard["panels"].as_array().unwrap().len() > 5, "{file}");
    }
    // A label's value is never an address.
    assert!(!metrics.contains("192.0.2.1") && !metrics.contains("2001:db8"), "{metrics}");
}
