//! What a transfer did in all its sessions, when the other end was lost and it began anew.
//!
//! A session after the first finds in place, or in the journal, what those before it moved, and counts
//! that as there already. To the transfer it was moved: each byte counts once, as moved by whichever
//! session, or as there before the first.

use penstock_protocol::control::TransferTally;

/// The tally of a transfer of which the sessions before counted `earlier` and the present one `now`.
///
/// What the present one found is taken for moved before, up to what was moved or asked for, once what was
/// there before the first is taken away.
#[must_use]
pub fn together(earlier: &TransferTally, now: TransferTally) -> TransferTally {
    let found = |moved: u64, there: u64, now: u64| moved.min(now.saturating_sub(there));
    let moved = earlier.moved_bytes.max(earlier.wanted_bytes);
    let kept = found(moved, earlier.resumed_bytes, now.resumed_bytes);
    let copied = earlier.files.saturating_sub(earlier.skipped_files).max(earlier.wanted_files);
    let kept_files = found(copied, earlier.skipped_files, now.skipped_files);
    let resumed_bytes = now.resumed_bytes - kept;
    let mut warnings = earlier.warnings.clone();
    warnings.extend(now.warnings.iter().cloned());
    TransferTally {
        // What is lost with a session was moved all the same until it is moved again.
        moved_bytes: earlier.moved_bytes.max(now.moved_bytes + kept),
        resumed_bytes,
        skipped_bytes: now.skipped_bytes.min(resumed_bytes),
        rejected_bytes: earlier.rejected_bytes + now.rejected_bytes,
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
        // 100 bytes were there; 300 were moved, of which the second session finds 250 and moves the rest.
        let first = tally(300, 100, 4, 1);
        let second = together(&first, tally(650, 350, 10, 4));
        assert_eq!(numbers(&second), [900, 100, 10, 1]);
        // A third one finds everything.
        let third = together(&second, tally(0, 1000, 10, 10));
        assert_eq!(numbers(&third), [900, 100, 10, 1]);
    }

    #[test]
    fn what_was_asked_for_and_is_there_was_moved_though_nobody_heard_of_it() {
        let first = TransferTally { wanted_bytes: 500, wanted_files: 5, ..tally(300, 100, 4, 1) };
        // 60 of what was in flight arrived before the receiver was lost, and a file was complete.
        let second = together(&first, tally(540, 460, 10, 5));
        assert_eq!(numbers(&second), [900, 100, 10, 1]);
    }

    #[test]
    fn a_session_that_has_looked_at_nothing_yet_takes_nothing_away() {
        assert_eq!(together(&tally(300, 100, 4, 1), tally(0, 0, 0, 0)).moved_bytes, 300);
        // What the first did not look at any more was there before.
        let second = together(&tally(50, 0, 1, 0), tally(0, 1000, 10, 10));
        assert_eq!(numbers(&second), [50, 950, 10, 9]);
    }
}
