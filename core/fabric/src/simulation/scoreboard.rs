//! Selective repeat: what a sender knows of each packet that is under way, and what a receiver holds out of order.
//!
//! As IRN has it (Mittal et al., Revisiting network support for RDMA, SIGCOMM 2018, section 3.1), and TCP with selective
//! acknowledgements: the receiver keeps what comes out of order and tells of each such packet with the number that it
//! expects; the sender sends what is missing, alone. A packet is lost when one that lies `reorder` numbers or more
//! above it has arrived (1: IRN; 3: the duplicate acknowledgements of RFC 6675, counted as forward acknowledgement
//! does); one that was sent again is lost again when one that was new after it has arrived. All else is for time-outs.

use std::collections::VecDeque;

use crate::congestion::Sample;

/// Delivery state of a packet at or above the first unacknowledged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    UnderWay,
    /// At the receiver, behind a gap.
    Arrived,
    /// It has to be sent again.
    Lost,
    /// It was sent again.
    Again,
}

/// Payload of packets by their number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) full: u32,
    pub(super) last: u32,
    pub(super) packets_per_message: u64,
}

impl Sizes {
    pub(super) const fn of(&self, psn: u64) -> u64 {
        if (psn + 1).is_multiple_of(self.packets_per_message) {
            self.last as u64
        } else {
            self.full as u64
        }
    }
}

/// When a packet left, as a sample of the rate of delivery needs it (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy)]
struct Departure {
    sent_ps: u64,
    /// When the packet left that had been acknowledged last.
    first_sent_ps: u64,
    /// Delivered bytes at that time, and the time of the acknowledgement that reported them.
    delivered_bytes: u64,
    delivered_ps: u64,
    is_app_limited: bool,
}

/// Information of one acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct News {
    /// Payload that is known to have arrived now and was not before.
    pub(super) bytes: u64,
    /// Something was found to be lost.
    pub(super) is_loss: bool,
    pub(super) sample: Sample,
}

/// Scoreboard of a sender: the delivery state of its packets in flight.
#[derive(Debug)]
pub(super) struct Scoreboard {
    sizes: Sizes,
    reorder: u64,
    /// From packet `first` on.
    fates: VecDeque<Fate>,
    first: u64,
    /// Above every packet that arrived.
    top: u64,
    /// Packets below were judged.
    judged: u64,
    lost: VecDeque<u64>,
    /// Retransmitted packets, each with the next new packet at that time.
    again: VecDeque<(u64, u64)>,
    pub(super) in_flight_bytes: u64,
    /// Until all below has arrived, losses are of one event.
    recovers_until: Option<u64>,
    /// For samples; empty where nobody asks for them.
    departures: Option<VecDeque<Departure>>,
    pub(super) delivered_bytes: u64,
    delivered_ps: u64,
    first_sent_ps: u64,
    /// Until so much is delivered, samples are of a sender that had no more to send.
    limited_until_bytes: u64,
}

impl Scoreboard {
    pub(super) fn new(sizes: Sizes, reorder: u32, with_samples: bool) -> Self {
        Self {
            sizes,
            reorder: u64::from(reorder),
            fates: VecDeque::new(),
            first: 0,
            top: 0,
            judged: 0,
            lost: VecDeque::new(),
            again: VecDeque::new(),
            in_flight_bytes: 0,
            recovers_until: None,
            departures: with_samples.then(VecDeque::new),
            delivered_bytes: 0,
            delivered_ps: 0,
            first_sent_ps: 0,
            limited_until_bytes: 0,
        }
    }

    /// The first packet that was never sent.
    fn next(&self) -> u64 {
        self.first + self.fates.len() as u64
    }

    fn fate(&self, psn: u64) -> Option<Fate> {
        self.fates.get(usize::try_from(psn.checked_sub(self.first)?).ok()?).copied()
    }

    fn set(&mut self, psn: u64, fate: Fate) {
        self.fates[(psn - self.first) as usize] = fate;
    }

    /// True if a packet awaits retransmission.
    pub(super) fn has_lost(&mut self) -> bool {
        while let Some(psn) = self.lost.front() {
            if self.fate(*psn) == Some(Fate::Lost) {
                return true;
            }
            self.lost.pop_front();
        }
        false
    }

    /// How many packets are not acknowledged with all before them.
    pub(super) fn outstanding(&self) -> usize {
        self.fates.len()
    }

