//! Connecting side: transfers to an agent, and between two agents.

pub(crate) mod auto_tuner;
pub(crate) mod host_searches;
mod stream_transports;
pub(crate) mod stream_tuning;
mod streams;
pub(crate) mod third_party;
pub(crate) mod transfer;
