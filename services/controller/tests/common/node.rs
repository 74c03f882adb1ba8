//! A simulated node, which reports, accepts orders, and completes their files after some reports.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use penstock_control::orders::{
    Capacity, FaultKind, Instructions, InterfaceCounters, ListedFile, Order, OrderFault, OrderId,
    OrderPhase, OrderReport, OrderTask, PathForecast, Report, ReportedOutcome,
};
use serde_json::Value;

use super::{Client, token};

/// State shared by all nodes of a test: files and what was written.
#[derive(Debug, Default)]
pub struct World {
    /// Number of writes of each destination.
    pub written: BTreeMap<String, u32>,
    /// Destinations being written, and by which order.
    pub busy: HashMap<String, OrderId>,
    /// Files of each directory.
    pub directories: HashMap<String, Vec<ListedFile>>,
    /// Faults of files, and how often each occurs.
    pub faults: HashMap<String, (FaultKind, u32)>,
    /// Active tickets, by host.
    pub tickets: HashMap<String, Vec<String>>,
}

pub type Shared = Arc<Mutex<World>>;

struct NodeOrder {
    order: Order,
    outcomes: Vec<ReportedOutcome>,
    entries: Vec<ListedFile>,
    acknowledged: u64,
    told_entries: u64,
    next: usize,
    ended: bool,
    fault: Option<OrderFault>,
    rate: Option<u64>,
}

pub struct Node {
    pub name: String,
    pub client: Client,
    pub world: Shared,
    /// Files that each order completes between two reports.
    pub speed: usize,
    /// Files that all orders together complete between two reports.
    pub most: usize,
    pub transfers: u32,
    /// Set if its interface counts the bytes that its orders report.
    pub honest: bool,
    /// Rates of earlier transfers that it reports with each order.
    pub path_forecast: Option<PathForecast>,
    run: u64,
    doing: BTreeMap<OrderId, NodeOrder>,
    sent: u64,
    reported: std::time::Instant,
    pub last: Instructions,
}

impl Node {
    pub fn new(name: &str, address: SocketAddr, world: &Shared) -> Self {
        Self {
            name: name.to_owned(),
            client: Client::new(address, &token(name)),
            world: Arc::clone(world),
            speed: 100,
            most: usize::MAX,
            transfers: 16,
            honest: false,
            path_forecast: None,
            run: 1,
            doing: BTreeMap::new(),
            sent: 0,
            reported: std::time::Instant::now(),
            last: Instructions::default(),
        }
    }

    /// Creates a node whose transfers never finish.
    pub fn idle(name: &str, address: SocketAddr, world: &Shared) -> Self {
        Self { speed: 0, honest: true, ..Self::new(name, address, world) }
    }

    /// Restarts the node, which loses everything in memory.
    pub fn crash(&mut self) {
        let mut world = self.world.lock().unwrap();
        world.busy.retain(|_, order| !self.doing.contains_key(order));
        self.doing.clear();
        self.run += 1;
    }

    fn build_report(&self) -> Report {
        let orders = self.doing.iter().map(|(id, doing)| OrderReport {
            order: *id,
            run: self.run,
            phase: if doing.ended { OrderPhase::Ended } else { OrderPhase::Running },
            fault: doing.fault.clone(),
            outcomes_from: doing.acknowledged,
            outcomes: doing.outcomes[doing.acknowledged as usize..].to_vec(),
            entries_from: doing.told_entries,
            entries: doing.entries[doing.told_entries as usize..].to_vec(),
            rate_bps: doing.rate,
            path_forecast: self.path_forecast,
            bits_per_second: if doing.ended { 0 } else { doing.rate.unwrap_or(1_000_000) },
            ..OrderReport::default()
        });
        Report {
            start: format!("{}-{}", self.name, self.run),
            version: "test".into(),
            addresses: vec!["192.0.2.1:8620".into()],
            fingerprint: "00".repeat(32),
            capacity: Capacity { transfers: self.transfers, streams: 64, ..Capacity::default() },
            interfaces: vec![InterfaceCounters {
                name: "eth0".into(),
                sent_bytes: self.sent,
                received_bytes: 0,
                addresses: vec!["192.0.2.1".into()],
            }],
            orders: orders.collect(),
        }
    }

    /// Reports once and applies the instructions. Returns false if the controller does not respond.
    pub async fn turn(&mut self) -> bool {
        if self.honest {
            let bps: u64 = self.doing.values().filter_map(|one| one.rate).sum();
            self.sent += (bps as f64 / 8.0 * self.reported.elapsed().as_secs_f64()) as u64;
        }
        self.reported = std::time::Instant::now();
        let answered = self.report().await;
        if answered {
            self.fetch().await;
        }
        answered
    }

