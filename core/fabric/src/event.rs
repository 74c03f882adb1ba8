//! Events of the simulation: a time, a kind, the entity that handles it, and the packet that arrives; all other state
//! belongs to the entity.
//!
//! Simultaneous events are ordered by kind and entity, never by insertion. An entity has at most one pending event of
//! a kind, so this order is total. Each region numbers its entities in the order of the whole network, so the order of
//! its events does not depend on the other regions.

use crate::packet::{NO_INDEX, PacketId};

/// Bits of an event's entity.
const ENTITY_BITS: u32 = 28;

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

/// Event packed into one integer that sorts by time, kind and entity. The lowest bits are the packet, which decides no
/// order: no two packets arrive from one port at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct SimEvent(u128);

impl SimEvent {
    /// Highest number of an entity.
    pub(crate) const ENTITY_MAX: u32 = (1 << ENTITY_BITS) - 1;

    /// Time after all events.
    pub(crate) const NEVER: Self = Self(u128::MAX);

    pub(crate) const fn new(time_ps: u64, kind: SimEventKind, entity: u32) -> Self {
        Self::with_packet(time_ps, kind, entity, NO_INDEX)
    }

    /// Creates the event of a packet that arrives at the far end of port `entity`.
    pub(crate) const fn with_packet(
        time_ps: u64,
        kind: SimEventKind,
        entity: u32,
        packet: PacketId,
    ) -> Self {
        debug_assert!(entity <= Self::ENTITY_MAX);
        let who = (kind as u64) << (32 + ENTITY_BITS) | (entity as u64) << 32 | packet as u64;
        Self((time_ps as u128) << 64 | who as u128)
    }

    /// Returns the time of the event in picoseconds.
    pub(crate) const fn time_ps(self) -> u64 {
        (self.0 >> 64) as u64
    }

    pub(crate) const fn kind(self) -> SimEventKind {
        KINDS[(self.0 as u64 >> (32 + ENTITY_BITS)) as usize]
    }

    pub(crate) const fn entity(self) -> u32 {
        (self.0 as u64 >> 32) as u32 & Self::ENTITY_MAX
    }

    /// Returns the packet that arrives; [`NO_INDEX`] if none does or it was lost.
    pub(crate) const fn packet(self) -> PacketId {
        self.0 as u32
    }

    /// Returns the event without its packet.
    pub(crate) const fn without_packet(self) -> Self {
        Self(self.0 | NO_INDEX as u128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_sort_by_time_kind_entity() {
        for (number, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            let entity = SimEvent::ENTITY_MAX;
            let event = SimEvent::with_packet(u64::MAX - 1, kind, entity, 7);
            assert_eq!(
                (event.time_ps(), event.kind(), event.entity(), event.packet()),
                (u64::MAX - 1, kind, entity, 7)
            );
            assert_eq!(event.without_packet(), SimEvent::new(u64::MAX - 1, kind, entity));
            assert!(event.without_packet() < SimEvent::NEVER);
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
