//! Cancellation of requests: which batches a transaction cancels, and what changes with them.

use std::collections::BTreeMap;

use crate::batch::BatchState;
use crate::request::RequestDelta;

/// Most cancelled requests that one transaction processes.
pub const REQUESTS_PER_TX_MAX: i64 = 100;

/// Most batches of one request that one transaction cancels.
pub const BATCHES_PER_TX_MAX: usize = 500;

/// Most files that one transaction cancels.
pub const FILES_PER_TX_MAX: i64 = 10_000;

/// A batch of a cancelled request that runs at no node: it waits, or the hosts of its run are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancellableBatch {
    /// State of the batch.
    pub state: BatchState,
    /// Id of its queue.
    pub queue: i64,
    /// Number of its files.
    pub files: i64,
    /// Bytes of its files with a known size.
    pub bytes: i64,
    /// Id of its run, if it is part of one.
    pub run: Option<i64>,
}

/// Changes of a queue's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueDelta {
    /// Change of the number of queued batches.
    pub batches: i64,
    /// Files of the batches.
    pub files: i64,
    /// Bytes of the files with a known size.
    pub bytes: i64,
}

impl QueueDelta {
    /// Adds a queued batch.
    pub fn add(&mut self, files: i64, bytes: i64) {
        *self = Self {
            batches: self.batches + 1,
            files: self.files + files,
            bytes: self.bytes.saturating_add(bytes),
        };
    }

    /// Removes a queued batch.
    pub fn remove(&mut self, files: i64, bytes: i64) {
        *self = Self {
            batches: self.batches - 1,
            files: self.files - files,
            bytes: self.bytes.saturating_sub(bytes),
        };
    }
}

/// Changes of the counts of queues, by id.
pub type QueueDeltas = BTreeMap<i64, QueueDelta>;

/// Batches that a transaction cancels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CancellationPlan {
    /// Number of batches to cancel, from the first.
    pub batches: usize,
    /// Changes of their queues.
    pub queues: QueueDeltas,
    /// Runs that lose a batch.
    pub runs: Vec<i64>,
    /// True if the request may have more such batches.
    pub has_more: bool,
}

/// Plans the cancellation of the first batches of a request, read with the limit [`BATCHES_PER_TX_MAX`], and takes
/// their files from `files_left`.
#[must_use]
pub fn plan(batches: &[CancellableBatch], files_left: &mut i64) -> CancellationPlan {
    let mut plan = CancellationPlan::default();
    for batch in batches {
        if *files_left <= 0 {
            break;
        }
        if batch.state == BatchState::Queued {
            plan.queues.entry(batch.queue).or_default().remove(batch.files, batch.bytes);
        }
        plan.runs.extend(batch.run);
        *files_left -= batch.files.max(1);
        plan.batches += 1;
    }
    plan.has_more = plan.batches < batches.len() || batches.len() == BATCHES_PER_TX_MAX;
    plan
}

/// Returns the change of a request's counts after files of a batch were cancelled.
#[must_use]
pub fn cancelled_files(batch: &CancellableBatch, files: i64) -> RequestDelta {
    let active = if batch.run.is_some() { -files } else { 0 };
    RequestDelta { cancelled: files, active, ..RequestDelta::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(state: BatchState, files: i64, run: Option<i64>) -> CancellableBatch {
        CancellableBatch { state, queue: 7, files, bytes: 10 * files, run }
    }

    #[test]
    fn cancellation_stops_at_file_limit() {
        let batches = [batch(BatchState::Queued, 3, None), batch(BatchState::Waiting, 3, None)];
        let mut left = 3;
        let plan = plan(&batches, &mut left);
        assert_eq!((plan.batches, plan.has_more, left), (1, true, 0));
        assert_eq!(plan.queues[&7], QueueDelta { batches: -1, files: -3, bytes: -30 });
    }

    #[test]
    fn only_queued_batches_leave_queues() {
        let batches = [
            batch(BatchState::Waiting, 1, None),
            batch(BatchState::Paused, 0, None),
            batch(BatchState::Running, 2, Some(9)),
        ];
        let mut left = 100;
        let plan = plan(&batches, &mut left);
        assert_eq!((plan.batches, plan.has_more, left), (3, false, 96));
        assert_eq!((plan.queues.len(), &plan.runs[..]), (0, &[9][..]));
        assert_eq!(cancelled_files(&batches[2], 2).active, -2);
        assert_eq!(
            cancelled_files(&batches[0], 1),
            RequestDelta { cancelled: 1, ..RequestDelta::default() }
        );
    }

    #[test]
    fn full_page_means_more() {
        let batches = vec![batch(BatchState::Queued, 0, None); BATCHES_PER_TX_MAX];
        assert!(plan(&batches, &mut 1_000_000).has_more);
    }
}
