//! Operations of many sites as pure functions and state machines: requests, orders to nodes, and the scheduling of
//! both.
//!
//! The messages between a node's daemon and the controller ([`orders`], numbered by [`order_id`]); the life of an order at its agent
//! ([`execution`]); states of requests and files ([`state`]); classes of work ([`class`]); batches of files
//! ([`batch`]); retries ([`retry`]) and completion forecasts ([`forecast`]); the scheduling round ([`round`]). HTTP,
//! storage and clocks are the caller's; `penstock-allocation` shares rates, `penstock-mover` moves files.

#![forbid(unsafe_code)]

pub mod batch;
pub mod class;
pub mod execution;
pub mod forecast;
pub mod order_id;
pub mod orders;
pub mod retry;
pub mod round;
pub mod state;
