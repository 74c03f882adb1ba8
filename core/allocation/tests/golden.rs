//! Digests of allocations over seeded problems and changes: an optimisation that alters any rate, bottleneck or shortfall
//! by a bit alters a line of `golden/allocations.txt`.
//!
//! `UPDATE_GOLDEN=1 cargo test -p penstock-allocation --test golden` rewrites the file; the change is reviewed as a diff.

use std::fmt::Write as _;
use std::path::Path;

use penstock_allocation::{
    Allocation, Allocator, Allotment, Class, Demand, Policy, Problem, RATE_MAX, Resource, allocate,
};
use penstock_random::{Random, mix};
use penstock_units::BitRate;

/// Shape of random problems.
#[derive(Clone, Copy)]
struct ProblemFamily {
    name: &'static str,
    seeds: u64,
    resources: u64,
    demands: u64,
    paths: u64,
    classes: u64,
    tiers: u64,
    /// One demand in this many has a guarantee; 0 for none.
    guarantees: u64,
    rates: fn(&mut Random) -> BitRate,
}

/// Few distinct rates, so that many limits fill at the same level.
fn round_rate(random: &mut Random) -> BitRate {
    BitRate(random.below(12) * 10_000_000_000)
}

fn any_rate(random: &mut Random) -> BitRate {
    BitRate(1 + random.below(1_000_000_000_000))
}

/// A few bits per second up to the largest rate.
fn extreme_rate(random: &mut Random) -> BitRate {
    match random.below(4) {
        0 => BitRate(random.below(5)),
        1 => BitRate(RATE_MAX.0 - random.below(3)),
        _ => BitRate((random.next_bits() % RATE_MAX.0) >> random.below(50)),
    }
}

#[rustfmt::skip]
const FAMILIES: [ProblemFamily; 10] = [
    ProblemFamily { name: "one path", seeds: 40, resources: 8, demands: 30, paths: 1, classes: 0, tiers: 1, guarantees: 0, rates: any_rate },
    ProblemFamily { name: "one path, equal levels", seeds: 40, resources: 8, demands: 30, paths: 1, classes: 0, tiers: 1, guarantees: 0, rates: round_rate },
    ProblemFamily { name: "guarantees", seeds: 40, resources: 8, demands: 30, paths: 1, classes: 0, tiers: 1, guarantees: 2, rates: any_rate },
    ProblemFamily { name: "three paths", seeds: 40, resources: 12, demands: 30, paths: 3, classes: 0, tiers: 1, guarantees: 0, rates: any_rate },
    ProblemFamily { name: "classes", seeds: 40, resources: 8, demands: 30, paths: 1, classes: 4, tiers: 2, guarantees: 4, rates: any_rate },
    ProblemFamily { name: "classes, equal levels", seeds: 40, resources: 8, demands: 30, paths: 2, classes: 4, tiers: 2, guarantees: 3, rates: round_rate },
    ProblemFamily { name: "classes, three paths", seeds: 40, resources: 12, demands: 40, paths: 3, classes: 6, tiers: 3, guarantees: 5, rates: any_rate },
    ProblemFamily { name: "extremes", seeds: 40, resources: 6, demands: 25, paths: 2, classes: 3, tiers: 2, guarantees: 3, rates: extreme_rate },
    ProblemFamily { name: "many, one path", seeds: 3, resources: 120, demands: 1200, paths: 1, classes: 10, tiers: 3, guarantees: 20, rates: any_rate },
    ProblemFamily { name: "many, three paths", seeds: 3, resources: 100, demands: 800, paths: 3, classes: 10, tiers: 3, guarantees: 0, rates: any_rate },
];

impl ProblemFamily {
    fn problem(&self, random: &mut Random) -> Problem {
        let resources = (0..self.resources)
            .map(|number| Resource::new(resource_name(number), (self.rates)(random)))
            .collect();
        let classes = (0..self.classes).map(|number| self.class(number, random)).collect();
        let demands = (0..1 + random.below(self.demands))
            .map(|number| self.demand(format!("d{number}"), random))
            .collect();
        let policy = Policy {
            tier_floor_permille: [0, 20, 20, 250][random.below(4) as usize],
            passes: [8, 8, 24, 1, 7, 60][random.below(6) as usize],
            ..Policy::default()
        };
        Problem { resources, classes, demands, policy }
    }

    fn class(&self, number: u64, random: &mut Random) -> Class {
        let mut rates = [(self.rates)(random), (self.rates)(random), (self.rates)(random)];
        rates.sort_unstable();
        let floor = if random.one_in(3) { BitRate(0) } else { rates[0] };
        Class {
            weight: 1 + random.below(8) as u32,
            floor,
            mark: random.one_in(2).then_some(rates[1]),
            cap: random.one_in(4).then_some(rates[2]),
            tier: random.below(self.tiers) as u8,
            ..Class::new(format!("c{number}"))
        }
    }

