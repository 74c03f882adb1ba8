//! A map that never grows beyond a number of entries and forgets those that nobody asked for longest.
//!
//! Two generations stand in for an order of use: what is put or found goes into the young one; when that
//! is full it becomes the old one, and what was old and never asked for is forgotten. Each operation
//! costs one or two look-ups, whatever a stranger sends.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;

/// A map with hashing that has a seed, so that the same seed gives the same result.
pub(crate) type SeededMap<K, V> = HashMap<K, V, FixedState>;

pub(crate) fn seeded<K, V>(seed: u64) -> SeededMap<K, V> {
    HashMap::with_hasher(FixedState::with_seed(seed))
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Generations<K, V> {
    young: SeededMap<K, V>,
    old: SeededMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    /// With at most `limit` entries, at least half of which are the last used.
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
    fn what_is_asked_for_stays_and_the_rest_is_forgotten() {
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
