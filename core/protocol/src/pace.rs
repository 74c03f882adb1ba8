//! Token bucket that spaces bytes evenly at a rate which may change at any moment.
//!
//! A sender reserves bytes and gets a ticket, its position in the sum of all reservations; it may send
//! once the bucket has granted that many bytes: `granted(now) = min(reserved + burst, granted + rate /
//! 8 * elapsed)`. Requests of any size pay the same price per byte, no request is too large, and a rate
//! change also applies to reservations that already wait.

use std::time::Duration;

/// Largest burst after a pause, as time at the configured rate.
const BURST_DURATION: Duration = Duration::from_millis(20);

/// Rate limit shared by any number of streams.
#[derive(Debug, Clone)]
pub struct Pacer {
    rate_bps: Option<u64>,
    /// Bytes reserved so far.
    reserved_bytes: f64,
    /// Bytes granted until `updated`.
    granted_bytes: f64,
    updated: Duration,
}

/// Position of a reservation; due when all bytes before it are granted.
#[derive(Debug, Clone, Copy)]
pub struct PaceTicket(f64);

impl Pacer {
    /// Creates a limit in bits per second, or none; `now` is the caller's clock.
    #[must_use]
    pub fn new(rate_bps: Option<u64>, now: Duration) -> Self {
        Self { rate_bps, reserved_bytes: 0.0, granted_bytes: 0.0, updated: now }
    }

    /// Limit in bits per second; `None` if unlimited.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        self.rate_bps
    }

    /// Changes the limit from now on, for pending reservations too.
    pub fn set_rate(&mut self, rate_bps: Option<u64>, now: Duration) {
        self.advance(now);
        self.rate_bps = rate_bps;
    }

    fn bytes_per_second(&self) -> Option<f64> {
        self.rate_bps.map(|rate_bps| (rate_bps as f64 / 8.0).max(1.0))
    }

    fn advance(&mut self, now: Duration) {
        match self.bytes_per_second() {
            Some(rate) => {
                let elapsed = now.saturating_sub(self.updated).as_secs_f64();
                let most = self.reserved_bytes + rate * BURST_DURATION.as_secs_f64();
                self.granted_bytes = (self.granted_bytes + elapsed * rate).min(most);
            }
            None => self.granted_bytes = self.reserved_bytes,
        }
        self.updated = self.updated.max(now);
    }

    /// Reserves `bytes`, which may be sent once [`Pacer::wait`] returns zero.
    pub fn reserve(&mut self, bytes: u64, now: Duration) -> PaceTicket {
        self.advance(now);
        self.reserved_bytes += bytes as f64;
        PaceTicket(self.reserved_bytes)
    }

    /// Returns reserved bytes that are not sent, in favour of pending reservations.
    pub fn refund(&mut self, bytes: u64) {
        self.granted_bytes += bytes as f64;
    }

    /// Time until the reservation is due, at the current rate.
    pub fn wait(&mut self, place: PaceTicket, now: Duration) -> Duration {
        self.advance(now);
        let Some(rate) = self.bytes_per_second() else { return Duration::ZERO };
        let missing = (place.0 - self.granted_bytes).max(0.0);
        Duration::try_from_secs_f64(missing / rate).unwrap_or(Duration::MAX)
    }

    /// Reserves `bytes` and returns the time to wait before sending them.
    pub fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let place = self.reserve(bytes, now);
        self.wait(place, now)
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
    fn raised_rate_applies_to_pending_reservations() {
        let mut pacer = Pacer::new(Some(8), Duration::ZERO);
        let place = pacer.reserve(1000, Duration::ZERO);
        assert!(pacer.wait(place, Duration::ZERO) >= Duration::from_secs(999));
        pacer.set_rate(Some(8_000_000_000), Duration::from_secs(1));
        assert!(pacer.wait(place, Duration::from_secs(1)) < Duration::from_millis(1));
        pacer.set_rate(None, Duration::from_secs(1));
        assert_eq!(pacer.wait(place, Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn refund_advances_pending_reservations() {
        let mut pacer = Pacer::new(Some(8_000), Duration::ZERO);
        let (_refunded, pending) =
            (pacer.reserve(5_000, Duration::ZERO), pacer.reserve(1_000, Duration::ZERO));
        assert!(pacer.wait(pending, Duration::ZERO) >= Duration::from_millis(5_900));
        pacer.refund(5_000);
        let left = pacer.wait(pending, Duration::ZERO);
        assert!((900..=1_000).contains(&left.as_millis()), "{left:?}");
    }

    #[test]
    fn frequent_rate_changes_keep_limit() {
        // Two streams of a session whose limit is set twenty times a second, always to the same rate.
        let mut pacer = Pacer::new(Some(8_000_000), Duration::ZERO);
        let mut places = [0; 2].map(|_| pacer.reserve(100_000, Duration::ZERO));
        let mut sent = 0;
        for step in 1..=200_u64 {
            let now = Duration::from_millis(step * 50);
            pacer.set_rate(Some(8_000_000), now);
            for place in &mut places {
                if pacer.wait(*place, now).is_zero() {
                    sent += 100_000;
                    *place = pacer.reserve(100_000, now);
                }
            }
        }
        assert!((9_700_000..=10_020_000).contains(&sent), "{sent} bytes in 10 s");
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// A sender that waits as requested keeps the rate within one burst, for any sizes.
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
            let most = rate as f64 * (now + BURST_DURATION).as_secs_f64() * 1.000_001 + 8.0;
            prop_assert!(bits <= most, "{bits} bits in {now:?} at {rate}");
            prop_assert!(bits >= rate as f64 * now.as_secs_f64() * 0.999 - 8.0);
        }
    }
}
