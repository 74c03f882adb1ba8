//! The receiving end of a session: what it wants, where frames belong, when a file is whole.
//!
//! The carrier looks at the destination for every [`Receiver::poll_check`] and answers with a
//! [`Verdict`]; asks [`Receiver::accept`] where a frame's bytes belong and says when they are
//! [`Receiver::written`]; and puts every file of [`Receiver::poll_finish`] in place, durably, before it
//! says so with [`Receiver::settle`]. Frames of files that have failed, ended or were sent twice are
//! acknowledged and dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::control::{
    Decision, Failure, FailureKind, Note, Outcome, Placed, Report, Run, Tally, ToReceiver, ToSender,
};
use crate::digest::{Algorithm, Digest, Part};
use crate::extents::{Extent, Extents};
use crate::list::PathList;
use crate::manifest::{Entry, Kind, RelativePath, display_path};
use crate::wire::{self, Bytes};

/// Most ranges of a file that are offered for resuming; what is beyond is sent again.
const RESUME_RANGES_MAX: usize = 4_096;

/// Items of one message, so that none comes near the longest that is allowed.
const ITEMS_MAX: usize = 1_024;

/// What the carrier found at the destination of an entry.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// Nothing of use.
    Send,
    /// An unfinished copy of the same source, with these ranges.
    Resume(Vec<Extent>),
    /// The same file, with this digest if it was read for it.
    Skip(Digest),
    /// A file of the same size and time, with this digest.
    Compare(Digest),
    /// Nothing is to be sent: the directory, link or empty file is made.
    Done(Digest),
    /// It cannot be written.
    Failed(Failure),
}

/// A file of which every byte is written and every digest part is known.
#[derive(Debug, Clone)]
pub struct Finish {
    /// Its number.
    pub file: u64,
    /// What it is.
    pub entry: Arc<Entry>,
    /// Its digest; for those that do not combine, what the carrier must find.
    pub digest: Digest,
    /// Whether the file was there before and only its metadata is to be set.
    pub same: bool,
}

/// What is to become of a frame's bytes.
#[derive(Debug, Clone)]
pub enum Place {
    /// They belong to this file.
    Write(Arc<Entry>),
    /// Nobody needs them any more.
    Drop,
}

