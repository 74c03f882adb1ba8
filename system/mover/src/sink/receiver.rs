//! Receiving end of a session: planner, streams, writers and committer around the receiving state
//! machine.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use penstock_protocol::block::{FrameKind, Header, PackItem};
use penstock_protocol::control::{Placed, Settings, ToReceiver, ToSender, TransferTally};
use penstock_protocol::extents::Extent;
use penstock_protocol::manifest::{Entry, EntryKind};
use penstock_protocol::proof::Authenticator;
use penstock_protocol::receiver::{DestinationCheck, FrameTarget, Receiver, SenderFault};
use penstock_protocol::sender::StreamId;
use penstock_protocol::wire;
use penstock_sys::buffer::Buffer;
use penstock_sys::event::Event;

use super::committer::Committer;
use super::destination::Destination;
use super::file::SinkFile;
use super::writer::{self, ReceivedFrame, WriterTask};
use crate::channel::Channel;
use crate::control::ControlEndpoint;
use crate::engine::Engine;
use crate::frame::FrameReader;
use crate::sender::{spawn, wait};
use crate::session::{Session, SessionOutcome, add_since, lock};
use crate::worker_pool::WorkerPool;

/// Default number of writer threads per device.
const WRITERS_DEFAULT: u16 = 8;

/// Entries inspected between two answers to the sender.
const CHECKS_AT_ONCE: usize = 256;

/// Receiving end of one session.
#[derive(Debug)]
pub struct ReceiverEnd {
    /// State common to both kinds of end.
    pub session: Session,
    /// Storage engine of the writers.
    pub engine: Engine,
    /// Destination of the files.
    pub destination: Destination,
    pub(super) machine: Mutex<Receiver>,
    /// Signalled when entries must be inspected or files discarded.
    plan: Condvar,
    /// Signalled when files are ready to commit.
    pub(super) commit: Condvar,
    pub(super) sinks: Mutex<HashMap<u64, Arc<SinkFile>>>,
    queues: Mutex<BTreeMap<u64, VecDeque<WriterTask>>>,
    queued: Condvar,
    /// Writer threads, per device.
    pub writers: WorkerPool,
    pack_device: AtomicU64,
}

impl ReceiverEnd {
    /// Creates an end that writes to `destination`; [`ReceiverEnd::start`] starts it.
    #[must_use]
    pub fn new(session: Session, engine: Engine, destination: Destination) -> Self {
        let wanted = session.options.settings.writers.unwrap_or(WRITERS_DEFAULT);
        let wanted = if session.options.algorithm.combines() { wanted } else { 1 };
        let pack_device = AtomicU64::new(destination.base().device);
        Self {
            engine,
            machine: Mutex::new(Receiver::new(session.options.algorithm)),
            plan: Condvar::new(),
            commit: Condvar::new(),
            sinks: Mutex::default(),
            queues: Mutex::default(),
            queued: Condvar::new(),
            writers: WorkerPool::new("write", wanted),
            pack_device,
            destination,
            session,
        }
    }

    /// Starts planner and committer; writers start when their device is found.
    pub fn start(self: &Arc<Self>) {
        self.spawn_missing_writers(self.destination.base().device);
        let end = Arc::clone(self);
        spawn("plan", move || end.plan());
        let end = Arc::clone(self);
        spawn("commit", move || Committer::new(&end, Instant::now()).run());
    }

