//! Accepting side: an agent with many clients and sessions on one port.

mod accept;
mod active_session;
pub(crate) mod admission;
pub(crate) mod agent;
mod control;
pub(crate) mod copy;
mod delegate;
pub(crate) mod dscp_policy;
pub(crate) mod ended_log;
pub(crate) mod gateway;
pub(crate) mod initiated;
mod janitor;
pub(crate) mod limits;
pub(crate) mod listing;
mod memory;
mod pending_connections;
mod start_conditions;
pub(crate) mod tuning;
