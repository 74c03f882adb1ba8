//! Rounds over two paths.

use super::*;
use crate::orders::Capacity;

const NETWORK: &str = r#"
name = "two-ways"
[[site]]
name = "a"
[[site]]
name = "b"
[[host]]
name = "a1"
site = "a"
interface = [{ name = "eth0", rate = "100G" }]
[[host]]
name = "a2"
site = "a"
interface = [{ name = "eth0", rate = "100G" }]
[[host]]
name = "b1"
site = "b"
interface = [{ name = "eth0", rate = "100G" }]
[[switch]]
name = "sa"
[[switch]]
name = "sb"
[[switch]]
name = "sc"
[[link]]
ends = ["a1:eth0", "sa"]
rate = "100G"
[[link]]
ends = ["a2:eth0", "sa"]
rate = "100G"
[[link]]
ends = ["b1:eth0", "sb"]
rate = "100G"
[[link]]
name = "direct"
ends = ["sa", "sb"]
rate = "40G"
delay = "10ms"
[[link]]
name = "north"
ends = ["sa", "sc"]
rate = "10G"
delay = "10ms"
[[link]]
name = "south"
ends = ["sc", "sb"]
rate = "10G"
delay = "10ms"
"#;

/// Two paths as separate planes: hosts have an interface in each, and addresses select between them.
const PLANES: &str = r#"
name = "two-planes"
[[site]]
name = "a"
[[site]]
name = "b"
[[host]]
name = "a1"
site = "a"
interface = [{ name = "eth0", rate = "100G" }, { name = "eth1", rate = "100G" }]
[[host]]
name = "a2"
site = "a"
interface = [{ name = "eth0", rate = "100G" }, { name = "eth1", rate = "100G" }]
[[host]]
name = "b1"
site = "b"
interface = [{ name = "eth0", rate = "100G" }, { name = "eth1", rate = "100G" }]
[[switch]]
name = "sa"
[[switch]]
name = "sb"
[[switch]]
name = "na"
[[switch]]
name = "nb"
[[switch]]
name = "sc"
[[link]]
ends = ["a1:eth0", "sa"]
rate = "100G"
[[link]]
ends = ["a2:eth0", "sa"]
rate = "100G"
[[link]]
ends = ["b1:eth0", "sb"]
rate = "100G"
[[link]]
ends = ["a1:eth1", "na"]
rate = "100G"
[[link]]
ends = ["a2:eth1", "na"]
rate = "100G"
[[link]]
ends = ["b1:eth1", "nb"]
rate = "100G"
[[link]]
name = "direct"
ends = ["sa", "sb"]
rate = "40G"
delay = "10ms"
[[link]]
name = "north"
ends = ["na", "sc"]
rate = "10G"
delay = "10ms"
[[link]]
name = "south"
ends = ["sc", "nb"]
rate = "10G"
delay = "10ms"
"#;

const NOW_MS: i64 = 1_795_305_600_000;

fn planner(classes: Vec<WorkClass>) -> Planner {
    planner_of(NETWORK, classes)
}

fn planner_of(network: &str, classes: Vec<WorkClass>) -> Planner {
    let topology = Topology::read(network).unwrap();
    Planner::new(
        topology,
        classes,
        PlannerRules { usable_permille: 1000, ..PlannerRules::default() },
    )
}

fn host(name: &str) -> HostView {
    HostView {
        name: name.into(),
        alive: true,
        capacity: Capacity { transfers: 8, streams: 64, ..Capacity::default() },
        interfaces: ["eth0", "eth1"]
            .map(|interface| InterfaceView {
                name: interface.into(),
                addresses: vec![format!("{name}-{interface}")],
                sent_bps: u64::MAX,
            })
            .into(),
        ..HostView::default()
    }
}

fn run(id: i64, class: &str, from: &str) -> RunView {
    RunView {
        queue: 1,
        class: class.into(),
        request: id,
        from: from.into(),
        to: "b1".into(),
        priority: 3,
        moving: true,
        plan: RunPlan { run: id, ..RunPlan::default() },
        ..RunView::default()
    }
}

fn snapshot(runs: Vec<RunView>) -> Snapshot {
    Snapshot {
        now_ms: NOW_MS,
        hosts: ["a1", "a2", "b1"].map(host).into(),
        runs,
        ..Snapshot::default()
    }
}

