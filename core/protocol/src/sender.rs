//! Sending end of a session: what to announce, read and send next, and what to send again.
//!
//! The state machine holds a window of the manifest, never all of it. Its driver announces scanned entries with
//! [`Sender::announce`] while [`Sender::has_room`], reads what [`Sender::next_work`] returns, and reports on which stream
//! each frame was sent. A frame counts as sent once the receiver has written it; when a stream is lost, its other frames
//! are queued again under new numbers. Each device reads its largest file first, block by block, alternating with packs.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::control::{
    Announcement, Decision, Failure, FailureKind, FrameRange, Outcome, Placed, Report, Settled,
    ToReceiver, ToSender, TransferTally,
};
use crate::digest::{Algorithm, Digest, DigestPart};
use crate::extents::{Extent, Extents};
use crate::manifest::{Entry, EntryKind, display_path};
use crate::wire::{self, Bytes};
use in_flight::InFlight;
use queue::{DeviceQueue, next_block, next_pack, still_wanted};

mod in_flight;
mod queue;

/// Limit of entries that are announced and not settled.
const UNSETTLED_ENTRIES_MAX: usize = 32_768;

/// Encoded bytes of entries at which an announcement is sent.
const ANNOUNCEMENT_BYTES_TARGET: usize = 64 * 1024;

/// Limit of digests in one message, far below the message size limit.
const DIGESTS_PER_MESSAGE_MAX: usize = 1_024;

/// Limit of path bytes in a received list that are not scanned yet.
pub const LIST_BYTES_MAX: usize = 64 << 20;

/// Attempts to copy a file that changes while it is read.
const ATTEMPTS_MAX: u32 = 3;

/// Limit of files in a pack made by this sender: larger packs would occupy one reader for too long.
const PACK_FILES_TARGET: usize = 1_024;

/// Failure text if the destination keeps existing files and one differs.
pub const DIFFERS: &str =
    "another file of that name is there and is to stay: move it away, or have it replaced";

/// Source of an announced entry.
#[derive(Debug)]
pub struct SourceEntry {
    /// Number of the entry in the session.
    pub file: u64,
    /// Index of the driver's root that contains it.
    pub root: u32,
    /// Device that stores its bytes.
    pub device: u64,
    /// Entry as sent in the manifest.
    pub entry: Entry,
    attempt: u32,
}

/// Read task whose result is sent as one frame.
#[derive(Debug, Clone)]
pub struct FrameTask {
    /// Number of the frame.
    pub sequence: u64,
    /// Files or ranges to read.
    pub piece: Piece,
}

/// Files or range of a read task.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Read a range of a file.
    Block {
        /// File to read.
        source: Arc<SourceEntry>,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Read whole small files.
    Pack(Vec<Arc<SourceEntry>>),
    /// Digest a file and compare it with the one at the destination; sends no data.
    Compare {
        /// File to digest.
        source: Arc<SourceEntry>,
        /// Digest of the file at the destination.
        digest: Digest,
    },
    /// Digest a skipped file for [`Sender::take_placed`].
    Digest(Arc<SourceEntry>),
}

/// Result of reading one file.
#[derive(Debug, Clone)]
pub enum ReadOutcome {
    /// Success, with the digest part of the bytes read.
    Good(DigestPart),
    /// The file differs from its announcement; its new entry, if it can still be copied.
    Changed(Option<Box<Entry>>),
    /// The file could not be read.
    Failed(Failure),
}

/// Number of a data stream in its session.
pub type StreamId = u32;

#[derive(Debug)]
struct OutgoingFile {
    source: Arc<SourceEntry>,
    /// Ranges not yet handed to readers.
    ranges: VecDeque<Range<u64>>,
    /// Ranges read here, with their parts.
    extents: Extents,
    /// Ranges that the receiver resumed, by offset.
    resumed: BTreeMap<u64, Extent>,
    /// Bytes that the receiver has and that are not sent.
    resumed_bytes: u64,
    skipped: bool,
    /// Sent in a pack, whose table holds the digest.
    packed: bool,
    ended: bool,
}

