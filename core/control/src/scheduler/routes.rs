//! Choice of each transfer's path.
//!
//! Packets follow their addresses: the only choice is that of the interfaces at both ends, between which routing
//! takes the path of least delay. So there is one path for each pair of end interfaces of link-disjoint paths, provided
//! that both hosts report addresses there. Circuits are an exception: their own addresses lead over their links. A
//! transfer stays on its path while that is up and no other is much better, so that small changes of load do not move
//! it; [`super::balance`] decides which is better.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use penstock_topology::paths::{self, Disjoint, Path};
use penstock_topology::{LinkId, NodeId};

use super::{HostView, PathTable, Planner, ReservationView, RunView, Snapshot, balance};
use crate::orders::AddressPair;

/// Most link-disjoint paths considered between two hosts.
const PATHS_MAX: usize = 8;

/// With too many transfers to balance, a path is changed if the other's expected share is at least this percentage.
const SWITCH_PATH_PERCENT: u64 = 150;

/// Time that a run moved for fairness stays on its path, as its rate there is unknown before it settles.
const PATH_HOLD_MS: i64 = 10_000;

/// The path chosen for a run.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteChoice {
    pub(super) paths: Arc<Vec<Path>>,
    /// Index of the chosen path.
    pub(super) at: Option<usize>,
    /// Name of a link that is down, if no path is up.
    pub(super) broken: Option<String>,
    /// Index of the reservation whose circuit carries the run, with the addresses at its ends.
    pub(super) circuit: Option<(usize, AddressPair)>,
}

impl RouteChoice {
    pub(super) fn path(&self) -> Option<&Path> {
        self.paths.get(self.at?)
    }

    /// True if there are alternatives, so that the node needs the addresses of the path.
    pub(super) fn has_alternatives(&self) -> bool {
        self.paths.len() > 1 || self.circuit.is_some()
    }
}

/// A link with a direction, true from its first end to its second.
pub(super) type LinkDirection = (LinkId, bool);

impl Planner {
    /// Returns the links of a path with their directions.
    pub(super) fn directions(&self, path: &Path) -> Vec<LinkDirection> {
        let pairs = path.links.iter().zip(&path.nodes);
        let forward = |link: LinkId, from: NodeId| self.topology.links[link.0].ends[0].node == from;
        pairs.map(|(link, from)| (*link, forward(*link, *from))).collect()
    }

    fn disjoint_paths(&self, from: NodeId, to: NodeId) -> Arc<Vec<Path>> {
        let mut paths = self.disjoint_paths.lock().unwrap_or_else(PoisonError::into_inner);
        let found = paths.entry((from, to)).or_insert_with(|| {
            Arc::new(paths::disjoint(&self.topology, from, to, PATHS_MAX, Disjoint::Links))
        });
        let mut found = Arc::clone(found);
        // Hosts with one interface have a single link-disjoint path; the network between may have more.
        if found.len() == 1 {
            let more = self.around(from, to, &found[0]);
            if more.len() > 1 {
                found = Arc::new(more);
                paths.insert((from, to), Arc::clone(&found));
            }
        }
        found
    }

    /// Returns paths that share only the first and last link, for hosts with one link each.
    fn around(&self, from: NodeId, to: NodeId, path: &Path) -> Vec<Path> {
        let nodes = &path.nodes;
        if nodes.len() < 4 {
            return vec![path.clone()];
        }
        let (first, last) = (nodes[1], nodes[nodes.len() - 2]);
        let between = paths::disjoint(&self.topology, first, last, PATHS_MAX, Disjoint::Links);
        let whole = between.into_iter().map(|part| Path {
            nodes: [vec![from], part.nodes, vec![to]].concat(),
            links: [vec![path.links[0]], part.links, vec![path.links[path.links.len() - 1]]]
                .concat(),
        });
        whole.collect()
    }

