//! RDMA over RoCE: choice of device and GID, parameters from the path, credits, connections of queue pairs.
//!
//! A connection belongs to a TCP connection of the same two hosts: it exchanges the [`exchange::ConnectionOffer`] of each
//! end there, and its end is the end of the RDMA connection. [`credit`] decides which slot a message may use; it is pure,
//! as are [`parameters`] and [`exchange`]. [`stream`] makes a stream of bytes of the slots, and [`answer_timer`] ends one
//! whose messages get lost unnoticed. [`adapter`], [`connection`] and [`sending_domains`] use the verbs of
//! [`penstock_sys::verbs`].
//!
//! RDMA encrypts nothing and authenticates nothing: the caller decides where it may be used.

#![forbid(unsafe_code)]

pub mod adapter;
pub mod answer_timer;
pub mod connection;
pub mod credit;
pub mod exchange;
pub mod parameters;
pub mod sending_domains;
pub mod stream;

pub use adapter::RdmaAdapter;
pub use connection::{RdmaConnection, RdmaFailure};
