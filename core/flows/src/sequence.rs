//! Loss detection in sequence numbers that may be late, duplicated or restarted.
//!
//! Numbers have 32 bits and wrap. A skipped number counts as lost until it arrives within the last
//! [`SEQUENCE_WINDOW`] numbers; a naive count goes negative under reordering and duplicates
//! (netsampler/goflow2#161).

use std::collections::VecDeque;

/// Largest distance behind the newest number at which a number is late or a duplicate.
pub const SEQUENCE_WINDOW: u32 = 64;

/// A jump of up to this many numbers is never a restart.
pub const JUMP_MIN: u32 = 50;

/// A jump of more numbers is always a restart.
pub const JUMP_MAX: u32 = 65_536;

/// Classification of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The first one, or the first one after a restart.
    Start,
    /// The next one, with this many missing before it.
    Next {
        /// Count of missing numbers.
        missing: u32,
    },
    /// A number below the newest one that had not arrived.
    Late,
    /// A number that arrived before.
    Duplicate,
}

/// State of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sequence {
    newest: Option<u32>,
    /// Bit i: the number i before the newest has arrived.
    seen: u64,
    /// Bit i: the number i before the newest precedes the start, and is not missing.
    before_start: u64,
    run: u32,
    /// Numbers that arrived, without duplicates.
    pub received: u64,
    /// Numbers that have not arrived.
    pub lost: u64,
    /// Numbers that arrived twice.
    pub duplicates: u64,
    /// Count of restarts of the sequence.
    pub restarts: u64,
}

impl Sequence {
    /// Resets the sequence: the next number is a start.
    pub fn restart(&mut self) {
        if self.newest.take().is_some() {
            self.restarts += 1;
        }
    }

