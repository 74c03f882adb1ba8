//! Selective repeat: scoreboard of the sender and reorder buffer of the receiver.
//!
//! As IRN (Mittal et al., Revisiting network support for RDMA, SIGCOMM 2018, section 3.1) and TCP with SACK: the
//! receiver keeps out-of-order packets and acknowledges each one selectively together with the expected PSN; the
//! sender retransmits only missing packets. A packet is considered lost once a packet `reorder` or more above it has
//! arrived (1: IRN; 3: the DupThresh of RFC 6675, counted as by forward acknowledgement). A retransmitted packet is
//! lost again once a packet that was first sent `reorder` or more after it has arrived. All other losses are left to
//! time-outs.

use std::collections::VecDeque;

use crate::congestion::DeliveryRate;

/// Delivery state of a packet at or above the first unacknowledged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PacketState {
    InFlight,
    /// Selectively acknowledged.
    Arrived,
    /// Considered lost, awaits retransmission.
    Lost,
    /// Retransmitted and in flight.
    Retransmitted,
}

/// Payload sizes of a flow's packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketSizes {
    pub(super) full: u32,
    pub(super) last: u32,
    pub(super) packets_per_message: u64,
}

impl PacketSizes {
    pub(super) const fn of(&self, psn: u64) -> u64 {
        if (psn + 1).is_multiple_of(self.packets_per_message) {
            self.last as u64
        } else {
            self.full as u64
        }
    }
}

/// Delivery state when a packet was sent, for rate samples (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy)]
struct Departure {
    sent_ps: u64,
    /// Departure time of the packet that was acknowledged last.
    first_sent_ps: u64,
    /// Bytes delivered by then, and the time of the acknowledgement that reported them.
    delivered_bytes: u64,
    delivered_ps: u64,
    is_app_limited: bool,
}

/// Outcome of one acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct AckOutcome {
    /// Newly acknowledged payload in bytes.
    pub(super) bytes: u64,
    /// True if packets were found lost.
    pub(super) is_loss: bool,
    pub(super) sample: DeliveryRate,
}

/// Scoreboard of a sender: the delivery state of its packets in flight.
#[derive(Debug)]
pub(super) struct Scoreboard {
    sizes: PacketSizes,
    reorder: u64,
    /// States of the packets from `first` on.
    states: VecDeque<PacketState>,
    first: u64,
    /// One above the highest packet that arrived.
    arrived_end: u64,
    /// Packets below have been checked for loss.
    checked_end: u64,
    lost: VecDeque<u64>,
    /// Retransmitted packets, each with the next new packet at that time.
    retransmitted: VecDeque<(u64, u64)>,
    pub(super) in_flight_bytes: u64,
    /// During recovery: losses belong to the same event until all packets below this one have arrived.
    recovery_end: Option<u64>,
    /// Departures of the packets from `first` on; none without rate samples.
    departures: Option<VecDeque<Departure>>,
    pub(super) delivered_bytes: u64,
    delivered_ps: u64,
    first_sent_ps: u64,
    /// Packets sent before this many bytes are delivered are application-limited.
    app_limited_until_bytes: u64,
}

impl Scoreboard {
    pub(super) fn new(sizes: PacketSizes, reorder: u32, with_samples: bool) -> Self {
        Self {
            sizes,
            reorder: u64::from(reorder),
            states: VecDeque::new(),
            first: 0,
            arrived_end: 0,
            checked_end: 0,
            lost: VecDeque::new(),
            retransmitted: VecDeque::new(),
            in_flight_bytes: 0,
            recovery_end: None,
            departures: with_samples.then(VecDeque::new),
            delivered_bytes: 0,
            delivered_ps: 0,
            first_sent_ps: 0,
            app_limited_until_bytes: 0,
        }
    }

    /// Returns the first packet that was never sent.
    fn next(&self) -> u64 {
        self.first + self.states.len() as u64
    }

    fn state(&self, psn: u64) -> Option<PacketState> {
        self.states.get(usize::try_from(psn.checked_sub(self.first)?).ok()?).copied()
    }

    fn set(&mut self, psn: u64, state: PacketState) {
        self.states[(psn - self.first) as usize] = state;
    }

