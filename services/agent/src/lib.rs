//! The daemon of a data transfer node: what `penstock serve` runs.
//!
//! For: who may move which files ([`gate`], [`tokens`]), what the operator set ([`config`]), where copies
//! between agents may go ([`destinations`]), what is
//! kept between runs ([`state`]), scitags ([`registry`], [`fireflies`]), watching and steering transfers over HTTP ([`http`], with its
//! [`client`]), and running it all ([`serve`]). The bytes themselves are moved by `penstock-mover`.
//!
//! What a controller orders ([`orders`]), and how it is heard ([`controller`]).
//!
//! And the marker as a service: [`marking`], what `penstock tag run` runs.
//!
//! Not for: plans over several agents, which is the controller's.

#![forbid(unsafe_code)]

pub mod client;
pub mod config;
pub mod controller;

pub mod destinations;
pub mod fireflies;
pub mod gate;
pub mod http;
pub mod marking;
pub mod orders;
pub mod registry;
pub mod serve;
pub mod state;

pub use penstock_http::tokens;
