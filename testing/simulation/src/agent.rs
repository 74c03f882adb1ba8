//! A simulated agent process: the production execution of orders, and its exchange with the controller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_agent::controller::timing::{ANSWER_TIMEOUT, FETCHES_PER_REPORT_MAX};
use penstock_agent::orders::OrderExecutor;
use penstock_control::agent::ReportTimer;
use penstock_control::orders::{
    Capacity, Instructions, InterfaceCounters, Order, OrderId, OrderTask, Report, Send,
};
use penstock_random::Random;

use crate::engine::{SharedPlane, SimulatedEngine, lock};
use crate::scenario::{Defect, SimulatedHost};

/// A request of an agent to the controller, as bytes on the network.
#[derive(Debug, Clone)]
pub(crate) enum AgentRequest {
    Report(Vec<u8>),
    Fetch(OrderId),
}

/// Answer of the controller, as bytes on the network.
#[derive(Debug, Clone)]
pub(crate) enum ControllerAnswer {
    Instructions(Vec<u8>),
    /// An order, or none if it is not active.
    Order(Option<Vec<u8>>),
    /// The connection was refused or lost, or the controller failed.
    Error,
}

/// An exchange: a report, then the new orders one after the other.
#[derive(Debug)]
struct Exchange {
    /// Number of the request under way; answers to others are late.
    request: u64,
    deadline: Instant,
    fetching: VecDeque<OrderId>,
}

/// A running agent process.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) spec: SimulatedHost,
    pub(crate) executor: OrderExecutor,
    timer: ReportTimer,
    /// End of the lease by the simulation's own account.
    pub(crate) lease_ends: Option<Instant>,
    start: u64,
    exchange: Option<Exchange>,
    plane: SharedPlane,
    random: Random,
    /// Orders to send.
    sent: BTreeMap<OrderId, Box<Send>>,
    begun: BTreeSet<OrderId>,
}

impl AgentProcess {
    /// Starts the process with the tickets on its disk.
    pub(crate) fn start(
        spec: SimulatedHost,
        plane: &SharedPlane,
        safe_rate_bps: u64,
        random: Random,
        now: Instant,
    ) -> Self {
        let engine = SimulatedEngine { host: spec.name.clone(), plane: Arc::clone(plane) };
        let start = lock(plane).hosts[&spec.name].start;
        Self {
            executor: OrderExecutor::new(Arc::new(engine), safe_rate_bps, now),
            timer: ReportTimer::new(now),
            lease_ends: None,
            start,
            exchange: None,
            plane: Arc::clone(plane),
            random,
            sent: BTreeMap::new(),
            begun: BTreeSet::new(),
            spec,
        }
    }

    /// Executes orders for a step; returns the request that is due.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        next_request: &mut u64,
    ) -> Option<(u64, AgentRequest)> {
        let is_ignored = lock(&self.plane).defect == Some(Defect::LeaseIgnored);
        if !is_ignored {
            self.executor.expire_lease(now);
        }
        self.executor.advance(now);
        if self.exchange.as_ref().is_some_and(|exchange| now >= exchange.deadline) {
            self.fail();
        }
        if self.exchange.is_some() || !self.timer.is_due(now, || self.executor.take_urgent()) {
            return None;
        }
        self.timer.begin(now);
        let report = serde_json::to_vec(&self.report()).expect("plain data");
        let request = self.ask(now, VecDeque::new(), next_request);
        Some((request, AgentRequest::Report(report)))
    }

    fn ask(&mut self, now: Instant, fetching: VecDeque<OrderId>, next_request: &mut u64) -> u64 {
        *next_request += 1;
        let request = *next_request;
        self.exchange = Some(Exchange { request, deadline: now + ANSWER_TIMEOUT, fetching });
        request
    }

    fn fail(&mut self) {
        self.exchange = None;
        let jitter = self.random.next_bits() as u8;
        self.timer.fail(jitter);
    }

    /// Takes an answer; returns the next request of the exchange.
    pub(crate) fn receive(
        &mut self,
        request: u64,
        answer: ControllerAnswer,
        now: Instant,
        next_request: &mut u64,
    ) -> Option<(u64, AgentRequest)> {
        // Only the connection of the request under way is open.
        let exchange = self.exchange.take_if(|exchange| exchange.request == request)?;
        let mut fetching = exchange.fetching;
        match answer {
            ControllerAnswer::Error => {
                self.fail();
                return None;
            }
            ControllerAnswer::Instructions(bytes) => {
                let instructions: Instructions =
                    serde_json::from_slice(&bytes).expect("instructions of the controller");
                let seconds = instructions.lease_seconds;
                self.note_withdrawn(&instructions);
                let new = self.executor.apply_instructions(instructions, now);
                let duration = Duration::from_secs(seconds.max(3).into());
                self.lease_ends = Some(now + duration);
                fetching = new.into_iter().take(FETCHES_PER_REPORT_MAX).collect();
            }
            ControllerAnswer::Order(bytes) => {
                if let Some(bytes) = bytes {
                    let order: Order = serde_json::from_slice(&bytes).expect("an order");
                    if let OrderTask::Send(send) = &order.task {
                        self.sent.insert(order.order, send.clone());
                    }
                    self.begun.insert(order.order);
                    self.executor.begin(order, bytes.len(), now);
                }
            }
        }
        let Some(order) = fetching.pop_front() else {
            self.timer.succeed();
            return None;
        };
        let request = self.ask(now, fetching, next_request);
        Some((request, AgentRequest::Fetch(order)))
    }

    /// Notes tickets of withdrawn orders, which must not be used again.
    fn note_withdrawn(&mut self, instructions: &Instructions) {
        let listed: BTreeSet<OrderId> = instructions.orders.iter().map(|one| one.order).collect();
        let mut plane = lock(&self.plane);
        for order in self.begun.iter().filter(|order| !listed.contains(order)) {
            let Some(send) = self.sent.get(order) else { continue };
            plane.withdrawn.insert((self.spec.name.clone(), self.start, send.ticket.clone()));
            if plane.defect == Some(Defect::WithdrawnOrdersBegun) {
                let _ = plane.send(&self.spec.name, send, Vec::new(), None);
            }
        }
    }

    /// True while it executes orders.
    pub(crate) fn is_busy(&self) -> bool {
        let counts = self.executor.counts();
        self.exchange.is_some() || counts.listed + counts.running + counts.waiting > 0
    }

    fn report(&self) -> Report {
        Report {
            start: format!("{}-{}", self.spec.name, self.start),
            version: "simulation".to_owned(),
            addresses: vec![format!("{}:8620", self.spec.name)],
            fingerprint: "00".repeat(32),
            capacity: Capacity {
                network_bps: Some(self.spec.rate_bps),
                transfers: 4,
                streams: 64,
                ..Capacity::default()
            },
            interfaces: vec![InterfaceCounters {
                name: "eth0".to_owned(),
                ..InterfaceCounters::default()
            }],
            orders: self.executor.report(),
        }
    }
}
