//! Scitags of requests, and what metrics count of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Write};
use std::net::UdpSocket;
use std::time::Duration;

use penstock_testkit::raw::read_response;
use serde_json::Value;

use crate::common::{seeded, wait_until, write_file};
use crate::site::{HostCertificate, Site, TOKEN, TestRequest};
use crate::third_party::{ANYWHERE, assert_success, copy, url_at};

/// cms, analysis-input.
const SCITAG: &str = "206";

/// Values of metrics without labels.
fn metrics(site: &Site) -> BTreeMap<String, f64> {
    let text = TestRequest::new(&site.agent.http, "GET", "/metrics").send().text();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

#[test]
fn scitags_of_requests_are_reported() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let place = collector.local_addr().unwrap();
    let site = Site::with("", &format!("[scitags]\ncollectors = [\"{place}\"]\n"));
    let mut stream = site.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut ask = |method: &str, target: &str, header: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "{method} /store/data/{target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{header}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        read_response(&mut reader).status
    };
    assert_eq!(ask("PUT", &format!("f?scitag.flow={SCITAG}"), "", "abcde"), 201);
    assert_eq!(ask("GET", "f", &format!("SciTag: {SCITAG}\r\n"), ""), 200);
    let transfers = site.transfers();
    assert_eq!(transfers.len(), 2, "{transfers:?}");
    for transfer in &transfers {
        assert_eq!(transfer["scitag"].to_string(), SCITAG, "{transfer}");
        assert_eq!((&transfer["owner"], &transfer["engine"]), (&"cms".into(), &"http".into()));
    }
    drop((stream, reader));
    // The gateway reports the flow that it sends, from its start to its end.
    let mut states: Vec<String> = Vec::new();
    let mut buffer = [0; 2048];
    wait_until("fireflies of the download", Duration::from_secs(20), || {
        while let Ok(length) = collector.recv(&mut buffer) {
            let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let (_, json) = line.split_once(" - firefly-json - ").expect("a firefly");
            let firefly: Value = serde_json::from_str(json).unwrap();
            let ids = ["experiment-id", "activity-id"].map(|id| firefly["context"][id].clone());
            assert_eq!(ids, [3, 14].map(Value::from), "{firefly}");
            states.push(firefly["flow-lifecycle"]["state"].as_str().unwrap().to_owned());
        }
        states.contains(&"end".to_owned()).then_some(())
    });
    assert_eq!(states.first().map(String::as_str), Some("start"), "{states:?}");
}

#[test]
fn metrics_count_gateway_transfers() {
    let certificate = HostCertificate::new();
    let config = certificate.config();
    let (a, b) = (Site::with(&config, ANYWHERE), Site::with(&config, ANYWHERE));
    write_file(&mut seeded(1731), &a.data.join("f"), 70_000);
    assert_eq!(a.ask("PUT", "/store/data/g", &[], b"12345").status, 201);
    assert_eq!(a.ask("GET", "/store/data/g", &[], b"").status, 200);
    let source = url_at(&a, "f");
    let headers = [("Source", source.as_str()), ("SciTag", SCITAG)];
    assert_success(&copy(&b, "f", &headers));
    assert!(fs::read(b.data.join("f")).unwrap() == fs::read(a.data.join("f")).unwrap());
    let pulled = b.transfers();
    assert_eq!((pulled.len(), pulled[0]["scitag"].to_string().as_str()), (1, SCITAG), "{pulled:?}");
    let (of_a, of_b) = (metrics(&a), metrics(&b));
    assert!(of_a["penstock_mover_received_bytes_total"] >= 5.0, "{of_a:?}");
    assert!(of_a["penstock_mover_sent_bytes_total"] >= 70_005.0, "{of_a:?}");
    assert!(of_a["penstock_mover_transfers_started_total"] >= 3.0, "{of_a:?}");
    assert_eq!(of_b["penstock_mover_received_bytes_total"], 70_000.0, "{of_b:?}");
    assert_eq!(of_b["penstock_mover_transfers_failed_total"], 0.0, "{of_b:?}");
}
