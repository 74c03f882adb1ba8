//! Topology files: any text is parsed or has faults with positions; parsed topologies are drawn, scaled and searched.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_topology::paths::{Disjoint, disjoint};
use penstock_topology::{NodeId, Topology, draw};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let topology = match Topology::read(text) {
        Ok(topology) => topology,
        Err(faults) => {
            let lines = text.split('\n').count();
            assert!(!faults.0.is_empty());
            for fault in faults.0 {
                assert!((1..=lines).contains(&fault.line) && fault.column > 0, "{fault}");
                assert!(!fault.text.contains(char::is_control), "{fault}");
            }
            return;
        }
    };
    for link in &topology.links {
        assert!(link.jitter <= link.delay && link.loss_burst >= 1.0 && link.loss < 1.0);
        assert!(link.mark <= link.queue || link.queue.is_none());
    }
    let small = topology.scaled("1/1000".parse().unwrap());
    for drawn in [draw::svg(&small), draw::mermaid(&small), draw::containerlab(&small)] {
        assert!(!drawn.contains("NaN"));
    }
    let last = NodeId(topology.nodes.len().saturating_sub(1));
    for by in [Disjoint::Links, Disjoint::Nodes, Disjoint::Risks] {
        if !topology.nodes.is_empty() {
            let _ = disjoint(&topology, NodeId(0), last, 3, by);
        }
    }
});
