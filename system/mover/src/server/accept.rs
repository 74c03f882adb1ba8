//! Connections of an agent until they have authenticated, and data streams that join a session.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_protocol::open::{Join, Protection};
use penstock_protocol::preamble::{ConnectionKind, Preamble};
use penstock_protocol::proof::Nonces;
use penstock_sys::net::is_own_address;

use super::active_session::ActiveSession;
use super::agent::AgentInner;
use crate::base::lock::lock;
use crate::base::timeouts::{AUTHENTICATION_TIMEOUT, HANDSHAKE_TIMEOUT, PEER_TIMEOUT};
use crate::endpoint::end::Endpoint;
use crate::net::channel::Channel;
use crate::net::handshake::{self, Joined};
use crate::net::labels::{Labelling, label_accepted};
use crate::net::rdma::{self, RdmaStreamSettings};
use crate::net::transport::Transport;

impl AgentInner {
    pub(super) fn accept(self: &Arc<Self>, number: usize) {
        while !self.stopping.load(Ordering::SeqCst) {
            let transport = match self.listeners[number].accept() {
                Ok((tcp, _)) => Transport::Tcp(tcp),
                Err(error) => {
                    // Most likely out of file descriptors: the janitor closes some.
                    if !self.stopping.load(Ordering::SeqCst) {
                        tracing::warn!("cannot accept: {}", penstock_sys::fs::describe(&error));
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    continue;
                }
            };
            lock(&self.totals).connections += 1;
            while self.pending.is_full() && !self.stopping.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let Ok(pending) = self.pending.add(&transport) else { continue };
            let inner = Arc::clone(self);
            let serve = move || {
                let peer = transport.peer();
                if let Err(error) = inner.serve(transport, pending) {
                    lock(&inner.totals).refused += 1;
                    tracing::debug!("{peer}: {error}");
                }
            };
            if std::thread::Builder::new().name("serve".into()).spawn(serve).is_err() {
                self.pending.remove(pending);
                tracing::warn!("cannot start a thread for a connection (raise TasksMax)");
            }
        }
    }

    fn serve(self: &Arc<Self>, mut transport: Transport, pending: u64) -> io::Result<()> {
        let result = self.read_preamble(&mut transport).and_then(|preamble| {
            if let Transport::Tcp(tcp) = &transport {
                tcp.set_nodelay(true)?;
            }
            if preamble.kind == ConnectionKind::NettestControl && !preamble.tls {
                return (self.config.decline_nettest)(&mut transport);
            }
            let channel = if preamble.tls {
                Channel::accept_tls(transport, self.config.identity.tls_server_config())?
            } else {
                Channel::clear(transport)
            };
            match preamble.kind {
                ConnectionKind::Control if preamble.tls => self.control(channel, pending),
                ConnectionKind::Data => self.data(channel, pending, false),
                ConnectionKind::RdmaData if !preamble.tls => self.data(channel, pending, true),
                _ => Err(io::Error::other("this kind of connection is not served here")),
            }
        });
        self.pending.remove(pending);
        result
    }

    fn read_preamble(&self, transport: &mut Transport) -> io::Result<Preamble> {
        transport.set_timeouts(Some(AUTHENTICATION_TIMEOUT))?;
        handshake::read_preamble(transport).inspect_err(|error| {
            if error.kind() == io::ErrorKind::InvalidData {
                tracing::info!("{}: {error}", transport.peer());
                // A peer with another version learns ours from our preamble.
                let ours = Preamble { kind: ConnectionKind::Control, tls: false };
                let _ = handshake::send_preamble(transport, ours);
            }
        })
    }

    fn data(&self, mut channel: Channel, pending: u64, by_rdma: bool) -> io::Result<()> {
        let (nonce, join) = handshake::challenge(&mut channel)?;
        let running = lock(&self.sessions).get(&join.session).cloned();
        let allows = |protection: Protection| match protection {
            Protection::Integrity => !channel.is_tls(),
            Protection::Full if by_rdma => !channel.is_tls() && self.allows_cleartext(&channel),
            Protection::Full => channel.is_tls(),
        };
        let answer = self.check_join(&join, running.as_deref(), nonce, &allows);
        let marked = match (&running, answer) {
            (Some(running), Joined::Yes) => channel.transport().set_dscp(running.dscp),
            _ => Ok(()),
        };
        let sent = marked.and_then(|()| handshake::send_join_answer(&mut channel, answer));
        let Some(running) = running.filter(|_| answer == Joined::Yes) else {
            return Err(io::Error::other(format!("a data connection is refused: {answer:?}")));
        };
        self.pending.remove(pending);
        let ready = sent.and_then(|()| match by_rdma {
            true => self.agree_on_rdma(&mut channel, &running, &join),
            false => Ok(()),
        });
        let ready = ready.and_then(|()| {
            channel.transport().set_timeouts(None)?;
            channel.transport().notice_death(PEER_TIMEOUT)
        });
        if let Err(error) = ready {
            running.joined.fetch_sub(1, Ordering::SeqCst);
            return Err(error);
        }
        let joined = if by_rdma { &running.by_rdma } else { &running.by_tcp };
        joined.store(true, Ordering::Relaxed);
        let nonces = Nonces { acceptor: nonce, connector: join.nonce };
        if let Endpoint::Send(_) = running.end
            && !by_rdma
        {
            let session = running.end.session();
            let mark = session.options.mark;
            let pin = &self.config.marker;
            session.set_label(match channel.transport() {
                Transport::Tcp(tcp) => label_accepted(mark, tcp, pin),
                Transport::Local(_) => Labelling::inside(mark).description,
            });
        }
        // The session has already recorded the end of its stream.
        let _ = running.end.run_stream(join.stream, channel, &nonces);
        running.joined.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    /// Connects the queue pair of a joined stream.
    fn agree_on_rdma(
        &self,
        channel: &mut Channel,
        running: &ActiveSession,
        join: &Join,
    ) -> io::Result<()> {
        let (session, peer) = (running.end.session(), channel.transport().peer());
        let label = match channel.transport() {
            Transport::Tcp(tcp) => {
                Labelling::of_queue_pair(session.options.mark, join.stream, tcp.peer_addr()?)
            }
            Transport::Local(_) => Labelling::inside(session.options.mark),
        };
        let settings = RdmaStreamSettings {
            flow_label: label.flow_label.unwrap_or(0),
            dscp: running.dscp,
            ..running.end.rdma_settings()
        };
        channel.transport().set_timeouts(Some(HANDSHAKE_TIMEOUT))?;
        channel.upgrade(|transport| rdma::accept(transport, settings)).map_err(|error| {
            tracing::info!("{peer}: stream {} is not possible by RDMA: {error}", join.stream);
            io::Error::other(error.to_string())
        })?;
        if let Endpoint::Send(_) = running.end {
            session.set_label(label.description);
        }
        Ok(())
    }

    fn check_join(
        &self,
        join: &Join,
        running: Option<&ActiveSession>,
        nonce: [u8; 32],
        allows: &dyn Fn(Protection) -> bool,
    ) -> Joined {
        let Some(running) = running else { return Joined::UnknownSession };
        let session = running.end.session();
        let nonces = Nonces { acceptor: nonce, connector: join.nonce };
        let proven = session.key().verify_join(&join.session, join.stream, &nonces, &join.proof);
        let protected = allows(session.options.protection);
        match () {
            () if !proven || !protected || running.delegate.is_some() => Joined::Refused,
            () if !self.admit_stream(running) => Joined::TooMany,
            () => Joined::Yes,
        }
    }

    /// True if the operator allows RDMA without encryption for the peer of a connection.
    pub(super) fn allows_cleartext(&self, channel: &Channel) -> bool {
        let networks = self.config.gatekeeper.cleartext_networks();
        channel.transport().peer_address().is_some_and(|peer| networks.contains(peer))
    }

    /// True if this agent listens on an address.
    pub(super) fn listens_on(&self, address: SocketAddr) -> bool {
        let own = self.listeners.iter().filter_map(|listener| listener.local_addr().ok());
        own.filter(|own| own.port() == address.port()).any(|own| {
            let ip = address.ip().to_canonical();
            own.ip().to_canonical() == ip || own.ip().is_unspecified() && is_own_address(ip)
        })
    }
}
