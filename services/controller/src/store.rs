//! What the controller knows, in a database: SQLite, or PostgreSQL for several controllers.
//!
//! All state is here; what a controller has in memory is a copy that it can do without. Whatever changes something
//! goes through one task ([`Writer`]) that puts changes which come at the same time into one transaction, so that a
//! thousand a second cost a few dozen commits. In PostgreSQL a transaction that writes holds a row which all
//! controllers share ([`db::begin`]): they write one after the other, and never deadlock.
//!
//! Every statement is written once for both databases: numbered parameters, integers for times (milliseconds since
//! 1970) and states, `{bytes}` for the type of bytes where tables are made.

pub(crate) mod change;
pub(crate) mod db;
pub(crate) mod dispatch;
pub(crate) mod house;
pub(crate) mod read;
pub(crate) mod report;
pub(crate) mod reserve;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod settle;
pub(crate) mod submit;
pub(crate) mod writer;

pub(crate) use db::Database;
pub(crate) use writer::{Clock, WriteError, Writer, now_ms};

#[cfg(test)]
mod plans;

use penstock_operations::state::RequestState;

/// What a batch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchKind {
    /// To move files.
    Copy = 0,
    /// To list a directory.
    List = 1,
}

/// Where a batch stands; one that is over is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchState {
    /// It waits until it is tried again.
    Waiting = 0,
    /// It is the next where there is room.
    Queued = 1,
    /// It is part of a run.
    #[allow(dead_code, reason = "set for many batches in one statement, by its number")]
    Running = 2,
    /// Its request is paused.
    Held = 3,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Its orders stand.
    Standing = 0,
    /// Its orders are withdrawn; the nodes are not known to have stopped.
    Ending = 1,
    /// It is over.
    Ended = 2,
}

/// The number of a state in the database.
pub(crate) fn state_number(state: RequestState) -> i64 {
    state as i64
}
