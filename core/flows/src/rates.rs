//! Rates from samples: sums with their error, shares of a counted total, and calibration of samples
//! by counters.
//!
//! A packet sampled 1 of r counts for r packets. All errors here are half-widths of the 95 %
//! interval of a normal distribution, a good approximation from about 30 samples on.
//!
//! | quantity | estimate | 95 % half-width | source |
//! |---|---|---|---|
//! | packets | Σ r | 1.96 √Σ r(r−1) | Horvitz and Thompson 1952, independent draws |
//! | bytes | Σ r·L | 1.96 √Σ r(r−1)L² | the same |
//! | n of a class, all of one size | | 196 √(1/n) % | sflow.org, Packet Sampling Basics; the above for large r |
//! | packets of a class, N counted, c of n samples | N·c/n | 1.96 N √(c/n (1−c/n)/n) | the same |
//! | bytes of a class, T counted | T·X_c/X | see [`SampleTally::share`] | the ratio estimator, which is the row above for equal sizes |

use std::time::Duration;

/// Standard deviations of a normal distribution that include 95 %.
pub const Z_SCORE_95: f64 = 1.96;

/// Rate in bits per second that no line exceeds.
pub const LINE_BPS_MAX: u64 = 10_000_000_000_000;

/// Bounds of a calibration factor; beyond them no factor corrects the fault.
pub const CALIBRATION_RANGE: (f64, f64) = (0.5, 2.0);

/// Weight of the newest interval in a calibration.
const CALIBRATION_WEIGHT: f64 = 0.3;

/// Consecutive intervals that make a disagreement worth reporting.
pub const DISAGREEMENTS_TO_REPORT: u32 = 3;

/// Fewest samples of an interval that calibrate.
pub const CALIBRATION_SAMPLES_MIN: u64 = 30;

/// Shortest frame of Ethernet.
const FRAME_BYTES_MIN: f64 = 64.0;

/// Longest expected frame, to compute how many samples are missing.
pub(crate) const FRAME_BYTES_MAX: f64 = 9_018.0;

/// A value with the half-width of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// Estimated value, in the unit of the estimate.
    pub value: f64,
    /// Half-width of the interval, in the same unit.
    pub error_95: f64,
}

impl Estimate {
    /// Error relative to the value; infinite if only the value is 0.
    #[must_use]
    pub fn relative_error_95(self) -> f64 {
        if self.error_95 == 0.0 { 0.0 } else { self.error_95 / self.value }
    }
}

/// Sums over the samples of a class.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SampleTally {
    /// Samples, or flows of an exporter that aggregates.
    pub samples: u64,
    /// Estimated packets, Σ r.
    pub packets: u64,
    /// Estimated bytes, Σ r·L.
    pub bytes: u64,
    packets_variance: f64,
    bytes_variance: f64,
}

/// Increment of one observation to each of its sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount(SampleTally);

impl Amount {
    /// Increment of `packets` packets with `bytes` bytes in total, sampled 1 of `rate`. A rate of 0
    /// counts as 1.
    #[must_use]
    #[inline]
    pub fn new(rate: u32, packets: u64, bytes: u64) -> Self {
        let rate = u64::from(rate.max(1));
        let each = (rate * (rate - 1)) as f64;
        let (seen, length) = (packets as f64, bytes as f64);
        // Of several packets only the total is known: each counts with the mean.
        let mean = if packets > 1 { length / seen } else { length };
        Self(SampleTally {
            samples: 1,
            packets: packets.saturating_mul(rate),
            bytes: bytes.saturating_mul(rate),
            packets_variance: each * seen,
            bytes_variance: each * length * mean,
        })
    }

    /// Estimated bytes of the observation.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Returns true unless it is more than a line of [`LINE_BPS_MAX`] carries in this time.
    #[must_use]
    pub fn fits(&self, time: Duration) -> bool {
        let bytes_max = LINE_BPS_MAX as f64 / 8.0 * time.as_secs_f64();
        self.0.bytes as f64 <= bytes_max && self.0.packets as f64 * FRAME_BYTES_MIN <= bytes_max
    }

