//! Executes the orders of the controller.
//!
//! For: taking instructions ([`OrderExecutor::apply_instructions`]), starting orders
//! ([`OrderExecutor::begin`]), executing them step by step with the mover ([`OrderExecutor::advance`]), and
//! reporting ([`OrderExecutor::report`]). The messages are those of [`penstock_control::orders`]. Not for:
//! the connection to the controller ([`crate::controller`]).
//!
//! Executions use the mover through [`TransferEngine`], and callers pass the present time, so that a simulation runs
//! this code with simulated hosts in virtual time.
//!
//! Orders, the bytes of their lists and the size of a report are bounded; an order beyond a bound waits. The
//! controller can do nothing beyond the exports that admit `controller`, the agent's limits and
//! `third_party.to`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_control::execution::WithdrawnOrders;
use penstock_control::orders::{
    Acknowledged, AddressPair, ENTRIES_MAX, FaultKind, Instructions, OUTCOMES_MAX, Order,
    OrderFault, OrderId, OrderPhase, OrderReport, OrderSettings, OrderTask, ReportedOutcome,
};
use serde::Serialize;

pub use engine::{EngineTransfer, FileListing, OrderPathError, TransferEngine, TransferRequest};
pub use faults::FailureAction;
use faults::{fault, permanent};
pub use local::LocalEngine;
pub use outbox::Outbox;
use sending::{SendExecution, SendStep, Totals};
use tickets::TicketStore;

mod engine;
mod faults;
mod listing;
mod local;
mod outbox;
mod sending;
mod tickets;

/// Orders that are executed at once.
pub const EXECUTIONS_MAX: usize = 256;

/// Bytes of all executed orders, as received.
pub const EXECUTION_BYTES_MAX: usize = 256 << 20;

/// Orders of one instruction that are read; the rest of a longer list is ignored.
pub const LISTED_ORDERS_MAX: usize = 10_000;

/// Orders in a report that wait for an execution slot.
const REPORTED_WAITING_MAX: usize = 256;

/// Approximate size of the variable part of a report.
const REPORT_BYTES_MAX: usize = 8 << 20;

/// Time for which the end of a withdrawn order is reported.
const WITHDRAWN_REPORT_TIME: Duration = Duration::from_secs(60);

/// Settings in force: those of the controller, within the safe rate once the lease has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EffectiveSettings {
    rate_bps: Option<u64>,
    streams: Option<u16>,
    path: Vec<AddressPair>,
}

/// Executes the orders of this node.
#[derive(Debug)]
pub struct OrderExecutor {
    engine: Arc<dyn TransferEngine>,
    safe_rate_bps: u64,
    inner: Mutex<OrderTable>,
}

#[derive(Debug)]
struct OrderTable {
    listed: BTreeMap<OrderId, OrderSettings>,
    executions: BTreeMap<OrderId, OrderExecution>,
    tickets: TicketStore,
    /// Withdrawn orders, which never begin again, even if an instruction lists them.
    withdrawn: WithdrawnOrders,
    /// Set once the controller has answered since the start.
    answered: bool,
    /// Set while the controller's lease has expired.
    lapsed: bool,
    stopping: bool,
    /// Set when the next report is due at once.
    urgent: bool,
    /// Order with which the next report begins, so that truncation delays none for long.
    next: OrderId,
}

/// An order that this agent executes.
#[derive(Debug)]
struct OrderExecution {
    run: u64,
    request: String,
    bytes: usize,
    work: OrderWork,
    phase: OrderPhase,
    waiting: Option<String>,
    fault: Option<OrderFault>,
    outcomes: Outbox<ReportedOutcome>,
    totals: Totals,
    /// Time since when instructions do not list the order.
    withdrawn: Option<Instant>,
    /// Set once the controller has acknowledged the end.
    end_known: bool,
}

#[derive(Debug)]
enum OrderWork {
    Receive,
    Send(Box<SendExecution>),
    List(Box<dyn FileListing>),
    /// Ended, or failed to begin.
    None,
}

/// Counts of the orders by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Orders in the last instruction.
    pub listed: usize,
    /// Orders that wait to be sent.
    pub waiting: usize,
    /// Orders with a live transfer, listing or ticket.
    pub running: usize,
    /// Ended orders whose end the controller has not acknowledged.
    pub ended: usize,
    /// Outcomes and entries that the controller has not acknowledged.
    pub untold: usize,
}