    /// Reports once and drops what was acknowledged.
    pub async fn report(&mut self) -> bool {
        let report = serde_json::to_vec(&self.build_report()).unwrap();
        let path = format!("/api/v1/agents/{}/report", self.name);
        let instructions: Instructions = match self.client.try_ask("POST", &path, &report).await {
            Ok((200, answer)) => serde_json::from_value(answer).unwrap(),
            Ok((503, _)) | Err(_) => return false,
            Ok(other) => panic!("{}: {other:?}", self.name),
        };
        for known in &instructions.acknowledged {
            let Some(doing) = self.doing.get_mut(&known.order) else { continue };
            assert_eq!(known.run, self.run);
            doing.acknowledged = doing.acknowledged.max(known.outcomes);
            doing.told_entries = doing.told_entries.max(known.entries);
            if known.end {
                self.end(known.order);
            }
        }
        self.last = instructions;
        true
    }

    /// Applies the last instructions.
    pub async fn fetch(&mut self) {
        let active: HashMap<OrderId, _> =
            self.last.orders.iter().map(|one| (one.order, one.settings.clone())).collect();
        let gone: Vec<_> =
            self.doing.keys().filter(|id| !active.contains_key(id)).copied().collect();
        for id in gone {
            self.end(id);
        }
        for (id, settings) in &active {
            if let Some(doing) = self.doing.get_mut(id) {
                doing.rate = settings.rate_bps;
                continue;
            }
            let path = format!("/api/v1/agents/{}/orders/{id}", self.name);
            match self.client.try_ask("GET", &path, b"").await {
                Ok((200, order)) => self.begin(order, settings.rate_bps),
                Ok((404 | 503, _)) | Err(_) => {}
                Ok(other) => panic!("{}: {other:?}", self.name),
            }
        }
        self.work();
    }

    fn begin(&mut self, order: Value, rate: Option<u64>) {
        let order: Order = serde_json::from_value(order).unwrap();
        let mut world = self.world.lock().unwrap();
        if let OrderTask::Receive { ticket, .. } = &order.task {
            world.tickets.entry(self.name.clone()).or_default().push(ticket.clone());
        }
        let doing = NodeOrder {
            outcomes: Vec::new(),
            entries: Vec::new(),
            acknowledged: 0,
            told_entries: 0,
            next: 0,
            ended: false,
            fault: None,
            rate,
            order,
        };
        self.doing.insert(doing.order.order, doing);
    }

    fn end(&mut self, id: OrderId) {
        let mut world = self.world.lock().unwrap();
        world.busy.retain(|_, order| *order != id);
        if let Some(OrderTask::Receive { ticket, .. }) =
            self.doing.remove(&id).map(|doing| doing.order.task)
            && let Some(tickets) = world.tickets.get_mut(&self.name)
        {
            tickets.retain(|one| *one != ticket);
        }
    }

    fn work(&mut self) {
        let mut world = self.world.lock().unwrap();
        let mut left = self.most;
        for (id, doing) in &mut self.doing {
            if doing.ended {
                continue;
            }
            match &doing.order.task {
                OrderTask::Receive { .. } => {}
                OrderTask::List { path } => {
                    match world.directories.get(path) {
                        Some(entries) => doing.entries = entries.clone(),
                        None => {
                            let text = format!("{path}: no such directory");
                            doing.fault = Some(OrderFault { kind: FaultKind::Permanent, text });
                        }
                    }
                    doing.ended = true;
                }
                OrderTask::Send(send) => {
                    for _ in 0..self.speed.min(left) {
                        let Some(file) = send.files.get(doing.next) else { break };
                        left -= 1;
                        let place = format!("{}/{}", send.to, file.path);
                        let writer = *world.busy.entry(place.clone()).or_insert(*id);
                        assert_eq!(writer, *id, "two orders write {place}");
                        let fault = match world.faults.get_mut(&file.path) {
                            Some((kind, left)) if *left > 0 => {
                                *left -= 1;
                                Some(OrderFault {
                                    kind: *kind,
                                    text: format!("{place}: a fault of the test"),
                                })
                            }
                            _ => None,
                        };
                        let was_there = world.written.contains_key(&place);
                        if fault.is_none() && !was_there {
                            *world.written.entry(place.clone()).or_default() += 1;
                        }
                        world.busy.remove(&place);
                        self.sent += 1000;
                        doing.outcomes.push(ReportedOutcome {
                            file: doing.next as u32,
                            bytes: 1000,
                            was_there,
                            digest: None,
                            fault,
                        });
                        doing.next += 1;
                    }
                    doing.ended = doing.next == send.files.len();
                }
            }
        }
    }
}

/// Lets nodes report in turn until `done`.
pub async fn turns(nodes: &mut [Node], mut done: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !done().await {
        assert!(begun.elapsed() < super::TEST_TIMEOUT, "it is not done in time");
        for node in nodes.iter_mut() {
            node.turn().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
