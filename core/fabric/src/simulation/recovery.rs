//! Selective recovery of RDMA queue pairs and TCP connections: additional sender state, and the handling of data and
//! acknowledgements.
//!
//! RDMA follows IRN (Mittal et al., SIGCOMM 2018): at most one BDP in flight, a short RTO with few packets in flight
//! and a long one otherwise; the requester acknowledges read responses. TCP has the RTO of RFC 6298 and the window of
//! its congestion control.

use crate::congestion::{Ack, Needs, PathProperties};
use crate::flow::RdmaOperation;
use crate::packet::{NO_INDEX, PacketId, PacketKind};
use crate::parameters::Parameters;
use crate::simulation::region::Region;
use crate::simulation::scoreboard::{PacketSizes, Scoreboard};
use crate::simulation::sender::SenderState;
use crate::time::PS_PER_SECOND;

/// Most doublings of the RTO (RFC 6298, 5.5; an upper bound of the RTO must be at least 60 s).
const DOUBLINGS_MAX: u32 = 6;

/// Additional state of a sender with selective recovery.
#[derive(Debug)]
pub(super) struct Selective {
    pub(super) board: Scoreboard,
    /// Limit on payload in flight, in addition to the congestion window.
    pub(super) window_bytes: u64,
    timeout: RetransmitTimeout,
}

/// Retransmission time-out.
#[derive(Debug)]
enum RetransmitTimeout {
    /// `low_ps` with at most `few` packets outstanding, otherwise `high_ps` (IRN).
    Fixed {
        few: usize,
        low_ps: u64,
        high_ps: u64,
    },
    Measured(RoundTrips),
}

/// RTT estimator of TCP (RFC 6298), in picoseconds.
#[derive(Debug)]
struct RoundTrips {
    smoothed: u64,
    variation: u64,
    least: u64,
    doublings: u32,
}

impl RoundTrips {
    fn add_sample(&mut self, round_trip: u64) {
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (round_trip, round_trip / 2);
        } else {
            let apart = self.smoothed.abs_diff(round_trip);
            self.variation = (3 * self.variation + apart) / 4;
            self.smoothed = (7 * self.smoothed + round_trip) / 8;
        }
    }

    fn timeout_ps(&self) -> u64 {
        let once = if self.smoothed == 0 {
            PS_PER_SECOND
        } else {
            (self.smoothed + 4 * self.variation).max(self.least)
        };
        once << self.doublings.min(DOUBLINGS_MAX)
    }
}

impl Selective {
    pub(super) fn new(
        parameters: &Parameters,
        path: &PathProperties,
        sizes: PacketSizes,
        needs: Needs,
    ) -> Self {
        let reorder = if needs.tcp { parameters.tcp_reorder } else { parameters.selective_reorder };
        let least = 3 * path.base_rtt_ps;
        let coalesced = u64::from(parameters.ack_every) * u64::from(path.mtu);
        let window = parameters.selective_window.map(|window| window.0);
        Self {
            board: Scoreboard::new(sizes, reorder, needs.samples),
            window_bytes: match window {
                _ if needs.tcp => u64::MAX,
                Some(0) => u64::MAX,
                Some(bytes) => bytes,
                None => path.bdp_bytes() + coalesced,
            },
            timeout: if needs.tcp {
                RetransmitTimeout::Measured(RoundTrips {
                    smoothed: 0,
                    variation: 0,
                    least: parameters.tcp_timeout_min.0,
                    doublings: 0,
                })
            } else {
                RetransmitTimeout::Fixed {
                    few: parameters.selective_few as usize,
                    low_ps: parameters.selective_timeout_low.0.max(least),
                    high_ps: parameters.selective_timeout_high.0.max(least),
                }
            },
        }
    }

    /// Returns the RTO. (The requester of a read does not know the packets in flight and uses the longer one.)
    pub(super) fn rto_ps(&self) -> u64 {
        match &self.timeout {
            RetransmitTimeout::Fixed { few, low_ps, .. } if self.board.outstanding() <= *few => {
                *low_ps
            }
            RetransmitTimeout::Fixed { high_ps, .. } => *high_ps,
            RetransmitTimeout::Measured(round_trips) => round_trips.timeout_ps(),
        }
    }

    /// Doubles the RTO of TCP after a time-out.
    pub(super) fn back_off(&mut self) {
        if let RetransmitTimeout::Measured(round_trips) = &mut self.timeout {
            round_trips.doublings += 1;
        }
    }

    fn add_round_trip(&mut self, round_trip_ps: u64) {
        if let RetransmitTimeout::Measured(round_trips) = &mut self.timeout {
            round_trips.add_sample(round_trip_ps);
            round_trips.doublings = 0;
        }
    }
}

