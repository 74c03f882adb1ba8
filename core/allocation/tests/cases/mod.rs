//! Random problems for the tests of this crate.

use penstock_allocation::{Class, Demand, Policy, Problem, Resource};
use penstock_units::BitRate;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::subsequence;

const RESOURCE_COUNT: usize = 8;

/// Round rates, so that limits coincide, and arbitrary ones.
pub(crate) fn rate() -> impl Strategy<Value = BitRate> {
    prop_oneof![
        (0..20_u64).prop_map(|tens| BitRate(tens * 10_000_000_000)),
        (0..10_u64).prop_map(BitRate),
        (0..1_000_000_000_000_u64).prop_map(BitRate),
    ]
}

fn resource_name(number: usize) -> String {
    // Not in the order of the numbers.
    format!("r{}", (number * 5) % RESOURCE_COUNT)
}

fn path() -> impl Strategy<Value = Vec<String>> {
    let all: Vec<String> = (0..RESOURCE_COUNT).map(resource_name).collect();
    subsequence(all, 1..4)
}

fn class(name: &'static str) -> impl Strategy<Value = Class> {
    let rates = (rate(), option::of(rate()), option::of(rate()));
    (1..9_u32, rates, 0..3_u8).prop_map(move |(weight, (floor, mark, cap), tier)| {
        let cap = cap.map(|cap| cap.max(floor).max(mark.unwrap_or_default()));
        let mark = mark.map(|mark| mark.max(floor));
        Class { weight, floor, mark, cap, tier, ..Class::new(name) }
    })
}

/// A demand on up to `paths` paths; with a class and a guarantee only if `classes`.
pub(crate) fn demand(paths: usize, classes: bool) -> impl Strategy<Value = Demand> {
    let class = option::of(prop_oneof![Just("a"), Just("b"), Just("c")]);
    let rates = (option::of(rate()), option::of(rate()), option::weighted(0.3, rate()));
    (class, 1..9_u32, rates, vec(path(), 1..=paths)).prop_map(
        move |(class, weight, (demand, cap, guarantee), paths)| Demand {
            class: class.filter(|_| classes).map(str::to_owned),
            weight,
            demand,
            guarantee: guarantee.filter(|_| classes).unwrap_or_default(),
            cap,
            paths,
            ..Demand::new("", ["r0"])
        },
    )
}

/// A problem with up to `demands` demands, named `d0` and so on.
pub(crate) fn problem(
    demands: usize,
    paths: usize,
    classes: bool,
) -> impl Strategy<Value = Problem> {
    let all_classes = (class("a"), class("b"), class("c"));
    let policy = prop_oneof![Just(0), Just(20), 0..300_u16];
    (vec(rate(), RESOURCE_COUNT), all_classes, vec(demand(paths, classes), 1..=demands), policy)
        .prop_map(move |(capacities, (a, b, c), mut demands, tier_floor_permille)| {
            for (number, demand) in demands.iter_mut().enumerate() {
                demand.name = format!("d{number}");
            }
            let capacities = capacities.into_iter().enumerate();
            Problem {
                resources: capacities
                    .map(|(number, capacity)| Resource::new(resource_name(number), capacity))
                    .collect(),
                classes: vec![a, b, c],
                demands,
                policy: Policy { tier_floor_permille, ..Policy::default() },
            }
        })
}
