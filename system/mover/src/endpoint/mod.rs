//! Ends of a session: streams and control around a source or a sink.

pub(crate) mod end;
pub(crate) mod rate_meter;
pub(crate) mod receiver;
pub(crate) mod sender;
pub(crate) mod session_setup;
pub(crate) mod tuning_meter;
