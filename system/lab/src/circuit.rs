//! Circuits: a part of the rate of each link of a way, for packets between addresses that are the circuit's own.
//!
//! For: what a circuit becomes ([`CircuitPlan`], pure), making and releasing it in a lab that runs. Hosts at both ends get an
//! address each, which nothing uses but who binds it; switches on the way know where these addresses are. What the
//! circuit has of a link nobody else has, used or not; the way back has a twentieth, for acknowledgements. The links
//! between a host and the circuit's first switch are shared as ever, and a host that does not reach that switch has no
//! part in it.
//!
//! Fails with the link or host and the reason; nothing is left of a circuit that could not be made whole.

use std::net::Ipv6Addr;

use penstock_topology::paths::{self, Path};
use penstock_topology::{LinkId, NodeId};
use penstock_units::BitRate;

use crate::backend::Lane;
use crate::direction::Counters;
use crate::lab::{Lab, LabError};
use crate::plan::{Plan, PlanError};

/// Circuits of a lab. Their networks are `fd70:6e73:8000::/64` and those that follow, two for each.
const CIRCUITS_MAX: u16 = 0x3FFF;
/// Of the rate, for the way back.
const BACK_SHARE: u64 = 20;
/// The least that a way back has.
const BACK_BPS_MIN: u64 = 1_000_000;

/// A step of a circuit's way: at this node packets to that network leave by this port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    node: NodeId,
    to: (Ipv6Addr, u8),
    via: Ipv6Addr,
    port: usize,
}

/// What a circuit becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitPlan {
    /// Links with their lanes, the first of their own first end.
    lanes: Vec<(LinkId, [Lane; 2])>,
    /// Hosts with the ports that get addresses: those at its begin, then those at its end.
    addresses: Vec<(NodeId, usize, Ipv6Addr)>,
    steps: Vec<Step>,
}

/// The network of a side of a circuit.
fn network(number: u16, side: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xFD70, 0x6E73, 0x8000 + 2 * number + side, 0, 0, 0, 0, 0)
}

fn host_address(number: u16, side: u16, host: usize) -> Ipv6Addr {
    Ipv6Addr::from_bits(network(number, side).to_bits() + host as u128 + 1)
}

impl CircuitPlan {
    /// For those of the hosts that reach the ends of links that follow each other.
    ///
    /// # Errors
    /// When the links are no way, or no host reaches an end otherwise than over it.
    pub fn new(
        plan: &Plan,
        number: u16,
        rate: BitRate,
        [from, to]: [&[NodeId]; 2],
        links: &[LinkId],
    ) -> Result<Self, PlanError> {
        let topology = &plan.topology;
        let name = |node: NodeId| topology.nodes[node.0].name.as_str();
        let fault = |text: String| Err(PlanError::Way(text));
        let mut circuit = Self { lanes: Vec::new(), addresses: Vec::new(), steps: Vec::new() };
        if links.is_empty() || from.is_empty() || to.is_empty() || rate.0 == 0 {
            return fault("a circuit has a rate, a link, and a host at either end".to_owned());
        }
        let way = walk(plan, from, links)?;
        let back = BitRate((rate.0 / BACK_SHARE).max(BACK_BPS_MIN));
        for (link, node) in links.iter().zip(&way) {
            let there = Lane { to: network(number, 1), rate };
            let here = Lane { to: network(number, 0), rate: back };
            let forward = topology.links[link.0].ends[0].node == *node;
            circuit.lanes.push((*link, if forward { [there, here] } else { [here, there] }));
        }
        for (side, hosts, end) in [(0, from, way[0]), (1, to, way[way.len() - 1])] {
            let mut count = 0;
            for host in hosts {
                let reach = paths::shortest(topology, *host, end, |link| !links.contains(&link));
                let apart = |path: &Path| {
                    let beside = &path.nodes[..path.nodes.len() - 1];
                    !path.links.is_empty() && !beside.iter().any(|node| way.contains(node))
                };
                if let Some(path) = reach.filter(apart) {
                    circuit.host(plan, (number, side, count), &path);
                    count += 1;
                }
            }
            if count == 0 {
                let hosts: Vec<&str> = hosts.iter().map(|host| name(*host)).collect();
                let hosts = hosts.join(", ");
                return fault(format!("{hosts}: none reaches {} beside the circuit", name(end)));
            }
        }
        circuit.lead(plan, network(number, 1), &way, links);
        let (back, turned): (Vec<_>, Vec<_>) =
            (way.iter().rev().copied().collect(), links.iter().rev().copied().collect());
        circuit.lead(plan, network(number, 0), &back, &turned);
        Ok(circuit)
    }

