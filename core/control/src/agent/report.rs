//! Size of a report, and what the work of an order contributes to it.

use serde::Serialize;

use crate::orders::{ENTRIES_MAX, ListedFile, OUTCOMES_MAX, PathForecast, ReportedOutcome};

/// Approximate size of the variable part of a report.
const REPORT_BYTES_MAX: usize = 8 << 20;

/// Progress of the transfer or listing of an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkProgress {
    /// Rate over the last seconds.
    pub bits_per_second: u64,
    /// Rate limit in force; none for no limit.
    pub rate_bps: Option<u64>,
    /// Number of connected streams.
    pub streams: u16,
    /// Rates of earlier transfers to the same host; none where they are too few.
    pub path_forecast: Option<PathForecast>,
    /// Measured bottleneck; "rate" for the rate limit.
    pub bound_by: String,
    /// Packet label, or why there is none.
    pub label: String,
    /// Number of the first element of `entries`.
    pub entries_from: u64,
    /// Entries of a listing that fit into the report.
    pub entries: Vec<ListedFile>,
    /// Number of all entries without an acknowledgement.
    pub entries_pending: usize,
}

/// Remaining size of a report.
#[derive(Debug)]
pub(super) struct ReportBudget {
    outcomes: usize,
    entries: usize,
    bytes: usize,
}

impl ReportBudget {
    /// Creates the budget of an empty report.
    pub(super) fn new() -> Self {
        Self { outcomes: OUTCOMES_MAX, entries: ENTRIES_MAX, bytes: REPORT_BYTES_MAX }
    }

    pub(super) fn is_left(&self) -> bool {
        self.bytes > 0 && self.outcomes > 0 && self.entries > 0
    }

    /// Reserves room for an outcome; returns false if it does not fit.
    pub(super) fn take_outcome(&mut self, outcome: &ReportedOutcome) -> bool {
        Self::take(&mut self.bytes, &mut self.outcomes, outcome)
    }

    /// Reserves room for an entry; returns false if it does not fit.
    pub(super) fn take_entry(&mut self, entry: &ListedFile) -> bool {
        Self::take(&mut self.bytes, &mut self.entries, entry)
    }

    fn take(bytes: &mut usize, count: &mut usize, item: &impl Serialize) -> bool {
        let length = serde_json::to_vec(item).map_or(usize::MAX, |json| json.len() + 1);
        if *count == 0 || length > *bytes {
            // Items stay in order: those behind an item that does not fit wait too.
            *bytes = if *count == 0 { *bytes } else { 0 };
            return false;
        }
        (*count, *bytes) = (*count - 1, *bytes - length);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_ends_at_first_misfit() {
        let entry = |path: &str| ListedFile { path: path.to_owned(), bytes: 1 };
        let mut budget = ReportBudget { outcomes: 1, entries: 3, bytes: 60 };
        assert!(budget.take_entry(&entry("a")) && budget.is_left());
        assert!(!budget.take_entry(&entry(&"b".repeat(60))), "too long");
        assert!(!budget.take_entry(&entry("c")) && !budget.is_left(), "behind it");
    }

    #[test]
    fn budget_counts_outcomes_and_entries() {
        let mut budget = ReportBudget::new();
        let outcome =
            ReportedOutcome { file: 1, bytes: 1, was_there: false, digest: None, fault: None };
        let taken = (0..2 * OUTCOMES_MAX).take_while(|_| budget.take_outcome(&outcome)).count();
        assert_eq!((taken, budget.is_left()), (OUTCOMES_MAX, false));
        assert!(budget.take_entry(&ListedFile { path: "a".to_owned(), bytes: 1 }));
    }
}
