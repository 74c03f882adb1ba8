//! Properties of every allocation: capacities hold, stated bottlenecks are real, rates are fair, the result depends on
//! neither the order of names nor the sequence of changes, and no demand starves.

mod cases;

use std::collections::HashMap;

use cases::{demand, problem, rate};
use penstock_allocation::{
    Allocation, Allocator, Bound, Class, Demand, PATHS_MAX, Problem, RATE_MAX, Resource,
    WEIGHT_MAX, allocate,
};
use penstock_units::BitRate;
use proptest::prelude::*;
use proptest::sample::Index;

fn used(allocation: &Allocation) -> HashMap<&str, (u64, u64)> {
    let one = |one: &'_ penstock_allocation::ResourceUse| (one.used.0, one.capacity.0);
    allocation.resources.iter().map(|used| (used.name.as_str(), one(used))).collect()
}

/// Each path's rate is rounded down to a whole bit per second, so this much may be unused.
fn rounding(problem: &Problem) -> u64 {
    problem.demands.iter().map(|demand| demand.paths.len() as u64).sum()
}

fn assert_limits(problem: &Problem, allocation: &Allocation) -> Result<(), TestCaseError> {
    for one in &allocation.resources {
        prop_assert!(one.used <= one.capacity, "{one:?}");
    }
    for (demand, got) in problem.demands.iter().zip(&allocation.allotments) {
        let most = demand.demand.unwrap_or(BitRate(u64::MAX));
        let cap = demand.cap.unwrap_or(BitRate(u64::MAX));
        prop_assert!(got.rate <= most && got.rate <= cap, "{got:?}");
        let paths: u64 = got.paths.iter().map(|path| path.rate.0).sum();
        prop_assert_eq!(paths, got.rate.0);
        let promised = demand.guarantee.min(most).min(cap).0;
        prop_assert!(got.shortfall.0 + got.rate.0 + got.paths.len() as u64 >= promised, "{got:?}");
    }
    for one in &allocation.classes {
        prop_assert!(one.cap.is_none_or(|cap| one.used <= cap), "{one:?}");
    }
    Ok(())
}

/// Asserts that each stated bottleneck is one.
fn assert_bounds(problem: &Problem, allocation: &Allocation) -> Result<(), TestCaseError> {
    let (used, near) = (used(allocation), rounding(problem));
    let class = |name: &String| {
        let found = allocation.classes.iter().find(|class| class.name == *name);
        found.expect("a class of the problem")
    };
    for (demand, got) in problem.demands.iter().zip(&allocation.allotments) {
        for (path, share) in demand.paths.iter().zip(&got.paths) {
            let is_so = match &share.bound {
                Bound::Demand => got.rate.0 + near >= demand.demand.unwrap_or_default().0,
                Bound::Cap => got.rate.0 + near >= demand.cap.unwrap_or_default().0,
                Bound::Resource(name) => {
                    let (used, capacity) = used[name.as_str()];
                    path.contains(name) && used + near >= capacity
                }
                Bound::Mark(name) => {
                    let class = class(name);
                    let beyond = class.mark.is_some_and(|mark| class.used.0 + near >= mark.0);
                    // The path has no idle capacity beyond the mark.
                    let full = path.iter().any(|resource| {
                        let (used, capacity) = used[resource.as_str()];
                        used + near >= capacity
                    });
                    let satisfied = [demand.demand, demand.cap]
                        .iter()
                        .flatten()
                        .any(|most| got.rate.0 + near >= most.0);
                    let capped = class.cap.is_some_and(|cap| class.used.0 + near >= cap.0);
                    beyond && (full || satisfied || capped)
                }
                Bound::ClassCap(name) => {
                    let class = class(name);
                    class.cap.is_some_and(|cap| class.used.0 + near >= cap.0)
                }
                Bound::NoPath => false,
                Bound::OtherPaths => share.rate.0 == 0 && got.paths.len() > 1,
            };
            prop_assert!(is_so, "{demand:?}\n{got:?}");
        }
    }
    Ok(())
}

