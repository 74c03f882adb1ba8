//! Times of the connection to the controller: when the agent reports, and when its lease expires.
//!
//! Callers pass the present time, so that a simulation runs this code in virtual time.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Time between two reports without urgent news.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between reports when something has changed.
pub const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(200);

/// Time between steps of the orders.
pub const ADVANCE_INTERVAL: Duration = Duration::from_millis(100);

/// Time limit of one answer of the controller.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Orders that are fetched between two reports.
pub const FETCHES_PER_REPORT_MAX: usize = 32;

/// Back-off between attempts while the controller is away, doubled after each failure.
const RECONNECT_BACKOFF: RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(10);

/// Shorter leases are extended to this.
const LEASE_MIN: Duration = Duration::from_secs(3);

/// Decides when the next report is due.
#[derive(Debug, Clone)]
pub struct ReportTimer {
    last_report: Instant,
    /// Time from the last report to the next after a failure; none after an answer.
    wait: Option<Duration>,
    pause: Duration,
}

impl ReportTimer {
    /// Creates a timer whose first report is due at once.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { last_report: now, wait: Some(Duration::ZERO), pause: *RECONNECT_BACKOFF.start() }
    }

    /// Notes that a report begins.
    pub fn begin(&mut self, now: Instant) {
        self.last_report = now;
    }

    /// Notes that the controller has answered the report and every fetch after it.
    pub fn succeed(&mut self) {
        (self.wait, self.pause) = (None, *RECONNECT_BACKOFF.start());
    }

    /// Notes that the report or a fetch after it has failed; `random` determines the jitter.
    pub fn fail(&mut self, random: u8) {
        self.wait = Some(jittered(self.pause, random));
        self.pause = (self.pause * 2).min(*RECONNECT_BACKOFF.end());
    }

    /// True if the next report is due; asks `take_urgent` where a report would be due at once for urgent news.
    pub fn is_due(&self, now: Instant, take_urgent: impl FnOnce() -> bool) -> bool {
        let since = now.duration_since(self.last_report);
        match self.wait {
            Some(wait) => since >= wait,
            None => since >= REPORT_INTERVAL || (since >= REPORT_INTERVAL_MIN && take_urgent()),
        }
    }
}

/// The time for which rates hold without an answer of the controller.
#[derive(Debug, Clone)]
pub struct Lease {
    duration: Duration,
    last_answer: Instant,
    expired: bool,
}

impl Lease {
    /// Creates the lease of an agent that has just started.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { duration: LEASE_MIN, last_answer: now, expired: false }
    }

    /// Renews it on an answer.
    pub fn renew(&mut self, seconds: u32, now: Instant) {
        let duration = Duration::from_secs(seconds.into()).max(LEASE_MIN);
        (self.duration, self.last_answer, self.expired) = (duration, now, false);
    }

    /// Returns true, once, when it expires.
    pub fn expire(&mut self, now: Instant) -> bool {
        let expires = !self.expired && now.duration_since(self.last_answer) > self.duration;
        self.expired |= expires;
        expires
    }

    /// True from its expiry to the next answer.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expired
    }
}

/// Half to all of the pause, so that agents do not return in step.
fn jittered(pause: Duration, random: u8) -> Duration {
    pause.mul_f64(0.5 + f64::from(random) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_jitter_is_bounded() {
        let pauses: Vec<_> =
            (0..=255).map(|random| jittered(Duration::from_secs(8), random)).collect();
        let bounds = Duration::from_secs(4)..=Duration::from_secs(8);
        assert!(pauses.iter().all(|pause| bounds.contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }

    #[test]
    fn lease_expires_once_after_silence() {
        let start = Instant::now();
        let mut lease = Lease::new(start);
        lease.renew(30, start);
        assert!(!lease.expire(start + Duration::from_secs(30)));
        assert!(lease.expire(start + Duration::from_secs(31)));
        assert!(lease.is_expired() && !lease.expire(start + Duration::from_secs(32)));
        lease.renew(1, start + Duration::from_secs(40));
        assert!(!lease.is_expired() && !lease.expire(start + Duration::from_secs(43)));
    }

    #[test]
    fn failed_reports_back_off() {
        let start = Instant::now();
        let mut timer = ReportTimer::new(start);
        assert!(timer.is_due(start, || false));
        timer.begin(start);
        timer.succeed();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!timer.is_due(at(199), || true) && timer.is_due(at(200), || true));
        assert!(!timer.is_due(at(999), || false) && timer.is_due(at(1000), || false));
        (0..9).for_each(|_| timer.fail(255));
        assert!(!timer.is_due(at(9_900), || true) && timer.is_due(at(10_000), || true));
    }
}
