//! Data-sending end of a queue pair: the requester of writes and sends, the responder of reads.

use super::recovery::Selective;
use super::requester::Requester;
use super::scoreboard::PacketSizes;
use crate::congestion::{Congestion, Pace};
use crate::flow::{FlowSpec, RdmaOperation};
use crate::packet::NO_INDEX;
use crate::parameters::Parameters;

/// Most packets in flight: half of the 24-bit PSN space (InfiniBand 9.7.5.1.1).
const PACKETS_MAX: u64 = 1 << 23;

/// Scheduling state of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SenderState {
    /// Nothing may be sent now.
    Idle,
    /// In the ready list of its port and priority.
    Ready,
    /// Waits for the pacing gap; an event is pending.
    Paced,
    /// Completed or failed.
    Ended,
}

/// Packet that a sender may send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextPacket {
    pub(super) psn: u64,
    pub(super) payload: u32,
    /// True for the first packet of its message.
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

#[derive(Debug)]
pub(super) struct QpSender {
    /// Flow number in the run.
    pub(super) flow: u32,
    /// Egress port of the data; [`NO_INDEX`] before it starts.
    pub(super) port: u32,
    /// Host of the receiver, and the number of the receiver in its region.
    pub(super) to: u32,
    pub(super) receiver: u32,
    /// Successor in the ready list.
    pub(super) next_ready: u32,
    pub(super) hash: u32,
    pub(super) state: SenderState,
    pub(super) operation: RdmaOperation,
    pub(super) priority: u8,

    mtu: u32,
    last_payload: u32,
    pub(super) packets_per_message: u64,
    message_bytes: u64,

    /// PSN of the next packet, and its index in its message.
    pub(super) next: u64,
    in_message: u64,
    /// First PSN that is not acknowledged.
    pub(super) unacknowledged: u64,
    /// First PSN that was never sent.
    first_unsent: u64,
    /// End (exclusive) of the packets that may be sent.
    send_limit: u64,
    in_flight_bytes: u64,
    pub(super) next_at_ps: u64,
    pub(super) pace: Pace,
    pub(super) congestion: Option<Box<dyn Congestion>>,
    /// State of selective recovery, if enabled.
    pub(super) selective: Option<Box<Selective>>,
    next_completion: u64,
    /// Requester state of a write or send; unused for reads.
    pub(super) requester: Requester,

    pub(super) packets_sent: u64,
    pub(super) packets_again: u64,
    pub(super) marks: u64,
}

/// Returns the packet sizes of a flow.
pub(super) fn sizes(flow: &FlowSpec, mtu: u32) -> PacketSizes {
    let packets_per_message = flow.message_bytes.div_ceil(u64::from(mtu)).max(1);
    let last = flow.message_bytes - (packets_per_message - 1) * u64::from(mtu);
    PacketSizes { full: mtu, last: last as u32, packets_per_message }
}

impl QpSender {
    pub(super) fn new(number: u32, flow: &FlowSpec, parameters: &Parameters, hash: u32) -> Self {
        let PacketSizes { full, last, packets_per_message } = sizes(flow, parameters.mtu);
        Self {
            flow: number,
            port: NO_INDEX,
            to: flow.data_endpoints().1,
            receiver: NO_INDEX,
            next_ready: NO_INDEX,
            hash,
            state: SenderState::Idle,
            operation: flow.operation,
            priority: flow.priority.unwrap_or(parameters.priority),
            mtu: full,
            last_payload: last,
            packets_per_message,
            message_bytes: flow.message_bytes,
            next: 0,
            in_message: 0,
            unacknowledged: 0,
            first_unsent: 0,
            send_limit: 0,
            in_flight_bytes: 0,
            next_at_ps: 0,
            pace: Pace { rate_bps: u64::MAX, window_bytes: u64::MAX, has_timers: false },
            congestion: None,
            selective: None,
            next_completion: packets_per_message,
            requester: Requester::new(flow, parameters),
            packets_sent: 0,
            packets_again: 0,
            marks: 0,
        }
    }

