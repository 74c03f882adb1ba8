//! What the controller has ordered, and how far it is.
//!
//! For: the orders that stand ([`Orders::obey`], [`Orders::begin`]), carrying them out step by step with the mover
//! ([`Orders::advance`]), and the account of them ([`Orders::report`]). The words are those of
//! [`penstock_operations::orders`]. Not for: how the controller is reached ([`crate::controller`]).
//!
//! Everything here is bounded: orders that are carried, the bytes of their lists, what is told at a time. An order that
//! does not fit is told to wait. Nothing that the controller says goes beyond exports that let in `controller`, the
//! agent's limits and `third_party.to`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_mover::agent::{Agent, Gatekeeper};
use penstock_mover::handshake::random;
use penstock_operations::execution::WithdrawnOrders;
use penstock_operations::orders::{
    Acknowledged, AddressPair, ENTRIES_MAX, FaultKind, Instructions, OUTCOMES_MAX, Order,
    OrderFault, OrderId, OrderPhase, OrderReport, OrderSettings, OrderTask, ReportedOutcome,
};
use serde::Serialize;

use crate::gate::{Gate, controller};
use crate::state::State;
use faults::{fault, lasting};
use listing::Listing;
use outbox::Outbox;
use sending::{SendWork, Step, Totals};
use tickets::Tickets;

mod faults;
mod listing;
mod outbox;
mod sending;
mod tickets;

/// Orders that are carried at once.
pub const CARRIED_MAX: usize = 256;

/// Bytes of the orders that are carried, as they came.
pub const CARRIED_BYTES_MAX: usize = 256 << 20;

/// Orders that are listened to; a longer list is cut.
pub const LISTED_MAX: usize = 10_000;

/// Orders that wait to be carried and are told of.
const WAITING_TOLD_MAX: usize = 256;

/// About the longest report, of what grows.
const TOLD_BYTES_MAX: usize = 8 << 20;

/// How long the end of an order is told that is not listed any more.
const WITHDRAWN_FOR: Duration = Duration::from_secs(60);

/// What orders are carried out with.
#[derive(Debug)]
struct Context {
    mover: Agent,
    gate: Arc<Gate>,
}

/// How an order runs: what the controller said, or less.
#[derive(Debug, Clone, PartialEq, Eq)]
struct InForce {
    rate_bps: Option<u64>,
    streams: Option<u16>,
    path: Vec<AddressPair>,
}

/// The orders of this node.
#[derive(Debug)]
pub struct Orders {
    context: Context,
    safe_rate_bps: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    listed: BTreeMap<OrderId, OrderSettings>,
    carried: BTreeMap<OrderId, Carried>,
    tickets: Tickets,
    /// Orders that are never begun again, though an instruction lists them.
    withdrawn: WithdrawnOrders,
    /// The controller was heard since the start.
    heard: bool,
    /// The lease is over.
    lapsed: bool,
    stopping: bool,
    /// The controller should hear of something now.
    urgent: bool,
    /// Where the next report begins, so that none is left out for long.
    next: OrderId,
}

/// An order that is carried out.
#[derive(Debug)]
struct Carried {
    run: u64,
    request: String,
    bytes: usize,
    work: Work,
    phase: OrderPhase,
    waiting: Option<String>,
    fault: Option<OrderFault>,
    outcomes: Outbox<ReportedOutcome>,
    totals: Totals,
    /// Since when it is not listed any more.
    withdrawn: Option<Instant>,
    /// The controller knows of the end.
    end_known: bool,
}

#[derive(Debug)]
enum Work {
    Receive,
    Send(Box<SendWork>),
    List(Listing),
    /// It is over, or could not begin.
    None,
}

/// How many orders there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Listed by the controller.
    pub listed: usize,
    /// That wait.
    pub waiting: usize,
    /// That run.
    pub running: usize,
    /// Whose end the controller does not know yet.
    pub ended: usize,
    /// Outcomes and entries that are not acknowledged.
    pub untold: usize,
}

