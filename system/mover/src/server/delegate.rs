//! Source agent of a third-party copy: sends files into a session that its requester opened at another
//! agent.
//!
//! Towards the destination it is an ordinary client with an adopted session. Towards the requester it
//! reports progress: [`Delegate`] is the endpoint of a link without files. When the requester stays
//! away, the agent ends the session, and the same request resumes.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_identity::{Fingerprint, tls_client_config};
use penstock_protocol::control::Placed;
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_protocol::third_party::{
    Ended, FromSource, Progress, ThirdParty, ToSource, TransportReport,
};
use penstock_protocol::wire::{self, WireFormat};
use penstock_sys::event::EventFd;
use penstock_tuner::TuningMode;

use super::ended_log::dialed_host;
use crate::base::lock::lock;
use crate::client::stream_tuning::{StreamTuning, TuningReport};
use crate::client::transfer::{ClientTransfer, SessionOrigin, TransferConfig, TransferSnapshot};
use crate::endpoint::end::Endpoint;
use crate::net::cleartext_networks::CleartextNetworks;
use crate::net::connector::{CopyError, PeerConnector, StreamDscp, TransportChoice};
use crate::net::dial::TcpDial;
use crate::session::control::{ControlEndpoint, ProtocolFault};

/// Limit of the time for which a requester lets the destination be unreachable.
const GIVE_UP_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Target size of a list of errors or files in one message.
const LIST_BYTES_TARGET: usize = 128 * 1024;

/// Transfer to another agent, as observed by its requester.
#[derive(Debug)]
pub(crate) struct Delegate {
    transfer: ClientTransfer,
    transport: TransportChoice,
    sent: Mutex<SentReports>,
}

#[derive(Debug, Default)]
struct SentReports {
    /// Set when a progress message is due.
    due: bool,
    /// Number of errors sent.
    errors: usize,
    /// Number of warnings sent.
    warnings: usize,
    /// Committed files not sent yet.
    placed: VecDeque<Placed>,
    /// Transport as last sent.
    transport: TransportReport,
    /// Set when the final progress was sent.
    last: bool,
    /// Set when the final message was sent.
    ended: bool,
}

fn addresses(texts: &[String]) -> Result<Vec<IpAddr>, Refusal> {
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            Refusal::new(
                RefusalKind::Request,
                format!("'{text}' is no address: write it in figures"),
            )
        })
    };
    texts.iter().map(parse).collect()
}

/// Streams of a delegate.
pub(super) struct DelegatedStreams {
    /// Transport that the requester chose.
    pub(super) transport: TransportChoice,
    /// DSCP of this end's packets.
    pub(super) dscp: StreamDscp,
    /// Most streams that this agent allows.
    pub(super) streams_max: u16,
    pub(super) tuning: StreamTuning,
}

impl Delegate {
    /// Starts to send the files of `end` into the session of the request, over as many streams as the destination and
    /// this agent allow, to those of its addresses that are `allowed`.
    ///
    /// # Errors
    /// If no address of the destination is allowed, or this process is out of file descriptors.
    pub(super) fn start(
        request: &ThirdParty,
        end: Endpoint,
        streams: DelegatedStreams,
        allowed: &dyn Fn(SocketAddr) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let DelegatedStreams { transport, dscp, streams_max, tuning } = streams;
        let refuse = |error: std::io::Error| Refusal::new(RefusalKind::Request, error.to_string());
        let (to, from) = (addresses(&request.to)?, addresses(&request.from)?);
        let congestion = request.congestion.clone();
        let dial =
            TcpDial::new(&request.host, request.port, &to, &from, congestion).map_err(refuse)?;
        let dial = dial.only_to(allowed)?;
        let tls = tls_client_config(Fingerprint(request.fingerprint), None)
            .map_err(|error| Refusal::new(RefusalKind::Agent, error.to_string()))?;
        if request.keep_placed {
            end.keep_placed(request.digest_skipped);
        }
        let contact = PeerConnector {
            dial: Arc::new(dial),
            tls,
            token: String::new(),
            protection: request.pull.options.protection,
            transport,
            cleartext: CleartextNetworks::default(),
            dscp,
            give_up_after: Duration::from_secs(u64::from(request.give_up_after))
                .min(GIVE_UP_AFTER_MAX),
        };
        let mut session = request.session.clone();
        session.streams_max = session.streams_max.min(streams_max);
        let plan = TransferConfig {
            contact,
            begin: SessionOrigin::Adopted(session),
            make_end: Box::new(move |_| Ok(end.clone())),
            tuning,
        };
        let transfer = ClientTransfer::start(plan).map_err(refuse)?;
        Ok(Self { transfer, transport, sent: Mutex::default() })
    }

