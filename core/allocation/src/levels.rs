//! Levels at which constraints fill: exact as fractions, as keys that order the queue of a filling, and rough ones, which
//! decide most comparisons of flows with levels.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::weights::SUM_BITS;

/// Leading bits of a level in a [`LevelKey`]; with the exponent, a key has 42 bits.
const KEY_BITS: u32 = 36;
/// Bits of the number of a constraint: a demand, class or resource, of 2²⁰ each.
const CONSTRAINT_BITS: u32 = 22;

/// Level rounded down to its leading bits, in the order of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LevelKey(u64);

impl LevelKey {
    pub(crate) fn of(level: u128) -> Self {
        let excess = (u128::BITS - level.leading_zeros()).saturating_sub(KEY_BITS);
        // Each binary exponent takes half of the numbers of `KEY_BITS` bits.
        Self((u64::from(excess) << (KEY_BITS - 1)) + (level >> excess) as u64)
    }
}

/// Lower bound of the level at which a constraint fills, in the order of bounds, then of constraints, in one number that is
/// compared without a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueEntry(u64);

impl QueueEntry {
    pub(crate) fn new(key: LevelKey, constraint: u32) -> Self {
        Self(key.0 << CONSTRAINT_BITS | u64::from(constraint))
    }

    pub(crate) const fn key(self) -> LevelKey {
        LevelKey(self.0 >> CONSTRAINT_BITS)
    }

    pub(crate) const fn constraint(self) -> u32 {
        (self.0 & ((1 << CONSTRAINT_BITS) - 1)) as u32
    }
}

/// Queue of constraints in the order of their entries. Most leave it with the entry with which they came, and are only
/// sorted once.
#[derive(Debug, Default)]
pub(crate) struct LevelQueue {
    /// Entries from the start, in descending order once sorted.
    added: Vec<QueueEntry>,
    /// Entries from later on.
    pushed: BinaryHeap<Reverse<QueueEntry>>,
}

impl LevelQueue {
    /// Adds an entry before [`Self::sort`].
    pub(crate) fn add(&mut self, entry: QueueEntry) {
        self.added.push(entry);
    }

    /// Sorts the entries; the others of this type's functions need it.
    pub(crate) fn sort(&mut self) {
        self.added.sort_unstable_by_key(|entry| Reverse(*entry));
    }

    pub(crate) fn push(&mut self, entry: QueueEntry) {
        self.pushed.push(Reverse(entry));
    }

    pub(crate) fn first(&self) -> Option<QueueEntry> {
        let pushed = self.pushed.peek().map(|entry| entry.0);
        match (self.added.last().copied(), pushed) {
            (Some(added), Some(pushed)) => Some(added.min(pushed)),
            (added, pushed) => added.or(pushed),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<QueueEntry> {
        let first = self.first()?;
        if self.added.last() == Some(&first) {
            self.added.pop();
        } else {
            self.pushed.pop();
        }
        Some(first)
    }

    pub(crate) fn clear(&mut self) {
        self.added.clear();
        self.pushed.clear();
    }
}

/// Room for the flows that rise, and the sum of their weights; the level is their ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saturation {
    pub(crate) room: u128,
    pub(crate) weight: u64,
}

impl Saturation {
    /// Returns ⌊2⁶⁰·room/weight⌋.
    pub(crate) fn level(self) -> u128 {
        (self.room << SUM_BITS) / u128::from(self.weight)
    }

    pub(crate) fn key(self) -> LevelKey {
        LevelKey::of(self.level())
    }

    /// Returns the level with an error below 2⁻²⁰ of it, and 0 for 0.
    pub(crate) fn rough_level(self) -> f32 {
        rough_level(self.room, self.weight)
    }

    /// Returns true if a flow of this weight that holds this rate has more than the level. Rooms below 2^67 and weights
    /// below 2^60 fit 128 bits.
    pub(crate) fn is_below(self, hold: u128, weight: u64) -> bool {
        hold * u128::from(self.weight) > self.room * u128::from(weight)
    }

