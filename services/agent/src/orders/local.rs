//! [`TransferEngine`] of this agent: its mover, its access control and its state directory.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use penstock_control::orders::{
    AddressPair, FaultKind, OrderFault, OrderId, OrderTransport, Overwrite, PathForecast, Send,
    Verify,
};
use penstock_identity::{Fingerprint, tls_client_config};
use penstock_mover::TransferSnapshot;
use penstock_mover::{Agent, Gatekeeper};
use penstock_mover::{CopyError, PeerConnector, StreamDscp, TransportChoice};
use penstock_mover::{DialedPair, TcpDial};
use penstock_mover::{InitiatedTransfer, SendRequest};
use penstock_mover::{default_streams, random};
use penstock_protocol::control::{Settings, Settled};
use penstock_protocol::list::PathList;
use penstock_protocol::open::{Existing, Mark, Options, PacketLabel, Protection, Push, Refusal};
use penstock_protocol::wire::Bytes;
use penstock_scopes::PathAccess;

use super::engine::{EngineTransfer, FileListing, OrderPathError, TransferEngine, TransferRequest};
use super::faults::{FailureAction, fault, of_own_refusal, permanent};
use super::listing::DirectoryListing;
use crate::authorizer::{Authorizer, controller};
use crate::history::PathMemory;
use penstock_daemon::state::{StateDir, StateError};

/// Time for which a transfer reconnects by itself before its order starts it again.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Block size: bytes that a stream finishes before it moves to another path.
const BLOCK_BYTES: u32 = 1 << 20;

/// File of the tickets in the state directory, mode 0600.
const TICKETS_FILE: &str = "tickets.json";

/// The mover of this agent, for orders.
#[derive(Debug)]
pub struct LocalEngine {
    mover: Agent,
    authorizer: Arc<Authorizer>,
    state: StateDir,
    /// Earlier transfers, for forecasts.
    paths: Option<Arc<PathMemory>>,
    /// Transport of orders that name none.
    transport: TransportChoice,
}

impl LocalEngine {
    /// Creates an engine of these services.
    #[must_use]
    pub fn new(mover: Agent, authorizer: Arc<Authorizer>, state: StateDir) -> Self {
        Self { mover, authorizer, state, paths: None, transport: TransportChoice::Tcp }
    }

    /// Carries the data of orders that name no transport by this one instead of TCP.
    #[must_use]
    pub fn with_transport(mut self, transport: TransportChoice) -> Self {
        self.transport = transport;
        self
    }

    /// Forecasts the rates of orders from these transfers.
    #[must_use]
    pub fn with_paths(mut self, paths: Arc<PathMemory>) -> Self {
        self.paths = Some(paths);
        self
    }
}

impl TransferEngine for LocalEngine {
    fn send(&self, request: TransferRequest<'_>) -> Result<Arc<dyn EngineTransfer>, FailureAction> {
        let order = request.order;
        let transient = |text: String| FailureAction::End(fault(FaultKind::Transient, text));
        let fingerprint = parse_fingerprint(&order.fingerprint).map_err(FailureAction::End)?;
        let dial = TcpDial::to_any(&addresses(&order.addresses)?)
            .map(|dial| dial.only_to(|to| self.authorizer.may_send_to(to, false)))
            .map_err(|error| FailureAction::End(permanent(error.to_string())))?
            .map_err(|refusal| FailureAction::End(permanent(refusal.text)))?;
        let protection = if order.encrypt { Protection::Full } else { Protection::Integrity };
        let to = PeerConnector {
            dial: Arc::new(dial),
            tls: tls_client_config(fingerprint, None)
                .map_err(|error| transient(error.to_string()))?,
            token: order.ticket.clone(),
            protection,
            transport: match order.transport {
                None => self.transport,
                Some(OrderTransport::Tcp) => TransportChoice::Tcp,
                Some(OrderTransport::Rdma) => TransportChoice::Rdma,
                Some(OrderTransport::Auto) => TransportChoice::Auto,
            },
            cleartext: self.authorizer.cleartext_networks(),
            dscp: StreamDscp::default(),
            give_up_after: RECONNECT_TIMEOUT,
        };
        let streams = request.streams.unwrap_or_else(|| default_streams(request.algorithm));
        let options = Options {
            block_bytes: BLOCK_BYTES,
            algorithm: request.algorithm,
            protection,
            inplace: false,
            xattrs: false,
            compare_digest: !request.expected.is_empty(),
            readback: order.verify == Verify::Readback,
            existing: match order.overwrite {
                Overwrite::Changed => Existing::Replace,
                Overwrite::Never => Existing::Keep,
            },
            mark: order.scitag.map(|scitag| Mark { scitag, label: PacketLabel::Flow }),
            settings: Settings {
                rate_bps: request.rate_bps,
                streams: Some(streams),
                ..Settings::default()
            },
        };
        let push = Push {
            target: Bytes(order.to.clone().into_bytes()),
            into_directory: true,
            transfer_key: request.key,
            options,
        };
        let mut text = Vec::new();
        for path in request.paths {
            text.extend_from_slice(path);
            text.push(0);
        }
        let sending = SendRequest {
            to,
            push,
            from: order.from.clone().into_bytes(),
            files: Arc::new(PathList::of(text, 0)),
            expected: request.expected,
            tune: order.tune.unwrap_or_default(),
        };
        let outgoing = self
            .mover
            .send(controller(None), sending)
            .map_err(|refusal| of_own_refusal(&refusal))?;
        Ok(Arc::new(LocalTransfer { outgoing, authorizer: Arc::clone(&self.authorizer) }))
    }

