//! A lab that runs.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use penstock_sys::namespace::NetworkNamespace;
use penstock_topology::{LinkId, NodeId};
use std::time::Duration;

use crate::backend::{Backend, Lane, Place, Wire};
use crate::circuit::Circuit;
use crate::direction::{Counters, late_from};
use crate::lateness::Counted;
use crate::line::Impairment;
use crate::node::Node;
use crate::plan::{Party, Plan, PlanError, Port};

/// Hosts, switches and links, alive until it is dropped.
pub struct Lab {
    plan: Plan,
    backend: Backend,
    // Before the nodes: lines stop before their namespaces go.
    links: Vec<Link>,
    nodes: Vec<Arc<Node>>,
    /// By their names.
    circuits: BTreeMap<String, Circuit>,
}

struct Link {
    wire: Box<dyn Wire>,
    wanted: [Impairment; 2],
    /// Lateness that does not count any more.
    forgiven: [Option<Counted>; 2],
    /// What it counted of our own measurements.
    uncounted: [Counters; 2],
    /// While one runs: what it had counted before.
    stopped_at: Option<[Counters; 2]>,
}

/// What went wrong in making or changing a lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The machine has no means.
    #[error("no {backend} on this machine: {reason}")]
    Backend {
        /// Which was tried.
        backend: Backend,
        /// Why not.
        reason: io::Error,
    },
    /// A host or switch cannot be made.
    #[error("{node}: {reason}")]
    Node {
        /// Its name.
        node: String,
        /// Why not.
        reason: io::Error,
    },
    /// A link cannot be made or changed.
    #[error("link {link}: {reason}")]
    Link {
        /// Its name.
        link: String,
        /// Why not.
        reason: io::Error,
    },
    /// What was asked for is not in the topology.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A direction of a link as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkStatus {
    /// What it does.
    pub wanted: Impairment,
    /// What it counted since it was made.
    pub counters: Counters,
    /// Half of the packets were later than they should by no more than this.
    pub late_p50: Option<Duration>,
    /// 99 of 100.
    pub late_p99: Option<Duration>,
    /// All.
    pub late_max: Option<Duration>,
    /// Whether so many were so late that what was measured over it does not hold.
    pub disturbed: bool,
}

impl Lab {
    /// Makes a lab; the seed is that of its losses and jitter.
    ///
    /// # Errors
    /// Why it cannot be. Nothing is left of it then.
    pub fn new(plan: Plan, backend: Backend, seed: u64) -> Result<Self, LabError> {
        let mut lab =
            Self { plan, backend, links: Vec::new(), nodes: Vec::new(), circuits: BTreeMap::new() };
        for node in &lab.plan.nodes {
            let made = Node::new(node.kind);
            let made = made.map_err(|reason| LabError::Node { node: node.name.clone(), reason })?;
            lab.nodes.push(Arc::new(made));
        }
        for number in 0..lab.plan.topology.links.len() {
            let id = LinkId(number);
            let wanted = [lab.plan.impairment(id); 2];
            let made = lab.join(id, seed).and_then(|mut wire| {
                wire.set(wanted)?;
                let forgiven = [None, None];
                Ok(Link { wire, wanted, forgiven, uncounted: Default::default(), stopped_at: None })
            });
            let made = made.map_err(|source| lab.link_error(id, source))?;
            lab.links.push(made);
        }
        for (node, plan) in lab.nodes.iter().zip(&lab.plan.nodes) {
            node.route(plan)
                .map_err(|reason| LabError::Node { node: plan.name.clone(), reason })?;
        }
        Ok(lab)
    }

    fn join(&self, link: LinkId, seed: u64) -> io::Result<Box<dyn Wire>> {
        let place = |side| {
            let (node, number) = self.plan.port_of(link, side);
            let port = &self.plan.nodes[node.0].ports[number];
            Place { node: &self.nodes[node.0], port, number }
        };
        self.backend.join(&self.plan.topology.links[link.0].name, seed, [place(0), place(1)])
    }

    pub(crate) fn link_error(&self, link: LinkId, reason: io::Error) -> LabError {
        LabError::Link { link: self.plan.topology.links[link.0].name.clone(), reason }
    }

    /// What it was made of.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// By what its links do what they do.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// The namespace of a node.
    #[must_use]
    pub fn namespace(&self, node: NodeId) -> &NetworkNamespace {
        &self.nodes[node.0].namespace
    }

    /// What the directions of a link do; the first is from its first end.
    #[must_use]
    pub fn wanted(&self, link: LinkId) -> [Impairment; 2] {
        self.links[link.0].wanted
    }

    /// Has a link do something else from now on, while traffic runs.
    ///
    /// # Errors
    /// The kernel's refusal.
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

    /// Sends traffic between two hosts over these links from now on, there and back.
    ///
    /// # Errors
    /// When they are no way, or the kernel refuses.
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

    pub(crate) const fn circuits(&self) -> &BTreeMap<String, Circuit> {
        &self.circuits
    }

    pub(crate) const fn circuits_mut(&mut self) -> &mut BTreeMap<String, Circuit> {
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

    pub(crate) fn lane_counters(&self, link: LinkId, number: u16) -> Option<[Counters; 2]> {
        self.links[link.0].wire.lane_counters(number)
    }

    /// Does something at a port of a node.
    pub(crate) fn at_port(
        &self,
        node: NodeId,
        port: usize,
        work: impl FnOnce(&Node, &Port) -> io::Result<()>,
    ) -> Result<(), LabError> {
        let plan = &self.plan.nodes[node.0];
        let done = work(&self.nodes[node.0], &plan.ports[port]);
        done.map_err(|reason| LabError::Node { node: plan.name.clone(), reason })
    }

    /// How a link is.
    ///
    /// # Errors
    /// When the kernel does not tell its counters.
    pub fn status(&self, link: LinkId) -> Result<[LinkStatus; 2], LabError> {
        let one = &self.links[link.0];
        let counted = || one.wire.counters().map_err(|source| self.link_error(link, source));
        let counters = one.stopped_at.map_or_else(counted, Ok)?;
        let lateness = one.wire.lateness();
        Ok([0, 1].map(|side| {
            let wanted = one.wanted[side];
            let counted = lateness[side].as_ref().map(|counted| match &one.forgiven[side] {
                Some(forgiven) => counted.since(forgiven),
                None => counted.clone(),
            });
            let late = |share| counted.as_ref().and_then(|counted| counted.quantile(share));
            let late_p99 = late(0.99);
            LinkStatus {
                wanted,
                counters: counters[side].since(one.uncounted[side]),
                late_p50: late(0.5),
                late_p99,
                late_max: late(1.0),
                disturbed: late_p99.is_some_and(|late| late > late_from(wanted.delay)),
            }
        }))
    }

    /// Forgets how late packets of these links were: what comes is another measurement.
    pub fn forgive(&mut self, links: &[LinkId]) {
        for link in links {
            let one = &mut self.links[link.0];
            one.forgiven = one.wire.lateness();
        }
    }

    /// From now on these links seem to count nothing: what passes them is a measurement of ours.
    pub(crate) fn stop_counting(&mut self, links: &[LinkId]) {
        for link in links {
            let one = &mut self.links[link.0];
            one.stopped_at = one.stopped_at.or_else(|| one.wire.counters().ok());
        }
    }

    /// All links count again.
    pub(crate) fn go_on_counting(&mut self) {
        for one in &mut self.links {
            if let (Some(then), Ok(now)) = (one.stopped_at.take(), one.wire.counters()) {
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