impl OrderExecutor {
    /// Creates an executor without orders; tickets from before a restart are valid again.
    #[must_use]
    pub fn new(engine: Arc<dyn TransferEngine>, safe_rate_bps: u64) -> Self {
        let inner = OrderTable {
            listed: BTreeMap::new(),
            executions: BTreeMap::new(),
            tickets: TicketStore::open(&*engine),
            withdrawn: WithdrawnOrders::default(),
            answered: false,
            lapsed: false,
            stopping: false,
            urgent: false,
            next: OrderId::default(),
        };
        Self { engine, safe_rate_bps, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, OrderTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an instruction; returns the orders to fetch and [`OrderExecutor::begin`], within the limits.
    pub fn apply_instructions(&self, instructions: Instructions, now: Instant) -> Vec<OrderId> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let many = instructions.orders.len();
        if many > LISTED_ORDERS_MAX {
            tracing::warn!(
                "the controller lists {many} orders: only the first {LISTED_ORDERS_MAX} are read"
            );
        }
        let standing = instructions.orders.into_iter().take(LISTED_ORDERS_MAX);
        inner.listed = standing.map(|one| (one.order, one.settings)).collect();
        (inner.answered, inner.lapsed) = (true, false);
        for acknowledged in &instructions.acknowledged {
            inner.acknowledge(acknowledged);
        }
        let stale: Vec<OrderId> =
            inner.tickets.orders().filter(|order| !inner.listed.contains_key(order)).collect();
        for order in stale {
            inner.withdrawn.insert(order);
            inner.tickets.revoke(&*self.engine, order);
            self.engine.end_sessions(order, "the controller has withdrawn its order");
        }
        for (order, execution) in &mut inner.executions {
            if !inner.listed.contains_key(order) && execution.withdrawn.is_none() {
                tracing::info!("order {order} of {}: withdrawn", execution.request);
                execution.withdrawn = Some(now);
                execution.withdraw(now);
                inner.withdrawn.insert(*order);
                inner.urgent = true;
            }
        }
        inner.executions.retain(|order, execution| {
            inner.listed.contains_key(order) || !execution.is_forgotten(now)
        });
        let mut room = EXECUTIONS_MAX.saturating_sub(inner.executions.len());
        if inner.stopping || inner.bytes() >= EXECUTION_BYTES_MAX {
            room = 0;
        }
        let new = inner.listed.keys().filter(|order| {
            !inner.executions.contains_key(order) && !inner.withdrawn.contains(**order)
        });
        new.take(room).copied().collect()
    }

    /// Begins a fetched order of `bytes` bytes.
    pub fn begin(&self, order: Order, bytes: usize, now: Instant) {
        let id = order.order;
        let mut inner = self.lock();
        // It may have been withdrawn or begun during the fetch.
        if !inner.listed.contains_key(&id)
            || inner.executions.contains_key(&id)
            || inner.withdrawn.contains(id)
            || inner.stopping
        {
            return;
        }
        let mut execution = OrderExecution::new(order.request, bytes, self.engine.random());
        let begun = match order.task {
            OrderTask::Receive { ticket, below } => inner
                .tickets
                .grant(&*self.engine, id, &ticket, &below)
                .map(|()| OrderWork::Receive)
                .map_err(|refusal| permanent(refusal.text)),
            OrderTask::List { path } => self.engine.list(&path).map(OrderWork::List),
            OrderTask::Send(send) => SendExecution::begin(id, *send, &mut execution.outcomes, now)
                .map(|work| OrderWork::Send(Box::new(work))),
        };
        match begun {
            Ok(work) => {
                execution.phase = match work {
                    OrderWork::Receive | OrderWork::List(_) => OrderPhase::Running,
                    _ => OrderPhase::Waiting,
                };
                execution.work = work;
                tracing::info!("order {id} of {}: begun", execution.request);
            }
            Err(fault) => execution.end(id, Some(fault)),
        }
        inner.urgent = true;
        inner.executions.insert(id, execution);
    }

    /// Advances every execution by a step; blocks only for moments.
    pub fn advance(&self, now: Instant) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        for (id, execution) in &mut inner.executions {
            let settings = inner.listed.get(id).cloned().unwrap_or_default();
            let mut rate_bps = settings.rate_bps;
            if inner.lapsed {
                let safe = self.safe_rate_bps;
                rate_bps = Some(rate_bps.map_or(safe, |rate| rate.min(safe)));
            }
            let settings_in_force =
                EffectiveSettings { rate_bps, streams: settings.streams, path: settings.path };
            let before = execution.phase;
            execution.advance(*id, &*self.engine, &settings_in_force, now);
            inner.urgent |= execution.phase != before;
        }
    }

    /// Limits every transfer to the safe rate: the lease has expired without an answer of the controller.
    pub fn lapse(&self) {
        self.lock().lapsed = true;
    }

    /// Returns true, once, if a report is due at once.
    #[must_use]
    pub fn take_urgent(&self) -> bool {
        std::mem::take(&mut self.lock().urgent)
    }

