//! Events of the simulation: a time, a kind and the entity that handles it; all other state belongs to the entity.
//!
//! Simultaneous events are ordered by kind and entity, never by insertion. An entity has at most one pending event of
//! a kind, so this order is total. Each region numbers its entities in the order of the whole network, so the order of
//! its events does not depend on the other regions.

/// Event kinds, in the order in which simultaneous events are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum SimEventKind {
    /// A PFC frame takes effect at the far end of a port's link.
    PauseArrival,
    /// The quanta of a PFC pause expire, or the PFC watchdog checks a queue.
    PauseTimer,
    /// A switch repeats a PFC pause before its quanta expire.
    PauseRefresh,
    /// A port has transmitted the last bit of a frame.
    TransmitDone,
    /// A packet arrives at the far end of a port's link.
    Arrival,
    /// The pacing gap of a sender has elapsed.
    PacingDone,
    /// The retransmission timer of a sender expires.
    Timeout,
    /// The timer of a requester that waits for read responses expires.
    ReadTimeout,
    /// The next flow of the region starts.
    FlowStart,
    /// The region samples the queues of its switches.
    QueueSample,
    /// A link, switch or host fails or recovers; the coordinator handles it for all regions.
    TopologyChange,
    /// The coordinator searches the paused queues of all regions for cyclic waits.
    DeadlockScan,
}

const KINDS: [SimEventKind; 12] = [
    SimEventKind::PauseArrival,
    SimEventKind::PauseTimer,
    SimEventKind::PauseRefresh,
    SimEventKind::TransmitDone,
    SimEventKind::Arrival,
    SimEventKind::PacingDone,
    SimEventKind::Timeout,
    SimEventKind::ReadTimeout,
    SimEventKind::FlowStart,
    SimEventKind::QueueSample,
    SimEventKind::TopologyChange,
    SimEventKind::DeadlockScan,
];

/// Event packed into one integer that sorts by time, kind and entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SimEvent(u128);

impl SimEvent {
    pub(crate) const fn new(time_ps: u64, kind: SimEventKind, entity: u32) -> Self {
        Self((time_ps as u128) << 64 | (kind as u128) << 32 | entity as u128)
    }

    /// Returns the time of the event in picoseconds.
    pub(crate) const fn time_ps(self) -> u64 {
        (self.0 >> 64) as u64
    }

    pub(crate) const fn kind(self) -> SimEventKind {
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
            let event = SimEvent::new(u64::MAX - 1, kind, u32::MAX);
            assert_eq!(
                (event.time_ps(), event.kind(), event.entity()),
                (u64::MAX - 1, kind, u32::MAX)
            );
        }
        let sorted = [
            SimEvent::new(1, SimEventKind::QueueSample, 9),
            SimEvent::new(2, SimEventKind::TransmitDone, 8),
            SimEvent::new(2, SimEventKind::Arrival, 1),
            SimEvent::new(2, SimEventKind::Arrival, 2),
        ];
        assert!(sorted.is_sorted());
    }
}
