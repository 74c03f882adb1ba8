//! Measures the time of single changes, and their distance from whole allocations: `allocation_changes FLOWS LINKS PATHS
//! CHANGES`. Prints tables, without classes and with ten.
//!
//! Flows are random: three to five links each, one in two with a demand, weights 1 to 8. Changes take turns: a weight, a
//! capacity, a new flow, the removal of one, a demand. The series runs three times and is the same each time, so that
//! the least time of each change is without other load on the machine.

use std::time::Instant;

use penstock_allocation::{Allocator, Class, Demand, Problem, Resource, allocate};
use penstock_random::Random;
use penstock_units::BitRate;

const CHANGE_KINDS: [&str; 5] = ["weight", "capacity", "insert", "remove", "demand"];
const GBPS_IN_BPS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Shape {
    flows: u64,
    links: u64,
    paths: u64,
    changes: u64,
    classes: bool,
}

fn link(number: u64) -> String {
    format!("link{number}")
}

impl Shape {
    fn demand(self, random: &mut Random, name: String) -> Demand {
        let mut path = || {
            let count = 3 + random.below(3);
            let mut all: Vec<u64> = (0..count).map(|_| random.below(self.links)).collect();
            all.sort_unstable();
            all.dedup();
            all.into_iter().map(link).collect()
        };
        let paths = (0..self.paths).map(|_| path()).collect();
        Demand {
            weight: 1 + random.below(8) as u32,
            demand: wanted(random),
            class: self.classes.then(|| format!("class{}", random.below(10))),
            paths,
            ..Demand::new(name, [""; 0])
        }
    }

    fn problem(self) -> Problem {
        let mut random = Random::new(1);
        let resources =
            (0..self.links).map(|number| Resource::new(link(number), capacity(&mut random)));
        let resources = resources.collect();
        let demands =
            (0..self.flows).map(|number| self.demand(&mut random, format!("flow{number}")));
        let demands = demands.collect();
        let class = |number: u64| Class {
            weight: 1 + number as u32,
            floor: BitRate(number * GBPS_IN_BPS),
            mark: Some(BitRate(self.flows * 2 * GBPS_IN_BPS)),
            tier: (number % 3) as u8,
            ..Class::new(format!("class{number}"))
        };
        let classes = if self.classes { (0..10).map(class).collect() } else { Vec::new() };
        Problem { resources, classes, demands, ..Problem::default() }
    }

    /// Returns the milliseconds of each change, the mean number of changed allotments, and the problem and its
    /// allocation at the end.
    fn series(self) -> (Vec<f64>, usize, Problem, Allocator) {
        let mut problem = self.problem();
        let mut random = Random::new(7);
        let mut allocator = Allocator::new(&problem).expect("the problem is valid");
        let (mut times, mut count) = (Vec::new(), 0);
        for number in 0..self.changes {
            let at = random.below(problem.demands.len() as u64) as usize;
            let start;
            let changed = match number % 5 {
                1 => {
                    let resource = &mut problem.resources[random.below(self.links) as usize];
                    resource.capacity = capacity(&mut random);
                    start = Instant::now();
                    allocator.set_capacity(&resource.name, resource.capacity)
                }
                2 => {
                    problem.demands.push(self.demand(&mut random, format!("new{number}")));
                    start = Instant::now();
                    allocator.insert(&problem.demands[problem.demands.len() - 1])
                }
                3 => {
                    let removed = problem.demands.swap_remove(at);
                    start = Instant::now();
                    allocator.remove(&removed.name)
                }
                kind => {
                    let demand = &mut problem.demands[at];
                    if kind == 0 {
                        demand.weight = 1 + random.below(8) as u32;
                    } else {
                        demand.demand = wanted(&mut random);
                    }
                    start = Instant::now();
                    allocator.update(demand)
                }
            };
            count += changed.expect("the change is valid").len();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        (times, count / self.changes as usize, problem, allocator)
    }
}

fn capacity(random: &mut Random) -> BitRate {
    BitRate((1 + random.below(8)) * 100 * GBPS_IN_BPS)
}

fn wanted(random: &mut Random) -> Option<BitRate> {
    random.one_in(2).then(|| BitRate(1 + random.below(100 * GBPS_IN_BPS)))
}

fn rates(problem: &Problem) -> Vec<f64> {
    let allocation = allocate(problem).expect("the problem is valid");
    allocation.allotments.iter().map(|one| one.rate.0 as f64).collect()
}

/// Sum of the differences over the sum of the rates, and mean and median of the differences over each rate.
fn distance(of: &[f64], from: &[f64]) -> [f64; 3] {
    let pairs = || of.iter().zip(from);
    let total: f64 = pairs().map(|(a, b)| (a - b).abs()).sum::<f64>() / from.iter().sum::<f64>();
    let mut each: Vec<f64> =
        pairs().filter(|(_, b)| **b > 1e6).map(|(a, b)| (a / b - 1.0).abs()).collect();
    each.sort_by(f64::total_cmp);
    [total, each.iter().sum::<f64>() / each.len() as f64, each[each.len() / 2]]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize| arguments[at].parse::<u64>().expect("FLOWS LINKS PATHS CHANGES, all numbers");
    let [flows, links, paths, changes] = [0, 1, 2, 3].map(number);
    for classes in [false, true] {
        let shape = Shape { flows, links, paths, changes, classes };
        let (mut times, changed, mut problem, allocator) = shape.series();
        for _ in 0..2 {
            let again = shape.series().0;
            times.iter_mut().zip(again).for_each(|(time, again)| *time = time.min(again));
        }
        println!(
            "{} classes, {changed} allotments changed in the mean",
            if classes { 10 } else { 0 }
        );
        for (kind, name) in CHANGE_KINDS.iter().enumerate() {
            let mut of: Vec<f64> =
                times.iter().skip(kind).step_by(CHANGE_KINDS.len()).copied().collect();
            of.sort_by(f64::total_cmp);
            let (p50, p90) = (of[of.len() / 2], of[of.len() * 9 / 10]);
            println!("{name}: p50 {p50:.2}, p90 {p90:.2}, worst {:.2} ms", of[of.len() - 1]);
        }
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        println!("all: mean {mean:.2} ms");
        let demands = problem.demands.iter();
        let rate = |demand: &Demand| allocator.allotment(&demand.name).map_or(0, |one| one.rate.0);
        let got: Vec<f64> = demands.map(|demand| rate(demand) as f64).collect();
        let whole = rates(&problem);
        problem.policy.passes = 100;
        let many = rates(&problem);
        println!("after all changes, from 100 passes: {:.4?}", distance(&got, &many));
        println!("whole allocation, from 100 passes: {:.4?}", distance(&whole, &many));
    }
}
