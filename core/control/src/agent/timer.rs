//! Decision when an agent's next report is due.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Time between two reports without urgent news.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between reports when something has changed.
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(200);

/// Back-off between attempts while the controller is away, doubled after each failure.
const RECONNECT_BACKOFF: RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(10);

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

/// Half to all of the pause, so that agents do not return in step.
fn jittered(pause: Duration, random: u8) -> Duration {
    pause.mul_f64(0.5 + f64::from(random) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_backoff_jitter_is_bounded() {
        let pauses: Vec<_> =
            (0..=255).map(|random| jittered(Duration::from_secs(8), random)).collect();
        let bounds = Duration::from_secs(4)..=Duration::from_secs(8);
        assert!(pauses.iter().all(|pause| bounds.contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
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
