//! A token bucket that spreads bytes evenly at a rate which may change at any moment.
//!
//! `tokens(now) = min(burst, tokens + rate / 8 * elapsed)`. A request may take the bucket below zero;
//! the caller then waits until it would be level again. Large and small requests thus pay the same
//! price per byte, and no request is too large to be granted.

use std::time::Duration;

/// How much of a second may be sent at once after a pause.
const BURST: Duration = Duration::from_millis(20);

/// A rate limit shared by any number of streams.
#[derive(Debug, Clone)]
pub struct Pacer {
    rate_bps: Option<u64>,
    tokens_bytes: f64,
    updated: Duration,
}

impl Pacer {
    /// A limit in bits per second, or none; `now` is the caller's clock.
    #[must_use]
    pub fn new(rate_bps: Option<u64>, now: Duration) -> Self {
        Self { rate_bps, tokens_bytes: 0.0, updated: now }
    }

    /// The limit in bits per second.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        self.rate_bps
    }

    /// Changes the limit from now on. A debt made under the old rate is forgiven, so that raising a
    /// very low rate takes effect at once.
    pub fn set_rate(&mut self, rate_bps: Option<u64>, now: Duration) {
        self.rate_bps = rate_bps;
        self.tokens_bytes = 0.0;
        self.updated = now;
    }

    /// Takes `bytes` and says how long to wait before sending them.
    pub fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let Some(rate_bps) = self.rate_bps else { return Duration::ZERO };
        let bytes_per_second = (rate_bps as f64 / 8.0).max(1.0);
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        let burst = bytes_per_second * BURST.as_secs_f64();
        self.tokens_bytes = (self.tokens_bytes + elapsed * bytes_per_second).min(burst);
        self.updated = self.updated.max(now);
        self.tokens_bytes -= bytes as f64;
        if self.tokens_bytes >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens_bytes / bytes_per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_limit_never_waits() {
        let mut pacer = Pacer::new(None, Duration::ZERO);
        assert_eq!(pacer.take(u64::MAX, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_raised_rate_takes_effect_at_once() {
        let mut pacer = Pacer::new(Some(8), Duration::ZERO);
        assert!(pacer.take(1000, Duration::ZERO) >= Duration::from_secs(999));
        pacer.set_rate(Some(8_000_000_000), Duration::from_secs(1));
        assert!(pacer.take(1000, Duration::from_secs(1)) < Duration::from_millis(1));
    }

    proptest! {
        /// Whoever waits as told sends at the rate, give or take one burst, whatever the sizes.
        #[test]
        fn keeps_the_rate(
            sizes in proptest::collection::vec(1_u64..4_000_000, 10..200),
            rate_mbps in 1_u64..100_000,
        ) {
            let rate = rate_mbps * 1_000_000;
            let mut pacer = Pacer::new(Some(rate), Duration::ZERO);
            let mut now = Duration::ZERO;
            for size in &sizes {
                now += pacer.take(*size, now);
            }
            let bits = sizes.iter().sum::<u64>() as f64 * 8.0;
            let most = rate as f64 * (now + BURST).as_secs_f64() * 1.000_001 + 8.0;
            prop_assert!(bits <= most, "{bits} bits in {now:?} at {rate}");
            prop_assert!(bits >= rate as f64 * now.as_secs_f64() * 0.999 - 8.0);
        }
    }
}
