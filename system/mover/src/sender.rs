//! Sending end of a session: scanner, readers and streams around the sending state machine.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use penstock_protocol::block::Header;
use penstock_protocol::control::{
    Failure, FailureKind, Placed, Settings, Settled, ToReceiver, ToSender, TransferTally,
};
use penstock_protocol::digest::{Algorithm, Digest, Serial};
use penstock_protocol::list::PathList;
use penstock_protocol::manifest::RelativePath;
use penstock_protocol::open::Existing;
use penstock_protocol::proof::Authenticator;
use penstock_protocol::sender::{FrameTask, ReadOutcome, Sender, SourceEntry, StreamId};
use penstock_protocol::wire;
use penstock_sys::buffer::Buffer;
use penstock_sys::event::Event;
use penstock_sys::fs::{Dir, Open};

use crate::channel::Channel;
use crate::control::ControlEndpoint;
use crate::engine::Engine;
use crate::frame::FrameWriter;
use crate::reader::{self, OpenSources};
use crate::scan::{self, Missing, ScanItem, TreeWalk};
use crate::session::{PEER_TIMEOUT, Session, SessionOutcome, add_since, lock};
use crate::worker_pool::WorkerPool;

/// Default number of reader threads per device.
const READERS_DEFAULT: u16 = 2;

/// Limit of queued blocks without a buffer (holes).
const READY_BLOCKS_MAX: usize = 256;

/// Block ready to be sent.
#[derive(Debug)]
pub struct ReadyBlock {
    /// Work that produced it.
    pub work: FrameTask,
    /// Frame header of the block.
    pub header: Header,
    /// Payload of the length in the header; `None` for a hole.
    pub buffer: Option<Buffer>,
}

/// Queue of blocks from readers to streams.
#[derive(Debug, Default)]
pub struct ReadyQueue {
    blocks: Mutex<VecDeque<ReadyBlock>>,
    came: Condvar,
    went: Condvar,
}

impl ReadyQueue {
    /// Appends a block; waits while the queue is full.
    pub fn push(&self, block: ReadyBlock) {
        let mut blocks = lock(&self.blocks);
        while blocks.len() >= READY_BLOCKS_MAX {
            blocks = wait(&self.went, blocks, Duration::from_millis(200));
            if blocks.len() >= READY_BLOCKS_MAX * 2 {
                break;
            }
        }
        blocks.push_back(block);
        drop(blocks);
        self.came.notify_one();
    }

    fn pop(&self, timeout: Duration) -> Option<ReadyBlock> {
        let mut blocks = lock(&self.blocks);
        if blocks.is_empty() {
            blocks = wait(&self.came, blocks, timeout);
        }
        let block = blocks.pop_front();
        drop(blocks);
        if block.is_some() {
            self.went.notify_one();
        }
        block
    }
}

/// Waits on a condition for at most `timeout`; ignores poisoning.
pub fn wait<'a, T>(
    condition: &Condvar,
    guard: std::sync::MutexGuard<'a, T>,
    timeout: Duration,
) -> std::sync::MutexGuard<'a, T> {
    condition
        .wait_timeout(guard, timeout)
        .map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard)
}

/// Selection of the sources to send.
#[derive(Debug)]
enum SourceSelection {
    /// Everything below the sources.
    All,
    /// Paths of this list below the one source.
    Listed(Arc<PathList>),
    /// Paths that the receiver requests below the one source.
    Requested,
}

/// Sending end of one session.
#[derive(Debug)]
pub struct SenderEnd {
    /// State common to both kinds of end.
    pub session: Session,
    /// Storage engine of the readers.
    pub engine: Engine,
    /// Blocks ready to be sent.
    pub ready: ReadyQueue,
    /// Cache of open sources.
    pub open: OpenSources,
    sources: Vec<scan::ScanRoot>,
    recursive: bool,
    missing: Vec<Missing>,
    selection: SourceSelection,
    machine: Mutex<Sender>,
    work: Condvar,
    room: Condvar,
    serial: Mutex<HashMap<u64, Serial>>,
    /// Reader threads, per device.
    pub readers: WorkerPool,
}

