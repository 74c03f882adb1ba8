//! Alerts in the API, the metrics and at a webhook.

use std::net::TcpListener;

use penstock_testkit::raw::serve_once;
use serde_json::Value;

use crate::site::{CONFIG, Collector, Exporter, Mark, packet, test_dir};

/// Receives one webhook call and answers with `status`.
fn receive_alert(listener: &TcpListener, status: &str) -> Value {
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    serde_json::from_slice(&serve_once(listener, |_| answer).body).unwrap()
}

#[test]
fn alert_fires_failed_webhooks_retry() {
    let dir = test_dir();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = format!(
        "{CONFIG}
[[collector.alert]]
name = \"much unlabelled\"
kind = \"unlabelled\"
above = \"50%\"
for = \"1s\"
webhook = \"http://127.0.0.1:{port}/alerts\"
[[collector.alert]]
name = \"too fast\"
kind = \"rate\"
by = \"owner\"
key = \"cms\"
above = \"400T\"
[[collector.alert]]
name = \"gone\"
kind = \"silence\"
key = \"192.0.2.99\"
above = \"1s\"
"
    );
    let collector = Collector::start(dir.path(), &config);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    let received = std::thread::spawn(move || {
        let first = receive_alert(&listener, "503 Service Unavailable");
        (first, receive_alert(&listener, "204 No Content"))
    });
    collector.until("/api/v1/telemetry/alerts", |response| {
        for datagram in exporter.samples(&packet(1, 2, Mark::None, 3001), 100) {
            socket.send(&datagram).unwrap();
        }
        (response["firing"] == 2).then_some(())
    });
    let response = collector.get("/api/v1/telemetry/alerts");
    let alerts = response["alerts"].as_array().unwrap();
    let firing: Vec<_> = alerts.iter().map(|alert| alert["firing"].as_bool().unwrap()).collect();
    assert_eq!(firing, [true, false, true], "{response}");
    assert_eq!((&alerts[0]["value"], &alerts[0]["unit"]), (&1.0.into(), &"share".into()));
    let (_, metrics) = collector.ask("/metrics");
    let line = "penstock_collector_alert_firing{alert=\"much unlabelled\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    let (first, second) = received.join().unwrap();
    assert_eq!(first, second);
    assert_eq!((&first["alert"], &first["state"]), (&"much unlabelled".into(), &"firing".into()));
}
