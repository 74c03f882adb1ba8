//! Data-receiving end of a queue pair: the responder of writes and sends, the requester of reads.

use super::requester::Requester;
use super::scoreboard::{PacketSizes, ReorderBuffer};
use super::sender::sizes;
use crate::flow::{FlowSpec, RdmaOperation};
use crate::packet::NO_INDEX;
use crate::parameters::Parameters;

/// End of a flow whose messages are posted when those of another flow arrive at its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    Sender(u32),
    Receiver(u32),
}

#[derive(Debug)]
pub(super) struct QpReceiver {
    /// Flow number in the run.
    pub(super) flow: u32,
    /// Egress port of its control packets; [`NO_INDEX`] before it starts.
    pub(super) port: u32,
    /// Host of the sender, and the number of the sender in its region.
    pub(super) to: u32,
    pub(super) sender: u32,
    /// ECMP hash of the data; control packets have another one.
    pub(super) hash: u32,
    pub(super) is_read: bool,
    pub(super) nak_sent: bool,
    pub(super) priority: u8,
    pub(super) packets_since_ack: u32,
    pub(super) marks: u32,

    pub(super) sizes: PacketSizes,
    pub(super) expected: u64,
    received_in_message: u64,
    pub(super) received_messages: u64,
    /// Time of the last in-order delivery, initially the start of the flow.
    delivered_ps: u64,
    pub(super) last_cnp_ps: Option<u64>,
    /// Packets received out of order, with selective recovery.
    pub(super) reorder_buffer: ReorderBuffer,
    /// Reads: messages requested, and the time-out of a request (0: none).
    pub(super) requested: u64,
    pub(super) timeout_ps: u64,
    pub(super) requester: Requester,
    /// Flow whose messages are posted when those of this one arrive.
    pub(super) releases: Option<Released>,

    pub(super) arrived_ps: Option<u64>,
    pub(super) delivered_bytes: u64,
    pub(super) stalled_ps_max: u64,
}

impl QpReceiver {
    pub(super) fn new(number: u32, flow: &FlowSpec, parameters: &Parameters, hash: u32) -> Self {
        Self {
            flow: number,
            port: NO_INDEX,
            to: flow.data_endpoints().0,
            sender: NO_INDEX,
            hash,
            is_read: flow.operation == RdmaOperation::Read,
            nak_sent: false,
            priority: flow.priority.unwrap_or(parameters.priority),
            packets_since_ack: 0,
            marks: 0,
            sizes: sizes(flow, parameters.mtu),
            expected: 0,
            received_in_message: 0,
            received_messages: 0,
            delivered_ps: flow.start_ps,
            last_cnp_ps: None,
            reorder_buffer: ReorderBuffer::default(),
            requested: 0,
            timeout_ps: 0,
            requester: Requester::new(flow, parameters),
            releases: None,
            arrived_ps: None,
            delivered_bytes: 0,
            stalled_ps_max: 0,
        }
    }

    /// Delivers the expected packet; returns true if it completes a message.
    pub(super) fn accept(&mut self, payload: u32, now_ps: u64) -> bool {
        self.expected += 1;
        self.stalled_ps_max = self.stalled_ps_max.max(now_ps - self.delivered_ps);
        self.delivered_ps = now_ps;
        self.nak_sent = false;
        self.delivered_bytes += u64::from(payload);
        self.received_in_message += 1;
        if self.received_in_message < self.sizes.packets_per_message {
            return false;
        }
        self.received_in_message = 0;
        self.received_messages += 1;
        true
    }

    /// Returns the PSN of the first packet of the next message to request.
    pub(super) const fn requested_psn(&self) -> u64 {
        self.requested * self.sizes.packets_per_message
    }
}
