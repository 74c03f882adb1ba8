//! Discrete-event simulation of a network and its flows.
//!
//! [`Simulation`] owns no threads, files or clocks: [`Simulation::run`] handles a limited number of events and
//! returns the progress, so a caller can display it or stop. The network is partitioned into regions, each with its
//! own events and packets, which threads of the caller can simulate in parallel ([`Simulation::workers`]).

use std::sync::Arc;

use crate::event::SimEventKind;
use crate::flow::{FlowResult, FlowSpec, RdmaOperation};
use crate::network::{FabricNetwork, Marking};
use crate::parameters::{InvalidParameters, Parameters};
use crate::routes::Routes;
use crate::wire::Wire;
use penstock_random::mix;

mod audit;
mod coordinator;
mod deadlock;
mod failure;
mod flow_fault;
mod host_rx;
mod host_tx;
mod ideal;
mod load_balancing;
mod model;
mod partition;
mod port;
mod receiver;
mod recovery;
mod region;
mod requester;
mod results;
mod scoreboard;
mod sender;
mod setup;
mod shared_buffer;
mod switch;
mod worker_pool;

pub use audit::AuditError;
pub use deadlock::CyclicWait;
pub use failure::{FailureChange, FailurePart};
pub use flow_fault::FlowFault;
pub use port::PortResult;
pub use results::SwitchResult;
pub use worker_pool::Worker;

use crate::congestion::needs;
use coordinator::{Coordinator, NextStep, RunControl};
use model::RunModel;
use region::Region;

/// Reason why a simulation cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Parameters that are out of range or contradict each other.
    #[error(transparent)]
    Parameters(#[from] InvalidParameters),
    /// Invalid flow.
    #[error("flow {number}: {fault}")]
    Flow {
        /// Number of the flow, from 0.
        number: usize,
        /// Fault of the flow.
        fault: FlowFault,
    },
    /// Switch buffer smaller than the reserves and headroom of its ports.
    #[error(
        "switch '{switch}' has {buffer} bytes, and reserves and headroom of its ports are {needed}: give it a larger buffer, or less headroom"
    )]
    Buffer {
        /// Name of the switch.
        switch: String,
        /// Size of its buffer in bytes.
        buffer: u64,
        /// Reserves and headroom of its ports in bytes.
        needed: u64,
    },
}

/// Event and packet counters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Number of events handled.
    pub events: u64,
    /// Packets that arrived at the end of a link.
    pub arrivals: u64,
    /// Packets created by hosts.
    pub created: u64,
    /// Packets consumed by hosts.
    pub consumed: u64,
    /// Packets dropped for lack of buffer or route.
    pub dropped: u64,
    /// Packets lost on links.
    pub lost: u64,
    /// Queue pairs whose acknowledgement time-out is shorter than their base RTT.
    pub early_timeouts: u64,
}

/// PFC frame received by a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseRecord {
    /// Time of its arrival in picoseconds.
    pub time_ps: u64,
    /// Port that pauses or resumes.
    pub port: u32,
    /// Paused priority, 0 to 7.
    pub priority: u8,
    /// True for a pause (Xoff), false for a resume (Xon).
    pub is_pause: bool,
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunProgress {
    /// The event limit was reached; more events are pending.
    Running,
    /// All flows completed or failed.
    Done,
    /// The time limit was reached, or no event is pending although flows are unfinished.
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

/// Order-independent digest of all events: a sum of hashes over time, kind, entity and details, so that the
/// assignment of entities to regions has no effect.
#[derive(Debug, Clone, Copy, Default)]
struct RunDigest(u64);

impl RunDigest {
    const fn add(&mut self, time_ps: u64, kind: SimEventKind, who: u32, what: u64) {
        let when = time_ps.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let whose = ((kind as u64) << 32 | who as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let what = what.wrapping_mul(0xA076_1D64_78BD_642F);
        self.0 = self.0.wrapping_add(mix(when ^ whose.rotate_left(21) ^ what.rotate_left(43)));
    }
}

/// Simulation of a network with its flows.
#[derive(Debug)]
pub struct Simulation {
    model: Arc<RunModel>,
    control: RunControl,
    regions: Vec<Region>,
}

impl Simulation {
    /// Runs until all flows have ended, `until_ps` is reached, or `events` events were handled; with several regions
    /// the event limit may be exceeded.
    ///
    /// After the last flow has ended the run continues for the lookahead of the longest link, but the simulated time
    /// is the end of that flow.
    pub fn run(&mut self, until_ps: u64, events: u64) -> RunProgress {
        if self.regions.len() > 1 {
            return self
                .workers(1, until_ps, events)
                .pop()
                .map_or(RunProgress::Stopped, Worker::run);
        }
        let mut left = events;
        while left > 0 {
            let mut regions: Vec<&mut Region> = self.regions.iter_mut().collect();
            let (model, control) = (&*self.model, &mut self.control);
            let mut coordinator = Coordinator { model, control, regions: &mut regions };
            match coordinator.next_step(until_ps) {
                NextStep::End(progress) => return progress,
                NextStep::Repeat => left -= 1,
                NextStep::Window => {
                    left -= coordinator.regions[0].run_window(left).min(left);
                    if left == 0 {
                        coordinator.synchronise();
                    }
                }
            }
        }
        RunProgress::Running
    }

    /// Runs like [`Self::run`] without a limit on events.
    pub fn run_to_end(&mut self, until_ps: u64) -> RunProgress {
        self.run(until_ps, u64::MAX)
    }

    /// Returns the number of regions.
    #[must_use]
    pub const fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Returns the simulated time in picoseconds.
    #[must_use]
    pub const fn now_ps(&self) -> u64 {
        self.control.now_ps
    }

    /// Returns the number of flows that have neither completed nor failed.
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

    /// Returns a hash of all events of the run: equal for identical runs, different with high probability otherwise.
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
    pub fn network(&self) -> &FabricNetwork {
        &self.model.network
    }

    /// Returns the parameters of the run.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.model.parameters
    }

    /// Returns the flows in the order in which they were given.
    #[must_use]
    pub fn flows(&self) -> &[FlowSpec] {
        &self.model.flows
    }
}
