//! From samples to rates: sums with their error, shares of a counted total, and how well samples and
//! counters agree.
//!
//! A packet that was sampled 1 of r stands for r packets. All errors here are half-widths of the 95 %
//! interval of a normal distribution, which is a good one from some 30 samples on.
//!
//! | what | estimate | 95 % half-width | source |
//! |---|---|---|---|
//! | packets | Σ r | 1.96 √Σ r(r−1) | Horvitz and Thompson 1952, independent draws |
//! | bytes | Σ r·L | 1.96 √Σ r(r−1)L² | the same |
//! | n of a class, all of one size | | 196 √(1/n) % | sflow.org, Packet Sampling Basics; the above for large r |
//! | packets of a class, N counted, c of n samples | N·c/n | 1.96 N √(c/n (1−c/n)/n) | the same |
//! | bytes of a class, T counted | T·X_c/X | see [`Tally::share`] | the ratio estimator, which is the row above for equal sizes |

/// Of a normal distribution: 95 % lie within so many standard deviations.
pub const Z95: f64 = 1.96;

/// A calibration is neither less nor more: beyond it something is wrong that no factor mends.
pub const CALIBRATION_RANGE: (f64, f64) = (0.5, 2.0);

/// Weight of the newest interval in a calibration.
const CALIBRATION_WEIGHT: f64 = 0.3;

/// So many intervals in a row make a disagreement worth telling.
pub const DISAGREEMENTS_TO_TELL: u32 = 3;

/// Samples below which an interval says nothing about calibration.
pub const CALIBRATION_SAMPLES_MIN: u64 = 30;

/// Frames are taken to be no longer when nothing was sampled and something should have been.
pub(crate) const FRAME_BYTES_MAX: f64 = 9_018.0;

/// A number and the half-width of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Half the interval, in the same unit.
    pub error_95: f64,
}

impl Estimate {
    /// The error as a share of the number; infinite where the number is 0 and the error is not.
    #[must_use]
    pub fn relative_error_95(self) -> f64 {
        if self.error_95 == 0.0 { 0.0 } else { self.error_95 / self.value }
    }
}

/// Sums over samples of a class.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tally {
    /// Samples, or flows of an exporter that aggregates.
    pub samples: u64,
    /// Σ r.
    pub packets: u64,
    /// Σ r·L.
    pub bytes: u64,
    packets_variance: f64,
    bytes_variance: f64,
}

/// What one observation adds to each sum that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount(Tally);

impl Amount {
    /// `packets` seen, `bytes` long together, at 1 of `rate`. A rate of 0 is taken as 1.
    #[must_use]
    #[inline]
    pub fn new(rate: u32, packets: u64, bytes: u64) -> Self {
        let rate = u64::from(rate.max(1));
        let each = (rate * (rate - 1)) as f64;
        let (seen, length) = (packets as f64, bytes as f64);
        // Of several packets only the sum is known: each counts with the mean.
        let mean = if packets > 1 { length / seen } else { length };
        Self(Tally {
            samples: 1,
            packets: packets.saturating_mul(rate),
            bytes: bytes.saturating_mul(rate),
            packets_variance: each * seen,
            bytes_variance: each * length * mean,
        })
    }

    /// Estimated bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Variance of the estimated bytes.
    #[must_use]
    pub fn bytes_variance(&self) -> f64 {
        self.0.bytes_variance
    }
}

impl Tally {
    /// Counts an observation.
    #[inline]
    pub fn count(&mut self, amount: &Amount) {
        self.merge(&amount.0);
    }

    /// Counts `packets` seen, `bytes` long together, at 1 of `rate`. A rate of 0 is taken as 1.
    #[inline]
    pub fn add(&mut self, rate: u32, packets: u64, bytes: u64) {
        self.count(&Amount::new(rate, packets, bytes));
    }

    /// Adds what another one counted.
    #[inline]
    pub fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.packets_variance += other.packets_variance;
        self.bytes_variance += other.bytes_variance;
    }

    /// Packets.
    #[must_use]
    pub fn packets(&self) -> Estimate {
        Estimate { value: self.packets as f64, error_95: Z95 * self.packets_variance.sqrt() }
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> Estimate {
        Estimate { value: self.bytes as f64, error_95: Z95 * self.bytes_variance.sqrt() }
    }

    /// Bytes of this class when `total_bytes` were counted of all classes, whose samples are `all`. The
    /// total is exact and the share p = X_c/X is sampled, so the variance is that of a ratio (Cochran,
    /// Sampling Techniques, 3rd ed., 6.3): T²/X² · ((1−p)² V_c + p² (V − V_c)). A share without samples
    /// is 0 with no error told: nothing is known of it.
    #[must_use]
    pub fn share(&self, all: &Self, total_bytes: u64) -> Estimate {
        if all.bytes == 0 {
            return Estimate::default();
        }
        let scale = total_bytes as f64 / all.bytes as f64;
        let share = (self.bytes as f64 / all.bytes as f64).min(1.0);
        let others = (all.bytes_variance - self.bytes_variance).max(0.0);
        let variance = (1.0 - share).powi(2) * self.bytes_variance + share.powi(2) * others;
        // No share is below nothing or above all of it.
        let error = (Z95 * variance.sqrt() * scale).min(total_bytes as f64);
        Estimate { value: share * total_bytes as f64, error_95: error }
    }
}

