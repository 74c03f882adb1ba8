//! Sums by key with a limit, and views of them.

use std::collections::BTreeMap;
use std::hash::Hash;

use super::Vantage;
use crate::bounded::{SeededMap, seeded};
use crate::rates::{Amount, Tally};

/// How vantages become one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// The one that saw most.
    Max,
    /// All together.
    Sum,
}

/// Sums by key, of which there are never more than a limit.
#[derive(Debug)]
pub struct Table<K> {
    cells: SeededMap<K, Tally>,
    limit: usize,
    /// What found no place.
    pub other: Tally,
}

impl<K: Eq + Hash> Table<K> {
    pub(super) fn new(limit: usize, seed: u64) -> Self {
        Self { cells: seeded(seed), limit, other: Tally::default() }
    }

    /// Whether there was a place for it; otherwise it is `other`.
    #[inline]
    pub(super) fn add(&mut self, key: K, amount: &Amount) -> bool {
        if let Some(cell) = self.cells.get_mut(&key) {
            cell.count(amount);
            return true;
        }
        if self.cells.len() < self.limit {
            self.cells.entry(key).or_default().count(amount);
            return true;
        }
        self.other.count(amount);
        false
    }

    pub(super) fn emptied(&mut self, seed: u64) -> Self {
        // Room for as many as there were, so that the next interval does not grow step by step.
        let mut fresh = Self::new(self.limit, seed);
        fresh.cells.reserve(self.cells.len());
        std::mem::replace(self, fresh)
    }

    /// Its sums.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &Tally)> {
        self.cells.iter()
    }

    /// How many there are, `other` not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Sums by the keys that `of` makes of each, at most two, with the vantages combined. `None` makes
    /// nothing.
    pub fn by<T: Ord + Copy>(
        &self,
        combine: Combine,
        of: impl Fn(&K) -> (Vantage, [Option<T>; 2]),
    ) -> BTreeMap<T, Tally> {
        let mut apart = BTreeMap::new();
        self.apart(&mut apart, of);
        together(combine, apart)
    }

    pub(super) fn apart<T: Ord + Copy>(
        &self,
        apart: &mut BTreeMap<(T, Vantage), Tally>,
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
    apart: BTreeMap<(T, Vantage), Tally>,
) -> BTreeMap<T, Tally> {
    let mut together: BTreeMap<T, Tally> = BTreeMap::new();
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
