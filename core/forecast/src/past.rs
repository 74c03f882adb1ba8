//! Transfers of the past.

use std::ops::RangeInclusive;

use crate::features::TransferFeatures;

/// Durations that are believed: from a microsecond to three years.
const SECONDS_RANGE: RangeInclusive<f64> = 1e-6..=1e8;

/// Sizes that are believed, up to an exabyte.
const BYTES_RANGE: RangeInclusive<f64> = 1.0..=1e18;

/// A transfer that ended well and was not held back by a limit of its user.
#[derive(Debug, Clone, PartialEq)]
pub struct PastTransfer {
    /// Name or address of the host that sent.
    pub source: String,
    /// Name or address of the host that received.
    pub destination: String,
    /// Start, in seconds since 1970.
    pub started_s: f64,
    /// Duration from start to end, in seconds.
    pub seconds: f64,
    /// Bytes that were sent.
    pub bytes: f64,
    /// Features as they were at its start.
    pub features: TransferFeatures,
}

impl PastTransfer {
    /// True if its duration and size are such as transfers have.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        SECONDS_RANGE.contains(&self.seconds)
            && BYTES_RANGE.contains(&self.bytes)
            && self.started_s.is_finite()
    }

    /// Mean rate in bits per second.
    #[must_use]
    pub fn bits_per_second(&self) -> f64 {
        self.bytes * 8.0 / self.seconds
    }

    fn end_s(&self) -> f64 {
        self.started_s + self.seconds
    }
}

/// Transfers of a pair whose rates are features of its next one.
const PAIR_RATES_MAX: usize = 8;

/// Rate of the last transfer among `pair` that ended by `time_s`, and the median of the last eight; `None` without any.
pub fn pair_rates_before<'a>(
    pair: impl IntoIterator<Item = &'a PastTransfer>,
    time_s: f64,
) -> Option<(f64, f64)> {
    let ended = |one: &&PastTransfer| one.is_usable() && one.end_s() <= time_s;
    let mut ended: Vec<_> = pair.into_iter().filter(ended).collect();
    ended.sort_by(|a, b| a.end_s().total_cmp(&b.end_s()));
    let from = ended.len().saturating_sub(PAIR_RATES_MAX);
    let mut rates: Vec<_> = ended[from..].iter().map(|one| one.bits_per_second()).collect();
    let last = *rates.last()?;
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    let median = match rates.len() % 2 {
        1 => rates[middle],
        _ => f64::midpoint(rates[middle - 1], rates[middle]),
    };
    Some((last, median))
}
