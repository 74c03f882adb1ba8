//! Input of a round: hosts, runs, queues, links, reservations and circuits at one time.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::orders::{AddressPair, Capacity, OrderSettings};

/// A host as of its last report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostView {
    /// Host name in the topology.
    pub name: String,
    /// Set if it reported recently.
    pub alive: bool,
    /// Set if no new work may start there.
    pub draining: bool,
    /// Limits as of its last report.
    pub capacity: Capacity,
    /// Interfaces as of its last report.
    pub interfaces: Vec<InterfaceView>,
}

/// An interface of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceView {
    /// Interface name in the topology.
    pub name: String,
    /// IP addresses without ports.
    pub addresses: Vec<String>,
    /// Send rate in bits per second.
    pub sent_bps: u64,
}

/// A run: an attempt at a batch or a listing, with its orders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunView {
    /// Id of the queue it came from.
    pub queue: i64,
    /// Name of its class.
    pub class: String,
    /// Id of the request that most of its files belong to.
    pub request: i64,
    /// Host that sends, or lists.
    pub from: String,
    /// Host that receives; empty for a listing.
    pub to: String,
    /// 1 to 5, 5 being the most urgent.
    pub priority: u8,
    /// Deadline of its request in Unix milliseconds, and the bytes left of that request.
    pub deadline: Option<(i64, u64)>,
    /// Set if the node reports that it is transferring.
    pub moving: bool,
    /// Measured rate in bits per second.
    pub measured_bps: u64,
    /// Mean rate since its start in bits per second, if known.
    pub mean_bps: Option<u64>,
    /// Rate limit that the node reports in force, in bits per second.
    pub applied_bps: Option<u64>,
    /// Measured bottleneck, as reported.
    pub bound_by: String,
    /// Plan that is in force.
    pub plan: RunPlan,
    /// Unix milliseconds of the last change of the plan.
    pub plan_changed_ms: i64,
}

impl RunView {
    /// Returns the mean rate of a run that moved these bytes in this time, in bits per second; none if it moved nothing.
    #[must_use]
    pub fn mean_bps_of(moved_bytes: u64, elapsed_ms: i64) -> Option<u64> {
        let elapsed_ms = elapsed_ms.max(1).unsigned_abs();
        let mean = u64::try_from(u128::from(moved_bytes) * 8000 / u128::from(elapsed_ms));
        mean.ok().filter(|mean| *mean > 0)
    }

    /// Returns the weight among runs of its class; each priority level doubles it.
    pub(super) fn weight(&self) -> u32 {
        1 << self.priority.clamp(1, 5)
    }
}

/// Waiting work of a class between two sites.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueView {
    /// Id of the queue.
    pub id: i64,
    /// Name of its class.
    pub class: String,
    /// Site of the files.
    pub source: String,
    /// Site they go to; empty for directories to list.
    pub destination: String,
    /// Number of waiting batches.
    pub batches: u64,
    /// Their bytes, of files with a known size.
    pub bytes: u64,
}

/// An active reservation of rate between two sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationView {
    /// Name of the class; none for all classes.
    pub class: Option<String>,
    /// Site of the files.
    pub source: String,
    /// Site they go to.
    pub destination: String,
    /// Reserved rate in bits per second.
    pub rate_bps: u64,
    /// Resources it occupies, as named by [`super::Planner::site_paths`].
    pub resources: Vec<String>,
    /// Circuit that carries it, if any.
    pub circuit: Option<CircuitView>,
}

/// An active circuit, which has its rate on its links for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CircuitView {
    /// Id of the circuit.
    pub id: i64,
    /// Resources it occupies, as named by [`super::Planner::site_paths`].
    pub resources: Vec<String>,
    /// Names of its links.
    pub links: Vec<String>,
    /// IP address dedicated to it, by host.
    pub addresses: BTreeMap<String, String>,
}

/// Input of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Time of the round in Unix milliseconds.
    pub now_ms: i64,
    /// All hosts that ever reported.
    pub hosts: Vec<HostView>,
    /// Runs, ascending by id.
    pub runs: Vec<RunView>,
    /// Queues with waiting work.
    pub queues: Vec<QueueView>,
    /// Names of links that are down.
    pub down: HashSet<String>,
    /// Names of sites where no new work may start.
    pub draining_sites: HashSet<String>,
    /// Reservations that are active now.
    pub reservations: Vec<ReservationView>,
    /// Link telemetry by link name.
    pub counts: HashMap<String, LinkCount>,
}

/// Rates that interfaces counted on a link over an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCount {
    /// End of the interval in Unix milliseconds.
    pub at_ms: i64,
    /// Length of the interval in milliseconds.
    pub interval_ms: i64,
    /// Bits per second from the first end and towards it; none if not counted.
    pub bps: [Option<u64>; 2],
}

/// Planned rate, streams and path of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunPlan {
    /// Id of the run.
    pub run: i64,
    /// Rate limit in bits per second; none before the first round that sees the run.
    pub rate_bps: Option<u64>,
    /// Number of streams; none if the nodes choose.
    pub streams: Option<u16>,
    /// Address pairs of its path; empty for any.
    pub path: Vec<AddressPair>,
    /// Names of the links of its path.
    pub route: Vec<String>,
    /// Unix milliseconds of its last change of path while the former one was up; 0 for never.
    pub moved_ms: i64,
    /// Reason of the rate, for human readers.
    pub reason: String,
    /// Unix milliseconds since which it has been well below its rate.
    pub slow_since_ms: Option<i64>,
    /// Set if interface counters do not show its bytes on its path.
    pub off_path: bool,
    /// Unix milliseconds since which that has been so; low rates need some time for a verdict.
    pub off_since_ms: Option<i64>,
}

impl RunPlan {
    /// Returns the settings that the source receives.
    #[must_use]
    pub fn settings(&self) -> OrderSettings {
        OrderSettings { rate_bps: self.rate_bps, streams: self.streams, path: self.path.clone() }
    }
}