    /// Counters of the session so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        lock(&self.machine).tally().clone()
    }

    /// Collects committed files for [`ReceiverEnd::take_placed`]; with `digest_skipped`, skipped files
    /// are read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        lock(&self.machine).keep_placed();
        self.destination.digest_skipped.store(digest_skipped, Ordering::SeqCst);
    }

    /// Returns the files committed since the last call.
    pub fn take_placed(&self) -> Vec<Placed> {
        lock(&self.machine).take_placed()
    }

    /// Calls `ask` with the state machine, then wakes the threads that may have work.
    pub fn with_machine<T>(&self, ask: impl FnOnce(&mut Receiver) -> T) -> T {
        let mut machine = lock(&self.machine);
        let answer = ask(&mut machine);
        let (finishes, discards) = (machine.has_finishes(), machine.has_discards());
        drop(machine);
        if finishes {
            self.commit.notify_one();
        }
        if discards {
            self.plan.notify_one();
        }
        self.session.wake_control();
        answer
    }

    /// Returns the file of this number while it is expected.
    #[must_use]
    pub fn sink(&self, file: u64) -> Option<Arc<SinkFile>> {
        lock(&self.sinks).get(&file).cloned()
    }

    /// Returns the destinations of a pack's files; `None` for files no longer needed.
    ///
    /// # Errors
    /// If one was never announced or requested, or is not complete.
    pub fn places(
        &self,
        items: &[(usize, PackItem)],
    ) -> Result<Vec<Option<Arc<SinkFile>>>, SenderFault> {
        let mut machine = lock(&self.machine);
        let sinks = lock(&self.sinks);
        let place = |(_, item): &(usize, PackItem)| {
            let place = machine.accept(item.file, 0, u64::from(item.bytes))?;
            let wanted = matches!(place, FrameTarget::Write(_));
            Ok(sinks.get(&item.file).filter(|_| wanted).cloned())
        };
        items.iter().map(place).collect()
    }

    /// Inspects the destinations of announced entries until the session is over.
    fn plan(self: &Arc<Self>) {
        while !self.session.is_over() {
            if self.plan_some() {
                continue;
            }
            let machine = lock(&self.machine);
            if !machine.has_checks() && !machine.has_discards() {
                drop(wait(&self.plan, machine, Duration::from_millis(200)));
            }
        }
    }

    /// Inspects the destinations of some entries and discards failed files; false if there was nothing
    /// to do.
    pub(super) fn plan_some(self: &Arc<Self>) -> bool {
        let mut machine = lock(&self.machine);
        let discards: Vec<_> = std::iter::from_fn(|| machine.poll_discard()).collect();
        let checks: Vec<_> =
            std::iter::from_fn(|| machine.poll_check()).take(CHECKS_AT_ONCE).collect();
        drop(machine);
        if discards.is_empty() && checks.is_empty() {
            return false;
        }
        for (file, _) in discards {
            let sink = lock(&self.sinks).remove(&file);
            if let Some(sink) = sink {
                self.destination.discard(&sink);
                self.destination.journal.end_file(sink.journal_number.load(Ordering::SeqCst));
            }
            self.with_machine(Receiver::discarded);
        }
        let verdicts: Vec<_> =
            checks.iter().map(|(file, entry)| (*file, self.check(*file, entry))).collect();
        let mut machine = lock(&self.machine);
        let unverified: Vec<_> = verdicts
            .into_iter()
            .flat_map(|(file, verdict)| {
                let extents = machine.decide(file, verdict);
                extents.into_iter().map(move |extent| (file, extent))
            })
            .collect();
        drop(machine);
        for (file, extent) in unverified {
            if let Some(sink) = self.sink(file) {
                self.queue(sink.parent.device, WriterTask::Verify(sink, extent));
            }
        }
        self.session.wake_control();
        true
    }

    fn check(self: &Arc<Self>, file: u64, entry: &Arc<Entry>) -> DestinationCheck {
        if entry.kind != EntryKind::Directory && !self.session.options.inplace {
            self.destination.into_folder_of(&entry.path);
        }
        let (verdict, sink) = self.destination.check(file, entry);
        if let Some(sink) = sink {
            if sink.parent.device != self.destination.base().device {
                self.spawn_missing_writers(sink.parent.device);
            }
            lock(&self.sinks).insert(file, Arc::new(sink));
        }
        verdict
    }

    /// True if a file not yet committed has this partial name.
    #[must_use]
    pub fn has_partial(&self, name: &OsStr) -> bool {
        lock(&self.sinks).values().any(|sink| sink.partial_name() == name)
    }

    /// Records a written extent.
    pub fn record(&self, sink: &SinkFile, extent: Extent) {
        sink.touch();
        let number = sink.journal_number.load(Ordering::SeqCst);
        if number > 0 {
            self.destination.journal.written(number, extent);
        }
    }

    /// Adds a block to a digest in file order if it is next. Blocks out of order are read again when
    /// the file is complete.
    pub fn digest_in_order(&self, sink: &SinkFile, offset: u64, data: &[u8]) {
        if let Some(serial) = lock(&sink.serial).as_mut().filter(|serial| serial.next() == offset) {
            serial.update(data);
        }
    }

    fn spawn_missing_writers(self: &Arc<Self>, device: u64) {
        self.writers.spawn_missing(device, |number| {
            let end = Arc::clone(self);
            move || {
                end.session.pin_near_disk(device);
                writer::run(&end, device, number)
            }
        });
    }

    /// Takes the next task of a device.
    pub fn next_task(&self, device: u64, timeout: Duration) -> Option<WriterTask> {
        let mut queues = lock(&self.queues);
        let next = queues.get_mut(&device).and_then(VecDeque::pop_front);
        if next.is_some() || timeout.is_zero() {
            return next;
        }
        queues = wait(&self.queued, queues, timeout);
        queues.get_mut(&device).and_then(VecDeque::pop_front)
    }

    fn queue(&self, device: u64, task: WriterTask) {
        lock(&self.queues).entry(device).or_default().push_back(task);
        self.queued.notify_all();
    }

    /// Receives frames on a stream until the sender ends it.
    ///
    /// # Errors
    /// If the stream broke or failed its integrity check.
    pub fn run_stream(
        &self,
        stream: StreamId,
        channel: Channel,
        authenticator: Option<Authenticator>,
    ) -> io::Result<()> {
        if !self.session.add_stream(stream, channel.transport())? {
            return Ok(());
        }
        let mut reader = FrameReader::new(channel, authenticator);
        let result = self.receive_frames(&mut reader);
        self.session.remove_stream(stream);
        if let Err(error) = &result
            && !self.session.is_over()
        {
            // The sender must not continue to write into a broken stream.
            reader.channel().transport().shut_down();
            self.session.meter.streams_lost.fetch_add(1, Ordering::Relaxed);
            tracing::info!("stream {stream} broke: {error}");
        }
        result
    }

    fn receive_frames(&self, reader: &mut FrameReader) -> io::Result<()> {
        let meter = &self.session.meter;
        while !self.session.is_over() {
            let start = Instant::now();
            let header = reader.header()?;
            add_since(&meter.waited_network_us, start);
            let bytes = header.payload_bytes as usize;
            if bytes > self.session.pool.buffer_len() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "frame exceeds a block"));
            }
            let start = Instant::now();
            let buffer = match header.kind {
                FrameKind::End => return reader.payload(&header, &mut []),
                FrameKind::Hole => None,
                FrameKind::Block | FrameKind::Pack => Some(self.session.pool.take()),
            };
            add_since(&meter.waited_storage_us, start);
            let mut buffer = match buffer {
                None => None,
                Some(Some(buffer)) => Some(buffer),
                // The pool is closed: the session is over.
                Some(None) => return Ok(()),
            };
            let payload = buffer.as_deref_mut().unwrap_or_default();
            if self.session.shared_pace.is_some() {
                self.session.wait_for_pace(bytes, reader.channel())?;
            }
            reader.payload(&header, &mut payload[..bytes])?;
            meter.network_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            self.received(header, buffer)?;
        }
        Ok(())
    }

    /// Queues a frame for the writers of its device.
    ///
    /// # Errors
    /// If it belongs to no requested file.
    pub(super) fn received(&self, header: Header, buffer: Option<Buffer>) -> io::Result<()> {
        if header.kind == FrameKind::Pack {
            let device = self.pack_device.load(Ordering::Relaxed);
            self.queue(device, WriterTask::Write(ReceivedFrame { header, sink: None, buffer }));
            return Ok(());
        }
        let place = lock(&self.machine).accept(header.file, header.offset, header.bytes);
        let place = place.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        match (place, self.sink(header.file)) {
            (FrameTarget::Write(_), Some(sink)) => {
                let device = sink.parent.device;
                self.queue(
                    device,
                    WriterTask::Write(ReceivedFrame { header, sink: Some(sink), buffer }),
                );
            }
            _ => self.with_machine(|machine| machine.acknowledge(header.sequence)),
        }
        Ok(())
    }

    /// Passes warnings of the destination on to both ends.
    pub(super) fn pass_warnings(&self) {
        let warnings = self.destination.take_warnings();
        let mut machine = lock(&self.machine);
        warnings.into_iter().for_each(|(path, warning)| machine.warn(path, warning));
    }

    /// Cancels the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        lock(&self.machine).cancel(reason);
        self.session.end(SessionOutcome::Cancelled(reason.to_owned()));
    }

    /// Applies settings to this end.
    pub fn apply(&self, settings: &Settings) {
        self.session.apply(settings);
        if let Some(writers) = settings.writers {
            self.writers.resize(writers);
        }
    }
}

