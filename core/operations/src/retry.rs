//! Whether and when something that failed is tried again.
//!
//! What will be the same the next time is not tried again; what may pass waits twice as long after each attempt, up to
//! [`LONGEST`], and a little longer or shorter than others, so that those who failed together do not come back
//! together.

use std::time::Duration;

use crate::orders::FaultKind;

/// Wait after the first attempt.
pub const FIRST: Duration = Duration::from_secs(5);

/// Longest wait.
pub const LONGEST: Duration = Duration::from_secs(600);

/// Attempts of a file where the request says nothing.
pub const ATTEMPTS: u32 = 5;

/// Most attempts that may be asked for.
pub const ATTEMPTS_MAX: u32 = 1000;

/// Whether a file that failed so in its `attempt`-th attempt, counted from 1, is tried again.
#[must_use]
pub fn again(kind: FaultKind, attempt: u32, attempts: u32) -> bool {
    kind.may_pass() && attempt < attempts
}

/// How long to wait after the `attempt`-th attempt; `seed` tells those apart that failed together.
#[must_use]
pub fn wait(attempt: u32, seed: u64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(16);
    let whole = (FIRST * 2_u32.pow(doublings)).min(LONGEST);
    // A multiplicative hash (Knuth, TAOCP 6.4) spreads neighbours over three quarters to five quarters.
    let spread = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as u32;
    whole * 3 / 4 + whole / 2 * spread / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_as_often_as_was_asked() {
        assert!(again(FaultKind::Passing, 1, 2) && again(FaultKind::Integrity, 1, 2));
        assert!(!again(FaultKind::Passing, 2, 2));
        assert!(!again(FaultKind::Lasting, 1, 9) && !again(FaultKind::Cancelled, 1, 9));
    }

    #[test]
    fn waits_grow_to_a_bound_and_differ() {
        for seed in 0..1000 {
            let mut before = Duration::ZERO;
            for attempt in 1..30 {
                let wait = wait(attempt, seed);
                assert!(wait >= before && wait <= LONGEST * 5 / 4, "{attempt} {seed}");
                assert!(wait >= FIRST * 3 / 4);
                before = wait;
            }
        }
        assert_ne!(wait(3, 1), wait(3, 2));
    }
}
