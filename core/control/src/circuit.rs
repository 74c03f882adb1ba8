//! States of the circuits of reservations.

use crate::numbers::stored_numbers;

/// State of a circuit; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CircuitState {
    /// Its start time has not come.
    Booked = 0,
    /// Established in the network.
    Up = 1,
    /// Failed or not yet established; retried.
    Broken = 2,
    /// Ended, and released in the network.
    Released = 3,
}

stored_numbers!(CircuitState);

/// Event of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CircuitEvent {
    /// The provider established it, or moved it to other links.
    Established,
    /// An attempt to establish or to restore it failed.
    Failed,
    /// The provider released it at its end.
    Released,
}

impl CircuitState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Booked, Self::Up, Self::Broken, Self::Released];

    /// Returns the state after an event; none if the circuit is released.
    #[must_use]
    pub const fn transition(self, event: CircuitEvent) -> Option<Self> {
        match (self, event) {
            (Self::Released, _) => None,
            (_, CircuitEvent::Established) => Some(Self::Up),
            (_, CircuitEvent::Failed) => Some(Self::Broken),
            (_, CircuitEvent::Released) => Some(Self::Released),
        }
    }

    /// Returns the name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Booked => "booked",
            Self::Up => "up",
            Self::Broken => "broken",
            Self::Released => "released",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circuit_transitions_follow_table() {
        use CircuitState::{Booked, Broken, Released, Up};
        // Established, Failed, Released
        let live = [Some(Up), Some(Broken), Some(Released)];
        for (state, after) in [(Booked, live), (Up, live), (Broken, live), (Released, [None; 3])] {
            let events = [CircuitEvent::Established, CircuitEvent::Failed, CircuitEvent::Released];
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
    }
}