    /// Returns ⌊weight·room/total weight⌋ for the weight of a flow, by multiplication with the level.
    pub(crate) fn part(self, weight: u64, level: u128) -> u128 {
        let weight = u128::from(weight);
        let (high, low) = (level >> 64, level & u128::from(u64::MAX));
        // Less by one or two at most, as the level is rounded down.
        let mut part = ((weight * high) << (64 - SUM_BITS)) + ((weight * low) >> SUM_BITS);
        let mut rest = weight * self.room - part * u128::from(self.weight);
        while rest >= u128::from(self.weight) {
            part += 1;
            rest -= u128::from(self.weight);
        }
        part
    }
}

/// Returns the ratio of grains and a weight with an error below 2⁻²⁰ of it, and 0 for no grains.
pub(crate) fn rough_level(grains: u128, weight: u64) -> f32 {
    const HIGH_WORD: f32 = (1_u128 << 64) as f32;
    let (high, low) = ((grains >> 64) as u64, grains as u64);
    (high as f32 * HIGH_WORD + low as f32) / weight as f32
}

/// Factors that make a rough level a lower and an upper bound of the exact one, also if it is compared with another.
pub(crate) const ROUGH_LEVEL_LOWER: f32 = 1.0 - 1.0 / (1 << 17) as f32;
pub(crate) const ROUGH_LEVEL_UPPER: f32 = 1.0 + 1.0 / (1 << 17) as f32;

/// Candidate of the queue in the exact order of levels, then of constraints; the first is the greatest, for a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FullConstraint {
    pub(crate) full: Saturation,
    pub(crate) constraint: u32,
}

impl Ord for FullConstraint {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| one.full.room * u128::from(other.full.weight);
        cross(other, self).cmp(&cross(self, other)).then(other.constraint.cmp(&self.constraint))
    }
}

impl PartialOrd for FullConstraint {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use penstock_random::Random;

    use super::*;

    #[test]
    fn rough_levels_agree_with_exact() {
        let mut random = Random::new(1);
        let mut decided = 0;
        for _ in 0..200_000 {
            let wide =
                |random: &mut Random| (u128::from(random.next_bits()) << 3) >> random.below(60);
            let weight =
                |random: &mut Random| (random.next_bits() >> (4 + random.below(59))).max(1);
            let full = Saturation { room: wide(&mut random), weight: weight(&mut random) };
            let of = weight(&mut random);
            // Near the level, or anywhere.
            let near = full.room * u128::from(of) / u128::from(full.weight);
            let near = near + near / 1000 * u128::from(random.below(3)) / 2;
            let hold = if random.one_in(2) { near.min(1 << 67) } else { wide(&mut random) };
            let (level, rough) = (full.rough_level(), rough_level(hold, of));
            if rough > level * ROUGH_LEVEL_UPPER {
                assert!(full.is_below(hold, of), "{full:?} {hold} {of}");
                decided += 1;
            }
            if rough < level * ROUGH_LEVEL_LOWER {
                assert!(!full.is_below(hold, of), "{full:?} {hold} {of}");
                decided += 1;
            }
        }
        assert!(decided > 100_000, "{decided} decided");
    }

    #[test]
    fn queue_pops_in_order() {
        let mut random = Random::new(3);
        for count in [0, 1, 2, 100] {
            let mut queue = LevelQueue::default();
            let mut entry = || {
                QueueEntry::new(LevelKey::of(u128::from(random.below(50))), random.below(9) as u32)
            };
            let mut all: Vec<QueueEntry> = (0..2 * count).map(|_| entry()).collect();
            let (added, pushed) = all.split_at(count);
            added.iter().for_each(|entry| queue.add(*entry));
            queue.sort();
            pushed.iter().for_each(|entry| queue.push(*entry));
            all.sort_unstable();
            for entry in all {
                assert_eq!((queue.first(), queue.pop()), (Some(entry), Some(entry)));
            }
            assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn keys_order_levels() {
        let mut random = Random::new(2);
        for _ in 0..100_000 {
            let level = |random: &mut Random| {
                let wide = u128::from(random.next_bits()) << 64 | u128::from(random.next_bits());
                wide >> random.below(128)
            };
            let (a, b) = (level(&mut random), level(&mut random));
            let (low, high) = (a.min(b), a.max(b));
            assert!(LevelKey::of(low) <= LevelKey::of(high), "{low} {high}");
            let constraint = b as u32 % (1 << CONSTRAINT_BITS);
            let entry = QueueEntry::new(LevelKey::of(a), constraint);
            assert_eq!((entry.key(), entry.constraint()), (LevelKey::of(a), constraint));
        }
    }
}
