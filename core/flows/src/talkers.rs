//! The greatest flows in bounded memory.
//!
//! Counters are kept for up to a number of keys. When there is no room the median of the counters is taken
//! from each of them, and those that fall to nothing leave (Misra and Gries 1982, with the purge of Anderson et al., A
//! High-Performance Algorithm for Identifying Frequent Items in Data Streams, 2017). What was taken away is
//! the error: the weight of any key lies between its counter and its counter plus [`Talkers::error`], and a
//! key that is not there weighs at most that. A purge takes from half of the places at least, so the
//! error is at most the total weight divided by half the capacity. Each addition costs one look-up.

use std::hash::Hash;

use crate::bounded::{SeededMap, seeded};

/// Least capacity: below it a purge would leave nothing worth telling.
const CAPACITY_MIN: usize = 16;

/// Flows, or whatever else, by weight.
#[derive(Debug)]
pub struct Talkers<K> {
    counters: SeededMap<K, Weight>,
    capacity: usize,
    error: u64,
    total: u64,
    medians: Vec<u64>,
}

/// A counter.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    sum: u64,
    variance: f64,
}

/// A key and its weight: at least `least`, at most `most`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Talker<K> {
    /// Who.
    pub key: K,
    /// It weighs no less.
    pub least: u64,
    /// It weighs no more.
    pub most: u64,
    /// Of the sampling: weights are estimates themselves.
    pub variance: f64,
}

impl<K: Eq + Hash + Ord + Clone> Talkers<K> {
    /// With places for `capacity` keys. `seed` is for hashing.
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> Self {
        let capacity = capacity.max(CAPACITY_MIN);
        Self { counters: seeded(seed), capacity, error: 0, total: 0, medians: Vec::new() }
    }

    /// Adds weight to a key, which is an estimate with this variance.
    #[inline]
    pub fn add(&mut self, key: K, weight: u64, variance: f64) {
        self.total = self.total.saturating_add(weight);
        if let Some(counter) = self.counters.get_mut(&key) {
            counter.sum = counter.sum.saturating_add(weight);
            counter.variance += variance;
            return;
        }
        if self.counters.len() >= self.capacity {
            self.purge();
        }
        self.counters.insert(key, Weight { sum: weight, variance });
    }

    fn purge(&mut self) {
        self.medians.clear();
        self.medians.extend(self.counters.values().map(|counter| counter.sum));
        let middle = self.medians.len() / 2;
        let (_, median, _) = self.medians.select_nth_unstable(middle);
        let median = *median;
        self.error = self.error.saturating_add(median);
        self.counters.retain(|_, counter| {
            counter.sum -= median.min(counter.sum);
            counter.sum > 0
        });
    }

    /// By how much a weight may be understated.
    #[must_use]
    pub fn error(&self) -> u64 {
        self.error
    }

    /// Of all keys, those that left included.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The greatest `count`, greatest first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<Talker<K>> {
        let mut all: Vec<_> = self
            .counters
            .iter()
            .map(|(key, counter)| Talker {
                key: key.clone(),
                least: counter.sum,
                most: counter.sum.saturating_add(self.error),
                variance: counter.variance,
            })
            .collect();
        all.sort_by(|a, b| b.least.cmp(&a.least).then_with(|| a.key.cmp(&b.key)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_great_are_found_among_a_million_small_ones() {
        let mut talkers = Talkers::new(1024, 3);
        for small in 0..1_000_000_u64 {
            talkers.add(small + 100, 1, 0.0);
            talkers.add(small % 10, 10, 100.0);
        }
        let top = talkers.top(10);
        assert!(top.iter().all(|talker| talker.key < 10), "{top:?}");
        assert!(top.iter().all(|talker| (talker.least..=talker.most).contains(&1_000_000)));
        assert!(talkers.error() <= talkers.total() / 512);
        // Each of a hundred thousand additions of 10.
        assert!(top.iter().all(|talker| talker.variance == 100.0 * 100_000.0));
    }

    proptest! {
        #[test]
        fn every_weight_lies_within_its_bounds(
            adds in prop::collection::vec((0_u16..200, 0_u64..1_000), 0..2_000),
            capacity in 0_usize..100,
        ) {
            let mut talkers = Talkers::new(capacity, 1);
            let mut exact: HashMap<u16, u64> = HashMap::new();
            for (key, weight) in adds {
                talkers.add(key, weight, 0.0);
                *exact.entry(key).or_default() += weight;
            }
            let top = talkers.top(usize::MAX);
            prop_assert!(top.len() <= capacity.max(CAPACITY_MIN));
            for talker in &top {
                prop_assert!((talker.least..=talker.most).contains(&exact[&talker.key]));
            }
            for (key, weight) in exact {
                prop_assert!(weight <= talkers.error() || top.iter().any(|talker| talker.key == key));
            }
            prop_assert!(talkers.error() <= talkers.total() * 2 / capacity.max(CAPACITY_MIN) as u64);
        }
    }
}
