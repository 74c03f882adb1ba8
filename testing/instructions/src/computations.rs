//! Allocation of rates, and the simulator of fabrics.

use penstock_allocation::{Allocator, Class, Demand, Problem, Resource, allocate};
use penstock_fabric::time::PS_PER_MICROSECOND;
use penstock_fabric::workload::{SizeDistribution, poisson};
use penstock_fabric::{FabricNetwork, Parameters, Simulation, generate};
use penstock_random::Random;
use penstock_units::BitRate;

use crate::{HotPath, count};

pub(crate) const PATHS: &[HotPath] = &[
    ("allocation", allocation),
    ("allocation-change", allocation_change),
    ("fabric-hops", fabric_hops),
];

const FLOW_COUNT: u64 = 200;
const LINK_COUNT: u64 = 40;

/// Flows over three to five links with three paths each, in ten classes.
fn problem() -> Problem {
    let mut random = Random::new(1);
    let link = |number: u64| format!("link{number}");
    let resources = (0..LINK_COUNT)
        .map(|number| Resource::new(link(number), BitRate((1 + random.below(8)) * 100_000_000_000)))
        .collect();
    let demands = (0..FLOW_COUNT)
        .map(|number| {
            let mut path = || {
                let mut links: Vec<u64> =
                    (0..3 + random.below(3)).map(|_| random.below(LINK_COUNT)).collect();
                links.sort_unstable();
                links.dedup();
                links.into_iter().map(link).collect()
            };
            let paths = (0..3).map(|_| path()).collect();
            let demand = BitRate(1 + random.below(100_000_000_000));
            Demand {
                weight: 1 + random.below(8) as u32,
                demand: (random.below(2) == 0).then_some(demand),
                class: Some(format!("class{}", random.below(10))),
                paths,
                ..Demand::new(format!("flow{number}"), [""; 0])
            }
        })
        .collect();
    let class = |number: u64| Class {
        weight: 1 + number as u32,
        floor: BitRate(number * 1_000_000_000),
        mark: Some(BitRate(FLOW_COUNT * 2_000_000_000)),
        tier: (number % 3) as u8,
        ..Class::new(format!("class{number}"))
    };
    Problem { resources, classes: (0..10).map(class).collect(), demands, ..Problem::default() }
}

fn allocation() {
    let problem = problem();
    count(|| allocate(&problem).expect("the problem is valid"));
}

fn allocation_change() {
    let problem = problem();
    let mut allocator = Allocator::new(&problem).expect("the problem is valid");
    let mut weight = 10;
    count(|| {
        weight += 1;
        allocator
            .update(&Demand { weight, ..problem.demands[0].clone() })
            .expect("the change is valid")
            .len()
    });
}

/// Traffic of a small fat-tree under DCQCN.
fn fabric_hops() {
    let simulation = || {
        let rate = 100_000_000_000;
        let network =
            FabricNetwork::new(&generate::fat_tree(4, 1.0, rate, 1000)).expect("a network");
        let hosts: Vec<u32> = network.hosts().collect();
        let sizes = SizeDistribution::named("web-search").expect("a distribution");
        let flows = poisson(&hosts, rate, &sizes, 0.3, 300 * PS_PER_MICROSECOND, 1);
        let mut parameters = Parameters::default();
        parameters.set("cc", "dcqcn").expect("a congestion control");
        Simulation::new(network, parameters, flows).expect("a simulation")
    };
    let mut simulations = [simulation(), simulation()].into_iter();
    count(|| {
        let mut simulation = simulations.next().expect("two simulations");
        simulation.run_to_end(300 * PS_PER_MICROSECOND);
        simulation
    });
}
