//! Set of connections whose peers have not authenticated, shared fairly between source prefixes.
//!
//! A full set gives up the oldest connection of the prefix with most of them, so that a flood from one source evicts
//! itself and not an honest newcomer. A prefix is an IPv4 address or an IPv6 /64, whose holder owns all its addresses.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Source prefix of an address: IPv4 address or IPv6 /64.
fn source_prefix(address: Option<IpAddr>) -> Option<IpAddr> {
    match address.map(|address| address.to_canonical()) {
        Some(IpAddr::V6(v6)) => {
            let network = v6.to_bits() >> 64 << 64;
            Some(IpAddr::V6(Ipv6Addr::from_bits(network)))
        }
        other => other,
    }
}

/// Connection of the set.
#[derive(Debug)]
pub struct PendingEntry<T> {
    number: u64,
    prefix: Option<IpAddr>,
    /// Time of its arrival.
    pub since: Instant,
    /// Means to close it.
    pub handle: T,
}

/// Connections in the order of their arrival. The caller bounds their number with [`PendingSet::evict`].
#[derive(Debug)]
pub struct PendingSet<T> {
    entries: VecDeque<PendingEntry<T>>,
    next: u64,
}

impl<T> Default for PendingSet<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), next: 0 }
    }
}

impl<T> PendingSet<T> {
    /// Adds a connection and returns its number.
    pub fn add(&mut self, address: Option<IpAddr>, handle: T) -> u64 {
        let number = self.next;
        self.next += 1;
        let (prefix, since) = (source_prefix(address), Instant::now());
        self.entries.push_back(PendingEntry { number, prefix, since, handle });
        number
    }

    /// Removes a connection that has authenticated or ended.
    pub fn remove(&mut self, number: u64) {
        self.entries.retain(|one| one.number != number);
    }

    /// Removes and returns the oldest connection of the prefix with most connections; among equal prefixes, of the one
    /// that came first.
    pub fn evict(&mut self) -> Option<(u64, T)> {
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for one in &self.entries {
            *counts.entry(one.prefix).or_default() += 1;
        }
        let most = counts.values().max()?;
        let index = self.entries.iter().position(|one| counts[&one.prefix] == *most)?;
        self.entries.remove(index).map(|one| (one.number, one.handle))
    }

    /// Number of connections that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Connections in the order of their arrival.
    pub fn iter(&self) -> impl Iterator<Item = &PendingEntry<T>> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_prefix_loses_its_oldest() {
        for (addresses, gone) in [
            (&["10.0.0.1", "10.0.0.2", "10.0.0.2"][..], 1),
            (&["10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"], 0),
            (&["10.0.0.1", "10.0.0.2", "10.0.0.3"], 0),
            // The holder of a prefix owns all its addresses, also for IPv4-mapped IPv6.
            (&["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:2::9"], 1),
            (&["::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2"], 1),
        ] {
            let mut set = PendingSet::default();
            for address in addresses {
                set.add(Some(address.parse().expect("an address")), ());
            }
            assert_eq!(set.evict(), Some((gone, ())), "{addresses:?}");
            assert_eq!(set.len(), addresses.len() - 1);
        }
        assert_eq!(PendingSet::<()>::default().evict(), None);
    }
}
