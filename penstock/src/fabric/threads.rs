//! One run on several threads: runs the simulator's regions on threads of this process.

use std::num::NonZeroUsize;
use std::thread;

use penstock_fabric::{RunProgress, Simulation, Worker};

/// More regions than threads, so that load can be balanced.
const REGIONS_PER_THREAD: usize = 4;

/// Number of threads of one run.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Threads {
    /// Threads of one run; results are the same for any number
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
}

impl Threads {
    /// Number of regions to partition a simulation into.
    pub(crate) fn regions(self) -> usize {
        match self.threads.get() {
            1 => 1,
            threads => threads.saturating_mul(REGIONS_PER_THREAD),
        }
    }

    /// Number of threads that a simulation uses: small networks have fewer regions.
    pub(crate) fn of(self, simulation: &Simulation) -> usize {
        self.threads.get().min(simulation.regions())
    }

    /// Runs on all threads; see [`Simulation::run`].
    pub(crate) fn run(
        self,
        simulation: &mut Simulation,
        until_ps: u64,
        events: u64,
    ) -> RunProgress {
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
            own.map_or(RunProgress::Stopped, Worker::run)
        })
    }
}
