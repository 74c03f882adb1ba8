//! The sending end of a session: what to announce, what to read next, what to send again.
//!
//! The machine holds a window of the manifest, never all of it. Its carrier scans the sources into
//! [`Sender::announce`] while there is [`Sender::room`], reads what [`Sender::next_work`] hands out, and
//! tells which stream each frame went out on. A frame counts as sent once the receiver has written it;
//! when a stream is lost, its other frames become work again under new numbers.
//!
//! Order of work per device: the largest file first, block by block, and between its blocks packs of
//! small files, so that neither waits for the other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::control::{
    Announcement, Decision, Failure, FailureKind, Outcome, Placed, Report, Run, Settled, Tally,
    ToReceiver, ToSender,
};
use crate::digest::{Algorithm, Digest, Part};
use crate::extents::{Extent, Extents};
use crate::manifest::{Entry, Kind, display_path};
use crate::wire::{self, Bytes};
use queue::{Queue, next_block, next_pack, still_wanted};

mod queue;

/// Most entries that are announced and not settled.
const WINDOW: usize = 32_768;

/// About how many bytes of entries one announcement carries.
const ANNOUNCEMENT_BYTES: usize = 64 * 1024;

/// Most digests of one message, so that none comes near the longest that is allowed.
const ENDS_MAX: usize = 1_024;

/// Most bytes of paths in a list that was told and is not scanned yet.
pub const LIST_BYTES_MAX: usize = 64 << 20;

/// How often a file that changes while it is read is begun again.
const ATTEMPTS_MAX: u32 = 3;

/// Most files in a pack that this sender makes: more would keep one reader busy for too long.
const PACK_FILES: usize = 1_024;

/// Why a file is not replaced where files that are there are kept.
pub const DIFFERS: &str =
    "another file of that name is there and is to stay: move it away, or have it replaced";

/// Where an entry comes from.
#[derive(Debug)]
pub struct Source {
    /// Number of the entry in the session.
    pub file: u64,
    /// Which of the carrier's roots it lies under.
    pub root: u32,
    /// Device on which its bytes lie.
    pub device: u64,
    /// What was announced.
    pub entry: Entry,
    attempt: u32,
}

/// Something to be read, and then sent as one frame.
#[derive(Debug, Clone)]
pub struct Work {
    /// Number of the frame.
    pub sequence: u64,
    /// What to read.
    pub piece: Piece,
}

/// What a reader is to do.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Read a range of a file.
    Block {
        /// The file.
        source: Arc<Source>,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Read whole small files.
    Pack(Vec<Arc<Source>>),
    /// Digest a file to compare it with the one at the destination; nothing is sent.
    Compare {
        /// The file.
        source: Arc<Source>,
        /// Digest of the other.
        digest: Digest,
    },
    /// Digest a file that is at the destination already, for whoever wants to know.
    Digest(Arc<Source>),
}

/// How one file fared in a reader.
#[derive(Debug, Clone)]
pub enum Read {
    /// It was read; the digest part of what was read.
    Good(Part),
    /// It is not what was announced; what it is now, if it can still be copied.
    Changed(Option<Box<Entry>>),
    /// It could not be read.
    Failed(Failure),
}

/// Number of a stream in its session.
pub type StreamId = u32;

#[derive(Debug)]
struct Active {
    source: Arc<Source>,
    /// Ranges not yet handed out.
    ranges: VecDeque<Range<u64>>,
    /// Ranges that were read here.
    extents: Extents,
    /// Ranges of an unfinished copy that the receiver has, by offset.
    resumed: BTreeMap<u64, Extent>,
    /// Bytes that the receiver has and that are not sent.
    resumed_bytes: u64,
    skipped: bool,
    /// Travels in packs, whose table carries the digest.
    packed: bool,
    ended: bool,
}

/// A list of paths that the receiver tells.
#[derive(Debug, Default)]
struct List {
    paths: VecDeque<Bytes>,
    bytes: usize,
    ended: bool,
}

/// The sending end of one session.
#[derive(Debug)]
pub struct Sender {
    algorithm: Algorithm,
    block_bytes: u64,
    files: HashMap<u64, Active>,
    queues: BTreeMap<u64, Queue>,
    in_flight: BTreeMap<u64, (StreamId, Piece)>,
    next_file: u64,
    next_sequence: u64,
    entries: Vec<Entry>,
    entries_bytes: usize,
    entries_first: u64,
    ends: Vec<(u64, Bytes)>,
    missing: VecDeque<(String, Failure)>,
    outbox: VecDeque<ToReceiver>,
    tally: Tally,
    /// Files in place, kept for a carrier that asks for them.
    placed: Option<Vec<Placed>>,
    /// What became of everything, kept for a carrier that asks for it.
    account: Option<Vec<Settled>>,
    /// Digests that files must have, by path.
    expected: HashMap<Vec<u8>, Digest>,
    /// A file that is there and differs is a failure.
    keep_existing: bool,
    /// Whether files that were there already are digested too.
    digest_skipped: bool,
    /// How many of them are still to be digested.
    digesting: usize,
    /// Paths that the receiver wants, where it was to tell.
    list: Option<List>,
    finish_sent: bool,
    last_reported: bool,
    finished: bool,
    cancelled: Option<String>,
}

