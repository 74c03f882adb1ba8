//! State shared by scanner, readers and streams of a sending end: the sending state machine, its sources
//! and the blocks ready to be sent.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use penstock_protocol::block::Header;
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::digest::{Algorithm, Digest, Serial};
use penstock_protocol::open::Existing;
use penstock_protocol::proof::PayloadHash;
use penstock_protocol::sender::{FrameTask, ReadOutcome, Sender, SourceEntry};
use penstock_rdma::sending_domains::SendingDomains;
use penstock_sys::buffer::Buffer;
use penstock_sys::fs::{self, Dir, Open};
use penstock_tuner::{Parallelism, PipelineStage};

use super::open_sources::{OpenSource, OpenSources};
use super::ready_queue::ReadyQueue;
use super::scan::{self, ScanRoot};
use super::sent_buffers::SentBuffers;
use crate::base::convert::{native, time};
use crate::base::engine::Engine;
use crate::base::file_digest::catch_up;
use crate::base::limits::{BLOCKS_MIN, READERS_DEFAULT, WRITERS_DEFAULT};
use crate::base::lock::{lock, wait};
use crate::session::close::CloseOnEnd;
use crate::session::state::Session;
use crate::session::worker_pool::{ThreadCount, WorkerPool};

/// Smaller files are read through the page cache: direct I/O costs more than it saves.
const DIRECT_BYTES_MIN: u64 = 1 << 20;

/// Bytes of blocks that may be in use in any case, so that readers have enough reads of small blocks in flight.
const CACHED_BYTES_MIN: usize = 16 << 20;

/// Block ready to be sent.
#[derive(Debug)]
pub(crate) struct ReadyBlock {
    /// Work that produced it.
    pub work: FrameTask,
    /// Frame header of the block.
    pub header: Header,
    /// Payload of the length in the header; `None` for a hole.
    pub buffer: Option<Buffer>,
    /// Keyed hash of the payload in integrity mode; else a stream that needs it makes it.
    pub hash: Option<PayloadHash>,
}

impl CloseOnEnd for ReadyQueue<ReadyBlock> {
    fn close(&self) {
        Self::close(self);
    }
}

/// Source of one session: what its scanner, readers and streams share.
#[derive(Debug)]
pub(crate) struct SourceWork {
    /// State common to both kinds of end.
    pub session: Session,
    /// Storage engine of the readers.
    pub engine: Engine,
    /// Blocks ready to be sent.
    pub(crate) ready: Arc<ReadyQueue<ReadyBlock>>,
    /// Buffers whose pages were sent.
    pub(crate) sent_buffers: SentBuffers,
    /// Domains in which the blocks of RDMA streams are registered.
    pub(crate) sending_domains: SendingDomains,
    /// Cache of open sources.
    pub(super) open: OpenSources,
    /// Sources by their number in the request.
    pub(super) sources: Vec<ScanRoot>,
    /// State machine of the sender.
    pub(crate) machine: Mutex<Sender>,
    /// Signalled when there may be work for readers, or an acknowledgement.
    pub(crate) work: Condvar,
    /// Signalled when the window may have room for announcements.
    pub(crate) room: Condvar,
    /// Set when RDMA carries a stream.
    pub(crate) sends_by_rdma: AtomicBool,
    serial: Mutex<HashMap<u64, Serial>>,
    /// Reader threads, per device.
    pub readers: WorkerPool,
    /// Writers that the receiving end was asked for.
    pub(crate) writers: ThreadCount,
}

impl SourceWork {
    /// Creates the source of a session; nothing is read before [`super::scanner`] runs.
    #[must_use]
    pub(crate) fn new(session: Session, engine: Engine, sources: Vec<ScanRoot>) -> Self {
        let options = &session.options;
        let mut machine = Sender::new(options.algorithm, options.block_bytes);
        if options.existing == Existing::Keep {
            machine.keep_existing();
        }
        let ready = Arc::new(ReadyQueue::default());
        let closed_at_end: Arc<dyn CloseOnEnd> = Arc::<ReadyQueue<ReadyBlock>>::clone(&ready);
        session.close_at_end(closed_at_end);
        let (settings, algorithm) = (&options.settings, options.algorithm);
        let readers = ThreadCount::new(settings.readers, READERS_DEFAULT, algorithm);
        let writers = ThreadCount::new(settings.writers, WRITERS_DEFAULT, algorithm);
        Self {
            engine,
            ready,
            sent_buffers: SentBuffers::default(),
            sending_domains: SendingDomains::default(),
            open: OpenSources::default(),
            sources,
            machine: Mutex::new(machine),
            work: Condvar::new(),
            room: Condvar::new(),
            sends_by_rdma: AtomicBool::new(false),
            serial: Mutex::default(),
            readers: WorkerPool::new("read", readers),
            writers,
            session,
        }
    }

    /// Workers that each stage of the transfer should have.
    pub(crate) fn workers(&self) -> Parallelism {
        let streams = self.session.wanted_streams.load(Ordering::SeqCst);
        Parallelism { readers: self.readers.size.get(), streams, writers: self.writers.get() }
    }

