//! Simulated nodes: each moves files at the rates that it is told, as long as both ends are up.

use std::collections::{BTreeMap, HashSet};

use penstock_fabric::random::mix;
use penstock_operations::orders::{
    Capacity, Fault, FaultKind, Instructions, InterfaceCounters, OrderId, OrderReport, Outcome,
    Phase, Report, Settings,
};

use crate::desk::{File, Work};

/// A node of the topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// Its first interface.
    pub interface: String,
    /// What that carries, in bits per second.
    pub rate_bps: u64,
    /// Transfers at once.
    pub transfers: u32,
}

/// All nodes.
#[derive(Debug)]
pub struct Nodes {
    nodes: BTreeMap<String, Node>,
    faults: Faults,
    /// What was moved, in bytes and files.
    pub moved: (u64, u64),
}

/// Which files fail, each once.
#[derive(Debug)]
struct Faults {
    permille: u32,
    /// Numbers of those that did.
    failed: HashSet<u64>,
}

impl Faults {
    fn happens_to(&mut self, file: u64) -> bool {
        mix(file) % 1000 < u64::from(self.permille) && self.failed.insert(file)
    }
}

#[derive(Debug)]
struct Node {
    spec: NodeSpec,
    up: bool,
    /// Which beginning of its process this is.
    run: u64,
    doing: BTreeMap<OrderId, Doing>,
    sent: u64,
}

#[derive(Debug)]
struct Doing {
    /// None of an order to receive.
    files: Option<Vec<File>>,
    settings: Settings,
    /// The file that is moved, and how much of it is.
    next: usize,
    part: u64,
    moved: u64,
    measured_bps: u64,
    /// Outcomes that are not acknowledged, and the number of the first.
    outcomes: Vec<Outcome>,
    told: u64,
}

impl Doing {
    fn ended(&self) -> bool {
        self.files.as_ref().is_some_and(|files| self.next == files.len())
    }
}

impl Nodes {
    /// Nodes of which so many files in a thousand fail the first time.
    #[must_use]
    pub fn new(specs: Vec<NodeSpec>, faults_permille: u32) -> Self {
        let node = |spec: NodeSpec| {
            let node = Node { up: true, run: 1, doing: BTreeMap::new(), sent: 0, spec };
            (node.spec.name.clone(), node)
        };
        let nodes = specs.into_iter().map(node).collect();
        let faults = Faults { permille: faults_permille, failed: HashSet::new() };
        Self { nodes, faults, moved: (0, 0) }
    }

    /// Only these are down; what goes down loses what it had in memory.
    pub fn set_down(&mut self, down: &[&str]) {
        for (name, node) in &mut self.nodes {
            let up = !down.contains(&name.as_str());
            if node.up && !up {
                node.doing.clear();
                node.run += 1;
            }
            node.up = up;
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, elapsed_ms: u64) {
        let receiving: HashSet<OrderId> = self
            .nodes
            .values()
            .flat_map(|node| node.doing.iter().filter(|(_, doing)| doing.files.is_none()))
            .map(|(order, _)| *order)
            .collect();
        for node in self.nodes.values_mut() {
            for (order, doing) in &mut node.doing {
                // The other end of an order has the next number.
                let there = receiving.contains(&(order + 1));
                let rate = doing.settings.rate_bps.filter(|_| there).unwrap_or(0);
                let (bytes, files) = doing.pass(rate, elapsed_ms, &mut self.faults);
                node.sent += bytes;
                self.moved = (self.moved.0 + bytes, self.moved.1 + files);
            }
        }
    }

    /// What the nodes that are up report.
    #[must_use]
    pub fn reports(&self) -> Vec<(String, Report)> {
        let up = self.nodes.iter().filter(|(_, node)| node.up);
        up.map(|(name, node)| (name.clone(), node.report())).collect()
    }

    /// Does as a node is told; what is new to it is asked for by `fetch`.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub fn obey(
        &mut self,
        host: &str,
        told: &Instructions,
        mut fetch: impl FnMut(&str, OrderId) -> Result<Option<Work>, String>,
    ) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(host) else { return Ok(()) };
        for known in &told.acknowledged {
            let Some(doing) = node.doing.get_mut(&known.order) else { continue };
            let fresh = known.outcomes.saturating_sub(doing.told) as usize;
            doing.outcomes.drain(..fresh.min(doing.outcomes.len()));
            doing.told = doing.told.max(known.outcomes);
            if known.end {
                node.doing.remove(&known.order);
            }
        }
        let standing: BTreeMap<OrderId, &Settings> =
            told.orders.iter().map(|one| (one.order, &one.settings)).collect();
        node.doing.retain(|order, _| standing.contains_key(order));
        for (order, settings) in standing {
            if let Some(doing) = node.doing.get_mut(&order) {
                doing.settings = settings.clone();
                continue;
            }
            let Some(work) = fetch(host, order)? else { continue };
            let files = match work {
                Work::Send(files) => Some(files),
                Work::Receive => None,
            };
            let doing = Doing {
                files,
                settings: settings.clone(),
                next: 0,
                part: 0,
                moved: 0,
                measured_bps: 0,
                outcomes: Vec::new(),
                told: 0,
            };
            node.doing.insert(order, doing);
        }
        Ok(())
    }
}

