//! Connections to an agent's port and their handshakes.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_identity::{Fingerprint, tls_client_config_of_any};
use penstock_protocol::open::{
    Answer, FEATURE_RDMA, FEATURE_TRANSPORT_AUTO, FEATURE_TRANSPORT_RDMA, Join, Mark, OpenRequest,
    Opened, Protection, Reconnect, Refusal, RefusalKind, Request, dscp_feature, dscp_of_features,
};
use penstock_protocol::preamble::{ConnectionKind, Preamble, PreambleError};
use penstock_protocol::proof::{Nonces, SessionKey};
use penstock_units::Dscp;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

use crate::base::software::software;
use crate::base::timeouts::{HANDSHAKE_TIMEOUT, PEER_TIMEOUT};
use crate::net::channel::Channel;
use crate::net::cleartext_networks::CleartextNetworks;
use crate::net::dial::Dial;
use crate::net::handshake::{self, Joined, random};
use crate::net::labels::Labelling;
use crate::net::rdma::{self, RdmaStreamError, RdmaStreamSettings};
use crate::net::transport::Transport;

/// Back-off after the first failed attempt.
const BACKOFF_INITIAL: Duration = Duration::from_millis(20);

/// Longest back-off between attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Error of a transfer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CopyError {
    /// The other end refuses.
    #[error("{0} refuses: {text}", text = .1.text)]
    Refused(String, Refusal),
    /// The other end is unreachable.
    #[error("cannot reach {0}: {1}")]
    Unreachable(String, String),
    /// The certificate is not the expected one.
    #[error(
        "{0} shows another certificate than expected: if it was renewed, run `penstock login` again"
    )]
    Certificate(String),
    /// Cancelled, for this reason.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The agent does not know the session.
    #[error("{0} does not know the session any more")]
    Forgotten(String),
    /// This end refuses.
    #[error("{}", .0.text)]
    RefusedHere(Refusal),
    /// The session failed, for the reason that either end states.
    #[error("{0}")]
    Session(String),
    /// The source of a copy between two agents failed, for the reason that it states.
    #[error("{agent}: {reason}")]
    Source {
        /// Display name of the source's agent.
        agent: String,
        /// Reason of the agent.
        reason: String,
    },
    /// The session was lost with its agent or its control connection.
    #[error("{0}")]
    SessionLost(String),
    /// The other end violates the protocol.
    #[error("{0}")]
    Protocol(String),
    /// The other end answers another request.
    #[error("{0} sent the answer to another request")]
    UnexpectedAnswer(String),
    /// The request cannot be sent as it is.
    #[error("{0}")]
    Request(Arc<io::Error>),
    /// The other end does not know of the requested DSCP.
    #[error("{0} runs an earlier release, which sets no DSCP: leave out --dscp")]
    DscpUnknown(String),
    /// RDMA was required and is not possible.
    #[error("{0}")]
    Rdma(String),
    /// An operation of this machine failed.
    #[error("{}", penstock_sys::fs::describe(.0))]
    Local(Arc<io::Error>),
    /// Storage of this machine still writes for the session before.
    #[error("the storage here has not finished the writes of the session before")]
    EarlierWrites,
    /// A thread of the transfer panicked.
    #[error("a thread of the transfer panicked")]
    Panicked,
    /// The caller cannot make its end of the copy.
    #[error("{0}")]
    Caller(Arc<dyn std::error::Error + Send + Sync>),
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Local(Arc::new(error))
    }
}

impl CopyError {
    /// Creates the error of a caller that cannot make its end of the copy.
    pub fn caller(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Caller(Arc::from(error.into()))
    }

    /// True if the agent has reached a limit for now.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(_, refusal) if refusal.kind == RefusalKind::Busy)
    }

    /// True if another attempt may succeed, once a session existed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.is_busy() || matches!(self, Self::Unreachable(..))
    }
}

/// Exponential back-off: pauses double up to two seconds.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF_INITIAL)
    }
}

impl Backoff {
    /// Sleeps before the next attempt.
    pub fn pause(&mut self) {
        std::thread::sleep(self.next());
    }

    fn next(&mut self) -> Duration {
        let longer = (self.0 * 2).min(BACKOFF_MAX);
        std::mem::replace(&mut self.0, longer)
    }
}

/// Transport of the data streams of a transfer, as its caller chooses it. RDMA needs [`Protection::Integrity`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportChoice {
    /// TCP.
    #[default]
    Tcp,
    /// RDMA; without it the transfer fails.
    Rdma,
    /// RDMA where both ends can, else TCP.
    Auto,
}

impl TransportChoice {
    /// All choices, the default first.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Rdma, Self::Auto];

