//! Workloads: perftest, incast, permutation, all-to-all, rings, Poisson arrivals, bursts, traces.
//!
//! All functions are pure: the same seed gives the same flows.

use crate::flow::{Flow, Operation};
use crate::random::Random;
use crate::time::PS_PER_SECOND;

mod sizes;
mod trace;

pub use sizes::{SizeError, Sizes};
pub use trace::{TraceError, trace};

/// Options of `ib_write_bw` and its relatives (linux-rdma/perftest).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Perftest {
    /// Measured RDMA operation.
    pub operation: Operation,
    /// Size of a message.
    pub message_bytes: u64,
    /// Messages of each queue pair (`-n`).
    pub iterations: u64,
    /// Messages posted before the first completes (`-t`).
    pub depth: u64,
    /// Messages of a completion (`-Q`).
    pub moderation: u64,
    /// Number of queue pairs (`-q`).
    pub pairs: u32,
    /// Both ways at once (`-b`).
    pub is_bidirectional: bool,
}

/// Sizes that `-a` sweeps: 2 to 2^23.
pub const PERFTEST_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

impl Perftest {
    /// With perftest's defaults for a size: 5000 writes (1000 of others), 128 posted, and a completion for each message
    /// above 8 KiB unless sizes are swept, else for 100.
    #[must_use]
    pub fn new(operation: Operation, message_bytes: u64, is_sweep: bool) -> Self {
        let depth = 128;
        Self {
            operation,
            message_bytes,
            iterations: if operation == Operation::Write { 5000 } else { 1000 },
            depth,
            moderation: if message_bytes > 8192 && !is_sweep { 1 } else { 100 },
            pairs: 1,
            is_bidirectional: false,
        }
    }

    /// The flows of a test of bandwidth.
    #[must_use]
    pub fn bandwidth(&self, from: u32, to: u32) -> Vec<Flow> {
        let mut flows = Vec::new();
        for _ in 0..self.pairs {
            let flow = Flow {
                messages: self.iterations,
                depth: self.depth.min(self.iterations),
                moderation: self.moderation.min(self.depth),
                operation: self.operation,
                ..Flow::new(from, to, 0, self.message_bytes)
            };
            if self.is_bidirectional {
                flows.push(Flow { from: to, to: from, group: 1, ..flow.clone() });
            }
            flows.push(flow);
        }
        flows
    }

    /// The flows of a test of latency: each message is answered by one before the next. A round trip is a message of
    /// each; perftest gives half of it.
    #[must_use]
    pub fn latency(&self, from: u32, to: u32) -> Vec<Flow> {
        let one = Flow {
            messages: self.iterations,
            depth: 1,
            operation: self.operation,
            released_by: Some(1),
            ..Flow::new(from, to, 0, self.message_bytes)
        };
        // The answer to the first message is posted as it arrives.
        let answer = Flow { from: to, to: from, depth: 0, released_by: Some(0), group: 1, ..one };
        vec![one, answer]
    }
}

/// `senders` hosts send to one at once.
#[must_use]
pub fn incast(hosts: &[u32], receiver: u32, senders: usize, bytes: u64) -> Vec<Flow> {
    let others = hosts.iter().filter(|host| **host != receiver);
    others.take(senders).map(|from| Flow::new(*from, receiver, 0, bytes)).collect()
}

/// Each host sends to one other and hears from one other.
#[must_use]
pub fn permutation(hosts: &[u32], bytes: u64, seed: u64) -> Vec<Flow> {
    let mut random = Random::new(seed, "permutation", 0);
    let mut to: Vec<u32> = hosts.to_vec();
    // Sattolo's shuffle has one cycle, so that nobody sends to itself.
    for at in (1..to.len()).rev() {
        to.swap(at, random.below(at as u64) as usize);
    }
    hosts.iter().zip(to).map(|(from, to)| Flow::new(*from, to, 0, bytes)).collect()
}

/// Each host sends to each other.
#[must_use]
pub fn all_to_all(hosts: &[u32], bytes: u64) -> Vec<Flow> {
    let count = hosts.len();
    let pairs = (1..count).flat_map(|step| (0..count).map(move |at| (at, (at + step) % count)));
    pairs.map(|(from, to)| Flow::new(hosts[from], hosts[to], 0, bytes)).collect()
}

/// All-reduce of `bytes` in a ring: 2 (n - 1) steps, each of which sends an n-th to the next host after that of the host
/// before arrived.
#[must_use]
pub fn ring(hosts: &[u32], bytes: u64) -> Vec<Flow> {
    let count = hosts.len() as u32;
    let part = bytes.div_ceil(u64::from(count)).max(1);
    (0..count)
        .map(|at| Flow {
            messages: 2 * u64::from(count - 1),
            depth: 1,
            released_by: Some((at + count - 1) % count),
            ..Flow::new(hosts[at as usize], hosts[((at + 1) % count) as usize], 0, part)
        })
        .collect()
}

/// Flows of random sizes between random hosts, arriving at each host by chance (Poisson), so that hosts send `load` of
/// their line on average until `until_ps`. Payload alone is counted, as the generator of the HPCC paper does.
#[must_use]
pub fn poisson(
    hosts: &[u32],
    line_bps: u64,
    sizes: &Sizes,
    load: f64,
    until_ps: u64,
    seed: u64,
) -> Vec<Flow> {
    let gap_ps = sizes.mean() * 8.0 / (load * line_bps as f64) * PS_PER_SECOND as f64;
    let mut flows = Vec::new();
    for (at, from) in hosts.iter().enumerate() {
        let mut random = Random::new(seed, "poisson", u64::from(*from));
        let mut start = random.exponential(gap_ps);
        while start < until_ps as f64 {
            let step = 1 + random.below(hosts.len() as u64 - 1) as usize;
            let to = hosts[(at + step) % hosts.len()];
            flows.push(Flow::new(*from, to, start as u64, sizes.draw(&mut random)));
            start += random.exponential(gap_ps);
        }
    }
    flows.sort_by_key(|flow| flow.start_ps);
    flows
}

/// Detectors that give a burst at intervals: host n of `from` sends `bytes` to host n of `to` (in turn where there are
/// fewer), each `period_ps`, beginning at a time of its own within the first.
#[must_use]
pub fn bursts(
    from: &[u32],
    to: &[u32],
    bytes: u64,
    period_ps: u64,
    until_ps: u64,
    seed: u64,
) -> Vec<Flow> {
    let mut flows = Vec::new();
    for (number, host) in from.iter().enumerate() {
        let mut random = Random::new(seed, "burst", u64::from(*host));
        let mut start = random.below(period_ps.max(1));
        while start < until_ps {
            let group = number as u32;
            flows.push(Flow { group, ..Flow::new(*host, to[number % to.len()], start, bytes) });
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
            ..Perftest::new(Operation::Write, 65_536, false)
        };
        assert_eq!(both.bandwidth(0, 1).len(), 6);
        assert_eq!(
            (both.moderation, Perftest::new(Operation::Write, 65_536, true).moderation),
            (1, 100)
        );
    }

    #[test]
    fn arrivals_have_their_load() {
        let sizes = Sizes::named("web-search").unwrap();
        let flows = poisson(&TEST_HOSTS, 100_000_000_000, &sizes, 0.5, PS_PER_SECOND, 3);
        let bytes: u64 = flows.iter().map(Flow::bytes).sum();
        let load = bytes as f64 * 8.0 / 6.0 / 100e9;
        assert!((load - 0.5).abs() < 0.03, "{load}");
        assert!(flows.is_sorted_by_key(|flow| flow.start_ps));
    }
}
