//! The one description of a network: sites, hosts with their interfaces, switches, and the links between
//! them with rate, delay and loss. Lab, fabric, controller and dashboard read the same file.
//!
//! For: reading and checking that file ([`Topology::read`]), paths through it ([`paths`]), smaller copies
//! of it ([`Topology::scaled`]), pictures of it ([`draw`]), other files of the same kind ([`words`]). Not for: running a network, or what is wrong
//! with it now.
//!
//! Fails with every fault that a file has at once, each with its line and column ([`Fault`]).

#![forbid(unsafe_code)]

pub mod draw;
mod fault;
mod file;
mod geography;
mod model;
pub mod paths;
mod routes;
mod scale;
pub mod words;

pub use fault::{Collector, Fault, Faults, shown};
pub use file::FILE_BYTES_MAX;
pub use geography::{FIBRE_METRES_PER_SECOND, Position};
pub use model::{
    DelaySource, End, Interface, Kind, Link, LinkId, Node, NodeId, Site, SiteId, Topology,
};
pub use routes::next_links;
pub use scale::{Scale, ScaleError, TooSmall};
