//! A round: what runs and what waits, in; what begins, how fast each goes and why, out.
//!
//! [`Planner::plan`] is a function of a [`Snapshot`] and of the network; it reads no clock and forgets what it knew, so
//! a round can be made again, by another controller, or in virtual time.

use std::collections::{BTreeMap, HashMap, HashSet};

use penstock_topology::{NodeId, Topology};

use crate::class::Class;
use crate::orders::{AddressPair, Capacity};

/// A host as it reported last.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Its number.
    pub id: i64,
    /// Its queue.
    pub queue: i64,
    /// Its class.
    pub class: String,
    /// The host that sends, or lists.
    pub from: String,
    /// The host that receives; empty for a listing.
    pub to: String,
    /// 1 to 5; 5 is the most urgent.
    pub priority: u8,
    /// When it should be done, in milliseconds since 1970.
    pub deadline_ms: Option<i64>,
    /// Bytes that are not there yet; none where sizes are not known.
    pub left_bytes: Option<u64>,
    /// The node says that it moves.
    pub moving: bool,
    /// Its rate, as measured.
    pub measured_bps: u64,
    /// What holds it back, as measured.
    pub bound_by: String,
    /// Its rate as it was set last.
    pub rate_bps: Option<u64>,
    /// Names of the links that it was given.
    pub route: Vec<String>,
    /// Since when it stays well below its rate.
    pub slow_since_ms: Option<i64>,
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

/// Everything that a round looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Milliseconds since 1970.
    pub now_ms: i64,
    /// Hosts that ever reported.
    pub hosts: Vec<HostView>,
    /// What runs.
    pub runs: Vec<RunView>,
    /// What waits.
    pub queues: Vec<QueueView>,
    /// Names of links that are down.
    pub down: HashSet<String>,
    /// Names of sites at which nothing new is to begin.
    pub draining_sites: HashSet<String>,
}

/// How a run is to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Which.
    pub run: i64,
    /// Its rate.
    pub rate_bps: Option<u64>,
    /// Its streams.
    pub streams: Option<u16>,
    /// Pairs of addresses on its path.
    pub path: Vec<AddressPair>,
    /// Names of the links of its path.
    pub route: Vec<String>,
    /// Why it has this rate.
    pub reason: String,
    /// Since when it stays well below its rate.
    pub slow_since_ms: Option<i64>,
    /// What it moves does not show at the interface of its path.
    pub off_path: bool,
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
    /// Of each run that moves files, in the order of the snapshot.
    pub settings: Vec<Setting>,
    /// What begins.
    pub starts: Vec<Start>,
    /// Runs that are taken back, with the reason.
    pub withdraw: Vec<(i64, String)>,
    /// What people should know.
    pub notes: Vec<String>,
    /// What each class was allotted, by name.
    pub classes: BTreeMap<String, u64>,
}

/// How rounds are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Transfers of one queue between one pair of hosts.
    pub runs_per_pair: usize,
    /// Streams of a transfer; none for the nodes to choose.
    pub streams: Option<u16>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { runs_per_pair: 1, streams: None }
    }
}

/// Makes rounds for one network.
#[derive(Debug)]
pub struct Planner {
    topology: Topology,
    classes: Vec<Class>,
    rules: Rules,
}

