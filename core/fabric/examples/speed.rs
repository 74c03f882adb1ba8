//! Benchmark of the simulator: packets over links per second on one core and on several, in the cases of
//! SPECIFICATION.md.
//!
//! `cargo run --release -p penstock-fabric --example speed [k] [milliseconds of simulated time] [congestion control]
//! [threads] [regions]`, or `plain [packets]`: packets of 1000 bytes over two links, as in `bench/ns3/peer.cc`.
//! `cargo xtask bench fabric` runs it and stores the result.

use std::time::Instant;

use penstock_fabric::time::{PS_PER_MILLISECOND, seconds};
use penstock_fabric::workload::{SizeDistribution, poisson};
use penstock_fabric::{FabricNetwork, FlowSpec, Parameters, RdmaOperation, Simulation, generate};

/// Returns the processor time of this thread in seconds, which excludes the load of other processes.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    nanoseconds.unwrap_or(0) as f64 / 1e9
}

/// Runs like [`Simulation::run_to_end`], on `threads` threads.
fn run(simulation: &mut Simulation, until_ps: u64, threads: usize) {
    let mut workers = simulation.workers(threads, until_ps, u64::MAX);
    let own = workers.pop().expect("a worker");
    std::thread::scope(|scope| {
        for worker in workers {
            scope.spawn(|| worker.run());
        }
        own.run()
    });
}

/// Measures packets over two links without congestion control.
fn plain(packets: u64) {
    let network = FabricNetwork::new(&generate::star(2, 100_000_000_000, 1000)).expect("a network");
    let mut parameters = Parameters::default();
    for (name, value) in
        [("cc", "none"), ("mtu", "918"), ("ack_every", "4096"), ("timeout_exponent", "0")]
    {
        parameters.set(name, value).expect("a parameter");
    }
    let one = FlowSpec { operation: RdmaOperation::Send, ..FlowSpec::new(0, 1, 0, 918 * packets) };
    let mut simulation = Simulation::new(network, parameters, vec![one]).expect("a simulation");
    let processor = processor_seconds();
    simulation.run_to_end(u64::MAX);
    let processor = processor_seconds() - processor;
    simulation.audit().expect("counters are consistent");
    println!(
        "{{\"hops\":{},\"last_ps\":{},\"processor_seconds\":{processor:.6}}}",
        simulation.counts().arrivals,
        simulation.flow_result(0).arrived_ps.unwrap_or(0)
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|word| word == "plain") {
        let packets = arguments.nth(1).and_then(|word| word.parse().ok()).unwrap_or(1_000_000);
        return plain(packets);
    }
    let k = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(8);
    let milliseconds: u64 = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(2);
    let control = arguments.next().unwrap_or_else(|| "dcqcn".to_owned());
    let threads: usize = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    let regions = arguments.next().and_then(|word| word.parse().ok());
    let regions = regions.unwrap_or(if threads == 1 { 1 } else { 4 * threads });
    let rate = 100_000_000_000;
    let network = FabricNetwork::new(&generate::fat_tree(k, 1.0, rate, 1000)).expect("a network");
    let hosts: Vec<u32> = network.hosts().collect();
    let sizes = SizeDistribution::named("web-search").expect("a distribution");
    let until_ps = milliseconds * PS_PER_MILLISECOND;
    let flows = poisson(&hosts, rate, &sizes, 0.3, until_ps, 1);
    let count = flows.len();
    let mut parameters = Parameters::default();
    parameters.set("cc", &control).expect("a congestion control");
    let mut simulation =
        Simulation::divided(network, parameters, flows, regions).expect("a simulation");
    let (began, processor) = (Instant::now(), processor_seconds());
    if threads == 1 && regions == 1 {
        simulation.run_to_end(until_ps);
    } else {
        run(&mut simulation, until_ps, threads);
    }
    let took = began.elapsed().as_secs_f64();
    let processor = processor_seconds() - processor;
    let counts = simulation.counts();
    simulation.audit().expect("counters are consistent");
    println!(
        "{{\"k\":{k},\"cc\":\"{control}\",\"threads\":{threads},\"regions\":{},\"flows\":{count},\"simulated_seconds\":{},\"wall_seconds\":{took:.3},\"processor_seconds\":{processor:.3},\"hops\":{},\
         \"events\":{},\"hops_per_second\":{:.0},\"hops_per_processor_second\":{:.0},\"events_per_hop\":{:.3},\"packets_peak\":{},\"dropped\":{},\"digest\":\"{:016x}\"}}",
        simulation.regions(),
        seconds(simulation.now_ps()),
        counts.arrivals,
        counts.events,
        counts.arrivals as f64 / took,
        counts.arrivals as f64 / processor,
        counts.events as f64 / counts.arrivals as f64,
        simulation.packets_peak(),
        counts.dropped,
        simulation.digest()
    );
}
