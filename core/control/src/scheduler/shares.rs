//! Rates of all transfers: shares links, interfaces and storage, and states the reason of each rate.

use std::collections::{BTreeMap, HashMap};

use penstock_allocation::{self as allocation, Bound, Demand, Problem, RATE_MAX, Resource};
use penstock_topology::paths::Path;
use penstock_units::BitRate;

use super::routes::{LinkDirection, RouteChoice};
use super::{
    HostView, Planner, RESERVABLE_PERCENT, RoundDecision, RunPlan, RunView, Snapshot, balance,
};
use crate::forecast;
use crate::order_id::{OrderId, RunSide};

/// A transfer below this percentage of its rate, for a reason of its own, is slow ...
const SLOW_BELOW_PERCENT: u64 = 70;

/// ... until it reaches this percentage again.
const SLOW_UNTIL_PERCENT: u64 = 85;

/// Demand of a slow transfer, as a percentage of its measured rate.
const SLOW_HEADROOM_PERCENT: u64 = 130;

/// Time after which the unused rate of a slow transfer goes to others.
const SLOW_AFTER_MS: i64 = 3_000;

/// Lower bound of the demand of a slow transfer.
const SLOW_DEMAND_MIN_BPS: u64 = 10_000_000;

/// Time that nodes have to confirm a lower rate before other transfers are raised regardless.
const RATE_CONFIRM_TIMEOUT_MS: i64 = 2_000;

/// Raises below this are skipped, in thousandths of the present rate.
const RAISE_MIN_PERMILLE: u64 = 50;

/// From this rate on a single observation proves that a transfer is off its path ...
const OFF_PATH_CERTAIN_BPS: u64 = 10_000_000;

/// ... and below it consistent observations over this time.
const OFF_PATH_CONFIRM_MS: i64 = 5_000;