impl Planner {
    /// For this network and these classes.
    #[must_use]
    pub fn new(topology: Topology, classes: Vec<Class>, rules: Rules) -> Self {
        Self { topology, classes, rules }
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

    /// Makes a round.
    #[must_use]
    pub fn plan(&self, snapshot: &Snapshot) -> Decision {
        let mut decision = Decision::default();
        for run in snapshot.runs.iter().filter(|run| !run.to.is_empty()) {
            decision.settings.push(Setting {
                run: run.id,
                rate_bps: run.rate_bps,
                streams: self.rules.streams,
                path: Vec::new(),
                route: Vec::new(),
                reason: String::new(),
                slow_since_ms: None,
                off_path: false,
            });
        }
        self.start(snapshot, &mut decision);
        decision
    }

    /// Takes work from queues as long as hosts have room, in turns by class.
    fn start(&self, snapshot: &Snapshot, decision: &mut Decision) {
        let mut busy: HashMap<&str, usize> = HashMap::new();
        let mut pairs: HashMap<(i64, &str, &str), usize> = HashMap::new();
        let mut of_class: HashMap<&str, usize> = HashMap::new();
        for run in &snapshot.runs {
            for host in [&run.from, &run.to] {
                *busy.entry(host).or_default() += 1;
            }
            *pairs.entry((run.queue, &run.from, &run.to)).or_default() += 1;
            *of_class.entry(&run.class).or_default() += 1;
        }
        let mut at_site: BTreeMap<&str, Vec<&HostView>> = BTreeMap::new();
        for host in snapshot.hosts.iter().filter(|host| host.alive && !host.draining) {
            let Some(site) = self.site_of(&host.name) else { continue };
            if !snapshot.draining_sites.contains(site) {
                at_site.entry(site).or_default().push(host);
            }
        }
        let now_s = snapshot.now_ms / 1000;
        let mut waiting: Vec<(&QueueView, &Class, u64)> = snapshot
            .queues
            .iter()
            .filter(|queue| queue.batches > 0)
            .filter_map(|queue| {
                let class = self.classes.iter().find(|class| class.name == queue.class)?;
                class.is_open(now_s).then_some((queue, class, queue.batches))
            })
            .collect();
        while !waiting.is_empty() {
            // The class that has least for its weight comes next; a listing, which takes little, before all.
            waiting.sort_by_key(|(queue, class, _)| {
                let running = of_class.get(queue.class.as_str()).copied().unwrap_or(0) as u64;
                (
                    !queue.destination.is_empty(),
                    class.tier,
                    (running + 1) * 1_000_000 / u64::from(class.weight.max(1)),
                    queue.id,
                )
            });
            let (queue, _, left) = &mut waiting[0];
            let queue = *queue;
            let none = Vec::new();
            let sources = at_site.get(queue.source.as_str()).unwrap_or(&none);
            let list = queue.destination.is_empty();
            let destinations = match list {
                true => &none,
                false => at_site.get(queue.destination.as_str()).unwrap_or(&none),
            };
            let room = |host: &HostView| {
                let used = busy.get(host.name.as_str()).copied().unwrap_or(0);
                (host.capacity.transfers as usize).saturating_sub(used)
            };
            let load = |host: &HostView| busy.get(host.name.as_str()).copied().unwrap_or(0);
            let best = if list {
                let free = sources.iter().filter(|host| room(host) > 0);
                free.min_by_key(|host| (load(host), &host.name)).map(|host| (*host, None))
            } else {
                let pairs = &pairs;
                let all = sources.iter().flat_map(|from| {
                    destinations.iter().map(move |to| (*from, Some(*to)))
                });
                all.filter(|(from, to)| {
                    let to = to.expect("a pair");
                    let running = pairs.get(&(queue.id, from.name.as_str(), to.name.as_str()));
                    room(from) > 0
                        && room(to) > 0
                        && running.copied().unwrap_or(0) < self.rules.runs_per_pair
                })
                .min_by_key(|(from, to)| {
                    let to = to.expect("a pair");
                    (load(from).max(load(to)), load(from) + load(to), &from.name, &to.name)
                })
            };
            let Some((from, to)) = best else {
                waiting.remove(0);
                continue;
            };
            let to_name = to.map_or("", |to| to.name.as_str());
            *busy.entry(&from.name).or_default() += 1;
            if let Some(to) = to {
                *busy.entry(&to.name).or_default() += 1;
            }
            *pairs.entry((queue.id, &from.name, to_name)).or_default() += 1;
            *of_class.entry(&queue.class).or_default() += 1;
            decision.starts.push(Start {
                queue: queue.id,
                from: from.name.clone(),
                to: to_name.to_owned(),
            });
            *left -= 1;
            if *left == 0 {
                waiting.remove(0);
            }
        }
    }
}
