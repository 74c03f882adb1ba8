//! State of one order at its agent.
//!
//! ```text
//!               Started                      Ended
//!  ┌─────────┐ ─────────► ┌─────────┐ ───────────────────► ┌───────┐ EndAcknowledged ┌──────────────┐
//!  │ Waiting │            │ Running │                      │ Ended │ ──────────────► │     End      │
//!  └─────────┘ ◄───────── └─────────┘                      └───────┘                 │ acknowledged │
//!       │       Paused         │                               ▲                     └──────────────┘
//!       │                      │ Withdrawn   ┌──────────┐      │
//!       └──────────────────────┴───────────► │ Stopping │ ─────┘
//!                                            └──────────┘ Ended
//! ```
//!
//! An order of any state but the last two may end, and one of any state may be withdrawn. [`OrderState`] is what the
//! controller and the agent agree on; the attempts of a transfer have a machine of their own ([`crate::execution`]).

use std::time::{Duration, Instant};

use super::outbox::Outbox;
use super::report::{ReportBudget, WorkProgress};
use crate::orders::{FaultKind, OrderFault, OrderId, OrderPhase, OrderReport, ReportedOutcome};

/// Time for which the end of a withdrawn order is reported to a controller that does not acknowledge it.
pub const WITHDRAWN_REPORT_TIME: Duration = Duration::from_secs(60);

/// Longest name of a request in logs.
const REQUEST_CHARS_MAX: usize = 100;

/// Reason for the end of a withdrawn order.
pub const WITHDRAWN_REASON: &str = "the controller has withdrawn its order";

/// State of an order at its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderState {
    /// Nothing of it is live: it has not started, or waits for another attempt.
    Waiting,
    /// A transfer, a listing or a ticket of it is live.
    Running,
    /// Withdrawn, and not ended.
    Stopping {
        /// True while its transfer is live.
        is_running: bool,
    },
    /// Ended; each report has the end until the controller acknowledges it.
    Ended,
    /// Ended, and the controller knows. Kept while it is listed, so that it does not start again.
    EndAcknowledged,
}

/// Event of an order at its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderEvent {
    /// A transfer, a listing or a ticket of it is live.
    Started,
    /// Nothing of it is live, but another attempt may follow.
    Paused,
    /// An instruction does not list it.
    Withdrawn,
    /// Nothing of it is live, and nothing follows.
    Ended,
    /// The controller has acknowledged its end.
    EndAcknowledged,
}

impl OrderState {
    /// Returns the state after an event; none if the event is not possible in this state, or a repetition that changes
    /// nothing.
    #[must_use]
    pub const fn transition(self, event: OrderEvent) -> Option<Self> {
        use OrderEvent as Event;
        match (self, event) {
            (Self::Waiting | Self::Running, Event::Started) => Some(Self::Running),
            (Self::Waiting | Self::Running, Event::Paused) => Some(Self::Waiting),
            (Self::Waiting, Event::Withdrawn) => Some(Self::Stopping { is_running: false }),
            (Self::Running, Event::Withdrawn) => Some(Self::Stopping { is_running: true }),
            (Self::Stopping { .. }, Event::Started) => Some(Self::Stopping { is_running: true }),
            (Self::Stopping { .. }, Event::Paused) => Some(Self::Stopping { is_running: false }),
            (Self::Waiting | Self::Running | Self::Stopping { .. }, Event::Ended) => {
                Some(Self::Ended)
            }
            (Self::Ended, Event::EndAcknowledged) => Some(Self::EndAcknowledged),
            // An end stays as it is when the order is withdrawn, and an end that is not reported cannot be acknowledged.
            (Self::Ended | Self::EndAcknowledged, Event::Withdrawn)
            | (Self::Stopping { .. }, Event::Withdrawn)
            | (
                Self::Waiting | Self::Running | Self::Stopping { .. } | Self::EndAcknowledged,
                Event::EndAcknowledged,
            )
            | (
                Self::Ended | Self::EndAcknowledged,
                Event::Started | Event::Paused | Event::Ended,
            ) => None,
        }
    }

