//! Outcomes: what an attempt's result, and the end of a run, do to files, batches and requests.
//!
//! A file that fails is retried with back-off while its fault may pass and attempts are left. The files of a run that
//! its end leaves unsettled form a new batch; a withdrawn run costs no attempt.

use crate::backoff;
use crate::batch::BatchState;
use crate::file::{RequestFileEvent, RequestFileState};
use crate::orders::{FaultKind, OrderFault};
use crate::request::RequestDelta;

/// Returns the event of a file whose `attempt`-th attempt (from 1), of `attempts_max`, had this result.
#[must_use]
pub fn attempt_event(
    fault: Option<FaultKind>,
    attempt: i64,
    attempts_max: u32,
) -> RequestFileEvent {
    let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
    match fault {
        None => RequestFileEvent::Delivered,
        Some(kind) if backoff::is_retryable(kind, attempt, attempts_max) => {
            RequestFileEvent::Requeued
        }
        Some(_) => RequestFileEvent::Failed,
    }
}

/// State and size of an unsettled file after a reported outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledFile {
    /// State after the outcome; it stays part of its order until that ends, even if it is to be retried.
    pub state: RequestFileState,
    /// Size in bytes, if known.
    pub size: Option<i64>,
    /// Number of the attempt, from 1.
    pub attempt: i64,
}

/// Applies a reported outcome to an unsettled file, and adds to the counts of its request.
///
/// `size` is the known size of the file, `reported_bytes` that of the outcome; `attempts` are the earlier ones.
#[must_use]
pub fn settle_file(
    (size, attempts): (Option<i64>, i64),
    reported_bytes: Option<i64>,
    fault: Option<FaultKind>,
    attempts_max: u32,
    delta: &mut RequestDelta,
) -> SettledFile {
    let attempt = attempts + 1;
    let known = reported_bytes.filter(|_| fault.is_none()).or(size);
    let event = attempt_event(fault, attempt, attempts_max);
    let state =
        RequestFileState::Active.transition(event).expect("an active file takes every event");
    match state {
        RequestFileState::Done => {
            delta.done += 1;
            delta.bytes_done = delta.bytes_done.saturating_add(known.unwrap_or(0));
        }
        RequestFileState::Failed => delta.failed += 1,
        _ => {}
    }
    delta.active -= i64::from(state.is_final());
    if known != size {
        delta.bytes = delta.bytes.saturating_add(known.unwrap_or(0) - size.unwrap_or(0));
        delta.sized += i64::from(size.is_none());
    }
    SettledFile { state, size: known, attempt }
}

/// Reason why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// The node reported its end: all files have outcomes, or the fault says why not.
    Reported(Option<OrderFault>),
    /// The controller withdrew it, for this reason.
    Withdrawn(String),
}

impl RunEnd {
    /// Returns the reason, for human readers; none if all files have outcomes.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Reported(fault) => fault.as_ref().map(|fault| fault.text.as_str()),
            Self::Withdrawn(why) => Some(why),
        }
    }

    /// Returns the attempts that a batch of the run has had after its end.
    #[must_use]
    pub fn attempts_after(&self, attempts: i64) -> i64 {
        attempts + i64::from(matches!(self, Self::Reported(_)))
    }
}

/// A file of a run without a final outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsettledFile {
    /// Sequence number in the request.
    pub seq: i64,
    /// Size in bytes, if known.
    pub size: Option<i64>,
    /// Attempts that have failed.
    pub attempt: i64,
    /// Fault of the last attempt.
    pub fault: Option<String>,
}

/// Terms under which the unsettled files of a batch leave a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartTerms {
    /// Set if the request is cancelled.
    pub is_cancelled: bool,
    /// Set if the request is paused.
    pub is_paused: bool,
    /// Attempts of the batch with this run, if it counts.
    pub batch_attempt: i64,
    /// Most attempts per file.
    pub attempts_max: u32,
    /// Seed of the jitter of the back-off.
    pub seed: u64,
}

/// New state of a file that the end of its run changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Sequence number in the request.
    pub seq: i64,
    /// State that storage has recorded.
    pub state: RequestFileState,
    /// Attempts that have failed.
    pub attempt: i64,
    /// Fault of the last attempt.
    pub fault: Option<String>,
}

/// Files that form a new batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequeuedFiles {
    /// Sequence number of the first file.
    pub first: i64,
    /// Sequence number of the last file.
    pub last: i64,
    /// Sequence numbers, if not contiguous.
    pub seqs: Option<Vec<i64>>,
    /// Number of files in the chunk.
    pub files: i64,
    /// Bytes of the files with a known size.
    pub bytes: i64,
    /// State of the new batch.
    pub state: BatchState,
    /// Unix milliseconds before which it does not start; 0 for at once.
    pub not_before_ms: i64,
}

