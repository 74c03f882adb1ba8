//! Shared helpers of the simulator's tests.
#![allow(dead_code, reason = "each test uses a part")]

use penstock_fabric::{FabricNetwork, FlowSpec, Parameters, RunProgress, Simulation};
use penstock_topology::Topology;

pub(crate) mod case;

pub(crate) const PS_PER_US: u64 = 1_000_000;
pub(crate) const GIGABIT_BPS: u64 = 1_000_000_000;

/// Returns the default parameters with some of them set by name.
pub(crate) fn set(pairs: &[(&str, &str)]) -> Parameters {
    let mut parameters = Parameters::default();
    for (name, value) in pairs {
        parameters.set(name, value).unwrap_or_else(|error| panic!("{error}"));
    }
    parameters
}

/// Returns a flow of one RDMA write that starts at time 0.
pub(crate) fn flow(from: u32, to: u32, bytes: u64) -> FlowSpec {
    FlowSpec::new(from, to, 0, bytes)
}

pub(crate) fn simulation(
    topology: &Topology,
    parameters: &Parameters,
    flows: Vec<FlowSpec>,
) -> Simulation {
    let network = FabricNetwork::new(topology).unwrap();
    Simulation::new(network, parameters.clone(), flows).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs until all flows have ended, for at most 100 s, and audits.
pub(crate) fn run(
    topology: &Topology,
    parameters: &Parameters,
    flows: Vec<FlowSpec>,
) -> Simulation {
    let mut simulation = simulation(topology, parameters, flows);
    simulation.run_to_end(100_000_000 * PS_PER_US);
    assert_eq!(simulation.audit(), Ok(()));
    simulation
}

/// Runs like [`Simulation::run`], on `threads` threads.
pub(crate) fn run_by(
    threads: usize,
    simulation: &mut Simulation,
    until_ps: u64,
    events: u64,
) -> RunProgress {
    let mut workers = simulation.workers(threads, until_ps, events);
    let own = workers.pop().unwrap();
    std::thread::scope(|scope| {
        for worker in workers {
            scope.spawn(|| worker.run());
        }
        own.run()
    })
}
