//! File formats of the HPCC paper's simulator (ns-3): reads `topology.txt`, `flow.txt` and `config.txt`, and writes
//! `fct.txt`, `pfc.txt` and `qlen.txt`, so that existing set-ups can be run and results compared.

mod config;
mod fault;
mod read;
mod write;

pub use config::{Config, config};
pub use fault::{HpccFault, HpccFileError};
pub use read::{flows, topology};
pub use write::{completions, pauses, queues};

use std::collections::HashMap;

use crate::network::FabricNetwork;
use crate::routes::Routes;
use crate::time::{PS_PER_NANOSECOND, transmission_ps};

/// Header bytes per packet in the formulas of that simulator.
const HEADER_BYTES: u64 = 48;

/// Returns the base RTT of a path in picoseconds (twice its delays plus the serialization times of one `payload`),
/// and its lowest line rate.
pub(crate) fn round_trip_ps(network: &FabricNetwork, path: &[u32], payload: u64) -> (u64, u64) {
    let mut sum = 0;
    let mut slowest = u64::MAX;
    for port in path {
        let port = &network.ports[*port as usize];
        let rate = port.line.bits_per_second();
        sum += 2 * port.delay_ps + transmission_ps(payload, rate);
        slowest = slowest.min(rate);
    }
    (sum, slowest)
}

/// Returns the ideal completion time of a flow in nanoseconds by the formula of that simulator; none without a path.
#[must_use]
pub fn ideal_ns(
    network: &FabricNetwork,
    from: u32,
    to: u32,
    bytes: u64,
    payload: u64,
) -> Option<u64> {
    let routes = Routes::new(network, |_| true, |node| node);
    let path = routes.find_path(network, from, to, 0)?;
    Some(path_ideal_ns(network, &path, bytes, payload))
}

/// Returns the ideal completion time of a flow on a path, in nanoseconds.
#[must_use]
pub fn path_ideal_ns(network: &FabricNetwork, path: &[u32], bytes: u64, payload: u64) -> u64 {
    let (round_trip, slowest) = round_trip_ps(network, path, payload);
    let wire_bytes = bytes + bytes.div_ceil(payload) * HEADER_BYTES;
    (round_trip + transmission_ps(wire_bytes, slowest)) / PS_PER_NANOSECOND
}

/// Extremes over all pairs of hosts, by the formulas of that simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Longest {
    /// Longest base RTT in nanoseconds.
    pub round_trip_ns: u64,
    /// Largest bandwidth-delay product in bytes.
    pub bdp_bytes: u64,
    /// Most switches on a path.
    pub switches: usize,
}

/// Returns the extremes over all pairs of hosts; none with fewer than two hosts that reach each other.
#[must_use]
pub fn longest(network: &FabricNetwork, payload: u64) -> Option<Longest> {
    let routes = Routes::new(network, |_| true, |node| node);
    let mut longest: Option<Longest> = None;
    let hosts = representatives(network);
    for from in &hosts {
        for to in hosts.iter().filter(|to| *to != from) {
            let Some(path) = routes.find_path(network, *from, *to, 0) else { continue };
            let (round_trip, slowest) = round_trip_ps(network, &path, payload);
            let round_trip_ns = round_trip / PS_PER_NANOSECOND;
            let bdp = (u128::from(round_trip_ns) * u128::from(slowest) / 8_000_000_000) as u64;
            let before = longest.unwrap_or_default();
            longest = Some(Longest {
                round_trip_ns: round_trip_ns.max(before.round_trip_ns),
                bdp_bytes: bdp.max(before.bdp_bytes),
                switches: (path.len() - 1).max(before.switches),
            });
        }
    }
    longest
}

/// Returns at most two hosts of each set with identical links to the same nodes; their pairs represent all pairs.
fn representatives(network: &FabricNetwork) -> Vec<u32> {
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
