//! A network and what it is asked to move, event after event.
//!
//! [`Simulation`] is one value without threads of its own, files or clocks: [`Simulation::run`] goes on for so many events and
//! gives back where it is, so that a caller can show progress or stop. It is divided into regions, each with its own events
//! and packets, on which threads of the caller can work together ([`Simulation::workers`]). Its parts are in files of their
//! own: ports with their queues and lines, switches with their memory, hosts with both ends of queue pairs.

use std::sync::Arc;

use crate::event::Kind;
use crate::flow::{Flow, FlowResult, Operation};
use crate::network::{Marking, Network};
use crate::parameters::Parameters;
use crate::random::mix;
use crate::routes::Routes;
use crate::wire::Wire;

mod audit;
mod change;
mod control;
mod crew;
mod deadlock;
mod ideal;
mod load_balancing;
mod memory;
mod model;
mod partitioning;
mod port;
mod receiver;
mod receiving;
mod recovery;
mod region;
mod requester;
mod results;
mod scoreboard;
mod sender;
mod sending;
mod setup;
mod switch;

pub use change::{Change, Part};
pub use crew::Worker;
pub use deadlock::CyclicWait;
pub use port::PortResult;
pub use results::SwitchResult;

use crate::congestion::needs;
use control::{Control, Coordinator, Next};
use model::Model;
use region::Region;

/// Why a simulation cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Parameters that cannot be, or not together.
    #[error("{0}")]
    Parameters(String),
    /// A flow that cannot be.
    #[error("flow {number}: {reason}")]
    Flow {
        /// Which, from 0.
        number: usize,
        /// Why.
        reason: String,
    },
    /// The memory of a switch is less than what its ports have to have for themselves.
    #[error(
        "switch '{switch}' has {buffer} bytes, and reserves and headroom of its ports are {needed}: give it a larger buffer, or less headroom"
    )]
    Buffer {
        /// Its name.
        switch: String,
        /// Size of its buffer in bytes.
        buffer: u64,
        /// Reserves and headroom of its ports in bytes.
        needed: u64,
    },
}

/// Packets and events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Events that were handled.
    pub events: u64,
    /// Packets that came to the end of a link.
    pub arrivals: u64,
    /// Packets that hosts made.
    pub created: u64,
    /// Packets that hosts took.
    pub consumed: u64,
    /// Packets for which there was no room, or no way.
    pub dropped: u64,
    /// Packets that were lost on lines.
    pub lost: u64,
    /// Queue pairs whose acknowledgement time-out is shorter than their round trip.
    pub early_timeouts: u64,
}

/// A pause that reached who has to pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseRecord {
    /// Time in picoseconds.
    pub time_ps: u64,
    /// The port that has to pause or may go on.
    pub port: u32,
    /// Paused priority, 0 to 7.
    pub priority: u8,
    /// Pause, or going on.
    pub is_pause: bool,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is more to do.
    Running,
    /// All flows are over.
    Done,
    /// The end of time was reached, or nothing can happen any more.
    Stopped,
}

impl Counts {
    const fn add(&mut self, other: Self) {
        self.events += other.events;
        self.arrivals += other.arrivals;
        self.created += other.created;
        self.consumed += other.consumed;
        self.dropped += other.dropped;
        self.lost += other.lost;
        self.early_timeouts += other.early_timeouts;
    }
}

/// Everything that happened, as one number: a sum, so that it does not matter in which region it was. Times and entities
/// say the order.
#[derive(Debug, Clone, Copy, Default)]
struct Digest(u64);

impl Digest {
    const fn add(&mut self, time_ps: u64, kind: Kind, who: u32, what: u64) {
        let when = time_ps.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let whose = ((kind as u64) << 32 | who as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let what = what.wrapping_mul(0xA076_1D64_78BD_642F);
        self.0 = self.0.wrapping_add(mix(when ^ whose.rotate_left(21) ^ what.rotate_left(43)));
    }
}

/// A network in motion.
#[derive(Debug)]
pub struct Simulation {
    model: Arc<Model>,
    control: Control,
    regions: Vec<Region>,
}

impl Simulation {
    /// Goes on until all flows are over, the time is reached, or so many events were handled; with several regions at
    /// least so many.
    ///
    /// A run in which all flows are over goes on for as long as the longest link takes, but its time is that of the end
    /// of the last flow.
    pub fn run(&mut self, until_ps: u64, events: u64) -> Progress {
        if self.regions.len() > 1 {
            return self.workers(1, until_ps, events).pop().map_or(Progress::Stopped, Worker::run);
        }
        let mut left = events;
        while left > 0 {
            let mut regions: Vec<&mut Region> = self.regions.iter_mut().collect();
            let (model, control) = (&*self.model, &mut self.control);
            let mut coordinator = Coordinator { model, control, regions: &mut regions };
            match coordinator.next(until_ps) {
                Next::End(progress) => return progress,
                Next::Again => left -= 1,
                Next::Window => {
                    left -= coordinator.regions[0].run_window(left).min(left);
                    if left == 0 {
                        coordinator.rest();
                    }
                }
            }
        }
        Progress::Running
    }

    /// As [`Self::run`], without a limit on events.
    pub fn run_to_end(&mut self, until_ps: u64) -> Progress {
        self.run(until_ps, u64::MAX)
    }

    /// How many regions there are.
    #[must_use]
    pub const fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Returns the simulated time in picoseconds.
    #[must_use]
    pub const fn now_ps(&self) -> u64 {
        self.control.now_ps
    }

    /// How many flows are not over.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.regions.iter().map(|region| region.active).sum()
    }

    /// Returns the packets and events counted up to now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.control.counts;
        self.regions.iter().for_each(|region| counts.add(region.counts));
        counts
    }

    /// A number that is the same for runs in which the same happened, and hardly ever for others.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let sum = self
            .regions
            .iter()
            .fold(self.control.digest.0, |sum, region| sum.wrapping_add(region.digest.0));
        mix(sum ^ mix(self.model.parameters.seed))
    }

    /// Returns the simulated network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.model.network
    }

    /// Returns the parameters of the run.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.model.parameters
    }

    /// The flows, in the order in which they were given.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.model.flows
    }
}
