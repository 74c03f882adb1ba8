//! Changes of components that are too large to be solved whole: all limits hold exactly, and rates stay as near the fair
//! ones as those of whole allocations, however many changes there were.

use std::collections::HashMap;

use penstock_allocation::{Allocator, Class, Demand, Policy, Problem, Resource, allocate};
use penstock_random::Random;
use penstock_units::BitRate;

const GBPS_IN_BPS: u64 = 1_000_000_000;

/// Problem without parts that are small enough to be solved whole, and its random changes.
struct ChangingProblem {
    random: Random,
    problem: Problem,
    allocator: Allocator,
    paths: u64,
    promises: bool,
    number: u64,
    /// Rates as a client knows them that applies only the changes.
    known: HashMap<String, u64>,
}

fn link(number: u64) -> String {
    format!("link{number}")
}

fn capacity(random: &mut Random) -> BitRate {
    BitRate((1 + random.below(8)) * 100 * GBPS_IN_BPS)
}

impl ChangingProblem {
    /// With `promises` there are classes in three tiers, with floors, marks and caps, and guarantees.
    fn new(seed: u64, demands: u64, links: u64, paths: u64, promises: bool) -> Self {
        let mut random = Random::new(seed);
        let resources = (0..links).map(|number| Resource::new(link(number), capacity(&mut random)));
        let resources = resources.collect();
        let class = |number: u64| Class {
            weight: 1 + number as u32,
            floor: BitRate(number * GBPS_IN_BPS),
            mark: Some(BitRate(demands * (1 + number) * GBPS_IN_BPS)),
            cap: (number == 4).then_some(BitRate(demands * 20 * GBPS_IN_BPS)),
            tier: (number % 3) as u8,
            ..Class::new(format!("class{number}"))
        };
        let classes = if promises { (0..5).map(class).collect() } else { Vec::new() };
        let policy = Policy { whole_part_demands: 0, ..Policy::default() };
        let problem = Problem { resources, classes, demands: Vec::new(), policy };
        let allocator = Allocator::new(&problem).expect("the problem is valid");
        let known = HashMap::new();
        let mut all = Self { random, problem, allocator, paths, promises, number: 0, known };
        for _ in 0..demands {
            let demand = all.demand();
            all.problem.demands.push(demand);
        }
        all.allocator = Allocator::new(&all.problem).expect("the problem is valid");
        let allotments = all.allocator.allotments();
        all.known = allotments.into_iter().map(|one| (one.demand, one.rate.0)).collect();
        all
    }

    fn demand(&mut self) -> Demand {
        self.number += 1;
        let links = self.problem.resources.len() as u64;
        let random = &mut self.random;
        let mut path = || {
            let mut all: Vec<u64> = (0..2 + random.below(2)).map(|_| random.below(links)).collect();
            all.sort_unstable();
            all.dedup();
            all.into_iter().map(link).collect()
        };
        let paths = (0..self.paths).map(|_| path()).collect();
        let guarantee =
            if self.promises && random.one_in(10) { random.below(GBPS_IN_BPS) } else { 0 };
        Demand {
            weight: 1 + random.below(8) as u32,
            demand: random.one_in(2).then(|| BitRate(1 + random.below(100 * GBPS_IN_BPS))),
            guarantee: BitRate(guarantee),
            class: (self.promises && !random.one_in(6))
                .then(|| format!("class{}", random.below(5))),
            paths,
            ..Demand::new(format!("d{}", self.number), [""; 0])
        }
    }

    fn change(&mut self) {
        let at = self.random.below(self.problem.demands.len() as u64) as usize;
        let changed = match self.random.below(8) {
            0 => {
                let link = self.random.below(self.problem.resources.len() as u64);
                let resource = &mut self.problem.resources[link as usize];
                resource.capacity = capacity(&mut self.random);
                self.allocator.set_capacity(&resource.name, resource.capacity)
            }
            1 | 2 => {
                let demand = self.demand();
                self.problem.demands.push(demand.clone());
                self.allocator.insert(&demand)
            }
            3 | 4 => {
                let removed = self.problem.demands.swap_remove(at);
                self.known.remove(&removed.name);
                self.allocator.remove(&removed.name)
            }
            5 => {
                let name = self.problem.demands[at].name.clone();
                self.problem.demands[at] = Demand { name, ..self.demand() };
                self.allocator.update(&self.problem.demands[at])
            }
            _ => {
                self.problem.demands[at].weight = 1 + self.random.below(8) as u32;
                self.allocator.update(&self.problem.demands[at])
            }
        };
        for one in changed.expect("the change is valid") {
            self.known.insert(one.demand, one.rate.0);
        }
    }

