//! Worked examples with known results, labelled as in docs/allocation.md: shared links, demands, class and tier floors,
//! marks, several paths, a link failure.

use penstock_allocation::{Allocation, Bound, Class, Demand, Policy, Problem, Resource, allocate};
use penstock_units::BitRate;

/// Bits per second per unit. Divisible so that all results are exact: 3 · 5 · 7 · 8 · 9 · 11 · 13 · 41, times a
/// thousand.
const UNIT_BPS: u64 = 3 * 5 * 7 * 8 * 3 * 11 * 13 * 41 * 1000;

fn unit(times: u64) -> BitRate {
    BitRate(times * UNIT_BPS)
}

fn links(links: &[(&str, u64)]) -> Vec<Resource> {
    links.iter().map(|(name, capacity)| Resource::new(*name, unit(*capacity))).collect()
}

fn flow(name: &str, weight: u32, path: &[&str]) -> Demand {
    Demand { weight, ..Demand::new(name, path.iter().copied()) }
}

fn of_class(class: &str, demand: Demand) -> Demand {
    Demand { class: Some(class.to_owned()), ..demand }
}

fn solved(problem: &Problem) -> Allocation {
    allocate(problem).expect("the problem is valid")
}

fn rates(allocation: &Allocation) -> Vec<u64> {
    allocation.allotments.iter().map(|allotment| allotment.rate.0).collect()
}

/// Asserts rates as exact fractions of the unit.
#[track_caller]
fn assert_rates(problem: &Problem, expected: &[(u64, u64)]) -> Allocation {
    let allocation = solved(problem);
    let expected: Vec<u64> = expected.iter().map(|(over, under)| over * UNIT_BPS / under).collect();
    assert_eq!(rates(&allocation), expected, "{allocation:#?}");
    allocation
}

fn resource(name: &str) -> Bound {
    Bound::Resource(name.to_owned())
}

fn bounds(allocation: &Allocation) -> Vec<Bound> {
    allocation.allotments.iter().map(|allotment| allotment.bound.clone()).collect()
}

#[test]
fn v1_equal_weights_on_two_links() {
    let problem = Problem {
        resources: links(&[("A", 100), ("B", 40)]),
        demands: vec![flow("f1", 1, &["A", "B"]), flow("f2", 1, &["A"]), flow("f3", 1, &["B"])],
        ..Problem::default()
    };
    let allocation = assert_rates(&problem, &[(20, 1), (80, 1), (20, 1)]);
    assert_eq!(bounds(&allocation), [resource("B"), resource("A"), resource("B")]);
    let used: Vec<_> = allocation.resources.iter().map(|one| one.used).collect();
    assert_eq!(used, [unit(100), unit(40)]);
}

#[test]
fn v2_weights() {
    let problem = Problem {
        resources: links(&[("A", 100), ("B", 40)]),
        demands: vec![flow("f1", 1, &["A", "B"]), flow("f2", 2, &["A"]), flow("f3", 3, &["B"])],
        ..Problem::default()
    };
    assert_rates(&problem, &[(10, 1), (90, 1), (30, 1)]);
}

#[test]
fn v3_demand_leaves_rest_to_others() {
    let mut problem = Problem {
        resources: links(&[("A", 100)]),
        demands: vec![
            Demand { demand: Some(unit(10)), ..flow("f1", 1, &["A"]) },
            flow("f2", 1, &["A"]),
            flow("f3", 2, &["A"]),
        ],
        ..Problem::default()
    };
    let allocation = assert_rates(&problem, &[(10, 1), (30, 1), (60, 1)]);
    assert_eq!(bounds(&allocation), [Bound::Demand, resource("A"), resource("A")]);
    // The same by a cap.
    (problem.demands[0].demand, problem.demands[0].cap) = (Some(unit(11)), Some(unit(10)));
    let allocation = assert_rates(&problem, &[(10, 1), (30, 1), (60, 1)]);
    assert_eq!(allocation.allotments[0].bound, Bound::Cap);
}

#[test]
fn v4_flow_length_does_not_matter() {
    let problem = Problem {
        resources: links(&[("L1", 100), ("L2", 100), ("L3", 100)]),
        demands: vec![
            flow("long", 1, &["L1", "L2", "L3"]),
            flow("a", 1, &["L1"]),
            flow("b", 1, &["L2"]),
            flow("c", 1, &["L3"]),
        ],
        ..Problem::default()
    };
    assert_rates(&problem, &[(50, 1); 4]);
}

