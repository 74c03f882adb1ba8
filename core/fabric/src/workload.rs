//! Workload generators: perftest, incast, permutation, all-to-all, ring all-reduce, Poisson arrivals, bursts, traces.
//!
//! All functions are pure: the same seed gives the same flows.

use crate::flow::{FlowSpec, RdmaOperation};
use crate::time::PS_PER_SECOND;
use penstock_random::Random;

mod sizes;
mod trace;

pub use sizes::{SizeDistribution, SizeError, SizeFault};
pub use trace::{TraceError, TraceFault, trace};

/// Options of `ib_write_bw` and its relatives (linux-rdma/perftest).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Perftest {
    /// RDMA operation of all messages.
    pub operation: RdmaOperation,
    /// Size of a message in bytes (`-s`).
    pub message_bytes: u64,
    /// Messages of each queue pair (`-n`).
    pub iterations: u64,
    /// Messages posted before the first completes (`-t`).
    pub depth: u64,
    /// Messages per completion (`-Q`).
    pub moderation: u64,
    /// Number of queue pairs (`-q`).
    pub pairs: u32,
    /// True for traffic in both directions (`-b`).
    pub is_bidirectional: bool,
}

/// Exponents of the message sizes that `-a` sweeps: 2 to 2^23 bytes.
pub const PERFTEST_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

impl Perftest {
    /// Creates options with perftest's defaults: 5000 iterations for writes and 1000 otherwise, a depth of 128, and a
    /// completion for every message above 8 KiB unless sizes are swept, otherwise for every 100 messages.
    #[must_use]
    pub fn new(operation: RdmaOperation, message_bytes: u64, is_sweep: bool) -> Self {
        let depth = 128;
        Self {
            operation,
            message_bytes,
            iterations: if operation == RdmaOperation::Write { 5000 } else { 1000 },
            depth,
            moderation: if message_bytes > 8192 && !is_sweep { 1 } else { 100 },
            pairs: 1,
            is_bidirectional: false,
        }
    }

    /// Returns the flows of a bandwidth test.
    #[must_use]
    pub fn bandwidth(&self, from: u32, to: u32) -> Vec<FlowSpec> {
        let mut flows = Vec::new();
        for _ in 0..self.pairs {
            let flow = FlowSpec {
                messages: self.iterations,
                depth: self.depth.min(self.iterations),
                moderation: self.moderation.min(self.depth),
                operation: self.operation,
                ..FlowSpec::new(from, to, 0, self.message_bytes)
            };
            if self.is_bidirectional {
                flows.push(FlowSpec { from: to, to: from, group: 1, ..flow.clone() });
            }
            flows.push(flow);
        }
        flows
    }

    /// Returns the flows of a ping-pong latency test. A round trip is one message in each direction; perftest reports
    /// half of it.
    #[must_use]
    pub fn latency(&self, from: u32, to: u32) -> Vec<FlowSpec> {
        let one = FlowSpec {
            messages: self.iterations,
            depth: 1,
            operation: self.operation,
            released_by: Some(1),
            ..FlowSpec::new(from, to, 0, self.message_bytes)
        };
        // The pong to each message is posted when it arrives.
        let answer =
            FlowSpec { from: to, to: from, depth: 0, released_by: Some(0), group: 1, ..one };
        vec![one, answer]
    }
}

/// Returns an incast: the first `senders` other hosts start sending to `receiver` at time 0.
#[must_use]
pub fn incast(hosts: &[u32], receiver: u32, senders: usize, bytes: u64) -> Vec<FlowSpec> {
    let others = hosts.iter().filter(|host| **host != receiver);
    others.take(senders).map(|from| FlowSpec::new(*from, receiver, 0, bytes)).collect()
}

/// Returns a random permutation: each host sends to one other host and receives from one.
#[must_use]
pub fn permutation(hosts: &[u32], bytes: u64, seed: u64) -> Vec<FlowSpec> {
    let mut random = Random::stream(seed, "permutation", 0);
    let mut to: Vec<u32> = hosts.to_vec();
    // Sattolo's shuffle yields a single cycle, so no host sends to itself.
    for at in (1..to.len()).rev() {
        to.swap(at, random.below(at as u64) as usize);
    }
    hosts.iter().zip(to).map(|(from, to)| FlowSpec::new(*from, to, 0, bytes)).collect()
}

/// Returns a flow between each ordered pair of hosts.
#[must_use]
pub fn all_to_all(hosts: &[u32], bytes: u64) -> Vec<FlowSpec> {
    let count = hosts.len();
    let pairs = (1..count).flat_map(|step| (0..count).map(move |at| (at, (at + step) % count)));
    pairs.map(|(from, to)| FlowSpec::new(hosts[from], hosts[to], 0, bytes)).collect()
}

