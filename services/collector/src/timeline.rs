//! Seconds of the wall clock on the time line of the monotonic clock. Pure.
//!
//! A second has a number that only grows, and the time that the wall clock gave it. Between two
//! steps of the wall clock each point in time belongs to exactly one second: a program that was
//! stopped for a while finds the seconds that passed.

use std::collections::VecDeque;
use std::time::Duration;

/// Largest drift between wall clock and monotonic clock before seconds follow it.
const DRIFT_S_MAX: f64 = 0.05;

/// Segments that are kept; events older than that belong to the oldest.
const SEGMENTS_MAX: usize = 16;

/// Time between two steps of the wall clock.
#[derive(Debug, Clone, Copy)]
struct Segment {
    start: Duration,
    number: u64,
    at_s: i64,
    /// Part of its first second that had passed.
    passed_s: f64,
}

/// A second of the time line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TimelineSecond {
    /// Number of the second, from 1.
    pub(crate) number: u64,
    /// Start by the wall clock, in seconds since 1970.
    pub(crate) at_s: i64,
    /// Start by the monotonic clock.
    pub(crate) start: Duration,
    /// End by the monotonic clock.
    pub(crate) end: Duration,
}

/// A map from monotonic time to seconds of the wall clock.
#[derive(Debug, Clone)]
pub(crate) struct ClockTimeline {
    segments: VecDeque<Segment>,
}

impl ClockTimeline {
    /// Starts at `now`, for which the wall clock shows `wall_s`.
    pub(crate) fn new(now: Duration, wall_s: f64) -> Self {
        Self { segments: VecDeque::from([Segment::new(now, 1, wall_s)]) }
    }

    /// Segment that contains a time.
    fn segment(&self, at: Duration) -> &Segment {
        let found = self.segments.iter().rev().find(|segment| segment.start <= at);
        found.unwrap_or(&self.segments[0])
    }

    /// Number of the second that contains a time.
    pub(crate) fn number(&self, at: Duration) -> u64 {
        let segment = self.segment(at);
        segment.number + segment.elapsed_s(at) as u64
    }

    /// Converts a time to the wall clock.
    pub(crate) fn wall_s(&self, at: Duration) -> f64 {
        let segment = self.segment(at);
        segment.at_s as f64 + segment.elapsed_s(at)
    }

    /// Returns the second with this number.
    pub(crate) fn span(&self, number: u64) -> TimelineSecond {
        let at = self.segments.iter().rposition(|segment| segment.number <= number).unwrap_or(0);
        let segment = self.segments[at];
        let after = number.saturating_sub(segment.number);
        let moment = |seconds: f64| {
            segment.start + Duration::from_secs_f64((seconds - segment.passed_s).max(0.0))
        };
        let mut end = moment(after as f64 + 1.0);
        if let Some(next) = self.segments.get(at + 1) {
            end = end.min(next.start);
        }
        let at_s = segment.at_s.saturating_add_unsigned(after);
        TimelineSecond { number, at_s, start: moment(after as f64).min(end), end }
    }

    /// Compares with the wall clock and returns the step by which it was set, if any. The current
    /// second ends there.
    pub(crate) fn adjust(&mut self, now: Duration, wall_s: f64) -> Option<f64> {
        let step_s = wall_s - self.wall_s(now);
        if step_s.abs() <= DRIFT_S_MAX {
            return None;
        }
        self.segments.push_back(Segment::new(now, self.number(now) + 1, wall_s));
        if self.segments.len() > SEGMENTS_MAX {
            self.segments.pop_front();
        }
        Some(step_s)
    }
}

impl Segment {
    fn new(start: Duration, number: u64, wall_s: f64) -> Self {
        Self { start, number, at_s: wall_s.floor() as i64, passed_s: wall_s - wall_s.floor() }
    }

    /// Seconds since the start of its first second.
    fn elapsed_s(&self, at: Duration) -> f64 {
        at.saturating_sub(self.start).as_secs_f64() + self.passed_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn near(one: Duration, other: f64) -> bool {
        (one.as_secs_f64() - other).abs() < 1e-6
    }

    #[test]
    fn stopped_program_finds_all_seconds() {
        let mut line = ClockTimeline::new(at(10.0), 1_000.25);
        assert_eq!(
            (line.number(at(10.0)), line.number(at(10.8)), line.number(at(22.9))),
            (1, 2, 14)
        );
        let first = line.span(1);
        assert!(near(first.start, 10.0) && near(first.end, 10.75), "{first:?}");
        let later = line.span(14);
        assert!(near(later.start, 22.75) && near(later.end, 23.75) && later.at_s == 1_013);
        // Nothing happened to the wall clock meanwhile.
        assert_eq!(line.adjust(at(23.0), 1_013.25), None);
        assert!((line.wall_s(at(23.0)) - 1_013.25).abs() < 1e-6);
    }

    #[test]
    fn clock_step_ends_the_second() {
        let mut line = ClockTimeline::new(at(0.0), 1_000.0);
        let step = line.adjust(at(5.5), 400.2).unwrap();
        assert!((step + 605.3).abs() < 1e-6);
        let (cut, next) = (line.span(6), line.span(7));
        assert!(near(cut.start, 5.0) && near(cut.end, 5.5) && cut.at_s == 1_005, "{cut:?}");
        assert!(near(next.start, 5.5) && near(next.end, 6.3) && next.at_s == 400, "{next:?}");
        // Earlier datagrams keep their second.
        assert_eq!((line.number(at(5.4)), line.number(at(5.6)), line.number(at(6.4))), (6, 7, 8));
        for step in 0..100 {
            let now = at(10.0 + f64::from(step));
            let wall = line.wall_s(now) + 1.0;
            assert!(line.adjust(now, wall).is_some());
        }
        assert!(line.segments.len() <= SEGMENTS_MAX);
    }
}
