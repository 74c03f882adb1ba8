//! Slow transfers: an interval in which few blocks arrive says little of the rate, and one without any is no stall. Several of
//! them make one sample.

use super::KneeController;
use crate::bottleneck::waits_for_rate_limit;
use crate::sample::TunerSample;

/// Bytes of an interval below which it is joined with the next ones, and those of a joined sample.
const SLOW_BYTES: u64 = 128 << 10;
const JOINED_BYTES_MIN: u64 = 512 << 10;

/// Most intervals of a joined sample.
const JOINED_INTERVALS_MAX: u32 = 8;

/// Intervals that are being joined.
#[derive(Debug, Clone, Default)]
pub(super) struct JoinedSample {
    sum: Option<TunerSample>,
    intervals: u32,
}

impl KneeController {
    /// Returns the sample to measure, and its number of intervals: `sample` itself, where the transfer is not slow. None
    /// while intervals are being joined.
    pub(super) fn join_slow(&mut self, sample: &TunerSample) -> Option<(TunerSample, u32)> {
        let slow_bps = (SLOW_BYTES * 8) as f64 * 1e6 / sample.interval_us.max(1) as f64;
        let last_bps = self.stall.data_bps();
        // A path that was fast, or has delivered nothing yet, stalls.
        let begins = match sample.bytes {
            0 => waits_for_rate_limit(sample) || last_bps.is_some_and(|rate| rate < slow_bps),
            bytes => bytes < SLOW_BYTES && last_bps.is_none_or(|rate| rate < slow_bps),
        };
        if self.settling > 0 || (self.joined.sum.is_none() && !begins) {
            self.joined = JoinedSample::default();
            // Streams do not settle in a gap.
            return (sample.bytes > 0 || !begins).then_some((*sample, 1));
        }
        let sum = match self.joined.sum.take() {
            Some(sum) => sum.joined(sample),
            None => *sample,
        };
        self.joined.intervals += 1;
        let intervals = self.joined.intervals;
        if sum.bytes < JOINED_BYTES_MIN && intervals < JOINED_INTERVALS_MAX {
            self.joined.sum = Some(sum);
            return None;
        }
        self.joined = JoinedSample::default();
        Some((sum, intervals))
    }
}
