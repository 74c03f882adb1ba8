//! What a controller is to a rehearsal.

use penstock_operations::orders::{Instructions, OrderId, Report};
use penstock_operations::round::{Decision, Snapshot};

/// Files that are to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The class of work.
    pub class: String,
    /// The site where they are.
    pub source: String,
    /// The site where they go.
    pub destination: String,
    /// Their sizes in bytes.
    pub files: Vec<u64>,
}

/// A file of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// A number that no other file has.
    pub id: u64,
    /// Its size.
    pub bytes: u64,
}

/// The content of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// To send these files.
    Send(Vec<File>),
    /// To let another node write.
    Receive,
}

/// A controller that is asked in virtual time; `now_ms` never goes back.
pub trait Desk {
    /// Takes requests.
    ///
    /// # Errors
    /// When they cannot be stored; so with all others.
    fn submit(&mut self, now_ms: i64, asked: Vec<Asked>) -> Result<(), String>;

    /// Takes a report of each of these hosts; the answers are in their order.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, String>;

    /// The content of an order that stands at a host.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn order(&mut self, host: &str, order: OrderId) -> Result<Option<Work>, String>;

    /// Makes a round: what is to be decided is handed to `decide`.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn round(
        &mut self,
        now_ms: i64,
        decide: &mut dyn FnMut(&Snapshot) -> Decision,
    ) -> Result<(), String>;

    /// A link is down, or up again.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn link(&mut self, now_ms: i64, name: &str, down: bool) -> Result<(), String>;

    /// Requests that are not over.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn open(&mut self) -> Result<u64, String>;
}
