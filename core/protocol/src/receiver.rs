//! Receiving end of a session: which data it requests, where frames belong, when a file is complete.
//!
//! The driver inspects the destination for every [`Receiver::poll_check`] and answers with a
//! [`DestinationCheck`]; calls [`Receiver::accept`] for the destination of a frame's bytes and reports them
//! [`Receiver::written`]; and commits every file of [`Receiver::poll_finish`] durably before it calls
//! [`Receiver::settle`]. Duplicate frames, and frames of files that have failed or ended, are
//! acknowledged and dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::control::{
    Decision, Failure, FailureKind, FrameRange, Note, Outcome, Placed, Report, ToReceiver,
    ToSender, TransferTally,
};
use crate::digest::{Algorithm, Digest, DigestPart};
use crate::extents::{Extent, Extents};
use crate::list::PathList;
use crate::manifest::{Entry, EntryKind, RelativePath, display_path};
use crate::wire::{self, Bytes};

/// Limit of ranges of a file offered for resuming; the rest is sent again.
const RESUME_RANGES_MAX: usize = 4_096;

/// Limit of items in one message, far below the message size limit.
const ITEMS_PER_MESSAGE_MAX: usize = 1_024;

/// Result of inspecting the destination of an entry.
#[derive(Debug, Clone)]
pub enum DestinationCheck {
    /// No usable copy: send everything.
    Send,
    /// Unfinished copy of the same source, with these ranges.
    Resume(Vec<Extent>),
    /// The same file, with its digest if it was read.
    Skip(Digest),
    /// A file of equal size and time, with this digest.
    Compare(Digest),
    /// Already created: a directory, link or empty file.
    Done(Digest),
    /// The destination cannot be written.
    Failed(Failure),
}

/// Completely received file, ready to be committed.
#[derive(Debug, Clone)]
pub struct Finish {
    /// Number of the file in the session.
    pub file: u64,
    /// Entry as announced by the sender.
    pub entry: Arc<Entry>,
    /// Digest of the source. The driver must verify those that do not combine.
    pub digest: Digest,
    /// Set when the file existed before and only its metadata is to be set.
    pub same: bool,
}

/// Destination of a frame's bytes.
#[derive(Debug, Clone)]
pub enum FrameTarget {
    /// Write them to this file.
    Write(Arc<Entry>),
    /// Discard them: they are no longer needed.
    Drop,
}

