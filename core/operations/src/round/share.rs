//! How fast each transfer goes: links, interfaces and storage shared among all, with the reason of each rate.

use std::collections::{BTreeMap, HashMap};

use penstock_allocation::{self as allocation, Bound, Demand, Problem, RATE_MAX, Resource};
use penstock_topology::paths::Path;
use penstock_units::BitRate;

use super::route::{Chosen, Direction};
use super::{Decision, HostView, Planner, RESERVABLE_PERCENT, RunView, Setting, Snapshot, balance};
use crate::forecast;

/// A transfer that has less than so much of its rate, in hundredths, for a reason of its own is slow ...
const SLOW: u64 = 70;

/// ... until it has so much again.
const SLOW_NO_MORE: u64 = 85;

/// What a slow one could use next: so much of what it has, in hundredths.
const ROOM: u64 = 130;

/// A transfer is slow for so long before others get what it leaves.
const SLOW_MS: i64 = 3_000;

/// What a slow one may always have.
const LEAST_BPS: u64 = 10_000_000;

/// Nodes have so long to say that they obey a lower rate before others wait for them no longer.
const OBEY_MS: i64 = 2_000;

/// A raise by less than this is left out, in thousandths.
const RAISE_LEAST: u64 = 50;

/// From this rate on one look tells whether a transfer is on its path ...
const TELLING_BPS: u64 = 10_000_000;

/// ... and below it a while of looks that all say the same.
const TELLING_MS: i64 = 5_000;