    fn forecast(&self, order: &Send, bytes: u64) -> Option<PathForecast> {
        let paths = self.paths.as_ref()?;
        // The history has names and addresses of hosts without ports.
        let host = |address: &String| address.rsplit_once(':').map(|(host, _port)| host.to_owned());
        let bare = |host: String| host.trim_matches(['[', ']']).to_owned();
        let names: Vec<_> = order.addresses.iter().filter_map(host).map(bare).collect();
        paths.forecast(&names, bytes)
    }

    fn list(&self, path: &str) -> Result<Box<dyn FileListing>, OrderFault> {
        let place = self
            .authorizer
            .place(&controller(None), path.as_bytes(), PathAccess::List)
            .map_err(|refusal| permanent(refusal.text))?;
        Ok(Box::new(DirectoryListing::start(place)?))
    }

    fn grant_ticket(&self, order: OrderId, ticket: &str, below: &str) -> Result<(), Refusal> {
        self.authorizer.grant_ticket(order, ticket, below)
    }

    fn revoke_ticket(&self, order: OrderId) {
        self.authorizer.revoke_ticket(order);
    }

    fn end_sessions(&self, order: OrderId, reason: &str) {
        self.mover.end_pass(order.number(), reason);
    }

    fn read_tickets(&self) -> Result<Option<String>, StateError> {
        self.state.read_secret(TICKETS_FILE)
    }

    fn write_tickets(&self, text: &[u8]) -> Result<(), StateError> {
        self.state.write(TICKETS_FILE, text, 0o600)
    }

    fn random(&self) -> u64 {
        u64::from_le_bytes(random())
    }
}

/// A transfer of this agent's mover.
#[derive(Debug)]
struct LocalTransfer {
    outgoing: Arc<InitiatedTransfer>,
    authorizer: Arc<Authorizer>,
}

impl EngineTransfer for LocalTransfer {
    fn id(&self) -> u64 {
        self.outgoing.id()
    }

    fn outcome(&self) -> Option<Result<(), CopyError>> {
        self.outgoing.outcome()
    }

    fn snapshot(&self) -> TransferSnapshot {
        self.outgoing.snapshot()
    }

    fn take_settled(&self) -> Vec<Settled> {
        self.outgoing.take_settled()
    }

    fn change(&self, settings: Settings) {
        self.outgoing.allot(settings);
    }

    fn use_path(&self, path: &[AddressPair]) -> Result<(), OrderPathError> {
        let parse = |text: &str| {
            text.parse::<IpAddr>().map_err(|_| OrderPathError::Address(text.to_owned()))
        };
        let pair = |pair: &AddressPair| {
            let pair = DialedPair { from: parse(&pair.from)?, to: parse(&pair.to)? };
            let port = crate::config::MOVER_PORT;
            self.authorizer
                .may_send_to(SocketAddr::new(pair.to, port), false)
                .map_err(OrderPathError::Forbidden)?;
            Ok(pair)
        };
        let path: Vec<DialedPair> = path.iter().map(pair).collect::<Result<_, OrderPathError>>()?;
        self.outgoing.use_path(&path).map_err(OrderPathError::Unusable)
    }

    fn cancel(&self, reason: &str) {
        self.outgoing.cancel(reason);
    }
}

fn addresses(texts: &[String]) -> Result<Vec<SocketAddr>, FailureAction> {
    let mut found = Vec::new();
    let mut reason = String::new();
    for text in texts.iter().take(64) {
        match text.to_socket_addrs() {
            Ok(all) => found.extend(all),
            Err(error) => reason = format!("{text}: {error}"),
        }
    }
    if found.is_empty() { Err(FailureAction::Wait(reason)) } else { Ok(found) }
}

/// Parses 64 hexadecimal digits, with or without `SHA256:`.
fn parse_fingerprint(text: &str) -> Result<Fingerprint, OrderFault> {
    let bare = text.strip_prefix("SHA256:").unwrap_or(text);
    format!("SHA256:{bare}").parse().map_err(|_| {
        permanent(
            "the other node's fingerprint is not 64 hexadecimal digits: it has to report it again",
        )
    })
}
