//! Either end of a session, for code that serves both.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_protocol::control::{Placed, Settings, Settled, TransferTally};
use penstock_protocol::list::PathList;
use penstock_protocol::open::Protection;
use penstock_protocol::proof::Nonces;
use penstock_protocol::sender::StreamId;
use penstock_units::Dscp;

use super::receiver::ReceiverControl;
use super::sender::SenderControl;
use crate::net::channel::Channel;
use crate::net::rdma::{RdmaStreamSettings, SentBlocks, stream_memory_bytes};
use crate::session::control::ControlEndpoint;
use crate::session::counters::AgentCounters;
use crate::session::state::Session;

/// Sending or receiving end of a session.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// Sending end of a session.
    Send(SenderControl),
    /// Receiving end of a session.
    Receive(ReceiverControl),
}

impl Endpoint {
    /// State common to both kinds of end.
    #[must_use]
    pub fn session(&self) -> &Session {
        match self {
            Self::Send(end) => &end.0.work.session,
            Self::Receive(end) => &end.0.work.session,
        }
    }

    /// Endpoint for the control connection.
    #[must_use]
    pub fn control(&self) -> &dyn ControlEndpoint {
        match self {
            Self::Send(end) => end,
            Self::Receive(end) => end,
        }
    }

    /// Starts its scanner or planner threads.
    pub fn start(&self) {
        match self {
            Self::Send(end) => end.0.start(),
            Self::Receive(end) => end.0.start(),
        }
    }

    /// Counters of the session so far.
    #[must_use]
    pub fn tally(&self) -> TransferTally {
        match self {
            Self::Send(end) => end.0.tally(),
            Self::Receive(end) => end.0.tally(),
        }
    }

    /// Requests these paths from a sender that waits for a list; no-op for a sending end.
    pub fn request_paths(&self, list: Arc<PathList>) {
        if let Self::Receive(end) = self {
            end.0.work.with_machine(|machine| machine.request_paths(list));
        }
    }

    /// Collects committed files for [`Endpoint::take_placed`]; with `digest_skipped`, skipped files are
    /// read for their digest.
    pub fn keep_placed(&self, digest_skipped: bool) {
        match self {
            Self::Send(end) => end.0.keep_placed(digest_skipped),
            Self::Receive(end) => end.0.keep_placed(digest_skipped),
        }
    }

    /// Returns the files committed since the last call.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        match self {
            Self::Send(end) => end.0.take_placed(),
            Self::Receive(end) => end.0.take_placed(),
        }
    }

    /// Returns the final results since the last call, if a sending end collects them.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Settled> {
        match self {
            Self::Send(end) => end.0.take_settled(),
            Self::Receive(_) => Vec::new(),
        }
    }

    /// True if it receives a file with this partial name that is not committed yet.
    #[must_use]
    pub fn has_partial(&self, name: &OsStr) -> bool {
        match self {
            Self::Send(_) => false,
            Self::Receive(end) => end.0.work.has_partial(name),
        }
    }

    /// Direction: `send` or `receive`.
    #[must_use]
    pub fn direction(&self) -> &'static str {
        match self {
            Self::Send(_) => "send",
            Self::Receive(_) => "receive",
        }
    }

    /// Reader and writer threads per device; zero for the kind this end lacks.
    #[must_use]
    pub fn threads(&self) -> (u16, u16) {
        match self {
            Self::Send(end) => (end.0.work.readers.size.get(), 0),
            Self::Receive(end) => (0, end.0.work.writers.size.get()),
        }
    }

    /// Cancels the transfer at both ends.
    pub fn cancel(&self, reason: &str) {
        match self {
            Self::Send(end) => end.0.cancel(reason),
            Self::Receive(end) => end.0.cancel(reason),
        }
    }

    /// Changes the settings of both ends.
    pub fn change(&self, settings: Settings) {
        match self {
            Self::Send(end) => end.0.apply(&settings),
            Self::Receive(end) => end.0.apply(&settings),
        }
        self.session().change(settings);
    }

    /// TCP segments retransmitted by the sending end.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        match self {
            Self::Send(end) => end.0.work.session.retransmits(),
            Self::Receive(end) => end.0.work.session.peer().retransmits,
        }
    }

    /// Settings of an RDMA stream at this end, without flow label and DSCP.
    pub(crate) fn rdma_settings(&self) -> RdmaStreamSettings<'_> {
        let session = self.session();
        let bytes = (session.pool.limit() * session.pool.buffer_len()) as u64;
        let streams = session.wanted_streams.load(Ordering::SeqCst);
        RdmaStreamSettings {
            sends: match self {
                Self::Send(end) => {
                    Some(SentBlocks { domains: &end.0.work.sending_domains, memory_bytes: bytes })
                }
                Self::Receive(_) => None,
            },
            memory_bytes: stream_memory_bytes(bytes, streams),
            flow_label: 0,
            dscp: Dscp::DEFAULT,
        }
    }

    /// Transfers blocks on a connected stream until it ends.
    ///
    /// # Errors
    /// If the stream broke.
    pub fn run_stream(
        &self,
        stream: StreamId,
        channel: Channel,
        nonces: &Nonces,
    ) -> io::Result<()> {
        self.run_stream_while(stream, channel, nonces, || true)
    }

    /// As [`Endpoint::run_stream`], while `wanted` returns true.
    ///
    /// # Errors
    /// If the stream broke.
    pub fn run_stream_while(
        &self,
        stream: StreamId,
        channel: Channel,
        nonces: &Nonces,
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        let session = self.session();
        session.pin_near_nic(channel.transport());
        let authenticator = match session.options.protection {
            Protection::Full if !channel.is_rdma() => None,
            Protection::Full | Protection::Integrity => Some(session.authenticator(stream, nonces)),
        };
        match self {
            Self::Send(end) => end.0.run_stream(stream, channel, authenticator, wanted),
            Self::Receive(end) => end.0.run_stream(stream, channel, authenticator),
        }
    }

    /// Adds the session's counts to an agent's counters.
    pub fn count(&self, counters: &mut AgentCounters) {
        let meter = &self.session().meter;
        let bytes = meter.network_bytes.load(Ordering::Relaxed);
        match self {
            Self::Send(_) => counters.sent_bytes += bytes,
            Self::Receive(_) => counters.received_bytes += bytes,
        }
        counters.blocks_repeated += meter.repeated.load(Ordering::Relaxed);
        counters.streams_lost += meter.streams_lost.load(Ordering::Relaxed);
    }
}