impl Planner {
    /// Sets path, rate and reason of each run.
    pub(super) fn share(&self, snapshot: &Snapshot, runs: &[&RunView], decision: &mut Decision) {
        let hosts: HashMap<&str, &HostView> =
            snapshot.hosts.iter().map(|host| (host.name.as_str(), host)).collect();
        let mut ways = self.routes(snapshot, runs);
        let mut slow = Vec::with_capacity(runs.len());
        let mut problem = Problem { classes: self.allocation_classes(), ..Problem::default() };
        let mut resources = Resources::default();
        let guarantees = self.guarantees(snapshot, runs, &ways);
        resources.reserve(snapshot);
        for (at, (run, chosen)) in runs.iter().zip(&ways).enumerate() {
            let paths = match (chosen.way(), &chosen.broken) {
                (Some(_), _) if chosen.circuit.is_some() => {
                    let mut names = self.ends(run, &hosts, &mut resources);
                    names.extend(chosen.circuit.iter().map(|(promise, _)| {
                        let promise = &snapshot.promises[*promise];
                        let id = promise.circuit.as_ref().map_or(0, |circuit| circuit.id);
                        resources.add(format!("circuit {id}"), promise.rate_bps)
                    }));
                    vec![names]
                }
                (Some(way), _) => vec![self.resources(run, way, &hosts, &mut resources)],
                // A pair of hosts without links between them in the topology: their own limits are all that is known.
                (None, None) => vec![self.ends(run, &hosts, &mut resources)],
                (None, Some(_)) => Vec::new(),
            };
            let since = slow_since(run, snapshot.now_ms);
            let demand = since
                .filter(|since| snapshot.now_ms - since >= SLOW_MS)
                .map(|_| (run.measured_bps.saturating_mul(ROOM) / 100).max(LEAST_BPS));
            slow.push(since);
            problem.demands.push(Demand {
                name: run.setting.run.to_string(),
                class: self.class(&run.class).map(|class| class.name.clone()),
                weight: run.weight(),
                demand: demand.map(|rate| BitRate(rate.min(RATE_MAX.0))),
                guarantee: BitRate(guarantees[at].rate_bps().min(RATE_MAX.0)),
                cap: None,
                paths,
            });
        }
        let free = |at: &usize| Self::may_move(snapshot, runs[*at]);
        let others = balance::movable(&ways).filter(free).map(|at| {
            let up = ways[at].ways.iter().enumerate().filter(|(_, way)| self.is_up(way, snapshot));
            let taken =
                up.map(|(way, path)| (way, self.resources(runs[at], path, &hosts, &mut resources)));
            (at, taken.collect())
        });
        let others = others.collect();
        problem.resources = resources.into_list();
        self.balance(runs, &others, &mut ways, &mut problem);
        let allotted = match allocation::allocate(&problem) {
            Ok(allotted) => allotted.allotments,
            Err(error) => {
                // The problem is made here, so this is a bug; what runs goes on as it was told.
                decision.notes.push(format!("nothing can be shared: {error}"));
                return;
            }
        };
        let waits = pending(snapshot.now_ms, runs, &problem);
        let visible = self.visible_on_path(snapshot, runs, &ways, &hosts);
        for (at, run) in runs.iter().enumerate() {
            let (allotment, chosen) = (&allotted[at], &ways[at]);
            let held = problem.demands[at]
                .paths
                .iter()
                .flatten()
                .any(|name| waits.get(name.as_str()).is_some_and(|by| *by != run.setting.run));
            let rate = follow(run.setting.rate_bps, allotment.rate.0, held);
            let route = chosen.way().map(|way| {
                way.links.iter().map(|link| self.topology.links[link.0].name.clone()).collect()
            });
            let path =
                match (chosen.way(), hosts.get(run.from.as_str()), hosts.get(run.to.as_str())) {
                    _ if chosen.circuit.is_some() => {
                        chosen.circuit.iter().map(|(_, pair)| pair.clone()).collect()
                    }
                    (Some(way), Some(from), Some(to)) if chosen.is_one_of_several() => {
                        self.pairs(way, from, to)
                    }
                    _ => Vec::new(),
                };
            let route: Vec<String> = route.unwrap_or_default();
            let was_up = || !run.setting.route.iter().any(|link| snapshot.down.contains(link));
            let is_same_route = route == run.setting.route;
            let moved_ms = match is_same_route {
                true => run.setting.moved_ms,
                false if run.setting.route.is_empty() || !was_up() => 0,
                false => snapshot.now_ms,
            };
            let (off_since_ms, place) = match visible.get(&run.setting.run) {
                // The judgement of the path before holds for that path alone.
                None if !is_same_route => (None, None),
                // Without new counters the last judgement stays.
                None => (run.setting.off_since_ms, None),
                Some(None) => (None, None),
                Some(Some(place)) => {
                    (Some(run.setting.off_since_ms.unwrap_or(snapshot.now_ms)), Some(place))
                }
            };
            let off_path = match (off_since_ms, place) {
                (None, _) => false,
                (Some(_), None) => run.setting.off_path,
                (Some(since), Some(place)) => {
                    run.setting.off_path
                        || place.is_certain
                        || snapshot.now_ms - since >= TELLING_MS
                }
            };
            let setting = Setting {
                run: run.setting.run,
                rate_bps: Some(rate),
                streams: self.rules.streams,
                path,
                route,
                moved_ms,
                reason: reason(run, chosen, allotment, guarantees[at], slow[at], snapshot.now_ms),
                slow_since_ms: slow[at],
                off_path,
                off_since_ms,
            };
            if let Some(place) = place.filter(|_| off_path && !run.setting.off_path) {
                decision.notes.push(format!(
                    "order {} from {} to {} does not show {}, where its path is",
                    setting.run * 2,
                    run.from,
                    run.to,
                    place.name
                ));
            }
            if !run.setting.route.is_empty() && setting.route != run.setting.route {
                decision.notes.push(format!(
                    "order {} goes over {} instead of {}",
                    setting.run * 2,
                    shown(&setting.route),
                    shown(&run.setting.route)
                ));
            }
            let class = decision.classes.entry(run.class.clone()).or_default();
            *class = (class.0 + rate, class.1 + run.measured_bps);
            if setting != run.setting {
                decision.settings.push(setting);
            }
        }
    }

    fn allocation_classes(&self) -> Vec<allocation::Class> {
        let bounded = |rate: u64| BitRate(rate.min(RATE_MAX.0));
        let classes = self.classes.iter().map(|class| allocation::Class {
            name: class.name.clone(),
            weight: class.weight,
            floor: bounded(class.floor_bps),
            mark: class.mark_bps.map(bounded),
            cap: class.cap_bps.map(bounded),
            tier: class.tier,
        });
        classes.collect()
    }

