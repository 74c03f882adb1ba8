//! Completion forecasts of requests.
//!
//! The rate of a request is the measured one while it moves, else what its orders may use and their paths have carried
//! before ([`PathForecast`]). The range comes from the paths alone: a measured rate says nothing about its spread.

use crate::orders::PathForecast;

/// Work that a request has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemainingWork {
    /// Bytes not transferred yet, of files with a known size.
    pub bytes: u64,
    /// Number of files of unknown size.
    pub unknown: u64,
    /// Mean size of the known files, assumed for the others.
    pub mean_bytes: u64,
    /// Bytes queued ahead in the same class between the same sites.
    pub ahead_bytes: u64,
}

/// Returns the seconds until completion at a rate in bits per second; none while nothing moves.
///
/// Assumes that the bytes queued ahead move at the same rate. Failing links and new requests invalidate it.
#[must_use]
pub fn seconds_left(left: &RemainingWork, rate_bps: u64) -> Option<u64> {
    let guessed = u128::from(left.unknown) * u128::from(left.mean_bytes);
    let bytes = u128::from(left.bytes) + u128::from(left.ahead_bytes) + guessed;
    if bytes == 0 && left.unknown == 0 {
        return Some(0);
    }
    if rate_bps == 0 || bytes == 0 {
        return None;
    }
    u64::try_from((bytes * 8).div_ceil(u128::from(rate_bps))).ok()
}

/// Rates of a running order, in bits per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrderRates {
    /// Measured rate over the last seconds.
    pub measured_bps: u64,
    /// Allotted rate; none for no limit.
    pub allotted_bps: Option<u64>,
    /// Rates of earlier transfers on its path; none where they are too few.
    pub path: Option<PathForecast>,
}

impl OrderRates {
    /// Rate that it can have where its path carries `path_bps`.
    fn possible_bps(&self, path_bps: u64) -> u64 {
        self.allotted_bps.map_or(path_bps, |allotted| allotted.min(path_bps))
    }
}

/// Time until a request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionForecast {
    /// Most likely time, in seconds.
    pub seconds: u64,
    /// Range of it; none where the path of an order is unknown.
    pub range: Option<CompletionRange>,
}

/// Range that holds the time until completion for 80 % of transfers on the paths of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionRange {
    /// A tenth of transfers need less, in seconds.
    pub p10_seconds: u64,
    /// A tenth of transfers need more, in seconds.
    pub p90_seconds: u64,
    /// Earlier transfers of the order that has the fewest.
    pub transfers: u32,
}

/// Forecasts the completion of a request from its running orders; none where no rate is known.
///
/// The range is widened to the most likely time, so that it holds it where the present rate is unusual.
#[must_use]
pub fn completion(left: &RemainingWork, orders: &[OrderRates]) -> Option<CompletionForecast> {
    let sum =
        |rate: &dyn Fn(&OrderRates) -> u64| orders.iter().map(rate).fold(0, u64::saturating_add);
    let measured = sum(&|order| order.measured_bps);
    let expected = || {
        sum(&|order| match order.path {
            Some(path) => order.possible_bps(path.p50_bps),
            None => order.allotted_bps.unwrap_or(0),
        })
    };
    let seconds = seconds_left(left, if measured > 0 { measured } else { expected() })?;
    let paths: Option<Vec<_>> = orders.iter().map(|order| Some((order, order.path?))).collect();
    let range = paths.filter(|paths| !paths.is_empty()).and_then(|paths| {
        let rate = |of: fn(&PathForecast) -> u64| {
            let rates = paths.iter().map(|(order, path)| order.possible_bps(of(path)));
            rates.fold(0, u64::saturating_add)
        };
        Some(CompletionRange {
            p10_seconds: seconds_left(left, rate(|path| path.p90_bps))?.min(seconds),
            p90_seconds: seconds_left(left, rate(|path| path.p10_bps))?.max(seconds),
            transfers: paths.iter().map(|(_, path)| path.transfers).min()?,
        })
    });
    Some(CompletionForecast { seconds, range })
}

