//! Traffic estimator: counters give the amount, samples its composition.
//!
//! A stratum is one direction of one interface of an exporter. Its packets are sampled
//! independently of each other, and its octets may be counted. A class (a label, a VLAN, a site,
//! ...) has traffic in many strata.
//!
//! | quantity | estimate | variance |
//! |---|---|---|
//! | a class without counters | x = Σ rL | V = Σ r(r−1)L² (Horvitz and Thompson 1952) |
//! | a stratum, the share φ of whose samples are of time that its counter covers | T + (1−φ)X | W + (1−φ)V |
//! | a class in such a stratum, p = x/X | p times the above | g²((1−2p)v + p²V) + p²(W + (1−φ)V), g the above by X (Cochran, Sampling Techniques, 3rd ed., 6.3) |
//! | a part of a counter's interval, see [`spread`] | T·x'/X' | (T/X')²((1−f)²v + f²(V−v)), f = x'/X' |
//!
//! A stratum with fewer than [`SEPARATE_SAMPLES_MIN`] samples has no ratio of its own, because the
//! bias of a ratio grows with few samples (Cochran 6.12): such strata share one, the combined ratio
//! (6.11).
//!
//! **Few samples.** The half-width of the 95 % interval is 1.96 √(V + [`PSEUDO_SAMPLES`]·u²), where
//! u is the weight of one sample in bytes. The second term vanishes for many samples; without
//! samples it makes the half-width that of the 95 % Poisson bound, 3 samples: traffic of three
//! samples' weight goes unsampled in one of e³ = 20 cases. u is Σ(rL)² by ΣrL of the class, but not
//! less than that of all traffic of its strata while the class has fewer than [`UNIT_SAMPLES_MIN`]
//! samples, which may all be short packets.
//!
//! **Assumptions.** Draws are independent (a sampler that takes every N-th packet of a mix in
//! random order comes close). All strata of a view see different packets. Samples and counters of
//! an exporter have about the same delay, short compared with the queried time. Traffic of an
//! interval without samples is spread evenly. A counter counts the frames from which samples are
//! drawn. Exporters that send nothing are unknown.

use crate::rates::Z_SCORE_95;

/// Three samples by 1.96, squared: see the module.
pub const PSEUDO_SAMPLES: f64 = (3.0 / Z_SCORE_95) * (3.0 / Z_SCORE_95);

/// Fewest samples of a stratum with a separate ratio.
pub const SEPARATE_SAMPLES_MIN: f64 = 30.0;

/// Fewest samples of a class from which its mean sample weight is used.
pub const UNIT_SAMPLES_MIN: f64 = 100.0;

/// Samples, spread evenly, added to an interval before it is divided: few samples say little about
/// time.
const EVEN_SAMPLES: f64 = 4.0;

/// A sum of samples, possibly scaled to a counter.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sum {
    /// Estimated bytes of the traffic.
    pub bytes: f64,
    /// Variance of the bytes.
    pub variance: f64,
    /// Sum of the squares of the samples' weights.
    pub squares: f64,
    /// Sum of the bytes times the weight of one sample of all traffic of their stratum.
    pub pooled: f64,
    /// Bytes that come from counters.
    pub counted: f64,
    /// Share of the sum that counters cover, 0 to 1: it hides no unsampled traffic.
    pub certain: f64,
}

impl Sum {
    /// Sum of samples, whose variance is that of independent draws.
    #[must_use]
    pub fn sampled(bytes: f64, variance: f64) -> Self {
        Self { bytes, variance, squares: variance, ..Self::default() }
    }

    /// Adds an independent sum.
    pub fn add(&mut self, other: Self) {
        if *self == Self::default() {
            *self = other;
            return;
        }
        self.bytes += other.bytes;
        self.variance += other.variance;
        self.squares += other.squares;
        self.pooled += other.pooled;
        self.counted += other.counted;
        self.certain = self.certain.min(other.certain);
    }

    /// Weight of one sample in bytes; 0 if every packet was counted.
    #[must_use]
    pub fn unit(&self) -> f64 {
        if self.bytes > 0.0 { self.squares / self.bytes } else { 0.0 }
    }

    /// The sum, in a stratum where one sample of all traffic weighs `unit` bytes.
    #[must_use]
    pub fn within(self, unit: f64) -> Self {
        Self { pooled: self.bytes * unit, ..self }
    }

    /// Weight of one sample of all traffic of its strata, in bytes; 0 if unknown.
    #[must_use]
    pub fn pooled_unit(&self) -> f64 {
        if self.bytes > 0.0 { self.pooled / self.bytes } else { 0.0 }
    }

    /// Count of equal samples with the same relative error; infinite if every packet was counted.
    #[must_use]
    pub fn samples(&self) -> f64 {
        match self.unit() {
            _ if self.bytes <= 0.0 => 0.0,
            unit if unit > 0.0 => self.bytes / unit,
            _ => f64::INFINITY,
        }
    }

