//! One run on several threads: the simulator has regions and no threads, so that they are brought along here.

use std::num::NonZeroUsize;
use std::thread;

use penstock_fabric::{Progress, Simulation, Worker};

/// More regions than threads, so that shares can be made even.
const REGIONS_PER_THREAD: usize = 4;

/// How many threads one run has.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Threads {
    /// Threads of one run; results are the same for any number
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
}

impl Threads {
    /// Into how many regions a simulation is divided for them.
    pub(crate) fn regions(self) -> usize {
        match self.threads.get() {
            1 => 1,
            threads => threads.saturating_mul(REGIONS_PER_THREAD),
        }
    }

    /// How many work on this one: a network may have fewer parts that can be divided.
    pub(crate) fn of(self, simulation: &Simulation) -> usize {
        self.threads.get().min(simulation.regions())
    }

    /// As [`Simulation::run`].
    pub(crate) fn run(self, simulation: &mut Simulation, until_ps: u64, events: u64) -> Progress {
        let count = self.of(simulation);
        if count == 1 {
            return simulation.run(until_ps, events);
        }
        let mut workers = simulation.workers(count, until_ps, events.saturating_mul(count as u64));
        let own = workers.pop();
        thread::scope(|scope| {
            for worker in workers {
                scope.spawn(|| worker.run());
            }
            own.map_or(Progress::Stopped, Worker::run)
        })
    }
}
