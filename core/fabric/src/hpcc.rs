//! Files of the simulator of the HPCC paper (ns-3), in and out, so that people can bring their set-ups and compare
//! results: `topology.txt`, `flow.txt`, `config.txt`; `fct.txt`, `pfc.txt`, `qlen.txt`.

mod config;
mod read;
mod write;

pub use config::{Config, config};
pub use read::{Fault, flows, topology};
pub use write::{completions, pauses, queues};

use std::collections::HashMap;

use crate::network::Network;
use crate::routes::Routes;
use crate::time::{PS_PER_NANOSECOND, transmission_ps};

/// Headers that its formulas count for each packet.
const HEADER_BYTES: u64 = 48;

/// Twice the delays of a way and its packets of this payload one after the other, in picoseconds, and its slowest rate.
pub(crate) fn round_trip_ps(network: &Network, way: &[u32], payload: u64) -> (u64, u64) {
    let mut sum = 0;
    let mut slowest = u64::MAX;
    for port in way {
        let port = &network.ports[*port as usize];
        let rate = port.line.bits_per_second();
        sum += 2 * port.delay_ps + transmission_ps(payload, rate);
        slowest = slowest.min(rate);
    }
    (sum, slowest)
}

/// How long its formula says that a flow takes alone, in nanoseconds; none where no way leads there.
#[must_use]
pub fn ideal_ns(network: &Network, from: u32, to: u32, bytes: u64, payload: u64) -> Option<u64> {
    let routes = Routes::new(network, |_| true, |node| node);
    let way = routes.way(network, from, to, 0)?;
    Some(ideal_over_ns(network, &way, bytes, payload))
}

/// The same for a way that is known.
#[must_use]
pub fn ideal_over_ns(network: &Network, way: &[u32], bytes: u64, payload: u64) -> u64 {
    let (round_trip, slowest) = round_trip_ps(network, way, payload);
    let on_line = bytes + bytes.div_ceil(payload) * HEADER_BYTES;
    (round_trip + transmission_ps(on_line, slowest)) / PS_PER_NANOSECOND
}

/// Of the pairs of hosts of a network, by the formulas of that simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Longest {
    /// The longest round trip, in nanoseconds.
    pub round_trip_ns: u64,
    /// The largest bandwidth-delay product, in bytes.
    pub bdp_bytes: u64,
    /// The most switches between two hosts.
    pub switches: usize,
}

/// Returns the extremes over all pairs of hosts; none with fewer than two hosts that reach each other.
#[must_use]
pub fn longest(network: &Network, payload: u64) -> Option<Longest> {
    let routes = Routes::new(network, |_| true, |node| node);
    let mut longest: Option<Longest> = None;
    let hosts = representatives(network);
    for from in &hosts {
        for to in hosts.iter().filter(|to| *to != from) {
            let Some(way) = routes.way(network, *from, *to, 0) else { continue };
            let (round_trip, slowest) = round_trip_ps(network, &way, payload);
            let round_trip_ns = round_trip / PS_PER_NANOSECOND;
            let bdp = (u128::from(round_trip_ns) * u128::from(slowest) / 8_000_000_000) as u64;
            let before = longest.unwrap_or_default();
            longest = Some(Longest {
                round_trip_ns: round_trip_ns.max(before.round_trip_ns),
                bdp_bytes: bdp.max(before.bdp_bytes),
                switches: (way.len() - 1).max(before.switches),
            });
        }
    }
    longest
}

/// Two of the hosts that are alike, by their links to the same nodes: enough for all pairs.
fn representatives(network: &Network) -> Vec<u32> {
    let mut seen: HashMap<Vec<(u32, u64, u64)>, u32> = HashMap::new();
    let is_new = |host: &u32| {
        let ports = network.nodes[*host as usize].ports.clone();
        let link = |port: u32| {
            let of = &network.ports[port as usize];
            (network.across(port), of.line.bits_per_second(), of.delay_ps)
        };
        let count = seen.entry(ports.map(link).collect()).or_default();
        *count += 1;
        *count <= 2
    };
    network.hosts().filter(is_new).collect()
}
