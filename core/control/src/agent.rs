//! The agent's side of the control protocol as a state machine without I/O: its orders, the lease of their rates, and its
//! reports.
//!
//! [`AgentOrders`] takes instructions ([`AgentOrders::apply_instructions`]), admits fetched orders
//! ([`AgentOrders::begin`]), limits their rates once the lease has expired ([`AgentOrders::settings`]) and reports what
//! the controller has not acknowledged ([`AgentOrders::report`]). The state of one order is [`order::OrderState`]. The
//! caller runs transfers and listings, notes their events in [`AgentOrder`], and passes the present time.
//!
//! Invariants, which the property tests check for any loss, repetition and reordering of messages:
//!
//! - An order that was withdrawn does not begin again, even if a late instruction lists it.
//! - An outcome is reported until it is acknowledged, under the same number, and never after that.
//! - An end that is acknowledged is final, and only an end that has happened can be acknowledged.
//! - An order under which data may arrive is in every report, so that its absence means that it has stopped.
//! - While the lease is expired no order has a rate above the safe rate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde::Serialize;

use crate::execution::WithdrawnOrders;
use crate::lease::RateLease;
use crate::orders::{
    AddressPair, FaultKind, Instructions, ListedFile, OrderFault, OrderId, OrderPhase, OrderReport,
    OrderSettings,
};

pub mod order;
mod outbox;
mod report;
mod timer;

#[cfg(test)]
mod tests;

pub use order::{AgentOrder, WITHDRAWN_REASON, withdrawn_fault};
pub use outbox::Outbox;
use report::ReportBudget;
pub use report::WorkProgress;
pub use timer::{REPORT_INTERVAL, ReportTimer};

/// Orders that are executed at once.
pub const EXECUTIONS_MAX: usize = 256;

/// Bytes of all executed orders, as received.
pub const EXECUTION_BYTES_MAX: usize = 256 << 20;

/// Orders of one instruction that are read; the rest of a longer list is ignored.
pub const LISTED_ORDERS_MAX: usize = 10_000;

/// Orders in a report that wait for an execution slot.
const REPORTED_WAITING_MAX: usize = 256;

/// Fault text of a withdrawn order that an instruction lists again.
const WITHDRAWN_BEFORE: &str = "it was withdrawn before and does not start again";

/// Reason for waiting of an order that the agent stops at its end, to be continued at its next start.
const SHUTDOWN_REASON: &str = "the agent shuts down";

/// Reason for waiting of an order whose ticket from before a restart is valid.
const ADMITTED_REASON: &str = "its ticket from before the restart is valid";

/// Source of the progress of an order, which takes the entries that its second argument accepts.
pub type ProgressSource<'a> =
    dyn FnMut(OrderId, &mut dyn FnMut(&ListedFile) -> bool) -> WorkProgress + 'a;

/// Settings in force: those of the controller, within the safe rate once the lease has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveSettings {
    /// Rate limit in bits per second; none for no limit.
    pub rate_bps: Option<u64>,
    /// Number of streams; none for the default of the host.
    pub streams: Option<u16>,
    /// Address pairs that the streams use; empty for any.
    pub path: Vec<AddressPair>,
}

/// Consequences of an instruction for the work of the orders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstructionEffects {
    /// Orders that are withdrawn now: their work stops.
    pub withdrawn: Vec<OrderId>,
    /// Orders with the number before which their entries are acknowledged.
    pub entries: Vec<(OrderId, u64)>,
    /// Orders whose end is acknowledged: their work is dropped.
    pub ends: Vec<OrderId>,
    /// Orders to fetch and to begin, within the limits.
    pub fetch: Vec<OrderId>,
}

/// Counts of the orders by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OrderCounts {
    /// Orders in the last instruction.
    pub listed: usize,
    /// Orders that wait to be sent.
    pub waiting: usize,
    /// Orders with a live transfer, listing or ticket.
    pub running: usize,
    /// Ended orders whose end the controller has not acknowledged.
    pub ended: usize,
    /// Outcomes and entries that the controller has not acknowledged.
    pub unacknowledged: usize,
}

/// The orders of an agent, with the lease of their rates.
#[derive(Debug)]
pub struct AgentOrders {
    listed: BTreeMap<OrderId, OrderSettings>,
    orders: BTreeMap<OrderId, AgentOrder>,
    /// Withdrawn orders, which never begin again, even if an instruction lists them.
    withdrawn: WithdrawnOrders,
    /// Orders whose tickets from before a restart are valid, although nothing of them has begun since.
    admitted: BTreeSet<OrderId>,
    lease: RateLease,
    is_stopping: bool,
    /// Set when the next report is due at once.
    is_urgent: bool,
    /// Order with which the next report begins, so that truncation delays none for long.
    next: OrderId,
}

