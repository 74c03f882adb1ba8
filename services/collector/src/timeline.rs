//! Seconds of the wall clock on the time line of the monotonic one. Pure.
//!
//! A second has a number that only grows, and the name that the wall clock gave it. Between two steps of the wall clock
//! each moment belongs to exactly one second, whenever it is asked about: a program that was stopped for a while finds
//! the seconds that passed meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

/// The wall clock may go apart from the monotonic one by so much before seconds follow it.
const DRIFT_S_MAX: f64 = 0.05;

/// Parts of the time line that are kept: what is late by more than these steps of the clock belongs to the oldest.
const SEGMENTS_MAX: usize = 16;

/// Time between two steps of the wall clock.
#[derive(Debug, Clone, Copy)]
struct Segment {
    start: Duration,
    number: u64,
    at_s: i64,
    /// How much of its first second had passed.
    passed_s: f64,
}

/// A second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    /// Counts the seconds from 1.
    pub(crate) number: u64,
    /// When it began by the wall clock, in seconds since 1970.
    pub(crate) at_s: i64,
    /// When it begins.
    pub(crate) start: Duration,
    /// When it ends.
    pub(crate) end: Duration,
}

/// The time line.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    segments: VecDeque<Segment>,
}

impl Timeline {
    /// It is `now`, which the wall clock calls `wall_s`.
    pub(crate) fn new(now: Duration, wall_s: f64) -> Self {
        Self { segments: VecDeque::from([Segment::new(now, 1, wall_s)]) }
    }

    /// The segment that a moment belongs to.
    fn segment(&self, at: Duration) -> &Segment {
        let found = self.segments.iter().rev().find(|segment| segment.start <= at);
        found.unwrap_or(&self.segments[0])
    }

    /// The number of the second that a moment belongs to.
    pub(crate) fn number(&self, at: Duration) -> u64 {
        let segment = self.segment(at);
        segment.number + segment.elapsed_s(at) as u64
    }

    /// What the wall clock calls a moment.
    pub(crate) fn wall_s(&self, at: Duration) -> f64 {
        let segment = self.segment(at);
        segment.at_s as f64 + segment.elapsed_s(at)
    }

    /// The second with this number.
    pub(crate) fn span(&self, number: u64) -> Span {
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
        Span { number, at_s, start: moment(after as f64).min(end), end }
    }

    /// Compares with the wall clock; by how much it was set, if it was. The second that runs ends where it was.
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

    /// Since the begin of its first second.
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
        let mut line = Timeline::new(at(10.0), 1_000.25);
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
        let mut line = Timeline::new(at(0.0), 1_000.0);
        let step = line.adjust(at(5.5), 400.2).unwrap();
        assert!((step + 605.3).abs() < 1e-6);
        let (cut, next) = (line.span(6), line.span(7));
        assert!(near(cut.start, 5.0) && near(cut.end, 5.5) && cut.at_s == 1_005, "{cut:?}");
        assert!(near(next.start, 5.5) && near(next.end, 6.3) && next.at_s == 400, "{next:?}");
        // What was received before keeps its second.
        assert_eq!((line.number(at(5.4)), line.number(at(5.6)), line.number(at(6.4))), (6, 7, 8));
        for step in 0..100 {
            let now = at(10.0 + f64::from(step));
            let wall = line.wall_s(now) + 1.0;
            assert!(line.adjust(now, wall).is_some());
        }
        assert!(line.segments.len() <= SEGMENTS_MAX);
    }
}
