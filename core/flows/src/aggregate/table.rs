//! Sums by key with a limit, and views of them.

use std::collections::BTreeMap;
use std::hash::Hash;

use super::Vantage;
use crate::bounded::{SeededMap, seeded};
use crate::rates::{Amount, SampleTally};

/// Combination of the sums of several vantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// Takes the largest sum.
    Max,
    /// Adds all sums.
    Sum,
}

/// Sums by key, with a limit on the count of keys.
#[derive(Debug)]
pub struct TallyTable<K> {
    cells: SeededMap<K, SampleTally>,
    limit: usize,
    /// Sum of the keys beyond the limit.
    pub other: SampleTally,
}

impl<K: Eq + Hash> TallyTable<K> {
    pub(super) fn new(limit: usize, seed: u64) -> Self {
        Self { cells: seeded(seed), limit, other: SampleTally::default() }
    }

    /// Adds to a key; returns false if it went to `other`. `room` reserves room for a new key below
    /// the limit.
    #[inline]
    pub(super) fn add(
        &mut self,
        key: K,
        amount: &Amount,
        room: impl FnOnce(usize) -> bool,
    ) -> bool {
        if let Some(cell) = self.cells.get_mut(&key) {
            cell.count(amount);
            return true;
        }
        if room(self.limit) {
            self.cells.entry(key).or_default().count(amount);
            return true;
        }
        self.other.count(amount);
        false
    }

    /// Adds the sums of another table; new keys beyond the limit are summed as `other`.
    pub(super) fn merge(&mut self, mut other: Self) {
        if other.cells.len() > self.cells.len() {
            std::mem::swap(&mut self.cells, &mut other.cells);
        }
        self.other.merge(&other.other);
        self.cells.reserve(other.cells.len());
        for (key, tally) in other.cells {
            if let Some(cell) = self.cells.get_mut(&key) {
                cell.merge(&tally);
            } else if self.cells.len() < self.limit {
                self.cells.insert(key, tally);
            } else {
                self.other.merge(&tally);
            }
        }
    }

    pub(super) fn emptied(&mut self, seed: u64) -> Self {
        // Reserves the current size, so that the next interval does not grow step by step.
        let mut fresh = Self::new(self.limit, seed);
        fresh.cells.reserve(self.cells.len());
        std::mem::replace(self, fresh)
    }

    /// Iterates over keys and sums.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &SampleTally)> {
        self.cells.iter()
    }

    /// Count of keys, without `other`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Returns true if no key was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Sums by the keys that `of` derives from each entry, at most two, with the vantages combined.
    pub fn by<T: Ord + Copy>(
        &self,
        combine: Combine,
        of: impl Fn(&K) -> (Vantage, [Option<T>; 2]),
    ) -> BTreeMap<T, SampleTally> {
        let mut apart = BTreeMap::new();
        self.apart(&mut apart, of);
        together(combine, apart)
    }

    pub(super) fn apart<T: Ord + Copy>(
        &self,
        apart: &mut BTreeMap<(T, Vantage), SampleTally>,
        of: impl Fn(&K) -> (Vantage, [Option<T>; 2]),
    ) {
        for (key, tally) in &self.cells {
            let (vantage, keys) = of(key);
            for key in keys.into_iter().flatten() {
                apart.entry((key, vantage)).or_default().merge(tally);
            }
        }
    }
}

pub(super) fn together<T: Ord>(
    combine: Combine,
    apart: BTreeMap<(T, Vantage), SampleTally>,
) -> BTreeMap<T, SampleTally> {
    let mut together: BTreeMap<T, SampleTally> = BTreeMap::new();
    for ((key, _), tally) in apart {
        let sum = together.entry(key).or_default();
        match combine {
            Combine::Sum => sum.merge(&tally),
            Combine::Max if tally.bytes > sum.bytes => *sum = tally,
            Combine::Max => {}
        }
    }
    together
}
