//! Bounded set of unauthenticated connections, shared fairly between source prefixes.
//!
//! When the set is full, the prefix with most connections loses its oldest one, so a flood from one
//! source evicts itself and not an honest newcomer. A prefix is an IPv4 address or an IPv6 /64, whose
//! holder owns all its addresses.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::base::lock::lock;
use crate::net::transport::Transport;

/// Limit of pending connections.
const PENDING_MAX: usize = 256;

/// Limit of threads for unauthenticated peers.
const PENDING_THREADS_MAX: usize = 2 * PENDING_MAX;

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

#[derive(Debug)]
struct PendingConnection<T> {
    number: u64,
    prefix: Option<IpAddr>,
    since: Instant,
    transport: T,
}

/// Index of the connection to evict: the oldest of the prefix with most connections; among equal
/// prefixes, of the one that came first.
fn eviction_victim<T>(pending: &VecDeque<PendingConnection<T>>) -> Option<usize> {
    let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
    for one in pending {
        *counts.entry(one.prefix).or_default() += 1;
    }
    let most = counts.values().max()?;
    pending.iter().position(|one| counts[&one.prefix] == *most)
}

/// Pending connections, by arrival.
#[derive(Debug, Default)]
pub(crate) struct PendingConnections {
    pending: Mutex<VecDeque<PendingConnection<Transport>>>,
    /// Numbers of pending connections and of closed ones whose threads have not ended yet.
    threads: Mutex<HashSet<u64>>,
    next: AtomicU64,
}

impl PendingConnections {
    /// True if the thread limit is reached; threads of closed connections end soon.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.threads).len() >= PENDING_THREADS_MAX
    }

    /// Adds a connection and returns its number. May close another one.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub(crate) fn add(&self, transport: &Transport) -> io::Result<u64> {
        let handle = transport.try_clone()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let prefix = source_prefix(transport.peer_address());
        let mut pending = lock(&self.pending);
        pending.push_back(PendingConnection {
            number,
            prefix,
            since: Instant::now(),
            transport: handle,
        });
        if pending.len() > PENDING_MAX
            && let Some(gone) = eviction_victim(&pending).and_then(|index| pending.remove(index))
        {
            gone.transport.shut_down();
        }
        lock(&self.threads).insert(number);
        Ok(number)
    }

    /// Removes a connection that has authenticated or ended.
    pub(crate) fn remove(&self, number: u64) {
        lock(&self.pending).retain(|one| one.number != number);
        lock(&self.threads).remove(&number);
    }

    /// Closes connections pending for longer than `within`.
    pub(crate) fn close_expired(&self, within: Duration) {
        let pending = lock(&self.pending);
        let slow = pending.iter().filter(|one| one.since.elapsed() > within);
        slow.for_each(|one| one.transport.shut_down());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending_from(prefixes: &[&str]) -> VecDeque<PendingConnection<()>> {
        let waits = |(number, place): (usize, &&str)| PendingConnection {
            number: number as u64,
            prefix: source_prefix(Some(place.parse().expect("an address"))),
            since: Instant::now(),
            transport: (),
        };
        prefixes.iter().enumerate().map(waits).collect()
    }

    #[test]
    fn largest_prefix_loses_its_oldest() {
        for (prefixes, gone) in [
            (&["10.0.0.1", "10.0.0.2", "10.0.0.2"][..], 1),
            (&["10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"], 0),
            (&["10.0.0.1", "10.0.0.2", "10.0.0.3"], 0),
            // The holder of a prefix owns all its addresses, also for IPv4-mapped IPv6.
            (&["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:2::9"], 1),
            (&["::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2"], 1),
        ] {
            assert_eq!(eviction_victim(&pending_from(prefixes)), Some(gone), "{prefixes:?}");
        }
        assert_eq!(eviction_victim(&pending_from(&[])), None);
    }
}
