//! Discrete-time simulation of operations across many sites.
//!
//! ```text
//! workload ── requests ──> controller <── reports, orders ──> nodes
//!                              └── a round: snapshot → penstock-control → decision
//! ```
//!
//! The requests of a day ([`workload`]), nodes that transfer at exactly the ordered rates ([`nodes`]), a controller
//! without a database ([`in_memory`]), and measurements ([`metrics`]). [`controller_api::ControllerApi`] is the
//! interface of both controllers: the in-memory one and the store of `penstock-controller`. Clocks, files and threads
//! are the caller's.
//!
//! Packets, congestion and disks are not simulated. A transfer has exactly its ordered rate while both ends are up.

#![forbid(unsafe_code)]

pub mod controller_api;
pub mod in_memory;
pub mod metrics;
pub mod nodes;
pub mod workload;
