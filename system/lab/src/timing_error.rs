//! Histogram of the timing error: how much later than emulated packets left a link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of a quarter of an octave, from 1 us to over a minute.
const HISTOGRAM_BUCKETS: usize = 108;

/// Timing errors, written by one thread and read by any.
#[derive(Debug)]
pub(crate) struct TimingErrorHistogram([AtomicU64; HISTOGRAM_BUCKETS]);

/// A snapshot of the histogram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TimingErrorCounts([u64; HISTOGRAM_BUCKETS]);

impl Default for TimingErrorHistogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl TimingErrorHistogram {
    /// Counts `packets` that left `late` after their time.
    pub(crate) fn count(&self, late: Duration, packets: u64) {
        self.0[bucket(late)].fetch_add(packets, Ordering::Relaxed);
    }

    pub(crate) fn counted(&self) -> TimingErrorCounts {
        TimingErrorCounts(std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed)))
    }
}

impl TimingErrorCounts {
    /// Difference to an earlier snapshot.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].saturating_sub(earlier.0[index])))
    }

    /// Quantile of the timing error, rounded up by at most a quarter; `None` without packets.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.0.iter().sum();
        let mut left = ((all as f64 * share).ceil() as u64).max(1);
        self.0.iter().enumerate().find_map(|(index, count)| {
            left = left.saturating_sub(*count);
            (left == 0 && all > 0).then(|| upper(index))
        })
    }
}

fn bucket(late: Duration) -> usize {
    let micros = late.as_secs_f64() * 1e6;
    if micros < 1.0 { 0 } else { ((micros.log2() * 4.0) as usize + 1).min(HISTOGRAM_BUCKETS - 1) }
}

fn upper(bucket: usize) -> Duration {
    Duration::from_secs_f64(2_f64.powf(bucket as f64 / 4.0) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_quarter() {
        let histogram = TimingErrorHistogram::default();
        assert_eq!(histogram.counted().quantile(0.5), None);
        for micros in 1..=1000 {
            histogram.count(Duration::from_micros(micros), 1);
        }
        let counted = histogram.counted();
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = counted.quantile(share).unwrap().as_secs_f64() * 1e6;
            assert!((micros..micros * 1.25).contains(&found), "{share}: {found}");
        }
        histogram.count(Duration::from_secs(3600), 1_000_000);
        let later = histogram.counted().since(&counted);
        assert!(later.quantile(0.01).unwrap() > Duration::from_secs(60));
        histogram.count(Duration::ZERO, 1);
    }
}
