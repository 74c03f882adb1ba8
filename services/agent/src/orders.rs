//! Executes the orders of the controller.
//!
//! For: taking instructions ([`OrderExecutor::apply_instructions`]), starting orders
//! ([`OrderExecutor::begin`]), executing them step by step with the mover ([`OrderExecutor::advance`]), and
//! reporting ([`OrderExecutor::report`]). The states of orders, the lease and the contents of reports are decided by
//! [`penstock_control::agent`]; this module does the work. Not for: the connection to the controller
//! ([`crate::controller`]).
//!
//! Executions use the mover through [`TransferEngine`], and callers pass the present time, so that a simulation runs
//! this code with simulated hosts in virtual time.
//!
//! Orders, the bytes of their lists and the size of a report are bounded; an order beyond a bound waits. The
//! controller can do nothing beyond the exports that admit `controller`, the agent's limits and
//! `third_party.to`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use penstock_control::agent::{
    AgentOrder, AgentOrders, EffectiveSettings, LISTED_ORDERS_MAX, OrderCounts, WITHDRAWN_REASON,
    WorkProgress, withdrawn_fault,
};
use penstock_control::orders::{
    ENTRIES_MAX, Instructions, ListedFile, Order, OrderFault, OrderId, OrderReport, OrderTask,
};

pub use engine::{EngineTransfer, FileListing, OrderPathError, TransferEngine, TransferRequest};
pub use faults::FailureAction;
use faults::permanent;
pub use local::LocalEngine;
use sending::{SendExecution, SendStep};
use tickets::TicketStore;

mod engine;
pub(crate) mod faults;
mod listing;
mod local;
mod sending;
mod tickets;

/// Executes the orders of this node.
#[derive(Debug)]
pub struct OrderExecutor {
    engine: Arc<dyn TransferEngine>,
    safe_rate_bps: u64,
    inner: Mutex<OrderTable>,
}

#[derive(Debug)]
struct OrderTable {
    orders: AgentOrders,
    /// Live transfers and listings, and listings with unacknowledged entries.
    works: BTreeMap<OrderId, OrderWork>,
    tickets: TicketStore,
}

/// Work of an order.
#[derive(Debug)]
enum OrderWork {
    Receive,
    Send(Box<SendExecution>),
    List(Box<dyn FileListing>),
}