    /// Name in configurations, requests and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Auto => "auto",
        }
    }

    /// Feature that asks the source's agent of a third-party copy for this choice; `None` for TCP.
    pub(crate) const fn feature(self) -> Option<&'static str> {
        match self {
            Self::Tcp => None,
            Self::Rdma => Some(FEATURE_TRANSPORT_RDMA),
            Self::Auto => Some(FEATURE_TRANSPORT_AUTO),
        }
    }

    /// Choice of the requester of a third-party copy with these features.
    pub(crate) fn of_features(features: &[String]) -> Self {
        let is_wished = |choice: &Self| {
            choice.feature().is_some_and(|name| features.iter().any(|feature| feature == name))
        };
        Self::ALL.into_iter().find(is_wished).unwrap_or_default()
    }
}

/// DSCP of the packets of data streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamDscp {
    /// DSCP that the user chose for the packets of both ends; the other end must accept it.
    pub requested: Option<Dscp>,
    /// DSCP of this end's packets where the user chose none.
    pub own: Dscp,
}

impl StreamDscp {
    /// DSCP of this end's packets.
    #[must_use]
    pub fn sent(self) -> Dscp {
        self.requested.unwrap_or(self.own)
    }

    /// True unless a requested one is missing in the features of a session, as with an agent of an earlier release.
    fn is_granted(self, features: &[String]) -> bool {
        self.requested.is_none() || dscp_of_features(features) == self.requested
    }
}

/// Data connection of a session at its connector.
#[derive(Debug)]
pub(crate) struct JoinedStream {
    pub(crate) channel: Channel,
    pub(crate) nonces: Nonces,
    /// Note of the packet labels.
    pub(crate) label: String,
}

/// Connector to an agent.
#[derive(Clone)]
pub struct PeerConnector {
    /// Dialer of its addresses.
    pub dial: Arc<dyn Dial>,
    /// TLS configuration that accepts this agent only.
    pub tls: Arc<ClientConfig>,
    /// Token; empty if a certificate or a session key suffices.
    pub token: String,
    /// Protection of data streams.
    pub protection: Protection,
    /// Transport of data streams.
    pub transport: TransportChoice,
    /// Networks in which RDMA may carry the data although it is to be encrypted.
    pub cleartext: CleartextNetworks,
    /// DSCP of data streams.
    pub dscp: StreamDscp,
    /// Time limit without any success.
    pub give_up_after: Duration,
}

impl std::fmt::Debug for PeerConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contact").field("to", &self.dial.shown()).finish_non_exhaustive()
    }
}

