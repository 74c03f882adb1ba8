//! Search of the smallest sufficient number of streams: "add more threads to get maximum throughput and
//! find the spot when performance stops increasing" (SC23 notes, where 4 threads gave 197.9 Gb/s and a
//! fifth 0.15 % more, so they stayed with 4). Pure: the caller measures.
//!
//! Streams double until the rate no longer rises by [`SweepOptions::rise_percent`] over the best.
//! The knee is the fewest streams within [`SweepOptions::knee_percent`] of the best rate; it is
//! found by halving the gap between the largest number below that and the smallest within it.

use serde::Serialize;
use utoipa::ToSchema;

/// Stop conditions of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepOptions {
    /// Largest number of streams to try.
    pub streams_max: u32,
    /// Smallest gain over the best rate, in percent, for which doubling continues.
    pub rise_percent: f64,
    /// Distance below the best rate, in percent, that is sufficient.
    pub knee_percent: f64,
}

impl Default for SweepOptions {
    fn default() -> Self {
        Self { streams_max: 64, rise_percent: 3.0, knee_percent: 3.0 }
    }
}

/// Measurement at one number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct SweepPoint {
    /// Number of data streams.
    pub streams: u32,
    /// Rate of all streams together.
    pub bits_per_second: f64,
    /// TCP segments that were retransmitted.
    pub retransmits: u64,
    /// CPU use of this end; 100 is one core.
    pub cpu_local_percent: f64,
    /// CPU use of the other end; 100 is one core.
    pub cpu_remote_percent: f64,
}

/// Result of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = SweepReport)]
pub struct StreamSweepReport {
    /// Fewest streams whose rate is within `knee_percent` of the best.
    pub knee_streams: u32,
    /// Rate with that many streams.
    pub knee_bits_per_second: f64,
    /// Streams with the highest rate.
    pub best_streams: u32,
    /// Highest measured rate of all points.
    pub best_bits_per_second: f64,
    /// Distance below the best rate that counts as enough.
    pub knee_percent: f64,
    /// True where the rate was still rising at the largest number of streams tried.
    pub still_rising: bool,
    /// Measurements by the number of streams.
    pub points: Vec<SweepPoint>,
}

/// Sweep in progress: measure [`StreamSweep::next`] and [`StreamSweep::record`] it, until there is no next.
#[derive(Clone, Debug)]
pub struct StreamSweep {
    options: SweepOptions,
    points: Vec<SweepPoint>,
    doubling: bool,
    still_rising: bool,
}

impl StreamSweep {
    /// Creates a sweep that starts with one stream.
    #[must_use]
    pub const fn new(options: SweepOptions) -> Self {
        Self { options, points: Vec::new(), doubling: true, still_rising: false }
    }

    /// Number of streams to measure next; `None` when finished.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        let Some(last) = self.points.iter().map(|point| point.streams).max() else {
            return Some(1);
        };
        if self.doubling {
            return Some((last * 2).min(self.options.streams_max));
        }
        let (below, within) = self.bracket();
        (within - below > 1).then(|| below + (within - below) / 2)
    }

    /// Records a measurement of [`StreamSweep::next`] streams.
    pub fn record(&mut self, point: SweepPoint) {
        let best = self.best().map_or(0.0, |best| best.bits_per_second);
        if self.doubling {
            let rose = point.bits_per_second > best * (1.0 + self.options.rise_percent / 100.0);
            self.still_rising = rose;
            self.doubling = rose && point.streams < self.options.streams_max;
        }
        self.points.push(point);
        self.points.sort_by_key(|point| point.streams);
    }

    /// Result so far; `None` before the first measurement.
    #[must_use]
    pub fn report(&self) -> Option<StreamSweepReport> {
        let best = self.best()?;
        let knee = self.points.iter().find(|point| self.is_enough(point)).copied()?;
        Some(StreamSweepReport {
            knee_streams: knee.streams,
            knee_bits_per_second: knee.bits_per_second,
            best_streams: best.streams,
            best_bits_per_second: best.bits_per_second,
            knee_percent: self.options.knee_percent,
            still_rising: self.still_rising,
            points: self.points.clone(),
        })
    }

    fn best(&self) -> Option<SweepPoint> {
        self.points.iter().copied().max_by(|a, b| a.bits_per_second.total_cmp(&b.bits_per_second))
    }

    fn is_enough(&self, point: &SweepPoint) -> bool {
        let best = self.best().map_or(0.0, |best| best.bits_per_second);
        point.bits_per_second >= best * (1.0 - self.options.knee_percent / 100.0)
    }

    /// Largest number below the first sufficient one, and that one.
    fn bracket(&self) -> (u32, u32) {
        let place = self.points.iter().position(|point| self.is_enough(point)).unwrap_or(0);
        let below = place.checked_sub(1).map_or(0, |place| self.points[place].streams);
        (below, self.points[place].streams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(options: SweepOptions, rate: impl Fn(u32) -> f64) -> (StreamSweepReport, Vec<u32>) {
        let mut sweep = StreamSweep::new(options);
        let mut tried = Vec::new();
        while let Some(streams) = sweep.next() {
            tried.push(streams);
            assert!(tried.len() < 30, "{tried:?}");
            sweep.record(SweepPoint {
                streams,
                bits_per_second: rate(streams),
                retransmits: 0,
                cpu_local_percent: 0.0,
                cpu_remote_percent: 0.0,
            });
        }
        (sweep.report().unwrap(), tried)
    }

    #[test]
    fn finds_the_four_threads_of_sc23() {
        let rate = |streams: u32| match streams {
            0..=3 => f64::from(streams) * 50.0,
            4 => 197.9,
            _ => 198.2,
        };
        let (report, tried) = sweep(SweepOptions::default(), rate);
        assert_eq!(tried, [1, 2, 4, 8, 3]);
        assert_eq!((report.knee_streams, report.best_streams), (4, 8));
        assert!(!report.still_rising);
    }

    #[test]
    fn refines_between_powers_of_two() {
        let (report, tried) = sweep(SweepOptions::default(), |n| f64::from(n.min(11)));
        assert_eq!(tried, [1, 2, 4, 8, 16, 32, 12, 10, 11]);
        assert_eq!(report.knee_streams, 11);
    }

    #[test]
    fn sweep_handles_one_and_maximum_streams() {
        let (report, tried) = sweep(SweepOptions::default(), |_| 10.0);
        assert_eq!((report.knee_streams, tried), (1, vec![1, 2]));
        let options = SweepOptions { streams_max: 6, ..SweepOptions::default() };
        let (report, tried) = sweep(options, f64::from);
        assert_eq!(tried, [1, 2, 4, 6, 5]);
        assert!(report.still_rising);
        let options = SweepOptions { streams_max: 1, ..SweepOptions::default() };
        assert_eq!(sweep(options, f64::from).1, [1]);
    }
}