    /// Reports all orders within the limits of one report.
    #[must_use]
    pub fn report(&self) -> Vec<OrderReport> {
        let mut inner = self.lock();
        let mut room =
            ReportBudget { outcomes: OUTCOMES_MAX, entries: ENTRIES_MAX, bytes: REPORT_BYTES_MAX };
        let next = inner.next;
        let in_turn = inner.executions.range(next..).chain(inner.executions.range(..next));
        let mut full = None;
        let mut reports: Vec<OrderReport> = Vec::with_capacity(inner.executions.len());
        for (id, execution) in in_turn {
            let had_room = room.is_left();
            let mut report = execution.report(*id, &mut room);
            if execution.withdrawn.is_some() && inner.listed.contains_key(id) {
                // Listed again: another order may succeed, so the fault is transient.
                report.fault = report.fault.map(|given| fault(FaultKind::Transient, given.text));
            }
            reports.push(report);
            if had_room && !room.is_left() {
                full = Some(*id);
            }
        }
        let unseen = inner.listed.keys().filter(|order| !inner.executions.contains_key(order));
        reports.extend(unseen.take(REPORTED_WAITING_MAX).map(|order| {
            let report = OrderReport { order: *order, ..OrderReport::default() };
            if inner.withdrawn.contains(*order) {
                let text = "it was withdrawn before, and does not begin again";
                let fault = Some(fault(FaultKind::Transient, text));
                return OrderReport { phase: OrderPhase::Ended, fault, ..report };
            }
            let waiting = format!("the node executes {} other orders", inner.executions.len());
            OrderReport { waiting: Some(waiting), ..report }
        }));
        reports.sort_by_key(|report| report.order);
        // The next report begins with the truncated order.
        inner.next = full.unwrap_or_default();
        reports
    }

    /// Counts the orders by phase.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let inner = self.lock();
        let mut counts = Counts { listed: inner.listed.len(), ..Counts::default() };
        for execution in inner.executions.values() {
            match execution.phase {
                OrderPhase::Waiting => counts.waiting += 1,
                OrderPhase::Running => counts.running += 1,
                OrderPhase::Ended => counts.ended += usize::from(!execution.end_known),
            }
            counts.untold += execution.outcomes.pending_count();
            if let OrderWork::List(listing) = &execution.work {
                counts.untold += listing.waiting();
            }
        }
        counts
    }

    /// Stops sending, so that the same orders continue after the next start.
    pub fn stop(&self, now: Instant) {
        let mut inner = self.lock();
        inner.stopping = true;
        for execution in inner.executions.values_mut() {
            if let OrderWork::Send(work) = &mut execution.work {
                work.stop("the agent shuts down", now);
            }
        }
    }

    /// Returns true once no order sends.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.lock()
            .executions
            .values()
            .all(|execution| !matches!(execution.work, OrderWork::Send(_)))
    }

    /// The final report: stopped orders are reported as waiting for the next start.
    #[must_use]
    pub fn last_report(&self) -> Vec<OrderReport> {
        let mut reports = self.report();
        let inner = self.lock();
        for report in &mut reports {
            let stopped = |fault: &OrderFault| fault.kind == FaultKind::Cancelled;
            if inner.withdrawn.contains(report.order) {
                continue;
            }
            if report.phase == OrderPhase::Ended && report.fault.as_ref().is_some_and(stopped) {
                report.phase = OrderPhase::Waiting;
                report.fault = None;
                report.waiting = Some("the agent shuts down".to_owned());
            }
        }
        reports
    }
}

impl OrderTable {
    fn bytes(&self) -> usize {
        self.executions.values().map(|execution| execution.bytes).sum()
    }

    fn acknowledge(&mut self, acknowledged: &Acknowledged) {
        let Some(execution) = self.executions.get_mut(&acknowledged.order) else { return };
        if execution.run != acknowledged.run {
            return;
        }
        execution.outcomes.acknowledge(acknowledged.outcomes);
        if let OrderWork::List(listing) = &execution.work {
            listing.acknowledge(acknowledged.entries);
            self.urgent |= listing.waiting() >= ENTRIES_MAX;
        }
        if acknowledged.end && execution.phase == OrderPhase::Ended {
            // Kept, without its lists, while it is listed: it must not begin again.
            execution.end_known = true;
            execution.work = OrderWork::None;
            execution.outcomes.clear();
            execution.bytes = 0;
        }
    }
}

/// Remaining size of a report.
struct ReportBudget {
    outcomes: usize,
    entries: usize,
    bytes: usize,
}

impl ReportBudget {
    fn is_left(&self) -> bool {
        self.bytes > 0 && self.outcomes > 0 && self.entries > 0
    }

    /// Reserves room for an item; returns false if it does not fit.
    fn take(bytes: &mut usize, count: &mut usize, item: &impl Serialize) -> bool {
        let length = serde_json::to_vec(item).map_or(usize::MAX, |json| json.len() + 1);
        if *count == 0 || length > *bytes {
            // Items stay in order: those behind an item that does not fit wait too.
            *bytes = if *count == 0 { *bytes } else { 0 };
            return false;
        }
        (*count, *bytes) = (*count - 1, *bytes - length);
        true
    }
}

