//! Transfers of an agent, as listed for operators.

use std::time::SystemTime;

use serde::Serialize;

/// Direction of a transfer, as the agent sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferDirection {
    /// The agent sends files.
    Send,
    /// The agent receives files.
    Receive,
}

impl TransferDirection {
    /// Word of the direction in listings and logs: `send` or `receive`.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

/// State of a transfer that has ended by itself, as listed.
pub(super) const fn finished_state(failed: u64, has_arrivals: bool) -> &'static str {
    match (failed, has_arrivals) {
        (0, _) => "done",
        (_, true) => "partial",
        (_, false) => "failed",
    }
}

/// Transfer as listed for operators.
#[derive(Debug, Clone, Serialize)]
pub struct ListedTransfer {
    /// Number at this agent.
    pub id: u64,
    /// Name of the client.
    pub caller: String,
    /// Address of the client.
    pub peer: String,
    /// Direction of the agent: `receive` or `send`.
    pub direction: &'static str,
    /// Path of the source or destination.
    pub path: String,
    /// `running`, `waiting`, `done`, `partial`, `failed` or `cancelled`.
    pub state: &'static str,
    /// Time of the start.
    pub started: SystemTime,
    /// Run time in seconds.
    pub seconds: f64,
    /// Bytes of committed files.
    pub bytes: u64,
    /// Bytes sent and written.
    pub moved_bytes: u64,
    /// Bytes present before the transfer.
    pub resumed_bytes: u64,
    /// Bytes announced so far.
    pub announced_bytes: u64,
    /// Number of committed files.
    pub files: u64,
    /// Number of failed entries.
    pub failed: u64,
    /// Number of connected streams.
    pub streams: u16,
    /// Reader threads per device if this end sends, else 0.
    pub readers: u16,
    /// Writer threads per device if this end receives, else 0.
    pub writers: u16,
    /// Rate limit in bits per second; `None` if unlimited.
    pub rate_bps: Option<u64>,
    /// Mean rate over about the last second; of an ended transfer, over its run time.
    pub bits_per_second: u64,
    /// Bottleneck; of an ended transfer, the most frequent one, or `-` if nothing was sent.
    pub bound_by: String,
    /// Storage engine of this end.
    pub engine: String,
    /// TCP segments retransmitted by the sending end.
    pub retransmits: u64,
    /// Scitag number, if the data has one.
    pub scitag: Option<u16>,
    /// Transport of the data streams so far: `tcp`, `rdma` or `mixed`; empty before the first.
    pub transport: &'static str,
    /// Reason for that transport, where the requester left the choice or asked for RDMA; else empty.
    pub transport_reason: String,
}
