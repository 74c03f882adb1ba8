//! A token bucket that spreads bytes evenly at a rate which may change at any moment.
//!
//! Whoever sends takes bytes and gets a place in the queue of all that was ever taken; it may send once the bucket
//! has given as much as lies before that place: `given(now) = min(taken + burst, given + rate / 8 * elapsed)`. Large
//! and small requests thus pay the same price per byte, no request is too large to be granted, and another rate
//! counts at once for those who wait already: nothing is forgiven and nothing is paid twice.

use std::time::Duration;

/// How much of a second may be sent at once after a pause.
const BURST: Duration = Duration::from_millis(20);

/// A rate limit shared by any number of streams.
#[derive(Debug, Clone)]
pub struct Pacer {
    rate_bps: Option<u64>,
    /// Bytes that were asked for.
    taken_bytes: f64,
    /// Bytes that might have been sent until `updated`.
    given_bytes: f64,
    updated: Duration,
}

/// A place in the queue: it is reached when all bytes before it may be sent.
#[derive(Debug, Clone, Copy)]
pub struct Place(f64);

impl Pacer {
    /// A limit in bits per second, or none; `now` is the caller's clock.
    #[must_use]
    pub fn new(rate_bps: Option<u64>, now: Duration) -> Self {
        Self { rate_bps, taken_bytes: 0.0, given_bytes: 0.0, updated: now }
    }

    /// The limit in bits per second.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        self.rate_bps
    }

    /// Changes the limit from now on, for what was taken and is not sent, too.
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
                let most = self.taken_bytes + rate * BURST.as_secs_f64();
                self.given_bytes = (self.given_bytes + elapsed * rate).min(most);
            }
            None => self.given_bytes = self.taken_bytes,
        }
        self.updated = self.updated.max(now);
    }

    /// Takes `bytes`; they may be sent when [`Pacer::wait`] says so.
    pub fn enter(&mut self, bytes: u64, now: Duration) -> Place {
        self.advance(now);
        self.taken_bytes += bytes as f64;
        Place(self.taken_bytes)
    }

    /// What was taken and will not be sent goes to those that wait.
    pub fn give_back(&mut self, bytes: u64) {
        self.given_bytes += bytes as f64;
    }

    /// How long it takes until what was taken may be sent, if the rate stays.
    pub fn wait(&mut self, place: Place, now: Duration) -> Duration {
        self.advance(now);
        let Some(rate) = self.bytes_per_second() else { return Duration::ZERO };
        let missing = (place.0 - self.given_bytes).max(0.0);
        Duration::try_from_secs_f64(missing / rate).unwrap_or(Duration::MAX)
    }

    /// Takes `bytes` and says how long to wait before sending them.
    pub fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let place = self.enter(bytes, now);
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
    fn a_raised_rate_takes_effect_at_once() {
        let mut pacer = Pacer::new(Some(8), Duration::ZERO);
        let place = pacer.enter(1000, Duration::ZERO);
        assert!(pacer.wait(place, Duration::ZERO) >= Duration::from_secs(999));
        pacer.set_rate(Some(8_000_000_000), Duration::from_secs(1));
        assert!(pacer.wait(place, Duration::from_secs(1)) < Duration::from_millis(1));
        pacer.set_rate(None, Duration::from_secs(1));
        assert_eq!(pacer.wait(place, Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn what_is_given_back_holds_nobody_up() {
        let mut pacer = Pacer::new(Some(8_000), Duration::ZERO);
        let (_gone, waits) =
            (pacer.enter(5_000, Duration::ZERO), pacer.enter(1_000, Duration::ZERO));
        assert!(pacer.wait(waits, Duration::ZERO) >= Duration::from_millis(5_900));
        pacer.give_back(5_000);
        let left = pacer.wait(waits, Duration::ZERO);
        assert!((900..=1_000).contains(&left.as_millis()), "{left:?}");
    }

    #[test]
    fn a_rate_that_changes_often_is_not_exceeded() {
        // Two streams of a session whose limit is set anew twenty times a second, to what it is already.
        let mut pacer = Pacer::new(Some(8_000_000), Duration::ZERO);
        let mut places = [0; 2].map(|_| pacer.enter(100_000, Duration::ZERO));
        let mut sent = 0;
        for step in 1..=200_u64 {
            let now = Duration::from_millis(step * 50);
            pacer.set_rate(Some(8_000_000), now);
            for place in &mut places {
                if pacer.wait(*place, now).is_zero() {
                    sent += 100_000;
                    *place = pacer.enter(100_000, now);
                }
            }
        }
        assert!((9_700_000..=10_020_000).contains(&sent), "{sent} bytes in 10 s");
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