    /// Takes the next packet to send: one that was lost, or else a new one. Gives its number and whether it is new.
    pub(super) fn take(&mut self, now_ps: u64) -> (u64, bool) {
        if self.in_flight_bytes == 0 {
            // A path that stood still tells nothing of its rate.
            (self.first_sent_ps, self.delivered_ps) = (now_ps, now_ps);
        }
        let next = self.next();
        let departure = Departure {
            sent_ps: now_ps,
            first_sent_ps: self.first_sent_ps,
            delivered_bytes: self.delivered_bytes,
            delivered_ps: self.delivered_ps,
            is_app_limited: self.delivered_bytes < self.limited_until_bytes,
        };
        if self.has_lost()
            && let Some(psn) = self.lost.pop_front()
        {
            self.set(psn, Fate::Again);
            self.again.push_back((psn, next));
            self.in_flight_bytes += self.sizes.of(psn);
            if let Some(departures) = &mut self.departures {
                departures[(psn - self.first) as usize] = departure;
            }
            return (psn, false);
        }
        self.fates.push_back(Fate::UnderWay);
        self.in_flight_bytes += self.sizes.of(next);
        if let Some(departures) = &mut self.departures {
            departures.push_back(departure);
        }
        (next, true)
    }

    /// The sender has nothing more to send although it might.
    pub(super) const fn run_out(&mut self) {
        self.limited_until_bytes = self.delivered_bytes + self.in_flight_bytes;
    }

    /// All packets before `cumulative` have arrived, and `single` has.
    pub(super) fn acknowledge(
        &mut self,
        now_ps: u64,
        cumulative: u64,
        single: Option<u64>,
    ) -> News {
        let mut news = News::default();
        let mut latest: Option<Departure> = None;
        let newer = |latest: &mut Option<Departure>, departure: Option<Departure>| {
            if let Some(departure) = departure
                && latest.is_none_or(|other| departure.sent_ps >= other.sent_ps)
            {
                *latest = Some(departure);
            }
        };
        while self.first < cumulative {
            let Some(fate) = self.fates.pop_front() else { break };
            let bytes = self.sizes.of(self.first);
            let departure = self.departures.as_mut().and_then(VecDeque::pop_front);
            if fate != Fate::Arrived {
                news.bytes += bytes;
                newer(&mut latest, departure);
            }
            if matches!(fate, Fate::UnderWay | Fate::Again) {
                self.in_flight_bytes -= bytes;
            }
            self.first += 1;
        }
        if let Some(psn) = single
            && let Some(fate) = self.fate(psn)
            && fate != Fate::Arrived
        {
            let bytes = self.sizes.of(psn);
            if fate != Fate::Lost {
                self.in_flight_bytes -= bytes;
            }
            self.set(psn, Fate::Arrived);
            news.bytes += bytes;
            let at = (psn - self.first) as usize;
            newer(&mut latest, self.departures.as_ref().map(|departures| departures[at]));
            self.top = self.top.max(psn + 1);
        }
        self.top = self.top.max(self.first);
        self.judged = self.judged.max(self.first);
        if self.recovers_until.is_some_and(|until| self.first >= until) {
            self.recovers_until = None;
        }
        if news.bytes > 0 {
            self.delivered_bytes += news.bytes;
            self.delivered_ps = now_ps;
            news.sample = self.sample(latest);
        }
        news.is_loss = self.judge();
        news
    }

    fn sample(&mut self, latest: Option<Departure>) -> Sample {
        let Some(departure) = latest else { return Sample::default() };
        self.first_sent_ps = departure.sent_ps;
        let sending = departure.sent_ps - departure.first_sent_ps;
        let hearing = self.delivered_ps - departure.delivered_ps;
        Sample {
            bytes: self.delivered_bytes - departure.delivered_bytes,
            interval_ps: sending.max(hearing),
            delivered_before: departure.delivered_bytes,
            is_app_limited: departure.is_app_limited,
        }
    }

    /// Finds what is lost; true where there is something.
    fn judge(&mut self) -> bool {
        let mut found = false;
        while let Some((psn, new_then)) = self.again.front().copied() {
            if new_then + self.reorder > self.top {
                break;
            }
            self.again.pop_front();
            found |= self.lose(psn, Fate::Again);
        }
        let end = self.next();
        while self.judged < end && self.judged + self.reorder < self.top {
            found |= self.lose(self.judged, Fate::UnderWay);
            self.judged += 1;
        }
        found
    }

    fn lose(&mut self, psn: u64, from: Fate) -> bool {
        if self.fate(psn) != Some(from) {
            return false;
        }
        self.set(psn, Fate::Lost);
        self.in_flight_bytes -= self.sizes.of(psn);
        self.lost.push_back(psn);
        true
    }

