//! In-memory transfers of datasets: production sender state machine and receiving side, one thread, one
//! seed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_protocol::block::{self, FrameKind, Header, PackItem};
use penstock_protocol::control::TransferTally;
use penstock_protocol::digest::{self, Algorithm, Serial};
use penstock_protocol::journal::TargetDirectory;
use penstock_protocol::manifest::{Entry, EntryKind, RelativePath, Time};
use penstock_protocol::open::Options;
use penstock_protocol::proof::SessionKey;
use penstock_protocol::sender::{FrameTask, Piece, ReadOutcome, Sender, SourceEntry};
use penstock_protocol::wire::{self, Bytes, WireFormat};
use penstock_random::Random;
use penstock_sys::ring::SyncIo;

use super::storage::{SimulatedStorage, StorageState};
use super::tree::TreeEntry;
use crate::base::engine::Engine;
use crate::base::test_options::plain_options;
use crate::endpoint::receiver::{ReceiverControl, ReceiverEnd};
use crate::session::control::ControlEndpoint;
use crate::session::state::Session;
use crate::sink::committer::Committer;
use crate::sink::destination::{Destination, TransferTarget};
use crate::sink::planner;
use crate::sink::resume_journal::{JournalName, ResumeJournal};
use crate::sink::storage::identify;
use crate::sink::writer::Writer;

/// Block size in bytes.
pub(super) const BLOCK_BYTES: u32 = 8192;

/// Size from which files are journalled.
pub(super) const PARTIAL_BYTES_MIN: u64 = 4096;

/// Files, directories and links with their content, parents first.
#[derive(Debug, Clone)]
pub(in crate::sink) struct SimulatedDataset(pub(in crate::sink) Vec<(Entry, Arc<Vec<u8>>)>);

impl SimulatedDataset {
    /// Creates a dataset with files of these sizes in a few directories, with attributes.
    pub(in crate::sink) fn new(sizes: &[u64], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut entries = Vec::new();
        for path in ["d", "d/e", "f"] {
            entries.push((entry(path, EntryKind::Directory, 0, &mut random), Arc::default()));
        }
        for (number, &bytes) in sizes.iter().enumerate() {
            let folder = ["", "d/", "d/e/", "f/"][random.below(4) as usize];
            let path = format!("{folder}{number}-{bytes}");
            let mut entry = entry(&path, EntryKind::File, bytes, &mut random);
            let mut data: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
            // Holes of blocks, and of pages within blocks.
            entry.sparse = number % 5 == 4 && bytes > 3 * 4096;
            if entry.sparse {
                data[..4096].fill(0);
                let hole = BLOCK_BYTES as usize..data.len().min(2 * BLOCK_BYTES as usize);
                if let Some(hole) = data.get_mut(hole) {
                    hole.fill(0);
                }
            }
            entries.push((entry, Arc::new(data)));
        }
        let mut link = entry("d/link", EntryKind::Symlink, 0, &mut random);
        link.link = Bytes(b"e/target".to_vec());
        link.xattrs.clear();
        entries.push((link, Arc::default()));
        Self(entries)
    }

    /// The same entries without links, which need a sync of the whole file system.
    pub(super) fn without_links(mut self) -> Self {
        self.0.retain(|(entry, _)| entry.kind != EntryKind::Symlink);
        self
    }