/// For V5 and V6b: classes prod, user and analysis, each with a floor.
fn three_classes(tiers: [u8; 3], analysis_cap: u64) -> Problem {
    let class = |name: &str, weight, floor, tier| Class {
        weight,
        floor: unit(floor),
        tier,
        ..Class::new(name)
    };
    let cap = Some(unit(analysis_cap));
    Problem {
        resources: links(&[("A", 100)]),
        classes: vec![
            class("prod", 1, 50, tiers[0]),
            class("user", 1, 0, tiers[1]),
            Class { cap, ..class("analysis", 3, 10, tiers[2]) },
        ],
        demands: ["prod", "user", "analysis"]
            .map(|name| of_class(name, flow(name, 1, &["A"])))
            .to_vec(),
        policy: Policy { tier_floor_permille: 0, ..Policy::default() },
    }
}

#[test]
fn v5_strict_tiers_starve_without_floor() {
    let mut problem = three_classes([0, 1, 1], 60);
    assert_rates(&problem, &[(90, 1), (0, 1), (10, 1)]);
    // A tier floor prevents that: 12 of each link for tier 1, of which analysis has 10 already.
    problem.policy.tier_floor_permille = 120;
    assert_rates(&problem, &[(88, 1), (2, 1), (10, 1)]);
}

#[test]
fn v6a_guarantee_plus_share() {
    let promised = |guarantee, demand| Demand { guarantee: unit(guarantee), ..demand };
    let problem = Problem {
        resources: links(&[("A", 100)]),
        demands: vec![
            promised(50, flow("prod", 1, &["A"])),
            flow("user", 1, &["A"]),
            Demand { cap: Some(unit(30)), ..promised(10, flow("analysis", 3, &["A"])) },
        ],
        ..Problem::default()
    };
    let allocation = assert_rates(&problem, &[(60, 1), (10, 1), (30, 1)]);
    assert_eq!(bounds(&allocation), [resource("A"), resource("A"), Bound::Cap]);
}

#[test]
fn v6b_class_floor_is_lower_bound() {
    let allocation = assert_rates(&three_classes([0, 0, 0], 30), &[(50, 1), (20, 1), (30, 1)]);
    assert_eq!(allocation.allotments[2].bound, Bound::ClassCap("analysis".to_owned()));
}

#[test]
fn v7_excess_guarantees_shrink_in_proportion() {
    let promised = |name, guarantee| Demand { guarantee: unit(guarantee), ..flow(name, 1, &["A"]) };
    let problem = Problem {
        resources: links(&[("A", 100)]),
        demands: vec![promised("a", 80), promised("b", 40)],
        ..Problem::default()
    };
    let allocation = assert_rates(&problem, &[(200, 3), (100, 3)]);
    let lacking: Vec<_> = allocation.allotments.iter().map(|one| one.shortfall.0).collect();
    assert_eq!(lacking, [40 * UNIT_BPS / 3, 20 * UNIT_BPS / 3]);
    // Floors of classes do the same.
    let class = |name: &str, floor| Class { floor: unit(floor), ..Class::new(name) };
    let problem = Problem {
        resources: links(&[("A", 100)]),
        classes: vec![class("a", 80), class("b", 40)],
        demands: ["a", "b"].map(|name| of_class(name, flow(name, 1, &["A"]))).to_vec(),
        ..Problem::default()
    };
    let allocation = assert_rates(&problem, &[(200, 3), (100, 3)]);
    let lacking: Vec<_> = allocation.classes.iter().map(|one| one.shortfall.0).collect();
    assert_eq!(lacking, [40 * UNIT_BPS / 3, 20 * UNIT_BPS / 3]);
}

/// Demand x over A or B, demand y over A.
fn two_paths(capacities: [u64; 2], passes: u16) -> Problem {
    let path = |name: &str| vec![name.to_owned()];
    Problem {
        resources: links(&[("A", capacities[0]), ("B", capacities[1])]),
        demands: vec![
            Demand { paths: vec![path("A"), path("B")], ..flow("x", 1, &[]) },
            flow("y", 1, &["A"]),
        ],
        policy: Policy { passes, ..Policy::default() },
        ..Problem::default()
    }
}