    /// Allows the packets of the first `messages` messages to be sent.
    pub(super) fn set_limit(&mut self, messages: u64) {
        self.send_limit = self.send_limit.max(messages.saturating_mul(self.packets_per_message));
    }

    pub(super) fn can_send(&mut self) -> bool {
        if let Some(selective) = &mut self.selective {
            let window = self.pace.window_bytes.min(selective.window_bytes);
            return self.state != SenderState::Ended
                && selective.board.in_flight_bytes < window
                && (selective.board.has_lost()
                    || self.next < self.send_limit
                        && self.next - self.unacknowledged < PACKETS_MAX);
        }
        self.next < self.send_limit
            && self.in_flight_bytes < self.pace.window_bytes
            && (self.next - self.unacknowledged < PACKETS_MAX
                || self.operation == RdmaOperation::Read)
            && self.state != SenderState::Ended
    }

    /// Returns the payload of all packets before a PSN, in bytes.
    pub(super) const fn offset(&self, packet: u64) -> u64 {
        packet / self.packets_per_message * self.message_bytes
            + packet % self.packets_per_message * self.mtu as u64
    }

    /// Returns the packet sizes of the flow.
    pub(super) const fn sizes(&self) -> PacketSizes {
        PacketSizes {
            full: self.mtu,
            last: self.last_payload,
            packets_per_message: self.packets_per_message,
        }
    }

    /// Takes the next packet.
    pub(super) fn take(&mut self, now_ps: u64) -> NextPacket {
        self.packets_sent += 1;
        if let Some(selective) = &mut self.selective {
            let (psn, is_new) = selective.board.take(now_ps);
            if is_new {
                self.next += 1;
                if self.next >= self.send_limit {
                    selective.board.mark_app_limited();
                }
            } else {
                self.packets_again += 1;
            }
            let in_message = psn % self.packets_per_message;
            let is_last = in_message + 1 == self.packets_per_message;
            let payload = if is_last { self.last_payload } else { self.mtu };
            return NextPacket { psn, payload, is_first: in_message == 0, is_last };
        }
        let psn = self.next;
        let is_first = self.in_message == 0;
        let is_last = self.in_message + 1 == self.packets_per_message;
        let payload = if is_last { self.last_payload } else { self.mtu };
        self.in_message = if is_last { 0 } else { self.in_message + 1 };
        self.next += 1;
        self.in_flight_bytes += u64::from(payload);
        if self.next <= self.first_unsent {
            self.packets_again += 1;
        } else {
            self.first_unsent = self.next;
        }
        NextPacket { psn, payload, is_first, is_last }
    }

    /// Continues sending from a packet (go-back-N).
    pub(super) const fn go_back(&mut self, packet: u64) {
        self.next = packet;
        self.in_message = packet % self.packets_per_message;
        self.in_flight_bytes = 0;
    }

    /// Retransmits from a packet on; with selective recovery only what is missing.
    pub(super) fn retransmit_from(&mut self, packet: u64) {
        match &mut self.selective {
            Some(selective) => selective.board.mark_all_lost(packet),
            None => self.go_back(packet),
        }
    }

    /// Applies a cumulative acknowledgement, which has to be above the first unacknowledged PSN.
    pub(super) fn acknowledge(&mut self, packet: u64) {
        self.unacknowledged = packet;
        if self.selective.is_none() {
            if self.next < packet {
                // Packets sent before the go-back arrived after all.
                self.go_back(packet);
            } else if self.pace.window_bytes != u64::MAX {
                self.in_flight_bytes = self.offset(self.next) - self.offset(packet);
            }
        }
        if self.operation == RdmaOperation::Read {
            // Reads complete at the receiver.
            return;
        }
        while self.next_completion <= packet {
            self.requester.completed += 1;
            self.next_completion += self.packets_per_message;
        }
    }
}
