//! A daemon: everything that long-running roles share.
//!
//! For: reading configurations ([`config`]), the state directory ([`state`]), the HTTP API of several roles ([`api`]),
//! clients of other daemons ([`remote`]), signals ([`signals`]), faults of databases ([`sqlite`]), the service manager
//! ([`systemd`]), and the daemon that joins them ([`Daemon`]). The binary chooses the roles; a role is a [`penstock_http::ServiceRole`].
//!
//! Not for: what a role does, its table of the configuration, printing.

#![forbid(unsafe_code)]

pub mod api;
pub mod config;
mod daemon;
mod entity_tag;
pub mod remote;
pub mod signals;
pub mod sqlite;
pub mod state;
pub mod systemd;

pub use daemon::{Daemon, DaemonConfig, DaemonError, IdentityFiles, RoleContext, RunningDaemon};
