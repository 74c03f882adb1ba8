//! Base RTT and ideal completion times in an idle network.

use super::model::RunModel;
use super::{FlowSpec, RdmaOperation};
use crate::parameters::WireModel;
use crate::time::transmission_ps;

/// Packet train of a flow, in bytes on the wire: first packet, a middle packet, sum of the middle packets, last packet.
struct Train {
    first: u32,
    middle: u32,
    middles: u64,
    last: u32,
    packets: u64,
}

impl RunModel {
    /// Returns the base RTT: a full packet on `path` and its acknowledgement on `back`.
    pub(super) fn round_trip_ps(&self, path: &[u32], back: &[u32]) -> u64 {
        let around = self.wire.frame_overhead;
        let data = self.parameters.mtu + self.wire.data_headers + around;
        self.frame_time_ps(path, data)
            + self.frame_time_ps(back, self.wire.acknowledgement + around)
    }

    /// Returns the base RTT of one flow for `base_rtt_of=own`; with HPCC frame sizes by the formula of that simulator.
    pub(super) fn own_round_trip_ps(&self, path: &[u32], back: &[u32]) -> u64 {
        match self.parameters.wire {
            WireModel::Ethernet => self.round_trip_ps(path, back),
            WireModel::Ns3Hpcc => {
                crate::hpcc::round_trip_ps(&self.network, path, u64::from(self.parameters.mtu)).0
            }
        }
    }

    /// Returns the time from the start of a flow to its last acknowledgement; of a read to its last response.
    pub(super) fn flow_ideal_ps(&self, path: &[u32], back: &[u32], flow: &FlowSpec) -> u64 {
        let back_frame = match flow.operation {
            RdmaOperation::Read => self.wire.read_request,
            _ => self.wire.acknowledgement,
        };
        let delays: u64 = path.iter().map(|port| self.delay_ps(*port)).sum();
        let lines = self.train_ps(path, &self.train(flow));
        lines + delays + self.frame_time_ps(back, back_frame + self.wire.frame_overhead)
    }

    /// Returns the time of one frame along the ports of a path, `wire_bytes` bytes on the wire.
    fn frame_time_ps(&self, path: &[u32], wire_bytes: u32) -> u64 {
        let line = |port: u32| self.network.ports[port as usize].line;
        path.iter().map(|port| self.delay_ps(*port) + line(*port).transmission_ps(wire_bytes)).sum()
    }

    fn train(&self, flow: &FlowSpec) -> Train {
        let (wire, mtu) = (&self.wire, u64::from(self.parameters.mtu));
        let is_read = flow.operation == RdmaOperation::Read;
        let has_first = flow.operation != RdmaOperation::Send;
        let each = flow.message_bytes.div_ceil(mtu);
        let payload = |is_last| {
            let rest = flow.message_bytes - (each - 1) * mtu;
            if is_last { rest as u32 } else { self.parameters.mtu }
        };
        let frame = |is_first: bool, is_last: bool| {
            wire.frame_overhead
                + wire.data_bytes(payload(is_last), is_first && has_first, is_last, is_read)
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

    /// Returns the serialization time of a train: the critical path over packets and links, which follows the first
    /// packet to some link, passes there to the last packet, and follows that one. Exact for one message; for several
    /// messages all middle packets are taken as equal.
    fn train_ps(&self, path: &[u32], train: &Train) -> u64 {
        let line = |link: usize| self.network.ports[path[link] as usize].line;
        let took = |links: std::ops::Range<usize>, bytes: u32| -> u64 {
            links.map(|link| line(link).transmission_ps(bytes)).sum()
        };
        let links = path.len();
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