    /// Classifies a number and updates the counts.
    ///
    /// Agents restart at 1, and jumps of more than about 50 are mostly restarts (sflow.org
    /// discussion 0092). A busy exporter can lose more than that at once, so a jump counts as loss
    /// up to as many numbers as arrived since the last start.
    #[inline]
    pub fn arrive(&mut self, number: u32) -> Arrival {
        let Some(newest) = self.newest else { return self.start(number) };
        let ahead = number.wrapping_sub(newest);
        if ahead == 1 {
            self.newest = Some(number);
            self.seen = self.seen << 1 | 1;
            self.before_start <<= 1;
            self.run = self.run.saturating_add(1);
            self.received += 1;
            return Arrival::Next { missing: 0 };
        }
        if ahead == 0 {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        if ahead <= u32::MAX / 2 {
            if ahead > self.run.clamp(JUMP_MIN, JUMP_MAX) {
                self.restarts += 1;
                return self.start(number);
            }
            self.newest = Some(number);
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.before_start = self.before_start.checked_shl(ahead).unwrap_or(0);
            self.run = self.run.saturating_add(1);
            self.received += 1;
            self.lost += u64::from(ahead - 1);
            return Arrival::Next { missing: ahead - 1 };
        }
        let behind = newest.wrapping_sub(number);
        if behind >= SEQUENCE_WINDOW {
            self.restarts += 1;
            return self.start(number);
        }
        if self.seen >> behind & 1 == 1 {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        self.seen |= 1 << behind;
        self.received += 1;
        if self.before_start >> behind & 1 == 0 {
            self.lost = self.lost.saturating_sub(1);
        }
        Arrival::Late
    }

    fn start(&mut self, number: u32) -> Arrival {
        self.newest = Some(number);
        // Numbers before the start are not missing, but may arrive: the first two may be swapped.
        self.seen = 1;
        self.before_start = !1;
        self.run = 1;
        self.received += 1;
        Arrival::Start
    }
}

/// Most gaps in the numbers of records that late datagrams can fill.
const RECORD_GAPS_MAX: usize = 64;

/// Datagrams below the next number, of which none fills a gap, that show a restart.
const RESTART_DATAGRAMS: u32 = 8;

/// Loss detection in numbers of records (RFC 7011 3.1): the number of a datagram is that of its
/// first record.
#[derive(Debug, Default)]
pub(crate) struct RecordSequence {
    next: Option<u32>,
    /// Missing records: the first number and the count of each gap, oldest first.
    gaps: VecDeque<(u32, u32)>,
    /// Consecutive datagrams below the next number that fill no gap.
    unexplained: u32,
    /// Hashes of the last datagrams.
    hashes: VecDeque<u64>,
    /// Records that have not arrived.
    pub(crate) lost: u64,
}

impl RecordSequence {
    /// Returns true if a datagram with this hash is one of the last [`SEQUENCE_WINDOW`].
    pub(crate) fn is_duplicate(&mut self, hash: u64) -> bool {
        if self.hashes.contains(&hash) {
            return true;
        }
        if self.hashes.len() >= SEQUENCE_WINDOW as usize {
            self.hashes.pop_front();
        }
        self.hashes.push_back(hash);
        false
    }

    /// Resets the sequence: the next datagram is a start.
    pub(crate) fn restart(&mut self) {
        *self = Self { lost: self.lost, ..Self::default() };
    }

    /// Updates the counts with a datagram of `count` records (`None` if unknown) from `number` on.
    pub(crate) fn arrive(&mut self, number: u32, count: Option<u32>) {
        let Some(next) = self.next else { return self.start(number, count) };
        let (ahead, behind) = (number.wrapping_sub(next), next.wrapping_sub(number));
        if ahead <= JUMP_MAX {
            if ahead > 0 {
                self.lost += u64::from(ahead);
                self.gaps.push_back((next, ahead));
                self.limit_gaps();
            }
            return self.start(number, count);
        }
        if behind > JUMP_MAX {
            self.gaps.clear();
            return self.start(number, count);
        }
        if !self.fill(number, count.unwrap_or(0)) {
            self.unexplained += 1;
            if self.unexplained >= RESTART_DATAGRAMS {
                self.gaps.clear();
                self.start(number, count);
            }
        }
    }

    fn start(&mut self, number: u32, count: Option<u32>) {
        self.next = count.map(|count| number.wrapping_add(count));
        self.unexplained = 0;
    }

    fn limit_gaps(&mut self) {
        let beyond = self.gaps.len().saturating_sub(RECORD_GAPS_MAX);
        self.gaps.drain(..beyond);
    }

    /// Takes late records out of the gap that contains their first number; returns false if there
    /// is none.
    fn fill(&mut self, number: u32, count: u32) -> bool {
        let in_gap = |(first, missing): &(u32, u32)| number.wrapping_sub(*first) < *missing;
        let Some(at) = self.gaps.iter().position(in_gap) else { return false };
        self.unexplained = 0;
        let Some((first, missing)) = self.gaps.remove(at) else { return false };
        let before = number.wrapping_sub(first);
        let filled = count.min(missing - before);
        let after = missing - before - filled;
        self.lost = self.lost.saturating_sub(filled.into());
        let parts = [(number.wrapping_add(filled), after), (first, before)];
        parts.into_iter().filter(|part| part.1 > 0).for_each(|part| self.gaps.insert(at, part));
        self.limit_gaps();
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(numbers: impl IntoIterator<Item = u32>) -> Sequence {
        let mut sequence = Sequence::default();
        numbers.into_iter().for_each(|number| {
            sequence.arrive(number);
        });
        sequence
    }

    fn counts(sequence: Sequence) -> (u64, u64, u64, u64) {
        (sequence.received, sequence.lost, sequence.duplicates, sequence.restarts)
    }

    #[test]
    fn loss_reordering_duplicates_restarts_are_distinguished() {
        assert_eq!(counts(of(1..=100)), (100, 0, 0, 0));
        assert_eq!(counts(of((1..=100).filter(|n| n % 10 != 0))), (90, 9, 0, 0));
        assert_eq!(counts(of([1, 2, 5, 4, 3, 6])), (6, 0, 0, 0));
        assert_eq!(counts(of([2, 1, 3, 1, 2])), (3, 0, 2, 0));
        // A number before the start is none of the lost ones.
        assert_eq!(counts(of([5, 7, 4])), (3, 1, 0, 0));
        assert_eq!(counts(of([1, 2, 2, 3, 1])), (3, 0, 2, 0));
        assert_eq!(counts(of([u32::MAX - 1, u32::MAX, 0, 1])), (4, 0, 0, 0));
        // A restart far below the newest number.
        assert_eq!(counts(of((1000..1100).chain(1..50))), (149, 0, 0, 1));
        // A jump beyond the count of earlier numbers is a restart, a shorter one is loss.
        assert_eq!(counts(of((1..=10).chain([100_000]))), (11, 0, 0, 1));
        assert_eq!(counts(of((1..=1000).chain([1500]))), (1001, 499, 0, 0));
        let mut rebooted = of(1..=10);
        rebooted.restart();
        rebooted.arrive(3);
        assert_eq!(counts(rebooted), (11, 0, 0, 1));
    }

    /// Lost records after datagrams of three records at these numbers.
    fn lost_records(numbers: impl IntoIterator<Item = u32>) -> u64 {
        let mut sequence = RecordSequence::default();
        numbers.into_iter().for_each(|number| sequence.arrive(number, Some(3)));
        sequence.lost
    }

    #[test]
    fn late_records_are_not_lost() {
        assert_eq!(lost_records([100, 103, 106]), 0);
        assert_eq!(lost_records([100, 109]), 6);
        // The first two, and two of the others, are swapped; three are in reverse order.
        assert_eq!(lost_records([103, 100, 106, 112, 109, 115]), 0);
        assert_eq!(lost_records([100, 109, 106, 103, 112]), 0);
        assert_eq!(lost_records([0_u32.wrapping_sub(6), 0, 0_u32.wrapping_sub(3), 3]), 0);
        // The middle datagram of a gap of three.
        assert_eq!(lost_records([100, 112, 106, 115]), 6);
        // A restart, and a loss after it.
        assert_eq!(lost_records((0..40).map(|k| 500 + 3 * k).chain((0..10).map(|k| 3 * k))), 0);
        let after = (0..12).chain(13..20).map(|k| 3 * k);
        assert_eq!(lost_records((0..40).map(|k| 500 + 3 * k).chain(after)), 3);
        assert_eq!(lost_records([900_000, 0, 3, 9]), 3);
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn reordering_within_window_loses_nothing(start: u32, swaps in prop::collection::vec(0_usize..190, 0..40)) {
            let mut numbers: Vec<u32> = (0..200).map(|n| start.wrapping_add(n)).collect();
            for at in swaps {
                numbers.swap(at, at + 5);
            }
            // Only numbers that stay within the window.
            let near = numbers.iter().enumerate().all(|(at, n)| {
                (i64::from(n.wrapping_sub(start)) - at as i64).abs() < 30
            });
            prop_assume!(near);
            prop_assert_eq!(counts(of(numbers)), (200, 0, 0, 0));
        }

        #[test]
        fn arbitrary_numbers_are_counted(numbers in prop::collection::vec(any::<u32>(), 0..100)) {
            let sequence = of(numbers.iter().copied());
            prop_assert_eq!(sequence.received + sequence.duplicates, numbers.len() as u64);
        }
    }
}
