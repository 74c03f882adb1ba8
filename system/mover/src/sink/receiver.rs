//! The receiving end of a session: planner, streams, writers and committer around the receiving
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
use super::writer::{self, Received, Task};
use crate::channel::Channel;
use crate::control::End;
use crate::crew::Crew;
use crate::engine::Engine;
use crate::frame::FrameReader;
use crate::sending::{spawn, wait};
use crate::session::{Ending, Session, add_since, lock};

/// Writer threads per device when nobody says how many.
const WRITERS_DEFAULT: u16 = 8;

/// Entries whose destination is looked at between two answers to the sender.
const CHECKS_AT_ONCE: usize = 256;

/// The receiving end.
#[derive(Debug)]
pub struct ReceiverEnd {
    /// What both ends share.
    pub session: Session,
    /// How files are written.
    pub engine: Engine,
    /// Where they go.
    pub destination: Destination,
    pub(super) machine: Mutex<Receiver>,
    /// There is something to look at.
    plan: Condvar,
    /// There is something to commit.
    pub(super) commit: Condvar,
    pub(super) sinks: Mutex<HashMap<u64, Arc<SinkFile>>>,
    queues: Mutex<BTreeMap<u64, VecDeque<Task>>>,
    queued: Condvar,
    /// Its writer threads.
    pub writers: Crew,
    pack_device: AtomicU64,
}

impl ReceiverEnd {
    /// An end that writes to `destination`. Nothing runs before [`ReceiverEnd::start`].
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
            writers: Crew::new("write", wanted),
            pack_device,
            destination,
            session,
        }
    }

    /// Starts planner and committer; writers start as devices are found.
    pub fn start(self: &Arc<Self>) {
        self.ensure_writers(self.destination.base().device);
        let end = Arc::clone(self);
        spawn("plan", move || end.plan());
        let end = Arc::clone(self);
        spawn("commit", move || Committer::new(&end, Instant::now()).run());
    }

    /// What was done so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        lock(&self.machine).tally().clone()
    }

    /// Keeps the files that come into place for [`ReceiverEnd::take_placed`]; with `digest_skipped`
    /// those that were there already are read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        lock(&self.machine).keep_placed();
        self.destination.digest_skipped.store(digest_skipped, Ordering::SeqCst);
    }

    /// Files that came into place since the last call.
    pub fn take_placed(&self) -> Vec<Placed> {
        lock(&self.machine).take_placed()
    }

    /// Runs `ask` with the receiving machine, then wakes whoever may have something to do.
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

    /// The file of that number, while it is wanted.
    #[must_use]
    pub fn sink(&self, file: u64) -> Option<Arc<SinkFile>> {
        lock(&self.sinks).get(&file).cloned()
    }

    /// Where the files of a pack belong; none for those that nobody needs any more.
    ///
    /// # Errors
    /// When one was never announced or wanted, or is not whole.
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

    /// Looks at the destination of announced entries until the session is over.
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

    /// Looks at the destination of some entries, and removes what is left of files that failed; `false` where there is
    /// nothing to do.
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
                self.queue(sink.parent.device, Task::Verify(sink, extent));
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
                self.ensure_writers(sink.parent.device);
            }
            lock(&self.sinks).insert(file, Arc::new(sink));
        }
        verdict
    }

    /// Whether a file that is not in place yet has this partial name.
    #[must_use]
    pub fn has_partial(&self, name: &OsStr) -> bool {
        lock(&self.sinks).values().any(|sink| sink.partial_name() == name)
    }

    /// Records an extent that is written.
    pub fn record(&self, sink: &SinkFile, extent: Extent) {
        sink.touch();
        let number = sink.journal_number.load(Ordering::SeqCst);
        if number > 0 {
            self.destination.journal.written(number, extent);
        }
    }

    /// Takes a block into the digest of its file, where that must be in order and this is its turn. What
    /// comes out of turn is read again when the file is whole.
    pub fn digest_in_order(&self, sink: &SinkFile, offset: u64, data: &[u8]) {
        if let Some(serial) = lock(&sink.serial).as_mut().filter(|serial| serial.next() == offset) {
            serial.update(data);
        }
    }

    fn ensure_writers(self: &Arc<Self>, device: u64) {
        self.writers.ensure(device, |number| {
            let end = Arc::clone(self);
            move || {
                end.session.settle_near_files(device);
                writer::run(&end, device, number)
            }
        });
    }

    /// The next task of a device.
    pub fn next_task(&self, device: u64, timeout: Duration) -> Option<Task> {
        let mut queues = lock(&self.queues);
        let next = queues.get_mut(&device).and_then(VecDeque::pop_front);
        if next.is_some() || timeout.is_zero() {
            return next;
        }
        queues = wait(&self.queued, queues, timeout);
        queues.get_mut(&device).and_then(VecDeque::pop_front)
    }

    fn queue(&self, device: u64, task: Task) {
        lock(&self.queues).entry(device).or_default().push_back(task);
        self.queued.notify_all();
    }

    /// Receives frames on a stream until the sender ends it.
    ///
    /// # Errors
    /// When the stream broke or its bytes cannot be trusted.
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
            // Whoever sends must not go on writing into a stream that nobody trusts.
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
    /// When it belongs to no file that is wanted.
    pub(super) fn received(&self, header: Header, buffer: Option<Buffer>) -> io::Result<()> {
        if header.kind == FrameKind::Pack {
            let device = self.pack_device.load(Ordering::Relaxed);
            self.queue(device, Task::Write(Received { header, sink: None, buffer }));
            return Ok(());
        }
        let place = lock(&self.machine).accept(header.file, header.offset, header.bytes);
        let place = place.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        match (place, self.sink(header.file)) {
            (FrameTarget::Write(_), Some(sink)) => {
                let device = sink.parent.device;
                self.queue(device, Task::Write(Received { header, sink: Some(sink), buffer }));
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

    /// Stops the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        lock(&self.machine).cancel(reason);
        self.session.end(Ending::Cancelled(reason.to_owned()));
    }

    /// Changes this end of the transfer.
    pub fn apply(&self, settings: &Settings) {
        self.session.apply(settings);
        if let Some(writers) = settings.writers {
            self.writers.want(writers);
        }
    }
}

/// The receiving end as a control connection drives it.
#[derive(Debug, Clone)]
pub struct ReceiverControl(pub Arc<ReceiverEnd>);

impl End for ReceiverControl {
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
            self.0.session.end(Ending::Finished);
        }
        message
    }

    fn on_message(&self, message: &[u8]) -> Result<(), String> {
        let message: ToReceiver = wire::decode(message).map_err(|error| error.to_string())?;
        let end = &self.0;
        match &message {
            ToReceiver::Report(report) => end.session.set_peer(report.clone()),
            ToReceiver::Settings(settings) => end.apply(settings),
            ToReceiver::Cancel(reason) => end.session.end(Ending::Cancelled(reason.clone())),
            _ => {}
        }
        end.with_machine(|machine| machine.on_message(message))
            .map_err(|fault| fault.to_string())?;
        end.plan.notify_one();
        end.commit.notify_one();
        Ok(())
    }

    fn tick(&self) {
        self.0.writers.devices().into_iter().for_each(|device| self.0.ensure_writers(device));
        self.0.pass_warnings();
        let report = self.0.session.report();
        lock(&self.0.machine).report(report);
    }
}
