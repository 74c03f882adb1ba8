//! Interface between a simulation and a controller.

use std::error::Error;

use penstock_control::orders::{Instructions, OrderId, Report};
use penstock_control::scheduler::{RoundDecision, Snapshot};

/// A request to transfer files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRequest {
    /// Name of the class of work.
    pub class: String,
    /// Site that has the files.
    pub source: String,
    /// Site that receives the files.
    pub destination: String,
    /// Sizes of the files in bytes.
    pub files: Vec<u64>,
}

impl NewRequest {
    /// Returns class, source and destination of its queue.
    pub(crate) fn queue(&self) -> (String, String, String) {
        (self.class.clone(), self.source.clone(), self.destination.clone())
    }
}

/// A file of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderFile {
    /// Number, unique among all files.
    pub id: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Content of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderContent {
    /// Sends these files to the receiving node.
    Send(Vec<OrderFile>),
    /// Admits another node's writes.
    Receive,
}

/// Failure of a controller.
#[derive(Debug, thiserror::Error)]
pub enum ControllerFailure {
    /// Error of its store.
    #[error(transparent)]
    Store(Box<dyn Error + Send + Sync>),
    /// A new request that the store took for another one; with its answer.
    #[error("a new request came to {0}")]
    NotNew(String),
    /// A path of an order that the simulation did not submit.
    #[error("{0} is not a file of a simulation")]
    ForeignFile(String),
}

impl ControllerFailure {
    /// Wraps the error of a store.
    pub fn store(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Store(Box::new(error))
    }
}

/// A controller in virtual time; `now_ms` never decreases.
pub trait ControllerApi {
    /// Submits requests of one second.
    ///
    /// # Errors
    /// If the controller cannot store them.
    fn submit(&mut self, now_ms: i64, asked: Vec<NewRequest>) -> Result<(), ControllerFailure>;

    /// Processes at most one report per host; responses are in the order of the reports.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, ControllerFailure>;

    /// Returns the content of an order that is active at a host.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn order(
        &mut self,
        host: &str,
        order: OrderId,
    ) -> Result<Option<OrderContent>, ControllerFailure>;

    /// Runs a round, whose decision `decide` makes.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn round(
        &mut self,
        now_ms: i64,
        decide: &mut dyn FnMut(&Snapshot) -> RoundDecision,
    ) -> Result<(), ControllerFailure>;

    /// Sets a link down or up.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn link(&mut self, now_ms: i64, name: &str, down: bool) -> Result<(), ControllerFailure>;

    /// Returns the number of unfinished requests.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn open(&mut self) -> Result<u64, ControllerFailure>;
}