impl Region {
    /// Handles a data packet at the receiver: in order, out of order or duplicate.
    pub(super) fn receive_selectively(&mut self, number: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (psn, is_marked) = (packet.psn, packet.marks > 0);
        let every = self.ack_every();
        let now_ps = self.now_ps;
        let receiver = &mut self.receivers[number as usize];
        receiver.marks += u32::from(is_marked);
        receiver.packets_since_ack += 1;
        let mut ahead = 0;
        // Out-of-order packets and packets that fill a gap are acknowledged at once (RFC 5681, section 4.2).
        let mut needs_ack = psn != receiver.expected || !receiver.reorder_buffer.is_empty();
        let mut is_message_complete = false;
        if psn >= receiver.expected {
            let is_new = receiver.reorder_buffer.insert(psn - receiver.expected);
            if is_new && receiver.is_read {
                receiver.requester.record_progress(now_ps);
            }
            while receiver.reorder_buffer.pop() {
                let bytes = receiver.sizes.of(receiver.expected) as u32;
                is_message_complete |= receiver.accept(bytes, now_ps);
            }
            ahead = psn.saturating_sub(receiver.expected) as u32;
        }
        needs_ack |= is_message_complete || receiver.packets_since_ack >= every;
        if is_message_complete {
            self.complete_message(number);
        }
        self.counts.consumed += 1;
        if needs_ack {
            let kind = if ahead > 0 { PacketKind::Nak } else { PacketKind::Ack };
            self.send_ack(number, id, kind, ahead);
        } else {
            self.remove_packet(id);
        }
    }

    /// Handles a cumulative acknowledgement at the sender, with an optional selective one of a single packet.
    pub(super) fn handle_selective_ack(&mut self, number: u32, id: PacketId) {
        let now_ps = self.now_ps;
        let packet = &self.packets[id];
        let sender = &mut self.senders[number as usize];
        let Some(selective) = &mut sender.selective else { return };
        if sender.state == SenderState::Ended {
            return;
        }
        let (psn, before) = (packet.psn, sender.requester.completed);
        let single = (packet.payload > 0).then(|| psn + u64::from(packet.payload));
        let board = &mut selective.board;
        let outcome = board.acknowledge(now_ps, psn, single);
        let is_event = outcome.is_loss && board.begin_recovery();
        let (in_flight_bytes, delivered_bytes) = (board.in_flight_bytes, board.delivered_bytes);
        let is_recovering = board.is_recovering();
        let round_trip_ps = now_ps - packet.sent_ps;
        selective.add_round_trip(round_trip_ps);
        if psn > sender.unacknowledged {
            sender.acknowledge(psn);
        }
        let is_read = sender.operation == RdmaOperation::Read;
        if outcome.bytes > 0 {
            sender.requester.record_progress(now_ps);
        }
        sender.marks += u64::from(packet.marks);
        if let Some(congestion) = &mut sender.congestion {
            let hops = match packet.telemetry {
                NO_INDEX => &[],
                index => self.telemetry[index].as_slice(),
            };
            let ack = Ack {
                now_ps,
                acknowledged: sender.unacknowledged,
                next: sender.next,
                packets: u32::from(packet.packets),
                marks: u32::from(packet.marks),
                round_trip_ps,
                hops,
                newly_bytes: outcome.bytes,
                in_flight_bytes,
                delivered_bytes,
                is_recovering,
                sample: outcome.sample,
            };
            if is_event {
                congestion.on_loss(&ack, &mut sender.pace);
            }
            congestion.on_ack(&ack, &mut sender.pace);
        }
        if !is_read && sender.unacknowledged < sender.next {
            // With fewer packets outstanding the RTO may be shorter.
            let progress_ps = sender.requester.progress_ps;
            self.arm_timer(number, progress_ps);
        }
        self.handle_completions(number, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6298 computed by hand: the first RTT sample, then a different one.
    #[test]
    fn rto_follows_rtt_samples() {
        let ms = PS_PER_SECOND / 1000;
        let least = 200 * ms;
        let mut trips = RoundTrips { smoothed: 0, variation: 0, least, doublings: 0 };
        assert_eq!(trips.timeout_ps(), PS_PER_SECOND);
        trips.add_sample(100 * ms);
        assert_eq!(trips.timeout_ps(), 300 * ms);
        trips.add_sample(180 * ms);
        assert_eq!(trips.smoothed, 110 * ms);
        assert_eq!(trips.variation, (150 * ms + 80 * ms) / 4);
        (0..100).for_each(|_| trips.add_sample(10 * ms));
        assert_eq!(trips.timeout_ps(), least);
        trips.doublings = 2;
        assert_eq!(trips.timeout_ps(), 4 * least);
    }
}
