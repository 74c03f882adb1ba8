//! Shipped Prometheus rules and Grafana dashboards use only exported metrics.

use std::collections::BTreeSet;

use crate::site::{CONFIG, Collector, Exporter, Mark, packet, second_ended, taken, test_dir};

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !word(c))
        .filter(|name| name.starts_with("penstock_") && name.matches('_').count() > 1)
        .map(str::to_owned)
        .collect()
}

#[test]
fn rules_and_dashboards_use_exported_metrics() {
    let dir = test_dir();
    let alert = "[[collector.alert]]\nname = \"a\"\nkind = \"unlabelled\"\nabove = 0.5\n";
    let collector = Collector::start(dir.path(), &format!("{CONFIG}\n{alert}"));
    let socket = collector.socket("sflow");
    for datagram in Exporter::new(1, 1000).samples(&packet(1, 2, Mark::Label(3, 14), 1), 50) {
        socket.send(&datagram).unwrap();
    }
    taken(&collector, 50);
    second_ended(&collector);
    let (_, metrics) = collector.ask("/metrics");
    let series = metrics.lines().filter(|line| !line.starts_with('#'));
    let exported: BTreeSet<String> =
        series.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect();
    for file in ["prometheus/penstock.rules.yml", "grafana/telemetry.json"] {
        let path = format!("../deploy/{file}");
        let text = std::fs::read_to_string(&path).unwrap();
        let asked = names(&text);
        assert!(asked.len() >= 5, "{path} asks for {asked:?}");
        let missing: Vec<_> = asked.difference(&exported).collect();
        assert!(missing.is_empty(), "{path} asks for {missing:?}, which is not in\n{metrics}");
    }
    let text = std::fs::read_to_string("../deploy/grafana/telemetry.json").unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 5);
    // A label's value is never an address.
    assert!(!metrics.contains("192.0.2.1") && !metrics.contains("2001:db8"), "{metrics}");
}