/// Paths to send, received from the peer in parts.
#[derive(Debug, Default)]
struct PathQueue {
    paths: VecDeque<Bytes>,
    bytes: usize,
    ended: bool,
}

/// Sending end of one session.
#[derive(Debug)]
pub struct Sender {
    algorithm: Algorithm,
    block_bytes: u64,
    files: HashMap<u64, OutgoingFile>,
    queues: BTreeMap<u64, DeviceQueue>,
    in_flight: BTreeMap<u64, InFlight>,
    next_file: u64,
    next_sequence: u64,
    entries: Vec<Entry>,
    entries_bytes: usize,
    entries_first: u64,
    ends: Vec<(u64, Bytes)>,
    missing: VecDeque<(String, Failure)>,
    outbox: VecDeque<ToReceiver>,
    tally: TransferTally,
    /// Committed files, if the driver collects them.
    placed: Option<Vec<Placed>>,
    /// Final results, if the driver collects them.
    account: Option<Vec<Settled>>,
    /// Required digests, by path.
    expected: HashMap<Vec<u8>, Digest>,
    /// Set when an existing file that differs is a failure.
    keep_existing: bool,
    /// Set when skipped files are digested too.
    digest_skipped: bool,
    /// Number of skipped files still to be digested.
    digesting: usize,
    /// Paths requested by the receiver of a listed pull.
    list: Option<PathQueue>,
    finish_sent: bool,
    last_reported: bool,
    finished: bool,
    cancelled: Option<String>,
}

