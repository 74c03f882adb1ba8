//! What bounds a transfer, from what both ends measured.
//!
//! A pipeline is as fast as its slowest part, and the parts before and after it wait. The sender's
//! streams wait for blocks when the source is slow; the receiver's streams wait for buffers when the
//! destination is slow; the sender's streams wait in the socket when the network, or whatever is
//! behind it, is slow, and TCP says whether it was the receiver's window or its own buffer that held them.

use penstock_protocol::control::Report;

/// What one end measured over some time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    /// Part of the streams' time spent waiting for storage.
    pub storage: f64,
    /// Part spent in the socket.
    pub network: f64,
    /// Part in which TCP was held by the receiver's window.
    pub window: f64,
    /// Part in which TCP was held by the sender's own buffer.
    pub buffer: f64,
    /// Part of all processors that was busy.
    pub cpu: f64,
}

impl Share {
    /// The share of `streams` streams' time over `elapsed_us` between two reports of one end.
    #[must_use]
    pub fn between(earlier: &Report, later: &Report, elapsed_us: u64) -> Self {
        let streams = f64::from(later.streams.max(earlier.streams).max(1));
        let whole = (elapsed_us as f64 * streams).max(1.0);
        let part = |later: u64, earlier: u64| later.saturating_sub(earlier) as f64 / whole;
        Self {
            storage: part(later.waited_storage_us, earlier.waited_storage_us),
            network: part(later.waited_network_us, earlier.waited_network_us),
            window: part(later.waited_window_us, earlier.waited_window_us),
            buffer: part(later.waited_buffer_us, earlier.waited_buffer_us),
            cpu: f64::from(later.machine_busy_permille) / 1000.0,
        }
    }
}

/// Names what bounds a transfer. `rate` is the part of the sending streams' time spent waiting for the
/// rate limit.
#[must_use]
pub fn bound_by(sender: Share, receiver: Share, rate: f64) -> &'static str {
    const MUCH: f64 = 0.4;
    const ALL_BUSY: f64 = 0.93;
    match () {
        () if rate > MUCH => "rate limit",
        // A full processor makes everything else wait, so it is asked first.
        () if sender.cpu > ALL_BUSY => "sender CPU",
        () if receiver.cpu > ALL_BUSY => "receiver CPU",
        () if receiver.storage > MUCH && receiver.storage >= sender.storage => {
            "destination storage"
        }
        () if sender.storage > MUCH => "source storage",
        () if sender.window > MUCH => "receiver",
        () if sender.buffer > MUCH => "send buffer",
        () => "network",
    }
}

/// The name that another process gave, if it is one of ours.
#[must_use]
pub fn named(name: &str) -> &'static str {
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
    fn the_slowest_part_is_named() {
        let idle = Share::default();
        let waits = |storage| Share { storage, ..idle };
        assert_eq!(bound_by(waits(0.9), idle, 0.0), "source storage");
        assert_eq!(bound_by(waits(0.1), waits(0.8), 0.0), "destination storage");
        assert_eq!(bound_by(Share { network: 0.9, ..idle }, idle, 0.0), "network");
        assert_eq!(bound_by(Share { window: 0.9, ..idle }, idle, 0.0), "receiver");
        assert_eq!(bound_by(Share { buffer: 0.9, ..idle }, idle, 0.0), "send buffer");
        assert_eq!(bound_by(Share { cpu: 0.99, ..waits(0.9) }, idle, 0.0), "sender CPU");
        assert_eq!(bound_by(waits(0.9), idle, 0.9), "rate limit");
    }
}
