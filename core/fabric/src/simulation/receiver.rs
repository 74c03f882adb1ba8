//! The end of a queue pair to which data comes.

use super::requester::Requester;
use super::scoreboard::{Held, Sizes};
use super::sender::sizes;
use crate::flow::{Flow, Operation};
use crate::packet::NO_INDEX;
use crate::parameters::Parameters;

/// A flow whose messages are posted as those of another arrive at its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    Sender(u32),
    Receiver(u32),
}

#[derive(Debug)]
pub(super) struct Receiver {
    /// Its flow, in the whole run.
    pub(super) flow: u32,
    /// The port by which what it says leaves; none before it begins.
    pub(super) port: u32,
    /// The host that has to hear it, and the number of the sender there.
    pub(super) to: u32,
    pub(super) sender: u32,
    /// Of its data; what it says has another one.
    pub(super) hash: u32,
    pub(super) is_read: bool,
    pub(super) told_gap: bool,
    pub(super) priority: u8,
    pub(super) since_ack: u32,
    pub(super) marks: u32,

    pub(super) sizes: Sizes,
    pub(super) expected: u64,
    received_in_message: u64,
    pub(super) received_messages: u64,
    /// When payload was delivered last, or the flow began.
    delivered_ps: u64,
    pub(super) notified_ps: Option<u64>,
    /// Packets received out of order, where the recovery keeps them.
    pub(super) held: Held,
    /// Of a read: messages that were asked for, and for how long it waits for them (0: for ever).
    pub(super) asked: u64,
    pub(super) patience_ps: u64,
    pub(super) requester: Requester,
    /// Flow whose messages are posted as those of this one arrive.
    pub(super) releases: Option<Released>,

    pub(super) arrived_ps: Option<u64>,
    pub(super) delivered_bytes: u64,
    pub(super) stalled_ps_max: u64,
}

impl Receiver {
    pub(super) fn new(number: u32, flow: &Flow, parameters: &Parameters, hash: u32) -> Self {
        Self {
            flow: number,
            port: NO_INDEX,
            to: flow.data_way().0,
            sender: NO_INDEX,
            hash,
            is_read: flow.operation == Operation::Read,
            told_gap: false,
            priority: flow.priority.unwrap_or(parameters.priority),
            since_ack: 0,
            marks: 0,
            sizes: sizes(flow, parameters.mtu),
            expected: 0,
            received_in_message: 0,
            received_messages: 0,
            delivered_ps: flow.start_ps,
            notified_ps: None,
            held: Held::default(),
            asked: 0,
            patience_ps: 0,
            requester: Requester::new(flow, parameters),
            releases: None,
            arrived_ps: None,
            delivered_bytes: 0,
            stalled_ps_max: 0,
        }
    }

    /// The next packet came in order, and whether a message is whole with it.
    pub(super) fn accept(&mut self, payload: u32, now_ps: u64) -> bool {
        self.expected += 1;
        self.stalled_ps_max = self.stalled_ps_max.max(now_ps - self.delivered_ps);
        self.delivered_ps = now_ps;
        self.told_gap = false;
        self.delivered_bytes += u64::from(payload);
        self.received_in_message += 1;
        if self.received_in_message < self.sizes.packets_per_message {
            return false;
        }
        self.received_in_message = 0;
        self.received_messages += 1;
        true
    }

    /// The first packet of the message that comes after all that were asked for.
    pub(super) const fn asked_psn(&self) -> u64 {
        self.asked * self.sizes.packets_per_message
    }
}