/// Returns the next snapshot, after nodes applied the decision.
fn applied(mut snapshot: Snapshot, decision: &RoundDecision) -> Snapshot {
    snapshot.now_ms += 1000;
    for plan in &decision.plans {
        let run = snapshot.runs.iter_mut().find(|run| run.plan.run == plan.run).unwrap();
        run.plan_changed_ms = snapshot.now_ms - 1000;
        run.plan = plan.clone();
        run.applied_bps = plan.rate_bps;
        run.measured_bps = plan.rate_bps.unwrap_or(0);
    }
    snapshot
}

fn rates(snapshot: &Snapshot) -> Vec<u64> {
    let rates = snapshot.runs.iter().map(|run| run.plan.rate_bps.unwrap_or(0));
    rates.map(|rate| rate / 1_000_000_000).collect()
}

#[test]
fn transfers_use_both_paths_by_weight() {
    let classes = vec![WorkClass { weight: 3, ..WorkClass::new("big") }, WorkClass::new("small")];
    let planner = planner_of(PLANES, classes);
    let both = snapshot(vec![run(1, "big", "a1"), run(2, "small", "a2")]);
    let decision = planner.plan(&both);
    let both = applied(both, &decision);
    // On the direct path they would have 30 and 10; the small run loses nothing on the other.
    assert_eq!(rates(&both), [40, 10], "{decision:?}");
    assert_eq!(both.runs[0].plan.route[1], "direct");
    assert!(both.runs[0].plan.reason.contains("direct from sa is fully allotted"), "{decision:?}");
    assert!(planner.plan(&both).plans.is_empty(), "nothing changes while nothing changes");
    assert_eq!(decision.classes["big"].0, 40_000_000_000);
}

/// Shares equal those of a single link as large as both paths, which no choice of paths can exceed.
#[test]
fn path_balance_ignores_history() {
    let mark = |name: &str, weight, gigabits: u64| WorkClass {
        weight,
        mark_bps: Some(gigabits * 1_000_000_000),
        ..WorkClass::new(name)
    };
    let planner = planner_of(
        PLANES,
        vec![mark("production", 4, 20), mark("analysis", 2, 20), mark("urgent", 8, 25)],
    );
    let names = ["production", "analysis", "urgent"];
    let mut all = snapshot((0..12).map(|id| run(id, names[id as usize % 3], "a1")).collect());
    all.down.insert("direct".into());
    all = applied(all.clone(), &planner.plan(&all));
    all = applied(all.clone(), &planner.plan(&all));
    assert!(all.runs.iter().all(|run| run.plan.route.contains(&"north".to_owned())));
    all.down.clear();
    all.now_ms += 10_000;
    for _ in 0..2 {
        all = applied(all.clone(), &planner.plan(&all));
    }
    let near = |all: &Snapshot, exact: &[(&str, f64)]| {
        for (class, exact) in exact {
            let runs = all.runs.iter().filter(|run| run.class == *class);
            let rate = runs.map(|run| run.plan.rate_bps.unwrap_or(0)).sum::<u64>() as f64 / 1e9;
            assert!((rate - exact).abs() / 50.0 < 0.05, "{class}: {rate} and not {exact}");
        }
    };
    // 50 Gb/s: the urgent class is at its mark, the others have 2 to 1 of the rest.
    near(&all, &[("production", 50.0 / 3.0), ("analysis", 25.0 / 3.0), ("urgent", 25.0)]);
    let decision = planner.plan(&all);
    assert!(decision.notes.is_empty(), "ways go on changing: {:?}", decision.notes);
    // The two classes left get their marks, and share the rest 2 to 1.
    all.runs.retain(|run| run.class != "urgent");
    for _ in 0..2 {
        all = applied(all.clone(), &planner.plan(&all));
    }
    near(&all, &[("production", 80.0 / 3.0), ("analysis", 70.0 / 3.0)]);
}