    /// What each run must have: its part of what is reserved for its class, and what its deadline takes. Reservations come
    /// first: deadlines, the most urgent first, get what can be guaranteed beside them.
    fn guarantees(
        &self,
        snapshot: &Snapshot,
        runs: &[&RunView],
        ways: &[Chosen],
    ) -> Vec<Guarantee> {
        let mut guarantees = vec![Guarantee::default(); runs.len()];
        // What is left to guarantee of each link in each direction.
        let mut room: HashMap<String, u64> = HashMap::new();
        let names: Vec<Vec<String>> =
            ways.iter().map(|chosen| self.way_resources(chosen)).collect();
        let is_needed = |run: &&RunView| run.deadline.is_some();
        if runs.iter().any(is_needed) {
            let mut taken: HashMap<&str, u64> = HashMap::new();
            for promise in &snapshot.promises {
                for name in &promise.resources {
                    let taken = taken.entry(name).or_default();
                    *taken = taken.saturating_add(promise.rate_bps);
                }
            }
            room.extend(self.capacities().map(|(name, usable)| {
                let taken = taken.get(name.as_str()).copied().unwrap_or(0);
                (name, (usable / 100 * RESERVABLE_PERCENT).saturating_sub(taken))
            }));
        }
        for (number, promise) in snapshot.promises.iter().enumerate() {
            // What goes over a circuit has its part of that one and of no other reservation.
            let mine = |at: &usize| match &ways[*at].circuit {
                Some((circuit, _)) => *circuit == number,
                None => self.is_for(promise, runs[*at]),
            };
            let among: Vec<usize> = (0..runs.len()).filter(mine).collect();
            for at in &among {
                let part = promise.rate_bps / among.len() as u64;
                let reserved = &mut guarantees[*at].reserved_bps;
                *reserved = reserved.saturating_add(part);
                if ways[*at].circuit.is_some() {
                    continue;
                }
                // On links that its reservation does not name, it is had all the same.
                for name in names[*at].iter().filter(|name| !promise.resources.contains(name)) {
                    room.entry(name.clone()).and_modify(|room| *room = room.saturating_sub(part));
                }
            }
        }
        let mut of_request: HashMap<i64, u64> = HashMap::new();
        for run in runs {
            *of_request.entry(run.request).or_default() += 1;
        }
        let mut urgent: Vec<usize> = (0..runs.len()).filter(|at| is_needed(&runs[*at])).collect();
        urgent.sort_by_key(|at| {
            let run = runs[*at];
            (std::cmp::Reverse(run.priority), run.deadline.map(|(until, _)| until), run.setting.run)
        });
        for at in urgent {
            let Some((until, left)) = runs[at].deadline else { continue };
            let seconds = (until - snapshot.now_ms) / 1000;
            let needed = forecast::needed_bps(left, seconds).unwrap_or(0);
            let needed = needed / of_request[&runs[at].request];
            // What a reservation of its class gives it counts.
            let more = needed.saturating_sub(guarantees[at].reserved_bps);
            let left = names[at].iter().filter_map(|name| room.get(name)).min().copied();
            let granted = more.min(left.unwrap_or(more));
            for name in &names[at] {
                room.entry(name.clone()).and_modify(|room| *room -= granted.min(*room));
            }
            guarantees[at].needed_bps = needed;
            guarantees[at].deadline_bps = granted;
        }
        guarantees
    }

    /// The links of the way of a run with their directions, by the names of [`Self::site_ways`]; none over a circuit, whose
    /// links are its own.
    fn way_resources(&self, chosen: &Chosen) -> Vec<String> {
        let way = chosen.way().filter(|_| chosen.circuit.is_none());
        let links = way.into_iter().flat_map(|way| way.links.iter().zip(&way.nodes));
        links
            .map(|(link, from)| {
                let from = &self.topology.nodes[from.0].name;
                Self::link_resource(&self.topology.links[link.0], from)
            })
            .collect()
    }

    /// Everything that a run takes from on this way.
    fn resources(
        &self,
        run: &RunView,
        way: &Path,
        hosts: &HashMap<&str, &HostView>,
        resources: &mut Resources,
    ) -> Vec<String> {
        let mut names = self.ends(run, hosts, resources);
        for (link, from) in way.links.iter().zip(&way.nodes) {
            let link = &self.topology.links[link.0];
            let from = &self.topology.nodes[from.0].name;
            names.push(resources.add(Self::link_resource(link, from), self.usable(link)));
        }
        names
    }

    /// What a run takes from at its hosts.
    fn ends(
        &self,
        run: &RunView,
        hosts: &HashMap<&str, &HostView>,
        resources: &mut Resources,
    ) -> Vec<String> {
        let mut names = Vec::new();
        let none = HostView::default();
        for (host, words) in
            [(&run.from, ["sending", "reading"]), (&run.to, ["receiving", "writing"])]
        {
            let capacity = &hosts.get(host.as_str()).copied().unwrap_or(&none).capacity;
            let storage =
                if words[1] == "reading" { capacity.read_bps } else { capacity.write_bps };
            let network = capacity.network_bps.unwrap_or(RATE_MAX.0);
            names.push(resources.add(format!("{} of {host}", words[0]), network));
            if let Some(storage) = storage {
                names.push(resources.add(format!("{} of {host}", words[1]), storage));
            }
        }
        names
    }