    /// Variance of the estimated bytes.
    #[must_use]
    pub fn bytes_variance(&self) -> f64 {
        self.0.bytes_variance
    }
}

impl SampleTally {
    /// Adds the increment of one observation.
    #[inline]
    pub fn count(&mut self, amount: &Amount) {
        self.merge(&amount.0);
    }

    /// Adds `packets` packets with `bytes` bytes in total, sampled 1 of `rate`. A rate of 0 counts
    /// as 1.
    #[inline]
    pub fn add(&mut self, rate: u32, packets: u64, bytes: u64) {
        self.count(&Amount::new(rate, packets, bytes));
    }

    /// Adds another sum to this one.
    #[inline]
    pub fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.packets_variance += other.packets_variance;
        self.bytes_variance += other.bytes_variance;
    }

    /// Estimated packets with their error.
    #[must_use]
    pub fn packets(&self) -> Estimate {
        Estimate { value: self.packets as f64, error_95: Z_SCORE_95 * self.packets_variance.sqrt() }
    }

    /// Estimated bytes with their error.
    #[must_use]
    pub fn bytes(&self) -> Estimate {
        Estimate { value: self.bytes as f64, error_95: Z_SCORE_95 * self.bytes_variance.sqrt() }
    }

    /// Bytes of this class if `total_bytes` were counted of all classes, whose samples are `all`.
    /// The total is exact and the share p = X_c/X is sampled, so the variance is that of a ratio
    /// (Cochran, Sampling Techniques, 3rd ed., 6.3): T²/X² · ((1−p)² V_c + p² (V − V_c)). A share
    /// without samples is 0 without an error: it is unknown.
    #[must_use]
    pub fn share(&self, all: &Self, total_bytes: u64) -> Estimate {
        if all.bytes == 0 {
            return Estimate::default();
        }
        let scale = total_bytes as f64 / all.bytes as f64;
        let share = (self.bytes as f64 / all.bytes as f64).min(1.0);
        let others = (all.bytes_variance - self.bytes_variance).max(0.0);
        let variance = (1.0 - share).powi(2) * self.bytes_variance + share.powi(2) * others;
        // A share lies between nothing and all.
        let error = (Z_SCORE_95 * variance.sqrt() * scale).min(total_bytes as f64);
        Estimate { value: share * total_bytes as f64, error_95: error }
    }
}

/// Packets of a class with `class` of `samples` samples, if `total_packets` were counted.
#[must_use]
pub fn class_packets(total_packets: u64, samples: u64, class: u64) -> Estimate {
    if samples == 0 {
        return Estimate::default();
    }
    let share = (class as f64 / samples as f64).min(1.0);
    let total = total_packets as f64;
    let error_95 = Z_SCORE_95 * total * (share * (1.0 - share) / samples as f64).sqrt();
    Estimate { value: total * share, error_95 }
}

/// Effective sampling rate, with lost samples.
///
/// `pool` is the increase of the agent's packet count while `received` samples arrived and `lost`
/// did not. If the pool is implausible (an agent that always writes 0, or one that restarted), the
/// loss alone corrects the `nominal` rate.
#[must_use]
pub fn effective_rate(nominal: u32, received: u64, lost: u64, pool: Option<u64>) -> f64 {
    let nominal = f64::from(nominal.max(1));
    if received == 0 {
        return nominal;
    }
    let by_loss = nominal * (1.0 + lost as f64 / received as f64);
    let by_pool = pool.map(|pool| pool as f64 / received as f64);
    // Within a factor of 4 of what the loss explains; otherwise the pool counts something else.
    by_pool.filter(|rate| (by_loss / 4.0..=by_loss * 4.0).contains(rate)).unwrap_or(by_loss)
}