    /// Most blocks in use at once: the whole pool where blocks stay in use for round trips, over long paths and RDMA.
    /// Otherwise one for each reader and stream, and [`CACHED_BYTES_MIN`]: more would leave the processor's cache
    /// before they are sent.
    pub(crate) fn blocks_in_use_max(&self) -> usize {
        let pool_max = self.session.pool.limit();
        if self.session.has_long_path() || self.sends_by_rdma.load(Ordering::Relaxed) {
            return pool_max;
        }
        let streams = self.session.wanted_streams.load(Ordering::SeqCst);
        let wanted = self.readers.thread_count() + usize::from(streams);
        let small = CACHED_BYTES_MIN / self.session.pool.buffer_len();
        wanted.max(small).max(BLOCKS_MIN as usize).min(pool_max)
    }

    /// True where neither the request nor a digest in file order sets the workers of a stage.
    pub(crate) fn may_tune(&self, stage: PipelineStage) -> bool {
        match stage {
            PipelineStage::Readers => self.readers.size.may_tune(),
            PipelineStage::Streams => self.algorithm().combines(),
            PipelineStage::Writers => self.writers.may_tune(),
        }
    }

    /// Digest algorithm of whole files.
    #[must_use]
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.session.options.algorithm
    }

    /// Directory and path of an announced source.
    #[must_use]
    pub(crate) fn locate<'a>(&'a self, source: &'a SourceEntry) -> (&'a Dir, &'a Path) {
        let root = &self.sources[source.root as usize];
        (&root.dir, native(&source.entry.path))
    }

    /// Returns work for a reader, without waiting.
    pub(crate) fn try_work(&self, device: u64) -> Option<FrameTask> {
        lock(&self.machine).next_work(device)
    }

    /// Returns work for a reader; waits briefly.
    pub(crate) fn wait_work(&self, device: u64) -> Option<FrameTask> {
        let mut machine = lock(&self.machine);
        machine.next_work(device).or_else(|| {
            machine = wait(&self.work, machine, Duration::from_millis(100));
            machine.next_work(device)
        })
    }

    /// Handles the result of reading a range of a source.
    pub(crate) fn read(&self, source: &SourceEntry, range: Range<u64>, result: ReadOutcome) {
        if !matches!(result, ReadOutcome::Good(_)) {
            lock(&self.serial).remove(&source.file);
        }
        let mut machine = lock(&self.machine);
        machine.read(source, range.clone(), result);
        let urgent = range.end == source.entry.bytes;
        drop(machine);
        if urgent {
            self.session.wake_control();
        }
    }

    /// Handles the results of reading whole files.
    pub(crate) fn read_whole(&self, sources: &[Arc<SourceEntry>], results: Vec<ReadOutcome>) {
        let mut machine = lock(&self.machine);
        for (source, result) in sources.iter().zip(results) {
            machine.read(source, 0..source.entry.bytes, result);
        }
    }

    /// Handles the comparison of a source with its copy.
    pub(crate) fn compared(&self, source: &SourceEntry, same: bool) {
        lock(&self.machine).compared(source, same);
        self.session.wake_control();
    }

    /// Handles the digest of a skipped source.
    pub(crate) fn digested(&self, source: &SourceEntry, result: Result<Digest, Failure>) {
        lock(&self.machine).digested(source, result);
        self.session.wake_control();
    }

    /// Adds a block to a digest in file order. Skipped blocks that the destination has are read here:
    /// the price of such digests.
    pub(crate) fn digest_in_order(&self, source: &SourceEntry, offset: u64, data: &[u8]) {
        if self.algorithm().combines() {
            return;
        }
        let mut files = lock(&self.serial);
        let serial = match files.entry(source.file) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let Some(serial) = Serial::new(self.algorithm()) else { return };
                entry.insert(serial)
            }
        };
        let end = offset + data.len() as u64;
        if serial.next() < offset && self.catch_up(serial, source, offset).is_err() {
            return;
        }
        if serial.next() == offset {
            serial.update(data);
        }
        let total = source.entry.bytes;
        let tail_is_there = serial.next() == end && self.nothing_left(source.file);
        if tail_is_there && end < total && self.catch_up(serial, source, total).is_err() {
            return;
        }
        if serial.next() == total {
            let digest = files.remove(&source.file).map(Serial::finish);
            drop(files);
            if let Some(digest) = digest {
                lock(&self.machine).serial_digest(source.file, digest);
                self.session.wake_control();
            }
        }
    }

    fn nothing_left(&self, file: u64) -> bool {
        lock(&self.machine).is_handed_out(file)
    }

    fn catch_up(&self, serial: &mut Serial, source: &SourceEntry, end: u64) -> io::Result<()> {
        let (dir, path) = self.locate(source);
        let file = dir.open_file(path, &Open::reading())?;
        catch_up(serial, &file, end)
    }
}