#[test]
fn failed_link_is_bypassed_and_reused() {
    let planner = planner(vec![WorkClass::new("c")]);
    let before = snapshot(vec![run(1, "c", "a1")]);
    let mut before = applied(before.clone(), &planner.plan(&before));
    assert_eq!(rates(&before), [40]);
    before.down.insert("direct".into());
    let decision = planner.plan(&before);
    let mut around = applied(before, &decision);
    assert_eq!(rates(&around), [10]);
    assert!(around.runs[0].plan.route.contains(&"north".to_owned()));
    assert!(decision.notes[0].contains("instead of"), "{:?}", decision.notes);
    around.down.insert("north".into());
    let stopped = applied(around.clone(), &planner.plan(&around));
    assert_eq!(rates(&stopped), [0]);
    assert!(stopped.runs[0].plan.reason.contains("while link"), "{:?}", stopped.runs[0]);
    around.down.clear();
    let back = applied(around.clone(), &planner.plan(&around));
    assert_eq!(rates(&back), [40]);
}

#[test]
fn rebalanced_run_holds_its_path() {
    let planner = planner_of(PLANES, vec![WorkClass::new("c")]);
    let mut five = snapshot((1..=5).map(|id| run(id, "c", "a1")).collect());
    five.down.insert("north".into());
    let mut five = applied(five.clone(), &planner.plan(&five));
    assert_eq!(rates(&five), [8; 5]);
    five.down.clear();
    let moved = |snapshot: &Snapshot| {
        let plans = planner.plan(snapshot).plans;
        plans.into_iter().filter(|one| one.moved_ms == snapshot.now_ms).count()
    };
    assert_eq!(moved(&five), 1, "one has the other way for itself");
    for run in &mut five.runs {
        run.plan.moved_ms = five.now_ms - 9_000;
    }
    assert_eq!(moved(&five), 0);
    five.now_ms += 1_000;
    assert_eq!(moved(&five), 1);
}

/// Link-disjoint paths are not all paths: from sa to sd two lead over sb, by one link each, and a third shares a link
/// with the first.
#[test]
fn detour_over_parts_of_paths() {
    let more = r#"
[[host]]
name = "d1"
site = "b"
interface = [{ name = "eth0", rate = "100G" }]
[[switch]]
name = "sd"
[[link]]
ends = ["d1:eth0", "sd"]
rate = "100G"
[[link]]
name = "last"
ends = ["sb", "sd"]
rate = "40G"
"#;
    let topology = Topology::read(&format!("{NETWORK}{more}")).unwrap();
    let rules = PlannerRules { usable_permille: 1000, ..PlannerRules::default() };
    let planner = Planner::new(topology, vec![WorkClass::new("c")], rules);
    let to_d1 = RunView { to: "d1".into(), ..run(1, "c", "a1") };
    let mut before = snapshot(vec![to_d1]);
    before.hosts.push(host("d1"));
    let mut before = applied(before.clone(), &planner.plan(&before));
    assert_eq!((rates(&before)[0], &before.runs[0].plan.route[1]), (40, &"direct".to_owned()));
    before.down.insert("direct".into());
    let around = applied(before.clone(), &planner.plan(&before));
    assert_eq!(rates(&around), [10], "{around:?}");
    assert_eq!(around.runs[0].plan.route[1..4], ["north", "south", "last"]);
    assert!(planner.plan(&around).plans.is_empty(), "it stays there");
}

#[test]
fn raises_wait_for_confirmed_cuts() {
    let planner = planner(vec![WorkClass::new("c")]);
    let one = snapshot(vec![run(1, "c", "a1")]);
    let mut two = applied(one.clone(), &planner.plan(&one));
    two.down.insert("north".into());
    two.runs.push(run(2, "c", "a2"));
    let first = planner.plan(&two);
    let cut = first.plans.iter().find(|one| one.run == 1).unwrap();
    assert_eq!(cut.rate_bps, Some(20_000_000_000));
    // The node has not confirmed the lower rate yet.
    for plan in &first.plans {
        let run = two.runs.iter_mut().find(|run| run.plan.run == plan.run).unwrap();
        run.plan = plan.clone();
        run.plan_changed_ms = two.now_ms;
    }
    two.runs[1].plan.rate_bps = None;
    let held = planner.plan(&two);
    let new = held.plans.iter().find(|one| one.run == 2).unwrap();
    assert_eq!(new.rate_bps, Some(0));
    two.runs[0].applied_bps = Some(20_000_000_000);
    two.runs[1].plan = new.clone();
    let free = planner.plan(&two);
    assert_eq!(free.plans[0].rate_bps, Some(20_000_000_000));
}

