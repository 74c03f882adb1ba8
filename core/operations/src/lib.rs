//! Operations of many sites: what is asked to be moved, and what nodes are told to do about it.
//!
//! For: what a node's daemon and the controller say to each other ([`orders`]); the life of an order at its agent
//! ([`execution`]); where requests and files stand
//! ([`state`]); classes of work ([`class`]); files in batches ([`batch`]); what is tried again ([`retry`]) and when it
//! will be done ([`forecast`]). Not for: HTTP, storage, clocks; how rates are shared (`penstock-allocation`); how files
//! are moved (`penstock-mover`).

#![forbid(unsafe_code)]

pub mod batch;
pub mod class;
pub mod execution;
pub mod forecast;
pub mod orders;
pub mod retry;
pub mod round;
pub mod state;