    /// Expected tree at the destination.
    pub(super) fn tree(&self) -> BTreeMap<PathBuf, TreeEntry> {
        let as_root = penstock_sys::machine::is_superuser();
        let user = (penstock_sys::machine::effective_user(), 0);
        let found = |(entry, data): &(Entry, Arc<Vec<u8>>)| {
            let kind = match entry.kind {
                EntryKind::File => penstock_sys::fs::Kind::File,
                EntryKind::Directory => penstock_sys::fs::Kind::Directory,
                EntryKind::Symlink => penstock_sys::fs::Kind::Symlink,
            };
            let found = TreeEntry {
                kind,
                data: Arc::clone(data),
                link: std::ffi::OsString::from_vec(entry.link.0.clone()).into(),
                mode: if entry.kind == EntryKind::Symlink { 0o777 } else { entry.mode },
                owner: if as_root { (entry.uid, entry.gid) } else { user },
                mtime: penstock_sys::fs::Timestamp {
                    seconds: entry.modified.seconds,
                    nanos: entry.modified.nanos,
                },
                xattrs: entry
                    .xattrs
                    .iter()
                    .map(|(name, value)| (OsStr::from_bytes(&name.0).to_owned(), value.0.clone()))
                    .collect(),
            };
            (Path::new(OsStr::from_bytes(entry.path.as_bytes())).to_owned(), found)
        };
        self.0.iter().map(found).collect()
    }

    /// Returns the same files with other content, as when a source is replaced with equal size and
    /// times; the kernel assigns another inode and change time.
    pub(super) fn replaced(&self) -> Self {
        let replace = |(entry, data): &(Entry, Arc<Vec<u8>>)| {
            let mut entry = entry.clone();
            entry.inode += 1000;
            entry.changed.seconds += 1;
            (entry, Arc::new(data.iter().map(|byte| byte ^ 0x55).collect()))
        };
        Self(self.0.iter().map(replace).collect())
    }
}

fn entry(path: &str, kind: EntryKind, bytes: u64, random: &mut Random) -> Entry {
    let modified = Time { seconds: 1_000_000 + random.below(1000) as i64, nanos: 5 };
    let mode = [0o644, 0o600, 0o444, 0o4755][random.below(4) as usize];
    let xattr = (Bytes(b"user.origin".to_vec()), Bytes(path.as_bytes().to_vec()));
    Entry {
        path: RelativePath::new(path.into()).expect("a path"),
        kind,
        bytes,
        modified,
        changed: modified,
        inode: random.below(1 << 40),
        mode: if kind == EntryKind::Directory { 0o755 } else { mode },
        uid: 1000 + random.below(2) as u32,
        gid: 100,
        sparse: false,
        link: Bytes::default(),
        xattrs: if random.one_in(2) { vec![xattr] } else { Vec::new() },
    }
}

/// Parameters of a simulated transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunConfig {
    pub(super) algorithm: Algorithm,
    /// Seed of the order of steps.
    pub(super) seed: u64,
    /// Represents the spelling of the command.
    pub(super) key: u8,
}

/// Result of a simulated transfer.
#[derive(Debug)]
pub(super) struct SimulatedOutcome {
    /// Set when everything is durable according to both ends; files may have failed.
    pub(super) is_finished: bool,
    pub(super) tally: TransferTally,
    /// Paths of files reported as committed to the sender.
    pub(super) placed: Vec<RelativePath>,
}

impl SimulatedOutcome {
    /// True if the command would exit with 0.
    pub(super) fn is_success(&self) -> bool {
        self.is_finished && self.tally.failed == 0
    }
}