    /// Half-width of the 95 % interval. `unit` is the weight of one sample of all traffic, if that
    /// of its own strata is unknown.
    #[must_use]
    pub fn half_width(&self, unit: f64) -> f64 {
        let known = self.samples() >= UNIT_SAMPLES_MIN && self.certain <= 0.0;
        let pooled = if self.pooled > 0.0 { self.pooled_unit() } else { unit };
        let unit = if known { self.unit() } else { pooled.max(self.unit()) };
        let unit = unit * (1.0 - self.certain);
        Z_SCORE_95 * (self.variance + PSEUDO_SAMPLES * unit * unit).sqrt()
    }
}

/// Counted octets of a stratum in a time span.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CounterEstimate {
    /// Counted octets in the span.
    pub bytes: f64,
    /// Variance of the octets, if counter intervals end within the span.
    pub variance: f64,
    /// Share of the samples in the time that the counter covers, 0 to 1; without samples, share of
    /// the time.
    pub covered: f64,
}

/// Samples and counter of a stratum over the same time span.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stratum {
    /// Sum of all its samples.
    pub sampled: Sum,
    /// Octets of its counter.
    pub counted: CounterEstimate,
}

impl Stratum {
    /// Total traffic: counted where the counter covers, sampled elsewhere.
    #[must_use]
    pub fn total(&self) -> Sum {
        let rest = 1.0 - self.counted.covered;
        let Sum { bytes, variance, .. } = self.sampled;
        Sum {
            bytes: self.counted.bytes + rest * bytes,
            variance: self.counted.variance + rest * variance,
            squares: rest * self.sampled.squares,
            pooled: rest * self.sampled.pooled,
            counted: self.counted.bytes,
            certain: self.counted.covered,
        }
    }

    /// Returns true if the counter is usable. One that stands still while many packets are sampled
    /// counts nothing.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        let still = self.counted.bytes <= 0.0 && self.sampled.samples() >= SEPARATE_SAMPLES_MIN;
        self.counted.covered > 0.0 && !still
    }

    /// Adds a stratum with which it shares a ratio.
    pub fn merge(&mut self, other: &Self) {
        // The covered share, weighted by traffic.
        let (ours, theirs) = (self.total(), other.total());
        let rest = |one: &Self| (1.0 - one.counted.covered) * one.sampled.bytes;
        let rests = rest(self) + rest(other);
        self.sampled.add(other.sampled);
        let all = self.sampled.bytes;
        self.counted.covered = if all > 0.0 { 1.0 - rests / all } else { 1.0 };
        self.counted.bytes = ours.bytes + theirs.bytes - rests;
        let left = 1.0 - self.counted.covered;
        let variance = ours.variance + theirs.variance - left * self.sampled.variance;
        self.counted.variance = variance.max(0.0);
    }

    /// Scales a class of its samples to the stratum's total.
    #[must_use]
    pub fn class(&self, class: Sum) -> Sum {
        if self.sampled.bytes <= 0.0 {
            return class;
        }
        let total = self.total();
        let factor = total.bytes / self.sampled.bytes;
        let share = (class.bytes / self.sampled.bytes).clamp(0.0, 1.0);
        let ratio = (1.0 - 2.0 * share) * class.variance + share * share * self.sampled.variance;
        let certain = self.counted.covered;
        // A share of a certain total is itself uncertain: (1−p)² + p² as of a proportion.
        let binomial = ((1.0 - share).powi(2) + share * share).sqrt();
        let pseudo = certain * binomial + (1.0 - certain);
        Sum {
            bytes: factor * class.bytes,
            variance: factor * factor * ratio.max(0.0) + share * share * total.variance,
            squares: factor * factor * class.squares * pseudo,
            pooled: factor * factor * class.pooled * pseudo,
            ..Sum::default()
        }
    }
}

/// Share of a part in a counter interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct IntervalShare {
    /// Share of the octets, 0 to 1.
    pub share: f64,
    /// Variance of its samples by the square of all samples: see [`between`].
    pub variance: f64,
}

/// Divides an interval among its parts by their samples, or evenly without samples. `parts` are
/// seconds and samples.
#[must_use]
pub fn spread(parts: &[(f64, Sum)]) -> Vec<IntervalShare> {
    let length: f64 = parts.iter().map(|(seconds, _)| seconds).sum();
    let mut all = Sum::default();
    parts.iter().for_each(|(_, sum)| all.add(*sum));
    let even = EVEN_SAMPLES * all.unit();
    let whole = all.bytes + even;
    let part = |(seconds, sum): &(f64, Sum)| {
        let of_time = if length > 0.0 { seconds / length } else { 0.0 };
        if whole <= 0.0 {
            return IntervalShare { share: of_time, variance: 0.0 };
        }
        let share = (sum.bytes + even * of_time) / whole;
        IntervalShare { share, variance: sum.variance / (whole * whole) }
    };
    parts.iter().map(part).collect()
}

