//! What the links of a network must carry: each flow on the shortest way between its sites, shared by the links that
//! join the same two nodes by their rates.

use std::collections::HashMap;

use penstock_topology::paths::{Path, shortest};
use penstock_topology::{LinkId, NodeId, Topology};
use penstock_units::BitRate;

use crate::{Model, Plan, forecast};

/// Loads of all links by one model, in each year of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loads {
    /// In the order of the topology.
    pub links: Vec<LinkLoad>,
}

/// What one link must carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkLoad {
    /// Which link.
    pub link: LinkId,
    /// In each year, from the first end to the second and back.
    pub rates: Vec<[BitRate; 2]>,
    /// The first year in which it must carry more than its rate in some direction.
    pub overflows: Option<u16>,
}

impl LinkLoad {
    /// Of a year, counted from the first, in the direction that has more.
    #[must_use]
    pub fn most(&self, year: usize) -> BitRate {
        let [there, back] = self.rates[year];
        there.max(back)
    }
}

/// A plan and a topology that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadsError {
    /// A site of the plan is behind no node.
    #[error(
        "site '{site}' of the plan is behind '{node}', and the topology has no such host, switch or site: give it a node = \"...\""
    )]
    NoNode {
        /// Of the plan.
        site: String,
        /// Of the topology.
        node: String,
    },
    /// Two sites that no way joins.
    #[error("no way of the topology leads from '{from}' to '{to}'")]
    NoWay {
        /// Site of the plan.
        from: String,
        /// Site of the plan.
        to: String,
    },
}

impl Loads {
    /// Works them out.
    ///
    /// # Errors
    /// When a site that data goes through is not in the topology, or cannot be reached.
    pub fn of(plan: &Plan, topology: &Topology, model: &Model) -> Result<Self, LoadsError> {
        let mut routes = Routes { plan, topology, known: HashMap::new() };
        let mut beside: HashMap<[NodeId; 2], Vec<LinkId>> = HashMap::new();
        for (number, link) in topology.links.iter().enumerate() {
            let [a, b] = link.ends.map(|end| end.node);
            beside.entry([a.min(b), a.max(b)]).or_default().push(LinkId(number));
        }
        let years = plan.years.clone().count();
        let mut rates = vec![vec![[0_u64; 2]; years]; topology.links.len()];
        for flow in plan.experiments.iter().flat_map(|experiment| &experiment.flows) {
            for (place, year) in plan.years.clone().enumerate() {
                for (to, rate) in flow.split(forecast::of_flow(plan, flow, model, year)) {
                    let path = routes.way(flow.from, to)?;
                    for hop in path.nodes.windows(2) {
                        let links = &beside[&[hop[0].min(hop[1]), hop[0].max(hop[1])]];
                        let all: u128 = links.iter().map(|id| of(topology, *id)).sum();
                        for id in links {
                            let part = u128::from(rate.0) * of(topology, *id) / all.max(1);
                            let back = usize::from(topology.links[id.0].ends[0].node != hop[0]);
                            let total = &mut rates[id.0][place][back];
                            *total = total.saturating_add(part as u64);
                        }
                    }
                }
            }
        }
        let links = rates.into_iter().enumerate().map(|(number, rates)| {
            let capacity = topology.links[number].rate;
            let rates: Vec<_> = rates.into_iter().map(|both| both.map(BitRate)).collect();
            let is_over = |both: &[BitRate; 2]| both.iter().any(|rate| *rate > capacity);
            let mut years = plan.years.clone().zip(&rates);
            let overflows = years.find(|(_, both)| is_over(both)).map(|(year, _)| year);
            LinkLoad { link: LinkId(number), rates, overflows }
        });
        Ok(Self { links: links.collect() })
    }
}

fn of(topology: &Topology, link: LinkId) -> u128 {
    u128::from(topology.links[link.0].rate.0)
}

/// Ways between sites, each found once.
struct Routes<'a> {
    plan: &'a Plan,
    topology: &'a Topology,
    known: HashMap<[usize; 2], Path>,
}

impl Routes<'_> {
    fn way(&mut self, from: usize, to: usize) -> Result<&Path, LoadsError> {
        if !self.known.contains_key(&[from, to]) {
            let path = if from == to {
                Path { nodes: Vec::new(), links: Vec::new() }
            } else {
                let (start, end) = (self.node(from)?, self.node(to)?);
                let name = |site: usize| self.plan.sites[site].name.clone();
                let error = || LoadsError::NoWay { from: name(from), to: name(to) };
                shortest(self.topology, start, end, |_| true).ok_or_else(error)?
            };
            self.known.insert([from, to], path);
        }
        Ok(&self.known[&[from, to]])
    }

    fn node(&self, site: usize) -> Result<NodeId, LoadsError> {
        let site = &self.plan.sites[site];
        let name = site.node.as_deref().unwrap_or(&site.name);
        let found = self.topology.node_behind(name);
        found.ok_or_else(|| LoadsError::NoNode { site: site.name.clone(), node: name.to_owned() })
    }
}
