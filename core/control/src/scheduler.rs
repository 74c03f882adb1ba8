//! A scheduling round: takes what runs and what waits, decides what starts, and the rate and path of each transfer.
//!
//! [`Planner::plan`] is a function of a [`Snapshot`] and the topology. It reads no clock and keeps only a path cache,
//! so any controller can repeat a round, also in virtual time.
//!
//! A round chooses a path for each transfer ([`routes`], [`balance`]), shares links, interfaces and storage with
//! `penstock-allocation` ([`shares`]), and starts queued work where hosts have free slots ([`starts`]). A transfer is
//! slowed at once, and sped up only after the transfers slowed in its favour report the lower rate.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use penstock_topology::paths::Path;
use penstock_topology::{NodeId, Topology};

use crate::class::WorkClass;

mod balance;
mod routes;
mod shares;
mod snapshot;
mod starts;
#[cfg(test)]
mod tests;

pub use snapshot::{
    CircuitView, HostView, InterfaceView, LinkCount, QueueView, ReservationView, RunPlan, RunView,
    Snapshot,
};

/// Share of a link, and of the interfaces of a site's hosts, that reservations and deadlines may take.
pub const RESERVABLE_PERCENT: u64 = 80;

/// A run to start with work of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStart {
    /// Id of the queue to take it from.
    pub queue: i64,
    /// Host that sends, or lists.
    pub from: String,
    /// Host that receives; empty for a listing.
    pub to: String,
}

/// Output of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundDecision {
    /// Plans that differ from those in force.
    pub plans: Vec<RunPlan>,
    /// Runs to start with queued work.
    pub starts: Vec<PlannedStart>,
    /// Ids of runs to withdraw, with the reason.
    pub withdraw: Vec<(i64, String)>,
    /// Events to log, for human readers.
    pub notes: Vec<String>,
    /// Allotted and measured rate of each class with runs, in bits per second.
    pub classes: BTreeMap<String, (u64, u64)>,
}

/// Configuration of the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannerRules {
    /// Most transfers of one queue between one pair of hosts.
    pub runs_per_pair: usize,
    /// Streams per transfer; none if the nodes choose.
    pub streams: Option<u16>,
    /// Share of a link that file bytes may use, in thousandths; headers and other traffic take the rest.
    pub usable_permille: u16,
}

impl Default for PlannerRules {
    fn default() -> Self {
        Self { runs_per_pair: 1, streams: None, usable_permille: 940 }
    }
}

/// Paths between pairs of hosts.
type PathTable = HashMap<(NodeId, NodeId), Arc<Vec<Path>>>;

/// Plans rounds for one topology.
#[derive(Debug)]
pub struct Planner {
    topology: Topology,
    classes: Vec<WorkClass>,
    rules: PlannerRules,
    /// Link-disjoint paths between two hosts; they depend on the topology only.
    disjoint_paths: Mutex<PathTable>,
    /// Paths that addresses select, while no link is down.
    address_paths: Mutex<PathTable>,
}

impl Planner {
    /// Creates a planner for a topology and its classes.
    #[must_use]
    pub fn new(topology: Topology, classes: Vec<WorkClass>, rules: PlannerRules) -> Self {
        Self {
            topology,
            classes,
            rules,
            disjoint_paths: Mutex::default(),
            address_paths: Mutex::default(),
        }
    }

    /// Returns the topology it plans for.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the site of a host.
    #[must_use]
    pub fn site_of(&self, host: &str) -> Option<&str> {
        let NodeId(node) = self.topology.node(host)?;
        let site = self.topology.nodes[node].site?;
        Some(&self.topology.sites[site.0].name)
    }

    fn class(&self, name: &str) -> Option<&WorkClass> {
        self.classes.iter().find(|class| class.name == name)
    }

    /// Plans a round for a snapshot.
    #[must_use]
    pub fn plan(&self, snapshot: &Snapshot) -> RoundDecision {
        let mut decision = RoundDecision::default();
        let now_s = snapshot.now_ms / 1000;
        let closed =
            |run: &&RunView| self.class(&run.class).is_some_and(|class| !class.is_open(now_s));
        for run in snapshot.runs.iter().filter(closed) {
            let why = format!("class {} may not run now", run.class);
            decision.withdraw.push((run.plan.run, why));
        }
        let runs: Vec<&RunView> =
            snapshot.runs.iter().filter(|run| !run.to.is_empty() && !closed(run)).collect();
        self.share(snapshot, &runs, &mut decision);
        self.start(snapshot, &mut decision);
        decision
    }
}