#[test]
fn slow_run_yields_unused_rate() {
    let planner = planner(vec![WorkClass::new("c")]);
    let mut all = snapshot(vec![run(1, "c", "a1"), run(2, "c", "a2")]);
    all.down.insert("north".into());
    for _ in 0..6 {
        let decision = planner.plan(&all);
        all = applied(all, &decision);
        all.runs[0].measured_bps = 2_000_000_000;
        all.runs[0].bound_by = "disk read".into();
    }
    assert_eq!(rates(&all), [2, 37]);
    assert!(all.runs[0].plan.reason.contains("disk read"), "{:?}", all.runs[0].plan);
}

#[test]
fn deadline_gets_rate_closed_class_stops() {
    let windows = vec!["mon 10:00-12:00".parse().unwrap()];
    let planner =
        planner(vec![WorkClass::new("c"), WorkClass { windows, ..WorkClass::new("nights") }]);
    let mut urgent = run(1, "c", "a1");
    urgent.deadline = Some((NOW_MS + 100_000, 356_250_000_000));
    let mut all = snapshot(vec![urgent, run(2, "c", "a2"), run(3, "nights", "a1")]);
    all.down.insert("north".into());
    let decision = planner.plan(&all);
    let after = applied(all, &decision);
    // 30 Gb/s are needed, and half of the rest comes on top.
    assert_eq!(rates(&after)[..2], [35, 5], "{decision:?}");
    assert!(after.runs[0].plan.reason.contains("promised"));
    assert_eq!(decision.withdraw, [(3, "class nights may not run now".to_owned())]);
}

#[test]
fn reservation_applies_to_class_and_sites() {
    let planner = planner(vec![WorkClass::new("c"), WorkClass::new("d")]);
    let mut all = snapshot(vec![run(1, "c", "a1"), run(2, "d", "a2")]);
    all.down.insert("north".into());
    all.reservations.push(ReservationView {
        class: Some("d".into()),
        source: "a".into(),
        destination: "b".into(),
        rate_bps: 20_000_000_000,
        resources: Vec::new(),
        circuit: None,
    });
    let after = applied(all.clone(), &planner.plan(&all));
    assert_eq!(rates(&after), [10, 30]);
}

#[test]
fn circuit_is_exclusive_until_link_fails() {
    let planner = planner(vec![WorkClass::new("c"), WorkClass::new("d")]);
    let mut all = snapshot(vec![run(1, "c", "a1"), run(2, "d", "a2")]);
    all.down.insert("north".into());
    let (resources, links) = planner.site_paths("a", "b", true).swap_remove(0);
    let addresses = [("a1", "2001:db8:c::1"), ("a2", "2001:db8:c::2"), ("b1", "2001:db8:d::1")];
    all.reservations.push(ReservationView {
        class: Some("d".into()),
        source: "a".into(),
        destination: "b".into(),
        rate_bps: 15_000_000_000,
        resources: resources.clone(),
        circuit: Some(CircuitView {
            id: 7,
            resources,
            links,
            addresses: addresses.map(|(host, ip)| (host.to_owned(), ip.to_owned())).into(),
        }),
    });
    let decision = planner.plan(&all);
    let after = applied(all.clone(), &decision);
    // Neither uses capacity of the other, though both could.
    assert_eq!(rates(&after), [25, 15], "{decision:?}");
    let plan = &after.runs[1].plan;
    assert_eq!(
        (plan.path[0].from.as_str(), plan.path[0].to.as_str()),
        ("2001:db8:c::2", "2001:db8:d::1")
    );
    assert!(
        plan.reason.contains("circuit 7 is fully allotted") && plan.reason.contains("promised"),
        "{plan:?}"
    );
    assert_eq!(after.runs[0].plan.path, []);
    // An idle circuit keeps its capacity.
    let idle = Snapshot { runs: vec![run(1, "c", "a1")], ..all.clone() };
    assert_eq!(rates(&applied(idle.clone(), &planner.plan(&idle))), [25]);
    // With a link down the circuit is not used, and the reservation is met from other capacity.
    all.down = ["direct".to_owned()].into();
    let decision = planner.plan(&all);
    let after = applied(all, &decision);
    assert_eq!(rates(&after), [0, 10], "{decision:?}");
    assert!(after.runs[1].plan.path.is_empty() && after.runs[1].plan.reason.contains("short"));
}

