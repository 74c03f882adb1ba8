//! Quantiles of a few weighted observations.

use serde::{Deserialize, Serialize};

/// Quantiles of a forecast: 10 %, 50 % and 90 % of outcomes are at most this.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ForecastQuantiles {
    /// Value that 10 % of outcomes do not exceed.
    pub p10: f64,
    /// Median of the outcomes, as far as known.
    pub p50: f64,
    /// Value that 90 % of outcomes do not exceed.
    pub p90: f64,
}

impl ForecastQuantiles {
    /// Quantiles of `constant / x`.
    #[must_use]
    pub fn reciprocal(self, constant: f64) -> Self {
        Self { p10: constant / self.p90, p50: constant / self.p50, p90: constant / self.p10 }
    }

    /// Quantiles of `factor * x`, for a positive factor.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { p10: self.p10 * factor, p50: self.p50 * factor, p90: self.p90 * factor }
    }
}

/// Observations with weights, sorted by value.
///
/// The next observation has weight 1 and any rank, as in split conformal prediction (Vovk et al., Algorithmic Learning in a
/// Random World, 2005): quantiles of few observations are wide, at most their range.
#[derive(Debug, Clone)]
pub struct WeightedValues(Vec<(f64, f64)>);

/// Relative tolerance of sums of weights.
const WEIGHT_TOLERANCE: f64 = 1e-9;

impl WeightedValues {
    /// Takes pairs of value and weight; drops those that are not finite or whose weight is not positive.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let is_usable =
            |(value, weight): &(f64, f64)| value.is_finite() && weight.is_finite() && *weight > 0.0;
        let mut values: Vec<_> = values.into_iter().filter(is_usable).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self(values)
    }

    fn weight(&self) -> f64 {
        self.0.iter().map(|(_, weight)| weight).sum()
    }

    /// Smallest value such that those up to it have the share `p` of all weight; the greatest if none has. `None` without
    /// values.
    #[must_use]
    pub fn upper(&self, p: f64) -> Option<f64> {
        first_with_share(self.0.iter(), p * (self.weight() + 1.0))
    }

    /// Greatest value such that those from it on have the share `1 - p` of all weight; the smallest if none has.
    #[must_use]
    pub fn lower(&self, p: f64) -> Option<f64> {
        first_with_share(self.0.iter().rev(), (1.0 - p) * (self.weight() + 1.0))
    }

    /// Middle of the lower and the upper median.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        Some(f64::midpoint(self.lower(0.5)?, self.upper(0.5)?))
    }

    /// The quantiles of a forecast.
    #[must_use]
    pub fn quantiles(&self) -> Option<ForecastQuantiles> {
        Some(ForecastQuantiles {
            p10: self.lower(0.1)?,
            p50: self.median()?,
            p90: self.upper(0.9)?,
        })
    }
}

fn first_with_share<'a>(values: impl Iterator<Item = &'a (f64, f64)>, share: f64) -> Option<f64> {
    let (mut sum, mut last) = (0.0, None);
    for (value, weight) in values {
        sum += weight;
        last = Some(*value);
        if sum >= share * (1.0 - WEIGHT_TOLERANCE) {
            break;
        }
    }
    last
}
