//! Simulated nodes, which transfer files at the ordered rates while both ends are up.

use std::collections::{BTreeMap, HashSet};

use penstock_control::orders::{
    Capacity, FaultKind, Instructions, InterfaceCounters, OrderFault, OrderId, OrderPhase,
    OrderReport, OrderSettings, Report, ReportedOutcome,
};
use penstock_random::mix;

use crate::controller_api::{ControllerFailure, OrderContent, OrderFile};

/// Parameters of a simulated node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// Host name in the topology.
    pub name: String,
    /// Name of its first interface.
    pub interface: String,
    /// Rate of that interface in bits per second.
    pub rate_bps: u64,
    /// Most transfers at the same time.
    pub transfers: u32,
}

/// The simulated nodes of a topology.
#[derive(Debug)]
pub struct Nodes {
    nodes: BTreeMap<String, SimulatedNode>,
    faults: FaultInjector,
    /// Total bytes and files transferred.
    pub moved: (u64, u64),
}

/// Injects faults into a fraction of the files, once each.
#[derive(Debug)]
struct FaultInjector {
    permille: u32,
    /// Files that have failed.
    failed: HashSet<u64>,
}

impl FaultInjector {
    fn happens_to(&mut self, file: u64) -> bool {
        mix(file) % 1000 < u64::from(self.permille) && self.failed.insert(file)
    }
}

#[derive(Debug)]
struct SimulatedNode {
    spec: NodeSpec,
    up: bool,
    /// Number of this start of the process.
    run: u64,
    orders: BTreeMap<OrderId, NodeOrder>,
    sent: u64,
}

#[derive(Debug)]
struct NodeOrder {
    /// Files to send; none for an order to receive.
    files: Option<Vec<OrderFile>>,
    settings: OrderSettings,
    /// Index of the current file, and the bytes of it already sent.
    next: usize,
    part: u64,
    moved: u64,
    measured_bps: u64,
    /// Unacknowledged outcomes, and the number of the first.
    outcomes: Vec<ReportedOutcome>,
    first_outcome: u64,
}

impl NodeOrder {
    fn ended(&self) -> bool {
        self.files.as_ref().is_some_and(|files| self.next == files.len())
    }
}

impl Nodes {
    /// Creates nodes that fail this many files in a thousand once.
    #[must_use]
    pub fn new(specs: Vec<NodeSpec>, faults_permille: u32) -> Self {
        let node = |spec: NodeSpec| {
            let node = SimulatedNode { up: true, run: 1, orders: BTreeMap::new(), sent: 0, spec };
            (node.spec.name.clone(), node)
        };
        let nodes = specs.into_iter().map(node).collect();
        let faults = FaultInjector { permille: faults_permille, failed: HashSet::new() };
        Self { nodes, faults, moved: (0, 0) }
    }

    /// Sets these nodes down and all others up; a node that goes down loses its orders.
    pub fn set_down(&mut self, down: &[&str]) {
        for (name, node) in &mut self.nodes {
            let up = !down.contains(&name.as_str());
            if node.up && !up {
                node.orders.clear();
                node.run += 1;
            }
            node.up = up;
        }
    }

    /// Advances time by `elapsed_ms`.
    pub fn advance(&mut self, elapsed_ms: u64) {
        let receiving: HashSet<OrderId> = self
            .nodes
            .values()
            .flat_map(|node| {
                node.orders.iter().filter(|(_, order_state)| order_state.files.is_none())
            })
            .map(|(order, _)| *order)
            .collect();
        for node in self.nodes.values_mut() {
            for (order, order_state) in &mut node.orders {
                let there = receiving.contains(&order.peer());
                let rate = order_state.settings.rate_bps.filter(|_| there).unwrap_or(0);
                let (bytes, files) = order_state.advance(rate, elapsed_ms, &mut self.faults);
                node.sent += bytes;
                self.moved = (self.moved.0 + bytes, self.moved.1 + files);
            }
        }
    }

