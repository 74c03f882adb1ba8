//! Raw system calls behind small safe types: the only crate with unsafe code.

pub mod net;