/// Copies `dataset` to `storage`; `None` if the receiving side cannot start.
pub(super) fn transfer(
    storage: &SimulatedStorage,
    dataset: &SimulatedDataset,
    run: RunConfig,
) -> Option<SimulatedOutcome> {
    let options = Options {
        block_bytes: BLOCK_BYTES,
        algorithm: run.algorithm,
        xattrs: true,
        ..plain_options()
    };
    let root = storage.root();
    let directory = identify(&*root).expect("a directory");
    let place = (root.file_system_id().expect("a number"), directory.inode);
    let name = JournalName::new("user", place, None, &[run.key; 16]);
    let at = TargetDirectory {
        path: Bytes(b"/simulated".to_vec()),
        file_system: place.0,
        inode: place.1,
        mark: name.mark(),
    };
    let journal = ResumeJournal::open(&storage.journals(), &name, at, &options).ok()?;
    let key = [run.key; 16];
    let target = TransferTarget { base: root, rename: None, key, trusted: true, is_new: false };
    let engine = Engine { direct: true, uring: false };
    let destination =
        Destination::new(target, "user", name.mark(), options.clone(), engine, journal)
            .ok()?
            .journalling_from(PARTIAL_BYTES_MIN);
    let key = SessionKey([7; 32]);
    let session =
        Session::new([1; 16], key, options, u64::from(BLOCK_BYTES) * 4, None).expect("an event");
    let end = Arc::new(ReceiverEnd::new(session, engine, destination));
    let mut random = Random::new(run.seed);
    let mut now = Instant::now();
    let mut sender = Sender::new(run.algorithm, BLOCK_BYTES);
    sender.keep_account();
    let mut link = MemoryLink {
        dataset,
        algorithm: run.algorithm,
        announced: 0,
        receiver: ReceiverControl(Arc::clone(&end)),
        serial: BTreeMap::new(),
    };
    let mut writer = Writer::new(&end.work, directory.device, 0, Box::new(SyncIo::new()));
    let mut committer = Committer::new(&end.work, now);
    for step in 0_u64.. {
        assert!(step < 200_000, "the transfer does not end: {:?}", sender.tally());
        if end.work.session.is_over() {
            break;
        }
        now += Duration::from_millis(random.below(40));
        link.announce(&mut sender, random.below(8));
        link.exchange(&mut sender);
        planner::plan_some(&end.work);
        link.exchange(&mut sender);
        for _ in 0..random.below(4) {
            link.send(&mut sender, &end);
        }
        for _ in 0..random.below(4) {
            if let Some(task) = end.work.tasks.pop(directory.device, Duration::ZERO) {
                writer.begin(task);
            }
        }
        if random.one_in(3) {
            committer.step(now);
        }
        link.exchange(&mut sender);
    }
    link.exchange(&mut sender);
    let placed = sender.take_settled().into_iter().filter(|settled| settled.result.is_ok());
    Some(SimulatedOutcome {
        is_finished: sender.is_finished(),
        tally: sender.tally().clone(),
        placed: placed.filter_map(|settled| RelativePath::new(settled.path).ok()).collect(),
    })
}

/// In-memory connection of both ends: messages as bytes, frames as memory.
struct MemoryLink<'a> {
    dataset: &'a SimulatedDataset,
    algorithm: Algorithm,
    announced: usize,
    receiver: ReceiverControl,
    /// Partially hashed files whose digest needs file order.
    serial: BTreeMap<u64, ()>,
}