/// Agreement of samples and counters of one direction of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplingCalibration {
    smoothed: Option<f64>,
    last: Option<Estimate>,
    disagreements: u32,
}

impl SamplingCalibration {
    /// Processes an interval with `counted_bytes` by the counter and these samples, 1 of `rate` (0
    /// if unknown). Both count the frame with header and check sequence.
    pub fn interval(&mut self, counted_bytes: u64, sampled: &SampleTally, rate: u32) {
        let bytes = sampled.bytes();
        if sampled.samples < CALIBRATION_SAMPLES_MIN || bytes.value == 0.0 {
            // No samples where many are expected is a disagreement, too: this direction is not
            // sampled.
            let due = counted_bytes as f64 / (f64::from(rate) * FRAME_BYTES_MAX);
            let silent = sampled.samples == 0 && rate > 0 && due >= CALIBRATION_SAMPLES_MIN as f64;
            self.disagreements = if silent { self.disagreements.saturating_add(1) } else { 0 };
            self.last = None;
            return;
        }
        let factor = counted_bytes as f64 / bytes.value;
        let error = factor * bytes.relative_error_95();
        self.last = Some(Estimate { value: factor, error_95: error });
        if (factor - 1.0).abs() <= error {
            // Chance explains it; drift back to 1.
            self.disagreements = 0;
            self.smooth(1.0);
        } else {
            self.disagreements = self.disagreements.saturating_add(1);
            self.smooth(factor.clamp(CALIBRATION_RANGE.0, CALIBRATION_RANGE.1));
        }
    }

    fn smooth(&mut self, factor: f64) {
        let before = self.smoothed.unwrap_or(1.0);
        self.smoothed = Some(before + CALIBRATION_WEIGHT * (factor - before));
    }

