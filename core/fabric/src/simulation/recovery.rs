//! Queue pairs and connections that send single packets again: what they have beside the rest, and what they do
//! with data and acknowledgements.
//!
//! RDMA as IRN (Mittal et al., SIGCOMM 2018): at most a bandwidth-delay product under way, a short time-out while few
//! packets are, a long one else; reads are acknowledged by who reads. TCP: time-outs of RFC 6298, and what its
//! congestion control allows under way.

use crate::congestion::{Ack, Needs, Path};
use crate::flow::Operation;
use crate::packet::{Content, NO_INDEX, PacketId};
use crate::parameters::Parameters;
use crate::simulation::region::Region;
use crate::simulation::scoreboard::{Scoreboard, Sizes};
use crate::simulation::sender::State;
use crate::time::PS_PER_SECOND;

/// A retransmission time-out doubles no more than so often (RFC 6298, 5.5: at most 60 s and more).
const DOUBLINGS_MAX: u32 = 6;

/// Additional state of a sender with selective recovery.
#[derive(Debug)]
pub(super) struct Selective {
    pub(super) board: Scoreboard,
    /// No more payload is under way, whatever congestion control allows.
    pub(super) window_bytes: u64,
    patience: Patience,
}

/// How long it waits for an acknowledgement.
#[derive(Debug)]
enum Patience {
    /// So long while so few packets are under way, and so long else.
    Fixed {
        few: usize,
        low_ps: u64,
        high_ps: u64,
    },
    Measured(RoundTrips),
}

/// Round trips as TCP measures them (RFC 6298), in picoseconds.
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
    pub(super) fn new(parameters: &Parameters, path: &Path, sizes: Sizes, needs: Needs) -> Self {
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
            patience: if needs.tcp {
                Patience::Measured(RoundTrips {
                    smoothed: 0,
                    variation: 0,
                    least: parameters.tcp_timeout_min.0,
                    doublings: 0,
                })
            } else {
                Patience::Fixed {
                    few: parameters.selective_few as usize,
                    low_ps: parameters.selective_timeout_low.0.max(least),
                    high_ps: parameters.selective_timeout_high.0.max(least),
                }
            },
        }
    }

    /// How long it waits. (Who reads does not know how much is under way, and waits the longer time.)
    pub(super) fn patience_ps(&self) -> u64 {
        match &self.patience {
            Patience::Fixed { few, low_ps, .. } if self.board.outstanding() <= *few => *low_ps,
            Patience::Fixed { high_ps, .. } => *high_ps,
            Patience::Measured(round_trips) => round_trips.timeout_ps(),
        }
    }

    /// It waited in vain.
    pub(super) fn back_off(&mut self) {
        if let Patience::Measured(round_trips) = &mut self.patience {
            round_trips.doublings += 1;
        }
    }

    fn add_round_trip(&mut self, round_trip_ps: u64) {
        if let Patience::Measured(round_trips) = &mut self.patience {
            round_trips.add_sample(round_trip_ps);
            round_trips.doublings = 0;
        }
    }
}

impl Region {
    /// A data packet is at its host: in order, behind a gap, or there already.
    pub(super) fn receive_selectively(&mut self, number: u32, id: PacketId) {
        let packet = &self.packets[id];
        let (psn, is_marked) = (packet.psn, packet.marks > 0);
        let every = self.ack_every();
        let now_ps = self.now_ps;
        let receiver = &mut self.receivers[number as usize];
        receiver.marks += u32::from(is_marked);
        receiver.since_ack += 1;
        let mut ahead = 0;
        // Whatever is not simply the next is told at once (RFC 5681, section 4.2).
        let mut is_told = psn != receiver.expected || !receiver.held.is_empty();
        let mut is_whole = false;
        if psn >= receiver.expected {
            let is_new = receiver.held.keep(psn - receiver.expected);
            if is_new && receiver.is_read {
                receiver.requester.record_progress(now_ps);
            }
            while receiver.held.pop() {
                let bytes = receiver.sizes.of(receiver.expected) as u32;
                is_whole |= receiver.accept(bytes, now_ps);
            }
            ahead = psn.saturating_sub(receiver.expected) as u32;
        }
        is_told |= is_whole || receiver.since_ack >= every;
        if is_whole {
            self.message_arrived(number);
        }
        self.counts.consumed += 1;
        if is_told {
            let content = if ahead > 0 { Content::Nak } else { Content::Ack };
            self.answer(number, id, content, ahead);
        } else {
            self.remove_packet(id);
        }
    }

    /// An acknowledgement is at the sender: of all before a number, and perhaps of one packet above it.
    pub(super) fn acknowledged_selectively(&mut self, number: u32, id: PacketId) {
        let now_ps = self.now_ps;
        let packet = &self.packets[id];
        let sender = &mut self.senders[number as usize];
        let Some(selective) = &mut sender.selective else { return };
        if sender.state == State::Over {
            return;
        }
        let (psn, before) = (packet.psn, sender.requester.completed);
        let single = (packet.payload > 0).then(|| psn + u64::from(packet.payload));
        let board = &mut selective.board;
        let news = board.acknowledge(now_ps, psn, single);
        let is_event = news.is_loss && board.begin_recovery();
        let (in_flight_bytes, delivered_bytes) = (board.in_flight_bytes, board.delivered_bytes);
        let is_recovering = board.is_recovering();
        let round_trip_ps = now_ps - packet.sent_ps;
        selective.add_round_trip(round_trip_ps);
        if psn > sender.unacknowledged {
            sender.acknowledge(psn);
        }
        let is_read = sender.operation == Operation::Read;
        if news.bytes > 0 {
            sender.requester.record_progress(now_ps);
        }
        sender.marks += u64::from(packet.marks);
        if let Some(congestion) = &mut sender.congestion {
            let hops = match packet.telemetry {
                NO_INDEX => &[],
                place => self.telemetry[place].as_slice(),
            };
            let ack = Ack {
                now_ps,
                acknowledged: sender.unacknowledged,
                next: sender.next,
                packets: u32::from(packet.packets),
                marks: u32::from(packet.marks),
                round_trip_ps,
                hops,
                newly_bytes: news.bytes,
                in_flight_bytes,
                delivered_bytes,
                is_recovering,
                sample: news.sample,
            };
            if is_event {
                congestion.on_loss(&ack, &mut sender.pace);
            }
            congestion.on_ack(&ack, &mut sender.pace);
        }
        if !is_read && sender.unacknowledged < sender.next {
            // Fewer packets under way can mean less patience.
            let heard_ps = sender.requester.progress_ps;
            self.set_timer(number, heard_ps);
        }
        self.completed(number, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6298 by hand: the first round trip, then one that differs.
    #[test]
    fn time_outs_follow_round_trips() {
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