/// Asserts rates that path fractions and rounding make inexact.
#[track_caller]
fn assert_near(problem: &Problem, expected: &[(u64, u64)]) {
    let rates = rates(&solved(problem));
    for (rate, (over, under)) in rates.iter().zip(expected) {
        let exact = over * UNIT_BPS / under;
        assert!(rate.abs_diff(exact) <= 2, "{rates:?} instead of {expected:?}");
    }
}

#[test]
fn v8_passes_converge_over_paths() {
    let x = [(40, 3), (12, 1), (80, 7), (100, 9), (120, 11), (140, 13)];
    for (passes, (over, under)) in (1..).zip(x) {
        let y = (20 * under - over, under);
        assert_near(&two_paths([10, 10], passes), &[(over, under), y]);
    }
    // A path that would converge to zero is given up.
    let allocation =
        assert_rates(&two_paths([10, 10], Policy::default().passes), &[(10, 1), (10, 1)]);
    let of_paths: Vec<_> = allocation.allotments[0].paths.iter().map(|path| &path.bound).collect();
    assert_eq!(of_paths, [&Bound::OtherPaths, &resource("B")]);
}

#[test]
fn v9_several_paths_of_unequal_capacity() {
    let x = [(22, 3), (57, 8), (289, 41)];
    for (passes, (over, under)) in (1..).zip(x) {
        let y = (14 * under - over, under);
        assert_near(&two_paths([10, 4], passes), &[(over, under), y]);
    }
    for (passes, published) in [(4, 7.0193), (5, 7.0077)] {
        let x = rates(&solved(&two_paths([10, 4], passes)))[0] as f64 / UNIT_BPS as f64;
        assert!((x - published).abs() < 1e-4, "{x}");
    }
    let x = rates(&solved(&two_paths([10, 4], Policy::default().passes)))[0];
    assert!(x.abs_diff(7 * UNIT_BPS) < 7 * UNIT_BPS / 1000, "{x}");
}

fn marks(analysis_demand: Option<BitRate>) -> Problem {
    let class = |name: &str, weight, mark: Option<u64>| Class {
        weight,
        mark: mark.map(unit),
        ..Class::new(name)
    };
    let flow = |name, class| of_class(class, flow(name, 1, &["A"]));
    Problem {
        resources: links(&[("A", 100)]),
        // Two demands divide the weight of 3.
        classes: vec![
            class("prod", 3, Some(60)),
            class("analysis", 1, None),
            class("test", 1, Some(10)),
        ],
        demands: vec![
            flow("p1", "prod"),
            flow("p2", "prod"),
            Demand { demand: analysis_demand, ..flow("a1", "analysis") },
            flow("t1", "test"),
        ],
        ..Problem::default()
    }
}

#[test]
fn v10_soft_marks_hold_under_contention() {
    let allocation = assert_rates(&marks(None), &[(30, 1), (30, 1), (30, 1), (10, 1)]);
    let [prod, test] = ["prod", "test"].map(|class| Bound::Mark(class.to_owned()));
    assert_eq!(bounds(&allocation), [prod.clone(), prod, resource("A"), test]);
}

#[test]
fn v11_capacity_idle_by_marks_shared() {
    let expected = [(39_375, 1000), (39_375, 1000), (5, 1), (16_250, 1000)];
    let allocation = assert_rates(&marks(Some(unit(5))), &expected);
    assert_eq!(bounds(&allocation), [resource("A"), resource("A"), Bound::Demand, resource("A")]);
}

#[test]
fn v12_failed_link_flows_take_detour() {
    let problem = |direct| {
        let path: &[&str] = if direct { &["AB"] } else { &["AC", "CB"] };
        Problem {
            resources: links(&[("AB", if direct { 100 } else { 0 }), ("AC", 40), ("CB", 40)]),
            demands: vec![flow("f1", 1, path), flow("f2", 3, path), flow("g", 1, &["CB"])],
            ..Problem::default()
        }
    };
    assert_rates(&problem(true), &[(25, 1), (75, 1), (40, 1)]);
    assert_rates(&problem(false), &[(8, 1), (24, 1), (8, 1)]);
}
