//! How long things take in an empty network.

use super::model::Model;
use super::{Flow, Operation};
use crate::parameters::WireModel;
use crate::time::transmission_ps;

/// Bytes on the line of the packets of a flow: the first, one in the middle, all in the middle, and the last.
struct Train {
    first: u32,
    middle: u32,
    middles: u64,
    last: u32,
    packets: u64,
}

impl Model {
    /// A full packet there and its acknowledgement back.
    pub(super) fn round_trip_ps(&self, way: &[u32], back: &[u32]) -> u64 {
        let around = self.wire.around_frame;
        let data = self.parameters.mtu + self.wire.data_headers + around;
        self.pass_ps(way, data) + self.pass_ps(back, self.wire.acknowledgement + around)
    }

    /// The round trip of one flow as `base_rtt_of=own` has it: with the sizes of the HPCC simulator by its formula.
    pub(super) fn own_round_trip_ps(&self, way: &[u32], back: &[u32]) -> u64 {
        match self.parameters.wire {
            WireModel::Ethernet => self.round_trip_ps(way, back),
            WireModel::Ns3Hpcc => {
                crate::hpcc::round_trip_ps(&self.network, way, u64::from(self.parameters.mtu)).0
            }
        }
    }

    /// From the start of a flow until its last acknowledgement, or for a read from its request until its last data.
    pub(super) fn ideal_over(&self, way: &[u32], back: &[u32], flow: &Flow) -> u64 {
        let back_frame = match flow.operation {
            Operation::Read => self.wire.read_request,
            _ => self.wire.acknowledgement,
        };
        let delays: u64 = way.iter().map(|port| self.delay_ps(*port)).sum();
        let lines = self.train_ps(way, &self.train(flow));
        lines + delays + self.pass_ps(back, back_frame + self.wire.around_frame)
    }

    /// A frame on its way through ports.
    fn pass_ps(&self, way: &[u32], on_line: u32) -> u64 {
        let line = |port: u32| self.network.ports[port as usize].line;
        way.iter().map(|port| self.delay_ps(*port) + line(*port).transmission_ps(on_line)).sum()
    }

    fn train(&self, flow: &Flow) -> Train {
        let (wire, mtu) = (&self.wire, u64::from(self.parameters.mtu));
        let is_read = flow.operation == Operation::Read;
        let has_first = flow.operation != Operation::Send;
        let each = flow.message_bytes.div_ceil(mtu);
        let payload = |is_last| {
            let rest = flow.message_bytes - (each - 1) * mtu;
            if is_last { rest as u32 } else { self.parameters.mtu }
        };
        let frame = |is_first: bool, is_last: bool| {
            wire.around_frame + wire.data(payload(is_last), is_first && has_first, is_last, is_read)
        };
        let (first, last, middle) =
            (frame(true, each == 1), frame(each == 1, true), frame(false, false));
        let message = if each == 1 {
            u64::from(first)
        } else {
            u64::from(first) + u64::from(last) + (each - 2) * u64::from(middle)
        };
        let packets = each * flow.messages;
        let middles = (message * flow.messages).saturating_sub(if packets == 1 {
            u64::from(first)
        } else {
            u64::from(first + last)
        });
        Train { first, middle, middles, last, packets }
    }

    /// Lines alone: the longest way through all packets and links, which goes down links with the first packet, over to
    /// the last one at some link, and down with that one. Exact for a message; for several it takes all packets in
    /// the middle as alike where they go down.
    fn train_ps(&self, way: &[u32], train: &Train) -> u64 {
        let line = |link: usize| self.network.ports[way[link] as usize].line;
        let took = |links: std::ops::Range<usize>, bytes: u32| -> u64 {
            links.map(|link| line(link).transmission_ps(bytes)).sum()
        };
        let links = way.len();
        let mut longest = 0;
        for down in 0..links {
            let before = took(0..down + 1, train.first);
            if train.packets == 1 {
                longest = longest.max(before);
                continue;
            }
            if train.packets == 2 {
                longest = longest.max(before + took(down..links, train.last));
                continue;
            }
            for over in down..links {
                let across = transmission_ps(train.middles, line(over).bits_per_second());
                let middle = took(down..over, train.middle);
                for up in over..links {
                    let sum = before
                        + middle
                        + across
                        + took(over + 1..up + 1, train.middle)
                        + took(up..links, train.last);
                    longest = longest.max(sum);
                }
            }
        }
        longest
    }
}
