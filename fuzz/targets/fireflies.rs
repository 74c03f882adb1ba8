//! The documents: registries and the fireflies of any program. Every pair of a registry is found by its name; a
//! firefly that was read is written as one that reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_scitags::Registry;
use penstock_scitags::firefly::read::FlowState;
use penstock_scitags::firefly::{self, DATAGRAM_BYTES_MAX, Firefly, FireflyFlow, FlowPhase, ReceivedFirefly};
use penstock_scitags::time::UtcTime;

const REGISTRY: &[u8] = include_bytes!("../../core/scitags/data/registry.json");

const FIREFLY: &[u8] = br#"<134>1 2026-03-01T10:00:00.000000+00:00 dtn penstock - firefly-json - {"version":1,
"flow-lifecycle":{"state":"end","start-time":"2026-03-01T10:00:00.000000+00:00",
"current-time":"2026-03-01T10:04:11.250000+00:00","end-time":"2026-03-01T10:04:11.250000+00:00"},
"flow-id":{"afi":"ipv6","src-ip":"2001:db8::1","dst-ip":"2001:db8::2","protocol":"tcp","src-port":41344,
"dst-port":8620},"usage":{"sent":1099511627776,"received":0},"packets":{"sent":7,"received":3},
"netlink":{"rtt":88.4},"context":{"experiment-id":8,"activity-id":4,"application":"penstock v0.1"}}"#;

/// A valid document with some bytes replaced, which a mutator would hardly find.
fn patched(good: &[u8], patch: &[u8]) -> Vec<u8> {
    let Some(([a, b, cut], put)) = patch.split_first_chunk() else { return good.to_vec() };
    let at = usize::from(u16::from_be_bytes([*a, *b])) % good.len();
    let rest = (at + usize::from(*cut)).min(good.len());
    [&good[..at], put, &good[rest..]].concat()
}

fn registry(json: &[u8], text: &str) {
    let Ok(reading) = Registry::read(json) else { return };
    let registry = reading.registry;
    assert!(!registry.owners().is_empty());
    for tag in registry.tags() {
        assert!(registry.has(tag));
        assert_eq!(registry.find(&registry.name(tag)), Ok(tag), "{}", registry.name(tag));
    }
    if let Ok(tag) = registry.find(text) {
        assert_eq!(registry.find(&registry.name(tag)), Ok(tag));
    }
}

fn written(received: &ReceivedFirefly) -> Option<Firefly> {
    let never = UtcTime::new(0, 0);
    Some(Firefly {
        phase: match received.state {
            FlowState::Start => FlowPhase::Start,
            FlowState::Ongoing => FlowPhase::Ongoing,
            FlowState::End => FlowPhase::End(received.ended.unwrap_or(never)),
        },
        started: received.started.unwrap_or(never),
        now: received.now.unwrap_or(never),
        flow: FireflyFlow::new(received.source, received.destination, received.protocol).ok()?,
        tag: received.tag().ok()?,
        application: received.application.clone().unwrap_or_default(),
        bytes: received.bytes,
        packets: received.packets,
        tcp: None,
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    if which % 2 == 0 {
        let (text, json) = bytes.split_at(bytes.len().min(usize::from(which / 8)));
        let text = String::from_utf8_lossy(text);
        return match which & 2 {
            0 => registry(json, &text),
            _ => registry(&patched(REGISTRY, json), &text),
        };
    }
    let datagram = if which & 2 == 0 { bytes.to_vec() } else { patched(FIREFLY, bytes) };
    let Ok(received) = firefly::read(&datagram) else { return };
    let Some(firefly) = written(&received) else { return };
    let host = received.host.as_deref().unwrap_or_default();
    let datagram = firefly.datagram(host, received.program.as_deref().unwrap_or_default());
    assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
    let again = firefly::read(&datagram).unwrap();
    assert_eq!(again.logged, Some(firefly.now));
    assert_eq!(
        written(&again),
        Some(firefly.clone()).map(|firefly| Firefly {
            application: again.application.clone().unwrap_or_default(),
            ..firefly
        })
    );
    // Invalid characters of log line and application were removed by the first pass.
    let host = again.host.as_deref().unwrap_or_default();
    let program = again.program.as_deref().unwrap_or_default();
    let twice = Firefly { application: again.application.unwrap_or_default(), ..firefly };
    assert_eq!(twice.datagram(host, program), datagram);
});
