//! Circuits: a reserved rate on each link of a path, for packets between addresses of the circuit.
//!
//! For: planning a circuit ([`CircuitPlan`], pure), creating and releasing it in a running lab. Hosts at both ends get a
//! deprecated address each, used only by sockets that bind it; switches on the path get routes to these addresses. The
//! reservation is exclusive, used or not; the reverse direction gets a twentieth, for acknowledgements. The links between
//! a host and the circuit's first switch stay shared; a host that does not reach that switch gets no address.
//!
//! Fails with the link or host and the reason; a circuit that fails halfway is removed.

use std::net::Ipv6Addr;

use penstock_topology::paths::{self, Path};
use penstock_topology::{LinkId, NodeId};
use penstock_units::BitRate;

use crate::backend::Lane;
use crate::direction::DirectionCounters;
use crate::lab::{Lab, LabError};
use crate::plan::{LabPathError, LabPlan, PlanError};

/// Circuits per lab. Their networks are `fd70:6e73:8000::/64` and following, two for each.
pub(crate) const CIRCUITS_MAX: u16 = 0x3FFF;
/// Divisor of the rate for the reverse direction.
const BACK_SHARE: u64 = 20;
/// Minimum rate of the reverse direction.
const BACK_BPS_MIN: u64 = 1_000_000;

/// A route of a circuit: at `node`, packets to the network leave by `port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CircuitRoute {
    node: NodeId,
    to: (Ipv6Addr, u8),
    via: Ipv6Addr,
    port: usize,
}

/// Lanes, addresses and routes of a circuit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitPlan {
    /// Links with the lanes of both directions, in the order of the link's ends.
    lanes: Vec<(LinkId, [Lane; 2])>,
    /// Hosts, ports and their circuit addresses, first those at the circuit's start.
    addresses: Vec<(NodeId, usize, Ipv6Addr)>,
    steps: Vec<CircuitRoute>,
}

/// Network of one side of a circuit.
fn network(number: u16, side: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xFD70, 0x6E73, 0x8000 + 2 * number + side, 0, 0, 0, 0, 0)
}

fn host_address(number: u16, side: u16, host: usize) -> Ipv6Addr {
    Ipv6Addr::from_bits(network(number, side).to_bits() + host as u128 + 1)
}

impl CircuitPlan {
    /// Plans a circuit over connected links, for the hosts that reach its ends by other links.
    ///
    /// # Errors
    /// When the links are not a path, or an end is reached by no host.
    pub fn new(
        plan: &LabPlan,
        number: u16,
        rate: BitRate,
        [from, to]: [&[NodeId]; 2],
        links: &[LinkId],
    ) -> Result<Self, PlanError> {
        let topology = &plan.topology;
        let name = |node: NodeId| topology.nodes[node.0].name.as_str();
        let mut circuit = Self { lanes: Vec::new(), addresses: Vec::new(), steps: Vec::new() };
        if links.is_empty() || from.is_empty() || to.is_empty() || rate.0 == 0 {
            return Err(LabPathError::CircuitTerms.into());
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
                let end = name(end).to_owned();
                return Err(LabPathError::Unreached { hosts, end }.into());
            }
        }
        circuit.route_along(plan, network(number, 1), &way, links);
        let (back, turned): (Vec<_>, Vec<_>) =
            (way.iter().rev().copied().collect(), links.iter().rev().copied().collect());
        circuit.route_along(plan, network(number, 0), &back, &turned);
        Ok(circuit)
    }

    /// Adds routes to this network along the path.
    fn route_along(&mut self, plan: &LabPlan, to: Ipv6Addr, way: &[NodeId], links: &[LinkId]) {
        for (link, node) in links.iter().zip(way) {
            self.step(plan, *node, *link, (to, 64));
        }
    }

    fn step(&mut self, plan: &LabPlan, node: NodeId, link: LinkId, to: (Ipv6Addr, u8)) {
        let side = usize::from(plan.topology.links[link.0].ends[1].node == node);
        let (_, port) = plan.port_of(link, side);
        let (there, other) = plan.port_of(link, 1 - side);
        let via = plan.nodes[there.0].ports[other].addresses.v6;
        let step = CircuitRoute { node, to, via, port };
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// Adds a host's address, and the routes between the host and the circuit's end.
    fn host(&mut self, plan: &LabPlan, (number, side, count): (u16, u16, usize), path: &Path) {
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

/// Returns the nodes along the links. The path starts at the end of the first link that the second does not share; a
/// single link starts at the end nearer to a host.
fn walk(plan: &LabPlan, near: &[NodeId], links: &[LinkId]) -> Result<Vec<NodeId>, PlanError> {
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
            let (link, node) = (link.clone(), node.clone());
            return Err(LabPathError::Discontinued { link, node }.into());
        };
        way.push(next);
    }
    Ok(way)
}

