//! Files of the simulator of the HPCC paper (ns-3), in and out, so that people can bring their set-ups and compare
//! results: `topology.txt`, `flow.txt`, `config.txt`; `fct.txt`, `pfc.txt`, `qlen.txt`.

mod read;
mod write;

pub use read::{Config, Fault, config, flows, topology};
pub use write::{completions, pauses, queues};

use crate::network::Network;
use crate::routes::Routes;
use crate::time::{NANOSECOND, transmission_ps};

/// Headers that its formulas count for each packet.
const HEADERS: u64 = 48;

/// Twice the delays of a way and its packets of this payload one after the other, in picoseconds, and its slowest rate.
fn round_trip_ps(network: &Network, way: &[u32], payload: u64) -> (u64, u64) {
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
    let on_line = bytes + bytes.div_ceil(payload) * HEADERS;
    (round_trip + transmission_ps(on_line, slowest)) / NANOSECOND
}

/// The longest round trip of all pairs of hosts, in nanoseconds, and the most bytes that are under way in one, as its
/// formula has them; none with fewer than two hosts that reach each other.
#[must_use]
pub fn longest_round_trip_ns(network: &Network, payload: u64) -> Option<(u64, u64)> {
    let routes = Routes::new(network, |_| true, |node| node);
    let hosts: Vec<u32> = network.hosts().collect();
    let mut longest = None;
    for from in &hosts {
        for to in hosts.iter().filter(|to| *to != from) {
            let Some(way) = routes.way(network, *from, *to, 0) else { continue };
            let (round_trip, slowest) = round_trip_ps(network, &way, payload);
            let round_trip = round_trip / NANOSECOND;
            let bdp = (u128::from(round_trip) * u128::from(slowest) / 8_000_000_000) as u64;
            let (most, most_bytes) = longest.unwrap_or((0, 0));
            longest = Some((round_trip.max(most), bdp.max(most_bytes)));
        }
    }
    longest
}
