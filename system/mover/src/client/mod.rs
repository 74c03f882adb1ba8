//! Connecting side: transfers to an agent, and between two agents.

mod streams;
pub(crate) mod third_party;
pub(crate) mod transfer;
