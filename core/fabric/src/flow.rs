//! Demand on the hosts: a flow is a queue pair with messages of one size.

/// RDMA operation of the requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Writes into the memory of the other: RDMA write.
    Write,
    /// Sends into buffers that the other provides: without the RDMA header.
    Send,
    /// Reads from the memory of the other: data comes from there, and nobody acknowledges it.
    Read,
}

/// A queue pair and its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The host that asks.
    pub from: u32,
    /// Number of the responder's host.
    pub to: u32,
    /// Start time in picoseconds.
    pub start_ps: u64,
    /// Size of a message, above 0.
    pub message_bytes: u64,
    /// How many, above 0.
    pub messages: u64,
    /// How many are posted before the first completes.
    pub depth: u64,
    /// Completions that the program sees at once (perftest's cq-mod).
    pub moderation: u64,
    /// RDMA operation of its messages.
    pub operation: Operation,
    /// Messages after the first `depth` are posted each as one of that flow has arrived, not as their own complete.
    pub released_by: Option<u32>,
    /// Priority of its data; none: that of the run.
    pub priority: Option<u8>,
    /// To which set of flows it belongs in results.
    pub group: u32,
}

impl Flow {
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
            operation: Operation::Write,
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

    /// The host from which data comes, and that to which it goes.
    #[must_use]
    pub const fn data_way(&self) -> (u32, u32) {
        match self.operation {
            Operation::Read => (self.to, self.from),
            Operation::Write | Operation::Send => (self.from, self.to),
        }
    }
}

/// Result of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowResult {
    /// When its last message was complete at the host that asked.
    pub finished_ps: Option<u64>,
    /// When the last message that is there had arrived.
    pub arrived_ps: Option<u64>,
    /// When it was given up.
    pub failed_ps: Option<u64>,
    /// Payload that arrived in order.
    pub delivered_bytes: u64,
    /// Messages that are complete.
    pub completed: u64,
    /// Data packets that were sent, again included.
    pub packets_sent: u64,
    /// Of them, sent again.
    pub packets_again: u64,
    /// Times that it waited in vain for an acknowledgement.
    pub timeouts: u64,
    /// Marks and notifications that its sender heard of.
    pub marks: u64,
    /// Longest time without new payload, from the start to the last that was delivered.
    pub stalled_ps_max: u64,
    /// Time without any other traffic, as [`crate::Simulation::ideal_ps`] has it.
    pub ideal_ps: u64,
}