impl Orders {
    /// No orders yet but the tickets of the run before, which let in from now on.
    #[must_use]
    pub fn new(mover: Agent, gate: Arc<Gate>, state: State, safe_rate_bps: u64) -> Self {
        let inner = Inner {
            listed: BTreeMap::new(),
            carried: BTreeMap::new(),
            tickets: Tickets::open(state, &gate),
            withdrawn: WithdrawnOrders::default(),
            heard: false,
            lapsed: false,
            stopping: false,
            urgent: false,
            next: 0,
        };
        Self { context: Context { mover, gate }, safe_rate_bps, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the controller's word; gives the orders that are to be fetched and [`Orders::begin`] begun, as many as
    /// there is room for.
    pub fn obey(&self, instructions: Instructions) -> Vec<OrderId> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let many = instructions.orders.len();
        if many > LISTED_MAX {
            tracing::warn!("the controller lists {many} orders: the first {LISTED_MAX} are seen");
        }
        let standing = instructions.orders.into_iter().take(LISTED_MAX);
        inner.listed = standing.map(|one| (one.order, one.settings)).collect();
        (inner.heard, inner.lapsed) = (true, false);
        for acknowledged in &instructions.acknowledged {
            inner.acknowledge(acknowledged);
        }
        let stale: Vec<OrderId> =
            inner.tickets.orders().filter(|order| !inner.listed.contains_key(order)).collect();
        for order in stale {
            inner.withdrawn.insert(order);
            inner.tickets.dismiss(&self.context.gate, order);
            self.context.mover.end_pass(order, "the controller has withdrawn its order");
        }
        for (order, carried) in &mut inner.carried {
            if !inner.listed.contains_key(order) && carried.withdrawn.is_none() {
                tracing::info!("order {order} of {}: withdrawn", carried.request);
                carried.withdrawn = Some(Instant::now());
                carried.withdraw();
                inner.withdrawn.insert(*order);
                inner.urgent = true;
            }
        }
        inner
            .carried
            .retain(|order, carried| inner.listed.contains_key(order) || !carried.is_forgotten());
        let mut room = CARRIED_MAX.saturating_sub(inner.carried.len());
        if inner.stopping || inner.bytes() >= CARRIED_BYTES_MAX {
            room = 0;
        }
        let new = inner.listed.keys().filter(|order| {
            !inner.carried.contains_key(order) && !inner.withdrawn.contains(**order)
        });
        new.take(room).copied().collect()
    }

    /// Begins an order that was fetched, `bytes` long.
    pub fn begin(&self, order: Order, bytes: usize) {
        let id = order.order;
        let mut inner = self.lock();
        // It may have been withdrawn, or begun, while it was fetched.
        if !inner.listed.contains_key(&id)
            || inner.carried.contains_key(&id)
            || inner.withdrawn.contains(id)
            || inner.stopping
        {
            return;
        }
        let mut carried = Carried::new(order.request, bytes);
        let begun = match order.task {
            OrderTask::Receive { ticket, below } => inner
                .tickets
                .admit(&self.context.gate, id, &ticket, &below)
                .map(|()| Work::Receive)
                .map_err(|refusal| lasting(refusal.text)),
            OrderTask::List { path } => self
                .context
                .gate
                .place(&controller(None), path.as_bytes(), false)
                .map_err(|refusal| lasting(refusal.text))
                .and_then(Listing::start)
                .map(Work::List),
            OrderTask::Send(send) => SendWork::begin(id, *send, &mut carried.outcomes)
                .map(|work| Work::Send(Box::new(work))),
        };
        match begun {
            Ok(work) => {
                carried.phase = match work {
                    Work::Receive | Work::List(_) => OrderPhase::Running,
                    _ => OrderPhase::Waiting,
                };
                carried.work = work;
                tracing::info!("order {id} of {}: begun", carried.request);
            }
            Err(fault) => carried.end(id, Some(fault)),
        }
        inner.urgent = true;
        inner.carried.insert(id, carried);
    }

    /// Goes on with everything. Does not wait for anything for long.
    pub fn advance(&self) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        for (id, carried) in &mut inner.carried {
            let settings = inner.listed.get(id).cloned().unwrap_or_default();
            let mut rate_bps = settings.rate_bps;
            if inner.lapsed {
                let safe = self.safe_rate_bps;
                rate_bps = Some(rate_bps.map_or(safe, |rate| rate.min(safe)));
            }
            let in_force = InForce { rate_bps, streams: settings.streams, path: settings.path };
            let before = carried.phase;
            carried.advance(*id, &self.context, &in_force);
            inner.urgent |= carried.phase != before;
        }
    }