/// The receiver said something that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the receiver broke the protocol: {0}")]
pub struct ReceiverFault(&'static str);

impl Sender {
    /// A session that copies with this digest in blocks of `block_bytes`.
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
            tally: Tally::default(),
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

    /// Whether more entries may be announced now.
    #[must_use]
    pub fn room(&self) -> bool {
        self.files.len() + self.digesting < WINDOW
    }

    /// Keeps the files that come into place for [`Self::take_placed`]; with `digest_skipped` those that
    /// were there already are digested for it, which costs a read of each.
    pub fn keep_placed(&mut self, digest_skipped: bool) {
        self.placed.get_or_insert_default();
        self.digest_skipped = digest_skipped && self.algorithm != Algorithm::None;
    }

    /// Files that came into place since the last call.
    pub fn take_placed(&mut self) -> Vec<Placed> {
        self.placed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Keeps what becomes of everything for [`Self::take_settled`].
    pub fn keep_account(&mut self) {
        self.account.get_or_insert_default();
    }

    /// What became of everything since the last call.
    pub fn take_settled(&mut self) -> Vec<Settled> {
        self.account.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Files, by path, that must have these digests of the session's algorithm. What has another is not put in
    /// place, and one that is there is left alone if it has this one.
    pub fn expect(&mut self, digests: HashMap<Vec<u8>, Digest>) {
        self.expected = digests;
    }

    /// Files that are there and differ are failures.
    pub fn keep_existing(&mut self) {
        self.keep_existing = true;
    }

    fn note(&mut self, path: &[u8], bytes: u64, was_there: bool, result: Result<Digest, Failure>) {
        if let Some(account) = &mut self.account {
            account.push(Settled { path: path.to_vec(), bytes, was_there, result });
        }
    }

    /// Why a file with this digest is not what it must be.
    fn unexpected(&self, path: &[u8], digest: &Digest) -> Option<Failure> {
        let expected = self.expected.get(path).filter(|expected| *expected != digest)?;
        let text = format!(
            "its {} is {digest} and should be {expected}: look at the source, or at who gave the digest",
            self.algorithm
        );
        Some(Failure::new(FailureKind::Integrity, text))
    }

    /// Takes a list of paths from the receiver.
    pub fn expect_list(&mut self) {
        self.list.get_or_insert_default();
    }

    /// The next path of the list: `Some(None)` when there is none yet, `None` after the last.
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

    fn listed(&mut self, paths: Vec<Bytes>) -> Result<(), ReceiverFault> {
        let list = self.list.as_mut().filter(|list| !list.ended);
        let list = list.ok_or(ReceiverFault("it lists what nobody asked for"))?;
        list.bytes += paths.iter().map(|path| path.0.len()).sum::<usize>();
        list.paths.extend(paths);
        // An empty path takes memory too.
        if list.bytes.max(list.paths.len() * 8) > LIST_BYTES_MAX {
            return Err(ReceiverFault("its list is too long"));
        }
        Ok(())
    }

    /// What was done so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether the receiver has said that everything is durable.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Why the receiver stopped the transfer.
    #[must_use]
    pub fn cancelled(&self) -> Option<&str> {
        self.cancelled.as_deref()
    }

    /// Announces an entry that lies under root `root` on device `device`.
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
        let source = Arc::new(Source { file, root, device, entry, attempt });
        let active = Active {
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
        if self.entries_bytes >= ANNOUNCEMENT_BYTES {
            self.flush_entries();
        }
    }

    /// An entry that could not even be announced.
    pub fn scan_failed(&mut self, path: &[u8], failure: Failure) {
        let shown = display_path(path);
        self.tally.fail(shown.clone(), failure.clone());
        self.note(path, 0, false, Err(failure.clone()));
        self.missing.push_back((shown, failure));
    }

    /// The sources are scanned to the end.
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

    /// Whether there are entries enough for an announcement.
    #[must_use]
    pub fn has_announcement(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether everything is settled and the carrier should queue its last measurements.
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

    /// The next message for the receiver.
    pub fn poll_message(&mut self) -> Option<ToReceiver> {
        if let Some(message) = self.outbox.pop_front() {
            return Some(message);
        }
        if !self.entries.is_empty() {
            self.flush_entries();
            return self.outbox.pop_front();
        }
        if !self.ends.is_empty() {
            let some = self.ends.len().min(ENDS_MAX);
            return Some(ToReceiver::FileEnds(self.ends.drain(..some).collect()));
        }
        if !self.missing.is_empty() {
            return Some(ToReceiver::Missing(wire::some_of(&mut self.missing)));
        }
        if self.is_settled() {
            self.finish_sent = true;
            return Some(ToReceiver::Finish(()));
        }
        None
    }

    /// Takes a message; reports and settings are the carrier's.
    ///
    /// # Errors
    /// When the receiver makes no sense.
    pub fn on_message(&mut self, message: ToSender) -> Result<(), ReceiverFault> {
        match message {
            ToSender::Decisions(decisions) => {
                decisions.into_iter().try_for_each(|(file, decision)| self.decided(file, decision))
            }
            ToSender::Written(runs) => runs.into_iter().try_for_each(|run| self.written(run)),
            ToSender::Settled(outcomes) => {
                outcomes.into_iter().for_each(|(file, outcome)| self.settled(file, outcome));
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
            ToSender::Listed(paths) => self.listed(paths),
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

    /// Sends a resumed range after all: at the destination it is not what was sent.
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
        // The digest is made again from what is read; one in file order is of the source alone.
        active.ended &= !self.algorithm.combines();
        let queue = self.queues.entry(active.source.device).or_default();
        queue.large.push((active.source.entry.bytes, file));
        Ok(())
    }

    fn decided(&mut self, file: u64, decision: Decision) -> Result<(), ReceiverFault> {
        if file >= self.next_file {
            return Err(ReceiverFault("it wants a file that was not announced"));
        }
        let block_bytes = self.block_bytes;
        // A file that failed in the meantime needs nothing more.
        let Some(active) = self.files.get_mut(&file) else { return Ok(()) };
        let bytes = active.source.entry.bytes;
        if active.source.entry.kind != Kind::File {
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
                    // What it must be is known without a look at the source.
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
                    match there.insert(extent.offset, extent.bytes, Part::default()) {
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
            // Its digest is still to be made, by whoever reads its last block.
            let last = (bytes.max(1) - 1) / block_bytes * block_bytes;
            active.ranges.push_back(last..bytes);
        }
        if active.ranges.is_empty() {
            self.file_read(file);
        } else if whole
            && bytes <= block_bytes / 4
            && self.algorithm.combines()
            // Whether it is what it must be is known once it is read, and a pack is sent then.
            && !self.expected.contains_key(active.source.entry.path.as_bytes())
        {
            active.packed = true;
            queue.small.push_back(file);
        } else {
            queue.large.push((bytes, file));
        }
        Ok(())
    }

    fn written(&mut self, run: Run) -> Result<(), ReceiverFault> {
        let end = run.first.checked_add(run.count).filter(|end| *end <= self.next_sequence);
        let end = end.ok_or(ReceiverFault("it acknowledges frames that were not sent"))?;
        for sequence in run.first..end {
            if let Some((_, Piece::Block { bytes, .. })) = self.in_flight.remove(&sequence) {
                self.tally.moved_bytes += bytes;
            }
        }
        Ok(())
    }

    fn settled(&mut self, file: u64, outcome: Outcome) {
        let Some(active) = self.files.remove(&file) else { return };
        let Active { source, skipped, packed, resumed_bytes, .. } = active;
        let entry = &source.entry;
        let path = entry.path.as_bytes();
        let digest = match outcome {
            Outcome::Done(digest) => Digest(digest.0),
            Outcome::Failed(failure) => {
                self.tally.resumed_bytes -= resumed_bytes;
                self.note(path, entry.bytes, false, Err(failure.clone()));
                return self.tally.fail(entry.path.to_string(), failure);
            }
        };
        let digest = match self.expected.get(path) {
            // It was compared and need not be told.
            Some(expected) if skipped && digest.0.is_empty() => expected.clone(),
            _ => digest,
        };
        if entry.kind == Kind::File
            && !digest.0.is_empty()
            && let Some(failure) = self.unexpected(path, &digest)
        {
            self.note(path, entry.bytes, false, Err(failure.clone()));
            return self.tally.fail(entry.path.to_string(), failure);
        }
        self.note(path, entry.bytes, skipped, Ok(digest.clone()));
        self.tally.entries += 1;
        self.tally.links += u64::from(entry.kind == Kind::Symlink);
        if entry.kind == Kind::File {
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
            self.tally.bytes += entry.bytes;
            self.tally.moved_bytes += if packed { entry.bytes } else { 0 };
        }
    }

    /// Devices on which sources lie.
    pub fn devices(&self) -> impl Iterator<Item = u64> + '_ {
        self.queues.keys().copied()
    }

    /// What a reader of `device` is to do next.
    pub fn next_work(&mut self, device: u64) -> Option<Work> {
        let piece = self.next_piece(device)?;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Some(Work { sequence, piece })
    }

    fn next_piece(&mut self, device: u64) -> Option<Piece> {
        let queue = self.queues.get_mut(&device)?;
        while let Some(piece) = queue.again.pop_front() {
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

    /// A reader has done with one file of a piece: a range of it, or in a pack all of it.
    pub fn read(&mut self, source: &Source, range: Range<u64>, result: Read) {
        match result {
            Read::Good(part) => {
                let Some(active) = self.files.get_mut(&source.file) else { return };
                // A range that is read again after its stream was lost is known already.
                let _ = active.extents.insert(range.start, range.end - range.start, part);
                self.file_read(source.file);
            }
            Read::Changed(fresh) => self.changed(source, fresh.map(|entry| *entry)),
            Read::Failed(failure) => self.fail(source, failure),
        }
    }

    /// A file whose digest does not combine was read to the end and digested by the carrier.
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
            let _ = whole.insert(extent.offset, extent.bytes, Part(extent.part));
        }
        if let Some(digest) = whole.digest() {
            self.end_file(file, digest);
        }
    }

    /// Tells the digest of a file that was read to the end, if it is the one that it must have.
    fn end_file(&mut self, file: u64, digest: Digest) {
        let Some(active) = self.files.get_mut(&file) else { return };
        active.ended = true;
        let source = Arc::clone(&active.source);
        match self.unexpected(source.entry.path.as_bytes(), &digest) {
            Some(failure) => self.fail(&source, failure),
            None => self.ends.push((file, Bytes(digest.0))),
        }
    }

    /// A comparison has ended: the digests agree or they do not.
    pub fn compared(&mut self, source: &Source, same: bool) {
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

    /// A file of [`Piece::Digest`] is digested, or cannot be.
    pub fn digested(&mut self, source: &Source, result: Result<Digest, Failure>) {
        self.digesting = self.digesting.saturating_sub(1);
        match (result, &mut self.placed) {
            (Ok(digest), Some(placed)) => {
                placed.push(Placed { path: source.entry.path.clone(), digest });
            }
            (Ok(_), None) => {}
            (Err(failure), _) => self.tally.fail(source.entry.path.to_string(), failure),
        }
    }

    fn changed(&mut self, source: &Source, fresh: Option<Entry>) {
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

    fn fail(&mut self, source: &Source, failure: Failure) {
        if let Some(active) = self.files.remove(&source.file) {
            self.tally.resumed_bytes -= active.resumed_bytes;
            self.tally.fail(source.entry.path.to_string(), failure.clone());
            let (path, bytes) = (source.entry.path.as_bytes(), source.entry.bytes);
            self.note(path, bytes, false, Err(failure.clone()));
            self.outbox.push_back(ToReceiver::FileFailed((source.file, Some(failure))));
        }
    }

    /// A frame was handed to a stream.
    pub fn sent(&mut self, stream: StreamId, work: Work) {
        self.in_flight.insert(work.sequence, (stream, work.piece));
    }

    /// A stream is gone: what it carried and nobody acknowledged is work again.
    pub fn stream_lost(&mut self, stream: StreamId) -> usize {
        let lost: Vec<_> = self
            .in_flight
            .iter()
            .filter(|(_, (carrier, _))| *carrier == stream)
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in &lost {
            let (_, piece) = self.in_flight.remove(sequence).expect("just listed");
            self.again(piece);
        }
        lost.len()
    }

    /// A piece that was read and could not be sent is work again.
    pub fn again(&mut self, piece: Piece) {
        let device = match &piece {
            Piece::Block { source, .. } | Piece::Compare { source, .. } | Piece::Digest(source) => {
                source.device
            }
            Piece::Pack(sources) => sources.first().map_or(0, |source| source.device),
        };
        self.queues.entry(device).or_default().again.push_back(piece);
    }

    /// Whether every range of a file was handed out to readers.
    #[must_use]
    pub fn is_handed_out(&self, file: u64) -> bool {
        self.files.get(&file).is_none_or(|active| active.ranges.is_empty())
    }

    /// Whether frames of a stream wait for an acknowledgement.
    #[must_use]
    pub fn awaits(&self, stream: StreamId) -> bool {
        self.in_flight.values().any(|(carrier, _)| *carrier == stream)
    }

    /// Queues the carrier's measurements for the receiver.
    pub fn report(&mut self, report: Report) {
        self.last_reported |= self.is_settled();
        self.outbox.push_back(ToReceiver::Report(report));
    }

    /// Queues the reason why this side stops the transfer.
    pub fn cancel(&mut self, reason: &str) {
        self.outbox.push_back(ToReceiver::Cancel(reason.to_owned()));
    }
}
