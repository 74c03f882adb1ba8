//! Connections that have not proven themselves: a bounded number, shared fairly between addresses.
//!
//! When one more comes than may wait, the address that has most of them loses its oldest. A flood from
//! one place thus pushes out itself and not an honest newcomer. An address is an IPv4 address or the
//! 64 bits of a network of IPv6, as whoever has one address of that has all of them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::session::lock;
use crate::transport::Transport;

/// Most connections that wait.
const WAITING_MAX: usize = 256;

/// Most threads that unknown peers can cause.
const INSIDE_MAX: usize = 2 * WAITING_MAX;

/// What counts as one place: what of an address nobody has several of.
fn place_of(address: Option<IpAddr>) -> Option<IpAddr> {
    match address.map(|address| address.to_canonical()) {
        Some(IpAddr::V6(v6)) => {
            let network = v6.to_bits() >> 64 << 64;
            Some(IpAddr::V6(Ipv6Addr::from_bits(network)))
        }
        other => other,
    }
}

#[derive(Debug)]
struct Waits<T> {
    number: u64,
    place: Option<IpAddr>,
    since: Instant,
    what: T,
}

/// Which one goes when there are too many: the oldest of the place that has most, and among places
/// that have the same number the one whose first came first.
fn one_too_many<T>(waiting: &VecDeque<Waits<T>>) -> Option<usize> {
    let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
    for one in waiting {
        *counts.entry(one.place).or_default() += 1;
    }
    let most = counts.values().max()?;
    waiting.iter().position(|one| counts[&one.place] == *most)
}

/// The connections that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    waiting: Mutex<VecDeque<Waits<Transport>>>,
    /// Those that wait, and those that were closed and whose threads have yet to notice.
    inside: Mutex<HashSet<u64>>,
    next: AtomicU64,
}

impl Waiting {
    /// Whether there are as many threads as may be; those that were closed end in a moment.
    pub fn is_full(&self) -> bool {
        lock(&self.inside).len() >= INSIDE_MAX
    }

    /// One more waits; the number that it gets. Another one may be closed for it.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn enter(&self, transport: &Transport) -> io::Result<u64> {
        let what = transport.try_clone()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let place = place_of(transport.peer_address());
        let mut waiting = lock(&self.waiting);
        waiting.push_back(Waits { number, place, since: Instant::now(), what });
        if waiting.len() > WAITING_MAX
            && let Some(gone) = one_too_many(&waiting).and_then(|index| waiting.remove(index))
        {
            gone.what.shut_down();
        }
        lock(&self.inside).insert(number);
        Ok(number)
    }

    /// It has proven itself, or is gone.
    pub fn leave(&self, number: u64) {
        lock(&self.waiting).retain(|one| one.number != number);
        lock(&self.inside).remove(&number);
    }

    /// Closes those that take longer than `within`.
    pub fn close_slow(&self, within: Duration) {
        let waiting = lock(&self.waiting);
        let slow = waiting.iter().filter(|one| one.since.elapsed() > within);
        slow.for_each(|one| one.what.shut_down());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(places: &[&str]) -> VecDeque<Waits<()>> {
        let waits = |(number, place): (usize, &&str)| Waits {
            number: number as u64,
            place: place_of(Some(place.parse().expect("an address"))),
            since: Instant::now(),
            what: (),
        };
        places.iter().enumerate().map(waits).collect()
    }

    #[test]
    fn whoever_has_most_loses_the_oldest() {
        for (places, gone) in [
            (&["10.0.0.1", "10.0.0.2", "10.0.0.2"][..], 1),
            (&["10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"], 0),
            (&["10.0.0.1", "10.0.0.2", "10.0.0.3"], 0),
            // One who has a network has all of its addresses, also where IPv4 is written as IPv6.
            (&["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:2::9"], 1),
            (&["::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2"], 1),
        ] {
            assert_eq!(one_too_many(&crowd(places)), Some(gone), "{places:?}");
        }
        assert_eq!(one_too_many(&crowd(&[])), None);
    }
}
