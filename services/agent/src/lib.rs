//! The agent: the daemon of a data transfer node, which `penstock serve` runs.
//!
//! For: access control ([`authorizer`], [`tokens`]), configuration ([`config`]), destinations of third-party
//! copies ([`destinations`]), the state directory ([`state`]), scitags ([`registry`], [`fireflies`]), the HTTP
//! API ([`http`]) with its [`client`], orders of a controller ([`controller`], [`orders`]), the daemon itself
//! ([`serve`]), and the marker as a service ([`marking`], which `penstock tag run` runs). `penstock-mover`
//! moves the bytes.
//!
//! Not for: plans over several agents, which are the controller's.

#![forbid(unsafe_code)]

pub mod authorizer;
pub mod client;
pub mod config;
pub mod controller;

pub mod destinations;
pub mod fireflies;
pub mod http;
pub mod marking;
pub mod orders;
pub mod registry;
pub mod serve;
pub mod state;

pub use penstock_http::tokens;