/// Receiving end as driven by a control connection.
#[derive(Debug, Clone)]
pub struct ReceiverControl(pub Arc<ReceiverEnd>);

impl ControlEndpoint for ReceiverControl {
    fn is_over(&self) -> bool {
        self.0.session.is_over()
    }

    fn wake(&self) -> &Event {
        &self.0.session.wake
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        if let Some(settings) = self.0.session.take_settings_for_peer() {
            return Some(wire::encode(&ToSender::Settings(settings)));
        }
        let mut machine = lock(&self.0.machine);
        let message = machine.poll_message().as_ref().map(wire::encode);
        if machine.is_finished() {
            self.0.session.end(SessionOutcome::Finished);
        }
        message
    }

    fn on_message(&self, message: &[u8]) -> Result<(), String> {
        let message: ToReceiver = wire::decode(message).map_err(|error| error.to_string())?;
        let end = &self.0;
        match &message {
            ToReceiver::Report(report) => end.session.set_peer(report.clone()),
            ToReceiver::Settings(settings) => end.apply(settings),
            ToReceiver::Cancel(reason) => {
                end.session.end(SessionOutcome::Cancelled(reason.clone()))
            }
            _ => {}
        }
        end.with_machine(|machine| machine.on_message(message))
            .map_err(|fault| fault.to_string())?;
        end.plan.notify_one();
        end.commit.notify_one();
        Ok(())
    }

    fn tick(&self) {
        self.0
            .writers
            .devices()
            .into_iter()
            .for_each(|device| self.0.spawn_missing_writers(device));
        self.0.pass_warnings();
        let report = self.0.session.report();
        lock(&self.0.machine).report(report);
    }
}
