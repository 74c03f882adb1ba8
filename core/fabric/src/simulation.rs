//! A network and what it is asked to move, event after event.
//!
//! [`Simulation`] is one value without threads, files or clocks: [`Simulation::run`] goes on for so many events and gives
//! back where it is, so that a caller can show progress or stop. Its parts are in files of their own: ports with their
//! queues and lines, switches with their memory, hosts with their queue pairs.

use std::collections::HashMap;

use crate::congestion::{Needs, needs};
use crate::event::{Event, Kind};
use crate::flow::{Flow, FlowResult, Operation};
use crate::network::{Marking, Network};
use crate::packet::{Arena, Hops, NONE, Packet, PacketId};
use crate::parameters::{CongestionControl, Parameters};
use crate::queue::EventQueue;
use crate::random::{Random, mix};
use crate::routes::Routes;
use crate::wire::Wire;

mod audit;
mod change;
mod deadlock;
mod host;
mod ideal;
mod memory;
mod pair;
mod port;
mod recovery;
mod results;
mod scoreboard;
mod setup;
mod switch;
mod ways;

pub use change::{Change, Part};
pub use deadlock::CyclicWait;
pub use port::PortResult;
pub use results::SwitchResult;

use deadlock::Deadlocks;
use host::Line;
use memory::{Ingress, Memory, Thresholds};
use pair::Pair;
use port::Port;
use switch::Held;

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
        /// What it has.
        buffer: u64,
        /// What it needs.
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
    /// When.
    pub time_ps: u64,
    /// The port that has to pause or may go on.
    pub port: u32,
    /// Which priority.
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

/// Everything that happened, as one number.
#[derive(Debug, Clone, Copy)]
struct Digest(u64);

impl Digest {
    const fn add(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}

/// A network in motion.
#[derive(Debug)]
pub struct Simulation {
    network: Network,
    routes: Routes,
    parameters: Parameters,
    wire: Wire,
    needs: Needs,
    recovers_selectively: bool,
    thresholds: Thresholds,
    /// Priorities that are paused rather than dropped, and that have no weight.
    lossless: u8,
    strict: u8,
    longest_frame: u32,
    timeout_ps: u64,
    base_rtt_ps: u64,

    now_ps: u64,
    events: EventQueue,
    packets: Arena<Packet>,
    telemetry: Arena<Hops>,
    ports: Vec<Port>,
    ingress: Vec<[Ingress; 8]>,
    held: Vec<Held>,
    ready: Vec<[Line; 8]>,
    memories: Vec<Memory>,
    flows: Vec<Flow>,
    pairs: Vec<Pair>,
    /// Flows in the order of their start, and the next of them.
    order: Vec<u32>,
    next_start: u32,
    active: u64,
    /// Of a switch and a hash: when a packet came last, and by what its way was chosen.
    flowlets: HashMap<(u32, u32), ways::Flowlet>,
    changes: Vec<(u64, change::Step)>,
    next_change: u32,
    links_down: Vec<bool>,
    switches_down: Vec<bool>,
    deadlocks: Deadlocks,
    counts: Counts,
    digest: Digest,
    pause_records: Option<Vec<PauseRecord>>,
    samples: Option<results::Samples>,
}

impl Simulation {
    /// Goes on until all flows are over, the time is reached, or so many events were handled.
    pub fn run(&mut self, until_ps: u64, events: u64) -> Progress {
        for _ in 0..events {
            if self.active == 0 {
                return Progress::Done;
            }
            let Some(next_ps) = self.events.next_time_ps() else { return Progress::Stopped };
            if next_ps > until_ps {
                self.now_ps = until_ps;
                return Progress::Stopped;
            }
            let Some(event) = self.events.pop() else { return Progress::Stopped };
            self.handle(event);
        }
        Progress::Running
    }

    /// As [`Self::run`], without a limit on events.
    pub fn run_to_end(&mut self, until_ps: u64) -> Progress {
        self.run(until_ps, u64::MAX)
    }

    fn handle(&mut self, event: Event) {
        debug_assert!(event.time_ps() >= self.now_ps, "an event in the past");
        self.now_ps = event.time_ps();
        self.counts.events += 1;
        self.digest.add(self.now_ps ^ event.who().rotate_left(32));
        let entity = event.entity();
        match event.kind() {
            Kind::Arrives => self.arrive(entity),
            Kind::Sent => {
                self.ports[entity as usize].is_due = false;
                self.transmit(entity);
            }
            Kind::Paced => self.paced(entity),
            Kind::Timeout => self.timeout(entity),
            Kind::Starts => self.start_next(),
            Kind::PauseArrives => self.arrive_pause(entity),
            Kind::PauseTimer => self.pause_timer(entity),
            Kind::PauseRefresh => self.refresh_pause(entity),
            Kind::Samples => self.sample(),
            Kind::Changes => self.take_step(entity),
            Kind::Looks => self.look_for_deadlocks(),
        }
    }

    fn start_next(&mut self) {
        let flow = self.order[self.next_start as usize];
        self.next_start += 1;
        if let Some(next) = self.order.get(self.next_start as usize) {
            let start_ps = self.flows[*next as usize].start_ps;
            self.events.push(Event::new(start_ps, Kind::Starts, self.next_start));
        }
        self.start(flow);
    }

    /// A packet ceases to be.
    fn remove_packet(&mut self, id: PacketId) {
        let telemetry = self.packets[id].telemetry;
        if telemetry != NONE {
            self.telemetry.remove(telemetry);
        }
        self.packets.remove(id);
    }

    /// The simulated time.
    #[must_use]
    pub const fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// How many flows are not over.
    #[must_use]
    pub const fn active(&self) -> u64 {
        self.active
    }

    /// What was counted so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// A number that is the same for runs in which the same happened, and hardly ever for others.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        mix(self.digest.0)
    }

    /// The network.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The parameters.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The flows, in the order in which they were given.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// What became of a flow so far.
    #[must_use]
    pub fn flow_result(&self, flow: usize) -> FlowResult {
        self.pairs[flow].result
    }
}
