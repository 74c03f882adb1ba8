//! The way to an agent: connections to its port and the first words on them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_protocol::open::{
    Answer, Join, Mark, Open, Opened, Protection, Reconnect, Refusal, RefusalKind, Request,
};
use penstock_protocol::preamble::{ConnectionKind, Preamble, PreambleError};
use penstock_protocol::proof::{Nonces, SessionKey};
use rustls::ClientConfig;

use crate::agent::software;
use crate::channel::Channel;
use crate::dial::Dial;
use crate::exchange::{self, Joined, random};
use crate::identity::{Fingerprint, tls_client_config_of_any};
use crate::session::DEAD_AFTER;

/// How long a first exchange may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Pause after the first attempt that fails.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Why a transfer did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CopyError {
    /// The other end says no.
    #[error("{0} refuses: {text}", text = .1.text)]
    Refused(String, Refusal),
    /// The other end cannot be reached, or not any more.
    #[error("cannot reach {0}: {1}")]
    Unreachable(String, String),
    /// The certificate is not the expected one.
    #[error(
        "{0} shows another certificate than expected: if it was renewed, run `penstock login` again"
    )]
    Certificate(String),
    /// Somebody stopped it.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The agent does not know the session any more.
    #[error("{0} has forgotten the session")]
    Forgotten(String),
    /// It cannot go on.
    #[error("{0}")]
    Failed(String),
}

impl CopyError {
    /// Whether the agent has reached its limits for now.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(_, refusal) if refusal.kind == RefusalKind::Busy)
    }

    /// Whether another attempt may do better, once there was a session.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.is_busy() || matches!(self, Self::Unreachable(..))
    }
}

/// Pauses between attempts, each twice as long as the one before.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(PAUSE_MIN)
    }
}

impl Backoff {
    /// Waits before the next attempt.
    pub fn pause(&mut self) {
        std::thread::sleep(self.next());
    }

    fn next(&mut self) -> Duration {
        let longer = (self.0 * 2).min(PAUSE_MAX);
        std::mem::replace(&mut self.0, longer)
    }
}

/// An agent as its client knows it.
#[derive(Clone)]
pub struct Contact {
    /// The way to it.
    pub dial: Arc<dyn Dial>,
    /// TLS that accepts it and nobody else.
    pub tls: Arc<ClientConfig>,
    /// Token for it; empty where a certificate or a session's key says enough.
    pub token: String,
    /// How data streams are protected.
    pub protection: Protection,
    /// How long to try without any success.
    pub give_up_after: Duration,
}

impl std::fmt::Debug for Contact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contact").field("to", &self.dial.shown()).finish_non_exhaustive()
    }
}

