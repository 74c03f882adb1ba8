//! A round: what runs and what waits, in; what begins, how fast each goes and why, out.
//!
//! [`Planner::plan`] is a function of a [`Snapshot`] and of the network; it reads no clock and remembers nothing but
//! paths, so a round can be made again, by another controller, or in virtual time.
//!
//! Each round chooses a path for every transfer ([`route`], [`balance`]), shares what there is of links, interfaces and storage
//! (`penstock-allocation`, in [`share`]), and takes work from queues where hosts have room ([`start`]). A transfer is
//! slowed at once; it is sped up when those that were slowed for it have said that they are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use penstock_topology::paths::Path;
use penstock_topology::{NodeId, Topology};

use crate::class::Class;
use crate::orders::{AddressPair, Capacity};

mod balance;
mod route;
mod share;
mod start;
#[cfg(test)]
mod tests;

/// What of a link, and of the interfaces of a site's hosts, may be guaranteed to reservations and deadlines: the rest is
/// for work without either.
pub const RESERVABLE_PERCENT: u64 = 80;

/// A host as it reported last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostView {
    /// Its name in the topology.
    pub name: String,
    /// It reported lately.
    pub alive: bool,
    /// Nothing new is to begin there.
    pub draining: bool,
    /// What it can do.
    pub capacity: Capacity,
    /// Its interfaces.
    pub interfaces: Vec<InterfaceView>,
}

/// An interface of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceView {
    /// Its name in the topology.
    pub name: String,
    /// Its addresses, in figures.
    pub addresses: Vec<String>,
    /// What it sends, bits per second.
    pub sent_bps: u64,
}

/// What runs: a transfer with its orders, or a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunView {
    /// Its queue.
    pub queue: i64,
    /// Its class.
    pub class: String,
    /// The request that most of it belongs to.
    pub request: i64,
    /// The host that sends, or lists.
    pub from: String,
    /// The host that receives; empty for a listing.
    pub to: String,
    /// 1 to 5; 5 is the most urgent.
    pub priority: u8,
    /// When its request should be done, in milliseconds since 1970, and what is left of that request in bytes.
    pub deadline: Option<(i64, u64)>,
    /// The node says that it moves.
    pub moving: bool,
    /// Its rate, as measured, in bits per second.
    pub measured_bps: u64,
    /// Its mean rate since it began, where that is known.
    pub mean_bps: Option<u64>,
    /// The limit that the node says is in force.
    pub applied_bps: Option<u64>,
    /// What holds it back, as measured.
    pub bound_by: String,
    /// How it goes on as it was told last.
    pub setting: Setting,
    /// When that was changed last, in milliseconds since 1970.
    pub set_ms: i64,
}

impl RunView {
    /// Against other runs of its class: an urgency of one more doubles it.
    fn weight(&self) -> u32 {
        1 << self.priority.clamp(1, 5)
    }
}

/// Work of a class between two sites that waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueView {
    /// Its number.
    pub id: i64,
    /// Its class.
    pub class: String,
    /// Where files are.
    pub source: String,
    /// Where they go; empty for directories that are to be listed.
    pub destination: String,
    /// Batches that wait.
    pub batches: u64,
    /// Their bytes, as far as they are known.
    pub bytes: u64,
}

/// A rate that a class was promised between two sites, for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The class; none for all.
    pub class: Option<String>,
    /// Where files are.
    pub source: String,
    /// Where they go.
    pub destination: String,
    /// How much.
    pub rate_bps: u64,
    /// What it takes from, by the names of [`Planner::site_ways`].
    pub resources: Vec<String>,
    /// Where a circuit carries it.
    pub circuit: Option<CircuitView>,
}

/// A circuit that stands: its links have its rate for it alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CircuitView {
    /// Its number.
    pub id: i64,
    /// What it takes from, by the names of [`Planner::site_ways`].
    pub resources: Vec<String>,
    /// Names of its links.
    pub links: Vec<String>,
    /// By host, the address that is for it alone, in figures.
    pub addresses: BTreeMap<String, String>,
}

/// Everything that a round looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Milliseconds since 1970.
    pub now_ms: i64,
    /// Hosts that ever reported.
    pub hosts: Vec<HostView>,
    /// What runs, by number.
    pub runs: Vec<RunView>,
    /// What waits.
    pub queues: Vec<QueueView>,
    /// Names of links that are down.
    pub down: HashSet<String>,
    /// Names of sites at which nothing new is to begin.
    pub draining_sites: HashSet<String>,
    /// What was promised.
    pub promises: Vec<Promise>,
    /// What interfaces counted on links, by name.
    pub counts: HashMap<String, LinkCount>,
}