impl MemoryLink<'_> {
    fn announce(&mut self, sender: &mut Sender, count: u64) {
        for _ in 0..count {
            match self.dataset.0.get(self.announced) {
                Some((entry, _)) => sender.announce(0, 1, entry.clone()),
                None if self.announced == self.dataset.0.len() => sender.manifest_end(),
                None => return,
            }
            self.announced += 1;
        }
    }

    fn exchange(&self, sender: &mut Sender) {
        while let Some(message) = sender.poll_message() {
            self.receiver.on_message(&wire::encode(&message)).expect("a sender that makes sense");
        }
        while let Some(message) = self.receiver.poll_message() {
            let message = wire::decode(&message).expect("a message");
            sender.on_message(message).expect("a receiver that makes sense");
        }
    }

    fn data(&self, source: &SourceEntry) -> &Arc<Vec<u8>> {
        let path = &source.entry.path;
        let found = self.dataset.0.iter().find(|(entry, _)| entry.path == *path);
        &found.expect("an entry of the dataset").1
    }

    fn send(&mut self, sender: &mut Sender, end: &Arc<ReceiverEnd>) {
        let Some(mut buffer) = end.work.session.pool.try_take() else { return };
        let Some(work) = sender.next_work(1) else { return };
        let header = match &work.piece {
            Piece::Block { source, offset, bytes } => {
                let (offset, bytes) = (*offset, *bytes);
                let data = Arc::clone(self.data(source));
                let range = offset as usize..(offset + bytes) as usize;
                let payload = &data[range];
                let crc = digest::crc32c(payload);
                let total = source.entry.bytes;
                let part = digest::part(self.algorithm, offset, total, payload, crc);
                let is_hole = source.entry.sparse && payload.iter().all(|byte| *byte == 0);
                let header = Header {
                    kind: if is_hole { FrameKind::Hole } else { FrameKind::Block },
                    payload_bytes: if is_hole { 0 } else { bytes as u32 },
                    sequence: work.sequence,
                    file: source.file,
                    offset,
                    bytes,
                    part: part.0,
                    payload_crc: if is_hole { digest::crc32c(&[]) } else { crc },
                    ..Header::end()
                };
                if !is_hole {
                    buffer[..payload.len()].copy_from_slice(payload);
                }
                sender.read(source, offset..offset + bytes, ReadOutcome::Good(part));
                if !self.algorithm.combines() && self.serial.insert(source.file, ()).is_none() {
                    let mut serial = Serial::new(self.algorithm).expect("an algorithm");
                    serial.update(&data);
                    sender.serial_digest(source.file, serial.finish());
                }
                header
            }
            Piece::Pack(sources) => self.pack(sender, &work, sources, &mut buffer),
            Piece::Compare { .. } | Piece::Digest(_) => unreachable!("no digests are compared"),
        };
        let buffer = (header.kind != FrameKind::Hole).then_some(buffer);
        match header.kind {
            FrameKind::Hole => sender.sent_hole(0, work),
            _ => sender.sent(0, work),
        }
        end.work.received(header, buffer).expect("frames that were asked for");
    }

    fn pack(
        &self,
        sender: &mut Sender,
        work: &FrameTask,
        sources: &[Arc<SourceEntry>],
        buffer: &mut [u8],
    ) -> Header {
        let (mut at, mut table) = (0, Vec::new());
        for source in sources {
            let data = self.data(source);
            let start = block::pack_start(at, data.len());
            buffer[at..start].fill(0);
            at = start + data.len();
            buffer[start..at].copy_from_slice(data);
            let crc = digest::crc32c(data);
            let part = digest::part(self.algorithm, 0, source.entry.bytes, data, crc);
            let bytes = data.len() as u32;
            PackItem { file: source.file, bytes, crc, part: part.0 }.put(&mut table);
            sender.read(source, 0..source.entry.bytes, ReadOutcome::Good(part));
        }
        buffer[at..at + table.len()].copy_from_slice(&table);
        let payload = &buffer[..at + table.len()];
        Header {
            kind: FrameKind::Pack,
            items: sources.len() as u16,
            payload_bytes: payload.len() as u32,
            sequence: work.sequence,
            bytes: at as u64,
            payload_crc: digest::crc32c(payload),
            ..Header::end()
        }
    }
}

/// Returns the first difference between the destination and a finished transfer.
pub(super) fn difference(state: &StorageState, dataset: &SimulatedDataset) -> Option<String> {
    let (wanted, there) = (dataset.tree(), state.tree());
    for (path, wanted) in &wanted {
        let Some(there) = there.get(path) else { return Some(format!("{path:?} is missing")) };
        if there.data != wanted.data {
            let first = there.data.iter().zip(&*wanted.data).position(|(one, other)| one != other);
            let (bytes, right) = (there.data.len(), wanted.data.len());
            return Some(format!("{path:?} has {bytes} bytes of {right}, differing at {first:?}"));
        }
        if there != wanted {
            return Some(format!(
                "{path:?} is {:?}",
                TreeEntry { data: Arc::default(), ..there.clone() }
            ));
        }
    }
    if let Some(path) = there.keys().find(|path| !wanted.contains_key(*path)) {
        return Some(format!("{path:?} was left behind"));
    }
    let journals = state.journals();
    (!journals.is_empty()).then(|| format!("{journals:?} were left behind with the journals"))
}
