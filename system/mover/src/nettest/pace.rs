//! A token bucket: how long to wait so that an average rate is kept. Pure.
//!
//! After `t` the bucket has let `rate * t + burst` pass. `SO_MAX_PACING_RATE` smooths what is sent
//! on the wire; the bucket keeps the average exact, which kernel pacing alone does not because it
//! counts headers.

use std::time::Duration;

/// Time whose worth of bytes may be sent at once: it rides out a late wake-up.
const BURST: Duration = Duration::from_millis(20);

/// Pace of one stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    sent: u64,
}

impl Pace {
    /// A pace of this many bytes per second.
    #[must_use]
    pub(super) const fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, sent: 0 }
    }

    /// The largest block that keeps the flow smooth: a quarter of a burst.
    #[must_use]
    pub(super) fn block_bytes(&self, wanted: usize) -> usize {
        let quarter = self.bytes_per_second as f64 * BURST.as_secs_f64() / 4.0;
        wanted.min((quarter as usize).max(1_024))
    }

    /// Counts bytes as sent.
    pub(super) const fn record(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// How long to wait at `elapsed` since the start before sending more.
    #[must_use]
    pub(super) fn wait(&self, elapsed: Duration) -> Duration {
        let due = self.sent as f64 / self.bytes_per_second as f64;
        Duration::from_secs_f64(due).saturating_sub(elapsed + BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_average_and_lets_a_burst_pass() {
        let mut pace = Pace::new(1_000_000);
        assert_eq!(pace.wait(Duration::ZERO), Duration::ZERO);
        pace.record(20_000);
        assert_eq!(pace.wait(Duration::ZERO), Duration::ZERO);
        pace.record(1_000_000);
        assert_eq!(pace.wait(Duration::ZERO), Duration::from_secs(1));
        assert_eq!(pace.wait(Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn slow_flows_use_small_blocks() {
        assert_eq!(Pace::new(1_000_000).block_bytes(1 << 20), 5_000);
        assert_eq!(Pace::new(1_000).block_bytes(1 << 20), 1_024);
        assert_eq!(Pace::new(u64::MAX).block_bytes(1 << 20), 1 << 20);
    }
}