impl SenderEnd {
    /// Creates an end that sends `sources`; [`SenderEnd::start`] starts it.
    #[must_use]
    pub fn new(
        session: Session,
        engine: Engine,
        sources: Vec<scan::ScanRoot>,
        recursive: bool,
    ) -> Self {
        let options = &session.options;
        let mut machine = Sender::new(options.algorithm, options.block_bytes);
        if options.existing == Existing::Keep {
            machine.keep_existing();
        }
        let wanted = options.settings.readers.unwrap_or(READERS_DEFAULT);
        // A digest in file order needs blocks in file order.
        let wanted = if options.algorithm.combines() { wanted } else { 1 };
        Self {
            engine,
            ready: ReadyQueue::default(),
            open: OpenSources::default(),
            sources,
            recursive,
            missing: Vec::new(),
            selection: SourceSelection::All,
            machine: Mutex::new(machine),
            work: Condvar::new(),
            room: Condvar::new(),
            serial: Mutex::default(),
            readers: WorkerPool::new("read", wanted),
            session,
        }
    }

    /// Sends only the paths that the receiver requests below the one source.
    #[must_use]
    pub fn listed(mut self) -> Self {
        self.selection = SourceSelection::Requested;
        lock(&self.machine).expect_list();
        self
    }

    /// Sends only the paths of `list` below the one source.
    #[must_use]
    pub fn listed_here(mut self, list: Arc<PathList>) -> Self {
        self.selection = SourceSelection::Listed(list);
        self
    }

    /// Reports missing sources as failed.
    #[must_use]
    pub fn missing(mut self, missing: Vec<Missing>) -> Self {
        self.missing = missing;
        self
    }

    /// Starts the scanner, which starts readers as it finds devices.
    pub fn start(self: &Arc<Self>) {
        let end = Arc::clone(self);
        spawn("scan", move || end.scan());
    }

