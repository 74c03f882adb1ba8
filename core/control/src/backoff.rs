//! Retry policy: which faults are retried, and after which delay.
//!
//! Permanent faults are not retried. The delay doubles with each attempt up to [`BACKOFF_MAX`], with jitter so that
//! files that failed together do not return together.

use std::time::Duration;

use crate::orders::FaultKind;

/// Delay after the first attempt.
pub const BACKOFF_INITIAL: Duration = Duration::from_secs(5);

/// Longest delay before jitter.
pub const BACKOFF_MAX: Duration = Duration::from_secs(600);

/// Interval of attempts to establish or restore a circuit.
pub const CIRCUIT_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Interval of attempts to reach an unavailable database.
pub const DATABASE_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Attempts per file if the request does not say.
pub const ATTEMPTS_DEFAULT: u32 = 5;

/// Most attempts per file that a request may ask for.
pub const ATTEMPTS_MAX: u32 = 1000;

/// True if a file whose `attempt`-th attempt (from 1) failed with this kind of fault is retried, of `attempts` in all.
#[must_use]
pub fn is_retryable(kind: FaultKind, attempt: u32, attempts: u32) -> bool {
    kind.may_succeed_on_retry() && attempt < attempts
}

/// Returns the delay after the `attempt`-th attempt (from 1). `seed` determines the jitter, 3/4 to 5/4 of the delay.
#[must_use]
pub fn backoff_delay(attempt: u32, seed: u64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(16);
    let whole = (BACKOFF_INITIAL * 2_u32.pow(doublings)).min(BACKOFF_MAX);
    // Multiplicative hashing (Knuth, TAOCP 6.4) spreads neighbouring seeds.
    let spread = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as u32;
    whole * 3 / 4 + whole / 2 * spread / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_faults_retry_up_to_attempts() {
        assert!(
            is_retryable(FaultKind::Transient, 1, 2) && is_retryable(FaultKind::Integrity, 1, 2)
        );
        assert!(!is_retryable(FaultKind::Transient, 2, 2));
        assert!(
            !is_retryable(FaultKind::Permanent, 1, 9) && !is_retryable(FaultKind::Cancelled, 1, 9)
        );
    }

    #[test]
    fn retry_backoff_grows_with_jitter() {
        for seed in 0..1000 {
            let mut before = Duration::ZERO;
            for attempt in 1..30 {
                let wait = backoff_delay(attempt, seed);
                assert!(wait >= before && wait <= BACKOFF_MAX * 5 / 4, "{attempt} {seed}");
                assert!(wait >= BACKOFF_INITIAL * 3 / 4);
                before = wait;
            }
        }
        assert_ne!(backoff_delay(3, 1), backoff_delay(3, 2));
    }
}