/// A circuit in a running lab.
#[derive(Debug, Clone)]
pub(crate) struct ActiveCircuit {
    pub(crate) number: u16,
    pub(crate) rate: BitRate,
    plan: CircuitPlan,
}

/// State and counters of a circuit on one of its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneStatus {
    /// Index in the topology.
    pub link: LinkId,
    /// True if the link is cut.
    pub is_cut: bool,
    /// Forward, then reverse direction.
    pub counters: [DirectionCounters; 2],
}

impl Lab {
    /// Creates a circuit, or replaces the one of this name, which keeps its addresses.
    ///
    /// # Errors
    /// For an invalid path, where an existing circuit stays, and for the kernel's errors, after which it is removed.
    pub fn make_circuit(
        &mut self,
        name: &str,
        rate: BitRate,
        ends: [&[NodeId]; 2],
        links: &[LinkId],
    ) -> Result<(), LabError> {
        let held = self.circuits().get(name).map(|circuit| circuit.number);
        let taken: Vec<u16> = self.circuits().values().map(|circuit| circuit.number).collect();
        // Programs that bound its addresses keep them.
        let number = held.or_else(|| (0..CIRCUITS_MAX).find(|number| !taken.contains(number)));
        let number = number.ok_or(PlanError::Path(LabPathError::CircuitsFull))?;
        let plan = CircuitPlan::new(self.plan(), number, rate, ends, links)?;
        if let Some(link) = links.iter().find(|link| self.wanted(**link).iter().any(|one| one.cut))
        {
            let link = self.plan().topology.links[link.0].name.clone();
            return Err(PlanError::Path(LabPathError::Cut(link)).into());
        }
        if self.circuits().get(name).is_some_and(|circuit| circuit.plan == plan) {
            return Ok(());
        }
        self.release_circuit(name)?;
        let circuit = ActiveCircuit { number, rate, plan };
        let made = self.install(&circuit);
        if made.is_err() {
            self.remove(&circuit);
        } else {
            self.circuits_mut().insert(name.to_owned(), circuit);
        }
        made
    }

    /// Releases a circuit; an unknown name is no error.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn release_circuit(&mut self, name: &str) -> Result<(), LabError> {
        let Some(circuit) = self.circuits_mut().remove(name) else { return Ok(()) };
        self.remove(&circuit);
        Ok(())
    }

    fn install(&mut self, circuit: &ActiveCircuit) -> Result<(), LabError> {
        for (link, lanes) in &circuit.plan.lanes {
            self.set_lanes(*link, circuit.number, Some(*lanes))?;
        }
        for step in &circuit.plan.steps {
            self.at_port(step.node, step.port, |node, port| {
                node.set_route((step.to.0.into(), step.to.1), step.via.into(), port, true)
            })?;
        }
        for (host, port, address) in &circuit.plan.addresses {
            self.at_port(*host, *port, |node, port| {
                node.set_deprecated_address(*address, port, true)
            })?;
        }
        Ok(())
    }

    /// Removes lanes, addresses and routes; ignores those that are missing.
    fn remove(&mut self, circuit: &ActiveCircuit) {
        let log = |result: Result<(), LabError>| {
            if let Err(error) = result {
                tracing::debug!("releasing a circuit: {error}");
            }
        };
        for (host, port, address) in &circuit.plan.addresses {
            log(self.at_port(*host, *port, |node, port| {
                node.set_deprecated_address(*address, port, false)
            }));
        }
        for step in &circuit.plan.steps {
            log(self.at_port(step.node, step.port, |node, port| {
                node.set_route((step.to.0.into(), step.to.1), step.via.into(), port, false)
            }));
        }
        for (link, _) in &circuit.plan.lanes {
            log(self.set_lanes(*link, circuit.number, None));
        }
    }

    /// Hosts of a circuit with their addresses; `None` without such a circuit.
    #[must_use]
    pub fn circuit_addresses(&self, name: &str) -> Option<Vec<(NodeId, Ipv6Addr)>> {
        let circuit = self.circuits().get(name)?;
        Some(circuit.plan.addresses.iter().map(|(host, _, address)| (*host, *address)).collect())
    }

    /// Rate and per-link state of a circuit; `None` without such a circuit.
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
