//! Queue pairs: what each end of one knows.

use crate::congestion::{Congestion, Pace};
use crate::flow::{Flow, FlowResult, Operation};
use crate::parameters::Parameters;
use crate::simulation::recovery::Selective;
use crate::simulation::scoreboard::Sizes;

/// Half of the numbers that 24 bits have: more cannot be under way (InfiniBand 9.7.5.1.1).
const PACKETS_MAX: u64 = 1 << 23;

/// Where the sending end of a queue pair is.
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
    /// Of its message.
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

#[derive(Debug)]
pub(super) struct Pair {
    /// The port by which data leaves, and that by which what is for the sender leaves.
    pub(super) port: u32,
    pub(super) far_port: u32,
    pub(super) data_from: u32,
    pub(super) data_to: u32,
    /// In the list of those that are ready.
    pub(super) next_ready: u32,
    pub(super) hash: u32,
    pub(super) state: State,
    pub(super) operation: Operation,
    pub(super) priority: u8,
    /// When the pair looks whether it waited too long; never: [`u64::MAX`].
    pub(super) timer_ps: u64,
    pub(super) retries: u32,

    mtu: u32,
    last_payload: u32,
    pub(super) packets_per_message: u64,
    message_bytes: u64,
    messages: u64,
    depth: u64,
    moderation: u64,
    outstanding: u64,

    // The end that sends.
    /// The next packet, and where in its message it is.
    pub(super) next: u64,
    in_message: u64,
    /// The first that is not acknowledged.
    pub(super) unacknowledged: u64,
    /// The first that was never sent.
    pub(super) fresh: u64,
    /// No packet from this number on may be sent yet.
    limit: u64,
    in_flight_bytes: u64,
    pub(super) next_at_ps: u64,
    pub(super) pace: Pace,
    pub(super) congestion: Option<Box<dyn Congestion>>,
    /// Where single packets are sent again.
    pub(super) selective: Option<Box<Selective>>,
    pub(super) progress_ps: u64,
    next_completion: u64,

    // The end that receives.
    pub(super) expected: u64,
    /// When payload was delivered last, or the flow began.
    pub(super) delivered_ps: u64,
    pub(super) received_in_message: u64,
    pub(super) since_ack: u32,
    pub(super) marks: u32,
    pub(super) told_gap: bool,
    pub(super) notified_ps: Option<u64>,
    pub(super) received_messages: u64,
    /// Of a read: messages that were asked for.
    pub(super) asked: u64,

    /// The pair whose messages are posted as those of this one arrive.
    pub(super) releases: Option<u32>,
    pub(super) is_released: bool,
    pub(super) posted: u64,
    pub(super) result: FlowResult,
}

impl Pair {
    pub(super) fn new(flow: &Flow, parameters: &Parameters, hash: u32) -> Self {
        let (mtu, outstanding) = (parameters.mtu, parameters.outstanding_messages);
        let priority = flow.priority.unwrap_or(parameters.priority);
        let packets_per_message = flow.message_bytes.div_ceil(u64::from(mtu)).max(1);
        let last = flow.message_bytes - (packets_per_message - 1) * u64::from(mtu);
        let (data_from, data_to) = flow.data_way();
        Self {
            port: u32::MAX,
            far_port: u32::MAX,
            data_from,
            data_to,
            next_ready: u32::MAX,
            hash,
            state: State::Idle,
            operation: flow.operation,
            priority,
            timer_ps: u64::MAX,
            retries: 0,
            mtu,
            last_payload: last as u32,
            packets_per_message,
            message_bytes: flow.message_bytes,
            messages: flow.messages,
            depth: flow.depth,
            moderation: flow.moderation.clamp(1, flow.depth.max(1)),
            outstanding: if outstanding == 0 { u64::MAX } else { u64::from(outstanding) },
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
            progress_ps: 0,
            next_completion: packets_per_message,
            expected: 0,
            delivered_ps: 0,
            received_in_message: 0,
            since_ack: 0,
            marks: 0,
            told_gap: false,
            notified_ps: None,
            received_messages: 0,
            asked: 0,
            releases: None,
            is_released: flow.released_by.is_some(),
            posted: 0,
            result: FlowResult::default(),
        }
    }

    /// Messages that may be under way now, as posting and the host allow.
    pub(super) fn allowed(&self) -> u64 {
        self.posted.min(self.result.completed.saturating_add(self.outstanding))
    }

    /// Posts what completions or arrivals of others allow. `arrived` counts messages of the pair that releases.
    pub(super) fn post(&mut self, arrived: u64) {
        let more = if self.is_released {
            arrived
        } else {
            self.result.completed / self.moderation * self.moderation
        };
        self.posted = self.messages.min(self.depth.saturating_add(more)).max(self.posted);
    }

    /// The sender may send the packets of so many messages.
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

    pub(super) fn is_done(&self) -> bool {
        self.result.completed == self.messages
    }

    /// Bytes of all packets before a number.
    pub(super) fn offset(&self, packet: u64) -> u64 {
        packet / self.packets_per_message * self.message_bytes
            + packet % self.packets_per_message * u64::from(self.mtu)
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
        self.result.packets_sent += 1;
        if let Some(selective) = &mut self.selective {
            let (psn, is_new) = selective.board.take(now_ps);
            if is_new {
                self.next += 1;
                if self.next >= self.limit {
                    selective.board.run_out();
                }
            } else {
                self.result.packets_again += 1;
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
            self.result.packets_again += 1;
        } else {
            self.fresh = self.next;
        }
        Taken { psn, payload, is_first, is_last }
    }

    /// Goes back to a packet.
    pub(super) fn go_back(&mut self, packet: u64) {
        self.next = packet;
        self.in_message = packet % self.packets_per_message;
        self.in_flight_bytes = 0;
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
            self.result.completed += 1;
            self.next_completion += self.packets_per_message;
        }
    }

    /// The next packet came in order, and whether a message is whole with it.
    pub(super) fn accept(&mut self, payload: u32, now_ps: u64) -> bool {
        self.expected += 1;
        self.result.stalled_ps_max = self.result.stalled_ps_max.max(now_ps - self.delivered_ps);
        self.delivered_ps = now_ps;
        self.told_gap = false;
        self.result.delivered_bytes += u64::from(payload);
        self.received_in_message += 1;
        if self.received_in_message < self.packets_per_message {
            return false;
        }
        self.received_in_message = 0;
        self.received_messages += 1;
        true
    }
}
