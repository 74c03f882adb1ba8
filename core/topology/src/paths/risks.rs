//! Finds paths that share no risk group and no link, with the least total delay.
//!
//! The problem is NP-complete (Hu 2003), but real networks are small. Branch and bound: each path starts as
//! the shortest one. Where several paths use one resource (a risk group or a link), the search branches on the
//! one that keeps it and bans the resource from the others. The total of the shortest paths under their bans
//! is a lower bound of every solution below, so the first state without a conflict, taken by least total, is
//! optimal. After [`step_budget`] steps the best solution found so far is returned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::rc::Rc;

use super::{Path, neighbours, shortest_beside};
use crate::{LinkId, NodeId, Topology};

/// Steps of a search in a small network; each computes a few shortest paths.
const STEPS_MAX: usize = 20_000;
const STEPS_MIN: usize = 200;
/// Bound on steps times links: a few seconds.
const STEPS_LINKS: usize = 10_000_000;
/// States that are completed greedily, so that a solution exists when the budget ends.
const GREEDY_COMPLETIONS_MAX: usize = 256;

/// Steps for a network with this many links.
fn step_budget(links: usize) -> usize {
    (STEPS_LINKS / links.max(1)).clamp(STEPS_MIN, STEPS_MAX)
}

/// Index of a resource that at most one path may use: risk groups first, then links.
type SharedResource = usize;
/// Resources that a path may not use.
type Bans = Rc<BTreeSet<SharedResource>>;

struct Search<'a> {
    topology: &'a Topology,
    neighbours: Vec<Vec<(LinkId, NodeId)>>,
    ends: [NodeId; 2],
    groups: usize,
    /// Risk groups of each link.
    groups_of_link: Vec<Vec<SharedResource>>,
}

/// Paths with their bans, sorted, so that permutations compare equal.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
struct SearchState {
    total: u64,
    paths: Vec<(Bans, Rc<Path>)>,
}

/// Finds as many paths as exist, up to `count`, with true if the result is known to be optimal.
pub(super) fn disjoint(
    topology: &Topology,
    [from, to]: [NodeId; 2],
    count: usize,
) -> (Vec<Path>, bool) {
    let mut numbers: BTreeMap<&str, SharedResource> = BTreeMap::new();
    let mut groups_of_link = Vec::with_capacity(topology.links.len());
    for link in &topology.links {
        let mut groups = Vec::with_capacity(link.risk_groups.len());
        for group in &link.risk_groups {
            let next = numbers.len();
            groups.push(*numbers.entry(group).or_insert(next));
        }
        groups_of_link.push(groups);
    }
    let groups = numbers.len();
    let neighbours = neighbours(topology);
    let search = Search { topology, neighbours, ends: [from, to], groups, groups_of_link };
    let mut steps_left = step_budget(topology.links.len());
    let mut is_certain = true;
    for count in (1..=count).rev() {
        // Half of the remaining budget for this count, the rest for smaller counts.
        let steps = (steps_left / 2).max(STEPS_MIN);
        steps_left = steps_left.saturating_sub(steps);
        let (found, is_best) = search.run(count, steps);
        is_certain &= is_best;
        if !found.is_empty() {
            return (found, is_certain);
        }
    }
    (Vec::new(), is_certain)
}

impl Search<'_> {
    fn run(&self, count: usize, mut steps: usize) -> (Vec<Path>, bool) {
        let free = Bans::default();
        let Some(first) = self.shortest(&free) else { return (Vec::new(), true) };
        let paths = vec![(free, Rc::new(first)); count];
        let mut open = BinaryHeap::from([Reverse(self.state(paths))]);
        let mut seen = HashSet::new();
        let mut best: Option<(u64, Vec<Path>)> = None;
        let mut completions_left = GREEDY_COMPLETIONS_MAX;
        while let Some(Reverse(state)) = open.pop() {
            if best.as_ref().is_some_and(|(total, _)| *total <= state.total) {
                break;
            }
            let Some(resource) = self.conflict(&state) else {
                return (state.paths.iter().map(|(_, path)| (**path).clone()).collect(), true);
            };
            if completions_left > 0 {
                completions_left -= 1;
                best = self.complete(&state).into_iter().chain(best).min();
            }
            if steps == 0 {
                return (best.map_or_else(Vec::new, |(_, paths)| paths), false);
            }
            steps = steps.saturating_sub(count);
            for keeps in 0..count {
                let Some(next) = self.reserved(&state, resource, keeps) else { continue };
                let key: Vec<Bans> = next.paths.iter().map(|(bans, _)| bans.clone()).collect();
                if seen.insert(key) {
                    open.push(Reverse(next));
                }
            }
        }
        (best.map_or_else(Vec::new, |(_, paths)| paths), true)
    }

    fn state(&self, mut paths: Vec<(Bans, Rc<Path>)>) -> SearchState {
        paths.sort();
        SearchState { total: paths.iter().map(|(_, path)| path.cost(self.topology)).sum(), paths }
    }

    fn resources<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = SharedResource> + 'a {
        let groups_of_link = |link: &LinkId| self.groups_of_link[link.0].iter().copied();
        let links = path.links.iter().map(|link| self.groups + link.0);
        path.links.iter().flat_map(groups_of_link).chain(links)
    }

    /// The resource that most paths share, a group rather than a link; none where they are disjoint.
    fn conflict(&self, state: &SearchState) -> Option<SharedResource> {
        let mut used: BTreeMap<SharedResource, usize> = BTreeMap::new();
        for (_, path) in &state.paths {
            for resource in self.resources(path).collect::<BTreeSet<_>>() {
                *used.entry(resource).or_default() += 1;
            }
        }
        let most = used.into_iter().max_by_key(|(resource, paths)| (*paths, Reverse(*resource)));
        most.filter(|(_, paths)| *paths > 1).map(|(resource, _)| resource)
    }

    /// The state in which only path `keeps` may use `resource`.
    fn reserved(
        &self,
        state: &SearchState,
        resource: SharedResource,
        keeps: usize,
    ) -> Option<SearchState> {
        let mut paths = Vec::with_capacity(state.paths.len());
        for (number, (bans, path)) in state.paths.iter().enumerate() {
            if number == keeps || bans.contains(&resource) {
                paths.push((bans.clone(), path.clone()));
                continue;
            }
            let mut more = (**bans).clone();
            more.insert(resource);
            let path = if self.resources(path).any(|used| used == resource) {
                Rc::new(self.shortest(&more)?)
            } else {
                path.clone()
            };
            paths.push((Rc::new(more), path));
        }
        Some(self.state(paths))
    }

    /// Completes a state greedily: one path after the other, each avoiding the resources of those before it.
    fn complete(&self, state: &SearchState) -> Option<(u64, Vec<Path>)> {
        let mut taken = BTreeSet::new();
        let mut paths = Vec::with_capacity(state.paths.len());
        for (bans, _) in &state.paths {
            let all: BTreeSet<SharedResource> = bans.union(&taken).copied().collect();
            let path = self.shortest(&all)?;
            taken.extend(self.resources(&path));
            paths.push(path);
        }
        Some((paths.iter().map(|path| path.cost(self.topology)).sum(), paths))
    }

    fn shortest(&self, bans: &BTreeSet<SharedResource>) -> Option<Path> {
        let [from, to] = self.ends;
        let may_use = |link: LinkId| {
            !bans.contains(&(self.groups + link.0))
                && !self.groups_of_link[link.0].iter().any(|group| bans.contains(group))
        };
        shortest_beside(self.topology, &self.neighbours, from, to, may_use)
    }
}
