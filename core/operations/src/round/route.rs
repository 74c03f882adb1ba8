//! Which way a transfer goes.
//!
//! Packets go where their addresses lead: the only choice is that of the interfaces at which a way begins and ends, and
//! between these routing takes the way of the least delay. So there is one way for each pair of interfaces that ways
//! without a common link begin and end at, as far as both hosts report addresses there. Circuits are an exception: they
//! have addresses of their own, which lead over their links. A transfer stays on its way while that is up and no other is much better, so
//! that ways do not change with every little change of load; whether one is better is for [`super::balance`] to say.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

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

    /// The ways that addresses choose while no link is down, the one of the least delay first.
    fn address_ways(&self, from: NodeId, to: NodeId) -> Arc<Vec<Path>> {
        let known = |ways: &Mutex<Ways>| {
            ways.lock().unwrap_or_else(PoisonError::into_inner).get(&(from, to)).cloned()
        };
        if let Some(ways) = known(&self.address_ways) {
            return ways;
        }
        let mut found: Vec<Path> = Vec::new();
        for way in self.ways(from, to).iter() {
            let (Some(first), Some(last)) = (way.links.first(), way.links.last()) else {
                found.push(way.clone());
                continue;
            };
            let is_new =
                |one: &Path| one.links.first() != Some(first) || one.links.last() != Some(last);
            if found.iter().all(is_new) {
                let routed = self.routed(way, |_| true);
                found.push(routed.unwrap_or_else(|| way.clone()));
            }
        }
        found.sort_by_key(|way| (way.delay(&self.topology), way.links.len()));
        let found = Arc::new(found);
        let mut ways = self.address_ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.insert((from, to), Arc::clone(&found));
        found
    }

    /// The way of the least delay that begins and ends at the links at which `way` does.
    fn routed(&self, way: &Path, may_use: impl Fn(LinkId) -> bool) -> Option<Path> {
        let (from, to) = (*way.nodes.first()?, *way.nodes.last()?);
        let (first, last) = (*way.links.first()?, *way.links.last()?);
        if way.links.len() < 3 {
            return Some(way.clone()).filter(|way| way.links.iter().all(|link| may_use(*link)));
        }
        if !may_use(first) || !may_use(last) {
            return None;
        }
        let (inner_from, inner_to) = (way.nodes[1], way.nodes[way.nodes.len() - 2]);
        let is_at_end = |link: LinkId| {
            self.topology.links[link.0].ends.iter().any(|end| end.node == from || end.node == to)
        };
        let may_use = |link: LinkId| may_use(link) && !is_at_end(link);
        let inner = paths::shortest(&self.topology, inner_from, inner_to, may_use)?;
        Some(Path {
            nodes: [vec![from], inner.nodes, vec![to]].concat(),
            links: [vec![first], inner.links, vec![last]].concat(),
        })
    }

    /// The ways that addresses choose now: routing leads around what is down, and where no pair of interfaces is left,
    /// over others.
    fn ways_now(
        &self,
        snapshot: &Snapshot,
        hosts: &HashMap<&str, &HostView>,
        from: NodeId,
        to: NodeId,
    ) -> Arc<Vec<Path>> {
        let mut ways = self.address_ways(from, to);
        if ways.len() > 1 {
            let host = |node: NodeId| hosts.get(self.topology.nodes[node.0].name.as_str()).copied();
            let is_chosen = |way: &Path| match (host(from), host(to)) {
                (Some(from), Some(to)) => !self.pairs(way, from, to).is_empty(),
                _ => false,
            };
            let chosen: Vec<Path> = ways.iter().filter(|way| is_chosen(way)).cloned().collect();
            // Without addresses to choose by, packets go where they go by themselves.
            ways = match chosen.len() {
                0 | 1 => Arc::new(ways[..1].to_vec()),
                _ => Arc::new(chosen),
            };
        }
        if ways.iter().all(|way| self.is_up(way, snapshot)) {
            return ways;
        }
        let may_use = |link: LinkId| !snapshot.down.contains(&self.topology.links[link.0].name);
        let mut now: Vec<Path> = ways
            .iter()
            .map(|way| match self.is_up(way, snapshot) {
                true => way.clone(),
                false => self.routed(way, may_use).unwrap_or_else(|| way.clone()),
            })
            .collect();
        if !now.iter().any(|way| self.is_up(way, snapshot)) {
            now.extend(paths::shortest(&self.topology, from, to, may_use));
        }
        Arc::new(now)
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
        let hosts: HashMap<&str, &HostView> =
            snapshot.hosts.iter().map(|host| (host.name.as_str(), host)).collect();
        for run in runs {
            let ends = (self.topology.node(&run.from), self.topology.node(&run.to));
            let (Some(from), Some(to)) = ends else {
                all.push((Arc::new(Vec::new()), None));
                continue;
            };
            let ways = found
                .entry((from, to))
                .or_insert_with(|| self.ways_now(snapshot, &hosts, from, to));
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
    /// The ways from one site to another: of each, what a reservation takes from, and the names of its links. Those that
    /// addresses choose, or for a circuit all that share no link.
    ///
    /// The links of single hosts are not among them: which hosts will carry what is promised is not known beforehand.
    /// [`Self::site_resources`] bounds what all hosts of a site carry.
    #[must_use]
    pub fn site_ways(
        &self,
        source: &str,
        destination: &str,
        circuit: bool,
    ) -> Vec<(Vec<String>, Vec<String>)> {
        let mut sources = self.hosts_at(source);
        let mut destinations = self.hosts_at(destination);
        // Within a site it goes from one host to another.
        let from = sources.next();
        let to = destinations.find(|to| Some(*to) != from);
        let (Some(from), Some(to)) = (from, to) else { return Vec::new() };
        let ways = if circuit { self.ways(from, to) } else { self.address_ways(from, to) };
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

    fn hosts_at(&self, site: &str) -> impl Iterator<Item = NodeId> {
        let hosts = self.topology.hosts();
        hosts.filter(move |(_, node)| self.site_of(&node.name) == Some(site)).map(|(id, _)| id)
    }

    /// What every reservation between two sites takes from: the interfaces of all hosts of the one that send, and of the
    /// other that receive.
    #[must_use]
    pub fn site_resources(source: &str, destination: &str) -> [String; 2] {
        [format!("hosts of {source}, sending"), format!("hosts of {destination}, receiving")]
    }

    /// What a link in one direction is called among resources.
    pub(super) fn link_resource(link: &penstock_topology::Link, from: &str) -> String {
        format!("link {} from {from}", link.name)
    }

    /// What may be used of each link in each direction and of the hosts of each site, by the names of
    /// [`Self::site_ways`] and [`Self::site_resources`], in bits per second.
    pub fn capacities(&self) -> impl Iterator<Item = (String, u64)> {
        let links = self.topology.links.iter().flat_map(|link| {
            let usable = self.usable(link);
            let names = link
                .ends
                .map(|end| Self::link_resource(link, &self.topology.nodes[end.node.0].name));
            names.map(|name| (name, usable))
        });
        let sites = self.topology.sites.iter().flat_map(|site| {
            let hosts: HashSet<NodeId> = self.hosts_at(&site.name).collect();
            let links = self.topology.links.iter();
            let of_hosts =
                links.filter(|link| link.ends.iter().any(|end| hosts.contains(&end.node)));
            let usable = of_hosts.map(|link| self.usable(link)).fold(0, u64::saturating_add);
            Self::site_resources(&site.name, &site.name).map(|name| (name, usable))
        });
        links.chain(sites)
    }

    pub(super) fn usable(&self, link: &penstock_topology::Link) -> u64 {
        link.rate.0 / 1000 * u64::from(self.rules.usable_permille)
    }
}
