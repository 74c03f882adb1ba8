//! Driver of a control connection: moves messages between an endpoint and its link until the session is
//! over or the connection is lost.
//!
//! One thread, one poll. The endpoint is never called with a lock held and never blocks.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use penstock_protocol::control::REPORT_INTERVAL;
use penstock_protocol::link::ControlLink;
use penstock_protocol::receiver::SenderFault;
use penstock_protocol::sender::ReceiverFault;
use penstock_protocol::wire::WireError;
use penstock_sys::event::{self, EventFd, Interest};

use crate::net::channel::Channel;

/// Bytes handed to the connection at a time.
const TRANSMIT_BYTES: usize = 256 * 1024;

/// Time limit for confirmation of the last messages.
const LAST_CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(3);

/// Message of the peer that breaks the protocol.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolFault {
    /// The message cannot be decoded.
    #[error(transparent)]
    Malformed(#[from] WireError),
    /// The sender's message does not fit the state of the transfer.
    #[error(transparent)]
    Sender(#[from] SenderFault),
    /// The receiver's message does not fit the state of the transfer.
    #[error(transparent)]
    Receiver(#[from] ReceiverFault),
}

/// End of a session as its control connection sees it.
pub trait ControlEndpoint: Sync {
    /// True if the end produces no more messages than those queued.
    fn is_over(&self) -> bool;
    /// Event file descriptor (eventfd), signalled when a message may be ready.
    fn wake(&self) -> &EventFd;
    /// Returns the next encoded message to send.
    fn poll_message(&self) -> Option<Vec<u8>>;
    /// Handles an encoded message of the peer.
    ///
    /// # Errors
    /// If it violates the protocol; the session then fails with this text.
    fn on_message(&self, message: &[u8]) -> Result<(), ProtocolFault>;
    /// Called every [`REPORT_INTERVAL`] while the connection is open.
    fn tick(&self);
}

/// Reason for which driving a control connection ended.
#[derive(Debug)]
pub(crate) enum DriveEnd {
    /// The session is over and the peer knows it.
    Over,
    /// The connection is lost; the session may continue on another.
    Lost(String),
    /// The peer violated the protocol; the session fails.
    Fault(String),
}

/// Drives `channel` until the session is over or the connection is lost.
pub(crate) fn drive(
    end: &dyn ControlEndpoint,
    link: &mut ControlLink,
    channel: &mut Channel,
    clock: Instant,
) -> DriveEnd {
    let mut driver = Driver { end, link, channel, clock, out: Vec::new(), written: 0 };
    match driver.run() {
        Ok(stopped) => stopped,
        Err(error) => DriveEnd::Lost(error.to_string()),
    }
}

struct Driver<'a> {
    end: &'a dyn ControlEndpoint,
    link: &'a mut ControlLink,
    channel: &'a mut Channel,
    clock: Instant,
    out: Vec<u8>,
    written: usize,
}

impl Driver<'_> {
    fn run(&mut self) -> io::Result<DriveEnd> {
        self.channel.transport().set_nonblocking(true)?;
        let mut next_tick = Instant::now();
        let mut over_since = None;
        loop {
            if Instant::now() >= next_tick {
                self.end.tick();
                next_tick = Instant::now() + REPORT_INTERVAL;
            }
            while self.link.has_room() {
                let Some(message) = self.end.poll_message() else { break };
                self.link.send(message);
            }
            if let Err(error) = self.transmit() {
                return Ok(DriveEnd::Lost(error.to_string()));
            }
            if self.end.is_over() {
                let since = *over_since.get_or_insert_with(Instant::now);
                let is_confirmed = self.link.is_settled() && self.out.is_empty();
                if is_confirmed || since.elapsed() > LAST_CONFIRMATION_TIMEOUT {
                    self.channel.finish_writing();
                    return Ok(DriveEnd::Over);
                }
            }
            let wait = next_tick.saturating_duration_since(Instant::now());
            let pending = !self.out.is_empty() || self.channel.wants_write();
            let interest = Interest { read: true, write: pending };
            let fds = [
                (self.channel.transport().as_fd(), interest),
                (self.end.wake().as_fd(), Interest::READ),
            ];
            let ready = event::poll(&fds, Some(wait.min(Duration::from_millis(500))))?;
            if ready[1].any() {
                self.end.wake().drain()?;
            }
            if !ready[0].any() {
                continue;
            }
            match self.receive() {
                Ok(None) => {}
                Ok(Some(stopped)) => return Ok(stopped),
                // After the end of the session the peer may disconnect.
                Err(_) if self.end.is_over() => return Ok(DriveEnd::Over),
                Err(error) => return Err(error),
            }
        }
    }

    fn transmit(&mut self) -> io::Result<()> {
        loop {
            if self.out.is_empty() {
                let now = self.clock.elapsed();
                self.link
                    .transmit(now, TRANSMIT_BYTES, &mut self.out)
                    .map_err(|error| io::Error::new(io::ErrorKind::TimedOut, error))?;
                if self.out.is_empty() {
                    break;
                }
            }
            match self.channel.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.written == self.out.len() {
                self.out.clear();
                self.written = 0;
            }
        }
        match self.channel.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn receive(&mut self) -> io::Result<Option<DriveEnd>> {
        let mut buffer = [0; 64 * 1024];
        loop {
            let count = match self.channel.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let messages = match self.link.receive(&buffer[..count], self.clock.elapsed()) {
                Ok(messages) => messages,
                Err(error) => return Ok(Some(DriveEnd::Fault(error.to_string()))),
            };
            for message in messages {
                if let Err(fault) = self.end.on_message(&message) {
                    return Ok(Some(DriveEnd::Fault(fault.to_string())));
                }
            }
        }
    }
}
