//! The daemon of a data transfer node: what `penstock serve` runs.
//!
//! For: who may move which files ([`gate`], [`tokens`]), what the operator set ([`config`]), what is
//! kept between runs ([`state`]), and watching and steering transfers over HTTP ([`http`]). The bytes
//! themselves are moved by `penstock-mover`.
//!
//! Not for: plans over several agents, which is the controller's.

#![forbid(unsafe_code)]

pub mod config;
pub mod gate;
pub mod state;
pub mod tokens;
