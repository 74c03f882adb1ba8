//! Interface between a simulation and a controller.

use penstock_operations::orders::{Instructions, OrderId, Report};
use penstock_operations::round::{Decision, Snapshot};

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

/// A controller in virtual time; `now_ms` never decreases.
pub trait ControllerApi {
    /// Submits requests.
    ///
    /// # Errors
    /// If the controller cannot store them.
    fn submit(&mut self, now_ms: i64, asked: Vec<NewRequest>) -> Result<(), String>;

    /// Processes at most one report per host; responses are in the order of the reports.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, String>;

    /// Returns the content of an order that is active at a host.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn order(&mut self, host: &str, order: OrderId) -> Result<Option<OrderContent>, String>;

    /// Runs a round, whose decision `decide` makes.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn round(
        &mut self,
        now_ms: i64,
        decide: &mut dyn FnMut(&Snapshot) -> Decision,
    ) -> Result<(), String>;

    /// Sets a link down or up.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn link(&mut self, now_ms: i64, name: &str, down: bool) -> Result<(), String>;

    /// Returns the number of unfinished requests.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn open(&mut self) -> Result<u64, String>;
}