impl Doing {
    /// Moves what this rate allows; gives bytes, and files that are in place.
    fn pass(&mut self, rate_bps: u64, ms: u64, faults: &mut Faults) -> (u64, u64) {
        let Some(files) = &self.files else { return (0, 0) };
        let mut left = u64::try_from(u128::from(rate_bps) * u128::from(ms) / 8000).unwrap_or(0);
        let (all, mut placed) = (left, 0);
        while left > 0
            && let Some(File { id, bytes: size }) = files.get(self.next)
        {
            let more = (size - self.part).min(left);
            (self.part, left) = (self.part + more, left - more);
            if self.part < *size {
                break;
            }
            let fault = faults
                .happens_to(*id)
                .then(|| Fault { kind: FaultKind::Passing, text: "connection reset".to_owned() });
            placed += u64::from(fault.is_none());
            self.outcomes.push(Outcome {
                file: self.next as u32,
                bytes: *size,
                was_there: false,
                digest: None,
                fault,
            });
            (self.next, self.part) = (self.next + 1, 0);
        }
        let moved = all - left;
        self.moved += moved;
        self.measured_bps =
            u64::try_from(u128::from(moved) * 8000 / u128::from(ms.max(1))).unwrap_or(0);
        (moved, placed)
    }
}

impl Node {
    fn report(&self) -> Report {
        let orders = self.doing.iter().map(|(order, doing)| OrderReport {
            order: *order,
            run: self.run,
            phase: if doing.ended() { Phase::Ended } else { Phase::Running },
            moved_bytes: doing.moved,
            bits_per_second: doing.measured_bps,
            rate_bps: doing.settings.rate_bps,
            streams: 8,
            bound_by: "rate".to_owned(),
            outcomes_from: doing.told,
            outcomes: doing.outcomes.clone(),
            ..OrderReport::default()
        });
        Report {
            start: format!("{}-{}", self.spec.name, self.run),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            addresses: vec![format!("{}:8620", self.spec.name)],
            fingerprint: "00".repeat(32),
            capacity: Capacity {
                network_bps: Some(self.spec.rate_bps),
                transfers: self.spec.transfers,
                streams: 256,
                ..Capacity::default()
            },
            interfaces: vec![InterfaceCounters {
                name: self.spec.interface.clone(),
                sent_bytes: self.sent,
                received_bytes: 0,
                addresses: Vec::new(),
            }],
            orders: orders.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faulty_files_fail_exactly_once() {
        let mut faults = Faults { permille: 100, failed: HashSet::new() };
        let first = (0..100_000).filter(|file| faults.happens_to(*file)).count();
        assert!((9_500..10_500).contains(&first), "{first}");
        assert_eq!((0..100_000).filter(|file| faults.happens_to(*file)).count(), 0);
        let mut all = Faults { permille: 1000, failed: HashSet::new() };
        assert!((0..100).all(|file| all.happens_to(file)) && !all.happens_to(7));
    }
}
