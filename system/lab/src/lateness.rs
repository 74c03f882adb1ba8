//! How late packets left a line: whether a measurement over it can be believed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of a quarter of an octave, from 1 us to over a minute.
const BUCKETS: usize = 108;

/// Counts of lateness, written by one thread and read by any.
#[derive(Debug)]
pub(crate) struct Lateness([AtomicU64; BUCKETS]);

/// What was counted up to a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counted([u64; BUCKETS]);

impl Default for Lateness {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Lateness {
    /// Counts `packets` that left this much after their time.
    pub(crate) fn count(&self, late: Duration, packets: u64) {
        self.0[bucket(late)].fetch_add(packets, Ordering::Relaxed);
    }

    pub(crate) fn counted(&self) -> Counted {
        Counted(std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed)))
    }
}

impl Counted {
    /// What came after an earlier moment.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].saturating_sub(earlier.0[index])))
    }

    /// The lateness that this share of packets did not exceed, rounded up by at most a quarter; none without packets.
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
    if micros < 1.0 { 0 } else { ((micros.log2() * 4.0) as usize + 1).min(BUCKETS - 1) }
}

fn upper(bucket: usize) -> Duration {
    Duration::from_secs_f64(2_f64.powf(bucket as f64 / 4.0) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_quarter() {
        let lateness = Lateness::default();
        assert_eq!(lateness.counted().quantile(0.5), None);
        for micros in 1..=1000 {
            lateness.count(Duration::from_micros(micros), 1);
        }
        let counted = lateness.counted();
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = counted.quantile(share).unwrap().as_secs_f64() * 1e6;
            assert!((micros..micros * 1.25).contains(&found), "{share}: {found}");
        }
        lateness.count(Duration::from_secs(3600), 1_000_000);
        let later = lateness.counted().since(&counted);
        assert!(later.quantile(0.01).unwrap() > Duration::from_secs(60));
        lateness.count(Duration::ZERO, 1);
    }
}