#[test]
fn off_path_bytes_are_flagged() {
    let planner = planner_of(PLANES, vec![WorkClass::new("c")]);
    let one = snapshot(vec![run(1, "c", "a1")]);
    let mut seen = applied(one.clone(), &planner.plan(&one));
    seen.now_ms += 10_000;
    seen.hosts[0].interfaces[0].sent_bps = 39_000_000_000;
    assert!(planner.plan(&seen).plans.is_empty());
    seen.hosts[0].interfaces[0].sent_bps = 1_000_000;
    let decision = planner.plan(&seen);
    assert!(decision.plans[0].off_path && decision.notes[0].contains("does not show"));
}

#[test]
fn low_rate_off_path_flagged_late() {
    let planner = planner_of(PLANES, vec![WorkClass::new("c")]);
    let one = snapshot(vec![run(1, "c", "a1")]);
    let mut seen = applied(one.clone(), &planner.plan(&one));
    seen.now_ms += 10_000;
    seen.runs[0].measured_bps = 2_800_000;
    let mut looked = |sent_bps: u64, mean_bps: u64| {
        seen.now_ms += 1_000;
        seen.hosts[0].interfaces[0].sent_bps = sent_bps;
        seen.runs[0].mean_bps = Some(mean_bps);
        for plan in planner.plan(&seen).plans {
            seen.runs[0].plan = plan;
        }
        seen.runs[0].plan.off_path
    };
    // A burst that the interface counted in another second is no evidence.
    assert!(!looked(0, 2_800_000) && !looked(8_000_000, 2_800_000));
    for _ in 0..5 {
        assert!(!looked(1_000, 2_800_000));
    }
    assert!(looked(1_000, 2_800_000), "five seconds of it are");
    // A second without traffic is no evidence.
    assert!(looked(0, 0));
    assert!(!looked(2_000_000, 2_800_000));
}

#[test]
fn one_interface_means_the_routed_path() {
    let planner = planner(vec![WorkClass::new("c"), WorkClass::new("d")]);
    // Packets between single interfaces take the routed path, however busy it is.
    let all = snapshot((0..6).map(|id| run(id, "c", "a1")).collect());
    let decision = planner.plan(&all);
    assert!(decision.plans.iter().all(|one| one.route.contains(&"direct".to_owned())));
    let sum: u64 = decision.plans.iter().filter_map(|one| one.rate_bps).sum();
    assert!(sum <= 40_000_000_000, "{sum}");
    assert_eq!(planner.site_paths("a", "b", false).len(), 1);
    assert_eq!(planner.site_paths("a", "b", true).len(), 2);
}

#[test]
fn unknown_addresses_mean_the_shortest_path() {
    let planner = planner_of(PLANES, vec![WorkClass::new("c")]);
    let mut all = snapshot((0..6).map(|id| run(id, "c", "a1")).collect());
    all.hosts[0].interfaces[1].addresses.clear();
    let decision = planner.plan(&all);
    assert!(decision.plans.iter().all(|one| one.route.contains(&"direct".to_owned())));
    assert!(decision.plans.iter().all(|one| one.path.is_empty()));
}

#[test]
fn deadline_leaves_reservations_their_rate() {
    let planner = planner(vec![WorkClass::new("c"), WorkClass::new("d")]);
    let mut urgent = run(1, "c", "a1");
    // The deadline needs 400 Gb/s.
    urgent.deadline = Some((NOW_MS + 100_000, 4_750_000_000_000));
    let mut all = snapshot(vec![urgent, run(2, "d", "a2")]);
    all.down.insert("north".into());
    let resources = planner.site_paths("a", "b", false).swap_remove(0).0;
    all.reservations.push(ReservationView {
        class: Some("d".into()),
        source: "a".into(),
        destination: "b".into(),
        rate_bps: 10_000_000_000,
        resources,
        circuit: None,
    });
    let after = applied(all.clone(), &planner.plan(&all));
    // Of 32 Gb/s to guarantee, 10 are reserved and 22 go to the deadline; both share the rest.
    assert_eq!(rates(&after), [26, 14], "{after:?}");
    let reason = &after.runs[0].plan.reason;
    assert!(reason.contains("its deadline needs 400 Gb/s, of which 22.0 Gb/s"), "{reason}");
    // Two unbounded deadlines share by priority, and the reservation stays.
    let mut more = all.clone();
    let mut later = run(3, "c", "a1");
    later.deadline = Some((NOW_MS + 200_000, 4_750_000_000_000));
    more.runs.push(later);
    let after = applied(more.clone(), &planner.plan(&more));
    assert!(rates(&after)[1] >= 10 && rates(&after)[0] >= 22, "{:?}", rates(&after));
}