/// Packets of a class of which `class` of `samples` samples were, when `total_packets` were counted.
#[must_use]
pub fn class_packets(total_packets: u64, samples: u64, class: u64) -> Estimate {
    if samples == 0 {
        return Estimate::default();
    }
    let share = (class as f64 / samples as f64).min(1.0);
    let total = total_packets as f64;
    let error_95 = Z95 * total * (share * (1.0 - share) / samples as f64).sqrt();
    Estimate { value: total * share, error_95 }
}

/// The rate at which packets really were sampled, samples that got lost on the way included.
///
/// `pool` is how far the agent's count of packets went on while `received` samples arrived and `lost`
/// did not. Where the pool makes no sense (an agent that always writes 0, or one that has started over),
/// the loss alone corrects the `nominal` rate.
#[must_use]
pub fn effective_rate(nominal: u32, received: u64, lost: u64, pool: Option<u64>) -> f64 {
    let nominal = f64::from(nominal.max(1));
    if received == 0 {
        return nominal;
    }
    let by_loss = nominal * (1.0 + lost as f64 / received as f64);
    let by_pool = pool.map(|pool| pool as f64 / received as f64);
    // Within a factor of 4 of what the loss explains; beyond that the pool counts something else.
    by_pool.filter(|rate| (by_loss / 4.0..=by_loss * 4.0).contains(rate)).unwrap_or(by_loss)
}

/// How well samples and counters of one direction of an interface agree.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Calibration {
    smoothed: Option<f64>,
    last: Option<Estimate>,
    disagreements: u32,
}

impl Calibration {
    /// An interval in which the counter went on by `counted_bytes` and these samples came, 1 of `rate`
    /// (0 for unknown). Both count the frame with header and check sequence.
    pub fn interval(&mut self, counted_bytes: u64, sampled: &Tally, rate: u32) {
        let bytes = sampled.bytes();
        if sampled.samples < CALIBRATION_SAMPLES_MIN || bytes.value == 0.0 {
            // Nothing where many samples are due is a disagreement, too: this direction is not sampled.
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

    /// What samples are to be multiplied with; 1 until something is known.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.smoothed.unwrap_or(1.0)
    }

    /// Counter over samples in the last interval, where it had samples enough.
    #[must_use]
    pub fn last(&self) -> Option<Estimate> {
        self.last
    }

    /// Samples and counters have disagreed for so long that someone should look: a wrong rate, one
    /// direction alone sampled, a member of an aggregate that is not, samples lost.
    #[must_use]
    pub fn disagrees(&self) -> bool {
        self.disagreements >= DISAGREEMENTS_TO_TELL
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tally(samples: u64, rate: u32, bytes: u64) -> Tally {
        let mut tally = Tally::default();
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
    fn the_simple_bound_is_met() {
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
        // Pools that make no sense: never written, or started over.
        assert_eq!(effective_rate(1_000, 100, 25, Some(0)), 1_250.0);
        assert_eq!(effective_rate(1_000, 100, 25, Some(4_294_900_000)), 1_250.0);
        assert_eq!(effective_rate(0, 0, 0, None), 1.0);
    }

    #[test]
    fn calibration_follows_what_chance_does_not_explain() {
        let samples = tally(10_000, 1_000, 1_500);
        let counted = samples.bytes;
        let mut right = Calibration::default();
        (0..10).for_each(|_| right.interval(counted + counted / 100, &samples, 1_000));
        assert_eq!((right.factor(), right.disagrees()), (1.0, false));
        let mut wrong = Calibration::default();
        (0..2).for_each(|_| wrong.interval(counted * 3 / 2, &samples, 1_000));
        assert!(!wrong.disagrees());
        (0..20).for_each(|_| wrong.interval(counted * 3 / 2, &samples, 1_000));
        assert!(wrong.disagrees() && (wrong.factor() - 1.5).abs() < 0.01, "{wrong:?}");
        let mut absurd = Calibration::default();
        (0..50).for_each(|_| absurd.interval(counted * 1_000, &samples, 1_000));
        assert!(absurd.factor() <= CALIBRATION_RANGE.1);
        // Nothing sampled: little traffic explains it, much does not.
        let silent = |counted, rate| {
            let mut silent = Calibration::default();
            (0..3).for_each(|_| silent.interval(counted, &Tally::default(), rate));
            (silent.factor(), silent.disagrees())
        };
        assert_eq!(silent(1_000_000, 1_000), (1.0, false));
        assert_eq!(silent(1_000_000_000, 1_000), (1.0, true));
        assert_eq!(silent(1_000_000_000, 0), (1.0, false));
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        // A population of two classes with mixed sizes, sampled 1 of 50 with a generator of its own.
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (trials, mut held, mut share_held) = (400, 0, 0);
        for _ in 0..trials {
            let (mut truth, mut total) = (0_u64, 0_u64);
            let (mut class, mut all) = (Tally::default(), Tally::default());
            for _ in 0..20_000 {
                let bytes = if random() % 3 == 0 { 90 } else { 1_518 };
                let ours = random() % 4 == 0;
                total += bytes;
                truth += if ours { bytes } else { 0 };
                if random() % 50 == 0 {
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
        #[test]
        fn sums_neither_overflow_nor_turn_negative(
            samples in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>()), 0..20),
            total: u64,
        ) {
            let (mut all, mut class) = (Tally::default(), Tally::default());
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
