//! The controller's state in a database: SQLite, or PostgreSQL for several controllers.
//!
//! The database is the only durable state; memory holds caches. All changes go through one task ([`StoreWriter`]), which
//! groups concurrent changes into one transaction, so that a thousand changes a second cost a few dozen commits. In
//! PostgreSQL a writing transaction locks a row that all controllers share ([`db::begin`]), so that they serialise and
//! never deadlock.
//!
//! Every statement has one text for both databases: numbered parameters, integers for times (Unix milliseconds) and
//! states, `{bytes}` for the type of bytes where tables are created.

pub(crate) mod change;
pub(crate) mod circuit;
pub(crate) mod db;
pub(crate) mod dispatch;
pub(crate) mod link_telemetry;
pub(crate) mod maintenance;
pub(crate) mod outcomes;
pub(crate) mod read;
pub(crate) mod report;
pub(crate) mod reserve;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod submit;
pub(crate) mod writer;

pub(crate) use db::Database;
pub(crate) use writer::{Clock, StoreWriter, WriteError, now_ms};

#[cfg(test)]
mod plans;

use penstock_operations::state::RequestState;

/// Kind of a batch; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchKind {
    Copy = 0,
    List = 1,
}

/// State of a batch; the value is its number in the database. Finished batches are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchState {
    /// Waits until its retry is due.
    Waiting = 0,
    Queued = 1,
    /// Part of a run.
    #[allow(dead_code, reason = "set for many batches in one statement, by its number")]
    Running = 2,
    /// Held while its request is paused.
    Paused = 3,
}

/// State of a run; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Its orders are active at the nodes.
    Active = 0,
    /// Its orders are withdrawn, but the nodes have not confirmed that they stopped.
    Revoking = 1,
    /// All its batches are settled or requeued.
    Ended = 2,
}

/// Returns the number of a state in the database.
pub(crate) fn state_number(state: RequestState) -> i64 {
    state as i64
}
