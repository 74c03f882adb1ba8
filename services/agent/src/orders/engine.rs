//! Interface between the orders of an agent and the services that carry them out.
//!
//! For: [`TransferEngine`], which [`super::LocalEngine`] implements with the mover, the access control and the state
//! directory of this agent, and a simulation with simulated hosts. Time is not part of it: callers pass the present
//! time to [`super::OrderExecutor`].

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use penstock_control::orders::{AddressPair, ListedFile, OrderFault, OrderId, PathForecast, Send};
use penstock_mover::CopyError;
use penstock_mover::TransferSnapshot;
use penstock_protocol::control::{Settings, Settled};
use penstock_protocol::digest::{Algorithm, Digest};
use penstock_protocol::open::Refusal;

use super::faults::FailureAction;
use penstock_daemon::state::StateError;

/// Services that executions use.
pub trait TransferEngine: Debug + std::marker::Send + Sync {
    /// Starts a transfer to another node.
    ///
    /// # Errors
    /// The reaction to the refusal or the fault that keeps it from starting.
    fn send(&self, request: TransferRequest<'_>) -> Result<Arc<dyn EngineTransfer>, FailureAction>;

    /// Forecasts the rates of an order with `bytes` bytes on its path from earlier transfers; none where they are too
    /// few.
    fn forecast(&self, order: &Send, bytes: u64) -> Option<PathForecast>;

    /// Starts to list the files below a directory, or one file.
    ///
    /// # Errors
    /// When the path may not or cannot be read.
    fn list(&self, path: &str) -> Result<Box<dyn FileListing>, OrderFault>;

    /// Lets the bearer of `ticket` write below `below` until the order is revoked.
    ///
    /// # Errors
    /// When the ticket is malformed, or the controller may not write there.
    fn grant_ticket(&self, order: OrderId, ticket: &str, below: &str) -> Result<(), Refusal>;

    /// Revokes the ticket of an order; its sessions continue until [`Self::end_sessions`].
    fn revoke_ticket(&self, order: OrderId);

    /// Ends the sessions that the ticket of an order opened.
    fn end_sessions(&self, order: OrderId, reason: &str);

    /// Reads the stored tickets; none if there are none yet.
    ///
    /// # Errors
    /// When the state directory cannot be read.
    fn read_tickets(&self) -> Result<Option<String>, StateError>;

    /// Replaces the stored tickets atomically and durably.
    ///
    /// # Errors
    /// When the state directory cannot be written.
    fn write_tickets(&self, text: &[u8]) -> Result<(), StateError>;

    /// Returns 64 random bits.
    fn random(&self) -> u64;
}

/// A transfer of files of one order.
#[derive(Debug)]
pub struct TransferRequest<'a> {
    /// Order that the transfer executes.
    pub order: &'a Send,
    /// Key of the resume state at the destination.
    pub key: [u8; 16],
    /// Digest algorithm of the files.
    pub algorithm: Algorithm,
    /// Required digests, by path.
    pub expected: HashMap<Vec<u8>, Digest>,
    /// Paths of the files, in the order of their transfer.
    pub paths: Vec<&'a [u8]>,
    /// Rate limit in bits per second; none for no limit.
    pub rate_bps: Option<u64>,
    /// Streams to begin with, which a tuner does not exceed; none for the default of this host.
    pub streams: Option<u16>,
}

/// A transfer in progress or ended.
pub trait EngineTransfer: Debug + std::marker::Send + Sync {
    /// Number at this agent, for logs.
    fn id(&self) -> u64;

    /// Result, once it has ended.
    fn outcome(&self) -> Option<Result<(), CopyError>>;

    /// Present counters, rate and bottleneck.
    fn snapshot(&self) -> TransferSnapshot;

    /// Final results of files since the last call.
    fn take_settled(&self) -> Vec<Settled>;

    /// Applies the rate and the streams of the order while it runs; a tuner uses at most these streams.
    fn change(&self, settings: Settings);

    /// Uses these address pairs; any if there are none.
    ///
    /// # Errors
    /// One line, when no connection can use them.
    fn use_path(&self, path: &[AddressPair]) -> Result<(), OrderPathError>;

    /// Cancels it; the same request can resume it.
    fn cancel(&self, reason: &str);
}

/// A path of an order that no connection can use.
#[derive(Debug, thiserror::Error)]
pub enum OrderPathError {
    /// An address is not written in figures.
    #[error("'{0}' is no address: write it in figures")]
    Address(String),
    /// The configuration of the agent forbids an address.
    #[error("{}", .0.text)]
    Forbidden(Refusal),
    /// The transfer refuses the path.
    #[error(transparent)]
    Unusable(io::Error),
}

/// A listing in progress or ended.
pub trait FileListing: Debug + std::marker::Send + Sync {
    /// Returns the end of the listing, with a fault if it is incomplete; none while it runs.
    fn ended(&self) -> Option<Option<OrderFault>>;

    /// Number of the first entry without an acknowledgement, and the entries from there while `fits` accepts them.
    fn pending(&self, fits: &mut dyn FnMut(&ListedFile) -> bool) -> (u64, Vec<ListedFile>);

    /// Number of entries without an acknowledgement.
    fn pending_count(&self) -> usize;

    /// Acknowledges the entries before number `before`.
    fn acknowledge(&self, before: u64);
}