    /// Returns the reports of the nodes that are up.
    #[must_use]
    pub fn reports(&self) -> Vec<(String, Report)> {
        let up = self.nodes.iter().filter(|(_, node)| node.up);
        up.map(|(name, node)| (name.clone(), node.report())).collect()
    }

    /// Applies instructions at a node; `fetch` returns the content of a new order.
    ///
    /// # Errors
    /// Errors of `fetch`.
    pub fn apply_instructions(
        &mut self,
        host: &str,
        instructions: &Instructions,
        mut fetch: impl FnMut(&str, OrderId) -> Result<Option<OrderContent>, ControllerFailure>,
    ) -> Result<(), ControllerFailure> {
        let Some(node) = self.nodes.get_mut(host) else { return Ok(()) };
        for known in &instructions.acknowledged {
            let Some(order_state) = node.orders.get_mut(&known.order) else { continue };
            let fresh = known.outcomes.saturating_sub(order_state.first_outcome) as usize;
            order_state.outcomes.drain(..fresh.min(order_state.outcomes.len()));
            order_state.first_outcome = order_state.first_outcome.max(known.outcomes);
            if known.end {
                node.orders.remove(&known.order);
            }
        }
        let active: BTreeMap<OrderId, &OrderSettings> =
            instructions.orders.iter().map(|one| (one.order, &one.settings)).collect();
        node.orders.retain(|order, _| active.contains_key(order));
        for (order, settings) in active {
            if let Some(order_state) = node.orders.get_mut(&order) {
                order_state.settings = settings.clone();
                continue;
            }
            let Some(work) = fetch(host, order)? else { continue };
            let files = match work {
                OrderContent::Send(files) => Some(files),
                OrderContent::Receive => None,
            };
            let order_state = NodeOrder {
                files,
                settings: settings.clone(),
                next: 0,
                part: 0,
                moved: 0,
                measured_bps: 0,
                outcomes: Vec::new(),
                first_outcome: 0,
            };
            node.orders.insert(order, order_state);
        }
        Ok(())
    }
}

impl NodeOrder {
    /// Sends at this rate for `ms`. Returns the bytes sent and the files completed.
    fn advance(&mut self, rate_bps: u64, ms: u64, faults: &mut FaultInjector) -> (u64, u64) {
        let Some(files) = &self.files else { return (0, 0) };
        let mut left = u64::try_from(u128::from(rate_bps) * u128::from(ms) / 8000).unwrap_or(0);
        let (all, mut placed) = (left, 0);
        while left > 0
            && let Some(OrderFile { id, bytes: size }) = files.get(self.next)
        {
            let more = (size - self.part).min(left);
            (self.part, left) = (self.part + more, left - more);
            if self.part < *size {
                break;
            }
            let fault = faults.happens_to(*id).then(|| OrderFault {
                kind: FaultKind::Transient,
                text: "connection reset".to_owned(),
            });
            placed += u64::from(fault.is_none());
            self.outcomes.push(ReportedOutcome {
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

impl SimulatedNode {
    fn report(&self) -> Report {
        let orders = self.orders.iter().map(|(order, order_state)| OrderReport {
            order: *order,
            run: self.run,
            phase: if order_state.ended() { OrderPhase::Ended } else { OrderPhase::Running },
            moved_bytes: order_state.moved,
            bits_per_second: order_state.measured_bps,
            rate_bps: order_state.settings.rate_bps,
            streams: 8,
            bound_by: "rate".to_owned(),
            transport: "tcp".to_owned(),
            outcomes_from: order_state.first_outcome,
            outcomes: order_state.outcomes.clone(),
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
        let mut faults = FaultInjector { permille: 100, failed: HashSet::new() };
        let first = (0..100_000).filter(|file| faults.happens_to(*file)).count();
        assert!((9_500..10_500).contains(&first), "{first}");
        assert_eq!((0..100_000).filter(|file| faults.happens_to(*file)).count(), 0);
        let mut all = FaultInjector { permille: 1000, failed: HashSet::new() };
        assert!((0..100).all(|file| all.happens_to(file)) && !all.happens_to(7));
    }
}