impl OrderExecutor {
    /// Creates an executor without orders; tickets from before a restart are valid again.
    #[must_use]
    pub fn new(engine: Arc<dyn TransferEngine>, safe_rate_bps: u64, now: Instant) -> Self {
        let tickets = TicketStore::open(&*engine);
        let mut orders = AgentOrders::new(now);
        tickets.orders().for_each(|id| orders.note_admitted(id));
        let inner = OrderTable { orders, works: BTreeMap::new(), tickets };
        Self { engine, safe_rate_bps, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, OrderTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an instruction, which renews the lease; returns the orders to fetch and [`OrderExecutor::begin`], within
    /// the limits.
    pub fn apply_instructions(&self, instructions: Instructions, now: Instant) -> Vec<OrderId> {
        let mut inner = self.lock();
        let OrderTable { orders, works, tickets } = &mut *inner;
        let many = instructions.orders.len();
        if many > LISTED_ORDERS_MAX {
            tracing::warn!(
                "the controller lists {many} orders: only the first {LISTED_ORDERS_MAX} are read"
            );
        }
        let effects = orders.apply_instructions(instructions, now);
        for (id, entries) in effects.entries {
            if let Some(OrderWork::List(listing)) = works.get(&id) {
                listing.acknowledge(entries);
                if listing.pending_count() >= ENTRIES_MAX {
                    orders.request_report();
                }
            }
        }
        for id in effects.ends {
            works.remove(&id);
        }
        let stale: Vec<OrderId> = tickets.orders().filter(|id| !orders.is_listed(*id)).collect();
        for id in stale {
            orders.note_withdrawn(id);
            tickets.revoke(&*self.engine, id);
            self.engine.end_sessions(id, WITHDRAWN_REASON);
        }
        for id in effects.withdrawn {
            let Some(order) = orders.get_mut(id) else { continue };
            tracing::info!("order {id} of {}: withdrawn", order.request());
            match works.get_mut(&id) {
                Some(OrderWork::Send(work)) => work.stop(WITHDRAWN_REASON, now),
                Some(OrderWork::Receive | OrderWork::List(_)) if !order.state().is_ended() => {
                    order.end(Some(withdrawn_fault()));
                    works.remove(&id);
                }
                _ => {}
            }
        }
        works.retain(|id, _| orders.get(*id).is_some());
        effects.fetch
    }

    /// Begins a fetched order of `bytes` bytes.
    pub fn begin(&self, order: Order, bytes: usize, now: Instant) {
        let id = order.order;
        let mut inner = self.lock();
        let OrderTable { orders, works, tickets } = &mut *inner;
        let random = self.engine.random();
        let Some(state) = orders.begin(id, &order.request, bytes, random) else { return };
        let begun = match order.task {
            OrderTask::Receive { ticket, below } => tickets
                .grant(&*self.engine, id, &ticket, &below)
                .map(|()| OrderWork::Receive)
                .map_err(|refusal| permanent(refusal.text)),
            OrderTask::List { path } => self.engine.list(&path).map(OrderWork::List),
            OrderTask::Send(send) => SendExecution::begin(id, *send, &mut state.outcomes, now)
                .map(|work| OrderWork::Send(Box::new(work))),
        };
        match begun {
            Ok(work) => {
                if matches!(work, OrderWork::Receive | OrderWork::List(_)) {
                    state.start();
                }
                works.insert(id, work);
                tracing::info!("order {id} of {}: begun", state.request());
            }
            Err(fault) => end(id, state, Some(fault)),
        }
    }

    /// Advances every execution by a step; blocks only for moments.
    pub fn advance(&self, now: Instant) {
        let mut inner = self.lock();
        let OrderTable { orders, works, .. } = &mut *inner;
        let mut has_changed = false;
        works.retain(|id, work| {
            let settings = orders.settings(*id, self.safe_rate_bps);
            let Some(order) = orders.get_mut(*id) else { return false };
            let before = order.state().phase();
            let is_kept = work.advance(*id, order, &*self.engine, &settings, now);
            has_changed |= order.state().phase() != before;
            is_kept
        });
        if has_changed {
            orders.request_report();
        }
    }

    /// Checks the lease: once it has expired without an answer of the controller, every transfer is limited to the safe
    /// rate.
    pub fn expire_lease(&self, now: Instant) {
        self.lock().orders.expire_lease(now);
    }

    /// True while the lease is expired.
    #[must_use]
    pub fn is_lease_expired(&self) -> bool {
        self.lock().orders.is_lease_expired()
    }

    /// Returns true, once, if a report is due at once.
    #[must_use]
    pub fn take_urgent(&self) -> bool {
        self.lock().orders.take_urgent()
    }

    /// Reports all orders within the limits of one report.
    #[must_use]
    pub fn report(&self) -> Vec<OrderReport> {
        let mut inner = self.lock();
        let OrderTable { orders, works, .. } = &mut *inner;
        orders.report(&mut |id, fits| progress(works, id, fits))
    }

    /// Counts the orders by phase.
    #[must_use]
    pub fn counts(&self) -> OrderCounts {
        let inner = self.lock();
        let mut counts = inner.orders.counts();
        for work in inner.works.values() {
            if let OrderWork::List(listing) = work {
                counts.unacknowledged += listing.pending_count();
            }
        }
        counts
    }

    /// Stops sending, so that the same orders continue after the next start.
    pub fn stop(&self, now: Instant) {
        let mut inner = self.lock();
        inner.orders.stop();
        for work in inner.works.values_mut() {
            if let OrderWork::Send(work) = work {
                work.stop("the agent shuts down", now);
            }
        }
    }

    /// Returns true once no order sends.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.lock().works.values().all(|work| !matches!(work, OrderWork::Send(_)))
    }

    /// The final report: stopped orders are reported as waiting for the next start.
    #[must_use]
    pub fn last_report(&self) -> Vec<OrderReport> {
        let mut inner = self.lock();
        let OrderTable { orders, works, .. } = &mut *inner;
        orders.last_report(&mut |id, fits| progress(works, id, fits))
    }
}

impl OrderWork {
    /// Advances the work by a step. Returns false once it is over and need not be kept.
    fn advance(
        &mut self,
        id: OrderId,
        order: &mut AgentOrder,
        engine: &dyn TransferEngine,
        settings: &EffectiveSettings,
        now: Instant,
    ) -> bool {
        match self {
            Self::Receive => {}
            // Kept after its end: its entries may wait for their acknowledgement.
            Self::List(listing) => {
                if let Some(fault) = listing.ended().filter(|_| !order.state().is_ended()) {
                    end(id, order, fault);
                }
            }
            Self::Send(work) => {
                let step = work.step(engine, settings, &mut order.outcomes, now);
                let (totals, last) = work.progress();
                (order.moved_bytes, order.retransmits) = (totals.moved_bytes, totals.retransmits);
                last.transport.clone_into(&mut order.transport);
                order.transport_reason.clone_from(&last.transport_reason);
                match step {
                    SendStep::Waiting(reason) => order.pause(reason),
                    SendStep::Running => order.start(),
                    SendStep::Ended(fault) => {
                        let withdrawn = || order.is_withdrawn().then(withdrawn_fault);
                        let fault = fault.or_else(withdrawn);
                        end(id, order, fault);
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// Ends an order and logs its end.
fn end(id: OrderId, order: &mut AgentOrder, fault: Option<OrderFault>) {
    match &fault {
        Some(fault) => tracing::info!("order {id} of {}: ended: {}", order.request(), fault.text),
        None => tracing::info!("order {id} of {}: done", order.request()),
    }
    order.end(fault);
}

/// Returns the progress of the work of an order, with the entries of a listing that fit.
fn progress(
    works: &BTreeMap<OrderId, OrderWork>,
    id: OrderId,
    fits: &mut dyn FnMut(&ListedFile) -> bool,
) -> WorkProgress {
    match works.get(&id) {
        Some(OrderWork::List(listing)) => {
            let (entries_from, entries) = listing.pending(fits);
            let entries_pending = listing.pending_count();
            WorkProgress { entries_from, entries, entries_pending, ..WorkProgress::default() }
        }
        Some(OrderWork::Send(work)) => {
            let (_, snapshot) = work.progress();
            WorkProgress {
                bits_per_second: snapshot.bits_per_second,
                rate_bps: snapshot.rate_bps,
                streams: snapshot.streams,
                path_forecast: work.forecast(),
                bound_by: match snapshot.bound_by {
                    "rate limit" => "rate".to_owned(),
                    other => other.to_owned(),
                },
                label: snapshot.label.clone(),
                ..WorkProgress::default()
            }
        }
        Some(OrderWork::Receive) | None => WorkProgress::default(),
    }
}
