//! Sending end of a session: scanner, readers and streams around the sending state machine.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_protocol::block::FrameKind;
use penstock_protocol::control::{Placed, Settings, Settled, ToReceiver, ToSender, TransferTally};
use penstock_protocol::digest::Digest;
use penstock_protocol::list::PathList;
use penstock_protocol::proof::Authenticator;
use penstock_protocol::sender::StreamId;
use penstock_protocol::wire;
use penstock_sys::buffer::Buffer;
use penstock_sys::event::EventFd;

use crate::base::engine::Engine;
use crate::base::lock::{lock, wait};
use crate::base::spawn::spawn;
use crate::base::timeouts::PEER_TIMEOUT;
use crate::net::channel::Channel;
use crate::net::frame::{FramePayload, FrameWriter};
use crate::session::control::{ControlEndpoint, ProtocolFault};
use crate::session::meter::add_since;
use crate::session::outcome::SessionOutcome;
use crate::session::state::Session;
use crate::source::reader;
use crate::source::scan::{Missing, ScanRoot};
use crate::source::scanner::{self, ScanPlan, SourceSelection};
use crate::source::work::{ReadyBlock, SourceWork};

/// Sending end of one session.
#[derive(Debug)]
pub struct SenderEnd {
    /// State shared with scanner and readers.
    pub(crate) work: Arc<SourceWork>,
    plan: ScanPlan,
}

impl SenderEnd {
    /// Creates an end that sends `sources`; [`SenderEnd::start`] starts it.
    #[must_use]
    pub fn new(session: Session, engine: Engine, sources: Vec<ScanRoot>, recursive: bool) -> Self {
        let work = Arc::new(SourceWork::new(session, engine, sources));
        let selection = SourceSelection::All;
        Self { work, plan: ScanPlan { recursive, missing: Vec::new(), selection } }
    }

    /// State common to both kinds of end.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.work.session
    }

    /// Sends only the paths that the receiver requests below the one source.
    #[must_use]
    pub fn listed(mut self) -> Self {
        self.plan.selection = SourceSelection::Requested;
        lock(&self.work.machine).expect_list();
        self
    }

    /// Sends only the paths of `list` below the one source.
    #[must_use]
    pub fn listed_here(mut self, list: Arc<PathList>) -> Self {
        self.plan.selection = SourceSelection::Listed(list);
        self
    }

    /// Reports missing sources as failed.
    #[must_use]
    pub fn missing(mut self, missing: Vec<Missing>) -> Self {
        self.plan.missing = missing;
        self
    }

    /// Starts the scanner, which starts readers as it finds devices.
    pub fn start(&self) {
        let (work, plan) = (Arc::clone(&self.work), self.plan.clone());
        spawn("scan", move || scanner::run(&work, &plan));
    }

    /// Counters of the session so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        lock(&self.work.machine).tally().clone()
    }

    /// Collects committed files for [`SenderEnd::take_placed`]; with `digest_skipped`, skipped files
    /// are read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        lock(&self.work.machine).keep_placed(digest_skipped);
    }

    /// Returns the files committed since the last call.
    pub fn take_placed(&self) -> Vec<Placed> {
        lock(&self.work.machine).take_placed()
    }

    /// Collects final results for [`SenderEnd::take_settled`].
    pub fn keep_account(&self) {
        lock(&self.work.machine).keep_account();
    }

    /// Returns the final results since the last call.
    pub fn take_settled(&self) -> Vec<Settled> {
        lock(&self.work.machine).take_settled()
    }

    /// Sets required digests, by path.
    #[must_use]
    pub fn expecting(self, digests: HashMap<Vec<u8>, Digest>) -> Self {
        lock(&self.work.machine).expect(digests);
        self
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
        if !self.work.session.add_stream(stream, channel.transport())? {
            return Ok(());
        }
        if let Some(fireflies) = &self.work.session.fireflies {
            fireflies.begin(stream, channel.transport());
        }
        let mut writer = FrameWriter::new(channel, authenticator);
        if writer.is_rdma() {
            self.work.sends_by_rdma.store(true, Ordering::Relaxed);
        }
        let mut result = self.send_blocks(stream, &mut writer, wanted);
        if result.is_ok() {
            result = writer.finish();
        }
        if result.is_ok() {
            self.work.session.finish_stream(stream);
            result = self.await_written(stream);
        }
        if let Some(fireflies) = &self.work.session.fireflies {
            fireflies.end(stream);
        }
        self.work.session.remove_stream(stream);
        if result.is_err() {
            self.work.sent_buffers.discard(stream);
            let repeated = lock(&self.work.machine).stream_lost(stream);
            self.work.work.notify_all();
            if !self.work.session.is_over() {
                let meter = &self.work.session.meter;
                meter.repeated.fetch_add(repeated as u64, Ordering::Relaxed);
                meter.streams_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }

    /// Waits until all data of a closed stream is acknowledged.
    fn await_written(&self, stream: StreamId) -> io::Result<()> {
        let start = Instant::now();
        let mut machine = lock(&self.work.machine);
        while machine.has_unacknowledged(stream) && !self.work.session.is_over() {
            if start.elapsed() > PEER_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.work.session.is_broken(stream) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            machine = wait(&self.work.work, machine, Duration::from_millis(100));
        }
        Ok(())
    }

    fn send_blocks(
        &self,
        stream: StreamId,
        writer: &mut FrameWriter,
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        let (session, meter) = (&self.work.session, &self.work.session.meter);
        while !session.is_over() && wanted() {
            let start = Instant::now();
            let block = self.work.ready.pop(Duration::from_millis(100));
            add_since(&meter.waited_storage_us, start);
            let Some(ReadyBlock { work, header, buffer, hash }) = block else {
                writer.check_open()?;
                continue;
            };
            let payload_bytes = header.payload_bytes as usize;
            let buffer = buffer.map(Arc::new);
            let payload = match &buffer {
                None => FramePayload::Bytes(&[]),
                Some(buffer) if writer.is_rdma() => {
                    FramePayload::Block(buffer, payload_bytes, self.blocks_held_max())
                }
                Some(buffer)
                    if writer.sends_pages(payload_bytes)
                        && self.hold_until_written(header.sequence, stream, buffer) =>
                {
                    FramePayload::Pages(buffer, payload_bytes)
                }
                Some(buffer) => FramePayload::Bytes(&buffer[..payload_bytes]),
            };
            match header.kind {
                FrameKind::Hole => lock(&self.work.machine).sent_hole(stream, work),
                _ => lock(&self.work.machine).sent(stream, work),
            }
            let start = Instant::now();
            let paused = meter.waited_rate_us.load(Ordering::Relaxed);
            // Counted per part: at a low rate one block takes longer than the interval between two rate
            // samples.
            let counted = Cell::new(0);
            let count = |bytes: usize| {
                let bytes = bytes.min(payload_bytes - counted.get());
                counted.set(counted.get() + bytes);
                meter.network_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            };
            let part = session.part_bytes();
            writer.write(&header, payload, hash.as_ref(), part, |channel, bytes| {
                session.wait_for_pace(bytes, channel)?;
                count(bytes);
                Ok(())
            })?;
            count(payload_bytes);
            if meter.waited_rate_us.load(Ordering::Relaxed) == paused {
                add_since(&meter.waited_network_us, start);
            }
        }
        Ok(())
    }

    /// Most blocks that one RDMA stream holds: all streams together half of the pool, as the other half stays with the
    /// readers.
    fn blocks_held_max(&self) -> usize {
        let streams = usize::from(self.work.session.stream_count());
        self.work.session.pool.limit() / 2 / streams.max(1)
    }

    /// Holds a buffer until its frame is acknowledged, if at most half of the blocks that may be in use are held: the
    /// other half stays with the readers.
    fn hold_until_written(&self, sequence: u64, stream: StreamId, buffer: &Arc<Buffer>) -> bool {
        let limit = self.work.blocks_in_use_max() / 2;
        self.work.sent_buffers.try_hold(sequence, stream, buffer, limit)
    }

    /// Cancels the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        lock(&self.work.machine).cancel(reason);
        self.work.session.end(SessionOutcome::Cancelled(reason.to_owned()));
    }

    /// Starts the missing readers of every device.
    fn start_readers(&self) {
        let devices: Vec<_> = lock(&self.work.machine).devices().collect();
        devices.into_iter().for_each(|device| reader::spawn_missing(&self.work, device));
    }

    /// Applies settings to this end.
    pub fn apply(&self, settings: &Settings) {
        self.work.session.apply(settings);
        if let Some(readers) = settings.readers {
            self.work.readers.size.set(readers);
            self.start_readers();
        }
        if let Some(writers) = settings.writers {
            self.work.writers.set(writers);
        }
    }
}

