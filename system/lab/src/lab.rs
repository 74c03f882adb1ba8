//! A running lab: its nodes, links and circuits.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use penstock_sys::namespace::NetworkNamespace;
use penstock_topology::{LinkId, NodeId};
use std::time::Duration;

use crate::backend::{Backend, EmulatedEnd, EmulatedLink, Lane};
use crate::circuit::ActiveCircuit;
use crate::direction::{DirectionCounters, timing_error_max};
use crate::line::Impairment;
use crate::node::RunningNode;
use crate::plan::{LabPlan, Party, PlanError, PlannedPort};
use crate::timing_error::TimingErrorCounts;

/// Hosts, switches and links of a topology; dropping it removes them.
pub struct Lab {
    plan: LabPlan,
    backend: Backend,
    // Dropped before the nodes: threads stop before their namespaces are removed.
    links: Vec<RunningLink>,
    nodes: Vec<Arc<RunningNode>>,
    /// By name.
    circuits: BTreeMap<String, ActiveCircuit>,
}

struct RunningLink {
    wire: Box<dyn EmulatedLink>,
    wanted: [Impairment; 2],
    /// Snapshot since which timing errors count.
    timing_baseline: [Option<TimingErrorCounts>; 2],
    /// Counters of calibration traffic.
    uncounted: [DirectionCounters; 2],
    /// Counters at the start of a running calibration.
    paused_at: Option<[DirectionCounters; 2]>,
}

/// A lab that cannot be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This machine does not support the backend.
    #[error("no {backend} on this machine: {reason}")]
    Backend {
        /// The requested backend.
        backend: Backend,
        /// The system's error.
        reason: io::Error,
    },
    /// A host or switch cannot be created.
    #[error("{node}: {reason}")]
    Node {
        /// Name of the node.
        node: String,
        /// The system's error.
        reason: io::Error,
    },
    /// A link cannot be created or changed.
    #[error("link {link}: {reason}")]
    Link {
        /// Name of the link.
        link: String,
        /// The system's error.
        reason: io::Error,
    },
    /// The topology does not allow the request.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// State of one direction of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectionStatus {
    /// Configured impairment of the direction.
    pub wanted: Impairment,
    /// Counters since creation, without calibration traffic.
    pub counters: DirectionCounters,
    /// Median timing error of its packets.
    pub late_p50: Option<Duration>,
    /// 99th percentile of the timing error.
    pub late_p99: Option<Duration>,
    /// Largest timing error of its packets.
    pub late_max: Option<Duration>,
    /// True if the 99th percentile invalidates measurements over this direction.
    pub disturbed: bool,
}

impl Lab {
    /// Creates a lab; `seed` determines losses and jitter.
    ///
    /// # Errors
    /// The kernel's error; everything created before is removed.
    pub fn new(plan: LabPlan, backend: Backend, seed: u64) -> Result<Self, LabError> {
        let mut lab =
            Self { plan, backend, links: Vec::new(), nodes: Vec::new(), circuits: BTreeMap::new() };
        for node in &lab.plan.nodes {
            let made = RunningNode::new(node.kind);
            let made = made.map_err(|reason| LabError::Node { node: node.name.clone(), reason })?;
            lab.nodes.push(Arc::new(made));
        }
        for number in 0..lab.plan.topology.links.len() {
            let id = LinkId(number);
            let wanted = [lab.plan.impairment(id); 2];
            let made = lab.join(id, seed).and_then(|mut wire| {
                wire.set(wanted)?;
                let timing_baseline = [None, None];
                Ok(RunningLink {
                    wire,
                    wanted,
                    timing_baseline,
                    uncounted: Default::default(),
                    paused_at: None,
                })
            });
            let made = made.map_err(|source| lab.link_error(id, source))?;
            lab.links.push(made);
        }
        for (node, plan) in lab.nodes.iter().zip(&lab.plan.nodes) {
            node.install_routes(plan)
                .map_err(|reason| LabError::Node { node: plan.name.clone(), reason })?;
        }
        Ok(lab)
    }

    fn join(&self, link: LinkId, seed: u64) -> io::Result<Box<dyn EmulatedLink>> {
        let place = |side| {
            let (node, number) = self.plan.port_of(link, side);
            let port = &self.plan.nodes[node.0].ports[number];
            EmulatedEnd { node: &self.nodes[node.0], port, number }
        };
        self.backend.join(&self.plan.topology.links[link.0].name, seed, [place(0), place(1)])
    }

    pub(crate) fn link_error(&self, link: LinkId, reason: io::Error) -> LabError {
        LabError::Link { link: self.plan.topology.links[link.0].name.clone(), reason }
    }

    /// Plan of the lab.
    #[must_use]
    pub const fn plan(&self) -> &LabPlan {
        &self.plan
    }

