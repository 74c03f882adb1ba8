//! Samples count in the second in which the kernel received them, even if the collector stalls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::site::{CONFIG, Collector, Exporter, FRAME_BYTES, Mark, packet, second_ended, test_dir};

const SAMPLING_RATE: u32 = 1_000;

/// Samples in each of ten bursts a second.
const BURST_SAMPLES: u32 = 20;

fn signal(collector: &Collector, name: &str) {
    let id = collector.agent.child.id().to_string();
    let sent = std::process::Command::new("kill").args([&format!("-{name}"), &id]).status();
    assert!(sent.unwrap().success());
}

/// Sends ten bursts a second while `work` goes on.
fn under_traffic(collector: &Collector, burst: u32, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = collector.socket("sflow");
            let mut exporter = Exporter::new(1, SAMPLING_RATE);
            let header = packet(1, 2, Mark::Label(3, 14), 3001);
            let begun = Instant::now();
            for round in 0.. {
                for datagram in exporter.samples(&header, burst) {
                    socket.send(&datagram).unwrap();
                }
                while begun.elapsed() < Duration::from_millis(100 * round) {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        work();
        done.store(true, Ordering::Relaxed);
    });
}

fn points(collector: &Collector, path: &str) -> Vec<Option<f64>> {
    let answer = collector.get(path);
    answer["total"]["bps"].as_array().unwrap().iter().map(Value::as_f64).collect()
}

/// Rates of the last half minute, without leading idle seconds and the current second.
fn rates(collector: &Collector) -> Vec<Option<f64>> {
    let points = points(collector, "/api/v1/telemetry/series?by=total&from=-40&step=1");
    let first = points.iter().position(|bps| *bps > Some(0.0)).unwrap();
    let last = points.iter().rposition(Option::is_some).unwrap();
    points[first + 1..last].to_vec()
}

#[test]
fn stalled_collector_keeps_its_seconds() {
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    under_traffic(&collector, BURST_SAMPLES, || {
        (0..3).for_each(|_| second_ended(&collector));
        signal(&collector, "STOP");
        std::thread::sleep(Duration::from_secs(6));
        signal(&collector, "CONT");
        (0..4).for_each(|_| second_ended(&collector));
    });
    let wanted =
        f64::from(10 * BURST_SAMPLES) * f64::from(SAMPLING_RATE) * f64::from(FRAME_BYTES) * 8.0;
    let rates = rates(&collector);
    assert!(rates.len() >= 10, "{rates:?}");
    // A late sender moves at most one burst between seconds.
    for bps in &rates {
        let bps = bps.unwrap_or_else(|| panic!("nothing was dropped: {rates:?}"));
        assert!((0.6..1.4).contains(&(bps / wanted)), "{} of it: {rates:?}", bps / wanted);
    }
    let status = collector.get("/api/v1/telemetry/status");
    assert_eq!((&status["late_datagrams"], &status["silent"]), (&0.into(), &false.into()));
    assert!(status["lag_s"].as_f64() < Some(2.0), "{status}");
    let until = status["measured_until_s"].as_f64().unwrap();
    assert!((0.0..3.0).contains(&(status["now_s"].as_f64().unwrap() - until)), "{status}");
}

#[test]
fn dropped_datagrams_make_unknown_seconds() {
    let dir = test_dir();
    let config = format!("{CONFIG}\n")
        .replace("[collector]\n", "[collector]\nreceive_buffer_bytes = 65536\n");
    let collector = Collector::start(dir.path(), &config);
    under_traffic(&collector, 10 * BURST_SAMPLES, || {
        (0..3).for_each(|_| second_ended(&collector));
        signal(&collector, "STOP");
        std::thread::sleep(Duration::from_secs(6));
        signal(&collector, "CONT");
        (0..4).for_each(|_| second_ended(&collector));
    });
    let status = collector.get("/api/v1/telemetry/status");
    assert!(status["inputs"][0]["kernel_drops"].as_u64() > Some(10), "{status}");
    let rates = rates(&collector);
    let unknown = rates.iter().filter(|bps| bps.is_none()).count();
    assert!((3..=6).contains(&unknown), "a gap is unknown: {rates:?}");
    let wanted =
        f64::from(100 * BURST_SAMPLES) * f64::from(SAMPLING_RATE) * f64::from(FRAME_BYTES) * 8.0;
    for bps in rates.iter().flatten() {
        assert!((0.3..2.0).contains(&(bps / wanted)), "{} of it: {rates:?}", bps / wanted);
    }
    let answer = collector.get("/api/v1/telemetry/series?by=total&from=-40&step=1");
    let measured: Vec<_> = answer["measured_s"].as_array().unwrap().iter().collect();
    assert_eq!(measured.len(), answer["total"]["bps"].as_array().unwrap().len());
    assert!(measured.iter().any(|seconds| seconds.as_f64() == Some(0.0)));
}
