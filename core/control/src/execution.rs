//! The life of an order at the agent that carries it out, as a state machine without I/O.
//!
//! ```text
//!             Started                Completed
//!  ┌─────────┐ ─────► ┌────────┐ ──────────────► ┌───────┐
//!  │ Waiting │        │ Active │                 │ Ended │
//!  └─────────┘ ◄───── └────────┘                 └───────┘
//!       │   AttemptFailed  │  Stop                   ▲
//!       │                  ▼                         │
//!       │            ┌──────────┐ AttemptFailed,     │
//!       │            │ Stopping │ ───────────────────┤
//!       │            └──────────┘ Completed          │
//!       └────────────────── Stop ────────────────────┘
//! ```
//!
//! Invariant: after [`ExecutionEvent::Stop`] no sequence of events makes [`ExecutionState::may_start`] true again. A
//! connection that fails, hangs or comes back, a report that is lost and an instruction that arrives twice are events
//! like any other. [`WithdrawnOrders`] keeps the same promise for orders whose execution is gone.

use std::collections::BTreeSet;

use crate::orders::OrderId;

/// State of an order at its agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ExecutionState {
    /// Nothing of the order is live; an attempt may start.
    #[default]
    Waiting,
    /// A transfer, a listing or a ticket of the order is live.
    Active,
    /// The order is stopped and its last transfer has not ended.
    Stopping,
    /// Nothing of the order is live, and nothing of it starts again.
    Ended,
}

/// Something that happens to an order at its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecutionEvent {
    /// An attempt has started.
    Started,
    /// The attempt has ended, and another one may succeed.
    AttemptFailed,
    /// The attempt has ended, and no other is needed or useful.
    Completed,
    /// The controller has withdrawn the order, or the agent shuts down.
    Stop,
}

impl ExecutionState {
    /// Returns the state after an event.
    #[must_use]
    pub fn transition(self, event: ExecutionEvent) -> Self {
        use ExecutionEvent::{AttemptFailed, Completed, Started, Stop};
        match (self, event) {
            (Self::Waiting, Started) => Self::Active,
            (Self::Waiting, AttemptFailed) => Self::Waiting,
            (Self::Waiting, Completed | Stop) => Self::Ended,
            (Self::Active, Started) => Self::Active,
            (Self::Active, AttemptFailed) => Self::Waiting,
            (Self::Active, Completed) => Self::Ended,
            (Self::Active, Stop) => Self::Stopping,
            (Self::Stopping, Started | Stop) => Self::Stopping,
            (Self::Stopping, AttemptFailed | Completed) | (Self::Ended, _) => Self::Ended,
        }
    }

    /// True if an attempt may start.
    #[must_use]
    pub fn may_start(self) -> bool {
        self == Self::Waiting
    }

    /// True if the order was stopped or has ended.
    #[must_use]
    pub fn is_stopped(self) -> bool {
        matches!(self, Self::Stopping | Self::Ended)
    }
}

/// Orders that were withdrawn: an instruction that arrives late and lists one of them starts nothing.
///
/// The controller numbers orders upwards and never gives a number again, so that of too many the smallest are dropped.
#[derive(Debug, Clone, Default)]
pub struct WithdrawnOrders(BTreeSet<OrderId>);

impl WithdrawnOrders {
    /// Numbers that are kept: the orders of some hours at a busy agent, in half a mebibyte.
    pub const ORDERS_MAX: usize = 20_000;

    /// Adds an order; drops the smallest number beyond [`Self::ORDERS_MAX`].
    pub fn insert(&mut self, order: OrderId) {
        self.0.insert(order);
        while self.0.len() > Self::ORDERS_MAX {
            self.0.pop_first();
        }
    }

    /// True if the order was withdrawn.
    #[must_use]
    pub fn contains(&self, order: OrderId) -> bool {
        self.0.contains(&order)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: [ExecutionEvent; 4] = [
        ExecutionEvent::Started,
        ExecutionEvent::AttemptFailed,
        ExecutionEvent::Completed,
        ExecutionEvent::Stop,
    ];

    #[test]
    fn attempts_repeat_until_completion() {
        use ExecutionEvent::{AttemptFailed, Completed, Started};
        let state = [Started, AttemptFailed, Started, AttemptFailed]
            .into_iter()
            .fold(ExecutionState::default(), ExecutionState::transition);
        assert!(state.may_start());
        let state = [Started, Completed].into_iter().fold(state, ExecutionState::transition);
        assert_eq!(state, ExecutionState::Ended);
    }

    #[test]
    fn withdrawn_orders_are_bounded() {
        let mut withdrawn = WithdrawnOrders::default();
        (0..30_000).for_each(|number| withdrawn.insert(OrderId::from(number)));
        assert_eq!(withdrawn.0.len(), WithdrawnOrders::ORDERS_MAX);
        assert!(withdrawn.contains(OrderId::from(29_999)) && !withdrawn.contains(OrderId::from(0)));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn stopped_orders_never_start(
            before in prop::collection::vec(0..4_usize, 0..20),
            after in prop::collection::vec(0..4_usize, 0..40),
        ) {
            let apply = |state, event: usize| ExecutionState::transition(state, EVENTS[event]);
            let stopped = before.into_iter().fold(ExecutionState::default(), apply);
            let mut state = stopped.transition(ExecutionEvent::Stop);
            for event in after {
                prop_assert!(!state.may_start() && state.is_stopped(), "{state:?}");
                let next = apply(state, event);
                // What has ended stays so, and what stops does not come to life.
                prop_assert!(next == state || (state, next) == (ExecutionState::Stopping, ExecutionState::Ended));
                state = next;
            }
        }
    }
}
