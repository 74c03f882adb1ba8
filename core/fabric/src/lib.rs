//! A packet-level simulator of data-centre fabrics that carry RDMA over Converged Ethernet.
//!
//! For: what a fabric does with traffic, exactly to the byte and the picosecond under the model of docs/fabric.md: links,
//! store-and-forward switches with shared memory, pausing, marking, scheduling and multiple ways, hosts with queue pairs
//! and congestion control. Not for: moving real packets, reading clocks or files, starting threads; several of a caller's can
//! work on one run ([`Simulation::workers`]).
//!
//! Same network, parameters and flows, same result to the last bit ([`Simulation::digest`]). Fails before it begins, with
//! what cannot be ([`SetupError`], [`NetworkError`], [`ParameterError`]).

#![forbid(unsafe_code)]

pub mod congestion;
mod event;
mod flow;
pub mod generate;
pub mod hpcc;
mod network;
mod packet;
mod parameters;
mod queue;
pub mod random;
pub mod report;
mod routes;
mod simulation;
pub mod time;
mod wire;
pub mod workload;

pub use flow::{Flow, FlowResult, Operation};
pub use network::{Marking, Network, NetworkError, Node, Port};
pub use packet::{Hop, Hops};
pub use parameters::{
    CongestionControl, ParameterError, Parameters, PauseThreshold, Picoseconds, Recovery,
    RoundTrip, Routing, Row, Value, WatchdogAction, Window, WireModel,
};
pub use routes::Routes;
pub use simulation::{
    Change, Counts, CyclicWait, Part, PauseRecord, PortResult, Progress, SetupError, Simulation,
    SwitchResult, Worker,
};
pub use wire::Wire;
