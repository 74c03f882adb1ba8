//! The agent: the role of a data transfer node that moves files.
//!
//! For: access control ([`authorizer`], [`tokens`]), configuration ([`config`]), destinations of third-party copies
//! ([`destinations`]), scitags ([`registry`], [`fireflies`]), the HTTP API ([`http`]) with its [`client`], orders of a
//! controller ([`controller`], [`orders`]), copies that clients submit to this agent alone ([`submitted`]), exported
//! [`disks`], the [`history`] of transfers, forecasts of running ones ([`running_forecast`]), the role itself
//! ([`role`]), and the marker as a service ([`marking`], which `penstock tag run` runs). `penstock-mover` moves the
//! bytes, `penstock-daemon` runs the role.
//!
//! Not for: plans over several agents, which are the controller's.

#![forbid(unsafe_code)]

pub mod authorizer;
pub mod client;
pub mod config;
pub mod controller;

pub mod destinations;
pub mod disks;
pub mod fireflies;
pub mod history;
pub mod http;
pub mod marking;
pub mod orders;
pub mod registry;
pub mod role;
pub mod running_forecast;
pub mod submitted;

pub use penstock_http::tokens;