    /// Backend of its links.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Network namespace of a node.
    #[must_use]
    pub fn namespace(&self, node: NodeId) -> &NetworkNamespace {
        &self.nodes[node.0].namespace
    }

    /// Configured impairments of both directions; the first starts at the first end.
    #[must_use]
    pub fn wanted(&self, link: LinkId) -> [Impairment; 2] {
        self.links[link.0].wanted
    }

    /// Changes the impairments of a link while traffic runs.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set(&mut self, link: LinkId, wanted: [Impairment; 2]) -> Result<(), LabError> {
        let one = &mut self.links[link.0];
        match one.wire.set(wanted) {
            Ok(()) => {
                one.wanted = wanted;
                Ok(())
            }
            Err(source) => Err(self.link_error(link, source)),
        }
    }

    /// Pins traffic between two hosts to these links, in both directions.
    ///
    /// # Errors
    /// When the links are not a path, or the kernel's error.
    pub fn pin(&mut self, from: Party, to: Party, links: &[LinkId]) -> Result<(), LabError> {
        for pin in self.plan.pin(from, to, links)? {
            let plan = &self.plan.nodes[pin.node.0];
            let port = &plan.ports[pin.port];
            self.nodes[pin.node.0]
                .pin(pin.from, pin.to, pin.via, port)
                .map_err(|reason| LabError::Node { node: plan.name.clone(), reason })?;
        }
        Ok(())
    }

    pub(crate) const fn circuits(&self) -> &BTreeMap<String, ActiveCircuit> {
        &self.circuits
    }

    pub(crate) const fn circuits_mut(&mut self) -> &mut BTreeMap<String, ActiveCircuit> {
        &mut self.circuits
    }

    pub(crate) fn set_lanes(
        &mut self,
        link: LinkId,
        number: u16,
        lanes: Option<[Lane; 2]>,
    ) -> Result<(), LabError> {
        let set = self.links[link.0].wire.set_lanes(number, lanes);
        set.map_err(|source| self.link_error(link, source))
    }

    pub(crate) fn lane_counters(
        &self,
        link: LinkId,
        number: u16,
    ) -> Option<[DirectionCounters; 2]> {
        self.links[link.0].wire.lane_counters(number)
    }

    /// Calls `work` with a port of a node.
    pub(crate) fn at_port(
        &self,
        node: NodeId,
        port: usize,
        work: impl FnOnce(&RunningNode, &PlannedPort) -> io::Result<()>,
    ) -> Result<(), LabError> {
        let plan = &self.plan.nodes[node.0];
        let done = work(&self.nodes[node.0], &plan.ports[port]);
        done.map_err(|reason| LabError::Node { node: plan.name.clone(), reason })
    }

    /// Reads the state of a link.
    ///
    /// # Errors
    /// The kernel's error for its counters.
    pub fn status(&self, link: LinkId) -> Result<[DirectionStatus; 2], LabError> {
        let one = &self.links[link.0];
        let counted = || one.wire.counters().map_err(|source| self.link_error(link, source));
        let counters = one.paused_at.map_or_else(counted, Ok)?;
        let timing_error = one.wire.timing_error();
        Ok([0, 1].map(|side| {
            let wanted = one.wanted[side];
            let counted =
                timing_error[side].as_ref().map(|counted| match &one.timing_baseline[side] {
                    Some(timing_baseline) => counted.since(timing_baseline),
                    None => counted.clone(),
                });
            let late = |share| counted.as_ref().and_then(|counted| counted.quantile(share));
            let late_p99 = late(0.99);
            DirectionStatus {
                wanted,
                counters: counters[side].since(one.uncounted[side]),
                late_p50: late(0.5),
                late_p99,
                late_max: late(1.0),
                disturbed: late_p99.is_some_and(|late| late > timing_error_max(wanted.delay)),
            }
        }))
    }

    /// Restarts the timing error statistics of these links for another measurement.
    pub fn reset_timing_error(&mut self, links: &[LinkId]) {
        for link in links {
            let one = &mut self.links[link.0];
            one.timing_baseline = one.wire.timing_error();
        }
    }

    /// Freezes the counters of these links during a calibration.
    pub(crate) fn pause_counters(&mut self, links: &[LinkId]) {
        for link in links {
            let one = &mut self.links[link.0];
            one.paused_at = one.paused_at.or_else(|| one.wire.counters().ok());
        }
    }

    /// Unfreezes the counters of all links.
    pub(crate) fn resume_counters(&mut self) {
        for one in &mut self.links {
            if let (Some(then), Ok(now)) = (one.paused_at.take(), one.wire.counters()) {
                for side in [0, 1] {
                    one.uncounted[side] = one.uncounted[side].with(now[side].since(then[side]));
                }
            }
        }
    }
}

impl std::fmt::Debug for Lab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").field("name", &self.plan.topology.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