    /// Returns the phase in reports.
    #[must_use]
    pub const fn phase(self) -> OrderPhase {
        match self {
            Self::Waiting | Self::Stopping { is_running: false } => OrderPhase::Waiting,
            Self::Running | Self::Stopping { is_running: true } => OrderPhase::Running,
            Self::Ended | Self::EndAcknowledged => OrderPhase::Ended,
        }
    }

    /// True if it has ended.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Ended | Self::EndAcknowledged)
    }
}

/// An order that an agent executes: its state, and what the controller has not acknowledged.
#[derive(Debug)]
pub struct AgentOrder {
    run: u64,
    request: String,
    bytes: usize,
    state: OrderState,
    waiting: Option<String>,
    fault: Option<OrderFault>,
    is_withdrawn: bool,
    /// Time of the first instruction after the end of a withdrawn order.
    end_withdrawn: Option<Instant>,
    /// Outcomes of its files.
    pub outcomes: Outbox<ReportedOutcome>,
    /// File bytes that all its attempts transferred.
    pub moved_bytes: u64,
    /// TCP segments that its attempts retransmitted.
    pub retransmits: u64,
    /// Transport of its data streams so far; empty before the first.
    pub transport: String,
    /// Reason for this transport; empty where none was left to choose.
    pub transport_reason: String,
}

impl AgentOrder {
    /// Creates an order of `bytes` bytes that waits. `random` differs from that of its earlier runs.
    pub(super) fn new(request: &str, bytes: usize, random: u64) -> Self {
        let request = request.chars().filter(|c| !c.is_control()).take(REQUEST_CHARS_MAX);
        Self {
            // 53 bits, so that JSON numbers hold it.
            run: random >> 11 | 1,
            request: request.collect(),
            bytes,
            state: OrderState::Waiting,
            waiting: None,
            fault: None,
            is_withdrawn: false,
            end_withdrawn: None,
            outcomes: Outbox::default(),
            moved_bytes: 0,
            retransmits: 0,
            transport: String::new(),
            transport_reason: String::new(),
        }
    }

    /// Returns the name of its request, for logs.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.request
    }

    /// Returns its state after the last event.
    #[must_use]
    pub fn state(&self) -> OrderState {
        self.state
    }

    /// Returns its number of this start.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns its memory in bytes, as received.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True once an instruction did not list it.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    /// Applies an event; returns false if it is not possible or changes nothing.
    fn apply(&mut self, event: OrderEvent) -> bool {
        let next = self.state.transition(event);
        self.state = next.unwrap_or(self.state);
        next.is_some()
    }

    /// Notes that a transfer, a listing or a ticket is live.
    pub fn start(&mut self) {
        if self.apply(OrderEvent::Started) {
            self.waiting = None;
        }
    }

    /// Notes that nothing of it is live, and why.
    pub fn pause(&mut self, reason: String) {
        if self.apply(OrderEvent::Paused) {
            self.waiting = Some(reason);
        }
    }

    /// Notes its end: with a fault unless every file has its outcome. The first end counts.
    pub fn end(&mut self, fault: Option<OrderFault>) {
        if self.apply(OrderEvent::Ended) {
            (self.fault, self.waiting) = (fault, None);
        }
    }

    /// Returns the fault with which it ended.
    #[must_use]
    pub fn fault(&self) -> Option<&OrderFault> {
        self.fault.as_ref()
    }

    /// Notes that an instruction does not list it. Returns true the first time.
    pub(super) fn withdraw(&mut self) -> bool {
        if self.is_withdrawn {
            return false;
        }
        self.is_withdrawn = true;
        self.apply(OrderEvent::Withdrawn);
        true
    }

    /// Notes the acknowledgement of its end. Returns true if it has ended.
    pub(super) fn acknowledge_end(&mut self) -> bool {
        if !self.state.is_ended() {
            return false;
        }
        self.apply(OrderEvent::EndAcknowledged);
        // Kept, without its lists, while it is listed: it must not begin again.
        self.outcomes.clear();
        self.bytes = 0;
        true
    }

    /// Returns true if it need not be reported any more. To be called for each instruction that does not list it: the
    /// first one after its end begins the time for which the end is reported.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        match self.state {
            OrderState::EndAcknowledged => true,
            OrderState::Ended => {
                let since = *self.end_withdrawn.get_or_insert(now);
                now.duration_since(since) > WITHDRAWN_REPORT_TIME
            }
            OrderState::Waiting | OrderState::Running | OrderState::Stopping { .. } => false,
        }
    }

    /// Reports it within a budget. `progress` is called once, and may take entries from the budget.
    pub(super) fn report(
        &self,
        order: OrderId,
        budget: &mut ReportBudget,
        progress: &mut super::ProgressSource<'_>,
    ) -> OrderReport {
        let (outcomes_from, outcomes) =
            self.outcomes.pending(|outcome| budget.take_outcome(outcome));
        let withheld = self.outcomes.pending_count() - outcomes.len();
        let work: WorkProgress = progress(order, &mut |entry| budget.take_entry(entry));
        let withheld = withheld + work.entries_pending.saturating_sub(work.entries.len());
        let mut report = OrderReport {
            order,
            run: self.run,
            phase: self.state.phase(),
            waiting: self.waiting.clone(),
            fault: self.fault.clone(),
            moved_bytes: self.moved_bytes,
            bits_per_second: work.bits_per_second,
            rate_bps: work.rate_bps,
            streams: work.streams,
            retransmits: self.retransmits,
            path_forecast: work.path_forecast,
            bound_by: work.bound_by,
            label: work.label,
            transport: self.transport.clone(),
            transport_reason: self.transport_reason.clone(),
            outcomes_from,
            outcomes,
            entries_from: work.entries_from,
            entries: work.entries,
        };
        if withheld > 0 && report.phase == OrderPhase::Ended {
            // The end is reported together with the last outcome or entry.
            (report.phase, report.fault) = (OrderPhase::Running, None);
        }
        report
    }
}

