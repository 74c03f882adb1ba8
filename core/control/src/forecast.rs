//! Completion forecasts of requests.

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
    fn deadline_needs_rate() {
        assert_eq!(needed_bps(1_000, 4), Some(4_000));
        assert_eq!(needed_bps(95, 100), Some(8));
        assert_eq!((needed_bps(1, 2), needed_bps(1, 1)), (Some(8), Some(8)));
        assert_eq!((needed_bps(1, 0), needed_bps(1, -5)), (None, None));
    }
}