    /// True if a packet awaits retransmission.
    pub(super) fn has_lost(&mut self) -> bool {
        while let Some(psn) = self.lost.front() {
            if self.state(*psn) == Some(PacketState::Lost) {
                return true;
            }
            self.lost.pop_front();
        }
        false
    }

    /// Returns the number of sent packets that are not cumulatively acknowledged.
    pub(super) fn outstanding(&self) -> usize {
        self.states.len()
    }

    /// Takes the next packet to send, a lost one before a new one; returns its PSN and whether it is new.
    pub(super) fn take(&mut self, now_ps: u64) -> (u64, bool) {
        if self.in_flight_bytes == 0 {
            // After an idle period the measurement restarts.
            (self.first_sent_ps, self.delivered_ps) = (now_ps, now_ps);
        }
        let next = self.next();
        let departure = Departure {
            sent_ps: now_ps,
            first_sent_ps: self.first_sent_ps,
            delivered_bytes: self.delivered_bytes,
            delivered_ps: self.delivered_ps,
            is_app_limited: self.delivered_bytes < self.app_limited_until_bytes,
        };
        if self.has_lost()
            && let Some(psn) = self.lost.pop_front()
        {
            self.set(psn, PacketState::Retransmitted);
            self.retransmitted.push_back((psn, next));
            self.in_flight_bytes += self.sizes.of(psn);
            if let Some(departures) = &mut self.departures {
                departures[(psn - self.first) as usize] = departure;
            }
            return (psn, false);
        }
        self.states.push_back(PacketState::InFlight);
        self.in_flight_bytes += self.sizes.of(next);
        if let Some(departures) = &mut self.departures {
            departures.push_back(departure);
        }
        (next, true)
    }

    /// Marks the sender as application-limited: it has no more data to send.
    pub(super) const fn mark_app_limited(&mut self) {
        self.app_limited_until_bytes = self.delivered_bytes + self.in_flight_bytes;
    }

    /// Applies an acknowledgement of all packets before `cumulative` and of the packet `single`.
    pub(super) fn acknowledge(
        &mut self,
        now_ps: u64,
        cumulative: u64,
        single: Option<u64>,
    ) -> AckOutcome {
        let mut outcome = AckOutcome::default();
        let mut latest: Option<Departure> = None;
        let newer = |latest: &mut Option<Departure>, departure: Option<Departure>| {
            if let Some(departure) = departure
                && latest.is_none_or(|other| departure.sent_ps >= other.sent_ps)
            {
                *latest = Some(departure);
            }
        };
        while self.first < cumulative {
            let Some(state) = self.states.pop_front() else { break };
            let bytes = self.sizes.of(self.first);
            let departure = self.departures.as_mut().and_then(VecDeque::pop_front);
            if state != PacketState::Arrived {
                outcome.bytes += bytes;
                newer(&mut latest, departure);
            }
            if matches!(state, PacketState::InFlight | PacketState::Retransmitted) {
                self.in_flight_bytes -= bytes;
            }
            self.first += 1;
        }
        if let Some(psn) = single
            && let Some(state) = self.state(psn)
            && state != PacketState::Arrived
        {
            let bytes = self.sizes.of(psn);
            if state != PacketState::Lost {
                self.in_flight_bytes -= bytes;
            }
            self.set(psn, PacketState::Arrived);
            outcome.bytes += bytes;
            let at = (psn - self.first) as usize;
            newer(&mut latest, self.departures.as_ref().map(|departures| departures[at]));
            self.arrived_end = self.arrived_end.max(psn + 1);
        }
        self.arrived_end = self.arrived_end.max(self.first);
        self.checked_end = self.checked_end.max(self.first);
        if self.recovery_end.is_some_and(|until| self.first >= until) {
            self.recovery_end = None;
        }
        if outcome.bytes > 0 {
            self.delivered_bytes += outcome.bytes;
            self.delivered_ps = now_ps;
            outcome.sample = self.sample(latest);
        }
        outcome.is_loss = self.detect_losses();
        outcome
    }

    fn sample(&mut self, latest: Option<Departure>) -> DeliveryRate {
        let Some(departure) = latest else { return DeliveryRate::default() };
        self.first_sent_ps = departure.sent_ps;
        let sending = departure.sent_ps - departure.first_sent_ps;
        let acking = self.delivered_ps - departure.delivered_ps;
        DeliveryRate {
            bytes: self.delivered_bytes - departure.delivered_bytes,
            interval_ps: sending.max(acking),
            delivered_before: departure.delivered_bytes,
            is_app_limited: departure.is_app_limited,
        }
    }

