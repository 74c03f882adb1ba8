//! Synchronisation primitives of the structures that hand buffers from thread to thread.
//!
//! `tests/handover.rs` compiles these structures a second time with the primitives of `shuttle`, which runs
//! many schedules of their threads.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;
