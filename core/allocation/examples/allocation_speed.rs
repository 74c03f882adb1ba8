//! Measures the time of an allocation: `allocation_speed FLOWS LINKS PATHS RUNS [file]`. Prints one JSON object and
//! writes the problem to the file as lines of text, for other solvers.
//!
//! Flows are random: three to five links each, one in two with a demand, weights 1 to 8, a class of ten for each.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use penstock_allocation::{Allocator, Class, Demand, Problem, Resource, allocate};
use penstock_random::Random;
use penstock_units::BitRate;

fn problem(flows: u64, links: u64, paths: u64, classes: bool) -> Problem {
    let mut random = Random::new(1);
    let link = |number: u64| format!("link{number}");
    let resources = (0..links)
        .map(|number| Resource::new(link(number), BitRate((1 + random.below(8)) * 100_000_000_000)))
        .collect();
    let demands = (0..flows)
        .map(|number| {
            let mut path = || {
                let mut all: Vec<u64> =
                    (0..3 + random.below(3)).map(|_| random.below(links)).collect();
                all.sort_unstable();
                all.dedup();
                all.into_iter().map(link).collect()
            };
            let paths = (0..paths).map(|_| path()).collect();
            let demand = BitRate(1 + random.below(100_000_000_000));
            Demand {
                weight: 1 + random.below(8) as u32,
                demand: (random.below(2) == 0).then_some(demand),
                class: classes.then(|| format!("class{}", random.below(10))),
                paths,
                ..Demand::new(format!("flow{number}"), [""; 0])
            }
        })
        .collect();
    let class = |number: u64| Class {
        weight: 1 + number as u32,
        floor: BitRate(number * 1_000_000_000),
        mark: Some(BitRate(flows * 2_000_000_000)),
        tier: (number % 3) as u8,
        ..Class::new(format!("class{number}"))
    };
    let classes = if classes { (0..10).map(class).collect() } else { Vec::new() };
    Problem { resources, classes, demands, ..Problem::default() }
}

/// Returns the processor time so far in seconds, which other load on the machine does not affect.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    nanoseconds.unwrap_or(0) as f64 / 1e9
}

/// Returns the least wall time and the mean processor time of a run, in seconds.
fn timed(runs: u64, mut run: impl FnMut()) -> [f64; 2] {
    let mut least = Duration::MAX;
    let processor = processor_seconds();
    for _ in 0..runs {
        let start = Instant::now();
        run();
        least = least.min(start.elapsed());
    }
    [least.as_secs_f64(), (processor_seconds() - processor) / runs as f64]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<u64>().expect("FLOWS LINKS PATHS RUNS");
    let [flows, links, paths, runs] = [0, 1, 2, 3].map(number);
    let plain = problem(flows, links, paths, false);
    let classes = problem(flows, links, paths, true);
    let mut rates = Vec::new();
    let seconds = timed(runs, || {
        let allocation = allocate(&plain).expect("the problem is valid");
        rates = allocation.allotments.iter().map(|one| one.rate.0).collect();
    });
    let with_classes = timed(runs, || drop(allocate(&classes).expect("the problem is valid")));
    let mut allocator = Allocator::new(&plain).expect("the problem is valid");
    let mut weight = 1;
    let change = timed(runs, || {
        weight = weight % 8 + 1;
        let demand = Demand { weight, ..plain.demands[0].clone() };
        allocator.update(&demand).expect("the change is valid");
    });
    if let Some(file) = arguments.get(4) {
        std::fs::write(file, lines(&plain, &rates)).expect("the file can be written");
    }
    println!(
        "{{\"flows\": {flows}, \"links\": {links}, \"paths\": {paths}, \"seconds\": {seconds:?}, \"seconds_with_classes\": {with_classes:?}, \"seconds_of_a_change\": {change:?}}}"
    );
}

/// Formats `link CAPACITY`, then `flow WEIGHT DEMAND RATE PATH...`, link numbers with commas; rates in bit/s, -1 for
/// none.
fn lines(problem: &Problem, rates: &[u64]) -> String {
    let mut text = String::new();
    for resource in &problem.resources {
        let _ = writeln!(text, "link {}", resource.capacity.0);
    }
    for (demand, rate) in problem.demands.iter().zip(rates) {
        let wanted = demand.demand.map_or(-1, |wanted| wanted.0 as i64);
        let _ = write!(text, "flow {} {wanted} {rate}", demand.weight);
        for path in &demand.paths {
            let links: Vec<&str> = path.iter().map(|name| &name["link".len()..]).collect();
            let _ = write!(text, " {}", links.join(","));
        }
        text.push('\n');
    }
    text
}