/// Returns rate over weight, ascending.
fn levels(problem: &Problem, allocation: &Allocation) -> Vec<f64> {
    let pairs = problem.demands.iter().zip(&allocation.allotments);
    let mut levels: Vec<f64> =
        pairs.map(|(demand, got)| got.rate.0 as f64 / f64::from(demand.weight)).collect();
    levels.sort_by(f64::total_cmp);
    levels
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..penstock_testkit::properties() })]

    #[test]
    fn limits_hold_and_bottlenecks_are_real(problem in problem(12, 3, true)) {
        let allocation = allocate(&problem).expect("the problem is valid");
        assert_limits(&problem, &allocation)?;
        assert_bounds(&problem, &allocation)?;
    }

    #[test]
    fn rate_is_demand_or_bottleneck_maximum(problem in problem(12, 1, false)) {
        let allocation = allocate(&problem).expect("the problem is valid");
        let used = used(&allocation);
        let near = rounding(&problem);
        let rated = || problem.demands.iter().zip(&allocation.allotments);
        for (demand, got) in rated() {
            let most = demand.demand.into_iter().chain(demand.cap).min();
            let is_bottleneck = |name: &String| {
                let (used, capacity) = used[name.as_str()];
                let on_it = rated().filter(|(other, _)| other.paths[0].contains(name));
                let mut fair = on_it.map(|(other, has)| {
                    u128::from(has.rate.0) * u128::from(demand.weight)
                        <= u128::from(got.rate.0 + 2 * near) * u128::from(other.weight)
                });
                used + near >= capacity && fair.all(|is| is)
            };
            let is_bound = most == Some(got.rate) || demand.paths[0].iter().any(is_bottleneck);
            prop_assert!(is_bound, "{got:?} of {demand:?}");
        }
    }

    #[test]
    fn more_capacity_never_lowers_minimum(
        problem in problem(12, 1, false),
        place: Index,
        more in rate(),
    ) {
        let before = levels(&problem, &allocate(&problem).expect("the problem is valid"));
        let mut larger = problem.clone();
        let resource = &mut larger.resources[place.index(problem.resources.len())];
        resource.capacity.0 += more.0;
        let after = levels(&larger, &allocate(&larger).expect("the problem is valid"));
        let near = 2.0 * rounding(&problem) as f64;
        // A level falls only where a lower one rises, if by less than rounding: a demand with a large weight may take
        // several times what its level gains from one with a small weight.
        let first = before.iter().zip(&after).find(|(a, b)| *a - *b > near || *b > *a);
        prop_assert!(first.is_none_or(|(a, b)| a < b), "{before:?}\n{after:?}");
    }

    #[test]
    fn input_order_does_not_matter(
        (problem, shuffled) in problem(12, 3, true).prop_flat_map(|problem| {
            let demands = Just(problem.demands.clone()).prop_shuffle();
            let resources = Just(problem.resources.clone()).prop_shuffle();
            let classes = Just(problem.classes.clone()).prop_shuffle();
            let policy = problem.policy;
            let shuffled = (resources, classes, demands).prop_map(
                move |(resources, classes, demands)| Problem { resources, classes, demands, policy },
            );
            (Just(problem), shuffled)
        }),
    ) {
        let sorted = |problem: &Problem| {
            let mut all = allocate(problem).expect("the problem is valid");
            all.allotments.sort_by(|a, b| a.demand.cmp(&b.demand));
            all.resources.sort_by(|a, b| a.name.cmp(&b.name));
            all.classes.sort_by(|a, b| a.name.cmp(&b.name));
            all
        };
        prop_assert_eq!(sorted(&problem), sorted(&shuffled));
    }

    #[test]
    fn incremental_changes_equal_full_solution(
        start in problem(8, 2, true),
        changes in prop::collection::vec((0..4_u8, any::<Index>(), demand(2, true), rate()), 1..12),
    ) {
        let mut problem = start;
        let mut allocator = Allocator::new(&problem).expect("the problem is valid");
        let all = |problem: &Problem| allocate(problem).expect("the problem is valid").allotments;
        let mut known: HashMap<String, _> =
            all(&problem).into_iter().map(|one| (one.demand.clone(), one)).collect();
        for (number, (kind, place, mut demand, rate)) in changes.into_iter().enumerate() {
            let name = |demands: &[Demand]| demands[place.index(demands.len())].name.clone();
            let changed = match kind {
                0 if !problem.demands.is_empty() => {
                    let name = name(&problem.demands);
                    problem.demands.retain(|demand| demand.name != name);
                    known.remove(&name);
                    allocator.remove(&name)
                }
                1 if !problem.demands.is_empty() => {
                    demand.name = name(&problem.demands);
                    let old = problem.demands.iter_mut().find(|old| old.name == demand.name);
                    *old.expect("the demand exists") = demand.clone();
                    allocator.update(&demand)
                }
                2 => {
                    let at = place.index(problem.resources.len());
                    problem.resources[at].capacity = rate;
                    allocator.set_capacity(&problem.resources[at].name, rate)
                }
                3 => {
                    let at = place.index(problem.classes.len());
                    let class = Class { weight: demand.weight, ..problem.classes[at].clone() };
                    problem.classes[at] = class.clone();
                    allocator.set_class(class)
                }
                _ => {
                    demand.name = format!("new{number}");
                    problem.demands.push(demand.clone());
                    allocator.insert(&demand)
                }
            };
            for one in changed.expect("the change is valid") {
                known.insert(one.demand.clone(), one);
            }
            // A client that applies only the changes has the complete state.
            for one in all(&problem) {
                prop_assert_eq!(known.get(&one.demand), Some(&one));
                prop_assert_eq!(allocator.allotment(&one.demand), Some(one));
            }
            let whole = allocate(&problem).expect("the problem is valid");
            prop_assert_eq!(allocator.resources(), whole.resources);
            prop_assert_eq!(allocator.classes(), whole.classes);
            prop_assert_eq!(known.len(), problem.demands.len());
        }
    }

    #[test]
    fn no_tier_starves(mut problem in problem(12, 1, true), permille in 1..500_u16) {
        problem.policy.tier_floor_permille = permille;
        // Guarantees and floors come first; without them each demand has a rate.
        for class in &mut problem.classes {
            (class.floor, class.mark, class.cap) = (BitRate(0), None, None);
        }
        for demand in &mut problem.demands {
            demand.guarantee = BitRate(0);
        }
        let allocation = allocate(&problem).expect("the problem is valid");
        // Least possible rate: a tier's share divided by all weights.
        let weights: u64 = problem.demands.iter().map(|demand| u64::from(demand.weight)).sum();
        for (demand, got) in problem.demands.iter().zip(&allocation.allotments) {
            let capacity = |name: &String| {
                let found = problem.resources.iter().find(|resource| resource.name == *name);
                found.expect("a resource of the problem").capacity.0
            };
            let least = demand.paths[0].iter().map(capacity).min().unwrap_or_default();
            let share = u128::from(least) * u128::from(permille) / 1000;
            // Classes have weights up to 8 and there are demands without: 9 times at most.
            let fair = (share / u128::from(weights * 9)) as u64;
            let wanted = demand.demand.into_iter().chain(demand.cap).map(|rate| rate.0).min();
            let fair = fair.min(wanted.unwrap_or(u64::MAX));
            prop_assert!(got.rate.0 + 1 >= fair, "{got:?} of {demand:?}: less than {fair}");
        }
    }
}

