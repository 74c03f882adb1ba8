//! Which way a transfer goes.
//!
//! Ways between two hosts share no link. A transfer stays on its way while that is up and no other is much better, so
//! that ways do not change with every little change of load; whether one is better is for [`super::balance`] to say.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use penstock_topology::paths::{self, Disjoint, Path};
use penstock_topology::{LinkId, NodeId};

use super::{HostView, Planner, Promise, RunView, Snapshot, Ways, balance};
use crate::orders::AddressPair;

/// Ways that are looked at.
const WAYS_MAX: usize = 8;

/// Where there are too many transfers to balance, another way is taken when it promises so much more, in hundredths.
const MUCH_BETTER: u64 = 150;

/// A run that was moved for fairness' sake stays where it is for so long: before it has settled nobody knows what its
/// way gives.
const STAY_MS: i64 = 10_000;

/// A way that was chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct Chosen {
    /// Those that there are.
    pub(super) ways: Arc<Vec<Path>>,
    /// Which of them.
    pub(super) at: Option<usize>,
    /// A link that is down, where no way is up.
    pub(super) broken: Option<String>,
    /// Which of what was promised carries it as a circuit, with the addresses at its ends.
    pub(super) circuit: Option<(usize, AddressPair)>,
}

impl Chosen {
    pub(super) fn way(&self) -> Option<&Path> {
        self.ways.get(self.at?)
    }

    /// There are others, so the way must be told.
    pub(super) fn is_one_of_several(&self) -> bool {
        self.ways.len() > 1 || self.circuit.is_some()
    }
}

/// A link in one direction.
pub(super) type Direction = (LinkId, bool);

impl Planner {
    /// The links of a way with their directions: true from the first end to the second.
    pub(super) fn directions(&self, way: &Path) -> Vec<Direction> {
        let pairs = way.links.iter().zip(&way.nodes);
        let forward = |link: LinkId, from: NodeId| self.topology.links[link.0].ends[0].node == from;
        pairs.map(|(link, from)| (*link, forward(*link, *from))).collect()
    }

    fn ways(&self, from: NodeId, to: NodeId) -> Arc<Vec<Path>> {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        let found = ways.entry((from, to)).or_insert_with(|| {
            Arc::new(paths::disjoint(&self.topology, from, to, WAYS_MAX, Disjoint::Links))
        });
        let mut found = Arc::clone(found);
        // Hosts with one interface have one way without common links; what is between may have more.
        if found.len() == 1 {
            let more = self.around(from, to, &found[0]);
            if more.len() > 1 {
                found = Arc::new(more);
                ways.insert((from, to), Arc::clone(&found));
            }
        }
        found
    }

    /// Ways that share the first and last link alone, for hosts that hang on one link each.
    fn around(&self, from: NodeId, to: NodeId, way: &Path) -> Vec<Path> {
        let nodes = &way.nodes;
        if nodes.len() < 4 {
            return vec![way.clone()];
        }
        let (first, last) = (nodes[1], nodes[nodes.len() - 2]);
        let between = paths::disjoint(&self.topology, first, last, WAYS_MAX, Disjoint::Links);
        let whole = between.into_iter().map(|part| Path {
            nodes: [vec![from], part.nodes, vec![to]].concat(),
            links: [vec![way.links[0]], part.links, vec![way.links[way.links.len() - 1]]].concat(),
        });
        whole.collect()
    }

    /// The ways between two hosts; where none of them is up, another one about what is down, which shares links with them.
    fn ways_now(&self, snapshot: &Snapshot, from: NodeId, to: NodeId) -> Arc<Vec<Path>> {
        let ways = self.ways(from, to);
        if ways.iter().any(|way| self.is_up(way, snapshot)) {
            return ways;
        }
        let may_use = |link: LinkId| !snapshot.down.contains(&self.topology.links[link.0].name);
        match paths::shortest(&self.topology, from, to, may_use) {
            Some(detour) => Arc::new([ways.as_slice(), &[detour]].concat()),
            None => ways,
        }
    }

    /// Whether none of its links is down.
    pub(super) fn is_up(&self, way: &Path, snapshot: &Snapshot) -> bool {
        way.links.iter().all(|link| !snapshot.down.contains(&self.topology.links[link.0].name))
    }

    /// Whether a run may go another way for fairness' sake alone.
    pub(super) fn may_move(snapshot: &Snapshot, run: &RunView) -> bool {
        (snapshot.now_ms - run.setting.moved_ms).abs() >= STAY_MS
    }

