//! State of a session, and what its threads and its agent share.

pub(crate) mod bottleneck;
pub(crate) mod close;
pub(crate) mod control;
pub(crate) mod counters;
pub(crate) mod gatekeeper;
pub(crate) mod meter;
pub(crate) mod outcome;
mod placement;
pub(crate) mod rate_limit;
pub(crate) mod state;
mod streams;
pub(crate) mod totals;
pub(crate) mod worker_pool;
