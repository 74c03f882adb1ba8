//! Frequent items in bounded memory: the largest flows.
//!
//! A fixed number of keys have counters. If they are all in use, the median of the counters is
//! subtracted from each, and those that fall to zero are removed (Misra and Gries 1982, with the
//! purge of Anderson et al., A High-Performance Algorithm for Identifying Frequent Items in Data
//! Streams, 2017). The sum of the subtracted medians is the error: the weight of any key lies
//! between its counter and its counter plus [`FrequentItems::error`], and a removed key weighs at
//! most that. A purge subtracts from at least half of the counters, so the error is at most the
//! total weight divided by half the capacity. Each addition costs one lookup.

use std::hash::Hash;

use crate::bounded::{SeededMap, seeded};

/// Smallest capacity; with less a purge would leave no useful result.
const CAPACITY_MIN: usize = 16;

/// Counters of the heaviest keys.
#[derive(Debug)]
pub struct FrequentItems<K> {
    counters: SeededMap<K, Weight>,
    capacity: usize,
    error: u64,
    total: u64,
    medians: Vec<u64>,
}

/// Counter of one key.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    sum: u64,
    variance: f64,
}

/// A key and the bounds of its weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrequentItem<K> {
    /// Key of the counter.
    pub key: K,
    /// Lower bound of the weight.
    pub least: u64,
    /// Upper bound of the weight.
    pub most: u64,
    /// Variance of the sampling: weights are estimates themselves.
    pub variance: f64,
}

impl<K: Eq + Hash + Ord + Clone> FrequentItems<K> {
    /// Starts with `capacity` empty counters. `seed` is for hashing.
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> Self {
        let capacity = capacity.max(CAPACITY_MIN);
        Self { counters: seeded(seed), capacity, error: 0, total: 0, medians: Vec::new() }
    }

    /// Adds weight to a key, an estimate with this variance.
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

    /// Adds the counters of another summary that has no key in common with this one. Beyond the
    /// capacity the largest counters remain; the error grows by the largest of the others.
    pub fn merge_disjoint(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        // Each key was counted by one of the two.
        self.error = self.error.max(other.error);
        self.counters.extend(other.counters);
        if self.counters.len() <= self.capacity {
            return;
        }
        let mut order: Vec<_> = self.counters.iter().map(|(key, one)| (one.sum, key)).collect();
        // In descending order; the key decides among equal weights.
        order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        let (removed, removed_key) = (order[self.capacity].0, order[self.capacity].1.clone());
        self.counters.retain(|key, one| (one.sum, &removed_key) > (removed, key));
        self.error = self.error.saturating_add(removed);
    }

    /// Upper bound of the weight missing from a counter.
    #[must_use]
    pub fn error(&self) -> u64 {
        self.error
    }

    /// Weight of all keys, removed ones included.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the `count` heaviest keys, in descending order.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<FrequentItem<K>> {
        let mut all: Vec<_> = self
            .counters
            .iter()
            .map(|(key, counter)| FrequentItem {
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
    fn largest_of_million_keys_are_found() {
        let mut talkers = FrequentItems::new(1024, 3);
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
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn merged_weights_lie_within_bounds(
            adds in prop::collection::vec((0_u16..200, 0_u64..1_000), 0..2_000),
            capacity in 0_usize..100,
        ) {
            let parts = || FrequentItems::new(capacity, 1);
            let (mut even, mut odd) = (parts(), parts());
            let mut exact: HashMap<u16, u64> = HashMap::new();
            for (key, weight) in adds {
                let part = if key % 2 == 0 { &mut even } else { &mut odd };
                part.add(key, weight, 0.0);
                *exact.entry(key).or_default() += weight;
            }
            even.merge_disjoint(odd);
            let top = even.top(usize::MAX);
            prop_assert!(top.len() <= capacity.max(CAPACITY_MIN));
            prop_assert_eq!(even.total(), exact.values().sum::<u64>());
            for (key, weight) in exact {
                let found = top.iter().find(|talker| talker.key == key);
                let within = found.is_some_and(|found| (found.least..=found.most).contains(&weight));
                prop_assert!(within || (found.is_none() && weight <= even.error()));
            }
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn every_weight_lies_within_its_bounds(
            adds in prop::collection::vec((0_u16..200, 0_u64..1_000), 0..2_000),
            capacity in 0_usize..100,
        ) {
            let mut talkers = FrequentItems::new(capacity, 1);
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
