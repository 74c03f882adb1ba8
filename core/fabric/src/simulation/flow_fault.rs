//! Faults of flows that a simulation refuses.

use super::model::FLOWS_MAX;
use crate::parameters::CongestionControl;

/// Fault of a flow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlowFault {
    /// More flows than the limit.
    #[error("there are {0} flows; {FLOWS_MAX} is the most")]
    TooMany(usize),
    /// A number of no node.
    #[error("there is no node {0}")]
    NoNode(u32),
    /// An end that is a switch.
    #[error("'{0}' is no host")]
    NoHost(String),
    /// Both ends are one host.
    #[error("from '{0}' to itself")]
    Loop(String),
    /// No bytes or no messages.
    #[error("it has nothing to move: give it a size and a number above 0")]
    Empty,
    /// More bytes than the counters hold.
    #[error("it moves more than 2^60 bytes")]
    TooLong,
    /// No message in flight.
    #[error("its depth is 0, so that nothing begins: give it 1 or more")]
    NoDepth,
    /// A priority out of range.
    #[error("priorities are 0 to 7")]
    Priority,
    /// A read over TCP.
    #[error("TCP has no reads: use write_bw or send_bw")]
    TcpRead,
    /// A read with a congestion control that needs acknowledgements.
    #[error(
        "a read has no acknowledgements, and {0:?} needs them: use dcqcn, dcqcn-paper or none, or recovery=selective"
    )]
    UnacknowledgedRead(CongestionControl),
    /// A release by a flow that does not exist.
    #[error("it is released by flow {0}, which is not there")]
    UnknownRelease(u32),
    /// A second release by one flow.
    #[error("flow {0} releases another one already")]
    SecondRelease(u32),
    /// A release by a flow whose messages another host receives.
    #[error(
        "it is released by flow {0}, whose messages arrive at another host: a host knows of its own alone"
    )]
    RemoteRelease(u32),
    /// Ends without a path between them.
    #[error("no way leads from '{from}' to '{to}'")]
    NoPath {
        /// Name of the sending host.
        from: String,
        /// Name of the receiving host.
        to: String,
    },
}
