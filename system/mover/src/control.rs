//! Drives one control connection: messages of an end onto the link and off it, until the session is
//! over or the connection is lost.
//!
//! One thread, one poll. The end is never called with a lock held and never blocks.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use penstock_protocol::control::REPORT_INTERVAL;
use penstock_protocol::link::ControlLink;
use penstock_sys::event::{self, Event, Interest};

use crate::channel::Channel;

/// Bytes of messages put on the connection at a time.
const TRANSMIT_BYTES: usize = 256 * 1024;

/// How long the last messages may take to be confirmed.
const LINGER: Duration = Duration::from_secs(3);

/// One end of a session, as its control connection sees it.
pub trait End: Sync {
    /// Whether there is nothing more to say but what is queued.
    fn is_over(&self) -> bool;
    /// Signalled when there may be a message to send.
    fn wake(&self) -> &Event;
    /// The next message to send.
    fn poll_message(&self) -> Option<Vec<u8>>;
    /// Takes a message.
    ///
    /// # Errors
    /// When it makes no sense; the session then fails with this text.
    fn on_message(&self, message: &[u8]) -> Result<(), String>;
    /// Called about once a second.
    fn tick(&self);
}

/// Why a control connection is no longer driven.
#[derive(Debug)]
pub enum Stopped {
    /// The session is over and the peer knows.
    Over,
    /// The connection is lost; the session may go on with another.
    Lost(String),
    /// The peer makes no sense; the session cannot go on.
    Fault(String),
}

/// Drives `channel` until the session is over or the connection lost.
pub fn drive(
    end: &dyn End,
    link: &mut ControlLink,
    channel: &mut Channel,
    clock: Instant,
) -> Stopped {
    let mut driver = Driver { end, link, channel, clock, out: Vec::new(), written: 0 };
    match driver.run() {
        Ok(stopped) => stopped,
        Err(error) => Stopped::Lost(error.to_string()),
    }
}

struct Driver<'a> {
    end: &'a dyn End,
    link: &'a mut ControlLink,
    channel: &'a mut Channel,
    clock: Instant,
    out: Vec<u8>,
    written: usize,
}

impl Driver<'_> {
    fn run(&mut self) -> io::Result<Stopped> {
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
                return Ok(Stopped::Lost(error.to_string()));
            }
            if self.end.is_over() {
                let since = *over_since.get_or_insert_with(Instant::now);
                let said = self.link.is_settled() && self.out.is_empty();
                if said || since.elapsed() > LINGER {
                    self.channel.finish_writing();
                    return Ok(Stopped::Over);
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
                // After its end the peer may go without another word.
                Err(_) if self.end.is_over() => return Ok(Stopped::Over),
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

    fn receive(&mut self) -> io::Result<Option<Stopped>> {
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
                Err(error) => return Ok(Some(Stopped::Fault(error.to_string()))),
            };
            for message in messages {
                if let Err(fault) = self.end.on_message(&message) {
                    return Ok(Some(Stopped::Fault(fault)));
                }
            }
        }
    }
}