    /// Lets its tuner do at most this from now on.
    pub(crate) fn set_tuning(&self, mode: TuningMode) -> Result<(), &'static str> {
        self.transfer.set_tuning(mode)
    }

    /// Decisions about its streams, or the reason why there are none.
    pub(crate) fn tuning(&self) -> TuningReport {
        self.transfer.tuning()
    }

    /// State of the transfer.
    pub(super) fn snapshot(&self) -> TransferSnapshot {
        self.transfer.snapshot()
    }

    /// Name of the destination, else its address.
    pub(super) fn peer_host(&self) -> String {
        dialed_host(&self.transfer.shown(), self.transfer.peer_address())
    }

    fn next(&self, sent: &mut SentReports) -> Option<FromSource> {
        // Read first, so that nothing is missing from the messages after the end.
        let outcome = self.transfer.outcome();
        if sent.last {
            sent.ended = true;
            let begun = self.transfer.snapshot().sessions > 0;
            return outcome.map(|outcome| FromSource::Ended(ended(outcome, begun)));
        }
        if !sent.due && outcome.is_none() {
            return None;
        }
        let snapshot = self.transfer.snapshot();
        sent.placed.extend(self.transfer.take_placed());
        let errors = take_batch(&mut snapshot.tally.errors.iter().skip(sent.errors).cloned());
        if !errors.is_empty() {
            sent.errors += errors.len();
            return Some(FromSource::Errors(errors));
        }
        let warnings = take_batch(&mut snapshot.tally.warnings.iter().skip(sent.warnings).cloned());
        if !warnings.is_empty() {
            sent.warnings += warnings.len();
            return Some(FromSource::Warnings(warnings));
        }
        let placed = take_batch(&mut std::iter::from_fn(|| sent.placed.pop_front()));
        if !placed.is_empty() {
            return Some(FromSource::Placed(placed));
        }
        let (name, reason) = (snapshot.transport.to_owned(), snapshot.transport_reason.clone());
        let transport = TransportReport { name, reason };
        if self.transport != TransportChoice::Tcp && sent.transport != transport {
            sent.transport.clone_from(&transport);
            return Some(FromSource::Transport(transport));
        }
        sent.due = false;
        sent.last = outcome.is_some();
        Some(FromSource::Progress(Box::new(progress(snapshot))))
    }
}

/// Takes as many items as fit in a message of moderate size.
fn take_batch<T: WireFormat>(items: &mut dyn Iterator<Item = T>) -> Vec<T> {
    let mut bytes = 0;
    let mut list = Vec::new();
    while bytes < LIST_BYTES_TARGET {
        let Some(item) = items.next() else { break };
        bytes += wire::encode(&item).len();
        list.push(item);
    }
    list
}

fn progress(snapshot: TransferSnapshot) -> Progress {
    Progress {
        tally: snapshot.tally,
        streams: snapshot.streams,
        streams_peak: snapshot.streams_peak,
        bits_per_second: snapshot.bits_per_second,
        bound_by: snapshot.bound_by.to_owned(),
        engines: snapshot.engines,
        retransmits: snapshot.retransmits,
        network_bytes: snapshot.network_bytes,
        cpu_us: snapshot.cpu_us,
        streams_lost: snapshot.streams_lost,
        repeated: snapshot.repeated,
        mark: snapshot.mark,
        label: snapshot.label,
        readers: snapshot.readers,
        rate_bps: snapshot.rate_bps,
        dropped: snapshot.dropped,
    }
}

/// `begun`: the destination was reached once, so another session may reach it again.
fn ended(outcome: Result<(), CopyError>, begun: bool) -> Ended {
    match outcome {
        Ok(()) => Ended::Finished(()),
        Err(CopyError::Cancelled(reason)) => Ended::Cancelled(reason),
        Err(error @ CopyError::Forgotten(_)) => Ended::Forgotten(error.to_string()),
        Err(error) if begun && error.is_transient() => Ended::Forgotten(error.to_string()),
        Err(error) => Ended::Failed(error.to_string()),
    }
}

impl ControlEndpoint for Delegate {
    fn is_over(&self) -> bool {
        lock(&self.sent).ended
    }

    fn wake(&self) -> &EventFd {
        self.transfer.over()
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        let mut sent = lock(&self.sent);
        if sent.ended {
            return None;
        }
        self.next(&mut sent).as_ref().map(wire::encode)
    }

    fn on_message(&self, message: &[u8]) -> Result<(), ProtocolFault> {
        match wire::decode(message)? {
            ToSource::Settings(settings) => self.transfer.change(settings),
            ToSource::Cancel(reason) => self.transfer.cancel(&reason),
        }
        Ok(())
    }

    fn tick(&self) {
        lock(&self.sent).due = true;
    }
}
