//! Data plane: threads, sockets and storage engines that drive the state machines of
//! `penstock-protocol`.
//!
//! ```text
//! source                                                        destination
//! scan ─► readers ─► ready blocks ─► streams ══ network ══► streams ─► writers ─► committer
//!          per device                 one thread each       one thread each  per device
//! ```
//!
//! Buffers of one block each are the only coupling between stages: a slow stage leaves its neighbours
//! without buffers, and TCP closes its window. The pool bounds memory.
//!
//! Not here: HTTP, configuration, authorisation (an agent calls its gatekeeper) and printing.

#![forbid(unsafe_code)]

pub mod agent;
pub mod bottleneck;
pub mod channel;
pub mod client;
pub mod connector;
pub mod control;
pub mod delegate;
pub mod dial;
pub mod engine;
pub mod firefly;
pub mod frame;
pub mod handshake;
pub mod identity;
pub mod labels;
pub mod memory;
pub mod nettest;
mod packer;
pub mod pending_connections;
pub mod reader;
pub mod scan;
pub mod sender;
pub mod session;
pub mod session_setup;
pub mod sink;
pub mod third_party;
mod tls;
pub mod totals;
pub mod transport;
pub mod worker_pool;
