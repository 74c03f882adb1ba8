//! State of one direction of a running link: its impairment and its counters, shared with its thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use penstock_sys::event::EventFd;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::line::{EmulatedPacket, Impairment, PacketOutcome};
use crate::timing_error::TimingErrorHistogram;

/// Packet counters of a direction. A super-packet counts once, with the bytes of all its segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirectionCounters {
    /// Packets that arrived at the far end.
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

impl DirectionCounters {
    /// Difference to earlier counters.
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

    /// Sum of both counters.
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
pub(crate) struct DirectionState {
    /// Names the thread and seeds the random numbers.
    pub(crate) name: String,
    wanted: Mutex<Impairment>,
    /// Set after a change of `wanted` or `stopped`.
    pub(crate) changed: EventFd,
    stopped: AtomicBool,
    packets: AtomicU64,
    wire_bytes: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
    cut: AtomicU64,
    marked: AtomicU64,
    pub(crate) timing_error: TimingErrorHistogram,
}

impl DirectionState {
    pub(crate) fn new(name: String, wanted: Impairment) -> std::io::Result<Self> {
        Ok(Self {
            name,
            wanted: Mutex::new(wanted),
            changed: EventFd::new()?,
            stopped: AtomicBool::new(false),
            packets: AtomicU64::new(0),
            wire_bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            timing_error: TimingErrorHistogram::default(),
        })
    }

    pub(crate) fn set(&self, wanted: Impairment) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        // If this fails, the thread reads it with the next packet.
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

    /// Counts the outcome of a packet.
    pub(crate) fn count(&self, fate: PacketOutcome, packet: EmulatedPacket) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        match fate {
            PacketOutcome::Arrives { marked, .. } => {
                add(&self.packets, 1);
                add(&self.wire_bytes, packet.wire_bytes);
                add(&self.marked, u64::from(marked));
            }
            PacketOutcome::Lost => _ = add(&self.lost, 1),
            PacketOutcome::Overflow => _ = add(&self.overflowed, 1),
            PacketOutcome::Cut => _ = add(&self.cut, 1),
        }
    }

    pub(crate) fn counters(&self) -> DirectionCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DirectionCounters {
            packets: get(&self.packets),
            wire_bytes: get(&self.wire_bytes),
            lost: get(&self.lost),
            overflowed: get(&self.overflowed),
            cut: get(&self.cut),
            marked: get(&self.marked),
        }
    }
}

/// Largest timing error with valid measurements: a twenty-fifth of the delay, at least 1 ms.
pub(crate) fn timing_error_max(delay: Duration) -> Duration {
    (delay / 25).max(Duration::from_millis(1))
}