impl Contact {
    /// Where it is, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        self.dial.shown()
    }

    fn connect(
        &self,
        kind: ConnectionKind,
        number: u32,
        mark: Option<Mark>,
    ) -> io::Result<(Channel, String)> {
        let tls = kind == ConnectionKind::Control || self.protection == Protection::Full;
        let (mut transport, label) = match kind {
            ConnectionKind::Control => (self.dial.dial_control()?, String::new()),
            _ => self.dial.dial(number, mark)?,
        };
        transport.set_timeouts(Some(ANSWER_WITHIN))?;
        exchange::send_preamble(&mut transport, Preamble { kind, tls })?;
        let channel = if tls {
            Channel::connect_tls(transport, Arc::clone(&self.tls))?
        } else {
            Channel::clear(transport)
        };
        Ok((channel, label))
    }

    /// Where a connection leads, for people: the address too, where the name says something else.
    fn shown_at(&self, channel: &Channel) -> String {
        let (shown, peer) = (self.shown(), channel.transport().peer());
        match channel.transport().peer_address() {
            Some(_) if peer != shown => format!("{shown} ({peer})"),
            _ => shown,
        }
    }

    fn ask(&self, request: Request) -> Result<(Channel, Answer), CopyError> {
        let shown = self.shown();
        let failed = |error: io::Error| match error.kind() {
            // The kernel's refusals have a number, that of a certificate has none.
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
                CopyError::Certificate(shown.clone())
            }
            io::ErrorKind::InvalidInput => CopyError::Failed(error.to_string()),
            io::ErrorKind::InvalidData if is_stranger(&error) => {
                // Worth another try once a session was there: a bit may have flipped on the way.
                CopyError::Unreachable(shown.clone(), error.to_string())
            }
            io::ErrorKind::InvalidData => {
                let text = "it does not speak this version of Penstock's protocol on that port";
                CopyError::Unreachable(shown.clone(), format!("{text} ({error})"))
            }
            _ => CopyError::Unreachable(shown.clone(), penstock_sys::fs::describe(&error)),
        };
        let (mut channel, _) = self.connect(ConnectionKind::Control, 0, None).map_err(failed)?;
        let open =
            Open { software: software(), token: self.token.clone(), features: Vec::new(), request };
        let answer = exchange::ask(&mut channel, &open).map_err(failed)?;
        channel.transport().notice_death(DEAD_AFTER).map_err(failed)?;
        Ok((channel, answer))
    }

    fn nonsense(&self) -> CopyError {
        CopyError::Failed(format!("{} answers what was not asked", self.shown()))
    }

    /// Opens a session.
    ///
    /// # Errors
    /// When the agent refuses or cannot be reached.
    pub fn open(&self, request: Request) -> Result<(Channel, Opened), CopyError> {
        match self.ask(request)? {
            (channel, Answer::Opened(opened)) => Ok((channel, opened)),
            (channel, Answer::Refused(refusal)) => {
                Err(CopyError::Refused(self.shown_at(&channel), refusal))
            }
            (_, Answer::Reconnected(_) | Answer::Known(_)) => Err(self.nonsense()),
        }
    }

    /// Asks the agent by what name it knows whoever has this token, or the certificate in `tls`.
    ///
    /// # Errors
    /// When it is out of reach, is another one, or knows nobody of that kind.
    pub fn check(&self) -> Result<String, CopyError> {
        match self.ask(Request::Check(()))? {
            (_, Answer::Known(name)) => Ok(name),
            (channel, Answer::Refused(refusal)) => {
                Err(CopyError::Refused(self.shown_at(&channel), refusal))
            }
            _ => Err(self.nonsense()),
        }
    }

    /// Comes back to a session after `received` messages of the agent, once; gives how many it has
    /// received. `None` when it has forgotten the session.
    ///
    /// # Errors
    /// When the agent refuses or cannot be reached.
    pub fn return_to(
        &self,
        opened: &Opened,
        received: u64,
    ) -> Result<Option<(Channel, u64)>, CopyError> {
        let back = Reconnect { session: opened.session, key: opened.key, received };
        match self.ask(Request::Reconnect(back))? {
            (channel, Answer::Reconnected(received)) => Ok(Some((channel, received))),
            (_, Answer::Refused(refusal)) if refusal.kind == RefusalKind::UnknownSession => {
                Ok(None)
            }
            (channel, Answer::Refused(refusal)) => {
                Err(CopyError::Refused(self.shown_at(&channel), refusal))
            }
            (_, Answer::Opened(_) | Answer::Known(_)) => Err(self.nonsense()),
        }
    }

    /// As [`Contact::return_to`], tried until it succeeds, `is_over` says that nobody needs it, or it
    /// took too long.
    ///
    /// # Errors
    /// When the agent refuses, or stays out of reach.
    pub fn come_back(
        &self,
        opened: &Opened,
        received: u64,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<(Channel, u64)>, CopyError> {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            match self.return_to(opened, received) {
                Err(error) if error.may_pass() && start.elapsed() <= self.give_up_after => {}
                settled => return settled,
            }
            if is_over() {
                return Ok(None);
            }
            backoff.pause();
        }
    }

    /// Joins a session with a data connection; with a mark, what this end sends on it is labelled, and how
    /// is told.
    ///
    /// # Errors
    /// When the agent refuses or cannot be reached.
    pub fn join(
        &self,
        opened: &Opened,
        stream: u32,
        mark: Option<Mark>,
    ) -> io::Result<(Channel, Nonces, String)> {
        let (mut channel, label) = self.connect(ConnectionKind::Data, stream, mark)?;
        let nonces =
            Nonces { acceptor: exchange::receive_challenge(&mut channel)?, connector: random() };
        let key = SessionKey(opened.key);
        let join = Join {
            session: opened.session,
            stream,
            nonce: nonces.connector,
            proof: key.join_proof(&opened.session, stream, &nonces),
        };
        match exchange::join(&mut channel, &join)? {
            Joined::Yes => {}
            Joined::TooMany => {
                let text = "stream refused: the agent has as many as it takes";
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
            }
            refused => return Err(io::Error::other(format!("stream refused: {refused:?}"))),
        }
        channel.transport().set_timeouts(None)?;
        channel.transport().notice_death(DEAD_AFTER)?;
        Ok((channel, nonces, label))
    }
}

/// Which of these certificates the agent shows to which `dial` leads; nothing but the handshake is done.
///
/// # Errors
/// When nobody answers, or with another certificate.
pub fn certificate_of(dial: &dyn Dial, known: Vec<Fingerprint>) -> io::Result<Fingerprint> {
    let tls = tls_client_config_of_any(known).map_err(io::Error::other)?;
    let mut transport = dial.dial_control()?;
    transport.set_timeouts(Some(ANSWER_WITHIN))?;
    let preamble = Preamble { kind: ConnectionKind::Control, tls: true };
    exchange::send_preamble(&mut transport, preamble)?;
    let mut channel = Channel::connect_tls(transport, tls)?;
    let shown = channel.peer_fingerprint();
    channel.finish_writing();
    shown.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether the peer is a penstock of another version, or no penstock.
fn is_stranger(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<PreambleError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_two_seconds() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
    }
}