impl OrderExecution {
    /// `random` differs from that of earlier runs.
    fn new(request: String, bytes: usize, random: u64) -> Self {
        // 53 bits, so that JSON numbers hold it.
        let run = random >> 11 | 1;
        Self {
            run,
            request: request.chars().filter(|c| !c.is_control()).take(100).collect(),
            bytes,
            work: OrderWork::None,
            phase: OrderPhase::Waiting,
            waiting: None,
            fault: None,
            outcomes: Outbox::default(),
            totals: Totals::default(),
            withdrawn: None,
            end_known: false,
        }
    }

    fn advance(
        &mut self,
        id: OrderId,
        engine: &dyn TransferEngine,
        settings_in_force: &EffectiveSettings,
        now: Instant,
    ) {
        match &mut self.work {
            OrderWork::Receive | OrderWork::None => {}
            OrderWork::List(listing) => {
                if let Some(fault) = listing.ended().filter(|_| self.phase != OrderPhase::Ended) {
                    self.end(id, fault);
                }
            }
            OrderWork::Send(work) => {
                let step = work.step(engine, settings_in_force, &mut self.outcomes, now);
                self.totals = work.progress().0;
                match step {
                    SendStep::Waiting(why) => {
                        (self.phase, self.waiting) = (OrderPhase::Waiting, Some(why))
                    }
                    SendStep::Running => (self.phase, self.waiting) = (OrderPhase::Running, None),
                    SendStep::Ended(fault) => {
                        let withdrawn = || self.withdrawn.map(|_| withdrawn());
                        let fault = fault.or_else(withdrawn);
                        self.end(id, fault);
                        self.work = OrderWork::None;
                    }
                }
            }
        }
    }

    fn end(&mut self, id: OrderId, fault: Option<OrderFault>) {
        match &fault {
            Some(fault) => tracing::info!("order {id} of {}: ended: {}", self.request, fault.text),
            None => tracing::info!("order {id} of {}: done", self.request),
        }
        (self.phase, self.fault, self.waiting) = (OrderPhase::Ended, fault, None);
    }

    /// Stops an execution that the controller has withdrawn.
    fn withdraw(&mut self, now: Instant) {
        match &mut self.work {
            OrderWork::Send(work) => work.stop("the controller has withdrawn its order", now),
            OrderWork::Receive | OrderWork::List(_) if self.phase != OrderPhase::Ended => {
                (self.phase, self.fault) = (OrderPhase::Ended, Some(withdrawn()));
                self.work = OrderWork::None;
            }
            _ => {}
        }
    }

    /// Returns true if an order that is not listed need not be reported any more.
    fn is_forgotten(&self, now: Instant) -> bool {
        let long_ago = |since: Instant| now.duration_since(since) > WITHDRAWN_REPORT_TIME;
        self.end_known || (self.phase == OrderPhase::Ended && self.withdrawn.is_some_and(long_ago))
    }

    fn report(&self, order: OrderId, room: &mut ReportBudget) -> OrderReport {
        let mut report = OrderReport {
            order,
            run: self.run,
            phase: self.phase,
            waiting: self.waiting.clone(),
            fault: self.fault.clone(),
            moved_bytes: self.totals.moved_bytes,
            retransmits: self.totals.retransmits,
            ..OrderReport::default()
        };
        (report.outcomes_from, report.outcomes) = self
            .outcomes
            .pending(|outcome| ReportBudget::take(&mut room.bytes, &mut room.outcomes, outcome));
        let mut untold = self.outcomes.pending_count() - report.outcomes.len();
        match &self.work {
            OrderWork::List(listing) => {
                (report.entries_from, report.entries) = listing.pending(&mut |entry| {
                    ReportBudget::take(&mut room.bytes, &mut room.entries, entry)
                });
                untold += listing.waiting().saturating_sub(report.entries.len());
            }
            OrderWork::Send(work) => {
                let (_, snapshot) = work.progress();
                report.bits_per_second = snapshot.bits_per_second;
                report.rate_bps = snapshot.rate_bps;
                report.streams = snapshot.streams;
                report.bound_by = match snapshot.bound_by {
                    "rate limit" => "rate".to_owned(),
                    other => other.to_owned(),
                };
                report.label.clone_from(&snapshot.label);
            }
            OrderWork::Receive | OrderWork::None => {}
        }
        if untold > 0 && report.phase == OrderPhase::Ended {
            // The end is reported together with the last outcome or entry.
            (report.phase, report.fault) = (OrderPhase::Running, None);
        }
        report
    }
}

fn withdrawn() -> OrderFault {
    fault(FaultKind::Cancelled, "the controller has withdrawn its order")
}
