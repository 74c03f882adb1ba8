//! Unfinished requests with the states of their files, and the outcomes of finished ones.

use std::collections::{BTreeMap, HashMap};

use penstock_control::file::RequestFileState;
use penstock_control::orders::ReportedOutcome;
use penstock_control::outcomes::{self, FileChange, UnsettledFile};
use penstock_control::request::{RequestDelta, RequestState, RequestTally};
use penstock_control::run_contents::{FileSpan, RunPart};

use crate::controller_api::OrderFile;

/// Outcome of the requests of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassOutcome {
    /// Number of files transferred.
    pub done: u64,
    /// Files that failed permanently.
    pub failed: u64,
    /// Time from submission to the last file, in seconds, of each finished request.
    pub seconds: Vec<u32>,
}

/// Unfinished requests by id.
#[derive(Debug, Default)]
pub(super) struct RequestTable {
    open: HashMap<i64, UnfinishedRequest>,
    /// Number of files submitted.
    files: u64,
    ended: BTreeMap<String, ClassOutcome>,
}

#[derive(Debug)]
struct UnfinishedRequest {
    class: String,
    submitted_ms: i64,
    state: RequestState,
    tally: RequestTally,
    /// Number of the first file among all files submitted.
    first_file: u64,
    /// Files by sequence number.
    files: Vec<FileRecord>,
}

/// 16 bytes, since a day has 75 million of them.
#[derive(Debug, Clone, Copy)]
struct FileRecord {
    bytes: u64,
    attempt: u32,
    state: RequestFileState,
}

impl UnfinishedRequest {
    fn file(&mut self, seq: i64) -> Option<&mut FileRecord> {
        self.files.get_mut(usize::try_from(seq).ok()?)
    }
}

fn attempt(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl RequestTable {
    /// Adds a request for files of these sizes, in bytes.
    pub(super) fn insert(&mut self, id: i64, now_ms: i64, class: String, sizes: &[u64]) {
        let tally = RequestTally { files: sizes.len() as u64, ..RequestTally::default() };
        let file =
            |bytes: &u64| FileRecord { bytes: *bytes, attempt: 0, state: RequestFileState::Queued };
        let request = UnfinishedRequest {
            class,
            submitted_ms: now_ms,
            state: tally.state(),
            tally,
            first_file: self.files + 1,
            files: sizes.iter().map(file).collect(),
        };
        self.files += sizes.len() as u64;
        self.open.insert(id, request);
    }

    pub(super) fn open_count(&self) -> u64 {
        self.open.len() as u64
    }

    pub(super) fn ended(&self) -> &BTreeMap<String, ClassOutcome> {
        &self.ended
    }

    /// Returns a file as an order lists it; an empty one if it is settled.
    pub(super) fn order_file(&self, request: i64, seq: i64) -> OrderFile {
        let file = self.open.get(&request).and_then(|request| {
            let at = usize::try_from(seq).ok()?;
            let file = request.files.get(at).filter(|file| !file.state.is_final())?;
            Some(OrderFile { id: request.first_file + at as u64, bytes: file.bytes })
        });
        file.unwrap_or(OrderFile { id: 0, bytes: 0 })
    }

    /// Returns the unsettled files of a batch, ascending by sequence number.
    pub(super) fn unsettled(&self, request: i64, span: &FileSpan) -> Vec<UnsettledFile> {
        let Some(request) = self.open.get(&request) else { return Vec::new() };
        let unsettled = |seq: i64| {
            let file = request.files.get(usize::try_from(seq).ok()?)?;
            (!file.state.is_final()).then_some(UnsettledFile {
                seq,
                size: i64::try_from(file.bytes).ok(),
                attempt: i64::from(file.attempt),
                fault: None,
            })
        };
        span.seqs().filter_map(unsettled).collect()
    }

    /// Applies the outcome of a file that is not settled.
    pub(super) fn settle_file(
        &mut self,
        part: &RunPart,
        seq: i64,
        outcome: &ReportedOutcome,
        delta: &mut RequestDelta,
    ) {
        let file = self.open.get_mut(&part.request).and_then(|request| request.file(seq));
        let Some(file) = file.filter(|file| !file.state.is_final()) else { return };
        let known = (i64::try_from(file.bytes).ok(), i64::from(file.attempt));
        let settled = outcomes::settle_file(
            known,
            i64::try_from(outcome.bytes).ok(),
            outcome.fault.as_ref().map(|fault| fault.kind),
            part.attempts,
            delta,
        );
        (file.state, file.attempt) = (settled.state, attempt(settled.attempt));
    }

    /// Stores what the end of a run changed of files.
    pub(super) fn change_files(&mut self, request: i64, changes: &[FileChange]) {
        let Some(request) = self.open.get_mut(&request) else { return };
        for change in changes {
            if let Some(file) = request.file(change.seq) {
                (file.state, file.attempt) = (change.state, attempt(change.attempt));
            }
        }
    }

    /// Adds to the counts of requests, and updates their states.
    pub(super) fn apply(&mut self, now_ms: i64, deltas: BTreeMap<i64, RequestDelta>) {
        for (id, delta) in deltas {
            let Some(request) = self.open.get_mut(&id) else { continue };
            request.tally.add(&delta);
            let next = request.state.transition(request.tally.event());
            request.state = next.expect("counts lead to a possible state");
            if delta.done + delta.failed == 0 {
                continue;
            }
            let ended = self.ended.entry(request.class.clone()).or_default();
            ended.done += delta.done.unsigned_abs();
            ended.failed += delta.failed.unsigned_abs();
            if request.state.is_final() {
                ended.seconds.push(((now_ms - request.submitted_ms) / 1000) as u32);
                self.open.remove(&id);
            }
        }
    }
}