/// The sender said something that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sender broke the protocol: {0}")]
pub struct SenderFault(pub &'static str);

#[derive(Debug)]
struct Active {
    entry: Arc<Entry>,
    extents: Extents,
    /// Ranges of an unfinished copy that are not checked yet, by offset.
    unverified: BTreeMap<u64, Extent>,
    /// Ranges that the carrier is writing, as offset and end: a frame that is sent again meanwhile is dropped.
    writing: BTreeMap<u64, u64>,
    expected: Option<Digest>,
    resumed_bytes: u64,
    finishing: bool,
    /// The verdict asked for data.
    wanted: bool,
    /// The verdict asked for a comparison that has not been answered.
    compared: bool,
}

/// The receiving end of one session.
#[derive(Debug)]
pub struct Receiver {
    algorithm: Algorithm,
    files: HashMap<u64, Active>,
    next_file: u64,
    checks: VecDeque<(u64, Arc<Entry>)>,
    finishes: VecDeque<Finish>,
    discards: VecDeque<(u64, Arc<Entry>)>,
    /// Discards that the carrier has taken and not yet carried out.
    discarding: usize,
    decisions: Vec<(u64, Decision)>,
    resend: Vec<(u64, u64)>,
    settled: Vec<(u64, Outcome)>,
    runs: Vec<Run>,
    notes: VecDeque<Note>,
    warnings: VecDeque<Note>,
    /// Paths that are wanted of the sender, until all of them and their end are told; how many were.
    list: Option<(Arc<PathList>, usize)>,
    outbox: VecDeque<ToSender>,
    tally: Tally,
    /// Files in place, kept for a carrier that asks for them.
    placed: Option<Vec<Placed>>,
    finish_asked: bool,
    finished_sent: bool,
    cancelled: Option<String>,
}

impl Receiver {
    /// A session with this digest.
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
            tally: Tally::default(),
            placed: None,
            finish_asked: false,
            finished_sent: false,
            cancelled: None,
        }
    }

    /// Keeps the files that come into place for [`Self::take_placed`].
    pub fn keep_placed(&mut self) {
        self.placed.get_or_insert_default();
    }

    /// Files that came into place since the last call.
    pub fn take_placed(&mut self) -> Vec<Placed> {
        self.placed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Wants these paths of a sender that waits for a list.
    pub fn want(&mut self, list: Arc<PathList>) {
        self.list = Some((list, 0));
    }

    /// What was done so far. A file that was placed before its source was seen to change counts with each
    /// version that was placed.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether the sender has nothing more and the carrier should make everything durable, then say
    /// [`Receiver::finished`].
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.finish_asked && self.files.is_empty() && self.is_tidy() && !self.finished_sent
    }

    fn is_tidy(&self) -> bool {
        self.discards.is_empty() && self.discarding == 0
    }

    /// Why the sender stopped the transfer.
    #[must_use]
    pub fn cancelled(&self) -> Option<&str> {
        self.cancelled.as_deref()
    }

    /// Takes a message; reports and settings are the carrier's.
    ///
    /// # Errors
    /// When the sender makes no sense.
    pub fn on_message(&mut self, message: ToReceiver) -> Result<(), SenderFault> {
        match message {
            ToReceiver::Announce(announcement) => {
                if announcement.first != self.next_file {
                    return Err(SenderFault("it announces files out of order"));
                }
                for entry in announcement.entries {
                    self.announced(entry)?;
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
            ToReceiver::FileFailed((file, failure)) => self.source_failed(file, failure),
            ToReceiver::Missing(missing) => {
                for (path, failure) in missing {
                    self.tally.fail(display_path(path.as_bytes()), failure);
                }
            }
            ToReceiver::ManifestEnd(entries) => {
                // A file that changes is announced again after this, so it is the count that may
                // grow and not the order that may change.
                if entries > self.next_file {
                    return Err(SenderFault("its manifest ends beyond what it announced"));
                }
                self.tally.manifest_complete = true;
            }
            ToReceiver::Same(file) => self.same(file)?,
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

    fn announced(&mut self, entry: Entry) -> Result<(), SenderFault> {
        let file = self.next_file;
        let total = self.tally.announced_bytes.checked_add(entry.bytes);
        let total = total.ok_or(SenderFault("it announces more bytes than a number holds"))?;
        self.next_file += 1;
        self.tally.announced += 1;
        self.tally.announced_bytes = total;
        let entry = Arc::new(entry);
        self.checks.push_back((file, Arc::clone(&entry)));
        let active = Active {
            extents: Extents::new(self.algorithm, entry.bytes),
            entry,
            unverified: BTreeMap::new(),
            writing: BTreeMap::new(),
            expected: None,
            resumed_bytes: 0,
            finishing: false,
            wanted: false,
            compared: false,
        };
        self.files.insert(file, active);
        Ok(())
    }

    fn source_failed(&mut self, file: u64, failure: Option<Failure>) {
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

    fn same(&mut self, file: u64) -> Result<(), SenderFault> {
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        if !std::mem::take(&mut active.compared) || active.finishing {
            return Err(SenderFault("a file is the same that it was not asked to compare"));
        }
        active.finishing = true;
        active.resumed_bytes = active.entry.bytes;
        self.tally.resumed_bytes += active.resumed_bytes;
        self.tally.skipped_files += 1;
        self.tally.skipped_bytes += active.resumed_bytes;
        let digest = active.expected.clone().unwrap_or(Digest(Vec::new()));
        let entry = Arc::clone(&active.entry);
        self.finishes.push_back(Finish { file, entry, digest, same: true });
        Ok(())
    }

    /// The next entry whose destination is to be looked at.
    pub fn poll_check(&mut self) -> Option<(u64, Arc<Entry>)> {
        while let Some((file, entry)) = self.checks.pop_front() {
            if self.files.contains_key(&file) {
                return Some((file, entry));
            }
        }
        None
    }

    /// The carrier has looked. Gives the ranges of an unfinished copy that the carrier is to read back and compare
    /// with their parts; [`Receiver::verified`] takes the result of each.
    pub fn decide(&mut self, file: u64, verdict: Verdict) -> Vec<Extent> {
        let Some(active) = self.files.get_mut(&file) else { return Vec::new() };
        active.wanted = true;
        let mut unverified = Vec::new();
        let decision = match verdict {
            Verdict::Send => Decision::Send(()),
            Verdict::Resume(extents) => {
                let mut there = Extents::new(Algorithm::None, active.entry.bytes);
                // Of ranges that cross, the first counts.
                let fits = |extent: &Extent| {
                    there.insert(extent.offset, extent.bytes, Part::default()) == Ok(true)
                };
                unverified.extend(extents.into_iter().filter(fits).take(RESUME_RANGES_MAX));
                let by_offset = unverified.iter().map(|extent| (extent.offset, extent.clone()));
                active.unverified = by_offset.collect();
                active.resumed_bytes = unverified.iter().map(|extent| extent.bytes).sum();
                self.tally.resumed_bytes += active.resumed_bytes;
                Decision::Resume(unverified.clone())
            }
            Verdict::Skip(digest) => {
                self.decisions.push((file, Decision::Skip(())));
                active.resumed_bytes = active.entry.bytes;
                self.tally.resumed_bytes += active.resumed_bytes;
                self.tally.skipped_files += 1;
                self.tally.skipped_bytes += active.resumed_bytes;
                self.settle(file, Ok(digest));
                return unverified;
            }
            Verdict::Compare(digest) => {
                active.expected = Some(digest.clone());
                active.compared = true;
                Decision::Compare(Bytes(digest.0))
            }
            Verdict::Done(digest) => {
                self.settle(file, Ok(digest));
                return unverified;
            }
            Verdict::Failed(failure) => {
                self.settle(file, Err(failure));
                return unverified;
            }
        };
        self.decisions.push((file, decision));
        unverified
    }

    /// A range of an unfinished copy was read back: it has its part, or is to be sent again.
    pub fn verified(&mut self, file: u64, offset: u64, is_intact: bool) {
        let Some(active) = self.files.get_mut(&file) else { return };
        let Some(extent) = active.unverified.remove(&offset) else { return };
        if is_intact {
            let part = Part(extent.part);
            let _ = active.extents.insert(extent.offset, extent.bytes, part);
            return self.finish_if_whole(file);
        }
        active.resumed_bytes -= extent.bytes;
        // The sender makes its digest again from what it reads now.
        active.expected = active.expected.take().filter(|_| !self.algorithm.combines());
        self.tally.resumed_bytes -= extent.bytes;
        self.tally.rejected_bytes += extent.bytes;
        self.resend.push((file, offset));
    }

    /// Where the bytes of a frame belong. Those of [`Place::Write`] are the carrier's until it says [`Receiver::written`]
    /// or [`Receiver::fail`].
    ///
    /// # Errors
    /// When the file was never announced or wanted, or the range is not in it.
    pub fn accept(&mut self, file: u64, offset: u64, bytes: u64) -> Result<Place, SenderFault> {
        if file >= self.next_file {
            return Err(SenderFault("a frame belongs to a file that was not announced"));
        }
        let Some(active) = self.files.get_mut(&file) else { return Ok(Place::Drop) };
        if !active.wanted || active.entry.kind != Kind::File {
            return Err(SenderFault("a frame belongs to a file that nobody asked for"));
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
            return Ok(Place::Drop);
        }
        active.writing.insert(offset, offset + bytes);
        Ok(Place::Write(Arc::clone(&active.entry)))
    }

    /// Bytes of a file are written.
    ///
    /// # Errors
    /// When they cross what is there.
    pub fn written(
        &mut self,
        file: u64,
        offset: u64,
        bytes: u64,
        part: Part,
    ) -> Result<(), SenderFault> {
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        active.writing.remove(&offset);
        let new = active
            .extents
            .insert(offset, bytes, part)
            .map_err(|_| SenderFault("a frame crosses a range that is there"))?;
        self.tally.moved_bytes += if new { bytes } else { 0 };
        self.finish_if_whole(file);
        Ok(())
    }

    /// A whole small file of a pack is written. Its part is its digest.
    ///
    /// # Errors
    /// When it is not the whole file.
    pub fn written_whole(&mut self, file: u64, bytes: u64, part: Part) -> Result<(), SenderFault> {
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        if bytes != active.entry.bytes {
            return Err(SenderFault("a packed file is not whole"));
        }
        let mut whole = Extents::new(self.algorithm, bytes);
        let _ = whole.insert(0, bytes, part);
        active.expected = whole.digest();
        self.written(file, 0, bytes, part)
    }

    /// A frame is written, or dropped, in all its parts.
    pub fn acknowledge(&mut self, sequence: u64) {
        match self.runs.last_mut() {
            Some(run) if run.first + run.count == sequence => run.count += 1,
            _ => self.runs.push(Run { first: sequence, count: 1 }),
        }
    }

    /// A file cannot be written.
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

    /// The next file that is to be put in place.
    pub fn poll_finish(&mut self) -> Option<Finish> {
        self.finishes.pop_front()
    }

    /// Whether a file is to be put in place, or everything is to be finished.
    #[must_use]
    pub fn has_finishes(&self) -> bool {
        !self.finishes.is_empty() || self.is_complete()
    }

    /// Whether every file that is not settled waits to be put in place, so that nothing more can come
    /// for now.
    #[must_use]
    pub fn only_finishes(&self) -> bool {
        !self.finishes.is_empty() && self.finishes.len() == self.files.len()
    }

    /// Whether an entry waits for its destination to be looked at.
    #[must_use]
    pub fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Whether a file is to be forgotten.
    #[must_use]
    pub fn has_discards(&self) -> bool {
        !self.discards.is_empty()
    }

    /// Counts something that failed after its entry was settled, at both ends.
    pub fn note_failure(&mut self, path: RelativePath, failure: Failure) {
        self.tally.fail(path.to_string(), failure.clone());
        self.notes.push_back(Note { path, failure });
    }

    /// Counts something that did not come with its entry, at both ends.
    pub fn warn(&mut self, path: RelativePath, failure: Failure) {
        self.tally.warn(path.to_string(), failure.clone());
        self.warnings.push_back(Note { path, failure });
    }

    /// The next file of which everything is to be forgotten; [`Receiver::discarded`] says that it is.
    pub fn poll_discard(&mut self) -> Option<(u64, Arc<Entry>)> {
        let discard = self.discards.pop_front()?;
        self.discarding += 1;
        Some(discard)
    }

    /// Nothing is left of a file of [`Receiver::poll_discard`].
    pub fn discarded(&mut self) {
        self.discarding = self.discarding.saturating_sub(1);
    }

    /// A file is in place, durably, or has failed.
    pub fn settle(&mut self, file: u64, result: Result<Digest, Failure>) {
        let Some(active) = self.files.remove(&file) else { return };
        let outcome = match result {
            Ok(digest) => {
                self.tally.entries += 1;
                self.tally.links += u64::from(active.entry.kind == Kind::Symlink);
                if active.entry.kind == Kind::File {
                    if let Some(placed) = &mut self.placed {
                        let (path, digest) = (active.entry.path.clone(), digest.clone());
                        placed.push(Placed { path, digest });
                    }
                    self.tally.files += 1;
                    self.tally.bytes += active.entry.bytes;
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

    /// Everything is durable.
    pub fn finished(&mut self) {
        self.finished_sent = true;
    }

    /// Whether the sender has been told that everything is durable.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished_sent && !self.finish_asked
    }

    /// Queues the carrier's measurements for the sender.
    pub fn report(&mut self, report: Report) {
        self.outbox.push_back(ToSender::Report(report));
    }

    /// Queues the reason why this side stops the transfer.
    pub fn cancel(&mut self, reason: &str) {
        self.outbox.push_back(ToSender::Cancel(reason.to_owned()));
    }

    /// The next message for the sender.
    pub fn poll_message(&mut self) -> Option<ToSender> {
        if let Some(message) = self.outbox.pop_front() {
            return Some(message);
        }
        if let Some((list, told)) = &mut self.list {
            let rest = (*told..list.len()).filter_map(|number| list.get(number));
            let some = wire::some_from(&mut rest.map(|path| Bytes(path.to_vec())));
            *told += some.len();
            if some.is_empty() {
                self.list = None;
                return Some(ToSender::ListEnd(()));
            }
            return Some(ToSender::Listed(some));
        }
        if !self.decisions.is_empty() {
            return Some(ToSender::Decisions(self.some_decisions()));
        }
        if !self.resend.is_empty() {
            return Some(ToSender::Resend(some(&mut self.resend)));
        }
        if !self.runs.is_empty() {
            return Some(ToSender::Written(some(&mut self.runs)));
        }
        if !self.settled.is_empty() {
            return Some(ToSender::Settled(some(&mut self.settled)));
        }
        if !self.notes.is_empty() {
            return Some(ToSender::Noted(wire::some_of(&mut self.notes)));
        }
        if !self.warnings.is_empty() {
            return Some(ToSender::Warned(wire::some_of(&mut self.warnings)));
        }
        if self.finish_asked && self.finished_sent {
            self.finish_asked = false;
            return Some(ToSender::Finished(()));
        }
        None
    }

    /// Decisions with about as many ranges as a message may hold.
    fn some_decisions(&mut self) -> Vec<(u64, Decision)> {
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

fn some<T>(items: &mut Vec<T>) -> Vec<T> {
    items.drain(..items.len().min(ITEMS_MAX)).collect()
}