    /// Of runs that something tells of, whether their bytes show where their way is: at the interface at which it begins,
    /// and on links that are counted. None where they do, else the place where they do not.
    fn visible_on_path(
        &self,
        snapshot: &Snapshot,
        runs: &[&RunView],
        ways: &[Chosen],
        hosts: &HashMap<&str, &HostView>,
    ) -> HashMap<i64, Option<MissingAt>> {
        let now_ms = snapshot.now_ms;
        let mut visible = HashMap::new();
        let mut at: BTreeMap<(&str, &str), (u64, Vec<i64>)> = BTreeMap::new();
        let mut over: BTreeMap<Direction, (u64, Vec<i64>)> = BTreeMap::new();
        for (run, chosen) in runs.iter().zip(ways) {
            // Its packets follow a path only some time after its hosts were given it.
            let is_given = |way: &&Path| {
                let links = way.links.iter().map(|link| &self.topology.links[link.0].name);
                links.eq(run.setting.route.iter())
            };
            let is_settled = run.moving && now_ms - run.set_ms > OBEY_MS;
            let Some(way) = chosen.way().filter(is_given).filter(|_| is_settled) else { continue };
            // A slow one moves in bursts, which counters spread over their interval.
            let expected = run.mean_bps.map_or(run.measured_bps, |mean| run.measured_bps.min(mean));
            for direction in self.directions(way) {
                let count = snapshot.counts.get(&self.topology.links[direction.0.0].name);
                // Counters speak of a time, at all of which it was there, and speak lately.
                let speaks = count.is_some_and(|count| {
                    let begin_ms = count.at_ms - count.interval_ms;
                    begin_ms > run.set_ms + OBEY_MS
                        && now_ms - count.at_ms < 3 * count.interval_ms + OBEY_MS
                });
                if speaks {
                    let entry = over.entry(direction).or_default();
                    entry.0 += expected;
                    entry.1.push(run.setting.run);
                }
            }
            // Where others do not reach the host, as on one machine, packets need not use it.
            let is_reached = |name: &str| {
                let known = hosts.get(run.from.as_str()).map(|host| host.interfaces.iter());
                known.into_iter().flatten().any(|one| one.name == name && !one.addresses.is_empty())
            };
            let first = self.interfaces(way).map(|(first, _)| first);
            if let Some(first) =
                first.filter(|first| chosen.is_one_of_several() || is_reached(first))
            {
                let entry = at.entry((&run.from, first)).or_default();
                entry.0 += expected;
                entry.1.push(run.setting.run);
            }
        }
        let mut judge = |expected: u64, counted: Option<u64>, runs: Vec<i64>, name: String| {
            let Some(counted) = counted.filter(|_| expected > 0) else { return };
            let is_certain = expected > TELLING_BPS;
            let missing = (counted < expected / 2).then_some(MissingAt { name, is_certain });
            for run in runs {
                let entry: &mut Option<MissingAt> = visible.entry(run).or_default();
                // One place where it does not show is enough.
                if missing.is_some() {
                    entry.clone_from(&missing);
                }
            }
        };
        for (direction, (expected, runs)) in over {
            let name = &self.topology.links[direction.0.0].name;
            let counted = snapshot.counts[name].bps[usize::from(!direction.1)];
            judge(expected, counted, runs, format!("on link {name}"));
        }
        for ((host, name), (expected, runs)) in at {
            let interfaces = hosts.get(host).map(|host| &host.interfaces);
            let sent = interfaces.and_then(|all| all.iter().find(|one| one.name == name));
            let counted = sent.map(|one| one.sent_bps);
            judge(expected, counted, runs, format!("at interface {name} of {host}"));
        }
        visible
    }
}

/// A place at which bytes of a run should show and do not.
#[derive(Debug, Clone)]
struct MissingAt {
    name: String,
    /// The rate is high enough that one look tells.
    is_certain: bool,
}

/// What a run is to have whatever others want.
#[derive(Debug, Clone, Copy, Default)]
struct Guarantee {
    /// Its part of what is reserved for its class.
    reserved_bps: u64,
    /// What it needs to meet its deadline.
    needed_bps: u64,
    /// What of that can be guaranteed beside reservations.
    deadline_bps: u64,
}

