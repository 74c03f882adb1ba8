//! Counters of a transfer over several sessions, after the other end was lost.
//!
//! A later session finds the bytes moved by earlier ones at the destination or in the journal and
//! counts them as resumed. For the transfer they were moved: each byte counts once, as moved by any
//! session, or as present before the first.

use penstock_protocol::control::TransferTally;

/// Merges the tally of earlier sessions with that of the current one.
///
/// Bytes that the current session found count as moved earlier, up to the bytes moved or requested,
/// after subtracting those present before the first session.
#[must_use]
pub(crate) fn merge_tallies(earlier: &TransferTally, now: TransferTally) -> TransferTally {
    let found = |moved: u64, there: u64, now: u64| moved.min(now.saturating_sub(there));
    let moved = earlier.moved_bytes.max(earlier.wanted_bytes);
    let kept = found(moved, earlier.resumed_bytes, now.resumed_bytes);
    let copied = earlier.files.saturating_sub(earlier.skipped_files).max(earlier.wanted_files);
    let kept_files = found(copied, earlier.skipped_files, now.skipped_files);
    let resumed_bytes = now.resumed_bytes - kept;
    let mut warnings = earlier.warnings.clone();
    warnings.extend(now.warnings.iter().cloned());
    TransferTally {
        // Bytes lost with a session count as moved until they are moved again.
        moved_bytes: earlier.moved_bytes.max(now.moved_bytes + kept),
        resumed_bytes,
        skipped_bytes: now.skipped_bytes.min(resumed_bytes),
        rejected_bytes: earlier.rejected_bytes + now.rejected_bytes,
        verified_bytes: earlier.verified_bytes + now.verified_bytes,
        skipped_files: now.skipped_files - kept_files,
        wanted_bytes: earlier.wanted_bytes.max(now.wanted_bytes + kept),
        wanted_files: earlier.wanted_files.max(now.wanted_files + kept_files),
        warned: earlier.warned + now.warned,
        warnings,
        ..now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(
        moved_bytes: u64,
        resumed_bytes: u64,
        files: u64,
        skipped_files: u64,
    ) -> TransferTally {
        TransferTally {
            moved_bytes,
            resumed_bytes,
            files,
            skipped_files,
            ..TransferTally::default()
        }
    }

    fn numbers(tally: &TransferTally) -> [u64; 4] {
        [tally.moved_bytes, tally.resumed_bytes, tally.files, tally.skipped_files]
    }

    #[test]
    fn each_byte_counts_once() {
        // 100 bytes were present; 300 were moved, of which the second session finds 250 and moves the
        // rest.
        let first = tally(300, 100, 4, 1);
        let second = merge_tallies(&first, tally(650, 350, 10, 4));
        assert_eq!(numbers(&second), [900, 100, 10, 1]);
        // A third session finds everything.
        let third = merge_tallies(&second, tally(0, 1000, 10, 10));
        assert_eq!(numbers(&third), [900, 100, 10, 1]);
    }

    #[test]
    fn requested_bytes_found_later_were_moved() {
        let first = TransferTally { wanted_bytes: 500, wanted_files: 5, ..tally(300, 100, 4, 1) };
        // 60 bytes in flight arrived before the receiver was lost, and one file was complete.
        let second = merge_tallies(&first, tally(540, 460, 10, 5));
        assert_eq!(numbers(&second), [900, 100, 10, 1]);
    }

    #[test]
    fn session_without_checks_keeps_totals() {
        assert_eq!(merge_tallies(&tally(300, 100, 4, 1), tally(0, 0, 0, 0)).moved_bytes, 300);
        // Files not checked by the first session count as present before.
        let second = merge_tallies(&tally(50, 0, 1, 0), tally(0, 1000, 10, 10));
        assert_eq!(numbers(&second), [50, 950, 10, 9]);
    }
}
