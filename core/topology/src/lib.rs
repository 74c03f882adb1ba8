//! The model of a network: sites, hosts with their interfaces, switches, and links with rate, delay and loss.
//! Lab, fabric, controller and dashboard read the same file.
//!
//! For: reading and checking that file ([`Topology::read`]), paths ([`paths`]), scaled-down copies
//! ([`Topology::scaled`]), drawings ([`draw`]), and reading other TOML files with the same checks ([`table`]).
//! Not for: running a network, or the current state of one.
//!
//! A file fails with all its faults at once, each with line and column ([`FileFault`]).

#![forbid(unsafe_code)]

pub mod draw;
mod fault;
mod file;
mod geography;
mod model;
pub mod paths;
mod routes;
mod scale;
pub mod table;

pub use fault::{FaultCollector, FileFault, FileFaults, shown};
pub use file::FILE_BYTES_MAX;
pub use geography::{FIBRE_METRES_PER_SECOND, Position};
pub use model::{
    DelaySource, Interface, Link, LinkEnd, LinkId, Node, NodeId, NodeKind, Site, SiteId, Topology,
};
pub use routes::next_links;
pub use scale::{Scale, ScaleError, TooSmall};
