//! Loads of links: each flow takes the shortest path between its sites, split among parallel links in proportion to
//! their rates.

use std::collections::HashMap;

use penstock_topology::paths::{Path, shortest};
use penstock_topology::{LinkId, NodeId, Topology};
use penstock_units::BitRate;

use crate::model::parts_of;
use crate::{DemandPlan, TrafficModel, forecast};

/// Loads of all links for one traffic model, in each year of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkLoads {
    /// Loads in the order of [`Topology::links`].
    pub links: Vec<LinkLoad>,
}

/// Load of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkLoad {
    /// The link in the topology.
    pub link: LinkId,
    /// Rate in each year of the plan, from the first end to the second and back.
    pub rates: Vec<[BitRate; 2]>,
    /// The first year in which the load exceeds the rate of the link in a direction.
    pub overflows: Option<u16>,
}

impl LinkLoad {
    /// Load of the busier direction in year `year`, counted from the first year of the plan.
    #[must_use]
    pub fn most(&self, year: usize) -> BitRate {
        let [there, back] = self.rates[year];
        there.max(back)
    }
}

/// A mismatch between a plan and a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadsError {
    /// A site of the plan has no node in the topology.
    #[error(
        "site '{site}' of the plan is behind '{node}', and the topology has no such host, switch or site: give it a node = \"...\""
    )]
    NoNode {
        /// Name of the site in the plan.
        site: String,
        /// Name that the topology lacks.
        node: String,
    },
    /// The topology does not connect two sites.
    #[error("the topology has no path from '{from}' to '{to}'")]
    NoPath {
        /// Sending site of the plan.
        from: String,
        /// Receiving site of the plan.
        to: String,
    },
}

impl LinkLoads {
    /// Computes the loads of all links in all years.
    ///
    /// # Errors
    /// When the topology lacks a site of a flow, or does not connect its sites.
    pub fn of(
        plan: &DemandPlan,
        topology: &Topology,
        model: &TrafficModel,
    ) -> Result<Self, LoadsError> {
        let mut paths = PathCache { plan, topology, known: HashMap::new() };
        let mut beside: HashMap<[NodeId; 2], Vec<LinkId>> = HashMap::new();
        for (number, link) in topology.links.iter().enumerate() {
            let [a, b] = link.ends.map(|end| end.node);
            beside.entry([a.min(b), a.max(b)]).or_default().push(LinkId(number));
        }
        let years = plan.years.clone().count();
        let mut rates = vec![vec![[0_u64; 2]; years]; topology.links.len()];
        for flow in plan.experiments.iter().flat_map(|experiment| &experiment.flows) {
            for (index, year) in plan.years.clone().enumerate() {
                for (to, rate) in flow.split(forecast::of_flow(plan, flow, model, year)) {
                    let path = paths.path(flow.from, to)?;
                    for hop in path.nodes.windows(2) {
                        let links = &beside[&[hop[0].min(hop[1]), hop[0].max(hop[1])]];
                        let weights: Vec<u64> =
                            links.iter().map(|id| topology.links[id.0].rate.0).collect();
                        for (id, part) in links.iter().zip(parts_of(rate, &weights)) {
                            let back = usize::from(topology.links[id.0].ends[0].node != hop[0]);
                            let total = &mut rates[id.0][index][back];
                            *total = total.saturating_add(part.0);
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

/// Shortest paths between sites, each searched once.
struct PathCache<'a> {
    plan: &'a DemandPlan,
    topology: &'a Topology,
    known: HashMap<[usize; 2], Path>,
}

impl PathCache<'_> {
    fn path(&mut self, from: usize, to: usize) -> Result<&Path, LoadsError> {
        if !self.known.contains_key(&[from, to]) {
            let path = if from == to {
                Path { nodes: Vec::new(), links: Vec::new() }
            } else {
                let (start, end) = (self.node(from)?, self.node(to)?);
                let name = |site: usize| self.plan.sites[site].name.clone();
                let error = || LoadsError::NoPath { from: name(from), to: name(to) };
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