/// Octets of some parts of an interval of `total` octets: their sum and its variance. The whole is
/// exact. `all` is the sum of the variances of all parts; without samples the distribution over
/// time is unknown.
#[must_use]
pub fn between(total: f64, share: f64, variance: f64, all: f64) -> (f64, f64) {
    let share = share.clamp(0.0, 1.0);
    if share >= 1.0 - 1e-9 {
        return (total, 0.0);
    }
    let ratio = (1.0 - share).powi(2) * variance + share * share * (all - variance).max(0.0);
    // Uniform between nothing and all has a variance of a twelfth.
    let unknown = if all > 0.0 { 0.0 } else { share * (1.0 - share) / 3.0 };
    (total * share, total * total * (ratio + unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_sampled_has_poisson_bound() {
        let none = Sum::default();
        assert!((none.half_width(1_000.0) - 3_000.0).abs() < 1e-6);
        assert_eq!(none.half_width(0.0), 0.0);
        // Every packet counted is exact.
        assert_eq!(Sum::sampled(5.0, 0.0).half_width(0.0), 0.0);
        // Many samples: 196/√n percent.
        let many = Sum::sampled(10_000.0, 10_000.0);
        assert!((many.half_width(50.0) / 10_000.0 - 0.0196).abs() < 1e-4);
    }

    #[test]
    fn uncovered_time_is_sampled() {
        let sampled = Sum::sampled(1_000.0, 100.0);
        let counted = CounterEstimate { bytes: 1_500.0, variance: 9.0, covered: 0.75 };
        let stratum = Stratum { sampled, counted };
        assert_eq!((stratum.total().bytes, stratum.total().variance), (1_750.0, 9.0 + 25.0));
        // All of it is the class: its total.
        let all = stratum.class(sampled);
        assert!((all.bytes - 1_750.0).abs() < 1e-9 && (all.variance - 34.0).abs() < 1e-9);
        let half = stratum.class(Sum::sampled(500.0, 50.0));
        assert!((half.bytes - 875.0).abs() < 1e-9, "{half:?}");
        assert!((half.variance - (1.75_f64.powi(2) * 25.0 + 34.0 / 4.0)).abs() < 1e-9);
        // Counted traffic hides nothing.
        let counted = CounterEstimate { covered: 1.0, ..CounterEstimate::default() };
        assert_eq!(Stratum { counted, ..stratum }.total().half_width(1e6), 0.0);
        assert!(!Stratum { sampled: Sum::sampled(1e6, 1e3), ..Stratum::default() }.is_counted());
    }

    #[test]
    fn merged_strata_keep_their_total() {
        let one = Stratum {
            sampled: Sum::sampled(100.0, 10.0),
            counted: CounterEstimate { bytes: 90.0, variance: 1.0, covered: 1.0 },
        };
        let other = Stratum {
            sampled: Sum::sampled(300.0, 30.0),
            counted: CounterEstimate { bytes: 100.0, variance: 2.0, covered: 0.5 },
        };
        let silent = Stratum {
            sampled: Sum::default(),
            counted: CounterEstimate { bytes: 7.0, variance: 0.0, covered: 1.0 },
        };
        let mut merged = one;
        merged.merge(&other);
        merged.merge(&silent);
        let sum = one.total().bytes + other.total().bytes + 7.0;
        assert!((merged.total().bytes - sum).abs() < 1e-9, "{merged:?}");
        assert!((merged.total().variance - (1.0 + 2.0 + 0.5 * 30.0)).abs() < 1e-9);
        assert!((merged.class(merged.sampled).bytes - sum).abs() < 1e-9);
    }

    #[test]
    fn interval_is_divided_by_samples() {
        // 30 samples in one part, 10 in the other, each of weight 1.
        let parts = [(1.0, Sum::sampled(30.0, 30.0)), (1.0, Sum::sampled(10.0, 10.0))];
        let spread = spread(&parts);
        assert!((spread[0].share - 32.0 / 44.0).abs() < 1e-9, "{spread:?}");
        let all = spread.iter().map(|part| part.variance).sum();
        let (octets, variance) = between(4_400.0, spread[0].share, spread[0].variance, all);
        assert!((octets - 3_200.0).abs() < 1e-6);
        // As of a proportion: T² p(1−p)/n, a little less by the samples that were added.
        let expected = 4_400.0_f64.powi(2) * 0.75 * 0.25 / 40.0;
        assert!((0.7..1.1).contains(&(variance / expected)), "{variance} and {expected}");
        assert_eq!(between(4_400.0, 1.0, all, all), (4_400.0, 0.0));
        // Without samples: by time, with the widest variance.
        let even = super::spread(&[(1.0, Sum::default()), (3.0, Sum::default())]);
        assert_eq!(even[0].share, 0.25);
        let (octets, variance) = between(100.0, 0.25, 0.0, 0.0);
        assert_eq!((octets, variance), (25.0, 625.0));
    }
}