    /// Chooses ways for runs, in their order.
    pub(super) fn routes(&self, snapshot: &Snapshot, runs: &[&RunView]) -> Vec<Chosen> {
        let mut users: HashMap<Direction, u64> = HashMap::new();
        let is_balanced = balance::is_tried(runs.len());
        let is_up = |way: &Path| self.is_up(way, snapshot);
        let names = |way: &Path| -> Vec<&str> {
            way.links.iter().map(|link| self.topology.links[link.0].name.as_str()).collect()
        };
        let mut all = Vec::with_capacity(runs.len());
        let mut found: Ways = HashMap::new();
        for run in runs {
            let ends = (self.topology.node(&run.from), self.topology.node(&run.to));
            let (Some(from), Some(to)) = ends else {
                all.push((Arc::new(Vec::new()), None));
                continue;
            };
            let ways = found.entry((from, to)).or_insert_with(|| self.ways_now(snapshot, from, to));
            let ways = Arc::clone(ways);
            let current = ways.iter().position(|way| is_up(way) && names(way) == run.setting.route);
            for direction in current.iter().flat_map(|at| self.directions(&ways[*at])) {
                *users.entry(direction).or_default() += 1;
            }
            all.push((ways, current));
        }
        let is_held = |run: &RunView| is_balanced || !Self::may_move(snapshot, run);
        let mut chosen = Vec::with_capacity(runs.len());
        for ((ways, current), run) in all.into_iter().zip(runs) {
            let promise = |at: usize| {
                let mine = current == Some(at);
                let of = |direction: Direction| {
                    let used = users.get(&direction).copied().unwrap_or(0) + u64::from(!mine);
                    self.topology.links[direction.0.0].rate.0 / used.max(1)
                };
                self.directions(&ways[at]).into_iter().map(of).min().unwrap_or(0)
            };
            let up = (0..ways.len()).filter(|at| is_up(&ways[*at]));
            // Of equal ones the one with less delay, which comes first.
            let best = up.max_by_key(|at| (promise(*at), usize::MAX - at));
            let choice = match (current, best) {
                (Some(current), Some(best))
                    if !is_held(run)
                        && promise(best) > promise(current).saturating_mul(MUCH_BETTER) / 100 =>
                {
                    Some(best)
                }
                (Some(current), _) => Some(current),
                (None, best) => best,
            };
            if choice != current {
                for direction in current.iter().flat_map(|at| self.directions(&ways[*at])) {
                    users.entry(direction).and_modify(|count| *count -= 1);
                }
                for direction in choice.iter().flat_map(|at| self.directions(&ways[*at])) {
                    *users.entry(direction).or_default() += 1;
                }
            }
            let broken = match choice {
                Some(_) => None,
                None => {
                    let mut links = ways.iter().flat_map(names);
                    links.find(|name| snapshot.down.contains(*name)).map(str::to_owned)
                }
            };
            chosen.push(Chosen { at: choice, ways, broken, circuit: None });
        }
        for (run, chosen) in runs.iter().zip(&mut chosen) {
            if let Some((at, way, pair)) = self.circuit(snapshot, run) {
                *chosen = Chosen {
                    ways: Arc::new(vec![way]),
                    at: Some(0),
                    broken: None,
                    circuit: Some((at, pair)),
                };
            }
        }
        chosen
    }

    /// Whether a promise is for this run.
    pub(super) fn is_for(&self, promise: &Promise, run: &RunView) -> bool {
        promise.class.as_ref().is_none_or(|class| *class == run.class)
            && self.site_of(&run.from) == Some(&promise.source)
            && self.site_of(&run.to) == Some(&promise.destination)
    }