impl AgentOrders {
    /// Creates the state of an agent that has just started.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            listed: BTreeMap::new(),
            orders: BTreeMap::new(),
            withdrawn: WithdrawnOrders::default(),
            admitted: BTreeSet::new(),
            lease: RateLease::new(now),
            is_stopping: false,
            is_urgent: false,
            next: OrderId::default(),
        }
    }

    /// Applies an instruction, which renews the lease.
    pub fn apply_instructions(
        &mut self,
        instructions: Instructions,
        now: Instant,
    ) -> InstructionEffects {
        let mut effects = InstructionEffects::default();
        let active = instructions.orders.into_iter().take(LISTED_ORDERS_MAX);
        self.listed = active.map(|one| (one.order, one.settings)).collect();
        self.lease.renew(instructions.lease_seconds, now);
        for acknowledged in &instructions.acknowledged {
            let Some(order) = self.orders.get_mut(&acknowledged.order) else { continue };
            if order.run() != acknowledged.run {
                continue;
            }
            order.outcomes.acknowledge(acknowledged.outcomes);
            effects.entries.push((acknowledged.order, acknowledged.entries));
            if acknowledged.end && order.acknowledge_end() {
                effects.ends.push(acknowledged.order);
            }
        }
        for (id, order) in &mut self.orders {
            if !self.listed.contains_key(id) && order.withdraw() {
                effects.withdrawn.push(*id);
                self.withdrawn.insert(*id);
                self.is_urgent = true;
            }
        }
        let listed = &self.listed;
        self.orders.retain(|id, order| listed.contains_key(id) || !order.expire(now));
        let mut room = EXECUTIONS_MAX.saturating_sub(self.orders.len());
        let bytes: usize = self.orders.values().map(AgentOrder::bytes).sum();
        if self.is_stopping || bytes >= EXECUTION_BYTES_MAX {
            room = 0;
        }
        let new = self.listed.keys().filter(|id| self.is_new(**id));
        effects.fetch = new.take(room).copied().collect();
        effects
    }

    fn is_new(&self, id: OrderId) -> bool {
        !self.orders.contains_key(&id) && !self.withdrawn.contains(id)
    }

    /// True if the last instruction lists an order.
    #[must_use]
    pub fn is_listed(&self, id: OrderId) -> bool {
        self.listed.contains_key(&id)
    }

    /// Notes that the ticket of an order from before a restart is valid. Reports name the order from now on, as senders
    /// may use the ticket.
    pub fn note_admitted(&mut self, id: OrderId) {
        self.admitted.insert(id);
    }

    /// Notes that an order that is not executed here is withdrawn: one with a ticket from before a restart.
    pub fn note_withdrawn(&mut self, id: OrderId) {
        self.admitted.remove(&id);
        self.withdrawn.insert(id);
    }

    /// Begins a fetched order of `bytes` bytes, which waits. `random` differs from that of its earlier runs. Returns none
    /// if it was withdrawn or begun during the fetch, or the agent shuts down.
    pub fn begin(
        &mut self,
        id: OrderId,
        request: &str,
        bytes: usize,
        random: u64,
    ) -> Option<&mut AgentOrder> {
        if !self.is_listed(id) || !self.is_new(id) || self.is_stopping {
            return None;
        }
        self.is_urgent = true;
        self.admitted.remove(&id);
        Some(self.orders.entry(id).or_insert_with(|| AgentOrder::new(request, bytes, random)))
    }

    /// Returns an order that is executed.
    #[must_use]
    pub fn get(&self, id: OrderId) -> Option<&AgentOrder> {
        self.orders.get(&id)
    }

    /// Returns an order that is executed, to note events of its work.
    pub fn get_mut(&mut self, id: OrderId) -> Option<&mut AgentOrder> {
        self.orders.get_mut(&id)
    }

    /// Returns the settings of an order in force. `safe_rate_bps` bounds its rate while the lease is expired.
    #[must_use]
    pub fn settings(&self, id: OrderId, safe_rate_bps: u64) -> EffectiveSettings {
        let OrderSettings { mut rate_bps, streams, path } =
            self.listed.get(&id).cloned().unwrap_or_default();
        if self.lease.is_expired() {
            rate_bps = Some(rate_bps.map_or(safe_rate_bps, |rate| rate.min(safe_rate_bps)));
        }
        EffectiveSettings { rate_bps, streams, path }
    }

    /// Checks the lease. Returns true, once, when it expires.
    pub fn expire_lease(&mut self, now: Instant) -> bool {
        self.lease.expire(now)
    }

    /// True while the lease is expired.
    #[must_use]
    pub fn is_lease_expired(&self) -> bool {
        self.lease.is_expired()
    }

    /// Requests a report at once.
    pub fn request_report(&mut self) {
        self.is_urgent = true;
    }

    /// Returns true, once, if a report is due at once.
    pub fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.is_urgent)
    }

    /// Begins no more orders: the agent shuts down.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Reports all orders within the limits of one report.
    pub fn report(&mut self, progress: &mut ProgressSource<'_>) -> Vec<OrderReport> {
        let mut budget = ReportBudget::new();
        let in_turn = self.orders.range(self.next..).chain(self.orders.range(..self.next));
        let mut full = None;
        let mut reports: Vec<OrderReport> = Vec::with_capacity(self.orders.len());
        for (id, order) in in_turn {
            let had_room = budget.is_left();
            let mut report = order.report(*id, &mut budget, progress);
            if order.is_withdrawn() && self.listed.contains_key(id) {
                // Listed again: another order may succeed, so the fault is transient.
                let transient = |fault| OrderFault { kind: FaultKind::Transient, ..fault };
                report.fault = report.fault.map(transient);
            }
            reports.push(report);
            if had_room && !budget.is_left() {
                full = Some(*id);
            }
        }
        let admitted = self.admitted.iter().filter(|id| !self.orders.contains_key(id));
        reports.extend(admitted.map(|id| report_admitted(*id)));
        let is_unseen =
            |id: &&OrderId| !self.orders.contains_key(id) && !self.admitted.contains(id);
        let unseen = self.listed.keys().filter(is_unseen);
        reports.extend(unseen.take(REPORTED_WAITING_MAX).map(|id| self.report_unseen(*id)));
        reports.sort_by_key(|report| report.order);
        // The next report begins with the truncated order.
        self.next = full.unwrap_or_default();
        reports
    }

    /// Reports an order that is listed and not executed.
    fn report_unseen(&self, id: OrderId) -> OrderReport {
        let report = OrderReport { order: id, ..OrderReport::default() };
        if self.withdrawn.contains(id) {
            let text = WITHDRAWN_BEFORE.to_owned();
            let fault = Some(OrderFault { kind: FaultKind::Transient, text });
            return OrderReport { phase: OrderPhase::Ended, fault, ..report };
        }
        let waiting = format!("the node executes {} other orders", self.orders.len());
        OrderReport { waiting: Some(waiting), ..report }
    }

    /// Reports for the last time: stopped orders are reported as waiting for the next start.
    pub fn last_report(&mut self, progress: &mut ProgressSource<'_>) -> Vec<OrderReport> {
        let mut reports = self.report(progress);
        for report in &mut reports {
            let is_stopped = |fault: &OrderFault| fault.kind == FaultKind::Cancelled;
            if self.withdrawn.contains(report.order) {
                continue;
            }
            if report.phase == OrderPhase::Ended && report.fault.as_ref().is_some_and(is_stopped) {
                report.phase = OrderPhase::Waiting;
                report.fault = None;
                report.waiting = Some(SHUTDOWN_REASON.to_owned());
            }
        }
        reports
    }

    /// Counts the orders by phase, without the entries of listings.
    #[must_use]
    pub fn counts(&self) -> OrderCounts {
        let mut counts = OrderCounts { listed: self.listed.len(), ..OrderCounts::default() };
        for order in self.orders.values() {
            match order.state() {
                order::OrderState::EndAcknowledged => {}
                state => match state.phase() {
                    OrderPhase::Waiting => counts.waiting += 1,
                    OrderPhase::Running => counts.running += 1,
                    OrderPhase::Ended => counts.ended += 1,
                },
            }
            counts.unacknowledged += order.outcomes.pending_count();
        }
        counts
    }
}

/// Reports an order that has not begun since the restart, and whose ticket is valid.
fn report_admitted(id: OrderId) -> OrderReport {
    let waiting = Some(ADMITTED_REASON.to_owned());
    OrderReport { order: id, waiting, ..OrderReport::default() }
}
