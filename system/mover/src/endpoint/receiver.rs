//! Receiving end of a session: planner, streams, writers and committer around the receiving state
//! machine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use penstock_protocol::block::FrameKind;
use penstock_protocol::control::{Placed, Settings, ToReceiver, ToSender, TransferTally};
use penstock_protocol::proof::Authenticator;
use penstock_protocol::sender::StreamId;
use penstock_protocol::wire;
use penstock_sys::event::EventFd;

use crate::base::engine::Engine;
use crate::base::spawn::spawn;
use crate::net::channel::Channel;
use crate::net::frame::FrameReader;
use crate::session::control::{ControlEndpoint, ProtocolFault};
use crate::session::meter::add_since;
use crate::session::outcome::SessionOutcome;
use crate::session::state::Session;
use crate::sink::committer::Committer;
use crate::sink::destination::Destination;
use crate::sink::planner;
use crate::sink::work::SinkWork;
use crate::sink::writer;

/// Receiving end of one session.
#[derive(Debug)]
pub struct ReceiverEnd {
    /// State shared with planner, writers and committer.
    pub(crate) work: Arc<SinkWork>,
}

impl ReceiverEnd {
    /// Creates an end that writes to `destination`; [`ReceiverEnd::start`] starts it.
    #[must_use]
    pub fn new(session: Session, engine: Engine, destination: Destination) -> Self {
        Self { work: Arc::new(SinkWork::new(session, engine, destination)) }
    }

    /// State common to both kinds of end.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.work.session
    }

    /// Starts planner and committer; writers start when their device is found.
    pub fn start(&self) {
        writer::spawn_missing(&self.work, self.work.destination.base().device);
        let work = Arc::clone(&self.work);
        spawn("plan", move || planner::run(&work));
        let work = Arc::clone(&self.work);
        spawn("commit", move || Committer::new(&work, Instant::now()).run());
    }

    /// Counters of the session so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        self.work.machine.lock().tally().clone()
    }

    /// Collects committed files for [`ReceiverEnd::take_placed`]; with `digest_skipped`, skipped files
    /// are read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        self.work.machine.lock().keep_placed();
        self.work.destination.digest_skipped.store(digest_skipped, Ordering::SeqCst);
    }

    /// Returns the files committed since the last call.
    pub fn take_placed(&self) -> Vec<Placed> {
        self.work.machine.lock().take_placed()
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
        if !self.work.session.add_stream(stream, channel.transport())? {
            return Ok(());
        }
        let mut reader = FrameReader::new(channel, authenticator);
        let result = self.receive_frames(&mut reader);
        if result.is_ok() {
            reader.channel().await_close();
        }
        self.work.session.remove_stream(stream);
        if let Err(error) = &result
            && !self.work.session.is_over()
        {
            // The sender must not continue to write into a broken stream.
            reader.channel().transport().shut_down();
            self.work.session.meter.streams_lost.fetch_add(1, Ordering::Relaxed);
            tracing::info!("stream {stream} broke: {error}");
        }
        result
    }

    fn receive_frames(&self, reader: &mut FrameReader) -> io::Result<()> {
        let meter = &self.work.session.meter;
        while !self.work.session.is_over() {
            let start = Instant::now();
            let header = reader.header()?;
            add_since(&meter.waited_network_us, start);
            let bytes = header.payload_bytes as usize;
            if bytes > self.work.session.pool.buffer_len() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "frame exceeds a block"));
            }
            let start = Instant::now();
            let buffer = match header.kind {
                FrameKind::End => {
                    return reader.payload(&header, &mut [], usize::MAX, |_, _| Ok(()));
                }
                FrameKind::Hole => None,
                FrameKind::Block | FrameKind::Pack => Some(self.work.session.pool.take()),
            };
            add_since(&meter.waited_storage_us, start);
            let mut buffer = match buffer {
                None => None,
                Some(Some(buffer)) => Some(buffer),
                // The pool is closed: the session is over.
                Some(None) => return Ok(()),
            };
            let payload = buffer.as_deref_mut().unwrap_or_default();
            let session = &self.work.session;
            // In parts: at a low rate the whole block would take minutes, in which the full window of a silent receiver
            // looks dead to the sender.
            reader.payload(
                &header,
                &mut payload[..bytes],
                session.part_bytes(),
                |channel, part| {
                    if session.shared_pace.is_some() {
                        session.wait_for_pace(part, channel)?;
                    }
                    meter.network_bytes.fetch_add(part as u64, Ordering::Relaxed);
                    Ok(())
                },
            )?;
            self.work.received(header, buffer)?;
        }
        Ok(())
    }

    /// Cancels the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        self.work.machine.lock().cancel(reason);
        self.work.session.end(SessionOutcome::Cancelled(reason.to_owned()));
    }

    /// Starts the missing writers of every device.
    fn start_writers(&self) {
        let devices = self.work.writers.devices();
        devices.into_iter().for_each(|device| writer::spawn_missing(&self.work, device));
    }

    /// Applies settings to this end.
    pub fn apply(&self, settings: &Settings) {
        self.work.session.apply(settings);
        if let Some(writers) = settings.writers {
            self.work.writers.size.set(writers);
            self.start_writers();
        }
    }
}

/// Receiving end as driven by a control connection.
#[derive(Debug, Clone)]
pub struct ReceiverControl(pub Arc<ReceiverEnd>);

impl ControlEndpoint for ReceiverControl {
    fn is_over(&self) -> bool {
        self.0.work.session.is_over()
    }

    fn wake(&self) -> &EventFd {
        &self.0.work.session.wake
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        if let Some(settings) = self.0.work.session.take_settings_for_peer() {
            return Some(wire::encode(&ToSender::Settings(settings)));
        }
        let mut machine = self.0.work.machine.lock();
        let message = machine.poll_message().as_ref().map(wire::encode);
        if machine.is_finished() {
            self.0.work.session.end(SessionOutcome::Finished);
        }
        message
    }

    fn on_message(&self, message: &[u8]) -> Result<(), ProtocolFault> {
        let message: ToReceiver = wire::decode(message)?;
        let end = &self.0;
        match &message {
            ToReceiver::Report(report) => end.work.session.set_peer(report.clone()),
            ToReceiver::Settings(settings) => end.apply(settings),
            ToReceiver::Cancel(reason) => {
                end.work.session.end(SessionOutcome::Cancelled(reason.clone()))
            }
            _ => {}
        }
        end.work.with_machine(|machine| machine.on_message(message))?;
        end.work.machine.wake_all();
        Ok(())
    }

    fn tick(&self) {
        self.0.start_writers();
        self.0.work.pass_warnings();
        let report = self.0.work.session.report();
        self.0.work.machine.lock().report(report);
    }
}
