//! A map with bounded size that evicts the least recently used entries.
//!
//! Two generations approximate the order of use: an entry that is put or found goes into the young
//! one; when that is full it becomes the old one, and the previous old one is dropped. Each
//! operation costs one or two lookups for any input.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;

/// A map with seeded hashing, so that the same seed gives the same result.
pub(crate) type SeededMap<K, V> = HashMap<K, V, FixedState>;

pub(crate) fn seeded<K, V>(seed: u64) -> SeededMap<K, V> {
    HashMap::with_hasher(FixedState::with_seed(seed))
}

/// A bounded map of two generations.
#[derive(Debug)]
pub(crate) struct Generations<K, V> {
    young: SeededMap<K, V>,
    old: SeededMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    /// Creates a map of at most `limit` entries, which keeps at least the last `limit / 2` used.
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self { young: seeded(seed), old: seeded(seed), half: (limit / 2).max(1) }
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub(crate) fn put(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, value);
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&mut V>
    where
        K: Clone,
    {
        if !self.young.contains_key(key) {
            let value = self.old.remove(key)?;
            self.put(key.clone(), value);
        }
        self.young.get_mut(key)
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_entries_are_evicted() {
        let mut map = Generations::new(100, 7);
        map.put(u32::MAX, 1);
        for key in 0..10_000_u32 {
            map.put(key, key);
            assert_eq!(map.get(&u32::MAX), Some(&mut 1));
            assert!(map.len() <= 100);
        }
        assert_eq!(map.get(&9_999), Some(&mut 9_999));
        assert_eq!(map.get(&0), None);
        map.remove(&9_999);
        assert_eq!(map.get(&9_999), None);
    }
}
