//! One direction of a link while it runs: what it is told to do, and what it counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use penstock_sys::event::Event;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lateness::Lateness;
use crate::line::{Fate, Impairment, Packet};

/// What became of the packets of a direction. A super-packet counts once, with the bytes of all its segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Packets that arrived.
    pub packets: u64,
    /// Bytes of these packets on the wire.
    pub wire_bytes: u64,
    /// Packets lost by the emulated loss.
    pub lost: u64,
    /// Packets dropped by a full queue.
    pub overflowed: u64,
    /// Packets lost as the link was cut.
    pub cut: u64,
    /// Packets that arrived with a congestion mark (ECN CE) of this link.
    pub marked: u64,
}

impl Counters {
    /// What was counted since these were.
    #[must_use]
    pub(crate) const fn since(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            wire_bytes: self.wire_bytes.saturating_sub(earlier.wire_bytes),
            lost: self.lost.saturating_sub(earlier.lost),
            overflowed: self.overflowed.saturating_sub(earlier.overflowed),
            cut: self.cut.saturating_sub(earlier.cut),
            marked: self.marked.saturating_sub(earlier.marked),
        }
    }

    /// Of both together.
    #[must_use]
    pub(crate) const fn with(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            wire_bytes: self.wire_bytes + other.wire_bytes,
            lost: self.lost + other.lost,
            overflowed: self.overflowed + other.overflowed,
            cut: self.cut + other.cut,
            marked: self.marked + other.marked,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Direction {
    /// Of its thread and its random numbers.
    pub(crate) name: String,
    wanted: Mutex<Impairment>,
    /// On when `wanted` or `stopped` is another than the thread knows.
    pub(crate) changed: Event,
    stopped: AtomicBool,
    packets: AtomicU64,
    wire_bytes: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
    cut: AtomicU64,
    marked: AtomicU64,
    pub(crate) lateness: Lateness,
}

impl Direction {
    pub(crate) fn new(name: String, wanted: Impairment) -> std::io::Result<Self> {
        Ok(Self {
            name,
            wanted: Mutex::new(wanted),
            changed: Event::new()?,
            stopped: AtomicBool::new(false),
            packets: AtomicU64::new(0),
            wire_bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            lateness: Lateness::default(),
        })
    }

    pub(crate) fn set(&self, wanted: Impairment) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        // If that fails it is seen with the next packet.
        let _ = self.changed.signal();
    }

    pub(crate) fn wanted(&self) -> Impairment {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _ = self.changed.signal();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Counts what was decided on a packet.
    pub(crate) fn count(&self, fate: Fate, packet: Packet) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        match fate {
            Fate::Arrives { marked, .. } => {
                add(&self.packets, 1);
                add(&self.wire_bytes, packet.wire_bytes);
                add(&self.marked, u64::from(marked));
            }
            Fate::Lost => _ = add(&self.lost, 1),
            Fate::Overflow => _ = add(&self.overflowed, 1),
            Fate::Cut => _ = add(&self.cut, 1),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            packets: get(&self.packets),
            wire_bytes: get(&self.wire_bytes),
            lost: get(&self.lost),
            overflowed: get(&self.overflowed),
            cut: get(&self.cut),
            marked: get(&self.marked),
        }
    }
}

/// Packets that are late by more than this share of a round trip, or by this time where that is longer, disturb what
/// is measured.
pub(crate) fn late_from(delay: Duration) -> Duration {
    (delay / 25).max(Duration::from_millis(1))
}