/// Changes that the end of a run makes to one of its batches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartEnd {
    /// Files whose row changes.
    pub files: Vec<FileChange>,
    /// Changes of the request's counts.
    pub delta: RequestDelta,
    /// First fault, which the request shows.
    pub trouble: Option<String>,
    /// Files to queue again.
    pub requeued: Option<RequeuedFiles>,
}

/// Decides what the end of a run does to the unsettled files of a batch, ascending by sequence number.
#[must_use]
pub fn end_part(
    now_ms: i64,
    end: &RunEnd,
    terms: PartTerms,
    unsettled: Vec<UnsettledFile>,
) -> PartEnd {
    let mut part = PartEnd::default();
    part.delta.active = -(unsettled.len() as i64);
    let mut again: Vec<(i64, Option<i64>, i64)> = Vec::new();
    for file in unsettled {
        let (fault, attempt) = match end {
            _ if terms.is_cancelled => (None, file.attempt),
            RunEnd::Withdrawn(_) => (None, file.attempt),
            // It had an outcome in this order, and may be retried.
            RunEnd::Reported(None) if file.attempt >= terms.batch_attempt => (None, file.attempt),
            RunEnd::Reported(fault) => {
                let fault = fault.clone().unwrap_or_else(|| OrderFault {
                    kind: FaultKind::Transient,
                    text: "the order ended without an outcome of this file".to_owned(),
                });
                (Some(fault), file.attempt + 1)
            }
        };
        let event = match &fault {
            _ if terms.is_cancelled => RequestFileEvent::Cancelled,
            Some(fault) => attempt_event(Some(fault.kind), attempt, terms.attempts_max),
            None => RequestFileEvent::Requeued,
        };
        let state =
            RequestFileState::Active.transition(event).expect("an active file takes every event");
        match state {
            RequestFileState::Cancelled => part.delta.cancelled += 1,
            RequestFileState::Failed => part.delta.failed += 1,
            _ => again.push((file.seq, file.size, attempt)),
        }
        let is_changed = state != RequestFileState::Queued || fault.is_some();
        let fault = fault.map(|fault| fault.text).or(file.fault);
        part.trouble = part.trouble.or_else(|| fault.clone());
        if is_changed {
            part.files.push(FileChange { seq: file.seq, state, attempt, fault });
        }
    }
    let (Some(&(first, ..)), Some(&(last, ..))) = (again.first(), again.last()) else {
        return part;
    };
    let tried = again.iter().map(|(_, _, attempt)| *attempt).max().unwrap_or(0);
    let waits = matches!(end, RunEnd::Reported(_)) && tried > 0;
    let delay = backoff::backoff_delay(tried as u32, terms.seed).as_millis() as i64;
    let files = again.len() as i64;
    part.requeued = Some(RequeuedFiles {
        first,
        last,
        files,
        bytes: again.iter().filter_map(|(_, size, _)| *size).fold(0, i64::saturating_add),
        seqs: (files <= last - first).then(|| again.into_iter().map(|(seq, ..)| seq).collect()),
        state: BatchState::initial(terms.is_paused, waits),
        not_before_ms: if waits { now_ms + delay } else { 0 },
    });
    part
}

/// Change that the end of a listing's run makes to its request, whose files are not all known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListingEnd {
    /// The listing is repeated.
    Retry {
        /// State of the new batch.
        state: BatchState,
        /// Unix milliseconds before which it does not start; 0 for at once.
        not_before_ms: i64,
    },
    /// All files are known.
    Complete,
    /// The directory cannot be listed, for this reason.
    Broken(String),
}