impl SourceWork {
    pub(super) fn open_source(&self, source: &SourceEntry) -> io::Result<OpenSource> {
        let (dir, path) = self.locate(source);
        let wanted = self.engine.direct && source.entry.bytes >= DIRECT_BYTES_MIN;
        if wanted {
            let open = Open { direct: true, ..Open::reading() };
            match dir.open_file(path, &open) {
                Ok(file) => {
                    self.session.record_engine(self.engine.name(true));
                    return Ok(OpenSource { file: Arc::new(file), direct: true });
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        let file = dir.open_file(path, &Open::reading())?;
        self.session.record_engine(self.engine.name(false));
        if source.entry.bytes >= DIRECT_BYTES_MIN {
            // Ignored advice costs nothing.
            let _ = fs::advise_sequential(&file);
        }
        Ok(OpenSource { file: Arc::new(file), direct: false })
    }

    /// Checks a source against its announcement; `None` if unchanged.
    ///
    /// Programs can set a modification time back, but not a change time: without it a file that is rewritten while it
    /// is copied, or replaced between scan and opening, could arrive as a mixture of both contents.
    pub(super) fn changed(&self, source: &SourceEntry, file: &File) -> Option<ReadOutcome> {
        let stat = match fs::stat_file(file) {
            Ok(stat) => stat,
            Err(error) => return Some(failed(&error)),
        };
        let announced = &source.entry;
        if stat.kind == fs::Kind::File
            && (stat.size, stat.inode) == (announced.bytes, announced.inode)
            && time(stat.mtime) == announced.modified
            && time(stat.ctime) == announced.changed
        {
            return None;
        }
        let (dir, path) = self.locate(source);
        let arrives_as = native(&source.entry.path);
        let fresh = dir.stat(path).ok().and_then(|stat| {
            scan::entry(dir, path, arrives_as, &stat, self.session.options.xattrs).ok()
        });
        Some(ReadOutcome::Changed(fresh.map(Box::new)))
    }
}

/// Converts an error of a source to the outcome of a read.
pub(crate) fn failed(error: &io::Error) -> ReadOutcome {
    ReadOutcome::Failed(Failure::new(FailureKind::Source, fs::describe(error)))
}

#[cfg(test)]
mod tests {
    use penstock_protocol::proof::SessionKey;

    use super::*;
    use crate::base::test_options::plain_options;

    const POOL_BLOCKS: u64 = 16;

    fn source(readers: u16, streams: u16) -> SourceWork {
        source_with(4 << 20, readers, streams)
    }

    fn source_with(block_bytes: u32, readers: u16, streams: u16) -> SourceWork {
        let mut options = plain_options();
        options.block_bytes = block_bytes;
        options.settings.readers = Some(readers);
        options.settings.streams = Some(streams);
        let pool_bytes = POOL_BLOCKS * u64::from(options.block_bytes);
        let session = Session::new([1; 16], SessionKey([7; 32]), options, pool_bytes, None);
        SourceWork::new(session.expect("an event"), Engine::probe(), Vec::new())
    }

    #[test]
    fn blocks_follow_readers_and_streams() {
        assert_eq!(source(1, 1).blocks_in_use_max(), 4, "the least with which a copy proceeds");
        assert_eq!(source(2, 2).blocks_in_use_max(), 4);
        assert_eq!(source(4, 8).blocks_in_use_max(), 12);
        assert_eq!(source(16, 8).blocks_in_use_max(), 16, "the pool");
    }

    #[test]
    fn small_blocks_fill_the_cache() {
        assert_eq!(source_with(2 << 20, 2, 2).blocks_in_use_max(), 8);
        assert_eq!(source_with(1 << 20, 2, 2).blocks_in_use_max(), 16);
        assert_eq!(source_with(64 << 20, 2, 2).blocks_in_use_max(), 4);
    }

    #[test]
    fn surplus_readers_keep_their_blocks() {
        let work = source(6, 2);
        let (ended, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        work.readers.spawn_missing(1, |_| {
            let wait = Arc::clone(&wait);
            move || {
                let _ = lock(&wait).recv();
            }
        });
        work.readers.size.set(1);
        assert_eq!(work.blocks_in_use_max(), 8, "six readers still run");
        drop(ended);
        let begun = std::time::Instant::now();
        while work.blocks_in_use_max() > 4 && begun.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert_eq!(work.blocks_in_use_max(), 4);
    }

    #[test]
    fn long_paths_use_the_pool() {
        let work = source(2, 2);
        work.session.note_round_trip(0);
        assert_eq!(work.blocks_in_use_max(), 4, "not measured");
        work.session.note_round_trip(1_000);
        assert_eq!(work.blocks_in_use_max(), 16);
        work.session.note_round_trip(999);
        work.session.note_round_trip(70_000);
        assert_eq!(work.blocks_in_use_max(), 4, "the last one waited in a queue");
    }

    #[test]
    fn rdma_uses_the_pool() {
        let work = source(2, 2);
        work.sends_by_rdma.store(true, Ordering::Relaxed);
        assert_eq!(work.blocks_in_use_max(), 16);
    }
}
