//! When a request will be done, as far as can be told.

/// What is left of a request and how fast it goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// Bytes that are not there, as far as sizes are known.
    pub bytes: u64,
    /// Files whose size is not known.
    pub unknown: u64,
    /// Mean size of those that are known, for the others.
    pub mean_bytes: u64,
    /// Bytes of the same class between the same sites that come before it.
    pub ahead_bytes: u64,
}

/// Seconds until it is done at this rate, in bits per second; none where nothing moves.
///
/// What comes before it in its queue is served at the same rate. It is a forecast for people: a link that fails or a
/// request that comes makes another one of it.
#[must_use]
pub fn seconds_left(left: &Left, rate_bps: u64) -> Option<u64> {
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

/// Of the time until a deadline so much is kept for what comes after the last byte: a twentieth, and so many seconds at
/// least.
const KEPT_SECONDS: u64 = 2;

/// The rate in bits per second that is needed to be done a little before its time; none where there is no time left.
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
    fn forecasts_count_what_is_ahead_and_what_is_guessed() {
        let left = Left { bytes: 1_000, ahead_bytes: 500, unknown: 5, mean_bytes: 100 };
        assert_eq!(seconds_left(&left, 8_000), Some(2));
        assert_eq!(seconds_left(&left, 0), None);
        assert_eq!(seconds_left(&Left::default(), 0), Some(0));
        assert_eq!(
            seconds_left(&Left { unknown: 3, ..Left::default() }, 9),
            None,
            "nothing to guess from"
        );
        let huge = Left { bytes: u64::MAX, ahead_bytes: u64::MAX, ..Left::default() };
        assert_eq!(seconds_left(&huge, 1), None);
    }

    #[test]
    fn a_deadline_needs_a_rate() {
        assert_eq!(needed_bps(1_000, 4), Some(4_000));
        assert_eq!(needed_bps(95, 100), Some(8));
        assert_eq!((needed_bps(1, 2), needed_bps(1, 1)), (Some(8), Some(8)));
        assert_eq!((needed_bps(1, 0), needed_bps(1, -5)), (None, None));
    }
}
