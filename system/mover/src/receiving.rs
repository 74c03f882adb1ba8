//! The receiving end of a session: planner, streams, writers and committer around the receiving
//! machine.
//!
//! The committer is where durability is made. It takes all files that have become whole, syncs them
//! together, renames them, and only then says that they are settled; about once a second it syncs
//! unfinished large files and marks the journal. Many small files thus share one sync.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use penstock_protocol::block::{FrameKind, Header, PackItem};
use penstock_protocol::control::{
    Failure, FailureKind, Placed, Settings, Tally, ToReceiver, ToSender,
};
use penstock_protocol::extents::Extent;
use penstock_protocol::manifest::{Entry, Kind};
use penstock_protocol::proof::Authenticator;
use penstock_protocol::receiver::{Finish, Place as Where, Receiver, SenderFault, Verdict};
use penstock_protocol::sender::StreamId;
use penstock_protocol::wire;
use penstock_sys::event::Event;
use penstock_sys::fs;

use crate::channel::Channel;
use crate::control::End;
use crate::crew::Crew;
use crate::engine::Engine;
use crate::frame::FrameReader;
use crate::keeping::Journal;
use crate::placing::{LARGE_BYTES_MIN, Place, SinkFile, destination, identity};
use crate::reading::{catch_up, digest_file};
use crate::sending::{spawn, wait};
use crate::session::{Ending, Session, add_since, lock};
use crate::writing::{self, Received};

/// Writer threads per device when nobody says how many.
const WRITERS_DEFAULT: u16 = 8;

/// How often unfinished files are synced and the journal marked.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Entries whose destination is looked at between two answers to the sender.
const CHECKS_AT_ONCE: usize = 256;

/// How long whole small files may wait for others to share a sync with, while more are coming.
const SHARE_WITHIN: Duration = Duration::from_millis(250);

/// From this many whole small files on, one sync of the file system is cheaper than one for each.
const SYNC_ALL_FROM: usize = 8;

/// The receiving end.
#[derive(Debug)]
pub struct ReceiverEnd {
    /// What both ends share.
    pub session: Session,
    /// How files are written.
    pub engine: Engine,
    /// Where they go.
    pub place: Place,
    journal: Journal,
    machine: Mutex<Receiver>,
    /// There is something to look at.
    plan: Condvar,
    /// There is something to commit.
    commit: Condvar,
    sinks: Mutex<HashMap<u64, Arc<SinkFile>>>,
    queues: Mutex<BTreeMap<u64, VecDeque<Received>>>,
    queued: Condvar,
    /// Its writer threads.
    pub writers: Crew,
    pack_device: AtomicU64,
}

impl ReceiverEnd {
    /// An end that writes to `place`. Nothing runs before [`ReceiverEnd::start`].
    #[must_use]
    pub fn new(session: Session, engine: Engine, place: Place, journal: Journal) -> Self {
        let wanted = session.options.settings.writers.unwrap_or(WRITERS_DEFAULT);
        let wanted = if session.options.algorithm.combines() { wanted } else { 1 };
        let pack_device = AtomicU64::new(place.base().device);
        Self {
            engine,
            journal,
            machine: Mutex::new(Receiver::new(session.options.algorithm)),
            plan: Condvar::new(),
            commit: Condvar::new(),
            sinks: Mutex::default(),
            queues: Mutex::default(),
            queued: Condvar::new(),
            writers: Crew::new("write", wanted),
            pack_device,
            place,
            session,
        }
    }

    /// Starts planner and committer; writers start as devices are found.
    pub fn start(self: &Arc<Self>) {
        self.ensure_writers(self.place.base().device);
        let end = Arc::clone(self);
        spawn("plan", move || end.plan());
        let end = Arc::clone(self);
        spawn("commit", move || end.commit());
    }