    /// The circuit of a run: of several that are for it one by its number, so that it stays where it is.
    fn circuit(&self, snapshot: &Snapshot, run: &RunView) -> Option<(usize, Path, AddressPair)> {
        let (from, to) = (self.topology.node(&run.from)?, self.topology.node(&run.to)?);
        let ways = self.ways(from, to);
        let usable = snapshot.promises.iter().enumerate().filter_map(|(at, promise)| {
            let circuit = promise.circuit.as_ref().filter(|_| self.is_for(promise, run))?;
            let pair = AddressPair {
                from: circuit.addresses.get(&run.from)?.clone(),
                to: circuit.addresses.get(&run.to)?.clone(),
            };
            // One that is broken is restored elsewhere, or not: until then what it carried goes as all others do.
            if circuit.links.iter().any(|name| snapshot.down.contains(name)) {
                return None;
            }
            let name = |link: &LinkId| self.topology.links[link.0].name.as_str();
            let has = |way: &&Path| {
                circuit.links.iter().all(|wanted| way.links.iter().any(|link| name(link) == wanted))
            };
            Some((at, ways.iter().find(has)?.clone(), pair))
        });
        let mut usable: Vec<_> = usable.collect();
        let count = i64::try_from(usable.len()).ok().filter(|count| *count > 0)?;
        Some(usable.swap_remove(run.setting.run.rem_euclid(count) as usize))
    }

    /// The interfaces at which a way begins and ends.
    pub(super) fn interfaces(&self, way: &Path) -> Option<(&str, &str)> {
        let name = |link: LinkId, node: NodeId| {
            let end = self.topology.links[link.0].ends.into_iter().find(|end| end.node == node)?;
            let interface = self.topology.nodes[node.0].interfaces.get(end.interface?)?;
            Some(interface.name.as_str())
        };
        Some((
            name(*way.links.first()?, *way.nodes.first()?)?,
            name(*way.links.last()?, *way.nodes.last()?)?,
        ))
    }

    /// The addresses at which a way begins and ends; none where the hosts do not tell them.
    pub(super) fn pairs(&self, way: &Path, from: &HostView, to: &HostView) -> Vec<AddressPair> {
        let Some((first, last)) = self.interfaces(way) else { return Vec::new() };
        let addresses = |host: &HostView, name: &str| {
            let found = host.interfaces.iter().find(|one| one.name == name);
            let all = found.map(|one| one.addresses.clone()).unwrap_or_default();
            let usable = |text: &String| !text.to_ascii_lowercase().starts_with("fe80:");
            all.into_iter().filter(usable).collect::<Vec<_>>()
        };
        let (here, there) = (addresses(from, first), addresses(to, last));
        // One family is enough; IPv6 carries the label.
        for six in [true, false] {
            let of = |list: &[String]| list.iter().find(|text| text.contains(':') == six).cloned();
            if let (Some(from), Some(to)) = (of(&here), of(&there)) {
                return vec![AddressPair { from, to }];
            }
        }
        Vec::new()
    }
}

impl Planner {
    /// The ways from one site to another: of each, what a reservation takes from, and the names of its links.
    ///
    /// The links of single hosts are not among them: which hosts will carry what is promised is not known beforehand.
    #[must_use]
    pub fn site_ways(&self, source: &str, destination: &str) -> Vec<(Vec<String>, Vec<String>)> {
        let at = |site: &str| {
            let mut hosts = self.topology.hosts().map(|(id, node)| (id, &node.name));
            hosts.find(|(_, name)| self.site_of(name) == Some(site)).map(|(id, _)| id)
        };
        let (Some(from), Some(to)) = (at(source), at(destination)) else { return Vec::new() };
        let ways = self.ways(from, to);
        let between = ways.iter().map(|way| {
            let links = way.links.iter().zip(&way.nodes).filter(|(link, _)| {
                let ends = self.topology.links[link.0].ends.map(|end| end.node);
                !ends.contains(&from) && !ends.contains(&to)
            });
            links
                .map(|(link, node)| {
                    let link = &self.topology.links[link.0];
                    (
                        Self::link_resource(link, &self.topology.nodes[node.0].name),
                        link.name.clone(),
                    )
                })
                .unzip()
        });
        between.collect()
    }

    /// What a link in one direction is called among resources.
    pub(super) fn link_resource(link: &penstock_topology::Link, from: &str) -> String {
        format!("link {} from {from}", link.name)
    }

    /// What may be used of each link in each direction, by the names of [`Self::site_ways`], in bits per second.
    pub fn link_capacities(&self) -> impl Iterator<Item = (String, u64)> {
        self.topology.links.iter().flat_map(|link| {
            let usable = self.usable(link);
            let names = link
                .ends
                .map(|end| Self::link_resource(link, &self.topology.nodes[end.node.0].name));
            names.map(|name| (name, usable))
        })
    }

    pub(super) fn usable(&self, link: &penstock_topology::Link) -> u64 {
        link.rate.0 / 1000 * u64::from(self.rules.usable_permille)
    }
}
