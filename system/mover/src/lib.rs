//! The data plane: threads, sockets and storage engines that carry out `penstock-protocol`.
//!
//! ```text
//! source                                                        destination
//! scan ─► readers ─► ready blocks ─► streams ══ network ══► streams ─► writers ─► committer
//!          per device                 one thread each       one thread each  per device
//! ```
//!
//! Buffers of one block each are the only coupling between the stages: when a stage is slow its
//! neighbours run out of buffers and wait, and TCP closes its window. Memory is bounded by the pool.
//!
//! Not here: HTTP, configuration, who may do what (an agent asks its gatekeeper), and printing.

#![forbid(unsafe_code)]

pub mod agent;
pub mod bound;
pub mod channel;
pub mod client;
pub mod contact;
pub mod control;
pub mod crew;
pub mod delegate;
pub mod dial;
pub mod engine;
pub mod exchange;
pub mod firefly;
pub mod frame;
pub mod granting;
pub mod identity;
pub mod labels;
pub mod memory;
pub mod nettest;
mod packing;
pub mod reading;
pub mod scan;
pub mod sending;
pub mod session;
pub mod sink;
pub mod third_party;
mod tls;
pub mod totals;
pub mod transport;
pub mod waiting;