/// Returns a ring all-reduce of `bytes`: in each of 2 (n - 1) steps a host sends an n-th of the data to its successor
/// as soon as the part of its predecessor has arrived.
#[must_use]
pub fn ring(hosts: &[u32], bytes: u64) -> Vec<FlowSpec> {
    let count = hosts.len() as u32;
    let part = bytes.div_ceil(u64::from(count)).max(1);
    (0..count)
        .map(|at| FlowSpec {
            messages: 2 * u64::from(count - 1),
            depth: 1,
            released_by: Some((at + count - 1) % count),
            ..FlowSpec::new(hosts[at as usize], hosts[((at + 1) % count) as usize], 0, part)
        })
        .collect()
}

/// Returns flows of random sizes between random hosts that arrive at each host as a Poisson process until `until_ps`.
/// Their payload is the share `load` of the line rate, as in the generator of the HPCC paper.
#[must_use]
pub fn poisson(
    hosts: &[u32],
    line_bps: u64,
    sizes: &SizeDistribution,
    load: f64,
    until_ps: u64,
    seed: u64,
) -> Vec<FlowSpec> {
    let gap_ps = sizes.mean() * 8.0 / (load * line_bps as f64) * PS_PER_SECOND as f64;
    let mut flows = Vec::new();
    for (at, from) in hosts.iter().enumerate() {
        let mut random = Random::stream(seed, "poisson", u64::from(*from));
        let mut start = random.exponential(gap_ps);
        while start < until_ps as f64 {
            let step = 1 + random.below(hosts.len() as u64 - 1) as usize;
            let to = hosts[(at + step) % hosts.len()];
            flows.push(FlowSpec::new(*from, to, start as u64, sizes.draw(&mut random)));
            start += random.exponential(gap_ps);
        }
    }
    flows.sort_by_key(|flow| flow.start_ps);
    flows
}

/// Returns periodic bursts, as of detector read-out: host n of `from` sends `bytes` to host n of `to` (modulo its
/// length) every `period_ps`, with a random phase.
#[must_use]
pub fn bursts(
    from: &[u32],
    to: &[u32],
    bytes: u64,
    period_ps: u64,
    until_ps: u64,
    seed: u64,
) -> Vec<FlowSpec> {
    let mut flows = Vec::new();
    for (number, host) in from.iter().enumerate() {
        let mut random = Random::stream(seed, "burst", u64::from(*host));
        let mut start = random.below(period_ps.max(1));
        while start < until_ps {
            let group = number as u32;
            flows.push(FlowSpec {
                group,
                ..FlowSpec::new(*host, to[number % to.len()], start, bytes)
            });
            start += period_ps.max(1);
        }
    }
    flows.sort_by_key(|flow| flow.start_ps);
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_HOSTS: [u32; 6] = [10, 11, 12, 13, 14, 15];

    #[test]
    fn permutations_have_no_fixed_point() {
        for seed in 0..50 {
            let flows = permutation(&TEST_HOSTS, 1, seed);
            let mut to: Vec<u32> = flows.iter().map(|flow| flow.to).collect();
            to.sort_unstable();
            assert_eq!(to, TEST_HOSTS);
            assert!(flows.iter().all(|flow| flow.from != flow.to));
        }
    }

    #[test]
    fn patterns_have_expected_totals() {
        assert_eq!(
            incast(&TEST_HOSTS, 12, 3, 1).iter().map(|flow| flow.from).collect::<Vec<_>>(),
            [10, 11, 13]
        );
        assert_eq!(all_to_all(&TEST_HOSTS, 1).len(), 30);
        let ring = ring(&TEST_HOSTS, 600);
        assert!(ring.iter().all(|flow| flow.message_bytes == 100 && flow.messages == 10));
        assert_eq!((ring[0].released_by, ring[3].released_by), (Some(5), Some(2)));
        let bursts = bursts(&TEST_HOSTS[..2], &TEST_HOSTS[2..], 5, 100, 1000, 1);
        assert_eq!(bursts.len(), 20);
        let both = Perftest {
            is_bidirectional: true,
            pairs: 3,
            ..Perftest::new(RdmaOperation::Write, 65_536, false)
        };
        assert_eq!(both.bandwidth(0, 1).len(), 6);
        assert_eq!(
            (both.moderation, Perftest::new(RdmaOperation::Write, 65_536, true).moderation),
            (1, 100)
        );
    }

    #[test]
    fn poisson_arrivals_meet_load() {
        let sizes = SizeDistribution::named("web-search").unwrap();
        let flows = poisson(&TEST_HOSTS, 100_000_000_000, &sizes, 0.5, PS_PER_SECOND, 3);
        let bytes: u64 = flows.iter().map(FlowSpec::bytes).sum();
        let load = bytes as f64 * 8.0 / 6.0 / 100e9;
        assert!((load - 0.5).abs() < 0.03, "{load}");
        assert!(flows.is_sorted_by_key(|flow| flow.start_ps));
    }
}