/// Protocol violation by the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sender broke the protocol: {0}")]
pub struct SenderFault(pub &'static str);

#[derive(Debug)]
struct IncomingFile {
    entry: Arc<Entry>,
    extents: Extents,
    /// Ranges of an unfinished copy that are not verified yet, by offset.
    unverified: BTreeMap<u64, Extent>,
    /// Ranges being written, as offset and end; duplicates of them are dropped.
    writing: BTreeMap<u64, u64>,
    expected: Option<Digest>,
    resumed_bytes: u64,
    verified_bytes: u64,
    finishing: bool,
    /// Data was requested.
    wanted: bool,
    /// Digest of the destination, of which a comparison was requested and not answered yet.
    compared: Option<Digest>,
}

/// Receiving end of one session.
#[derive(Debug)]
pub struct Receiver {
    algorithm: Algorithm,
    files: HashMap<u64, IncomingFile>,
    next_file: u64,
    checks: VecDeque<(u64, Arc<Entry>)>,
    finishes: VecDeque<Finish>,
    discards: VecDeque<(u64, Arc<Entry>)>,
    /// Discards that the driver has taken and not completed.
    discarding: usize,
    decisions: Vec<(u64, Decision)>,
    resend: Vec<(u64, u64)>,
    settled: Vec<(u64, Outcome)>,
    runs: Vec<FrameRange>,
    notes: VecDeque<Note>,
    warnings: VecDeque<Note>,
    /// Paths requested from the sender, and how many of them were sent.
    list: Option<(Arc<PathList>, usize)>,
    outbox: VecDeque<ToSender>,
    tally: TransferTally,
    /// Committed files, if the driver collects them.
    placed: Option<Vec<Placed>>,
    finish_asked: bool,
    finished_sent: bool,
    cancelled: Option<String>,
}

impl Receiver {
    /// Creates a session with this digest.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            files: HashMap::new(),
            next_file: 0,
            checks: VecDeque::new(),
            finishes: VecDeque::new(),
            discards: VecDeque::new(),
            discarding: 0,
            decisions: Vec::new(),
            resend: Vec::new(),
            settled: Vec::new(),
            runs: Vec::new(),
            notes: VecDeque::new(),
            warnings: VecDeque::new(),
            list: None,
            outbox: VecDeque::new(),
            tally: TransferTally::default(),
            placed: None,
            finish_asked: false,
            finished_sent: false,
            cancelled: None,
        }
    }

    /// Collects committed files for [`Self::take_placed`].
    pub fn keep_placed(&mut self) {
        self.placed.get_or_insert_default();
    }

    /// Returns the files committed since the last call.
    pub fn take_placed(&mut self) -> Vec<Placed> {
        self.placed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Requests these paths from a sender that waits for a list.
    pub fn request_paths(&mut self, list: Arc<PathList>) {
        self.list = Some((list, 0));
    }

    /// Counters of the session. A file committed before the sender reported a change of its source
    /// counts once per committed version.
    #[must_use]
    pub fn tally(&self) -> &TransferTally {
        &self.tally
    }

    /// True if the sender has nothing more. The driver should then make everything durable and call
    /// [`Receiver::finished`].
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.finish_asked && self.files.is_empty() && self.has_no_discards() && !self.finished_sent
    }

    fn has_no_discards(&self) -> bool {
        self.discards.is_empty() && self.discarding == 0
    }

    /// Reason given by a sender that stopped the transfer.
    #[must_use]
    pub fn cancelled(&self) -> Option<&str> {
        self.cancelled.as_deref()
    }

    /// Handles a message. Reports and settings are left to the driver.
    ///
    /// # Errors
    /// If the sender violates the protocol.
    pub fn on_message(&mut self, message: ToReceiver) -> Result<(), SenderFault> {
        match message {
            ToReceiver::Announce(announcement) => {
                if announcement.first != self.next_file {
                    return Err(SenderFault("it announces files out of order"));
                }
                for entry in announcement.entries {
                    self.on_entry(entry)?;
                }
            }
            ToReceiver::FileEnds(ends) => {
                for (file, digest) in ends {
                    if let Some(active) = self.files.get_mut(&file) {
                        active.expected = Some(Digest(digest.0));
                        self.finish_if_whole(file);
                    }
                }
            }
            ToReceiver::FileFailed((file, failure)) => self.on_source_failed(file, failure),
            ToReceiver::Missing(missing) => {
                for (path, failure) in missing {
                    self.tally.fail(display_path(path.as_bytes()), failure);
                }
            }
            ToReceiver::ManifestEnd(entries) => {
                // A changed file is announced again after this message, so the number of entries may
                // grow beyond it.
                if entries > self.next_file {
                    return Err(SenderFault("its manifest ends beyond what it announced"));
                }
                self.tally.manifest_complete = true;
            }
            ToReceiver::Same(file) => self.on_same(file)?,
            ToReceiver::Finish(()) => {
                if !self.files.is_empty() {
                    return Err(SenderFault("it finishes before its files are settled"));
                }
                self.finish_asked = true;
            }
            ToReceiver::Cancel(reason) => self.cancelled = Some(reason),
            ToReceiver::Report(_) | ToReceiver::Settings(_) => {}
        }
        Ok(())
    }

    fn on_entry(&mut self, entry: Entry) -> Result<(), SenderFault> {
        let file = self.next_file;
        let total = self.tally.announced_bytes.checked_add(entry.bytes);
        let total = total.ok_or(SenderFault("it announces more bytes than a number holds"))?;
        self.next_file += 1;
        self.tally.announced += 1;
        self.tally.announced_bytes = total;
        let entry = Arc::new(entry);
        self.checks.push_back((file, Arc::clone(&entry)));
        let active = IncomingFile {
            extents: Extents::new(self.algorithm, entry.bytes),
            entry,
            unverified: BTreeMap::new(),
            writing: BTreeMap::new(),
            expected: None,
            resumed_bytes: 0,
            verified_bytes: 0,
            finishing: false,
            wanted: false,
            compared: None,
        };
        self.files.insert(file, active);
        Ok(())
    }

    fn on_source_failed(&mut self, file: u64, failure: Option<Failure>) {
        let Some(active) = self.files.remove(&file) else { return };
        self.tally.resumed_bytes -= active.resumed_bytes;
        match failure {
            Some(failure) => self.tally.fail(active.entry.path.to_string(), failure),
            None => {
                self.tally.announced -= 1;
                self.tally.announced_bytes -= active.entry.bytes;
            }
        }
        self.discards.push_back((file, active.entry));
    }

    fn on_same(&mut self, file: u64) -> Result<(), SenderFault> {
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        let Some(digest) = active.compared.take().filter(|_| !active.finishing) else {
            return Err(SenderFault("a file is the same that it was not asked to compare"));
        };
        active.finishing = true;
        active.resumed_bytes = active.entry.bytes;
        self.tally.resumed_bytes += active.resumed_bytes;
        self.tally.skipped_files += 1;
        self.tally.skipped_bytes += active.resumed_bytes;
        let entry = Arc::clone(&active.entry);
        self.finishes.push_back(Finish { file, entry, digest, same: true });
        Ok(())
    }

    /// Returns the next entry whose destination must be inspected.
    pub fn poll_check(&mut self) -> Option<(u64, Arc<Entry>)> {
        while let Some((file, entry)) = self.checks.pop_front() {
            if self.files.contains_key(&file) {
                return Some((file, entry));
            }
        }
        None
    }

    /// Handles the result of an inspection. Returns the ranges of an unfinished copy that the driver
    /// must read back and verify; [`Receiver::verified`] takes each result.
    pub fn decide(&mut self, file: u64, verdict: DestinationCheck) -> Vec<Extent> {
        let Some(active) = self.files.get_mut(&file) else { return Vec::new() };
        active.wanted = true;
        let mut unverified = Vec::new();
        let decision = match verdict {
            DestinationCheck::Send => Decision::Send(()),
            DestinationCheck::Resume(extents) => {
                let mut there = Extents::new(Algorithm::None, active.entry.bytes);
                // Of overlapping ranges the first counts.
                let fits = |extent: &Extent| {
                    there.insert(extent.offset, extent.bytes, DigestPart::default()) == Ok(true)
                };
                unverified.extend(extents.into_iter().filter(fits).take(RESUME_RANGES_MAX));
                let by_offset = unverified.iter().map(|extent| (extent.offset, extent.clone()));
                active.unverified = by_offset.collect();
                active.resumed_bytes = unverified.iter().map(|extent| extent.bytes).sum();
                self.tally.resumed_bytes += active.resumed_bytes;
                Decision::Resume(unverified.clone())
            }
            DestinationCheck::Skip(digest) => {
                self.decisions.push((file, Decision::Skip(())));
                active.resumed_bytes = active.entry.bytes;
                self.tally.resumed_bytes += active.resumed_bytes;
                self.tally.skipped_files += 1;
                self.tally.skipped_bytes += active.resumed_bytes;
                self.settle(file, Ok(digest));
                return unverified;
            }
            DestinationCheck::Compare(digest) => {
                active.compared = Some(digest.clone());
                Decision::Compare(Bytes(digest.0))
            }
            DestinationCheck::Done(digest) => {
                self.settle(file, Ok(digest));
                return unverified;
            }
            DestinationCheck::Failed(failure) => {
                self.settle(file, Err(failure));
                return unverified;
            }
        };
        self.decisions.push((file, decision));
        unverified
    }

    /// Handles the verification of a range: a damaged one is requested again.
    pub fn verified(&mut self, file: u64, offset: u64, is_intact: bool) {
        let Some(active) = self.files.get_mut(&file) else { return };
        let Some(extent) = active.unverified.remove(&offset) else { return };
        if is_intact {
            active.verified_bytes += extent.bytes;
            let part = DigestPart(extent.part);
            let _ = active.extents.insert(extent.offset, extent.bytes, part);
            return self.finish_if_whole(file);
        }
        active.resumed_bytes -= extent.bytes;
        // The sender recomputes its digest from the new reads.
        active.expected = active.expected.take().filter(|_| !self.algorithm.combines());
        self.tally.resumed_bytes -= extent.bytes;
        self.tally.rejected_bytes += extent.bytes;
        self.resend.push((file, offset));
    }

    /// Returns where the bytes of a frame belong. After [`FrameTarget::Write`] the driver must call
    /// [`Receiver::written`] or [`Receiver::fail`].
    ///
    /// # Errors
    /// If the file was never announced or requested, or the range exceeds it.
    pub fn accept(
        &mut self,
        file: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<FrameTarget, SenderFault> {
        if file >= self.next_file {
            return Err(SenderFault("a frame belongs to a file that was not announced"));
        }
        let Some(active) = self.files.get_mut(&file) else { return Ok(FrameTarget::Drop) };
        if !active.wanted || active.entry.kind != EntryKind::File {
            return Err(SenderFault("a frame belongs to a file that was not requested"));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > active.entry.bytes) {
            return Err(SenderFault("a frame reaches past the end of its file"));
        }
        let unverified = active.unverified.range(..offset + bytes).next_back();
        let is_unverified = unverified.is_some_and(|(start, extent)| start + extent.bytes > offset);
        let last = active.writing.range(..offset + bytes).next_back();
        let is_being_written = last.is_some_and(|(_, end)| *end > offset);
        if active.finishing
            || is_unverified
            || is_being_written
            || active.extents.gaps(offset..offset + bytes).is_empty()
        {
            return Ok(FrameTarget::Drop);
        }
        active.writing.insert(offset, offset + bytes);
        Ok(FrameTarget::Write(Arc::clone(&active.entry)))
    }

    /// Records written bytes of a file.
    ///
    /// # Errors
    /// If they partly overlap a recorded range.
    pub fn written(
        &mut self,
        file: u64,
        offset: u64,
        bytes: u64,
        part: DigestPart,
    ) -> Result<(), SenderFault> {
        let is_new = self.received(file, offset, bytes, part)?;
        self.tally.moved_bytes += if is_new { bytes } else { 0 };
        Ok(())
    }

    /// Records a hole of a file, which came without data.
    ///
    /// # Errors
    /// As those of [`Receiver::written`].
    pub fn written_hole(
        &mut self,
        file: u64,
        offset: u64,
        bytes: u64,
        part: DigestPart,
    ) -> Result<(), SenderFault> {
        self.received(file, offset, bytes, part).map(|_| ())
    }

    /// Records a range; false if it was there before.
    fn received(
        &mut self,
        file: u64,
        offset: u64,
        bytes: u64,
        part: DigestPart,
    ) -> Result<bool, SenderFault> {
        let Some(active) = self.files.get_mut(&file) else { return Ok(false) };
        active.writing.remove(&offset);
        let is_new = active
            .extents
            .insert(offset, bytes, part)
            .map_err(|_| SenderFault("a frame partly overlaps a received range"))?;
        self.finish_if_whole(file);
        Ok(is_new)
    }

    /// Records a packed file as written. Its part is its digest.
    ///
    /// # Errors
    /// If the size is not that of the whole file.
    pub fn written_whole(
        &mut self,
        file: u64,
        bytes: u64,
        part: DigestPart,
    ) -> Result<(), SenderFault> {
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        if bytes != active.entry.bytes {
            return Err(SenderFault("a packed file is not whole"));
        }
        let mut whole = Extents::new(self.algorithm, bytes);
        let _ = whole.insert(0, bytes, part);
        active.expected = whole.digest();
        self.written(file, 0, bytes, part)
    }

    /// Acknowledges a frame that is written or dropped completely.
    pub fn acknowledge(&mut self, sequence: u64) {
        match self.runs.last_mut() {
            Some(run) if run.first + run.count == sequence => run.count += 1,
            _ => self.runs.push(FrameRange { first: sequence, count: 1 }),
        }
    }

    /// Fails a file that cannot be written.
    pub fn fail(&mut self, file: u64, failure: Failure) {
        if let Some(active) = self.files.get(&file) {
            self.discards.push_back((file, Arc::clone(&active.entry)));
            self.settle(file, Err(failure));
        }
    }

    fn finish_if_whole(&mut self, file: u64) {
        let Some(active) = self.files.get_mut(&file) else { return };
        if active.finishing || !active.extents.is_whole() {
            return;
        }
        let Some(expected) = active.expected.clone() else { return };
        if self.algorithm.combines() && active.extents.digest().as_ref() != Some(&expected) {
            let text = "its digest at the destination is not that of the source: copy it again";
            return self.fail(file, Failure::new(FailureKind::Integrity, text));
        }
        active.finishing = true;
        let entry = Arc::clone(&active.entry);
        self.finishes.push_back(Finish { file, entry, digest: expected, same: false });
    }

    /// Returns the next file to commit.
    pub fn poll_finish(&mut self) -> Option<Finish> {
        self.finishes.pop_front()
    }

    /// True if a file is ready to commit, or everything is ready to finish.
    #[must_use]
    pub fn has_finishes(&self) -> bool {
        !self.finishes.is_empty() || self.is_complete()
    }

    /// True if every unsettled file is ready to commit, so that no more data can arrive for now.
    #[must_use]
    pub fn only_finishes(&self) -> bool {
        !self.finishes.is_empty() && self.finishes.len() == self.files.len()
    }

    /// True if the destination of an entry must be inspected.
    #[must_use]
    pub fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// True if the partial data of a file must be discarded.
    #[must_use]
    pub fn has_discards(&self) -> bool {
        !self.discards.is_empty()
    }

    /// Counts, at both ends, a failure of an entry that was already settled.
    pub fn note_failure(&mut self, path: RelativePath, failure: Failure) {
        self.tally.fail(path.to_string(), failure.clone());
        self.notes.push_back(Note { path, failure });
    }

    /// Counts, at both ends, metadata that could not be set.
    pub fn warn(&mut self, path: RelativePath, failure: Failure) {
        self.tally.warn(path.to_string(), failure.clone());
        self.warnings.push_back(Note { path, failure });
    }

    /// Returns the next file whose partial data must be discarded; [`Receiver::discarded`] reports
    /// completion.
    pub fn poll_discard(&mut self) -> Option<(u64, Arc<Entry>)> {
        let discard = self.discards.pop_front()?;
        self.discarding += 1;
        Some(discard)
    }

    /// Records the completion of a discard.
    pub fn discarded(&mut self) {
        self.discarding = self.discarding.saturating_sub(1);
    }

    /// Settles a file that is committed durably or has failed.
    pub fn settle(&mut self, file: u64, result: Result<Digest, Failure>) {
        let Some(active) = self.files.remove(&file) else { return };
        let outcome = match result {
            Ok(digest) => {
                self.tally.entries += 1;
                self.tally.links += u64::from(active.entry.kind == EntryKind::Symlink);
                if active.entry.kind == EntryKind::File {
                    if let Some(placed) = &mut self.placed {
                        let (path, digest) = (active.entry.path.clone(), digest.clone());
                        placed.push(Placed { path, digest });
                    }
                    self.tally.files += 1;
                    self.tally.bytes += active.entry.bytes;
                    self.tally.verified_bytes += active.verified_bytes;
                }
                Outcome::Done(Bytes(digest.0))
            }
            Err(failure) => {
                self.tally.resumed_bytes -= active.resumed_bytes;
                self.tally.fail(active.entry.path.to_string(), failure.clone());
                Outcome::Failed(failure)
            }
        };
        self.settled.push((file, outcome));
    }

    /// Records that everything is durable; the sender is notified.
    pub fn finished(&mut self) {
        self.finished_sent = true;
    }

    /// True once the sender was notified that everything is durable.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished_sent && !self.finish_asked
    }

    /// Queues the driver's measurements for the sender.
    pub fn report(&mut self, report: Report) {
        self.outbox.push_back(ToSender::Report(report));
    }

    /// Queues a cancellation with its reason.
    pub fn cancel(&mut self, reason: &str) {
        self.outbox.push_back(ToSender::Cancel(reason.to_owned()));
    }

    /// Returns the next message for the sender.
    pub fn poll_message(&mut self) -> Option<ToSender> {
        if let Some(message) = self.outbox.pop_front() {
            return Some(message);
        }
        if let Some((list, sent)) = &mut self.list {
            let rest = (*sent..list.len()).filter_map(|number| list.get(number));
            let some = wire::take_batch(&mut rest.map(|path| Bytes(path.to_vec())));
            *sent += some.len();
            if some.is_empty() {
                self.list = None;
                return Some(ToSender::ListEnd(()));
            }
            return Some(ToSender::Listed(some));
        }
        if !self.decisions.is_empty() {
            return Some(ToSender::Decisions(self.take_decisions()));
        }
        if !self.resend.is_empty() {
            return Some(ToSender::Resend(take_items(&mut self.resend)));
        }
        if !self.runs.is_empty() {
            return Some(ToSender::Written(take_items(&mut self.runs)));
        }
        if !self.settled.is_empty() {
            return Some(ToSender::Settled(take_items(&mut self.settled)));
        }
        if !self.notes.is_empty() {
            return Some(ToSender::Noted(wire::drain_batch(&mut self.notes)));
        }
        if !self.warnings.is_empty() {
            return Some(ToSender::Warned(wire::drain_batch(&mut self.warnings)));
        }
        if self.finish_asked && self.finished_sent {
            self.finish_asked = false;
            return Some(ToSender::Finished(()));
        }
        None
    }

    /// Takes decisions with about as many ranges as a message may hold.
    fn take_decisions(&mut self) -> Vec<(u64, Decision)> {
        let mut weight = 0;
        let fits = self.decisions.iter().position(|(_, decision)| {
            weight += match decision {
                Decision::Resume(extents) => extents.len().max(1),
                _ => 1,
            };
            weight > RESUME_RANGES_MAX
        });
        let count = fits.unwrap_or(self.decisions.len()).max(1);
        self.decisions.drain(..count).collect()
    }
}

fn take_items<T>(items: &mut Vec<T>) -> Vec<T> {
    items.drain(..items.len().min(ITEMS_PER_MESSAGE_MAX)).collect()
}