    fn rates(&self) -> Vec<f64> {
        self.problem.demands.iter().map(|demand| self.known[&demand.name] as f64).collect()
    }

    fn assert_limits(&self) {
        for one in self.allocator.resources() {
            assert!(one.used <= one.capacity, "{one:?}");
        }
        for one in self.allocator.classes() {
            assert!(one.cap.is_none_or(|cap| one.used <= cap), "{one:?}");
            assert_eq!(one.shortfall, BitRate(0), "{one:?}");
        }
        for demand in &self.problem.demands {
            let got = self.allocator.allotment(&demand.name).expect("the demand exists");
            assert_eq!(self.known[&demand.name], got.rate.0, "a change was not returned");
            assert!(demand.demand.is_none_or(|most| got.rate <= most), "{got:?}");
            assert_eq!(got.shortfall, BitRate(0), "{got:?} of {demand:?}");
        }
    }
}

fn whole(problem: &Problem, passes: u16) -> Vec<f64> {
    let policy = Policy { passes, ..problem.policy };
    let allocation = allocate(&Problem { policy, ..problem.clone() }).expect("a valid problem");
    allocation.allotments.iter().map(|one| one.rate.0 as f64).collect()
}

/// Sum of the differences over the sum of the rates.
fn distance(of: &[f64], from: &[f64]) -> f64 {
    let differences: f64 = of.iter().zip(from).map(|(a, b)| (a - b).abs()).sum();
    differences / from.iter().sum::<f64>()
}

#[test]
fn changes_keep_all_limits() {
    for seed in 0..6 {
        let mut all = ChangingProblem::new(seed, 150, 30, 3, true);
        for _ in 0..120 {
            all.change();
            all.assert_limits();
        }
    }
}

#[test]
fn many_changes_do_not_drift() {
    let (mut sums, mut count) = ([0.0, 0.0], 0.0);
    for seed in 0..3 {
        let mut all = ChangingProblem::new(seed, 400, 60, 3, false);
        for number in 1..=390 {
            all.change();
            if number % 39 == 0 {
                let fair = whole(&all.problem, 100);
                sums[0] += distance(&all.rates(), &fair);
                sums[1] += distance(&whole(&all.problem, 8), &fair);
                count += 1.0;
            }
        }
    }
    let [changes, whole] = sums.map(|sum| sum / count);
    println!("off by {changes:.4} after changes, by {whole:.4} if allotted whole");
    assert!(changes < whole + 0.03, "{changes} {whole}");
}

#[test]
fn single_paths_equal_whole_allocation() {
    let mut all = ChangingProblem::new(1, 100, 20, 1, true);
    for _ in 0..60 {
        all.change();
        let whole = allocate(&all.problem).expect("the problem is valid");
        for one in whole.allotments {
            assert_eq!(all.allocator.allotment(&one.demand), Some(one));
        }
    }
}

#[test]
fn every_32nd_change_is_exact() {
    let mut all = ChangingProblem::new(2, 100, 20, 3, false);
    let mut exact = Vec::new();
    for number in 1..=70 {
        all.problem.demands[0].weight = 1 + all.problem.demands[0].weight % 8;
        all.allocator.update(&all.problem.demands[0]).expect("the change is valid");
        let whole = allocate(&all.problem).expect("the problem is valid").allotments;
        if whole.iter().all(|one| all.allocator.allotment(&one.demand).as_ref() == Some(one)) {
            exact.push(number);
        }
    }
    assert_eq!(exact, [32, 64]);
}