    /// Packets to this network take this way; of a node that several hosts share it is said once.
    fn lead(&mut self, plan: &Plan, to: Ipv6Addr, way: &[NodeId], links: &[LinkId]) {
        for (link, node) in links.iter().zip(way) {
            self.step(plan, *node, *link, (to, 64));
        }
    }

    fn step(&mut self, plan: &Plan, node: NodeId, link: LinkId, to: (Ipv6Addr, u8)) {
        let side = usize::from(plan.topology.links[link.0].ends[1].node == node);
        let (_, port) = plan.port_of(link, side);
        let (there, other) = plan.port_of(link, 1 - side);
        let via = plan.nodes[there.0].ports[other].addresses.v6;
        let step = Step { node, to, via, port };
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// A host's address, and the ways to it from the circuit's end and to the other side from it.
    fn host(&mut self, plan: &Plan, (number, side, count): (u16, u16, usize), path: &Path) {
        let address = host_address(number, side, count);
        for (link, pair) in path.links.iter().zip(path.nodes.windows(2)) {
            self.step(plan, pair[0], *link, (network(number, 1 - side), 64));
            self.step(plan, pair[1], *link, (address, 128));
        }
        let (host, first) = (path.nodes[0], path.links[0]);
        let at = usize::from(plan.topology.links[first.0].ends[1].node == host);
        self.addresses.push((host, plan.port_of(first, at).1, address));
    }
}

/// The nodes of a way of links that begins at the end of the first link which the next one does not touch; where there is
/// one link, at the end which is nearer to a host.
fn walk(plan: &Plan, near: &[NodeId], links: &[LinkId]) -> Result<Vec<NodeId>, PlanError> {
    let topology = &plan.topology;
    let ends = |link: LinkId| topology.links[link.0].ends.map(|end| end.node);
    let [one, other] = ends(links[0]);
    let start = match links.get(1) {
        Some(next) if ends(*next).contains(&one) => other,
        Some(_) => one,
        None => {
            let far = |to| {
                let from = |host| paths::shortest(topology, host, to, |link| link != links[0]);
                let paths = near.iter().filter_map(|host| from(*host));
                paths.map(|path| path.links.len()).min().unwrap_or(usize::MAX)
            };
            if far(other) < far(one) { other } else { one }
        }
    };
    let mut way = vec![start];
    for link in links {
        let at = way[way.len() - 1];
        let next = topology.links[link.0].across(at).filter(|next| !way.contains(next));
        let Some(next) = next else {
            let (link, node) = (&topology.links[link.0].name, &topology.nodes[at.0].name);
            return Err(PlanError::Way(format!(
                "the way does not hold together: link {link} does not go on from {node}"
            )));
        };
        way.push(next);
    }
    Ok(way)
}

/// A circuit that stands.
#[derive(Debug, Clone)]
pub(crate) struct Circuit {
    pub(crate) number: u16,
    pub(crate) rate: BitRate,
    plan: CircuitPlan,
}

/// What a circuit has counted on one of its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneStatus {
    /// The link.
    pub link: LinkId,
    /// Nothing passes it.
    pub is_cut: bool,
    /// Along the circuit and back.
    pub counters: [Counters; 2],
}