    /// The controller has not been heard for as long as its lease: nothing is faster than the safe rate.
    pub fn lapse(&self) {
        self.lock().lapsed = true;
    }

    /// Whether the controller should hear of something at once, and from now on not.
    #[must_use]
    pub fn take_urgent(&self) -> bool {
        std::mem::take(&mut self.lock().urgent)
    }

    /// Everything that is to be told.
    #[must_use]
    pub fn report(&self) -> Vec<OrderReport> {
        let mut inner = self.lock();
        let mut room = Room { outcomes: OUTCOMES_MAX, entries: ENTRIES_MAX, bytes: TOLD_BYTES_MAX };
        let next = inner.next;
        let in_turn = inner.carried.range(next..).chain(inner.carried.range(..next));
        let mut full = None;
        let mut reports: Vec<OrderReport> = Vec::with_capacity(inner.carried.len());
        for (id, carried) in in_turn {
            let had_room = room.is_left();
            let mut report = carried.report(*id, &mut room);
            if carried.withdrawn.is_some() && inner.listed.contains_key(id) {
                // Listed again: another order may do what this one will not.
                report.fault = report.fault.map(|given| fault(FaultKind::Transient, given.text));
            }
            reports.push(report);
            if had_room && !room.is_left() {
                full = Some(*id);
            }
        }
        let unseen = inner.listed.keys().filter(|order| !inner.carried.contains_key(order));
        reports.extend(unseen.take(WAITING_TOLD_MAX).map(|order| {
            let report = OrderReport { order: *order, ..OrderReport::default() };
            if inner.withdrawn.contains(*order) {
                let text = "it was withdrawn before, and does not begin again";
                let fault = Some(fault(FaultKind::Transient, text));
                return OrderReport { phase: OrderPhase::Ended, fault, ..report };
            }
            let waiting = format!("the node carries {} other orders", inner.carried.len());
            OrderReport { waiting: Some(waiting), ..report }
        }));
        reports.sort_by_key(|report| report.order);
        // Whoever was cut short is the first the next time.
        inner.next = full.unwrap_or(0);
        reports
    }

    /// How many there are.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let inner = self.lock();
        let mut counts = Counts { listed: inner.listed.len(), ..Counts::default() };
        for carried in inner.carried.values() {
            match carried.phase {
                OrderPhase::Waiting => counts.waiting += 1,
                OrderPhase::Running => counts.running += 1,
                OrderPhase::Ended => counts.ended += usize::from(!carried.end_known),
            }
            counts.untold += carried.outcomes.len();
            if let Work::List(listing) = &carried.work {
                counts.untold += listing.waiting();
            }
        }
        counts
    }

    /// The agent shuts down: what is sent is stopped, so that the same order goes on after the next start.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.stopping = true;
        for carried in inner.carried.values_mut() {
            if let Work::Send(work) = &mut carried.work {
                work.stop("the agent shuts down");
            }
        }
    }

    /// Whether nothing is being sent any more.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.lock().carried.values().all(|carried| !matches!(carried.work, Work::Send(_)))
    }

    /// What is told last: what was stopped waits for the next start.
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

impl Inner {
    fn bytes(&self) -> usize {
        self.carried.values().map(|carried| carried.bytes).sum()
    }

    fn acknowledge(&mut self, acknowledged: &Acknowledged) {
        let Some(carried) = self.carried.get_mut(&acknowledged.order) else { return };
        if carried.run != acknowledged.run {
            return;
        }
        carried.outcomes.acknowledge(acknowledged.outcomes);
        if let Work::List(listing) = &carried.work {
            listing.acknowledge(acknowledged.entries);
            self.urgent |= listing.waiting() >= ENTRIES_MAX;
        }
        if acknowledged.end && carried.phase == OrderPhase::Ended {
            // It is kept, and costs nothing, as long as it is listed: it is not to begin again.
            carried.end_known = true;
            carried.work = Work::None;
            carried.outcomes.clear();
            carried.bytes = 0;
        }
    }
}

