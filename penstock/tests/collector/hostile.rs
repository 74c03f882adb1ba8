//! Hostile datagrams: the service continues, its memory is bounded, and drops are counted.

use std::net::IpAddr;

use penstock_flows::sflow::Encoder;

use crate::common::seeded;
use crate::site::{CONFIG, Collector, Exporter, Mark, packet, second_ended, test_dir};

/// Resident memory of a process in bytes.
fn resident_bytes(id: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn forged_exporters_and_garbage_are_bounded() {
    let mut random = seeded(0xC0_11EC);
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    let sockets = ["sflow", "ipfix", "fireflies"].map(|format| collector.socket(format));
    let good = Exporter::new(1, 1000).samples(&packet(1, 2, Mark::Label(3, 14), 3001), 1).remove(0);
    // 100,000 forged exporters with one sample each, of forged hosts.
    let mut forged = good.clone();
    assert_eq!(forged[8..12], [192, 0, 2, 1]);
    let mut sent = 0_u64;
    for number in 0..100_000_u32 {
        forged[8..12].copy_from_slice(&(0x0A00_0000 + number).to_be_bytes());
        // Host addresses of the sampled header lie behind the sFlow headers.
        let at = forged.len() - 60;
        forged[at..at + 8].copy_from_slice(&random.next_bits().to_be_bytes());
        sent += u64::from(sockets[0].send(&forged).is_ok());
    }
    // The kernel reports drops with the next received datagram (SO_RXQ_OVFL).
    let mut exporter = Exporter::new(77, 1000);
    let mut all_known = |mut sent: u64| {
        collector.until("/api/v1/telemetry/status", |status| {
            for datagram in exporter.samples(&packet(1, 2, Mark::Label(3, 14), 3001), 1) {
                sent += u64::from(sockets[0].send(&datagram).is_ok());
            }
            let inputs = status["inputs"].as_array().unwrap();
            let sum =
                |name: &str| -> u64 { inputs.iter().map(|i| i[name].as_u64().unwrap()).sum() };
            (sum("datagrams") + sum("kernel_drops") + 10 >= sent).then_some(sent)
        })
    };
    let mut sent = all_known(sent);
    // Truncated, altered and random datagrams.
    for _ in 0..5_000 {
        let mut bytes = match random.next_bits() % 3 {
            0 => good.clone(),
            1 => {
                let length = random.between(0, 1_500) as usize;
                random.bytes(length)
            }
            _ => {
                let mut empty = Encoder::new(IpAddr::from([192, 0, 2, 9]), 7, 1_400);
                empty.take(1).unwrap_or_else(|| vec![0, 0, 0, 5, 0, 0, 0, 1])
            }
        };
        if !bytes.is_empty() {
            for _ in 0..random.between(0, 20) {
                let at = random.next_bits() as usize % bytes.len();
                bytes[at] = random.next_bits() as u8;
            }
            bytes.truncate(random.next_bits() as usize % (bytes.len() + 1));
        }
        let socket = &sockets[random.next_bits() as usize % 3];
        sent += u64::from(socket.send(&bytes).is_ok());
    }
    // Each datagram was received or counted as dropped by the kernel, and the genuine exporter is accepted.
    all_known(sent);
    second_ended(&collector);
    // After a second without forgeries the genuine exporter keeps its slot.
    all_known(0);
    second_ended(&collector);
    let status = collector.get("/api/v1/telemetry/status");
    let inputs = status["inputs"].as_array().unwrap();
    assert!(inputs.iter().all(|input| input["refused"].as_u64() > Some(100)), "{status}");
    assert_eq!(inputs.iter().map(|input| input["errors"].as_u64().unwrap()).sum::<u64>(), 0);
    assert!(status["exporters"]["used"].as_u64() <= Some(5_120), "{status}");
    assert!(status["states"]["used"].as_u64() <= Some(131_072), "{status}");
    let live =
        collector.get("/api/v1/telemetry/series?by=exporter&from=-30&top=1000&exporter=192.0.2.77");
    assert_eq!(live["series"][0]["key"], "192.0.2.77", "{live}");
    let resident = resident_bytes(collector.agent.child.id());
    assert!(resident < 600 << 20, "{} MiB", resident >> 20);
    // Unauthenticated names never become metric labels.
    let (_, metrics) = collector.ask("/metrics");
    let lines = metrics.lines().filter(|line| line.starts_with("penstock_collector_")).count();
    assert!((30..150).contains(&lines), "{lines} lines");
}