/// Protocol violation by the receiver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the receiver broke the protocol: {0}")]
pub struct ReceiverFault(&'static str);

impl Sender {
    /// Creates a session with this digest and blocks of `block_bytes`.
    #[must_use]
    pub fn new(algorithm: Algorithm, block_bytes: u32) -> Self {
        Self {
            algorithm,
            block_bytes: u64::from(block_bytes),
            files: HashMap::new(),
            queues: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_file: 0,
            next_sequence: 0,
            entries: Vec::new(),
            entries_bytes: 0,
            entries_first: 0,
            ends: Vec::new(),
            missing: VecDeque::new(),
            outbox: VecDeque::new(),
            tally: TransferTally::default(),
            placed: None,
            account: None,
            expected: HashMap::new(),
            keep_existing: false,
            digest_skipped: false,
            digesting: 0,
            list: None,
            finish_sent: false,
            last_reported: false,
            finished: false,
            cancelled: None,
        }
    }

    /// True while more entries may be announced.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.files.len() + self.digesting < UNSETTLED_ENTRIES_MAX
    }

    /// Collects committed files for [`Self::take_placed`]. With `digest_skipped`, skipped files are
    /// digested too, which costs a read of each.
    pub fn keep_placed(&mut self, digest_skipped: bool) {
        self.placed.get_or_insert_default();
        self.digest_skipped = digest_skipped && self.algorithm != Algorithm::None;
    }

    /// Returns the files committed since the last call.
    pub fn take_placed(&mut self) -> Vec<Placed> {
        self.placed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Collects final results for [`Self::take_settled`].
    pub fn keep_account(&mut self) {
        self.account.get_or_insert_default();
    }

    /// Returns the final results since the last call.
    pub fn take_settled(&mut self) -> Vec<Settled> {
        self.account.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Sets the digests, by path, that files must have in the session's algorithm. A file with another
    /// digest is not committed, and an existing one with the required digest is skipped.
    pub fn expect(&mut self, digests: HashMap<Vec<u8>, Digest>) {
        self.expected = digests;
    }

    /// Treats existing files that differ as failures.
    pub fn keep_existing(&mut self) {
        self.keep_existing = true;
    }

    fn record_result(
        &mut self,
        path: &[u8],
        bytes: u64,
        was_there: bool,
        result: Result<Digest, Failure>,
    ) {
        if let Some(account) = &mut self.account {
            account.push(Settled { path: path.to_vec(), bytes, was_there, result });
        }
    }

    /// Returns the failure if `digest` is not the required one.
    fn digest_failure(&self, path: &[u8], digest: &Digest) -> Option<Failure> {
        let expected = self.expected.get(path).filter(|expected| *expected != digest)?;
        let text = format!(
            "its {} is {digest} and should be {expected}: check the source and the given digest",
            self.algorithm
        );
        Some(Failure::new(FailureKind::Unexpected, text))
    }

    /// Expects a list of paths from the receiver.
    pub fn expect_list(&mut self) {
        self.list.get_or_insert_default();
    }

    /// Returns the next path of the list: `Some(None)` if it has not arrived yet, `None` after the last.
    pub fn next_listed(&mut self) -> Option<Option<Vec<u8>>> {
        let list = self.list.as_mut()?;
        match list.paths.pop_front() {
            Some(path) => {
                list.bytes -= path.0.len();
                Some(Some(path.0))
            }
            None if list.ended => None,
            None => Some(None),
        }
    }

    fn on_list(&mut self, paths: Vec<Bytes>) -> Result<(), ReceiverFault> {
        let list = self.list.as_mut().filter(|list| !list.ended);
        let list = list.ok_or(ReceiverFault("it sends a list that was not requested"))?;
        list.bytes += paths.iter().map(|path| path.0.len()).sum::<usize>();
        list.paths.extend(paths);
        // Empty paths take memory too.
        if list.bytes.max(list.paths.len() * 8) > LIST_BYTES_MAX {
            return Err(ReceiverFault("its list is too long"));
        }
        Ok(())
    }

    /// Counters of the session.
    #[must_use]
    pub fn tally(&self) -> &TransferTally {
        &self.tally
    }

    /// True once the receiver reported that everything is durable.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Reason given by a receiver that stopped the transfer.
    #[must_use]
    pub fn cancelled(&self) -> Option<&str> {
        self.cancelled.as_deref()
    }

    /// Announces an entry below root `root` on device `device`.
    pub fn announce(&mut self, root: u32, device: u64, entry: Entry) {
        self.tally.announced += 1;
        self.tally.announced_bytes += entry.bytes;
        self.announce_attempt(root, device, entry, 1);
    }

    fn announce_attempt(&mut self, root: u32, device: u64, entry: Entry, attempt: u32) {
        let file = self.next_file;
        self.next_file += 1;
        self.entries_bytes += wire::encode(&entry).len();
        self.entries.push(entry.clone());
        let extents = Extents::new(self.algorithm, entry.bytes);
        let source = Arc::new(SourceEntry { file, root, device, entry, attempt });
        let active = OutgoingFile {
            source,
            ranges: VecDeque::new(),
            extents,
            resumed: BTreeMap::new(),
            resumed_bytes: 0,
            skipped: false,
            packed: false,
            ended: false,
        };
        self.files.insert(file, active);
        if self.entries_bytes >= ANNOUNCEMENT_BYTES_TARGET {
            self.flush_entries();
        }
    }

    /// Records a source that could not be announced.
    pub fn scan_failed(&mut self, path: &[u8], failure: Failure) {
        let shown = display_path(path);
        self.tally.fail(shown.clone(), failure.clone());
        self.record_result(path, 0, false, Err(failure.clone()));
        self.missing.push_back((shown, failure));
    }

    /// Warns of a temporary file of a copy, which is not announced.
    pub fn leave_out(&mut self, path: &[u8]) {
        let text = "it is a temporary file of another copy and is left out: copy again when that one has ended";
        self.tally.warn(display_path(path), Failure::new(FailureKind::Source, text));
    }

    /// Ends the manifest: all sources are scanned.
    pub fn manifest_end(&mut self) {
        self.flush_entries();
        self.tally.manifest_complete = true;
        self.outbox.push_back(ToReceiver::ManifestEnd(self.next_file));
    }

    fn flush_entries(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.entries);
        let first = std::mem::replace(&mut self.entries_first, self.next_file);
        self.entries_bytes = 0;
        self.outbox.push_back(ToReceiver::Announce(Announcement { first, entries }));
    }

    /// True if an announcement is ready to be sent.
    #[must_use]
    pub fn has_announcement(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// True if every entry is settled and the driver should queue its last measurements.
    #[must_use]
    pub fn wants_last_report(&self) -> bool {
        self.is_settled() && !self.last_reported
    }

    fn is_settled(&self) -> bool {
        self.tally.manifest_complete
            && self.files.is_empty()
            && self.digesting == 0
            && !self.finish_sent
    }

    /// Returns the next message for the receiver.
    pub fn poll_message(&mut self) -> Option<ToReceiver> {
        if let Some(message) = self.outbox.pop_front() {
            return Some(message);
        }
        if !self.entries.is_empty() {
            self.flush_entries();
            return self.outbox.pop_front();
        }
        if !self.ends.is_empty() {
            let some = self.ends.len().min(DIGESTS_PER_MESSAGE_MAX);
            return Some(ToReceiver::FileEnds(self.ends.drain(..some).collect()));
        }
        if !self.missing.is_empty() {
            return Some(ToReceiver::Missing(wire::drain_batch(&mut self.missing)));
        }
        if self.is_settled() {
            self.finish_sent = true;
            return Some(ToReceiver::Finish(()));
        }
        None
    }

    /// Handles a message. Reports and settings are left to the driver.
    ///
    /// # Errors
    /// If the receiver violates the protocol.
    pub fn on_message(&mut self, message: ToSender) -> Result<(), ReceiverFault> {
        match message {
            ToSender::Decisions(decisions) => decisions
                .into_iter()
                .try_for_each(|(file, decision)| self.on_decision(file, decision)),
            ToSender::Written(runs) => runs.into_iter().try_for_each(|run| self.on_written(run)),
            ToSender::Settled(outcomes) => {
                outcomes.into_iter().for_each(|(file, outcome)| self.on_settled(file, outcome));
                Ok(())
            }
            ToSender::Finished(()) if self.finish_sent => {
                self.finished = true;
                Ok(())
            }
            ToSender::Finished(()) => Err(ReceiverFault("it finished before it was asked to")),
            ToSender::Cancel(reason) => {
                self.cancelled = Some(reason);
                Ok(())
            }
            ToSender::Noted(notes) => {
                notes
                    .into_iter()
                    .for_each(|note| self.tally.fail(note.path.to_string(), note.failure));
                Ok(())
            }
            ToSender::Listed(paths) => self.on_list(paths),
            ToSender::ListEnd(()) => {
                self.list.iter_mut().for_each(|list| list.ended = true);
                Ok(())
            }
            ToSender::Warned(notes) => {
                notes
                    .into_iter()
                    .for_each(|note| self.tally.warn(note.path.to_string(), note.failure));
                Ok(())
            }
            ToSender::Resend(ranges) => {
                ranges.into_iter().try_for_each(|(file, offset)| self.resend(file, offset))
            }
            ToSender::Report(_) | ToSender::Settings(_) => Ok(()),
        }
    }

    /// Queues a resumed range that failed verification at the destination.
    fn resend(&mut self, file: u64, offset: u64) -> Result<(), ReceiverFault> {
        if file >= self.next_file {
            return Err(ReceiverFault("it wants a file that was not announced"));
        }
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        let extent = active.resumed.remove(&offset);
        let extent = extent.ok_or(ReceiverFault("it wants a range again that it did not have"))?;
        active.resumed_bytes -= extent.bytes;
        self.tally.resumed_bytes -= extent.bytes;
        self.tally.rejected_bytes += extent.bytes;
        self.tally.wanted_bytes += extent.bytes;
        active.ranges.push_back(offset..offset + extent.bytes);
        // A combinable digest is recomputed from the new reads; one in file order covers the source alone.
        active.ended &= !self.algorithm.combines();
        let queue = self.queues.entry(active.source.device).or_default();
        queue.large.push((active.source.entry.bytes, file));
        Ok(())
    }

    fn on_decision(&mut self, file: u64, decision: Decision) -> Result<(), ReceiverFault> {
        if file >= self.next_file {
            return Err(ReceiverFault("it wants a file that was not announced"));
        }
        let block_bytes = self.block_bytes;
        // A file that failed meanwhile needs no decision.
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        let bytes = active.source.entry.bytes;
        if active.source.entry.kind != EntryKind::File {
            return Ok(());
        }
        let queue = self.queues.entry(active.source.device).or_default();
        match decision {
            Decision::Skip(()) => {
                active.skipped = true;
                active.resumed_bytes = bytes;
                self.tally.resumed_bytes += bytes;
                return Ok(());
            }
            Decision::Compare(digest) => {
                let digest = Digest(digest.0);
                let source = Arc::clone(&active.source);
                match self.expected.get(source.entry.path.as_bytes()) {
                    // The required digest is known without reading the source.
                    Some(expected) => {
                        let same = *expected == digest;
                        self.compared(&source, same);
                    }
                    None => queue.compare.push_back((file, digest)),
                }
                return Ok(());
            }
            Decision::Send(()) => active.ranges.push_back(0..bytes),
            Decision::Resume(extents) => {
                let mut there = Extents::new(Algorithm::None, bytes);
                for extent in extents {
                    match there.insert(extent.offset, extent.bytes, DigestPart::default()) {
                        Ok(true) => active.resumed.insert(extent.offset, extent),
                        _ => return Err(ReceiverFault("it has ranges that cross")),
                    };
                }
                active.resumed_bytes = there.covered();
                self.tally.resumed_bytes += active.resumed_bytes;
                active.ranges.extend(there.gaps(0..bytes));
            }
        }
        self.tally.wanted_bytes += bytes - active.resumed_bytes;
        self.tally.wanted_files += 1;
        let whole = active.resumed_bytes == 0;
        if active.ranges.is_empty() && !self.algorithm.combines() {
            // The digest is still needed; reading the last block computes it.
            let last = (bytes.max(1) - 1) / block_bytes * block_bytes;
            active.ranges.push_back(last..bytes);
        }
        if active.ranges.is_empty() {
            self.file_read(file);
        } else if whole
            && bytes <= block_bytes / 4
            && self.algorithm.combines()
            // A pack is sent before its digest could be checked against the required one.
            && !self.expected.contains_key(active.source.entry.path.as_bytes())
        {
            active.packed = true;
            queue.small.push_back(file);
        } else {
            queue.large.push((bytes, file));
        }
        Ok(())
    }

    fn on_written(&mut self, run: FrameRange) -> Result<(), ReceiverFault> {
        let end = run.first.checked_add(run.count).filter(|end| *end <= self.next_sequence);
        let end = end.ok_or(ReceiverFault("it acknowledges frames that were not sent"))?;
        for sequence in run.first..end {
            if let Some(InFlight { piece: Piece::Block { bytes, .. }, is_hole: false, .. }) =
                self.in_flight.remove(&sequence)
            {
                self.tally.moved_bytes += bytes;
            }
        }
        Ok(())
    }

    fn on_settled(&mut self, file: u64, outcome: Outcome) {
        let Some(active) = self.files.remove(&file) else { return };
        let OutgoingFile { source, skipped, packed, resumed_bytes, .. } = active;
        let entry = &source.entry;
        let path = entry.path.as_bytes();
        let digest = match outcome {
            Outcome::Done(digest) => Digest(digest.0),
            Outcome::Failed(failure) => {
                self.tally.resumed_bytes -= resumed_bytes;
                self.record_result(path, entry.bytes, false, Err(failure.clone()));
                return self.tally.fail(entry.path.to_string(), failure);
            }
        };
        let digest = match self.expected.get(path) {
            // The digest was compared and need not be sent.
            Some(expected) if skipped && digest.0.is_empty() => expected.clone(),
            _ => digest,
        };
        if entry.kind == EntryKind::File
            && !digest.0.is_empty()
            && let Some(failure) = self.digest_failure(path, &digest)
        {
            self.record_result(path, entry.bytes, false, Err(failure.clone()));
            return self.tally.fail(entry.path.to_string(), failure);
        }
        self.record_result(path, entry.bytes, skipped, Ok(digest.clone()));
        self.tally.entries += 1;
        self.tally.links += u64::from(entry.kind == EntryKind::Symlink);
        if entry.kind == EntryKind::File {
            if skipped && digest.0.is_empty() && self.digest_skipped {
                self.digesting += 1;
                let queue = self.queues.entry(source.device).or_default();
                queue.digest.push_back(Arc::clone(&source));
            } else if let Some(placed) = &mut self.placed {
                placed.push(Placed { path: entry.path.clone(), digest });
            }
            self.tally.files += 1;
            self.tally.skipped_files += u64::from(skipped);
            self.tally.skipped_bytes += if skipped { entry.bytes } else { 0 };
            self.tally.verified_bytes += if skipped { 0 } else { resumed_bytes };
            self.tally.bytes += entry.bytes;
            self.tally.moved_bytes += if packed { entry.bytes } else { 0 };
        }
    }

    /// Iterates over devices with sources (`st_dev`).
    pub fn devices(&self) -> impl Iterator<Item = u64> + '_ {
        self.queues.keys().copied()
    }

    /// Returns the next work for a reader of `device`.
    pub fn next_work(&mut self, device: u64) -> Option<FrameTask> {
        let piece = self.next_piece(device)?;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Some(FrameTask { sequence, piece })
    }

    fn next_piece(&mut self, device: u64) -> Option<Piece> {
        let queue = self.queues.get_mut(&device)?;
        while let Some(piece) = queue.retry.pop_front() {
            if let Some(piece) = still_wanted(&self.files, piece) {
                return Some(piece);
            }
        }
        while let Some((file, digest)) = queue.compare.pop_front() {
            if let Some(active) = self.files.get(&file) {
                return Some(Piece::Compare { source: Arc::clone(&active.source), digest });
            }
        }
        if let Some(source) = queue.digest.pop_front() {
            return Some(Piece::Digest(source));
        }
        queue.small_is_next = !queue.small_is_next;
        if queue.small_is_next {
            next_pack(queue, &self.files, self.block_bytes)
                .or_else(|| next_block(queue, &mut self.files, self.block_bytes))
        } else {
            next_block(queue, &mut self.files, self.block_bytes)
                .or_else(|| next_pack(queue, &self.files, self.block_bytes))
        }
    }

    /// Handles the result of reading one file of a piece: a range, or in a pack the whole file.
    pub fn read(&mut self, source: &SourceEntry, range: Range<u64>, result: ReadOutcome) {
        match result {
            ReadOutcome::Good(part) => {
                let Some(active) = self.files.get_mut(&source.file) else { return };
                // A range read again after a stream loss is already recorded.
                let _ = active.extents.insert(range.start, range.end - range.start, part);
                self.file_read(source.file);
            }
            ReadOutcome::Changed(fresh) => self.changed(source, fresh.map(|entry| *entry)),
            ReadOutcome::Failed(failure) => self.fail(source, failure),
        }
    }

    /// Handles the digest of a file that the driver hashed in file order.
    pub fn serial_digest(&mut self, file: u64, digest: Digest) {
        if self.files.get(&file).is_some_and(|active| !active.ended) {
            self.end_file(file, digest);
        }
    }

    fn file_read(&mut self, file: u64) {
        let Some(active) = self.files.get(&file) else { return };
        if active.packed
            || active.ended
            || !self.algorithm.combines()
            || active.extents.covered() + active.resumed_bytes < active.source.entry.bytes
        {
            return;
        }
        let mut whole = active.extents.clone();
        for extent in active.resumed.values() {
            let _ = whole.insert(extent.offset, extent.bytes, DigestPart(extent.part));
        }
        if let Some(digest) = whole.digest() {
            self.end_file(file, digest);
        }
    }

    /// Queues the digest of a completely read file, unless it is not the required one.
    fn end_file(&mut self, file: u64, digest: Digest) {
        let Some(active) = self.files.get_mut(&file) else { return };
        active.ended = true;
        let source = Arc::clone(&active.source);
        match self.digest_failure(source.entry.path.as_bytes(), &digest) {
            Some(failure) => self.fail(&source, failure),
            None => self.ends.push((file, Bytes(digest.0))),
        }
    }

    /// Handles the result of a comparison of digests.
    pub fn compared(&mut self, source: &SourceEntry, same: bool) {
        let Some(active) = self.files.get_mut(&source.file) else { return };
        if same {
            active.skipped = true;
            active.resumed_bytes = source.entry.bytes;
            self.tally.resumed_bytes += active.resumed_bytes;
            self.outbox.push_back(ToReceiver::Same(source.file));
        } else if self.keep_existing {
            self.fail(source, Failure::new(FailureKind::Refused, DIFFERS));
        } else {
            active.ranges.push_back(0..source.entry.bytes);
            let queue = self.queues.entry(source.device).or_default();
            queue.large.push((source.entry.bytes, source.file));
        }
    }

    /// Handles the result of [`Piece::Digest`].
    pub fn digested(&mut self, source: &SourceEntry, result: Result<Digest, Failure>) {
        self.digesting = self.digesting.saturating_sub(1);
        match (result, &mut self.placed) {
            (Ok(digest), Some(placed)) => {
                placed.push(Placed { path: source.entry.path.clone(), digest });
            }
            (Ok(_), None) => {}
            (Err(failure), _) => self.tally.fail(source.entry.path.to_string(), failure),
        }
    }

    fn changed(&mut self, source: &SourceEntry, fresh: Option<Entry>) {
        let Some(fresh) = fresh.filter(|_| source.attempt < ATTEMPTS_MAX) else {
            let text = "it changed while it was being copied: copy it again when it is at rest";
            return self.fail(source, Failure::new(FailureKind::Changed, text));
        };
        let Some(active) = self.files.remove(&source.file) else { return };
        self.tally.resumed_bytes -= active.resumed_bytes;
        self.outbox.push_back(ToReceiver::FileFailed((source.file, None)));
        self.tally.announced_bytes =
            self.tally.announced_bytes.saturating_sub(source.entry.bytes) + fresh.bytes;
        self.announce_attempt(source.root, source.device, fresh, source.attempt + 1);
    }

    fn fail(&mut self, source: &SourceEntry, failure: Failure) {
        if let Some(active) = self.files.remove(&source.file) {
            self.tally.resumed_bytes -= active.resumed_bytes;
            self.tally.fail(source.entry.path.to_string(), failure.clone());
            let (path, bytes) = (source.entry.path.as_bytes(), source.entry.bytes);
            self.record_result(path, bytes, false, Err(failure.clone()));
            self.outbox.push_back(ToReceiver::FileFailed((source.file, Some(failure))));
        }
    }

    /// Requeues a piece that was read and could not be sent.
    pub fn requeue(&mut self, piece: Piece) {
        let device = match &piece {
            Piece::Block { source, .. } | Piece::Compare { source, .. } | Piece::Digest(source) => {
                source.device
            }
            Piece::Pack(sources) => sources.first().map_or(0, |source| source.device),
        };
        self.queues.entry(device).or_default().retry.push_back(piece);
    }

    /// True if every range of a file was handed to readers.
    #[must_use]
    pub fn is_handed_out(&self, file: u64) -> bool {
        self.files.get(&file).is_none_or(|active| active.ranges.is_empty())
    }

    /// Queues the driver's measurements for the receiver.
    pub fn report(&mut self, report: Report) {
        self.last_reported |= self.is_settled();
        self.outbox.push_back(ToReceiver::Report(report));
    }

    /// Queues a cancellation with its reason.
    pub fn cancel(&mut self, reason: &str) {
        self.outbox.push_back(ToReceiver::Cancel(reason.to_owned()));
    }
}
