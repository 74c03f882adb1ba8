//! Safe wrappers of Linux system calls. The only crate of the workspace with unsafe code.
//!
//! For: files confined beneath a directory ([`fs`]), a pool of page-aligned buffers ([`buffer`]), file I/O with depth
//! ([`ring`]), facts about this machine and process ([`machine`]), wake-ups ([`event`]), locks between processes
//! ([`lock`]), namespaces ([`namespace`]), TCP, netlink and packet queues ([`net`]), RDMA ([`verbs`]).
//!
//! Not for: policy. Nothing here decides what to read, where to write, how often to retry or what to report to the user.
//!
//! Fails with plain [`std::io::Error`]; the caller adds the object. [`fs::describe`] formats common errors for operators.

pub mod buffer;
pub mod event;
pub mod fs;
pub mod lock;
pub mod machine;
pub mod namespace;
pub mod net;
pub mod ring;
pub mod verbs;
