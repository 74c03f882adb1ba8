//! Packet-level simulator of data-centre fabrics that carry RDMA over Converged Ethernet.
//!
//! Models links, store-and-forward switches with shared buffers, PFC, ECN marking, priority scheduling and multipath
//! routing, and hosts with queue pairs and congestion control; exact to the byte and the picosecond under the model of
//! docs/fabric-model.md. It moves no real packets, reads no clock or file and starts no thread; threads of the caller can
//! work on one run together ([`Simulation::workers`]).
//!
//! The same network, parameters and flows give bit-identical results ([`Simulation::digest`]). Invalid input is
//! rejected before the run starts ([`SetupError`], [`NetworkError`], [`ParameterError`]).

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
pub mod report;
mod routes;
mod simulation;
pub mod time;
mod wire;
pub mod workload;

pub use flow::{FlowResult, FlowSpec, RdmaOperation};
pub use network::{FabricNetwork, FabricNode, FabricPort, Marking, NetworkError};
pub use packet::{Hop, Hops};
pub use parameters::{
    CongestionControl, InvalidParameters, ParameterError, ParameterRow, ParameterValue, Parameters,
    PauseThreshold, Picoseconds, Recovery, RoundTrip, Routing, WatchdogAction, Window, WireModel,
};
pub use routes::Routes;
pub use simulation::{
    AuditError, Counts, CyclicWait, FailureChange, FailurePart, FlowFault, PauseRecord, PortResult,
    RunProgress, SetupError, Simulation, SwitchResult, Worker,
};
pub use wire::Wire;