    /// Counters of the session so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        lock(&self.machine).tally().clone()
    }

    /// Collects committed files for [`SenderEnd::take_placed`]; with `digest_skipped`, skipped files
    /// are read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        lock(&self.machine).keep_placed(digest_skipped);
    }

    /// Returns the files committed since the last call.
    pub fn take_placed(&self) -> Vec<Placed> {
        lock(&self.machine).take_placed()
    }

    /// Collects final results for [`SenderEnd::take_settled`].
    pub fn keep_account(&self) {
        lock(&self.machine).keep_account();
    }

    /// Returns the final results since the last call.
    pub fn take_settled(&self) -> Vec<Settled> {
        lock(&self.machine).take_settled()
    }

    /// Sets required digests, by path.
    #[must_use]
    pub fn expecting(self, digests: HashMap<Vec<u8>, Digest>) -> Self {
        lock(&self.machine).expect(digests);
        self
    }

    /// Digest algorithm of whole files.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.session.options.algorithm
    }

    /// Directory and path of an announced source.
    #[must_use]
    pub fn locate<'a>(&'a self, source: &'a SourceEntry) -> (&'a Dir, &'a Path) {
        let root = &self.sources[source.root as usize];
        (&root.dir, scan::native(&source.entry.path))
    }

    fn scan(self: &Arc<Self>) {
        for Missing { path, why } in &self.missing {
            let failure = Failure::new(FailureKind::Source, why.clone());
            lock(&self.machine).scan_failed(path.as_bytes(), failure);
        }
        match &self.selection {
            SourceSelection::All => {
                for (root, source) in self.sources.iter().enumerate() {
                    self.scan_source(u32::try_from(root).unwrap_or(u32::MAX), source);
                }
            }
            SourceSelection::Listed(list) => {
                for path in list.iter().take_while(|_| !self.session.is_over()) {
                    self.scan_below_base(path);
                }
            }
            SourceSelection::Requested => self.scan_list(),
        }
        lock(&self.machine).manifest_end();
        self.session.wake_control();
    }

    /// Scans the paths that the receiver requests, as they arrive.
    fn scan_list(self: &Arc<Self>) {
        while !self.session.is_over() {
            let mut machine = lock(&self.machine);
            let Some(next) = machine.next_listed() else { return };
            let Some(path) = next else {
                drop(wait(&self.room, machine, Duration::from_millis(100)));
                continue;
            };
            // `RelativePath` alone defines valid paths; an invalid one fails by itself.
            if let Err(error) = RelativePath::new(path.clone()) {
                let failure = Failure::new(FailureKind::Source, error.to_string());
                machine.scan_failed(&path, failure);
                continue;
            }
            drop(machine);
            self.scan_below_base(&path);
        }
    }

    /// Scans one listed path below the one source.
    fn scan_below_base(self: &Arc<Self>, path: &[u8]) {
        let Some(base) = self.sources.first() else { return };
        let path = PathBuf::from(OsStr::from_bytes(path));
        self.scan_source(0, &scan::ScanRoot { dir: Arc::clone(&base.dir), path });
    }

    fn scan_source(self: &Arc<Self>, root: u32, source: &scan::ScanRoot) {
        let walk = TreeWalk { recursive: self.recursive, xattrs: self.session.options.xattrs };
        let mut known_device = None;
        walk.run(source, |found| {
            match found {
                ScanItem::Failed(path, failure) => {
                    lock(&self.machine).scan_failed(path.as_os_str().as_bytes(), failure);
                }
                ScanItem::Entry(device, entry) => {
                    if known_device.replace(device) != Some(device) {
                        self.spawn_missing_readers(device);
                    }
                    let mut machine = lock(&self.machine);
                    while !machine.has_room() && !self.session.is_over() {
                        drop(machine);
                        self.session.wake_control();
                        let guard = lock(&self.machine);
                        machine = wait(&self.room, guard, Duration::from_millis(50));
                    }
                    machine.announce(root, device, entry);
                    if machine.has_announcement() {
                        drop(machine);
                        self.session.wake_control();
                    }
                }
            }
            !self.session.is_over()
        });
    }

    fn spawn_missing_readers(self: &Arc<Self>, device: u64) {
        self.readers.spawn_missing(device, |number| {
            let end = Arc::clone(self);
            move || {
                end.session.pin_near_disk(device);
                reader::run(&end, device, number)
            }
        });
    }

    /// Returns work for a reader, without waiting.
    pub fn try_work(&self, device: u64) -> Option<FrameTask> {
        lock(&self.machine).next_work(device)
    }

    /// Returns work for a reader; waits briefly.
    pub fn wait_work(&self, device: u64) -> Option<FrameTask> {
        let mut machine = lock(&self.machine);
        machine.next_work(device).or_else(|| {
            machine = wait(&self.work, machine, Duration::from_millis(100));
            machine.next_work(device)
        })
    }

    /// Handles the result of reading a range of a source.
    pub fn read(&self, source: &SourceEntry, range: Range<u64>, result: ReadOutcome) {
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
    pub fn read_whole(&self, sources: &[Arc<SourceEntry>], results: Vec<ReadOutcome>) {
        let mut machine = lock(&self.machine);
        for (source, result) in sources.iter().zip(results) {
            machine.read(source, 0..source.entry.bytes, result);
        }
    }

    /// Handles the comparison of a source with its copy.
    pub fn compared(&self, source: &SourceEntry, same: bool) {
        lock(&self.machine).compared(source, same);
        self.session.wake_control();
    }

    /// Handles the digest of a skipped source.
    pub fn digested(&self, source: &SourceEntry, result: Result<Digest, Failure>) {
        lock(&self.machine).digested(source, result);
        self.session.wake_control();
    }

    /// Adds a block to a digest in file order. Skipped blocks that the destination has are read here:
    /// the price of such digests.
    pub fn digest_in_order(&self, source: &SourceEntry, offset: u64, data: &[u8]) {
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
        reader::catch_up(serial, &file, end)
    }

    /// Sends blocks on a stream until the session is over or fewer streams are requested.
    ///
    /// # Errors
    /// If the stream broke; its blocks are queued again.
    pub fn run_stream(
        &self,
        stream: StreamId,
        channel: Channel,
        authenticator: Option<Authenticator>,
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        if !self.session.add_stream(stream, channel.transport())? {
            return Ok(());
        }
        if let Some(fireflies) = &self.session.fireflies {
            fireflies.begin(stream, channel.transport());
        }
        let mut writer = FrameWriter::new(channel, authenticator);
        let mut result = self.send_blocks(stream, &mut writer, wanted);
        if result.is_ok() {
            writer.finish();
            self.session.finish_stream(stream);
            result = self.await_written(stream);
        }
        if let Some(fireflies) = &self.session.fireflies {
            fireflies.end(stream);
        }
        self.session.remove_stream(stream);
        if result.is_err() {
            let repeated = lock(&self.machine).stream_lost(stream);
            self.work.notify_all();
            if !self.session.is_over() {
                let meter = &self.session.meter;
                meter.repeated.fetch_add(repeated as u64, Ordering::Relaxed);
                meter.streams_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }

    /// Waits until all data of a closed stream is acknowledged.
    fn await_written(&self, stream: StreamId) -> io::Result<()> {
        let start = Instant::now();
        let mut machine = lock(&self.machine);
        while machine.has_unacknowledged(stream) && !self.session.is_over() {
            if start.elapsed() > PEER_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.session.is_broken(stream) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            machine = wait(&self.work, machine, Duration::from_millis(100));
        }
        Ok(())
    }

    fn send_blocks(
        &self,
        stream: StreamId,
        writer: &mut FrameWriter,
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        let (session, meter) = (&self.session, &self.session.meter);
        while !session.is_over() && wanted() {
            let start = Instant::now();
            let block = self.ready.pop(Duration::from_millis(100));
            add_since(&meter.waited_storage_us, start);
            let Some(ReadyBlock { work, header, buffer }) = block else {
                writer.channel().check_open()?;
                continue;
            };
            let payload = buffer.as_deref().unwrap_or_default();
            let payload = &payload[..header.payload_bytes as usize];
            lock(&self.machine).sent(stream, work);
            let start = Instant::now();
            let paused = meter.waited_rate_us.load(Ordering::Relaxed);
            // Counted per part: at a low rate one block takes longer than the interval between two rate
            // samples.
            let counted = Cell::new(0);
            let count = |bytes: usize| {
                let bytes = bytes.min(payload.len() - counted.get());
                counted.set(counted.get() + bytes);
                meter.network_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            };
            let part = session.part_bytes();
            writer.write(&header, payload, part, |channel, bytes| {
                session.wait_for_pace(bytes, channel)?;
                count(bytes);
                Ok(())
            })?;
            count(payload.len());
            if meter.waited_rate_us.load(Ordering::Relaxed) == paused {
                add_since(&meter.waited_network_us, start);
            }
        }
        Ok(())
    }

    /// Cancels the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        lock(&self.machine).cancel(reason);
        self.session.end(SessionOutcome::Cancelled(reason.to_owned()));
    }

    /// Applies settings to this end.
    pub fn apply(&self, settings: &Settings) {
        self.session.apply(settings);
        if let Some(readers) = settings.readers {
            self.readers.resize(readers);
        }
    }
}

/// Spawns a named thread; panics if the process cannot have more threads.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .unwrap_or_else(|error| panic!("cannot start a thread (raise TasksMax): {error}"))
}

