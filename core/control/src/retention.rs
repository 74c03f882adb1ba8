//! Retention: how long the controller keeps what is over, and what one purge removes.

use std::time::Duration;

/// Retention of requests, with their files, events and runs, if the configuration does not say.
pub const REQUEST_RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 86_400);

/// Retention of events without a request.
pub const EVENT_RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// Retention of scheduling rounds.
pub const ROUND_RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// Retention of the audit log.
pub const AUDIT_RETENTION: Duration = Duration::from_secs(90 * 86_400);

/// Retention of reservations after their end.
pub const RESERVATION_RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// Most files and requests that one transaction purges; small enough not to delay other changes.
pub const PURGE_ROWS_PER_TX_MAX: i64 = 4_000;

/// Most rows of the audit log and of the rounds that one transaction purges.
pub const PURGE_LOG_ROWS_PER_TX_MAX: i64 = 1_000;

/// Returns the Unix milliseconds before which things of this retention have expired.
#[must_use]
pub fn expiry_ms(now_ms: i64, retention: Duration) -> i64 {
    now_ms.saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX))
}

/// Next step of the purge of an expired request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeStep {
    /// Its files fit: purge it with the others.
    Whole,
    /// It is large: delete at most this number of its files, then call [`PurgeBudget::piece_deleted`].
    Piece(i64),
    /// The transaction is full.
    Stop,
}

/// Rows that a transaction may still purge.
#[derive(Debug, Clone, Copy)]
pub struct PurgeBudget {
    rows_left: i64,
}

impl Default for PurgeBudget {
    fn default() -> Self {
        Self { rows_left: PURGE_ROWS_PER_TX_MAX }
    }
}

impl PurgeBudget {
    /// Returns what to do with an expired request of this number of files.
    #[must_use]
    pub fn next(&mut self, files: i64) -> PurgeStep {
        if self.rows_left <= 0 {
            return PurgeStep::Stop;
        }
        if files > self.rows_left {
            return PurgeStep::Piece(self.rows_left);
        }
        self.rows_left -= files.max(1);
        PurgeStep::Whole
    }

    /// Counts the files deleted of a large request. Returns true if that was the last piece, so that the request can be
    /// purged with the others.
    #[must_use]
    pub fn piece_deleted(&mut self, deleted: i64) -> bool {
        let is_last = deleted < self.rows_left;
        self.rows_left = if is_last { self.rows_left - deleted.max(1) } else { 0 };
        is_last
    }

    /// True if expired rows may be left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.rows_left <= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_saturates() {
        assert_eq!(expiry_ms(10_000, Duration::from_secs(3)), 7_000);
        assert_eq!(expiry_ms(-5, Duration::MAX), i64::MIN);
    }

    #[test]
    fn purge_takes_requests_until_spent() {
        let mut budget = PurgeBudget::default();
        assert_eq!(budget.next(3_000), PurgeStep::Whole);
        assert_eq!(budget.next(0), PurgeStep::Whole, "a request without files counts as one row");
        assert_eq!(budget.next(999), PurgeStep::Whole);
        assert!(budget.is_spent());
        assert_eq!(budget.next(1), PurgeStep::Stop);
    }

    #[test]
    fn large_request_is_purged_in_pieces() {
        let mut budget = PurgeBudget::default();
        assert_eq!(budget.next(10_000), PurgeStep::Piece(PURGE_ROWS_PER_TX_MAX));
        assert!(!budget.piece_deleted(PURGE_ROWS_PER_TX_MAX) && budget.is_spent());
        let mut budget = PurgeBudget::default();
        assert_eq!(budget.next(10_000), PurgeStep::Piece(PURGE_ROWS_PER_TX_MAX));
        assert!(budget.piece_deleted(2_000) && !budget.is_spent());
        assert_eq!(budget.next(2_000), PurgeStep::Whole);
        assert!(budget.is_spent());
    }
}
