//! The controller's state in a database: SQLite, or PostgreSQL for several controllers.
//!
//! This folder holds all SQL: a file for each table or group of related tables, with its rows as types. The database is
//! the only durable state; memory holds caches. All changes go through one task ([`StoreWriter`]), which groups
//! concurrent changes into one transaction, so that a thousand changes a second cost a few dozen commits. In PostgreSQL a
//! writing transaction locks a row that all controllers share ([`db::begin`]), so that they serialise and never deadlock.
//!
//! Every statement has one text for both databases: numbered parameters, integers for times (Unix milliseconds) and
//! states, `{bytes}` for the type of bytes where tables are created. Numbers of states in a text come from the enums of
//! `penstock-control`. SQLite uses a partial index only where a statement repeats its condition, so live rows are
//! `state < {ENDED}` and the like.

pub(crate) mod audit;
pub(crate) mod batches;
pub(crate) mod circuits;
pub(crate) mod db;
mod destination_key;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod fts;
pub(crate) mod hosts;
pub(crate) mod links;
pub(crate) mod requests;
pub(crate) mod reservations;
pub(crate) mod rounds;
pub(crate) mod rows;
pub(crate) mod run_cache;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod size;
mod statement;
pub(crate) mod writer;

pub(crate) use audit::Audit;
pub(crate) use db::{Database, DatabaseError, ReadPool};
pub(crate) use writer::{Clock, StoreError, StoreWriter, WriteError, now_ms};

#[cfg(test)]
mod plans;
