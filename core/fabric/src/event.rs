//! Events of the simulation: a time, a kind and the entity that acts; all other state belongs to the entity.
//!
//! Events of one time are ordered by kind and entity, never by their insertion. An entity has at most one pending event of
//! a kind, so this order is total. Each region numbers its entities in the order of the whole run, so the order of its
//! events does not depend on the other regions.

/// Kinds of events, in the order in which those of one time are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A pause frame reaches the far end of a port's link.
    PauseArrives,
    /// A pause that holds a port's priority up may have expired, or its watchdog looks.
    PauseTimer,
    /// A pause that a switch asked for has to be told again.
    PauseRefresh,
    /// A port has sent the last bit of a packet.
    Sent,
    /// A packet reaches the far end of a port's link.
    Arrives,
    /// A sender may send again.
    Paced,
    /// A sender looks whether it waited too long for an acknowledgement.
    Timeout,
    /// A reader looks whether it waited too long for what it asked for.
    AskTimeout,
    /// The next flow begins.
    Starts,
    /// Queues are looked at.
    Samples,
    /// Links, switches and hosts change, which concerns all regions.
    TopologyChange,
    /// Pauses of all regions are looked at, whether they wait for each other.
    DeadlockScan,
}

const KINDS: [Kind; 12] = [
    Kind::PauseArrives,
    Kind::PauseTimer,
    Kind::PauseRefresh,
    Kind::Sent,
    Kind::Arrives,
    Kind::Paced,
    Kind::Timeout,
    Kind::AskTimeout,
    Kind::Starts,
    Kind::Samples,
    Kind::TopologyChange,
    Kind::DeadlockScan,
];

/// A time, a kind and an entity, as one number that sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event(u128);

impl Event {
    pub(crate) const fn new(time_ps: u64, kind: Kind, entity: u32) -> Self {
        Self((time_ps as u128) << 64 | (kind as u128) << 32 | entity as u128)
    }

    /// Returns the time of the event in picoseconds.
    pub(crate) const fn time_ps(self) -> u64 {
        (self.0 >> 64) as u64
    }

    pub(crate) const fn kind(self) -> Kind {
        KINDS[(self.0 >> 32) as u8 as usize]
    }

    pub(crate) const fn entity(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_sort_by_time_kind_entity() {
        for (number, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            let event = Event::new(u64::MAX - 1, kind, u32::MAX);
            assert_eq!(
                (event.time_ps(), event.kind(), event.entity()),
                (u64::MAX - 1, kind, u32::MAX)
            );
        }
        let sorted = [
            Event::new(1, Kind::Samples, 9),
            Event::new(2, Kind::Sent, 8),
            Event::new(2, Kind::Arrives, 1),
            Event::new(2, Kind::Arrives, 2),
        ];
        assert!(sorted.is_sorted());
    }
}