impl Guarantee {
    fn rate_bps(self) -> u64 {
        self.reserved_bps.saturating_add(self.deadline_bps)
    }
}

fn shown(route: &[String]) -> String {
    if route.is_empty() { "no path".to_owned() } else { route.join(", ") }
}

/// What there is, by name.
#[derive(Debug, Default)]
struct Resources {
    all: BTreeMap<String, u64>,
    /// What circuits have of links, used or not.
    taken: HashMap<String, u64>,
}

impl Resources {
    /// Takes from links what circuits have of them.
    fn reserve(&mut self, snapshot: &Snapshot) {
        for promise in &snapshot.promises {
            for name in promise.circuit.iter().flat_map(|circuit| &circuit.resources) {
                *self.taken.entry(name.clone()).or_default() += promise.rate_bps;
            }
        }
    }

    fn add(&mut self, name: String, capacity: u64) -> String {
        let taken = self.taken.get(&name).copied().unwrap_or(0);
        let left = capacity.min(RATE_MAX.0).saturating_sub(taken);
        self.all.entry(name.clone()).or_insert(left);
        name
    }

    fn into_list(self) -> Vec<Resource> {
        let list = self.all.into_iter();
        list.map(|(name, capacity)| Resource::new(name, BitRate(capacity))).collect()
    }
}

/// Since when a run is slower than it may be, for a reason of its own.
fn slow_since(run: &RunView, now_ms: i64) -> Option<i64> {
    let rate = run.setting.rate_bps.filter(|rate| *rate > LEAST_BPS && run.moving)?;
    // What its limit holds back is not slow; what has no word about it is not known to be.
    if matches!(run.bound_by.as_str(), "rate" | "") {
        return None;
    }
    let has = |percent: u64| run.measured_bps >= rate / 100 * percent;
    match run.setting.slow_since_ms {
        Some(since) => (!has(SLOW_NO_MORE)).then_some(since),
        // Its streams may be on their way to another path.
        None if now_ms - run.setting.moved_ms < SLOW_MS => None,
        None => (!has(SLOW)).then_some(now_ms),
    }
}

/// Resources on which a run has yet to obey a lower rate, with that run.
fn pending<'a>(now_ms: i64, runs: &[&RunView], problem: &'a Problem) -> HashMap<&'a str, i64> {
    let mut waits = HashMap::new();
    for (run, demand) in runs.iter().zip(&problem.demands) {
        let over = match (run.applied_bps, run.setting.rate_bps) {
            (Some(applied), Some(rate)) => applied > rate,
            _ => false,
        };
        if over && run.moving && now_ms - run.set_ms < OBEY_MS {
            for name in demand.paths.iter().flatten() {
                waits.insert(name.as_str(), run.setting.run);
            }
        }
    }
    waits
}

/// The next rate: down at once, up when nobody has to slow down first, and not for a little.
fn follow(now: Option<u64>, allotted: u64, held: bool) -> u64 {
    match now {
        Some(now) if allotted <= now => allotted,
        None | Some(0) if held => 0,
        Some(now) if held || allotted - now < now / 1000 * RAISE_LEAST => now,
        _ => allotted,
    }
}

/// Why a run has its rate, for people.
fn reason(
    run: &RunView,
    chosen: &Chosen,
    allotment: &allocation::Allotment,
    guarantee: Guarantee,
    slow_since: Option<i64>,
    now_ms: i64,
) -> String {
    let mut text = match (&allotment.bound, &chosen.broken) {
        (Bound::NoPath, Some(link)) => format!("there is no other path while link {link} is down"),
        (Bound::Demand, _) if slow_since.is_some_and(|since| now_ms - since >= SLOW_MS) => {
            format!("it uses no more: {} holds it back", run.bound_by)
        }
        (bound, _) => bound.to_string(),
    };
    if chosen.circuit.is_some() {
        text += "; over a circuit of its own";
    }
    let promised = guarantee.rate_bps();
    if promised > 0 {
        text += &format!("; {} of it are promised", BitRate(promised.min(allotment.rate.0)));
    }
    if allotment.shortfall.0 > 0 && promised > 0 {
        text += &format!("; {} short of the promise", allotment.shortfall);
    }
    if guarantee.needed_bps > promised {
        text += &format!(
            "; its deadline needs {}, of which {} can be guaranteed",
            BitRate(guarantee.needed_bps),
            BitRate(promised)
        );
    }
    text
}