impl PeerConnector {
    /// Display name of the agent.
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
            _ => self.dial_data(number, mark)?,
        };
        transport.set_timeouts(Some(HANDSHAKE_TIMEOUT))?;
        handshake::send_preamble(&mut transport, Preamble { kind, tls })?;
        let channel = if tls {
            Channel::connect_tls(transport, Arc::clone(&self.tls))?
        } else {
            Channel::clear(transport)
        };
        Ok((channel, label))
    }

    /// Connects for a data stream.
    fn dial_data(&self, number: u32, mark: Option<Mark>) -> io::Result<(Transport, String)> {
        let (transport, label) = self.dial.dial(number, mark)?;
        transport.set_dscp(self.dscp.sent())?;
        Ok((transport, label))
    }

    /// Display name of a connection's peer, with its address if that differs.
    fn shown_at(&self, channel: &Channel) -> String {
        let (shown, peer) = (self.shown(), channel.transport().peer());
        match channel.transport().peer_address() {
            Some(_) if peer != shown => format!("{shown} ({peer})"),
            _ => shown,
        }
    }

    fn request(&self, request: Request, wishes: &[&str]) -> Result<(Channel, Answer), CopyError> {
        let shown = self.shown();
        let failed = |error: io::Error| match error.kind() {
            // Refusals of the kernel have an errno, that of a certificate has none.
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
                CopyError::Certificate(shown.clone())
            }
            io::ErrorKind::InvalidInput => CopyError::Request(Arc::new(error)),
            io::ErrorKind::InvalidData if is_other_protocol(&error) => {
                // Worth a retry once a session existed: a bit may have flipped on the path.
                CopyError::Unreachable(shown.clone(), error.to_string())
            }
            io::ErrorKind::InvalidData => {
                let text = "it does not speak this version of Penstock's protocol on that port";
                CopyError::Unreachable(shown.clone(), format!("{text} ({error})"))
            }
            kind => {
                let remedy = match kind {
                    io::ErrorKind::ConnectionRefused => {
                        ": start an agent there (penstock serve), or give its port (HOST:PORT)"
                    }
                    _ => "",
                };
                let text = format!("{}{remedy}", penstock_sys::fs::describe(&error));
                CopyError::Unreachable(shown.clone(), text)
            }
        };
        let (mut channel, _) = self.connect(ConnectionKind::Control, 0, None).map_err(failed)?;
        let open = OpenRequest {
            software: software(),
            token: self.token.clone(),
            features: self.features(wishes),
            request,
        };
        let answer = handshake::request(&mut channel, &open).map_err(failed)?;
        channel.transport().notice_death(PEER_TIMEOUT).map_err(failed)?;
        Ok((channel, answer))
    }

    /// True if its data streams may use RDMA.
    pub(crate) fn wants_rdma(&self) -> bool {
        self.transport != TransportChoice::Tcp
            && (self.protection == Protection::Integrity || !self.cleartext.is_empty())
    }

    fn features(&self, wishes: &[&str]) -> Vec<String> {
        let rdma = self.wants_rdma().then_some(FEATURE_RDMA);
        let named = rdma.iter().chain(wishes).map(|&feature| feature.to_owned());
        named.chain(self.dscp.requested.map(dscp_feature)).collect()
    }

    fn unexpected_answer(&self) -> CopyError {
        CopyError::UnexpectedAnswer(self.shown())
    }

    /// Requests a session; returns its control connection and grant.
    ///
    /// # Errors
    /// If the agent refuses or is unreachable.
    pub fn open(&self, request: Request) -> Result<(Channel, Opened), CopyError> {
        self.open_with(request, &[])
    }

    /// Requests a session with these features, too, which an older agent ignores.
    ///
    /// # Errors
    /// If the agent refuses or is unreachable.
    pub(crate) fn open_with(
        &self,
        request: Request,
        features: &[&str],
    ) -> Result<(Channel, Opened), CopyError> {
        match self.request(request, features)? {
            (_, Answer::Opened(opened)) if !self.dscp.is_granted(&opened.features) => {
                Err(CopyError::DscpUnknown(self.shown()))
            }
            (channel, Answer::Opened(opened)) => Ok((channel, opened)),
            (channel, Answer::Refused(refusal)) => {
                Err(CopyError::Refused(self.shown_at(&channel), refusal))
            }
            (_, Answer::Reconnected(_) | Answer::Known(_)) => Err(self.unexpected_answer()),
        }
    }

    /// Returns the name under which the agent knows the holder of this token or certificate.
    ///
    /// # Errors
    /// If the agent is unreachable or another one, or does not know the client.
    pub fn check(&self) -> Result<String, CopyError> {
        match self.request(Request::Check(()), &[])? {
            (_, Answer::Known(name)) => Ok(name),
            (channel, Answer::Refused(refusal)) => {
                Err(CopyError::Refused(self.shown_at(&channel), refusal))
            }
            _ => Err(self.unexpected_answer()),
        }
    }

    /// Reconnects once to a session after `received` messages of the agent; returns the number of
    /// messages that it has received. `None` if it does not know the session.
    ///
    /// # Errors
    /// If the agent refuses or is unreachable.
    pub fn reconnect(
        &self,
        opened: &Opened,
        received: u64,
    ) -> Result<Option<(Channel, u64)>, CopyError> {
        let back = Reconnect { session: opened.session, key: opened.key, received };
        match self.request(Request::Reconnect(back), &[])? {
            (channel, Answer::Reconnected(received)) => Ok(Some((channel, received))),
            (_, Answer::Refused(refusal)) if refusal.kind == RefusalKind::UnknownSession => {
                Ok(None)
            }
            (channel, Answer::Refused(refusal)) => {
                Err(CopyError::Refused(self.shown_at(&channel), refusal))
            }
            (_, Answer::Opened(_) | Answer::Known(_)) => Err(self.unexpected_answer()),
        }
    }

    /// As [`PeerConnector::reconnect`], retried until it succeeds, `is_over` returns true or the time limit
    /// passes.
    ///
    /// # Errors
    /// If the agent refuses or stays unreachable.
    pub fn reconnect_until(
        &self,
        opened: &Opened,
        received: u64,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<(Channel, u64)>, CopyError> {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            match self.reconnect(opened, received) {
                Err(error) if error.is_transient() && start.elapsed() <= self.give_up_after => {}
                settled => return settled,
            }
            if is_over() {
                return Ok(None);
            }
            backoff.pause();
        }
    }

    /// Joins a session with a data connection. With a mark, packets of this end are labelled; the text
    /// describes how.
    ///
    /// # Errors
    /// If the agent refuses or is unreachable.
    pub(crate) fn join(
        &self,
        opened: &Opened,
        stream: u32,
        mark: Option<Mark>,
    ) -> io::Result<JoinedStream> {
        let (mut channel, label) = self.connect(ConnectionKind::Data, stream, mark)?;
        let nonces = prove(&mut channel, opened, stream)?;
        established(channel.transport())?;
        Ok(JoinedStream { channel, nonces, label })
    }

    /// As [`PeerConnector::join`], with data by RDMA. `settings` has everything but flow label and DSCP.
    ///
    /// # Errors
    /// The reason why this stream is not possible over RDMA, or at all.
    pub(crate) fn join_by_rdma(
        &self,
        opened: &Opened,
        stream: u32,
        mark: Option<Mark>,
        settings: RdmaStreamSettings<'_>,
    ) -> Result<JoinedStream, RdmaStreamError> {
        let (mut transport, _) = self.dial_data(stream, None)?;
        if self.protection == Protection::Full
            && let Some(peer) = transport.peer_address()
            && !self.cleartext.contains(peer)
        {
            return Err(RdmaStreamError::Cleartext(peer));
        }
        let adapter = rdma::adapter_of(&transport)?;
        let label = match &transport {
            Transport::Tcp(tcp) => Labelling::of_queue_pair(mark, stream, tcp.peer_addr()?),
            Transport::Local(_) => Labelling::inside(mark),
        };
        transport.set_timeouts(Some(HANDSHAKE_TIMEOUT))?;
        let preamble = Preamble { kind: ConnectionKind::RdmaData, tls: false };
        handshake::send_preamble(&mut transport, preamble)?;
        let mut channel = Channel::clear(transport);
        let nonces = prove(&mut channel, opened, stream)?;
        let flow_label = label.flow_label.unwrap_or(0);
        let settings = RdmaStreamSettings { flow_label, dscp: self.dscp.sent(), ..settings };
        channel.upgrade(|transport| rdma::connect(transport, &adapter, settings))?;
        established(channel.transport())?;
        Ok(JoinedStream { channel, nonces, label: label.description })
    }
}

