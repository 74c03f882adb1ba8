//! Batches of a request's files, the unit of one order: their states, and the division into batches.

use std::ops::Range;

use crate::numbers::stored_numbers;
use crate::orders::FILES_MAX;

/// Kind of a batch; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// Files to transfer.
    Copy = 0,
    /// A directory to list.
    List = 1,
}

stored_numbers!(BatchKind);

impl BatchKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Copy, Self::List];
}

/// State of a batch; the value is its number in the database. Finished batches are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchState {
    /// Waits until its retry is due.
    Waiting = 0,
    /// May become part of a run.
    Queued = 1,
    /// Part of a run.
    Running = 2,
    /// Held while its request is paused.
    Paused = 3,
}

stored_numbers!(BatchState);

/// Event of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchEvent {
    /// Its retry is due.
    Due,
    /// A round makes it part of a run.
    Started,
    /// Its request is paused.
    Paused,
    /// Its request is resumed.
    Resumed,
}

impl BatchState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Queued, Self::Running, Self::Paused];

    /// Returns the state of a new batch, given if its request is paused and if it waits for a retry.
    #[must_use]
    pub const fn initial(is_paused: bool, waits: bool) -> Self {
        match (is_paused, waits) {
            (true, _) => Self::Paused,
            (false, true) => Self::Waiting,
            (false, false) => Self::Queued,
        }
    }

    /// Returns the state after an event; none if the event does not concern a batch in this state.
    ///
    /// A running batch has no events: its run ends, and its unsettled files form a new batch.
    #[must_use]
    pub const fn transition(self, event: BatchEvent) -> Option<Self> {
        match (self, event) {
            (Self::Waiting, BatchEvent::Due) | (Self::Paused, BatchEvent::Resumed) => {
                Some(Self::Queued)
            }
            (Self::Queued, BatchEvent::Started) => Some(Self::Running),
            (Self::Waiting | Self::Queued, BatchEvent::Paused) => Some(Self::Paused),
            _ => None,
        }
    }
}

/// Largest size of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Number of files, at most [`FILES_MAX`].
    pub files: usize,
    /// Total bytes of files with a known size; a larger file is a batch of its own.
    pub bytes: u64,
}

impl Default for BatchLimits {
    /// 1 TiB takes 88 s at 100 Gb/s, so a lost host delays other work only briefly.
    fn default() -> Self {
        Self { files: FILES_MAX, bytes: 1 << 40 }
    }
}

/// Splits files with these sizes into batches, in their order.
#[must_use]
pub fn split(sizes: &[Option<u64>], limits: BatchLimits) -> Vec<Range<usize>> {
    let files = limits.files.clamp(1, FILES_MAX);
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (at, size) in sizes.iter().enumerate() {
        let more = bytes.saturating_add(size.unwrap_or(0));
        if at > start && (at - start >= files || more > limits.bytes) {
            batches.push(start..at);
            (start, bytes) = (at, size.unwrap_or(0));
        } else {
            bytes = more;
        }
    }
    if start < sizes.len() {
        batches.push(start..sizes.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batch_transitions_follow_table() {
        use BatchState::{Paused, Queued, Running, Waiting};
        // Due, Started, Paused, Resumed
        for (state, after) in [
            (Waiting, [Some(Queued), None, Some(Paused), None]),
            (Queued, [None, Some(Running), Some(Paused), None]),
            (Running, [None; 4]),
            (Paused, [None, None, None, Some(Queued)]),
        ] {
            let events =
                [BatchEvent::Due, BatchEvent::Started, BatchEvent::Paused, BatchEvent::Resumed];
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
        assert_eq!(BatchState::initial(true, true), Paused);
        assert_eq!(
            (BatchState::initial(false, true), BatchState::initial(false, false)),
            (Waiting, Queued)
        );
    }

    #[test]
    fn batches_end_at_limits() {
        let limits = BatchLimits { files: 3, bytes: 100 };
        let sizes = [Some(60), Some(40), Some(1), None, None, None, None, Some(500), Some(1)];
        assert_eq!(split(&sizes, limits), [0..2, 2..5, 5..7, 7..8, 8..9]);
        assert_eq!(split(&[], limits), []);
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn every_file_is_in_one_batch(
            sizes in prop::collection::vec(prop::option::of(0..200_u64), 0..300),
            files in 1..50_usize,
            bytes in 1..1_000_u64,
        ) {
            let batches = split(&sizes, BatchLimits { files, bytes });
            let mut next = 0;
            for batch in &batches {
                prop_assert_eq!(batch.start, next);
                prop_assert!(!batch.is_empty() && batch.len() <= files);
                let sum: u64 = sizes[batch.clone()].iter().flatten().sum();
                prop_assert!(sum <= bytes || batch.len() == 1);
                next = batch.end;
            }
            prop_assert_eq!(next, sizes.len());
        }
    }
}
