//! States of runs. A run is an attempt at batches of one queue, with an order at each end.

use crate::numbers::stored_numbers;

/// State of a run; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunState {
    /// Its orders are active at the nodes.
    Active = 0,
    /// Its orders are withdrawn, but the nodes have not confirmed that they stopped.
    Revoking = 1,
    /// All its batches are settled or requeued.
    Ended = 2,
}

stored_numbers!(RunState);

/// Event of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunEvent {
    /// The controller withdraws its orders.
    Withdrawn,
    /// Its nodes report the end or confirm the stop, or its hosts are lost.
    Ended,
}

impl RunState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Active, Self::Revoking, Self::Ended];

    /// Returns the state after an event; none if the event is not possible in this state.
    #[must_use]
    pub const fn transition(self, event: RunEvent) -> Option<Self> {
        match (self, event) {
            (Self::Active, RunEvent::Withdrawn) => Some(Self::Revoking),
            (Self::Active | Self::Revoking, RunEvent::Ended) => Some(Self::Ended),
            (Self::Revoking | Self::Ended, RunEvent::Withdrawn)
            | (Self::Ended, RunEvent::Ended) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_transitions_follow_table() {
        use RunState::{Active, Ended, Revoking};
        // Withdrawn, Ended
        for (state, after) in [
            (Active, [Some(Revoking), Some(Ended)]),
            (Revoking, [None, Some(Ended)]),
            (Ended, [None, None]),
        ] {
            let events = [RunEvent::Withdrawn, RunEvent::Ended];
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
    }
}
