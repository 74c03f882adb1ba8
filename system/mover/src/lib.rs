//! Stub of the data plane: just enough to compile against.
#![forbid(unsafe_code)]
pub mod agent;
pub mod identity;
