//! Traffic: a flow is a queue pair that transfers messages of one size.

/// RDMA operation of the requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RdmaOperation {
    /// RDMA write into memory of the responder.
    Write,
    /// Send into receive buffers of the responder; carries no RETH.
    Send,
    /// RDMA read from memory of the responder, which sends the data; read responses are not acknowledged.
    Read,
}

/// Queue pair and the messages that it transfers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSpec {
    /// Node number of the requester's host.
    pub from: u32,
    /// Node number of the responder's host.
    pub to: u32,
    /// Start time in picoseconds.
    pub start_ps: u64,
    /// Size of a message in bytes, above 0.
    pub message_bytes: u64,
    /// Number of messages, above 0.
    pub messages: u64,
    /// Work requests posted before the first one completes.
    pub depth: u64,
    /// Messages per completion that the application polls (perftest's cq-mod).
    pub moderation: u64,
    /// RDMA operation of its messages.
    pub operation: RdmaOperation,
    /// Flow that triggers this one: each message after the first `depth` is posted when a message of that flow arrives,
    /// not when one of its own completes.
    pub released_by: Option<u32>,
    /// Priority of the data, 0 to 7; none uses [`crate::Parameters::priority`].
    pub priority: Option<u8>,
    /// Group of the flow in results.
    pub group: u32,
}

impl FlowSpec {
    /// Creates a flow of one RDMA write of `bytes` bytes.
    #[must_use]
    pub const fn new(from: u32, to: u32, start_ps: u64, bytes: u64) -> Self {
        Self {
            from,
            to,
            start_ps,
            message_bytes: bytes,
            messages: 1,
            depth: 1,
            moderation: 1,
            operation: RdmaOperation::Write,
            released_by: None,
            priority: None,
            group: 0,
        }
    }

    /// Returns the payload of all messages in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.message_bytes.saturating_mul(self.messages)
    }

    /// Returns the hosts that send and receive the data.
    #[must_use]
    pub const fn data_endpoints(&self) -> (u32, u32) {
        match self.operation {
            RdmaOperation::Read => (self.to, self.from),
            RdmaOperation::Write | RdmaOperation::Send => (self.from, self.to),
        }
    }
}

/// Result of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowResult {
    /// Time at which the requester completed the last message.
    pub finished_ps: Option<u64>,
    /// Time at which the latest complete message arrived.
    pub arrived_ps: Option<u64>,
    /// Time at which the requester exhausted its retries.
    pub failed_ps: Option<u64>,
    /// Payload delivered in order, in bytes.
    pub delivered_bytes: u64,
    /// Number of completed messages.
    pub completed: u64,
    /// Data packets sent, including retransmissions.
    pub packets_sent: u64,
    /// Data packets sent more than once.
    pub packets_again: u64,
    /// Number of expirations of the retransmission timer.
    pub timeouts: u64,
    /// ECN marks and CNPs reported to the sender.
    pub marks: u64,
    /// Longest time without new in-order payload between the start of the flow and its last delivery, in picoseconds.
    pub stalled_ps_max: u64,
    /// Completion time in an idle network, in picoseconds ([`crate::Simulation::ideal_ps`]).
    pub ideal_ps: u64,
}
