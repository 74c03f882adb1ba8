//! Ways that share no risk group and no link, with the least total delay.
//!
//! Finding them is hard (NP-complete: Hu 2003), but real networks are small. Branch and bound: at first
//! each way is the shortest there is; where several use one resource (a group or a link), at most one of
//! them may keep it, so the search goes on once for each that does, with the resource banned from the
//! others. The total of the shortest ways under their bans is at most what any answer below costs, so the
//! first one taken by least total that has no conflict is the best. After [`work`] steps the best that was
//! come upon stands instead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::rc::Rc;

use super::{Path, neighbours, shortest_beside};
use crate::{LinkId, NodeId, Topology};

/// Steps of a search in a small network; each is a shortest way or a few.
const STEPS_MAX: usize = 20_000;
const STEPS_MIN: usize = 200;
/// Steps times links: seconds at most.
const STEPS_LINKS: usize = 10_000_000;
/// States that are completed without much thought, for an answer to stand when work ends.
const GUESSES: usize = 256;

/// Steps in a network with so many links.
fn work(links: usize) -> usize {
    (STEPS_LINKS / links.max(1)).clamp(STEPS_MIN, STEPS_MAX)
}

/// What at most one way may use: groups first, then links.
type Resource = usize;
/// What a way may not use.
type Bans = Rc<BTreeSet<Resource>>;

struct Search<'a> {
    topology: &'a Topology,
    neighbours: Vec<Vec<(LinkId, NodeId)>>,
    ends: [NodeId; 2],
    groups: usize,
    /// Groups of each link.
    of_link: Vec<Vec<Resource>>,
}

/// Ways with their bans, in order, so that the same set in another order is the same.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
struct State {
    total: u64,
    ways: Vec<(Bans, Rc<Path>)>,
}

/// As many ways as there are, up to `count`; whether there are none better is known unless work ended.
pub(super) fn disjoint(
    topology: &Topology,
    [from, to]: [NodeId; 2],
    count: usize,
) -> (Vec<Path>, bool) {
    let mut numbers: BTreeMap<&str, Resource> = BTreeMap::new();
    let mut of_link = Vec::with_capacity(topology.links.len());
    for link in &topology.links {
        let mut groups = Vec::with_capacity(link.risk_groups.len());
        for group in &link.risk_groups {
            let next = numbers.len();
            groups.push(*numbers.entry(group).or_insert(next));
        }
        of_link.push(groups);
    }
    let groups = numbers.len();
    let neighbours = neighbours(topology);
    let search = Search { topology, neighbours, ends: [from, to], groups, of_link };
    let mut left = work(topology.links.len());
    let mut is_certain = true;
    for count in (1..=count).rev() {
        // Half of what is left for this many, so that something is left for fewer.
        let steps = (left / 2).max(STEPS_MIN);
        left = left.saturating_sub(steps);
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
        let ways = vec![(free, Rc::new(first)); count];
        let mut waiting = BinaryHeap::from([Reverse(self.state(ways))]);
        let mut seen = HashSet::new();
        let mut guess: Option<(u64, Vec<Path>)> = None;
        let mut guesses = GUESSES;
        while let Some(Reverse(state)) = waiting.pop() {
            if guess.as_ref().is_some_and(|(total, _)| *total <= state.total) {
                break;
            }
            let Some(resource) = self.conflict(&state) else {
                return (state.ways.iter().map(|(_, way)| (**way).clone()).collect(), true);
            };
            if guesses > 0 {
                guesses -= 1;
                guess = self.complete(&state).into_iter().chain(guess).min();
            }
            if steps == 0 {
                return (guess.map_or_else(Vec::new, |(_, ways)| ways), false);
            }
            steps = steps.saturating_sub(count);
            for keeps in 0..count {
                let Some(next) = self.reserved(&state, resource, keeps) else { continue };
                let key: Vec<Bans> = next.ways.iter().map(|(bans, _)| bans.clone()).collect();
                if seen.insert(key) {
                    waiting.push(Reverse(next));
                }
            }
        }
        (guess.map_or_else(Vec::new, |(_, ways)| ways), true)
    }

    fn state(&self, mut ways: Vec<(Bans, Rc<Path>)>) -> State {
        ways.sort();
        State { total: ways.iter().map(|(_, way)| way.cost(self.topology)).sum(), ways }
    }

    fn resources<'a>(&'a self, way: &'a Path) -> impl Iterator<Item = Resource> + 'a {
        let of_link = |link: &LinkId| self.of_link[link.0].iter().copied();
        let links = way.links.iter().map(|link| self.groups + link.0);
        way.links.iter().flat_map(of_link).chain(links)
    }

    /// What most ways have in common, a group rather than a link; none where they have nothing.
    fn conflict(&self, state: &State) -> Option<Resource> {
        let mut used: BTreeMap<Resource, usize> = BTreeMap::new();
        for (_, way) in &state.ways {
            for resource in self.resources(way).collect::<BTreeSet<_>>() {
                *used.entry(resource).or_default() += 1;
            }
        }
        let most = used.into_iter().max_by_key(|(resource, ways)| (*ways, Reverse(*resource)));
        most.filter(|(_, ways)| *ways > 1).map(|(resource, _)| resource)
    }

    /// The state with a resource banned from all ways but one.
    fn reserved(&self, state: &State, resource: Resource, keeps: usize) -> Option<State> {
        let mut ways = Vec::with_capacity(state.ways.len());
        for (number, (bans, way)) in state.ways.iter().enumerate() {
            if number == keeps || bans.contains(&resource) {
                ways.push((bans.clone(), way.clone()));
                continue;
            }
            let mut more = (**bans).clone();
            more.insert(resource);
            let way = if self.resources(way).any(|used| used == resource) {
                Rc::new(self.shortest(&more)?)
            } else {
                way.clone()
            };
            ways.push((Rc::new(more), way));
        }
        Some(self.state(ways))
    }

    /// An answer below a state: one way after the other, each without what those before it use.
    fn complete(&self, state: &State) -> Option<(u64, Vec<Path>)> {
        let mut taken = BTreeSet::new();
        let mut ways = Vec::with_capacity(state.ways.len());
        for (bans, _) in &state.ways {
            let all: BTreeSet<Resource> = bans.union(&taken).copied().collect();
            let way = self.shortest(&all)?;
            taken.extend(self.resources(&way));
            ways.push(way);
        }
        Some((ways.iter().map(|way| way.cost(self.topology)).sum(), ways))
    }

    fn shortest(&self, bans: &BTreeSet<Resource>) -> Option<Path> {
        let [from, to] = self.ends;
        let may_use = |link: LinkId| {
            !bans.contains(&(self.groups + link.0))
                && !self.of_link[link.0].iter().any(|group| bans.contains(group))
        };
        shortest_beside(self.topology, &self.neighbours, from, to, may_use)
    }
}