#[test]
fn failed_change_is_atomic() {
    let problem = Problem {
        resources: vec![Resource::new("a", BitRate(90))],
        demands: vec![Demand::new("x", ["a"]), Demand::new("y", ["a"])],
        ..Problem::default()
    };
    let mut allocator = Allocator::new(&problem).expect("the problem is valid");
    let before = allocator.allotments();
    let bad = [
        allocator.insert(&Demand::new("x", ["a"])),
        allocator.insert(&Demand::new("z", ["b"])),
        allocator.insert(&Demand { weight: 0, ..Demand::new("z", ["a"]) }),
        allocator.insert(&Demand::new("z", ["a", "a"])),
        allocator.insert(&Demand::new("z", [""; 0])),
        allocator.insert(&Demand { class: Some("c".to_owned()), ..Demand::new("z", ["a"]) }),
        allocator.update(&Demand::new("z", ["a"])),
        allocator.update(&Demand { weight: u32::MAX, ..Demand::new("x", ["a"]) }),
        allocator.remove("z"),
        allocator.set_capacity("b", BitRate(1)),
        allocator.set_capacity("a", BitRate(u64::MAX)),
        allocator.set_class(Class::new("c")),
    ];
    let errors: Vec<String> = bad.iter().map(|bad| bad.as_ref().unwrap_err().to_string()).collect();
    assert_eq!(
        errors,
        [
            "there is another demand 'x': give it a name of its own",
            "demand 'z' names the resource 'b', which does not exist",
            "demand 'z': weight must be 1 to 1048576",
            "demand 'z' has the resource 'a' twice on one path",
            "demand 'z' has a path without a resource: give it a demand or a cap",
            "demand 'z' names the class 'c', which does not exist",
            "the change names the demand 'z', which does not exist",
            "demand 'x': weight must be 1 to 1048576",
            "the change names the demand 'z', which does not exist",
            "the change names the resource 'b', which does not exist",
            "resource 'a': capacity must be up to 1.00 Pb/s",
            "the change names the class 'c', which does not exist",
        ]
    );
    assert_eq!(allocator.allotments(), before);
    let changed = allocator.remove("x").expect("the demand exists");
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].demand.as_str(), changed[0].rate), ("y", BitRate(90)));
}