    /// Detects lost packets; returns true if there are any.
    fn detect_losses(&mut self) -> bool {
        let mut found = false;
        while let Some((psn, new_then)) = self.retransmitted.front().copied() {
            if new_then + self.reorder > self.arrived_end {
                break;
            }
            self.retransmitted.pop_front();
            found |= self.mark_lost(psn, PacketState::Retransmitted);
        }
        let end = self.next();
        while self.checked_end < end && self.checked_end + self.reorder < self.arrived_end {
            found |= self.mark_lost(self.checked_end, PacketState::InFlight);
            self.checked_end += 1;
        }
        found
    }

    fn mark_lost(&mut self, psn: u64, from: PacketState) -> bool {
        if self.state(psn) != Some(from) {
            return false;
        }
        self.set(psn, PacketState::Lost);
        self.in_flight_bytes -= self.sizes.of(psn);
        self.lost.push_back(psn);
        true
    }

    /// Starts a recovery; returns false if one is in progress.
    pub(super) fn begin_recovery(&mut self) -> bool {
        let is_new = self.recovery_end.is_none();
        if is_new {
            self.recovery_end = Some(self.next());
        }
        is_new
    }

    /// True during a loss recovery.
    pub(super) const fn is_recovering(&self) -> bool {
        self.recovery_end.is_some()
    }

    /// Marks all packets from `from` on as lost, except selectively acknowledged ones.
    pub(super) fn mark_all_lost(&mut self, from: u64) {
        self.retransmitted.clear();
        self.lost.clear();
        let end = self.next();
        for psn in from.max(self.first)..end {
            match self.state(psn) {
                Some(PacketState::InFlight | PacketState::Retransmitted) => {
                    self.in_flight_bytes -= self.sizes.of(psn);
                    self.set(psn, PacketState::Lost);
                }
                Some(PacketState::Lost) => {}
                _ => continue,
            }
            self.lost.push_back(psn);
        }
        self.checked_end = end;
        self.recovery_end = Some(end);
    }

    /// True if the counters agree with the packets' states.
    pub(super) fn audit(&self) -> bool {
        let states = self.states.iter().zip(self.first..);
        let in_flight = states.filter(|(state, _)| {
            matches!(state, PacketState::InFlight | PacketState::Retransmitted)
        });
        in_flight.map(|(_, psn)| self.sizes.of(psn)).sum::<u64>() == self.in_flight_bytes
    }
}

/// Receiver state: which packets from the expected one on have arrived.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    /// Arrival flags from the expected packet on.
    arrived: VecDeque<bool>,
}

impl ReorderBuffer {
    /// Records the packet `ahead` above the expected one; returns true if it is new.
    pub(super) fn insert(&mut self, ahead: u64) -> bool {
        let at = ahead as usize;
        if self.arrived.len() <= at {
            self.arrived.resize(at + 1, false);
        }
        !std::mem::replace(&mut self.arrived[at], true)
    }

    /// Removes the expected packet if it has arrived.
    pub(super) fn pop(&mut self) -> bool {
        let has_arrived = self.arrived.front() == Some(&true);
        if has_arrived {
            self.arrived.pop_front();
        }
        has_arrived
    }

    /// True if no packet is held out of order.
    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scoreboard(reorder: u32) -> Scoreboard {
        Scoreboard::new(
            PacketSizes { full: 1000, last: 200, packets_per_message: 4 },
            reorder,
            false,
        )
    }

