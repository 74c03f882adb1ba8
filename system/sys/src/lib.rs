//! Every raw system call of the house, each as a small safe type. The only crate with unsafe code.
//!
//! For: files confined beneath a directory ([`fs`]), a pool of page-aligned buffers ([`buffer`]), file I/O with depth
//! ([`ring`]), facts about this machine and process ([`machine`]), wake-ups ([`event`]), locks between processes
//! ([`lock`]), TCP beyond the standard library ([`net`]).
//!
//! Not for: policy. Nothing here decides what to read, where to write, how often to retry or what to tell the user.
//!
//! Fails with plain [`std::io::Error`]; the caller knows the object and adds it. [`fs::describe`] gives the words an
//! operator wants for the common ones.

pub mod buffer;
pub mod event;
pub mod fs;
pub mod lock;
pub mod machine;
pub mod namespace;
pub mod net;
pub mod ring;