#[test]
fn uncounted_link_bytes_are_flagged() {
    let planner = planner(vec![WorkClass::new("c")]);
    let one = snapshot(vec![run(1, "c", "a1")]);
    let mut seen = applied(one.clone(), &planner.plan(&one));
    let counted = |at_ms, bps| LinkCount { at_ms, interval_ms: 20_000, bps: [Some(bps), Some(0)] };
    let off = |seen: &Snapshot| {
        let plans = planner.plan(seen).plans;
        plans.first().is_some_and(|plan| plan.off_path)
    };
    seen.now_ms += 60_000;
    let (now, low) = (seen.now_ms, 1_000_000_000);
    // As expected; too old; interval before the run; counter of another link.
    for (at_ms, bps) in [(now - 1_000, 39_000_000_000), (now - 70_000, low), (now - 40_000, low)] {
        seen.counts = [("direct".to_owned(), counted(at_ms, bps))].into();
        assert!(!off(&seen), "{at_ms} {bps}");
    }
    seen.counts = [("north".to_owned(), counted(now - 1_000, 0))].into();
    assert!(!off(&seen));
    seen.counts = [("direct".to_owned(), counted(now - 1_000, low))].into();
    let decision = planner.plan(&seen);
    assert!(decision.plans[0].off_path, "{decision:?}");
    assert!(decision.notes[0].contains("does not show on link direct"), "{decision:?}");
    // Counters of the other direction are no evidence.
    let back = LinkCount { bps: [None, Some(0)], ..counted(now - 1_000, 0) };
    seen.counts = [("direct".to_owned(), back)].into();
    assert!(!off(&seen));
}

#[test]
fn new_path_is_judged_afresh() {
    let planner = planner(vec![WorkClass::new("c")]);
    let one = snapshot(vec![run(1, "c", "a1")]);
    let mut seen = applied(one.clone(), &planner.plan(&one));
    seen.now_ms += 60_000;
    let at_ms = seen.now_ms - 1_000;
    let idle = LinkCount { at_ms, interval_ms: 20_000, bps: [Some(0), Some(0)] };
    // The path is about to change to links that counted nothing while the run was elsewhere.
    seen.counts = [("north".to_owned(), idle), ("south".to_owned(), idle)].into();
    seen.down = ["direct".to_owned()].into();
    let decision = planner.plan(&seen);
    assert_ne!(decision.plans[0].route, seen.runs[0].plan.route);
    assert!(!decision.plans[0].off_path, "{decision:?}");
    assert!(!decision.notes.iter().any(|note| note.contains("does not show")), "{decision:?}");
    // A verdict on the former path does not apply to the new one.
    seen.runs[0].plan.off_path = true;
    seen.runs[0].plan.off_since_ms = Some(seen.now_ms - 10_000);
    let plan = planner.plan(&seen).plans.remove(0);
    assert_eq!((plan.off_path, plan.off_since_ms), (false, None));
}

#[test]
fn queues_start_where_slots_are_free() {
    let classes = vec![WorkClass { weight: 2, ..WorkClass::new("c") }, WorkClass::new("d")];
    let planner = planner(classes);
    let queue = |id, class: &str, batches| QueueView {
        id,
        class: class.into(),
        source: "a".into(),
        destination: "b".into(),
        batches,
        bytes: 1,
    };
    let mut all = snapshot(Vec::new());
    all.queues = vec![
        queue(1, "c", 9),
        queue(2, "d", 1),
        QueueView { destination: String::new(), ..queue(3, "d", 1) },
    ];
    let starts = planner.plan(&all).starts;
    assert_eq!((starts[0].queue, starts[0].to.as_str()), (3, ""), "listings come first");
    // Each queue runs once between each pair of hosts.
    let of = |id| starts.iter().filter(|start| start.queue == id).count();
    assert_eq!([of(1), of(2), of(3)], [2, 1, 1], "{starts:?}");
    all.hosts[1].draining = true;
    all.hosts[2].capacity.transfers = 1;
    let starts = planner.plan(&all).starts;
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert!(starts.iter().all(|start| start.from == "a1"));
    all.draining_sites.insert("b".into());
    assert_eq!(planner.plan(&all).starts.len(), 1, "only the listing");
}