    /// Losses begin; false where they belong to those that are being mended.
    pub(super) fn begin_recovery(&mut self) -> bool {
        let is_new = self.recovers_until.is_none();
        if is_new {
            self.recovers_until = Some(self.next());
        }
        is_new
    }

    /// True during a loss recovery.
    pub(super) const fn is_recovering(&self) -> bool {
        self.recovers_until.is_some()
    }

    /// Everything that is not known to have arrived is lost, from `from` on.
    pub(super) fn give_up(&mut self, from: u64) {
        self.again.clear();
        self.lost.clear();
        let end = self.next();
        for psn in from.max(self.first)..end {
            match self.fate(psn) {
                Some(Fate::UnderWay | Fate::Again) => {
                    self.in_flight_bytes -= self.sizes.of(psn);
                    self.set(psn, Fate::Lost);
                }
                Some(Fate::Lost) => {}
                _ => continue,
            }
            self.lost.push_back(psn);
        }
        self.judged = end;
        self.recovers_until = Some(end);
    }

    /// True if the counters agree with the packets' states.
    pub(super) fn audit(&self) -> bool {
        let fates = self.fates.iter().zip(self.first..);
        let in_flight = fates.filter(|(fate, _)| matches!(fate, Fate::UnderWay | Fate::Again));
        in_flight.map(|(_, psn)| self.sizes.of(psn)).sum::<u64>() == self.in_flight_bytes
    }
}

/// The receiving end: which packets above the expected one are there.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// From the expected packet on, which itself is not there.
    there: VecDeque<bool>,
}

impl Held {
    /// A packet came `ahead` numbers above the expected one, or is it; true where it is new.
    pub(super) fn keep(&mut self, ahead: u64) -> bool {
        let at = ahead as usize;
        if self.there.len() <= at {
            self.there.resize(at + 1, false);
        }
        !std::mem::replace(&mut self.there[at], true)
    }

    /// Takes the expected packet where it is there.
    pub(super) fn pop(&mut self) -> bool {
        let is_there = self.there.front() == Some(&true);
        if is_there {
            self.there.pop_front();
        }
        is_there
    }

    /// Nothing is kept behind a gap.
    pub(super) fn is_empty(&self) -> bool {
        self.there.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scoreboard(reorder: u32) -> Scoreboard {
        Scoreboard::new(Sizes { full: 1000, last: 200, packets_per_message: 4 }, reorder, false)
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
        // 2 and 4 are lost again: 8 was sent after them, and arrives.
        let news = board.acknowledge(0, 2, Some(8));
        assert!(news.is_loss);
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
        board.give_up(0);
        assert_eq!(board.in_flight_bytes, 0);
        let sent: Vec<u64> = (0..5).map(|_| board.take(0).0).collect();
        assert_eq!(sent, [0, 1, 2, 4, 5]);
    }

    #[test]
    fn delivery_rate_samples_span_one_rtt() {
        let sizes = Sizes { full: 1000, last: 1000, packets_per_message: 1 };
        let mut board = Scoreboard::new(sizes, 3, true);
        // A packet each 10, heard of after 100.
        let mut rates = Vec::new();
        for step in 0..40_u64 {
            board.take(step * 10);
            if step >= 10 {
                let news = board.acknowledge(step * 10, step - 9, None);
                rates.push((news.sample.bytes, news.sample.interval_ps));
            }
        }
        assert_eq!(rates[0], (1000, 100));
        assert_eq!(rates[29], (11_000, 110));
    }

    proptest! {
        /// Packets that are lost, delayed and come twice, and acknowledgements that are lost: everything arrives once, and
        /// every counter is what is there.
        #[test]
        fn everything_arrives_once(seed: u64, loss in 0_u64..60, reorder in 1_u32..5, window in 1_usize..40) {
            let mut random = crate::random::Random::new(seed, "scoreboard", 0);
            let sizes = Sizes { full: 100, last: 7, packets_per_message: 3 };
            let mut board = Scoreboard::new(sizes, reorder, true);
            let (mut held, mut expected, mut line) = (Held::default(), 0_u64, VecDeque::new());
            let (total, mut delivered) = (200_u64, 0);
            for step in 0..100_000_u64 {
                if expected >= total && board.outstanding() == 0 {
                    break;
                }
                if board.outstanding() < window && board.next() < total || board.has_lost() {
                    line.push_back(board.take(step).0);
                } else if line.is_empty() {
                    board.give_up(0);
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
                        held.keep(psn - expected);
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