/// Decides what the end of a listing's run does.
#[must_use]
pub fn end_listing(now_ms: i64, end: &RunEnd, terms: PartTerms) -> ListingEnd {
    let attempt = u32::try_from(terms.batch_attempt).unwrap_or(u32::MAX);
    let delay_ms = match end {
        _ if terms.is_cancelled => return ListingEnd::Complete,
        RunEnd::Reported(None) => return ListingEnd::Complete,
        RunEnd::Withdrawn(_) => 0,
        RunEnd::Reported(Some(fault))
            if backoff::is_retryable(fault.kind, attempt, terms.attempts_max) =>
        {
            backoff::backoff_delay(attempt, terms.seed).as_millis() as i64
        }
        RunEnd::Reported(Some(fault)) => {
            return ListingEnd::Broken(format!("the directory cannot be listed: {}", fault.text));
        }
    };
    let waits = delay_ms > 0;
    ListingEnd::Retry {
        state: BatchState::initial(terms.is_paused, waits),
        not_before_ms: if waits { now_ms + delay_ms } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: PartTerms = PartTerms {
        is_cancelled: false,
        is_paused: false,
        batch_attempt: 1,
        attempts_max: 3,
        seed: 4,
    };

    fn fault(kind: FaultKind) -> RunEnd {
        RunEnd::Reported(Some(OrderFault { kind, text: "refused".to_owned() }))
    }

    fn withdrawn() -> RunEnd {
        RunEnd::Withdrawn("drained".to_owned())
    }

    fn file(seq: i64, attempt: i64) -> UnsettledFile {
        UnsettledFile { seq, size: Some(10), attempt, fault: None }
    }

    #[test]
    fn outcome_settles_or_requeues_file() {
        let mut delta = RequestDelta::default();
        let done = settle_file((None, 0), Some(5), None, 3, &mut delta);
        assert_eq!(done, SettledFile { state: RequestFileState::Done, size: Some(5), attempt: 1 });
        assert_eq!(
            (delta.done, delta.bytes, delta.bytes_done, delta.sized, delta.active),
            (1, 5, 5, 1, -1)
        );
        let mut delta = RequestDelta::default();
        let again = settle_file((Some(7), 1), Some(5), Some(FaultKind::Transient), 3, &mut delta);
        assert_eq!(
            again,
            SettledFile { state: RequestFileState::Queued, size: Some(7), attempt: 2 }
        );
        assert_eq!(delta, RequestDelta::default());
        let last = settle_file((Some(7), 2), None, Some(FaultKind::Transient), 3, &mut delta);
        assert_eq!((last.state, delta.failed, delta.active), (RequestFileState::Failed, 1, -1));
    }

    #[test]
    fn withdrawn_part_is_requeued_at_once() {
        let part = end_part(1_000, &withdrawn(), TERMS, vec![file(3, 0), file(5, 2)]);
        assert!(part.files.is_empty() && part.trouble.is_none());
        assert_eq!(part.delta, RequestDelta { active: -2, ..RequestDelta::default() });
        let requeued = part.requeued.unwrap();
        assert_eq!((requeued.first, requeued.last, requeued.files, requeued.bytes), (3, 5, 2, 20));
        assert_eq!(requeued.seqs, Some(vec![3, 5]));
        assert_eq!((requeued.state, requeued.not_before_ms), (BatchState::Queued, 0));
    }

    #[test]
    fn failed_part_waits_for_retry() {
        let part =
            end_part(1_000, &fault(FaultKind::Transient), TERMS, vec![file(0, 0), file(1, 2)]);
        assert_eq!(part.trouble.as_deref(), Some("refused"));
        let states: Vec<_> = part.files.iter().map(|file| (file.state, file.attempt)).collect();
        assert_eq!(states, [(RequestFileState::Queued, 1), (RequestFileState::Failed, 3)]);
        let requeued = part.requeued.unwrap();
        assert_eq!((requeued.seqs, requeued.state), (None, BatchState::Waiting));
        let delay = backoff::backoff_delay(1, TERMS.seed).as_millis() as i64;
        assert_eq!(requeued.not_before_ms, 1_000 + delay);
    }

    #[test]
    fn permanent_fault_fails_all_files() {
        let part = end_part(0, &fault(FaultKind::Permanent), TERMS, vec![file(0, 0), file(1, 0)]);
        assert_eq!((part.delta.failed, part.requeued), (2, None));
    }

    #[test]
    fn reported_file_keeps_its_attempts() {
        // It had an outcome in this order: the end counts no other attempt.
        let part = end_part(0, &RunEnd::Reported(None), TERMS, vec![file(0, 1)]);
        assert!(part.files.is_empty());
        assert_eq!(part.requeued.unwrap().state, BatchState::Waiting);
        let part = end_part(0, &RunEnd::Reported(None), TERMS, vec![file(0, 0)]);
        assert_eq!((part.files[0].attempt, part.trouble.is_some()), (1, true));
    }

    #[test]
    fn cancelled_or_paused_part_stays() {
        let cancelled = PartTerms { is_cancelled: true, ..TERMS };
        let part = end_part(0, &fault(FaultKind::Transient), cancelled, vec![file(0, 0)]);
        assert_eq!((part.delta.cancelled, part.requeued), (1, None));
        let paused = PartTerms { is_paused: true, ..TERMS };
        let part = end_part(0, &withdrawn(), paused, vec![file(0, 0)]);
        assert_eq!(part.requeued.unwrap().state, BatchState::Paused);
    }

    #[test]
    fn failed_listing_retry_or_break() {
        let retry = end_listing(9, &withdrawn(), TERMS);
        assert_eq!(retry, ListingEnd::Retry { state: BatchState::Queued, not_before_ms: 0 });
        assert_eq!(end_listing(9, &RunEnd::Reported(None), TERMS), ListingEnd::Complete);
        let ListingEnd::Retry { state, not_before_ms } =
            end_listing(9, &fault(FaultKind::Transient), TERMS)
        else {
            panic!("it is repeated")
        };
        assert!(state == BatchState::Waiting && not_before_ms > 9);
        let text = "the directory cannot be listed: refused".to_owned();
        assert_eq!(end_listing(9, &fault(FaultKind::Permanent), TERMS), ListingEnd::Broken(text));
        let cancelled = PartTerms { is_cancelled: true, ..TERMS };
        assert_eq!(end_listing(9, &fault(FaultKind::Permanent), cancelled), ListingEnd::Complete);
    }
}
