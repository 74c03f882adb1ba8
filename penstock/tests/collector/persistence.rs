//! Stored minutes survive restarts, and an unusable disk does not stop live figures.

use std::process::Command;

use serde_json::Value;

use crate::site::{
    CONFIG, Collector, Exporter, FRAME_BYTES, Mark, packet, second_ended, taken, test_dir,
};

pub(crate) fn end(mut collector: Collector) {
    let id = collector.agent.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(collector.agent.child.wait().unwrap().success());
}

/// Stored bytes of a series: rates times measured seconds.
pub(crate) fn stored(answer: &Value, key: &str) -> f64 {
    let lines = answer["series"].as_array().unwrap();
    let Some(line) = lines.iter().find(|line| line["key"] == key) else { return 0.0 };
    line["bps"].as_array().unwrap().iter().filter_map(Value::as_f64).sum()
}

#[test]
fn stored_minutes_survive_a_restart() {
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    for header in [packet(1, 2, Mark::Label(3, 14), 3001), packet(1, 2, Mark::None, 3001)] {
        for datagram in exporter.samples(&header, 200) {
            socket.send(&datagram).unwrap();
        }
    }
    taken(&collector, 400);
    second_ended(&collector);
    end(collector);

    let collector = Collector::start(dir.path(), CONFIG);
    for (query, resolution) in [
        ("from=-3600&step=60", "minute"),
        ("from=-86400&step=3600", "hour"),
        ("from=-2592000", "hour"),
    ] {
        let path = format!("/api/v1/telemetry/series?by=owner&{query}");
        // Another thread opens the file.
        let answer =
            collector.until(&path, |answer| (stored(answer, "cms") > 0.0).then(|| answer.clone()));
        assert_eq!(answer["resolution"], resolution, "{query}");
        let (labelled, not) = (stored(&answer, "cms"), stored(&answer, "unlabelled"));
        assert!((labelled / not - 1.0).abs() < 0.01, "{query}: {labelled} and {not}");
        // Unmeasured time is null, not zero.
        assert!(answer["total"]["bps"].as_array().unwrap().contains(&Value::Null), "{query}");
    }
    let hosts = collector.get("/api/v1/telemetry/series?by=host&from=-3600&step=60");
    assert!(stored(&hosts, "2001:db8:1::1") > 0.0, "{hosts}");
    let frames = stored(&hosts, "2001:db8:1::1") / f64::from(FRAME_BYTES);
    assert!(frames > 0.0);
    let status = collector.get("/api/v1/telemetry/status");
    assert!(status["storage"]["newest_s"].as_i64().unwrap() > 1_700_000_000, "{status}");
    assert_eq!(status["storage"]["trouble"], Value::Null);
    end(collector);
}

#[test]
fn unusable_store_keeps_live_figures() {
    let dir = test_dir();
    // A directory in place of the file stands for a failed disk.
    std::fs::create_dir_all(dir.path().join("state/telemetry.db")).unwrap();
    let collector = Collector::start(dir.path(), CONFIG);
    let socket = collector.socket("sflow");
    for datagram in Exporter::new(1, 1000).samples(&packet(1, 2, Mark::Label(3, 14), 1), 50) {
        socket.send(&datagram).unwrap();
    }
    taken(&collector, 50);
    let trouble = collector.until("/api/v1/telemetry/status", |status| {
        status["storage"]["trouble"].as_str().map(str::to_owned)
    });
    assert!(
        trouble.contains("cannot store telemetry") && trouble.contains("live figures continue")
    );
    second_ended(&collector);
    let live = collector.get("/api/v1/telemetry/series?by=owner&from=-30");
    assert!(stored(&live, "cms") > 0.0, "{live}");
    let (status, body) = collector.ask("/api/v1/telemetry/series?by=owner&from=-7200&step=60");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("storage cannot be read"), "{body}");
    let (_, metrics) = collector.ask("/metrics");
    assert!(!metrics.contains("penstock_collector_store_errors_total 0"), "{metrics}");
    end(collector);
}