    fn demand(&self, name: String, random: &mut Random) -> Demand {
        let mut path = || {
            let count = 1 + random.below(4.min(self.resources));
            let mut numbers: Vec<u64> = (0..count).map(|_| random.below(self.resources)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into_iter().map(resource_name).collect()
        };
        let paths = (0..self.paths).map(|_| path()).collect::<Vec<_>>();
        let paths = paths.into_iter().take(random.between(1, self.paths + 1) as usize).collect();
        let has_guarantee = self.guarantees > 0 && random.one_in(self.guarantees);
        let has_class = self.classes > 0 && !random.one_in(8);
        Demand {
            class: has_class.then(|| format!("c{}", random.below(self.classes))),
            weight: 1 + random.below(8) as u32,
            demand: random.one_in(2).then(|| (self.rates)(random)),
            cap: random.one_in(6).then(|| (self.rates)(random)),
            guarantee: if has_guarantee { (self.rates)(random) } else { BitRate(0) },
            paths,
            ..Demand::new(name, [""; 0])
        }
    }
}

/// Names that do not sort by number.
fn resource_name(number: u64) -> String {
    format!("r{}", number * 7 % 1000)
}

#[derive(Default)]
struct AllocationDigest(u64);

impl AllocationDigest {
    fn add(&mut self, number: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ number);
    }

    fn add_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.add(u64::from(byte)));
    }

    fn add_allotment(&mut self, one: &Allotment) {
        self.add_text(&one.demand);
        self.add(one.rate.0);
        self.add_text(&one.bound.to_string());
        self.add(one.shortfall.0);
        for path in &one.paths {
            self.add(path.rate.0);
            self.add_text(&path.bound.to_string());
        }
    }

    fn add_allocation(&mut self, allocation: &Allocation) {
        allocation.allotments.iter().for_each(|one| self.add_allotment(one));
        for one in &allocation.resources {
            self.add(one.used.0);
        }
        for one in &allocation.classes {
            self.add(one.used.0);
            self.add(one.shortfall.0);
        }
    }
}

/// Applies random changes, and adds the changed allotments in the order of their names.
fn change(
    family: &ProblemFamily,
    problem: &Problem,
    allocator: &mut Allocator,
    random: &mut Random,
    digest: &mut AllocationDigest,
) {
    let mut names: Vec<String> = problem.demands.iter().map(|one| one.name.clone()).collect();
    for number in 0..6 {
        let place = random.below(names.len() as u64) as usize;
        let changed = match random.below(5) {
            0 if names.len() > 1 => allocator.remove(&names.swap_remove(place)),
            1 => allocator.update(&family.demand(names[place].clone(), random)),
            2 => {
                let resource = resource_name(random.below(family.resources));
                allocator.set_capacity(&resource, (family.rates)(random))
            }
            3 if family.classes > 0 => {
                let class = random.below(family.classes);
                allocator.set_class(family.class(class, random))
            }
            _ => {
                names.push(format!("new{number}"));
                allocator.insert(&family.demand(names[names.len() - 1].clone(), random))
            }
        };
        let mut changed = changed.expect("the change is valid");
        changed.sort_by(|a, b| a.demand.cmp(&b.demand));
        changed.iter().for_each(|one| digest.add_allotment(one));
    }
    allocator.allotments().iter().for_each(|one| digest.add_allotment(one));
}

fn digests() -> String {
    let mut text = String::new();
    for family in FAMILIES {
        for seed in 0..family.seeds {
            let mut random = Random::named(seed, family.name);
            let problem = family.problem(&mut random);
            let (mut whole, mut changes) =
                (AllocationDigest::default(), AllocationDigest::default());
            whole.add_allocation(&allocate(&problem).expect("the problem is valid"));
            let mut allocator = Allocator::new(&problem).expect("the problem is valid");
            change(&family, &problem, &mut allocator, &mut random, &mut changes);
            let demands = problem.demands.len();
            let _ = writeln!(
                text,
                "{}, seed {seed}, {demands} demands: {:016x} {:016x}",
                family.name, whole.0, changes.0
            );
        }
    }
    text
}

#[test]
fn allocations_equal_golden_digests() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/allocations.txt");
    let text = digests();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).expect("the golden file can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    for (kept, now) in kept.lines().zip(text.lines()) {
        assert_eq!(kept, now, "UPDATE_GOLDEN=1 cargo test -p penstock-allocation --test golden");
    }
    assert_eq!(kept, text, "UPDATE_GOLDEN=1 cargo test -p penstock-allocation --test golden");
}