impl Planner {
    /// Decides path, rate and reason of each run.
    pub(super) fn share(
        &self,
        snapshot: &Snapshot,
        runs: &[&RunView],
        decision: &mut RoundDecision,
    ) {
        let hosts: HashMap<&str, &HostView> =
            snapshot.hosts.iter().map(|host| (host.name.as_str(), host)).collect();
        let mut choices = self.routes(snapshot, runs);
        let mut slow = Vec::with_capacity(runs.len());
        let mut problem = Problem { classes: self.allocation_classes(), ..Problem::default() };
        let mut resources = Resources::default();
        let guarantees = self.guarantees(snapshot, runs, &choices);
        resources.reserve(snapshot);
        for (at, (run, chosen)) in runs.iter().zip(&choices).enumerate() {
            let paths = match (chosen.path(), &chosen.broken) {
                (Some(_), _) if chosen.circuit.is_some() => {
                    let mut names = self.ends(run, &hosts, &mut resources);
                    names.extend(chosen.circuit.iter().map(|(reservation, _)| {
                        let reservation = &snapshot.reservations[*reservation];
                        let id = reservation.circuit.as_ref().map_or(0, |circuit| circuit.id);
                        resources.add(format!("circuit {id}"), reservation.rate_bps)
                    }));
                    vec![names]
                }
                (Some(path), _) => vec![self.resources(run, path, &hosts, &mut resources)],
                // Hosts that the topology does not connect: only their own limits are known.
                (None, None) => vec![self.ends(run, &hosts, &mut resources)],
                (None, Some(_)) => Vec::new(),
            };
            let since = slow_since(run, snapshot.now_ms);
            let demand = since.filter(|since| snapshot.now_ms - since >= SLOW_AFTER_MS).map(|_| {
                (run.measured_bps.saturating_mul(SLOW_HEADROOM_PERCENT) / 100)
                    .max(SLOW_DEMAND_MIN_BPS)
            });
            slow.push(since);
            problem.demands.push(Demand {
                name: run.plan.run.to_string(),
                class: self.class(&run.class).map(|class| class.name.clone()),
                weight: run.weight(),
                demand: demand.map(|rate| BitRate(rate.min(RATE_MAX.0))),
                guarantee: BitRate(guarantees[at].rate_bps().min(RATE_MAX.0)),
                cap: None,
                paths,
            });
        }
        let free = |at: &usize| Self::may_move(snapshot, runs[*at]);
        let others = balance::movable(&choices).filter(free).map(|at| {
            let up =
                choices[at].paths.iter().enumerate().filter(|(_, path)| self.is_up(path, snapshot));
            let taken = up.map(|(index, path)| {
                (index, self.resources(runs[at], path, &hosts, &mut resources))
            });
            (at, taken.collect())
        });
        let others = others.collect();
        problem.resources = resources.into_list();
        self.balance(runs, &others, &mut choices, &mut problem);
        let allotted = match allocation::allocate(&problem) {
            Ok(allotted) => allotted.allotments,
            Err(error) => {
                // The problem is built here, so this is a bug; runs keep their plans.
                decision.notes.push(format!("cannot allocate rates: {error}"));
                return;
            }
        };
        let waits = unconfirmed_cuts(snapshot.now_ms, runs, &problem);
        let visible = self.visible_on_path(snapshot, runs, &choices, &hosts);
        for (at, run) in runs.iter().enumerate() {
            let (allotment, chosen) = (&allotted[at], &choices[at]);
            let held = problem.demands[at]
                .paths
                .iter()
                .flatten()
                .any(|name| waits.get(name.as_str()).is_some_and(|by| *by != run.plan.run));
            let rate = next_rate(run.plan.rate_bps, allotment.rate.0, held);
            let route = chosen.path().map(|path| {
                path.links.iter().map(|link| self.topology.links[link.0].name.clone()).collect()
            });
            let path =
                match (chosen.path(), hosts.get(run.from.as_str()), hosts.get(run.to.as_str())) {
                    _ if chosen.circuit.is_some() => {
                        chosen.circuit.iter().map(|(_, pair)| pair.clone()).collect()
                    }
                    (Some(path), Some(from), Some(to)) if chosen.has_alternatives() => {
                        self.pairs(path, from, to)
                    }
                    _ => Vec::new(),
                };
            let route: Vec<String> = route.unwrap_or_default();
            let was_up = || !run.plan.route.iter().any(|link| snapshot.down.contains(link));
            let is_same_route = route == run.plan.route;
            let moved_ms = match is_same_route {
                true => run.plan.moved_ms,
                false if run.plan.route.is_empty() || !was_up() => 0,
                false => snapshot.now_ms,
            };
            let (off_since_ms, place) = match visible.get(&run.plan.run) {
                // A verdict on the former path does not apply to the new one.
                None if !is_same_route => (None, None),
                // Without new counters the last verdict remains.
                None => (run.plan.off_since_ms, None),
                Some(None) => (None, None),
                Some(Some(place)) => {
                    (Some(run.plan.off_since_ms.unwrap_or(snapshot.now_ms)), Some(place))
                }
            };
            let off_path = match (off_since_ms, place) {
                (None, _) => false,
                (Some(_), None) => run.plan.off_path,
                (Some(since), Some(place)) => {
                    run.plan.off_path
                        || place.is_certain
                        || snapshot.now_ms - since >= OFF_PATH_CONFIRM_MS
                }
            };
            let plan = RunPlan {
                run: run.plan.run,
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
            if let Some(place) = place.filter(|_| off_path && !run.plan.off_path) {
                decision.notes.push(format!(
                    "order {} from {} to {} does not show {}, where its path is",
                    OrderId::of(plan.run, RunSide::Source),
                    run.from,
                    run.to,
                    place.name
                ));
            }
            if !run.plan.route.is_empty() && plan.route != run.plan.route {
                decision.notes.push(format!(
                    "order {} goes over {} instead of {}",
                    OrderId::of(plan.run, RunSide::Source),
                    shown(&plan.route),
                    shown(&run.plan.route)
                ));
            }
            let class = decision.classes.entry(run.class.clone()).or_default();
            *class = (class.0 + rate, class.1 + run.measured_bps);
            if plan != run.plan {
                decision.plans.push(plan);
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

    /// Returns the guarantee of each run: its share of its class's reservations, and the rate that its deadline needs.
    /// Deadlines, the most urgent first, get what reservations leave of the guaranteeable capacity.
    fn guarantees(
        &self,
        snapshot: &Snapshot,
        runs: &[&RunView],
        choices: &[RouteChoice],
    ) -> Vec<Guarantee> {
        let mut guarantees = vec![Guarantee::default(); runs.len()];
        // Capacity left to guarantee, of each link in each direction.
        let mut room: HashMap<String, u64> = HashMap::new();
        let names: Vec<Vec<String>> =
            choices.iter().map(|chosen| self.path_resources(chosen)).collect();
        let is_needed = |run: &&RunView| run.deadline.is_some();
        if runs.iter().any(is_needed) {
            let mut taken: HashMap<&str, u64> = HashMap::new();
            for reservation in &snapshot.reservations {
                for name in &reservation.resources {
                    let taken = taken.entry(name).or_default();
                    *taken = taken.saturating_add(reservation.rate_bps);
                }
            }
            room.extend(self.capacities().map(|(name, usable)| {
                let taken = taken.get(name.as_str()).copied().unwrap_or(0);
                (name, (usable / 100 * RESERVABLE_PERCENT).saturating_sub(taken))
            }));
        }
        for (number, reservation) in snapshot.reservations.iter().enumerate() {
            // A run on a circuit shares in that reservation only.
            let mine = |at: &usize| match &choices[*at].circuit {
                Some((circuit, _)) => *circuit == number,
                None => self.is_for(reservation, runs[*at]),
            };
            let among: Vec<usize> = (0..runs.len()).filter(mine).collect();
            for at in &among {
                let part = reservation.rate_bps / among.len() as u64;
                let reserved = &mut guarantees[*at].reserved_bps;
                *reserved = reserved.saturating_add(part);
                if choices[*at].circuit.is_some() {
                    continue;
                }
                // The part also counts on links that the reservation does not list.
                for name in names[*at].iter().filter(|name| !reservation.resources.contains(name)) {
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
            (std::cmp::Reverse(run.priority), run.deadline.map(|(until, _)| until), run.plan.run)
        });
        for at in urgent {
            let Some((until, left)) = runs[at].deadline else { continue };
            let seconds = (until - snapshot.now_ms) / 1000;
            let needed = forecast::needed_bps(left, seconds).unwrap_or(0);
            let needed = needed / of_request[&runs[at].request];
            // The class's reservation counts towards the deadline.
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

    /// Returns the links of a run's path with their directions, as named by [`Self::site_paths`]; none on a circuit,
    /// which has its own capacity.
    fn path_resources(&self, chosen: &RouteChoice) -> Vec<String> {
        let path = chosen.path().filter(|_| chosen.circuit.is_none());
        let links = path.into_iter().flat_map(|path| path.links.iter().zip(&path.nodes));
        links
            .map(|(link, from)| {
                let from = &self.topology.nodes[from.0].name;
                Self::link_resource(&self.topology.links[link.0], from)
            })
            .collect()
    }

    /// Returns all resources that a run uses on a path.
    fn resources(
        &self,
        run: &RunView,
        path: &Path,
        hosts: &HashMap<&str, &HostView>,
        resources: &mut Resources,
    ) -> Vec<String> {
        let mut names = self.ends(run, hosts, resources);
        for (link, from) in path.links.iter().zip(&path.nodes) {
            let link = &self.topology.links[link.0];
            let from = &self.topology.nodes[from.0].name;
            names.push(resources.add(Self::link_resource(link, from), self.usable(link)));
        }
        names
    }

    /// Returns the resources that a run uses at its hosts.
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

    /// Compares counters with the expected rate of each run along its path: at its first interface and on counted
    /// links. Returns runs with a verdict: none if their bytes show, else where they are missing.
    fn visible_on_path(
        &self,
        snapshot: &Snapshot,
        runs: &[&RunView],
        choices: &[RouteChoice],
        hosts: &HashMap<&str, &HostView>,
    ) -> HashMap<i64, Option<MissingAt>> {
        let now_ms = snapshot.now_ms;
        let mut visible = HashMap::new();
        let mut at: BTreeMap<(&str, &str), (u64, Vec<i64>)> = BTreeMap::new();
        let mut over: BTreeMap<LinkDirection, (u64, Vec<i64>)> = BTreeMap::new();
        for (run, chosen) in runs.iter().zip(choices) {
            // Packets follow a new path only some time after the hosts received it.
            let is_given = |path: &&Path| {
                let links = path.links.iter().map(|link| &self.topology.links[link.0].name);
                links.eq(run.plan.route.iter())
            };
            let is_settled = run.moving && now_ms - run.plan_changed_ms > RATE_CONFIRM_TIMEOUT_MS;
            let Some(path) = chosen.path().filter(is_given).filter(|_| is_settled) else {
                continue;
            };
            // A slow run sends in bursts, which counters average over their interval.
            let expected = run.mean_bps.map_or(run.measured_bps, |mean| run.measured_bps.min(mean));
            for direction in self.directions(path) {
                let count = snapshot.counts.get(&self.topology.links[direction.0.0].name);
                // Only recent counters count whose whole interval lies after the last change.
                let speaks = count.is_some_and(|count| {
                    let begin_ms = count.at_ms - count.interval_ms;
                    begin_ms > run.plan_changed_ms + RATE_CONFIRM_TIMEOUT_MS
                        && now_ms - count.at_ms < 3 * count.interval_ms + RATE_CONFIRM_TIMEOUT_MS
                });
                if speaks {
                    let entry = over.entry(direction).or_default();
                    entry.0 += expected;
                    entry.1.push(run.plan.run);
                }
            }
            // Between hosts without reported addresses, as on one machine, packets may bypass the interface.
            let is_reached = |name: &str| {
                let known = hosts.get(run.from.as_str()).map(|host| host.interfaces.iter());
                known.into_iter().flatten().any(|one| one.name == name && !one.addresses.is_empty())
            };
            let first = self.interfaces(path).map(|(first, _)| first);
            if let Some(first) =
                first.filter(|first| chosen.has_alternatives() || is_reached(first))
            {
                let entry = at.entry((&run.from, first)).or_default();
                entry.0 += expected;
                entry.1.push(run.plan.run);
            }
        }
        let mut judge = |expected: u64, counted: Option<u64>, runs: Vec<i64>, name: String| {
            let Some(counted) = counted.filter(|_| expected > 0) else { return };
            let is_certain = expected > OFF_PATH_CERTAIN_BPS;
            let missing = (counted < expected / 2).then_some(MissingAt { name, is_certain });
            for run in runs {
                let entry: &mut Option<MissingAt> = visible.entry(run).or_default();
                // One place where its bytes are missing is enough.
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

/// An interface or link where bytes of a run should show and do not.
#[derive(Debug, Clone)]
struct MissingAt {
    name: String,
    /// Set when the rate is high enough for a single observation to prove it.
    is_certain: bool,
}

/// Guaranteed rate of a run, by source.
#[derive(Debug, Clone, Copy, Default)]
struct Guarantee {
    /// Share of its class's reservations.
    reserved_bps: u64,
    /// Rate that meets its deadline.
    needed_bps: u64,
    /// Part of that rate which can be guaranteed beside reservations.
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

/// Capacities in bits per second by name.
#[derive(Debug, Default)]
struct Resources {
    all: BTreeMap<String, u64>,
    /// Part of each link that circuits occupy, in use or not.
    taken: HashMap<String, u64>,
}

impl Resources {
    /// Subtracts the rates of circuits from their links.
    fn reserve(&mut self, snapshot: &Snapshot) {
        for reservation in &snapshot.reservations {
            for name in reservation.circuit.iter().flat_map(|circuit| &circuit.resources) {
                *self.taken.entry(name.clone()).or_default() += reservation.rate_bps;
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

/// Returns since when a run has been slower than its rate for a reason of its own.
fn slow_since(run: &RunView, now_ms: i64) -> Option<i64> {
    let rate = run.plan.rate_bps.filter(|rate| *rate > SLOW_DEMAND_MIN_BPS && run.moving)?;
    // A run at its rate limit is not slow; one without a reported bottleneck is not known to be.
    if matches!(run.bound_by.as_str(), "rate" | "") {
        return None;
    }
    let has = |percent: u64| run.measured_bps >= rate / 100 * percent;
    match run.plan.slow_since_ms {
        Some(since) => (!has(SLOW_UNTIL_PERCENT)).then_some(since),
        // Its streams may be moving to another path.
        None if now_ms - run.plan.moved_ms < SLOW_AFTER_MS => None,
        None => (!has(SLOW_BELOW_PERCENT)).then_some(now_ms),
    }
}

/// Returns resources on which a run has yet to confirm a lower rate, with the id of that run.
fn unconfirmed_cuts<'a>(
    now_ms: i64,
    runs: &[&RunView],
    problem: &'a Problem,
) -> HashMap<&'a str, i64> {
    let mut waits = HashMap::new();
    for (run, demand) in runs.iter().zip(&problem.demands) {
        let over = match (run.applied_bps, run.plan.rate_bps) {
            (Some(applied), Some(rate)) => applied > rate,
            _ => false,
        };
        if over && run.moving && now_ms - run.plan_changed_ms < RATE_CONFIRM_TIMEOUT_MS {
            for name in demand.paths.iter().flatten() {
                waits.insert(name.as_str(), run.plan.run);
            }
        }
    }
    waits
}

/// Returns the next rate: cuts at once, raises unless `held` by an unconfirmed cut, skips small raises.
fn next_rate(now: Option<u64>, allotted: u64, held: bool) -> u64 {
    match now {
        Some(now) if allotted <= now => allotted,
        None | Some(0) if held => 0,
        Some(now) if held || allotted - now < now / 1000 * RAISE_MIN_PERMILLE => now,
        _ => allotted,
    }
}

/// Returns the reason of a rate, for human readers.
fn reason(
    run: &RunView,
    chosen: &RouteChoice,
    allotment: &allocation::Allotment,
    guarantee: Guarantee,
    slow_since: Option<i64>,
    now_ms: i64,
) -> String {
    let mut text = match (&allotment.bound, &chosen.broken) {
        (Bound::NoPath, Some(link)) => format!("there is no other path while link {link} is down"),
        (Bound::Demand, _) if slow_since.is_some_and(|since| now_ms - since >= SLOW_AFTER_MS) => {
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
