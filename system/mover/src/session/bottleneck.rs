//! Bottleneck analysis of a transfer from the measurements of both ends.
//!
//! A pipeline is as fast as its slowest stage, and the stages before and after it wait. The sender's
//! streams wait for blocks if the source is slow; the receiver's streams wait for buffers if the
//! destination is slow; the sender's streams wait in the socket if the network or anything behind it is
//! slow, and TCP reports whether the receiver's window or its own buffer limited it.

use penstock_protocol::control::Report;

/// Fractions of one end's time over an interval, 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaitShares {
    /// Stream time spent waiting for storage.
    pub storage: f64,
    /// Time limited by the receiver's window.
    pub window: f64,
    /// Time limited by the sender's buffer.
    pub buffer: f64,
    /// Busy fraction of all processors.
    pub cpu: f64,
}

impl WaitShares {
    /// Computes the fractions of `elapsed_us` between two reports of one end.
    #[must_use]
    pub(crate) fn between(earlier: &Report, later: &Report, elapsed_us: u64) -> Self {
        let streams = f64::from(later.streams.max(earlier.streams).max(1));
        let whole = (elapsed_us as f64 * streams).max(1.0);
        let part = |later: u64, earlier: u64| later.saturating_sub(earlier) as f64 / whole;
        Self {
            storage: part(later.waited_storage_us, earlier.waited_storage_us),
            window: part(later.waited_window_us, earlier.waited_window_us),
            buffer: part(later.waited_buffer_us, earlier.waited_buffer_us),
            cpu: f64::from(later.machine_busy_permille) / 1000.0,
        }
    }
}

/// Names the bottleneck. `rate` is the fraction of the sending streams' time spent waiting for the rate
/// limit.
#[must_use]
pub(crate) fn bottleneck(sender: WaitShares, receiver: WaitShares, rate: f64) -> &'static str {
    const WAIT_SHARE_MIN: f64 = 0.4;
    const CPU_BUSY_MIN: f64 = 0.93;
    match () {
        () if rate > WAIT_SHARE_MIN => "rate limit",
        // A saturated processor makes everything else wait, so it is checked first.
        () if sender.cpu > CPU_BUSY_MIN => "sender CPU",
        () if receiver.cpu > CPU_BUSY_MIN => "receiver CPU",
        () if receiver.storage > WAIT_SHARE_MIN && receiver.storage >= sender.storage => {
            "destination storage"
        }
        () if sender.storage > WAIT_SHARE_MIN => "source storage",
        () if sender.window > WAIT_SHARE_MIN => "receiver",
        () if sender.buffer > WAIT_SHARE_MIN => "send buffer",
        () => "network",
    }
}

/// Returns the known bottleneck of this name, as sent by another process; else `starting`.
#[must_use]
pub(crate) fn parse_bottleneck(name: &str) -> &'static str {
    const NAMES: [&str; 9] = [
        "rate limit",
        "sender CPU",
        "receiver CPU",
        "destination storage",
        "source storage",
        "receiver",
        "send buffer",
        "network",
        "starting",
    ];
    NAMES.into_iter().find(|known| *known == name).unwrap_or("starting")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_stage_is_named() {
        let idle = WaitShares::default();
        let waits = |storage| WaitShares { storage, ..idle };
        assert_eq!(bottleneck(waits(0.9), idle, 0.0), "source storage");
        assert_eq!(bottleneck(waits(0.1), waits(0.8), 0.0), "destination storage");
        assert_eq!(bottleneck(idle, idle, 0.0), "network");
        assert_eq!(bottleneck(WaitShares { window: 0.9, ..idle }, idle, 0.0), "receiver");
        assert_eq!(bottleneck(WaitShares { buffer: 0.9, ..idle }, idle, 0.0), "send buffer");
        assert_eq!(bottleneck(WaitShares { cpu: 0.99, ..waits(0.9) }, idle, 0.0), "sender CPU");
        assert_eq!(bottleneck(waits(0.9), idle, 0.9), "rate limit");
    }
}