/// How much may still be told.
struct Room {
    outcomes: usize,
    entries: usize,
    bytes: usize,
}

impl Room {
    fn is_left(&self) -> bool {
        self.bytes > 0 && self.outcomes > 0 && self.entries > 0
    }

    /// Takes room for an item, if there is any.
    fn take(bytes: &mut usize, count: &mut usize, item: &impl Serialize) -> bool {
        let length = serde_json::to_vec(item).map_or(usize::MAX, |json| json.len() + 1);
        if *count == 0 || length > *bytes {
            // What does not fit now keeps its place: others behind it wait too.
            *bytes = if *count == 0 { *bytes } else { 0 };
            return false;
        }
        (*count, *bytes) = (*count - 1, *bytes - length);
        true
    }
}

impl Carried {
    fn new(request: String, bytes: usize) -> Self {
        // Chosen so that it is not one of before, and fits into the numbers of JSON.
        let run = u64::from_le_bytes(random()) >> 11 | 1;
        Self {
            run,
            request: request.chars().filter(|c| !c.is_control()).take(100).collect(),
            bytes,
            work: Work::None,
            phase: OrderPhase::Waiting,
            waiting: None,
            fault: None,
            outcomes: Outbox::default(),
            totals: Totals::default(),
            withdrawn: None,
            end_known: false,
        }
    }

    fn advance(&mut self, id: OrderId, context: &Context, in_force: &InForce) {
        match &mut self.work {
            Work::Receive | Work::None => {}
            Work::List(listing) => {
                if let Some(fault) = listing.ended().filter(|_| self.phase != OrderPhase::Ended) {
                    self.end(id, fault);
                }
            }
            Work::Send(work) => {
                let step = work.step(context, in_force, &mut self.outcomes);
                self.totals = work.progress().0;
                match step {
                    Step::Waiting(why) => {
                        (self.phase, self.waiting) = (OrderPhase::Waiting, Some(why))
                    }
                    Step::Running => (self.phase, self.waiting) = (OrderPhase::Running, None),
                    Step::Ended(fault) => {
                        let withdrawn = || self.withdrawn.map(|_| withdrawn());
                        let fault = fault.or_else(withdrawn);
                        self.end(id, fault);
                        self.work = Work::None;
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

    /// It is not to stand any more.
    fn withdraw(&mut self) {
        match &mut self.work {
            Work::Send(work) => work.stop("the controller has withdrawn its order"),
            Work::Receive | Work::List(_) if self.phase != OrderPhase::Ended => {
                (self.phase, self.fault) = (OrderPhase::Ended, Some(withdrawn()));
                self.work = Work::None;
            }
            _ => {}
        }
    }

    /// Whether an order that is not listed needs not be told any more.
    fn is_forgotten(&self) -> bool {
        let long_ago = |since: Instant| since.elapsed() > WITHDRAWN_FOR;
        self.end_known || (self.phase == OrderPhase::Ended && self.withdrawn.is_some_and(long_ago))
    }

    fn report(&self, order: OrderId, room: &mut Room) -> OrderReport {
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
        (report.outcomes_from, report.outcomes) =
            self.outcomes.told(|outcome| Room::take(&mut room.bytes, &mut room.outcomes, outcome));
        let mut untold = self.outcomes.len() - report.outcomes.len();
        match &self.work {
            Work::List(listing) => {
                (report.entries_from, report.entries) =
                    listing.told(|entry| Room::take(&mut room.bytes, &mut room.entries, entry));
                untold += listing.waiting().saturating_sub(report.entries.len());
            }
            Work::Send(work) => {
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
            Work::Receive | Work::None => {}
        }
        if untold > 0 && report.phase == OrderPhase::Ended {
            // The end is told with the last of what is to be told.
            (report.phase, report.fault) = (OrderPhase::Running, None);
        }
        report
    }
}

fn withdrawn() -> OrderFault {
    fault(FaultKind::Cancelled, "the controller has withdrawn its order")
}