impl Lab {
    /// Makes a circuit, in the place of the one of this name if there is one, which keeps its addresses.
    ///
    /// # Errors
    /// Why it cannot be. The one before stays where the way is none; otherwise there is none of this name then.
    pub fn make_circuit(
        &mut self,
        name: &str,
        rate: BitRate,
        ends: [&[NodeId]; 2],
        links: &[LinkId],
    ) -> Result<(), LabError> {
        let held = self.circuits().get(name).map(|circuit| circuit.number);
        let taken: Vec<u16> = self.circuits().values().map(|circuit| circuit.number).collect();
        // Whoever has bound its addresses keeps them.
        let number = held.or_else(|| (0..CIRCUITS_MAX).find(|number| !taken.contains(number)));
        let number = number.ok_or_else(|| PlanError::Way("no more circuits".to_owned()))?;
        let plan = CircuitPlan::new(self.plan(), number, rate, ends, links)?;
        if let Some(link) = links.iter().find(|link| self.wanted(**link).iter().any(|one| one.cut))
        {
            let link = &self.plan().topology.links[link.0].name;
            return Err(PlanError::Way(format!("link {link} is cut")).into());
        }
        if self.circuits().get(name).is_some_and(|circuit| circuit.plan == plan) {
            return Ok(());
        }
        self.release_circuit(name)?;
        let circuit = Circuit { number, rate, plan };
        let made = self.put_up(&circuit);
        if made.is_err() {
            self.take_down(&circuit);
        } else {
            self.circuits_mut().insert(name.to_owned(), circuit);
        }
        made
    }

    /// Releases a circuit; none of this name is no error.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn release_circuit(&mut self, name: &str) -> Result<(), LabError> {
        let Some(circuit) = self.circuits_mut().remove(name) else { return Ok(()) };
        self.take_down(&circuit);
        Ok(())
    }

    fn put_up(&mut self, circuit: &Circuit) -> Result<(), LabError> {
        for (link, lanes) in &circuit.plan.lanes {
            self.set_lanes(*link, circuit.number, Some(*lanes))?;
        }
        for step in &circuit.plan.steps {
            self.at_port(step.node, step.port, |node, port| {
                node.lead((step.to.0.into(), step.to.1), step.via.into(), port, true)
            })?;
        }
        for (host, port, address) in &circuit.plan.addresses {
            self.at_port(*host, *port, |node, port| node.answer_to(*address, port, true))?;
        }
        Ok(())
    }

    /// As far as it stands: what is not there any more is what is wanted.
    fn take_down(&mut self, circuit: &Circuit) {
        let told = |result: Result<(), LabError>| {
            if let Err(error) = result {
                tracing::debug!("of a circuit that is released: {error}");
            }
        };
        for (host, port, address) in &circuit.plan.addresses {
            told(self.at_port(*host, *port, |node, port| node.answer_to(*address, port, false)));
        }
        for step in &circuit.plan.steps {
            told(self.at_port(step.node, step.port, |node, port| {
                node.lead((step.to.0.into(), step.to.1), step.via.into(), port, false)
            }));
        }
        for (link, _) in &circuit.plan.lanes {
            told(self.set_lanes(*link, circuit.number, None));
        }
    }

    /// Addresses of a circuit by the names of their hosts; none where there is no such circuit.
    #[must_use]
    pub fn circuit_addresses(&self, name: &str) -> Option<Vec<(NodeId, Ipv6Addr)>> {
        let circuit = self.circuits().get(name)?;
        Some(circuit.plan.addresses.iter().map(|(host, _, address)| (*host, *address)).collect())
    }

    /// How each link of a circuit is; none where there is no such circuit.
    #[must_use]
    pub fn circuit_status(&self, name: &str) -> Option<(BitRate, Vec<LaneStatus>)> {
        let circuit = self.circuits().get(name)?;
        let lanes = circuit.plan.lanes.iter().map(|(link, lanes)| {
            let [one, other] = self.lane_counters(*link, circuit.number).unwrap_or_default();
            let forward = lanes[0].to == network(circuit.number, 1);
            LaneStatus {
                link: *link,
                is_cut: self.wanted(*link).iter().any(|one| one.cut),
                counters: if forward { [one, other] } else { [other, one] },
            }
        });
        Some((circuit.rate, lanes.collect()))
    }
}

#[cfg(test)]
mod tests;