    /// What was done so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        lock(&self.machine).tally().clone()
    }

    /// Keeps the files that come into place for [`ReceiverEnd::take_placed`]; with `digest_skipped`
    /// those that were there already are read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        lock(&self.machine).keep_placed();
        self.place.digest_skipped.store(digest_skipped, Ordering::SeqCst);
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
            let wanted = matches!(place, Where::Write(_));
            Ok(sinks.get(&item.file).filter(|_| wanted).cloned())
        };
        items.iter().map(place).collect()
    }

    /// Looks at the destination of announced entries.
    fn plan(self: &Arc<Self>) {
        while !self.session.is_over() {
            let mut machine = lock(&self.machine);
            let discards: Vec<_> = std::iter::from_fn(|| machine.poll_discard()).collect();
            let checks: Vec<_> =
                std::iter::from_fn(|| machine.poll_check()).take(CHECKS_AT_ONCE).collect();
            if discards.is_empty() && checks.is_empty() {
                drop(wait(&self.plan, machine, Duration::from_millis(200)));
                continue;
            }
            drop(machine);
            for (file, _) in discards {
                let sink = lock(&self.sinks).remove(&file);
                if let Some(sink) = sink {
                    self.place.discard(&sink);
                    self.journal.end_file(sink.journal_number.load(Ordering::SeqCst));
                }
                self.with_machine(Receiver::discarded);
            }
            let verdicts: Vec<_> =
                checks.iter().map(|(file, entry)| (*file, self.check(*file, entry))).collect();
            let mut machine = lock(&self.machine);
            verdicts.into_iter().for_each(|(file, verdict)| machine.decide(file, verdict));
            drop(machine);
            self.session.wake_control();
        }
    }

    fn check(self: &Arc<Self>, file: u64, entry: &Arc<Entry>) -> Verdict {
        let directory = self.place.directory_of(&entry.path);
        // What needs no data gets its temporary name while it is looked at.
        if entry.kind != Kind::Directory && entry.bytes == 0 {
            self.journal.into_directory(directory);
        }
        let (verdict, sink) = self.place.check(file, entry);
        if let Some(sink) = sink {
            if !self.session.options.inplace {
                self.journal.into_directory(directory);
            }
            if sink.parent.device != self.place.base().device {
                self.ensure_writers(sink.parent.device);
            }
            self.begin_journal(&sink, matches!(verdict, Verdict::Resume(_)));
            lock(&self.sinks).insert(file, Arc::new(sink));
        }
        verdict
    }

    fn begin_journal(&self, sink: &SinkFile, resumed: bool) {
        // In place, nothing tells an unfinished file from a finished one.
        if sink.entry.bytes < LARGE_BYTES_MIN || self.session.options.inplace {
            return;
        }
        let number = self.journal.begin_file(&sink.entry.path, identity(&sink.entry), resumed);
        sink.journal_number.store(number, Ordering::SeqCst);
    }

    /// Records an extent that is written.
    pub fn record(&self, sink: &SinkFile, extent: &Extent) {
        sink.touch();
        let number = sink.journal_number.load(Ordering::SeqCst);
        if number > 0 {
            self.journal.written(number, extent.clone());
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
                writing::run(&end, device, number)
            }
        });
    }

    /// The next frame to be written to a device.
    pub fn next_received(&self, device: u64, timeout: Duration) -> Option<Received> {
        let mut queues = lock(&self.queues);
        let next = queues.get_mut(&device).and_then(VecDeque::pop_front);
        if next.is_some() || timeout.is_zero() {
            return next;
        }
        queues = wait(&self.queued, queues, timeout);
        queues.get_mut(&device).and_then(VecDeque::pop_front)
    }

    fn queue(&self, device: u64, received: Received) {
        lock(&self.queues).entry(device).or_default().push_back(received);
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

    fn received(
        &self,
        header: Header,
        buffer: Option<penstock_sys::buffer::Buffer>,
    ) -> io::Result<()> {
        if header.kind == FrameKind::Pack {
            let device = self.pack_device.load(Ordering::Relaxed);
            self.queue(device, Received { header, sink: None, buffer });
            return Ok(());
        }
        let place = lock(&self.machine).accept(header.file, header.offset, header.bytes);
        let place = place.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        match (place, self.sink(header.file)) {
            (Where::Write(_), Some(sink)) => {
                let device = sink.parent.device;
                self.queue(device, Received { header, sink: Some(sink), buffer });
            }
            _ => self.with_machine(|machine| machine.acknowledge(header.sequence)),
        }
        Ok(())
    }

    /// Puts whole files in place and keeps the journal true.
    fn commit(&self) {
        let (mut synced, mut settled) = (Instant::now(), Instant::now());
        let mut near = None;
        while !self.session.is_over() {
            let mut machine = lock(&self.machine);
            let complete = machine.is_complete();
            let worth_it = settled.elapsed() >= SHARE_WITHIN || machine.only_finishes();
            if !complete && !worth_it && synced.elapsed() < SYNC_EVERY {
                drop(wait(&self.commit, machine, Duration::from_millis(20)));
                continue;
            }
            let mut finishes: Vec<_> = std::iter::from_fn(|| machine.poll_finish()).collect();
            if finishes.is_empty() && !complete && synced.elapsed() < SYNC_EVERY {
                drop(wait(&self.commit, machine, Duration::from_millis(100)));
                continue;
            }
            drop(machine);
            if !finishes.is_empty() {
                self.settle(&mut finishes, &mut near);
                settled = Instant::now();
            }
            if complete {
                return self.finish();
            }
            if synced.elapsed() >= SYNC_EVERY {
                self.sync_unfinished();
                synced = Instant::now();
            }
        }
    }

    /// Syncs files together, renames them, and settles them, on a processor near their device; `near` is the last one.
    fn settle(&self, finishes: &mut Vec<Finish>, near: &mut Option<u64>) {
        let mut whole = Vec::with_capacity(finishes.len());
        let mut results = Vec::with_capacity(finishes.len());
        let mut small = 0;
        for finish in finishes.drain(..) {
            let Some(sink) = lock(&self.sinks).remove(&finish.file) else { continue };
            let device = sink.parent.device;
            if near.replace(device) != Some(device) {
                self.session.settle_near_files(device);
            }
            match self.prepare(&finish, &sink) {
                Ok(is_small) => {
                    small += usize::from(is_small);
                    whole.push((finish, sink));
                }
                Err(failure) => {
                    self.place.discard(&sink);
                    results.push((finish, sink, Err(failure)));
                }
            }
        }
        let all = if small >= SYNC_ALL_FROM { self.place.sync() } else { Ok(()) };
        for (finish, sink) in whole {
            let result = match &all {
                Err(error) => Err(destination(error)),
                Ok(()) => self.put_in_place(&finish, &sink, small >= SYNC_ALL_FROM),
            };
            results.push((finish, sink, result));
        }
        for (_, sink, _) in &results {
            self.journal.end_file(sink.journal_number.load(Ordering::SeqCst));
        }
        self.with_machine(|machine| {
            for (finish, _, result) in results {
                machine.settle(finish.file, result.map(|()| finish.digest));
            }
        });
    }

    /// Checks a whole file and gives it its metadata; whether it still needs a sync of its own.
    fn prepare(&self, finish: &Finish, sink: &SinkFile) -> Result<bool, Failure> {
        if finish.same {
            self.place.refresh(sink).map_err(|error| destination(&error))?;
            return Ok(false);
        }
        self.check_serial(finish, sink)?;
        if sink.is_open() {
            let file = self.place.complete(sink).map_err(|error| destination(&error))?;
            fs::sync_data(&file).map_err(|error| destination(&error))?;
            if self.session.options.readback {
                self.read_back(finish, sink)?;
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn put_in_place(&self, finish: &Finish, sink: &SinkFile, synced: bool) -> Result<(), Failure> {
        if finish.same {
            return Ok(());
        }
        if !sink.is_open() {
            let sync = || -> io::Result<()> {
                if !synced {
                    fs::sync_data(&sink.reopen()?)?;
                }
                Ok(())
            };
            sync().map_err(|error| destination(&error))?;
            if self.session.options.readback {
                self.read_back(finish, sink)?;
            }
        }
        self.place.rename(sink).map_err(|error| destination(&error))
    }

    /// Finishes a digest that needs file order, and compares it with the sender's.
    fn check_serial(&self, finish: &Finish, sink: &SinkFile) -> Result<(), Failure> {
        let Some(mut serial) = lock(&sink.serial).take() else { return Ok(()) };
        if serial.next() < sink.entry.bytes {
            sink.reopen()
                .and_then(|file| catch_up(&mut serial, &file, sink.entry.bytes))
                .map_err(|error| destination(&error))?;
        }
        if serial.finish() == finish.digest { Ok(()) } else { Err(damaged()) }
    }

    /// Reads a file again, from its device where the page cache lets go of it.
    fn read_back(&self, finish: &Finish, sink: &SinkFile) -> Result<(), Failure> {
        let digest = sink.reopen().and_then(|file| {
            fs::drop_cache(&file, 0, sink.entry.bytes)?;
            digest_file(&file, self.session.options.algorithm, &mut vec![0; 1 << 20])
        });
        match digest.map_err(|error| destination(&error))? {
            Some(digest) if digest != finish.digest => Err(damaged()),
            _ => Ok(()),
        }
    }

    fn sync_unfinished(&self) {
        let length = self.journal.length();
        let sinks: Vec<_> = lock(&self.sinks).values().cloned().collect();
        let mut any = false;
        for sink in sinks {
            if let Some(file) = sink.take_dirty() {
                any = true;
                if let Err(error) = fs::sync_data(&file) {
                    self.with_machine(|machine| machine.fail(sink.file, destination(&error)));
                    return;
                }
            }
        }
        if any {
            self.journal.synced(length);
        }
    }

    /// Everything is settled: directories get their metadata, names become durable, the journal goes.
    fn finish(&self) {
        // Before directories get their times.
        self.place.remove_leftovers();
        self.place.sweep(self.journal.earlier_directories());
        let failures = self.place.finish_directories();
        let synced = self.place.sync();
        if let Err(error) = synced {
            let text = format!("cannot make names durable: {}", fs::describe(&error));
            return self.session.end(Ending::Failed(text));
        }
        self.journal.remove();
        let report = self.session.report();
        self.pass_warnings();
        self.with_machine(|machine| {
            machine.report(report);
            for (path, failure) in failures {
                machine.note_failure(path, failure);
            }
            machine.finished();
        });
    }

    /// Tells both ends what did not come with its entry.
    fn pass_warnings(&self) {
        let warnings = self.place.take_warnings();
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

fn damaged() -> Failure {
    let text = "what is at the destination is not what was read at the source: copy it again";
    Failure::new(FailureKind::Integrity, text)
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