/// Least time kept between the last byte and a deadline; the margin is 1/20 of the time left if that is more.
const KEPT_SECONDS: u64 = 2;

/// Returns the rate in bits per second that meets a deadline with a margin; none once it has passed.
#[must_use]
pub fn needed_bps(bytes: u64, seconds_left: i64) -> Option<u64> {
    let seconds = u64::try_from(seconds_left).ok().filter(|seconds| *seconds > 0)?;
    let seconds = seconds.saturating_sub(KEPT_SECONDS.max(seconds / 20)).max(1);
    u64::try_from((u128::from(bytes) * 8).div_ceil(u128::from(seconds))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forecast_counts_queued_and_unknown() {
        let left = RemainingWork { bytes: 1_000, ahead_bytes: 500, unknown: 5, mean_bytes: 100 };
        assert_eq!(seconds_left(&left, 8_000), Some(2));
        assert_eq!(seconds_left(&left, 0), None);
        assert_eq!(seconds_left(&RemainingWork::default(), 0), Some(0));
        assert_eq!(
            seconds_left(&RemainingWork { unknown: 3, ..RemainingWork::default() }, 9),
            None,
            "nothing to guess from"
        );
        let huge =
            RemainingWork { bytes: u64::MAX, ahead_bytes: u64::MAX, ..RemainingWork::default() };
        assert_eq!(seconds_left(&huge, 1), None);
    }

    #[test]
    fn completion_uses_paths_within_allotments() {
        let left = RemainingWork { bytes: 1_000, ..RemainingWork::default() };
        let path = PathForecast { p10_bps: 400, p50_bps: 800, p90_bps: 1_600, transfers: 7 };
        let known = OrderRates { path: Some(path), ..OrderRates::default() };
        let seconds = |orders: &[OrderRates]| {
            let forecast = completion(&left, orders)?;
            let range = forecast.range.map(|range| (range.p10_seconds, range.p90_seconds));
            Some((forecast.seconds, range))
        };
        assert_eq!(seconds(&[]), None, "nothing runs");
        assert_eq!(seconds(&[OrderRates::default()]), None, "no rate is known");
        let allotted = OrderRates { allotted_bps: Some(1_000), ..OrderRates::default() };
        assert_eq!(seconds(&[allotted]), Some((8, None)));
        assert_eq!(seconds(&[known]), Some((10, Some((5, 20)))));
        // The allotment cuts the fast end of the range.
        let limited = OrderRates { allotted_bps: Some(1_000), ..known };
        assert_eq!(seconds(&[limited]), Some((10, Some((8, 20)))));
        // A measured rate counts more than history, and the range holds it.
        let fast = OrderRates { measured_bps: 4_000, ..known };
        assert_eq!(seconds(&[fast]), Some((2, Some((2, 20)))));
        let slow = OrderRates { measured_bps: 100, ..known };
        assert_eq!(seconds(&[slow]), Some((80, Some((5, 80)))));
        // Two orders move at once; a range needs both paths.
        assert_eq!(seconds(&[known, known]), Some((5, Some((3, 10)))));
        assert_eq!(seconds(&[known, allotted]), Some((5, None)));
        let few = OrderRates { path: Some(PathForecast { transfers: 5, ..path }), ..known };
        let both = completion(&left, &[known, few]).unwrap();
        assert_eq!(both.range.unwrap().transfers, 5);
    }

    #[test]
    fn deadline_needs_rate() {
        assert_eq!(needed_bps(1_000, 4), Some(4_000));
        assert_eq!(needed_bps(95, 100), Some(8));
        assert_eq!((needed_bps(1, 2), needed_bps(1, 1)), (Some(8), Some(8)));
        assert_eq!((needed_bps(1, 0), needed_bps(1, -5)), (None, None));
    }
}