/// What interfaces counted on a link over some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCount {
    /// Until when, in milliseconds since 1970.
    pub at_ms: i64,
    /// How long that time was.
    pub interval_ms: i64,
    /// Bits per second from its first end and to it, where they are counted.
    pub bps: [Option<u64>; 2],
}

/// How a run is to go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setting {
    /// Which.
    pub run: i64,
    /// Its rate; none before the first round that sees it.
    pub rate_bps: Option<u64>,
    /// Its streams; none for the nodes to choose.
    pub streams: Option<u16>,
    /// Pairs of addresses on its path; none for any.
    pub path: Vec<AddressPair>,
    /// Names of the links of its path.
    pub route: Vec<String>,
    /// When it was given that path though the one before was up, in milliseconds since 1970; else 0.
    pub moved_ms: i64,
    /// Why it has this rate.
    pub reason: String,
    /// Since when it stays well below its rate, in milliseconds since 1970.
    pub slow_since_ms: Option<i64>,
    /// What it moves does not show at the interface of its path.
    pub off_path: bool,
    /// Since when that is so, in milliseconds since 1970: a low rate is judged after a while.
    pub off_since_ms: Option<i64>,
}

/// Work that is to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The queue from which it is taken.
    pub queue: i64,
    /// The host that sends, or lists.
    pub from: String,
    /// The host that receives; empty for a listing.
    pub to: String,
}

/// What comes out of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Of the runs that are to go on otherwise than now.
    pub settings: Vec<Setting>,
    /// What begins.
    pub starts: Vec<Start>,
    /// Runs that are taken back, with the reason.
    pub withdraw: Vec<(i64, String)>,
    /// What people should know.
    pub notes: Vec<String>,
    /// What each class that runs is allotted and has, in bits per second.
    pub classes: BTreeMap<String, (u64, u64)>,
}

/// How rounds are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Transfers of one queue between one pair of hosts.
    pub runs_per_pair: usize,
    /// Streams of a transfer; none for the nodes to choose.
    pub streams: Option<u16>,
    /// What file bytes may have of a link, in thousandths: headers and what others send take the rest.
    pub usable_permille: u16,
}

impl Default for Rules {
    fn default() -> Self {
        Self { runs_per_pair: 1, streams: None, usable_permille: 940 }
    }
}

/// Ways by the hosts between which they are.
type Ways = HashMap<(NodeId, NodeId), Arc<Vec<Path>>>;

/// Makes rounds for one network.
#[derive(Debug)]
pub struct Planner {
    topology: Topology,
    classes: Vec<Class>,
    rules: Rules,
    /// Ways that share no link, between two hosts; they follow from the topology alone.
    ways: Mutex<Ways>,
    /// Ways that addresses choose, between two hosts, while no link is down.
    address_ways: Mutex<Ways>,
}

impl Planner {
    /// For this network and these classes.
    #[must_use]
    pub fn new(topology: Topology, classes: Vec<Class>, rules: Rules) -> Self {
        Self { topology, classes, rules, ways: Mutex::default(), address_ways: Mutex::default() }
    }

    /// The network.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The name of the site at which a host stands.
    #[must_use]
    pub fn site_of(&self, host: &str) -> Option<&str> {
        let NodeId(node) = self.topology.node(host)?;
        let site = self.topology.nodes[node].site?;
        Some(&self.topology.sites[site.0].name)
    }

    fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| class.name == name)
    }

    /// Makes a round.
    #[must_use]
    pub fn plan(&self, snapshot: &Snapshot) -> Decision {
        let mut decision = Decision::default();
        let now_s = snapshot.now_ms / 1000;
        let closed =
            |run: &&RunView| self.class(&run.class).is_some_and(|class| !class.is_open(now_s));
        for run in snapshot.runs.iter().filter(closed) {
            let why = format!("class {} may not run now", run.class);
            decision.withdraw.push((run.setting.run, why));
        }
        let runs: Vec<&RunView> =
            snapshot.runs.iter().filter(|run| !run.to.is_empty() && !closed(run)).collect();
        self.share(snapshot, &runs, &mut decision);
        self.start(snapshot, &mut decision);
        decision
    }
}