    /// Returns the paths that addresses select while no link is down, by ascending delay.
    fn address_paths(&self, from: NodeId, to: NodeId) -> Arc<Vec<Path>> {
        let known = |paths: &Mutex<PathTable>| {
            paths.lock().unwrap_or_else(PoisonError::into_inner).get(&(from, to)).cloned()
        };
        if let Some(paths) = known(&self.address_paths) {
            return paths;
        }
        let mut found: Vec<Path> = Vec::new();
        for path in self.disjoint_paths(from, to).iter() {
            let (Some(first), Some(last)) = (path.links.first(), path.links.last()) else {
                found.push(path.clone());
                continue;
            };
            let is_new =
                |one: &Path| one.links.first() != Some(first) || one.links.last() != Some(last);
            if found.iter().all(is_new) {
                let routed = self.routed(path, |_| true);
                found.push(routed.unwrap_or_else(|| path.clone()));
            }
        }
        found.sort_by_key(|path| (path.delay(&self.topology), path.links.len()));
        let found = Arc::new(found);
        let mut paths = self.address_paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.insert((from, to), Arc::clone(&found));
        found
    }

    /// Returns the path of least delay with the same first and last link as `path`.
    fn routed(&self, path: &Path, may_use: impl Fn(LinkId) -> bool) -> Option<Path> {
        let (from, to) = (*path.nodes.first()?, *path.nodes.last()?);
        let (first, last) = (*path.links.first()?, *path.links.last()?);
        if path.links.len() < 3 {
            return Some(path.clone()).filter(|path| path.links.iter().all(|link| may_use(*link)));
        }
        if !may_use(first) || !may_use(last) {
            return None;
        }
        let (inner_from, inner_to) = (path.nodes[1], path.nodes[path.nodes.len() - 2]);
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

    /// Returns the paths that addresses select now: routing avoids links that are down, and if no pair of interfaces is
    /// left, other interfaces are used.
    fn current_paths(
        &self,
        snapshot: &Snapshot,
        hosts: &HashMap<&str, &HostView>,
        from: NodeId,
        to: NodeId,
    ) -> Arc<Vec<Path>> {
        let mut paths = self.address_paths(from, to);
        if paths.len() > 1 {
            let host = |node: NodeId| hosts.get(self.topology.nodes[node.0].name.as_str()).copied();
            let is_chosen = |path: &Path| match (host(from), host(to)) {
                (Some(from), Some(to)) => !self.pairs(path, from, to).is_empty(),
                _ => false,
            };
            let chosen: Vec<Path> = paths.iter().filter(|path| is_chosen(path)).cloned().collect();
            // Without a choice of addresses packets take the routed path.
            paths = match chosen.len() {
                0 | 1 => Arc::new(paths[..1].to_vec()),
                _ => Arc::new(chosen),
            };
        }
        if paths.iter().all(|path| self.is_up(path, snapshot)) {
            return paths;
        }
        let may_use = |link: LinkId| !snapshot.down.contains(&self.topology.links[link.0].name);
        let mut now: Vec<Path> = paths
            .iter()
            .map(|path| match self.is_up(path, snapshot) {
                true => path.clone(),
                false => self.routed(path, may_use).unwrap_or_else(|| path.clone()),
            })
            .collect();
        if !now.iter().any(|path| self.is_up(path, snapshot)) {
            now.extend(paths::shortest(&self.topology, from, to, may_use));
        }
        Arc::new(now)
    }

    /// True if none of its links is down.
    pub(super) fn is_up(&self, path: &Path, snapshot: &Snapshot) -> bool {
        path.links.iter().all(|link| !snapshot.down.contains(&self.topology.links[link.0].name))
    }

    /// True if a run may change path for fairness alone.
    pub(super) fn may_move(snapshot: &Snapshot, run: &RunView) -> bool {
        (snapshot.now_ms - run.plan.moved_ms).abs() >= PATH_HOLD_MS
    }

    /// Chooses a path for each run, in order.
    pub(super) fn routes(&self, snapshot: &Snapshot, runs: &[&RunView]) -> Vec<RouteChoice> {
        let mut users: HashMap<LinkDirection, u64> = HashMap::new();
        let is_balanced = balance::allows_trials(runs.len());
        let is_up = |path: &Path| self.is_up(path, snapshot);
        let names = |path: &Path| -> Vec<&str> {
            path.links.iter().map(|link| self.topology.links[link.0].name.as_str()).collect()
        };
        let mut all = Vec::with_capacity(runs.len());
        let mut found: PathTable = HashMap::new();
        let hosts: HashMap<&str, &HostView> =
            snapshot.hosts.iter().map(|host| (host.name.as_str(), host)).collect();
        for run in runs {
            let ends = (self.topology.node(&run.from), self.topology.node(&run.to));
            let (Some(from), Some(to)) = ends else {
                all.push((Arc::new(Vec::new()), None));
                continue;
            };
            let paths = found
                .entry((from, to))
                .or_insert_with(|| self.current_paths(snapshot, &hosts, from, to));
            let paths = Arc::clone(paths);
            let current =
                paths.iter().position(|path| is_up(path) && names(path) == run.plan.route);
            for direction in current.iter().flat_map(|at| self.directions(&paths[*at])) {
                *users.entry(direction).or_default() += 1;
            }
            all.push((paths, current));
        }
        let is_held = |run: &RunView| is_balanced || !Self::may_move(snapshot, run);
        let mut chosen = Vec::with_capacity(runs.len());
        for ((paths, current), run) in all.into_iter().zip(runs) {
            let expected_share = |at: usize| {
                let mine = current == Some(at);
                let of = |direction: LinkDirection| {
                    let used = users.get(&direction).copied().unwrap_or(0) + u64::from(!mine);
                    self.topology.links[direction.0.0].rate.0 / used.max(1)
                };
                self.directions(&paths[at]).into_iter().map(of).min().unwrap_or(0)
            };
            let up = (0..paths.len()).filter(|at| is_up(&paths[*at]));
            // Of equal paths the first, which has less delay.
            let best = up.max_by_key(|at| (expected_share(*at), usize::MAX - at));
            let choice = match (current, best) {
                (Some(current), Some(best))
                    if !is_held(run)
                        && expected_share(best)
                            > expected_share(current).saturating_mul(SWITCH_PATH_PERCENT) / 100 =>
                {
                    Some(best)
                }
                (Some(current), _) => Some(current),
                (None, best) => best,
            };
            if choice != current {
                for direction in current.iter().flat_map(|at| self.directions(&paths[*at])) {
                    users.entry(direction).and_modify(|count| *count -= 1);
                }
                for direction in choice.iter().flat_map(|at| self.directions(&paths[*at])) {
                    *users.entry(direction).or_default() += 1;
                }
            }
            let broken = match choice {
                Some(_) => None,
                None => {
                    let mut links = paths.iter().flat_map(names);
                    links.find(|name| snapshot.down.contains(*name)).map(str::to_owned)
                }
            };
            chosen.push(RouteChoice { at: choice, paths, broken, circuit: None });
        }
        for (run, chosen) in runs.iter().zip(&mut chosen) {
            if let Some((at, path, pair)) = self.circuit(snapshot, run) {
                *chosen = RouteChoice {
                    paths: Arc::new(vec![path]),
                    at: Some(0),
                    broken: None,
                    circuit: Some((at, pair)),
                };
            }
        }
        chosen
    }

    /// True if a reservation applies to a run.
    pub(super) fn is_for(&self, reservation: &ReservationView, run: &RunView) -> bool {
        reservation.class.as_ref().is_none_or(|class| *class == run.class)
            && self.site_of(&run.from) == Some(&reservation.source)
            && self.site_of(&run.to) == Some(&reservation.destination)
    }

    /// Returns the circuit of a run. Among several the run's id decides, so that it keeps its circuit.
    fn circuit(&self, snapshot: &Snapshot, run: &RunView) -> Option<(usize, Path, AddressPair)> {
        let (from, to) = (self.topology.node(&run.from)?, self.topology.node(&run.to)?);
        let paths = self.disjoint_paths(from, to);
        let usable = snapshot.reservations.iter().enumerate().filter_map(|(at, reservation)| {
            let circuit = reservation.circuit.as_ref().filter(|_| self.is_for(reservation, run))?;
            let pair = AddressPair {
                from: circuit.addresses.get(&run.from)?.clone(),
                to: circuit.addresses.get(&run.to)?.clone(),
            };
            // Until a broken circuit is restored its runs use ordinary paths.
            if circuit.links.iter().any(|name| snapshot.down.contains(name)) {
                return None;
            }
            let name = |link: &LinkId| self.topology.links[link.0].name.as_str();
            let has = |path: &&Path| {
                circuit
                    .links
                    .iter()
                    .all(|wanted| path.links.iter().any(|link| name(link) == wanted))
            };
            Some((at, paths.iter().find(has)?.clone(), pair))
        });
        let mut usable: Vec<_> = usable.collect();
        let count = i64::try_from(usable.len()).ok().filter(|count| *count > 0)?;
        Some(usable.swap_remove(run.plan.run.rem_euclid(count) as usize))
    }

    /// Returns the interfaces at both ends of a path.
    pub(super) fn interfaces(&self, path: &Path) -> Option<(&str, &str)> {
        let name = |link: LinkId, node: NodeId| {
            let end = self.topology.links[link.0].ends.into_iter().find(|end| end.node == node)?;
            let interface = self.topology.nodes[node.0].interfaces.get(end.interface?)?;
            Some(interface.name.as_str())
        };
        Some((
            name(*path.links.first()?, *path.nodes.first()?)?,
            name(*path.links.last()?, *path.nodes.last()?)?,
        ))
    }

    /// Returns the addresses at both ends of a path; none if the hosts do not report them.
    pub(super) fn pairs(&self, path: &Path, from: &HostView, to: &HostView) -> Vec<AddressPair> {
        let Some((first, last)) = self.interfaces(path) else { return Vec::new() };
        let addresses = |host: &HostView, name: &str| {
            let found = host.interfaces.iter().find(|one| one.name == name);
            let all = found.map(|one| one.addresses.clone()).unwrap_or_default();
            let usable = |text: &String| !text.to_ascii_lowercase().starts_with("fe80:");
            all.into_iter().filter(usable).collect::<Vec<_>>()
        };
        let (here, there) = (addresses(from, first), addresses(to, last));
        // One family suffices; IPv6 carries the flow label.
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
    /// Returns the paths between two sites, each as resource names and link names: those that addresses select, or for
    /// a circuit all link-disjoint ones.
    ///
    /// Links of single hosts are excluded, as the hosts that will carry a reservation are not known beforehand.
    /// [`Self::site_resources`] limits the hosts of a site together.
    #[must_use]
    pub fn site_paths(
        &self,
        source: &str,
        destination: &str,
        circuit: bool,
    ) -> Vec<(Vec<String>, Vec<String>)> {
        let mut sources = self.hosts_at(source);
        let mut destinations = self.hosts_at(destination);
        // Within a site a path leads from one host to another.
        let from = sources.next();
        let to = destinations.find(|to| Some(*to) != from);
        let (Some(from), Some(to)) = (from, to) else { return Vec::new() };
        let paths =
            if circuit { self.disjoint_paths(from, to) } else { self.address_paths(from, to) };
        let between = paths.iter().map(|path| {
            let links = path.links.iter().zip(&path.nodes).filter(|(link, _)| {
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

    /// Returns the resources that every reservation between two sites occupies: the sending interfaces of all hosts of
    /// the source, and the receiving ones of the destination.
    #[must_use]
    pub fn site_resources(source: &str, destination: &str) -> [String; 2] {
        [format!("hosts of {source}, sending"), format!("hosts of {destination}, receiving")]
    }

    /// Returns the resource name of a link in one direction.
    pub(super) fn link_resource(link: &penstock_topology::Link, from: &str) -> String {
        format!("link {} from {from}", link.name)
    }

    /// Returns the usable rate, in bits per second, of each link in each direction and of the hosts of each site, as
    /// named by [`Self::site_paths`] and [`Self::site_resources`].
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
