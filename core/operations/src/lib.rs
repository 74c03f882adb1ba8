//! Operations of many sites: what is asked to be moved, and what nodes are told to do about it.
//!
//! For: what a node's daemon and the controller say to each other ([`orders`]). Not for: HTTP, storage, clocks; how
//! rates are shared (`penstock-allocation`); how files are moved (`penstock-mover`).

#![forbid(unsafe_code)]

pub mod orders;