    #[test]
    fn only_missing_packets_are_retransmitted() {
        let mut board = scoreboard(1);
        (0..8).for_each(|psn| assert_eq!(board.take(0), (psn, true)));
        assert_eq!(board.in_flight_bytes, 6400);
        assert_eq!(board.acknowledge(0, 2, None).bytes, 2000);
        // 2 and 4 are missing.
        assert!(board.acknowledge(0, 2, Some(3)).is_loss && board.begin_recovery());
        assert!(board.acknowledge(0, 2, Some(5)).is_loss && !board.begin_recovery());
        assert_eq!(board.in_flight_bytes, 1000 + 200);
        assert_eq!(
            (board.take(0), board.take(0), board.take(0)),
            ((2, false), (4, false), (8, true))
        );
        // 2 and 4 are lost again: 8, first sent after them, arrives.
        let outcome = board.acknowledge(0, 2, Some(8));
        assert!(outcome.is_loss);
        assert_eq!(
            (board.take(0), board.take(0), board.take(0)),
            ((2, false), (4, false), (6, false))
        );
        assert!(board.is_recovering());
        assert_eq!(board.acknowledge(0, 9, None).bytes, 1000 + 1000 + 1000 + 200);
        assert!(!board.is_recovering() && !board.has_lost());
        assert_eq!((board.in_flight_bytes, board.outstanding()), (0, 0));
    }

    #[test]
    fn slight_reordering_is_not_loss() {
        let mut board = scoreboard(3);
        (0..8).for_each(|psn| assert_eq!(board.take(0).0, psn));
        assert!(!board.acknowledge(0, 0, Some(1)).is_loss);
        assert!(!board.acknowledge(0, 0, Some(2)).is_loss);
        assert!(board.acknowledge(0, 0, Some(3)).is_loss);
        assert_eq!(board.take(0), (0, false));
    }

    #[test]
    fn timeout_retransmits_all_missing_packets() {
        let mut board = scoreboard(3);
        (0..5).for_each(|psn| assert_eq!(board.take(0).0, psn));
        board.acknowledge(0, 0, Some(3));
        board.mark_all_lost(0);
        assert_eq!(board.in_flight_bytes, 0);
        let sent: Vec<u64> = (0..5).map(|_| board.take(0).0).collect();
        assert_eq!(sent, [0, 1, 2, 4, 5]);
    }

    #[test]
    fn delivery_rate_samples_span_one_rtt() {
        let sizes = PacketSizes { full: 1000, last: 1000, packets_per_message: 1 };
        let mut board = Scoreboard::new(sizes, 3, true);
        // One packet every 10 ps, acknowledged after 100 ps.
        let mut rates = Vec::new();
        for step in 0..40_u64 {
            board.take(step * 10);
            if step >= 10 {
                let outcome = board.acknowledge(step * 10, step - 9, None);
                rates.push((outcome.sample.bytes, outcome.sample.interval_ps));
            }
        }
        assert_eq!(rates[0], (1000, 100));
        assert_eq!(rates[29], (11_000, 110));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// With lost, delayed and duplicate packets and lost acknowledgements, every packet is delivered once and the
        /// counters stay consistent.
        #[test]
        fn lossy_link_delivers_packets_once(seed: u64, loss in 0_u64..60, reorder in 1_u32..5, window in 1_usize..40) {
            let mut random = penstock_random::Random::stream(seed, "scoreboard", 0);
            let sizes = PacketSizes { full: 100, last: 7, packets_per_message: 3 };
            let mut board = Scoreboard::new(sizes, reorder, true);
            let (mut held, mut expected, mut line) = (ReorderBuffer::default(), 0_u64, VecDeque::new());
            let (total, mut delivered) = (200_u64, 0);
            for step in 0..100_000_u64 {
                if expected >= total && board.outstanding() == 0 {
                    break;
                }
                if board.outstanding() < window && board.next() < total || board.has_lost() {
                    line.push_back(board.take(step).0);
                } else if line.is_empty() {
                    board.mark_all_lost(0);
                }
                prop_assert!(board.audit());
                if random.below(100) < 70 && let Some(psn) = line.pop_front() {
                    if random.below(100) < loss {
                        continue;
                    }
                    if random.below(100) < 10 {
                        line.push_back(psn);
                        continue;
                    }
                    if psn >= expected {
                        held.insert(psn - expected);
                        while held.pop() {
                            expected += 1;
                        }
                    }
                    if random.below(100) >= loss {
                        let single = (psn > expected).then_some(psn);
                        delivered += board.acknowledge(step, expected, single).bytes;
                        prop_assert!(board.audit());
                    }
                }
            }
            prop_assert_eq!(expected, total);
            let bytes: u64 = (0..total).map(|psn| sizes.of(psn)).sum();
            prop_assert_eq!((delivered, board.in_flight_bytes), (bytes, 0));
        }
    }
}
