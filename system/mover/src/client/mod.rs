//! Connecting side: transfers to an agent, and between two agents.

pub(crate) mod auto_tuner;
mod streams;
pub(crate) mod third_party;
pub(crate) mod transfer;