#[test]
fn demand_without_path_gets_nothing() {
    let demand = Demand { paths: Vec::new(), ..Demand::new("x", [""; 0]) };
    let problem = Problem { demands: vec![demand], ..Problem::default() };
    let allocation = allocate(&problem).expect("the problem is valid");
    assert_eq!(allocation.allotments[0].bound, Bound::NoPath);
    assert_eq!(allocation.allotments[0].rate, BitRate(0));
}

#[test]
fn largest_numbers_do_not_overflow() {
    let resources: Vec<_> =
        (0..PATHS_MAX).map(|number| Resource::new(format!("r{number}"), RATE_MAX)).collect();
    let paths: Vec<Vec<String>> = resources.iter().map(|one| vec![one.name.clone()]).collect();
    let classes = (0..4).map(|tier| Class {
        weight: if tier == 0 { WEIGHT_MAX } else { 1 },
        floor: RATE_MAX,
        mark: Some(RATE_MAX),
        cap: Some(RATE_MAX),
        tier,
        ..Class::new(format!("c{tier}"))
    });
    let demands = (0..200_u32).map(|number| Demand {
        class: (number % 5 > 0).then(|| format!("c{}", number % 5 - 1)),
        weight: if number % 2 == 0 { WEIGHT_MAX } else { 1 + number },
        demand: (number % 3 == 0).then_some(RATE_MAX),
        guarantee: if number % 7 == 0 { RATE_MAX } else { BitRate(u64::from(number)) },
        paths: if number % 2 == 0 { paths.clone() } else { vec![paths[0].clone()] },
        ..Demand::new(format!("d{number}"), [""; 0])
    });
    let (classes, demands) = (classes.collect(), demands.collect());
    let problem = Problem { resources, classes, demands, ..Problem::default() };
    let allocation = allocate(&problem).expect("the problem is valid");
    assert_limits(&problem, &allocation).expect("rates are within the limits");
    assert_bounds(&problem, &allocation).expect("stated bottlenecks are real");
    let used: u128 = allocation.resources.iter().map(|one| u128::from(one.used.0)).sum();
    assert!(used > 63 * u128::from(RATE_MAX.0), "all is used: {used}");
}