/// Sending end as driven by a control connection.
#[derive(Debug, Clone)]
pub struct SenderControl(pub Arc<SenderEnd>);

impl ControlEndpoint for SenderControl {
    fn is_over(&self) -> bool {
        self.0.session.is_over()
    }

    fn wake(&self) -> &Event {
        &self.0.session.wake
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        if let Some(settings) = self.0.session.take_settings_for_peer() {
            return Some(wire::encode(&ToReceiver::Settings(settings)));
        }
        let mut machine = lock(&self.0.machine);
        if machine.wants_last_report() {
            machine.report(self.0.session.report());
        }
        machine.poll_message().as_ref().map(wire::encode)
    }

    fn on_message(&self, message: &[u8]) -> Result<(), String> {
        let message: ToSender = wire::decode(message).map_err(|error| error.to_string())?;
        let end = &self.0;
        match &message {
            ToSender::Report(report) => end.session.set_peer(report.clone()),
            ToSender::Settings(settings) => end.apply(settings),
            ToSender::Cancel(reason) => end.session.end(SessionOutcome::Cancelled(reason.clone())),
            _ => {}
        }
        let mut machine = lock(&end.machine);
        machine.on_message(message).map_err(|error| error.to_string())?;
        if machine.is_finished() {
            end.session.end(SessionOutcome::Finished);
        }
        drop(machine);
        end.work.notify_all();
        end.room.notify_all();
        Ok(())
    }

    fn tick(&self) {
        let devices: Vec<_> = lock(&self.0.machine).devices().collect();
        devices.into_iter().for_each(|device| self.0.spawn_missing_readers(device));
        if let Some(fireflies) = &self.0.session.fireflies {
            fireflies.tick();
        }
        self.0.session.break_silent_streams();
        let report = self.0.session.report();
        lock(&self.0.machine).report(report);
    }
}
