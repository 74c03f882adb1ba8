//! Generator of random networks and traffic.

use penstock_fabric::{FabricNetwork, FlowSpec, RdmaOperation, Simulation, generate};
use penstock_random::Random;
use penstock_topology::Topology;
use proptest::prelude::*;

use super::{GIGABIT_BPS, PS_PER_US, set};

/// Congestion controls; the first [`RDMA_CONTROLS`] are those of RDMA.
pub(crate) const CONTROLS: [&str; 9] =
    ["none", "dcqcn", "dcqcn-paper", "hpcc", "dctcp", "timely", "swift", "cubic", "bbr"];
pub(crate) const RDMA_CONTROLS: usize = 7;
pub(crate) const ROUTINGS: [&str; 5] = ["ecmp", "ecmp-polarised", "spray", "flowlet", "adaptive"];

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) topology: usize,
    pub(crate) rate: usize,
    pub(crate) delay_ns: u64,
    pub(crate) control: usize,
    pub(crate) flows: usize,
    pub(crate) bytes_max: u64,
    pub(crate) seed: u64,
    pub(crate) settings: Vec<(&'static str, String)>,
}

impl Case {
    pub(crate) fn topology(&self) -> Topology {
        let rate = [10, 25, 40, 100, 400][self.rate] * GIGABIT_BPS;
        match self.topology {
            0 => generate::star(5, rate, self.delay_ns),
            1 => generate::dumbbell(3, rate, rate / 4, self.delay_ns),
            2 => generate::spine_leaf(2, 3, 3, rate, rate / 2, self.delay_ns),
            3 => generate::spine_leaf(3, 2, 4, rate, 2 * rate, self.delay_ns),
            _ => generate::fat_tree(4, 1.0, rate, self.delay_ns),
        }
    }

    pub(crate) fn simulation(&self) -> Simulation {
        self.divided(&self.topology(), 1)
    }

    /// Creates the simulation on `topology` with about `regions` regions.
    pub(crate) fn divided(&self, topology: &Topology, regions: usize) -> Simulation {
        let mut parameters = set(&[("cc", CONTROLS[self.control])]);
        parameters.seed = self.seed;
        for (name, value) in &self.settings {
            parameters.set(name, value).unwrap();
        }
        let network = FabricNetwork::new(topology).unwrap();
        let hosts = network.hosts().count() as u64;
        let mut random = Random::stream(self.seed, "case", 0);
        // Two receivers at most, to cause congestion and pauses.
        let flows = (0..self.flows).map(|_| {
            let to = random.below(2.min(hosts));
            let from = (to + 1 + random.below(hosts - 1)) % hosts;
            let start = random.below(50 * PS_PER_US);
            let mut flow =
                FlowSpec::new(from as u32, to as u32, start, 1 + random.below(self.bytes_max));
            flow.messages = 1 + random.below(4);
            flow.depth = 1 + random.below(3);
            if CONTROLS[self.control].starts_with('d') && CONTROLS[self.control] != "dctcp" {
                flow.operation = [RdmaOperation::Write, RdmaOperation::Send, RdmaOperation::Read]
                    [random.below(3) as usize];
            }
            flow
        });
        Simulation::divided(network, parameters, flows.collect(), regions).unwrap()
    }
}

pub(crate) fn cases(controls: usize) -> impl Strategy<Value = Case> {
    (0_usize..5, 0_usize..5, 1_u64..3000, 0..controls, 1_usize..24, 1_u64..300_000, any::<u64>())
        .prop_map(|(topology, rate, delay_ns, control, flows, bytes_max, seed)| Case {
            topology,
            rate,
            delay_ns,
            control,
            flows,
            bytes_max,
            seed,
            settings: Vec::new(),
        })
}