/// Sending end as driven by a control connection.
#[derive(Debug, Clone)]
pub struct SenderControl(pub Arc<SenderEnd>);

impl ControlEndpoint for SenderControl {
    fn is_over(&self) -> bool {
        self.0.work.session.is_over()
    }

    fn wake(&self) -> &EventFd {
        &self.0.work.session.wake
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        if let Some(settings) = self.0.work.session.take_settings_for_peer() {
            return Some(wire::encode(&ToReceiver::Settings(settings)));
        }
        let mut machine = lock(&self.0.work.machine);
        if machine.wants_last_report() {
            machine.report(self.0.work.session.report());
        }
        machine.poll_message().as_ref().map(wire::encode)
    }

    fn on_message(&self, message: &[u8]) -> Result<(), ProtocolFault> {
        let message: ToSender = wire::decode(message)?;
        let end = &self.0;
        match &message {
            ToSender::Report(report) => end.work.session.set_peer(report.clone()),
            ToSender::Settings(settings) => end.apply(settings),
            ToSender::Cancel(reason) => {
                end.work.session.end(SessionOutcome::Cancelled(reason.clone()))
            }
            _ => {}
        }
        let written = match &message {
            ToSender::Written(frames) => frames.clone(),
            _ => Vec::new(),
        };
        let mut machine = lock(&end.work.machine);
        machine.on_message(message)?;
        end.work.sent_buffers.release(&written);
        if machine.is_finished() {
            end.work.session.end(SessionOutcome::Finished);
        }
        drop(machine);
        end.work.work.notify_all();
        end.work.room.notify_all();
        Ok(())
    }

    fn tick(&self) {
        self.0.start_readers();
        if let Some(fireflies) = &self.0.work.session.fireflies {
            fireflies.tick();
        }
        self.0.work.session.break_silent_streams();
        let report = self.0.work.session.report();
        lock(&self.0.work.machine).report(report);
    }
}