/// Makes a joined data connection wait as long as its peer is alive.
fn established(transport: &Transport) -> io::Result<()> {
    transport.set_timeouts(None)?;
    transport.notice_death(PEER_TIMEOUT)
}

/// Proves on a data connection that this end has the key of the session.
fn prove(channel: &mut Channel, opened: &Opened, stream: u32) -> io::Result<Nonces> {
    let nonces = Nonces { acceptor: handshake::read_challenge(channel)?, connector: random() };
    let key = SessionKey(opened.key);
    let join = Join {
        session: opened.session,
        stream,
        nonce: nonces.connector,
        proof: key.join_proof(&opened.session, stream, &nonces),
    };
    match handshake::join(channel, &join)? {
        Joined::Yes => Ok(nonces),
        Joined::TooMany => {
            let text = "stream refused: the agent has as many as it takes";
            Err(io::Error::new(io::ErrorKind::QuotaExceeded, text))
        }
        refused => Err(io::Error::other(format!("stream refused: {refused:?}"))),
    }
}

/// Returns which of these certificates the agent behind `dial` presents; performs the TLS handshake
/// only.
///
/// # Errors
/// If no agent answers, or with another certificate.
pub fn certificate_of(dial: &dyn Dial, known: Vec<Fingerprint>) -> io::Result<Fingerprint> {
    let tls = tls_client_config_of_any(known).map_err(io::Error::other)?;
    let mut transport = dial.dial_control()?;
    transport.set_timeouts(Some(HANDSHAKE_TIMEOUT))?;
    let preamble = Preamble { kind: ConnectionKind::Control, tls: true };
    handshake::send_preamble(&mut transport, preamble)?;
    let mut channel = Channel::connect_tls(transport, tls)?;
    let shown = channel.peer_fingerprint();
    channel.finish_writing();
    shown.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// True if the peer is Penstock of another version or another program.
fn is_other_protocol(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<PreambleError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_dscp_must_be_granted() {
        let [le, af31] = ["le", "af31"].map(|name| name.parse().expect(name));
        let features = [FEATURE_RDMA.to_owned(), dscp_feature(le)];
        let asking = |requested| StreamDscp { requested, own: af31 };
        assert!(asking(Some(le)).is_granted(&features));
        assert!(!asking(Some(af31)).is_granted(&features));
        assert!(!asking(Some(le)).is_granted(&features[..1]));
        assert!(asking(None).is_granted(&[]));
        assert_eq!((asking(Some(le)).sent(), asking(None).sent()), (le, af31));
    }

    #[test]
    fn pauses_double_up_to_two_seconds() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
    }
}