    /// Factor to correct samples with; 1 until calibrated.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.smoothed.unwrap_or(1.0)
    }

    /// Counter divided by samples in the last interval, if it had enough samples.
    #[must_use]
    pub fn last(&self) -> Option<Estimate> {
        self.last
    }

    /// Returns true after lasting disagreement of samples and counters, which an operator should
    /// check: a wrong rate, only one direction sampled, an unsampled member of an aggregate, lost
    /// samples.
    #[must_use]
    pub fn disagrees(&self) -> bool {
        self.disagreements >= DISAGREEMENTS_TO_REPORT
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tally(samples: u64, rate: u32, bytes: u64) -> SampleTally {
        let mut tally = SampleTally::default();
        (0..samples).for_each(|_| tally.add(rate, 1, bytes));
        tally
    }

    #[test]
    fn the_published_example() {
        // sflow.org, Packet Sampling Basics: 1,000,000 packets, 2,500 samples, 1,000 of the class.
        let class = class_packets(1_000_000, 2_500, 1_000);
        assert_eq!(class.value, 400_000.0);
        assert!((class.error_95 - 19_204.0).abs() < 1.0, "{class:?}");
        // The same by shares of bytes, all packets alike: the formulas are one.
        let (class, all) = (tally(1_000, 400, 1_500), tally(2_500, 400, 1_500));
        let share = class.share(&all, 1_500_000_000);
        assert_eq!(share.value, 600_000_000.0);
        assert!((share.error_95 / 1_500.0 - 19_204.0).abs() < 30.0, "{share:?}");
    }

    #[test]
    fn simple_error_bound_is_met() {
        for (samples, percent) in [(1_537, 5.0), (38_416, 1.0), (2_500, 3.92)] {
            let relative = 100.0 * tally(samples, 100_000, 9_018).bytes().relative_error_95();
            assert!((relative - percent).abs() < 0.01, "{samples}: {relative}");
        }
        // Every packet taken is no estimate.
        assert_eq!(tally(10, 1, 100).bytes(), Estimate { value: 1000.0, error_95: 0.0 });
    }

    #[test]
    fn lost_samples_raise_the_rate() {
        assert_eq!(effective_rate(1_000, 100, 0, None), 1_000.0);
        assert_eq!(effective_rate(1_000, 100, 25, None), 1_250.0);
        assert_eq!(effective_rate(1_000, 100, 25, Some(130_000)), 1_300.0);
        // Implausible pools: never written, or restarted.
        assert_eq!(effective_rate(1_000, 100, 25, Some(0)), 1_250.0);
        assert_eq!(effective_rate(1_000, 100, 25, Some(4_294_900_000)), 1_250.0);
        assert_eq!(effective_rate(0, 0, 0, None), 1.0);
    }

    #[test]
    fn calibration_corrects_only_significant_deviation() {
        let samples = tally(10_000, 1_000, 1_500);
        let counted = samples.bytes;
        let mut right = SamplingCalibration::default();
        (0..10).for_each(|_| right.interval(counted + counted / 100, &samples, 1_000));
        assert_eq!((right.factor(), right.disagrees()), (1.0, false));
        let mut wrong = SamplingCalibration::default();
        (0..2).for_each(|_| wrong.interval(counted * 3 / 2, &samples, 1_000));
        assert!(!wrong.disagrees());
        (0..20).for_each(|_| wrong.interval(counted * 3 / 2, &samples, 1_000));
        assert!(wrong.disagrees() && (wrong.factor() - 1.5).abs() < 0.01, "{wrong:?}");
        let mut absurd = SamplingCalibration::default();
        (0..50).for_each(|_| absurd.interval(counted * 1_000, &samples, 1_000));
        assert!(absurd.factor() <= CALIBRATION_RANGE.1);
        // Nothing sampled: little traffic explains it, much does not.
        let silent = |counted, rate| {
            let mut silent = SamplingCalibration::default();
            (0..3).for_each(|_| silent.interval(counted, &SampleTally::default(), rate));
            (silent.factor(), silent.disagrees())
        };
        assert_eq!(silent(1_000_000, 1_000), (1.0, false));
        assert_eq!(silent(1_000_000_000, 1_000), (1.0, true));
        assert_eq!(silent(1_000_000_000, 0), (1.0, false));
    }

    #[test]
    fn confidence_interval_has_nominal_coverage() {
        // A population of two classes with mixed sizes, sampled 1 of 50 with its own generator.
        let mut random = penstock_random::Random::new(1);
        let (trials, mut held, mut share_held) = (400, 0, 0);
        for _ in 0..trials {
            let (mut truth, mut total) = (0_u64, 0_u64);
            let (mut class, mut all) = (SampleTally::default(), SampleTally::default());
            for _ in 0..20_000 {
                let bytes = if random.one_in(3) { 90 } else { 1_518 };
                let ours = random.one_in(4);
                total += bytes;
                truth += if ours { bytes } else { 0 };
                if random.one_in(50) {
                    all.add(50, 1, bytes);
                    if ours {
                        class.add(50, 1, bytes);
                    }
                }
            }
            let within =
                |estimate: Estimate| (estimate.value - truth as f64).abs() <= estimate.error_95;
            held += u32::from(within(class.bytes()));
            share_held += u32::from(within(class.share(&all, total)));
        }
        // 380 of 400 are expected, with a standard deviation of 4.4.
        assert!((362..=396).contains(&held), "{held}");
        assert!((362..=396).contains(&share_held), "{share_held}");
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn sums_neither_overflow_nor_turn_negative(
            samples in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>()), 0..20),
            total: u64,
        ) {
            let (mut all, mut class) = (SampleTally::default(), SampleTally::default());
            for (at, (rate, packets, bytes)) in samples.iter().enumerate() {
                all.add(*rate, *packets, *bytes);
                if at % 2 == 0 {
                    class.add(*rate, *packets, *bytes);
                }
            }
            for estimate in [all.packets(), all.bytes(), class.share(&all, total)] {
                prop_assert!(estimate.value >= 0.0 && estimate.error_95 >= 0.0, "{:?}", estimate);
            }
        }
    }
}
