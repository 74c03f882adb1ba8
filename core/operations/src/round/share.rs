//! How fast each transfer goes: links, interfaces and storage shared among all, with the reason of each rate.

use std::collections::{BTreeMap, HashMap};

use penstock_allocation::{self as allocation, Bound, Demand, Problem, RATE_MAX, Resource};
use penstock_topology::paths::Path;
use penstock_units::BitRate;

use super::route::{Chosen, Direction};
use super::{Decision, HostView, Planner, RunView, Setting, Snapshot, balance};
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

/// Rates below it are too small to tell a path by.
const TELLING_BPS: u64 = 10_000_000;

impl Planner {
    /// Sets path, rate and reason of each run.
    pub(super) fn share(&self, snapshot: &Snapshot, runs: &[&RunView], decision: &mut Decision) {
        let hosts: HashMap<&str, &HostView> =
            snapshot.hosts.iter().map(|host| (host.name.as_str(), host)).collect();
        let mut ways = self.routes(snapshot, runs);
        let mut slow = Vec::with_capacity(runs.len());
        let mut problem = Problem { classes: self.allocation_classes(), ..Problem::default() };
        let mut resources = Resources::default();
        let promised = self.promised(snapshot, runs, &ways);
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
                guarantee: BitRate(promised[at].min(RATE_MAX.0)),
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
        let off_path = self.off_path(snapshot, runs, &ways, &hosts);
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
            let moved_ms = match route == run.setting.route {
                true => run.setting.moved_ms,
                false if run.setting.route.is_empty() || !was_up() => 0,
                false => snapshot.now_ms,
            };
            let setting = Setting {
                run: run.setting.run,
                rate_bps: Some(rate),
                streams: self.rules.streams,
                path,
                route,
                moved_ms,
                reason: reason(run, chosen, allotment, promised[at], slow[at], snapshot.now_ms),
                slow_since_ms: slow[at],
                off_path: off_path.contains_key(&run.setting.run),
            };
            if let Some(place) = off_path.get(&setting.run).filter(|_| !run.setting.off_path) {
                decision.notes.push(format!(
                    "order {} from {} to {} does not show {place}, where its path is",
                    setting.run * 2,
                    run.from,
                    run.to
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

    /// What each run must have: what its deadline takes, and its part of what its class was promised.
    fn promised(&self, snapshot: &Snapshot, runs: &[&RunView], ways: &[Chosen]) -> Vec<u64> {
        let mut of_request: HashMap<i64, u64> = HashMap::new();
        for run in runs {
            *of_request.entry(run.request).or_default() += 1;
        }
        let mut promised: Vec<u64> = runs
            .iter()
            .map(|run| {
                let Some((until, left)) = run.deadline else { return 0 };
                let seconds = (until - snapshot.now_ms) / 1000;
                forecast::needed_bps(left, seconds).unwrap_or(0) / of_request[&run.request]
            })
            .collect();
        for (number, promise) in snapshot.promises.iter().enumerate() {
            // What goes over a circuit has its part of that one and of no other promise.
            let mine = |at: &usize| match &ways[*at].circuit {
                Some((circuit, _)) => *circuit == number,
                None => self.is_for(promise, runs[*at]),
            };
            let among: Vec<usize> = (0..runs.len()).filter(mine).collect();
            for at in &among {
                promised[*at] = promised[*at].saturating_add(promise.rate_bps / among.len() as u64);
            }
        }
        promised
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

    /// Runs whose bytes do not show where their way is: at the interface at which it begins, or on a link that is counted;
    /// with that place.
    fn off_path(
        &self,
        snapshot: &Snapshot,
        runs: &[&RunView],
        ways: &[Chosen],
        hosts: &HashMap<&str, &HostView>,
    ) -> HashMap<i64, String> {
        let now_ms = snapshot.now_ms;
        let mut off = HashMap::new();
        let mut at: BTreeMap<(&str, &str), (u64, Vec<i64>)> = BTreeMap::new();
        let mut over: BTreeMap<Direction, (u64, Vec<i64>)> = BTreeMap::new();
        for (run, chosen) in runs.iter().zip(ways) {
            // One that was only just told is not there yet.
            let settled = chosen.way().filter(|_| run.moving && now_ms - run.set_ms > OBEY_MS);
            let Some(way) = settled else { continue };
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
                    entry.0 += run.measured_bps;
                    entry.1.push(run.setting.run);
                }
            }
            if let Some((first, _)) = self.interfaces(way).filter(|_| chosen.is_one_of_several()) {
                let entry = at.entry((&run.from, first)).or_default();
                entry.0 += run.measured_bps;
                entry.1.push(run.setting.run);
            }
        }
        for (direction, (measured, runs)) in over {
            let name = &self.topology.links[direction.0.0].name;
            let counted = snapshot.counts[name].bps[usize::from(!direction.1)];
            if counted.is_some_and(|counted| measured > TELLING_BPS && counted < measured / 2) {
                off.extend(runs.into_iter().map(|run| (run, format!("on link {name}"))));
            }
        }
        for ((host, name), (measured, runs)) in at {
            let interfaces = hosts.get(host).map(|host| &host.interfaces);
            let sent = interfaces.and_then(|all| all.iter().find(|one| one.name == name));
            if sent.is_some_and(|one| measured > TELLING_BPS && one.sent_bps < measured / 2) {
                let place = format!("at interface {name} of {host}");
                off.extend(runs.into_iter().map(|run| (run, place.clone())));
            }
        }
        off
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
    promised: u64,
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
    if promised > 0 {
        text += &format!("; {} of it are promised", BitRate(promised.min(allotment.rate.0)));
    }
    if allotment.shortfall.0 > 0 && promised > 0 {
        text += &format!("; {} short of the promise", allotment.shortfall);
    }
    text
}