/// Returns the fault of an order that the controller has withdrawn.
#[must_use]
pub fn withdrawn_fault() -> OrderFault {
    OrderFault { kind: FaultKind::Cancelled, text: WITHDRAWN_REASON.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_transitions_follow_table() {
        use OrderState::{EndAcknowledged, Ended, Running, Stopping, Waiting};
        let (live, idle) = (Stopping { is_running: true }, Stopping { is_running: false });
        // Started, Paused, Withdrawn, Ended, EndAcknowledged
        for (state, after) in [
            (Waiting, [Some(Running), Some(Waiting), Some(idle), Some(Ended), None]),
            (Running, [Some(Running), Some(Waiting), Some(live), Some(Ended), None]),
            (live, [Some(live), Some(idle), None, Some(Ended), None]),
            (idle, [Some(live), Some(idle), None, Some(Ended), None]),
            (Ended, [None, None, None, None, Some(EndAcknowledged)]),
            (EndAcknowledged, [None; 5]),
        ] {
            let events = [
                OrderEvent::Started,
                OrderEvent::Paused,
                OrderEvent::Withdrawn,
                OrderEvent::Ended,
                OrderEvent::EndAcknowledged,
            ];
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
    }

    #[test]
    fn first_end_of_order_counts() {
        let mut order = AgentOrder::new("r", 10, 1 << 20);
        order.start();
        order.end(Some(withdrawn_fault()));
        order.end(None);
        order.pause("it connects".to_owned());
        assert_eq!((order.state(), order.fault()), (OrderState::Ended, Some(&withdrawn_fault())));
        assert_eq!(order.waiting, None);
    }

    #[test]
    fn request_name_is_bounded() {
        let order = AgentOrder::new(&"a\nb".repeat(100), 0, 0);
        assert_eq!((order.request().len(), order.request().contains('\n')), (100, false));
        assert_eq!(order.run(), 1, "a run is never 0");
    }

    #[test]
    fn unacknowledged_end_expires_after_withdrawal() {
        let start = Instant::now();
        let mut order = AgentOrder::new("r", 10, 1);
        assert!(order.withdraw() && !order.withdraw());
        assert!(!order.expire(start), "it is stopping");
        let ended = start + 10 * WITHDRAWN_REPORT_TIME;
        order.end(None);
        assert!(!order.expire(ended), "the time begins with the first instruction after its end");
        assert!(!order.expire(ended + WITHDRAWN_REPORT_TIME));
        assert!(order.expire(ended + WITHDRAWN_REPORT_TIME + Duration::from_millis(1)));
        assert!(order.acknowledge_end() && order.expire(ended));
    }
}
