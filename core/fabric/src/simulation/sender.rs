//! The end of a queue pair from which data comes.

use super::recovery::Selective;
use super::requester::Requester;
use super::scoreboard::Sizes;
use crate::congestion::{Congestion, Pace};
use crate::flow::{Flow, Operation};
use crate::packet::NO_INDEX;
use crate::parameters::Parameters;

/// Half of the numbers that 24 bits have: more cannot be under way (InfiniBand 9.7.5.1.1).
const PACKETS_MAX: u64 = 1 << 23;

/// Scheduling state of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has nothing that it may send.
    Idle,
    /// In the line of those that send next.
    Ready,
    /// An event for its next packet is ahead.
    Paced,
    /// All is done, or it failed.
    Over,
}

/// A packet that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) psn: u64,
    pub(super) payload: u32,
    /// True for the first packet of its message.
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

#[derive(Debug)]
pub(super) struct Sender {
    /// Its flow, in the whole run.
    pub(super) flow: u32,
    /// The port by which data leaves; none before it begins.
    pub(super) port: u32,
    /// The host to which it goes, and the number of the receiver there.
    pub(super) to: u32,
    pub(super) receiver: u32,
    /// In the list of those that are ready.
    pub(super) next_ready: u32,
    pub(super) hash: u32,
    pub(super) state: State,
    pub(super) operation: Operation,
    pub(super) priority: u8,

    mtu: u32,
    last_payload: u32,
    pub(super) packets_per_message: u64,
    message_bytes: u64,

    /// The next packet, and where in its message it is.
    pub(super) next: u64,
    in_message: u64,
    /// The first that is not acknowledged.
    pub(super) unacknowledged: u64,
    /// The first that was never sent.
    fresh: u64,
    /// No packet from this number on may be sent yet.
    limit: u64,
    in_flight_bytes: u64,
    pub(super) next_at_ps: u64,
    pub(super) pace: Pace,
    pub(super) congestion: Option<Box<dyn Congestion>>,
    /// Where single packets are sent again.
    pub(super) selective: Option<Box<Selective>>,
    next_completion: u64,
    /// Of a write or send.
    pub(super) requester: Requester,

    pub(super) packets_sent: u64,
    pub(super) packets_again: u64,
    pub(super) marks: u64,
}

/// Sizes of the packets of a flow.
pub(super) fn sizes(flow: &Flow, mtu: u32) -> Sizes {
    let packets_per_message = flow.message_bytes.div_ceil(u64::from(mtu)).max(1);
    let last = flow.message_bytes - (packets_per_message - 1) * u64::from(mtu);
    Sizes { full: mtu, last: last as u32, packets_per_message }
}

impl Sender {
    pub(super) fn new(number: u32, flow: &Flow, parameters: &Parameters, hash: u32) -> Self {
        let Sizes { full, last, packets_per_message } = sizes(flow, parameters.mtu);
        Self {
            flow: number,
            port: NO_INDEX,
            to: flow.data_way().1,
            receiver: NO_INDEX,
            next_ready: NO_INDEX,
            hash,
            state: State::Idle,
            operation: flow.operation,
            priority: flow.priority.unwrap_or(parameters.priority),
            mtu: full,
            last_payload: last,
            packets_per_message,
            message_bytes: flow.message_bytes,
            next: 0,
            in_message: 0,
            unacknowledged: 0,
            fresh: 0,
            limit: 0,
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

    /// The packets of so many messages may be sent.
    pub(super) fn set_limit(&mut self, messages: u64) {
        self.limit = self.limit.max(messages.saturating_mul(self.packets_per_message));
    }

    pub(super) fn can_send(&mut self) -> bool {
        if let Some(selective) = &mut self.selective {
            let window = self.pace.window_bytes.min(selective.window_bytes);
            return self.state != State::Over
                && selective.board.in_flight_bytes < window
                && (selective.board.has_lost()
                    || self.next < self.limit && self.next - self.unacknowledged < PACKETS_MAX);
        }
        self.next < self.limit
            && self.in_flight_bytes < self.pace.window_bytes
            && (self.next - self.unacknowledged < PACKETS_MAX || self.operation == Operation::Read)
            && self.state != State::Over
    }

    /// Bytes of all packets before a number.
    pub(super) const fn offset(&self, packet: u64) -> u64 {
        packet / self.packets_per_message * self.message_bytes
            + packet % self.packets_per_message * self.mtu as u64
    }

    /// Sizes of its packets.
    pub(super) const fn sizes(&self) -> Sizes {
        Sizes {
            full: self.mtu,
            last: self.last_payload,
            packets_per_message: self.packets_per_message,
        }
    }

    /// Takes the next packet.
    pub(super) fn take(&mut self, now_ps: u64) -> Taken {
        self.packets_sent += 1;
        if let Some(selective) = &mut self.selective {
            let (psn, is_new) = selective.board.take(now_ps);
            if is_new {
                self.next += 1;
                if self.next >= self.limit {
                    selective.board.run_out();
                }
            } else {
                self.packets_again += 1;
            }
            let in_message = psn % self.packets_per_message;
            let is_last = in_message + 1 == self.packets_per_message;
            let payload = if is_last { self.last_payload } else { self.mtu };
            return Taken { psn, payload, is_first: in_message == 0, is_last };
        }
        let psn = self.next;
        let is_first = self.in_message == 0;
        let is_last = self.in_message + 1 == self.packets_per_message;
        let payload = if is_last { self.last_payload } else { self.mtu };
        self.in_message = if is_last { 0 } else { self.in_message + 1 };
        self.next += 1;
        self.in_flight_bytes += u64::from(payload);
        if self.next <= self.fresh {
            self.packets_again += 1;
        } else {
            self.fresh = self.next;
        }
        Taken { psn, payload, is_first, is_last }
    }

    /// Goes back to a packet.
    pub(super) const fn go_back(&mut self, packet: u64) {
        self.next = packet;
        self.in_message = packet % self.packets_per_message;
        self.in_flight_bytes = 0;
    }

    /// Sends again from a packet on, or what is missing from there on.
    pub(super) fn give_up(&mut self, packet: u64) {
        match &mut self.selective {
            Some(selective) => selective.board.give_up(packet),
            None => self.go_back(packet),
        }
    }

    /// Packets before this one are there. Call with a number above the first that is not.
    pub(super) fn acknowledge(&mut self, packet: u64) {
        self.unacknowledged = packet;
        if self.selective.is_none() {
            if self.next < packet {
                // What was sent before going back arrived after all.
                self.go_back(packet);
            } else if self.pace.window_bytes != u64::MAX {
                self.in_flight_bytes = self.offset(self.next) - self.offset(packet);
            }
        }
        if self.operation == Operation::Read {
            // Messages of a read are complete where they arrive.
            return;
        }
        while self.next_completion <= packet {
            self.requester.completed += 1;
            self.next_completion += self.packets_per_message;
        }
    }
}
