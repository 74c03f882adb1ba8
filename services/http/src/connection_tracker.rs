//! Counters of connections and answers, and the limit of open connections.
//!
//! Over the limit, a connection that has shown no valid credentials gives way: the oldest of the address (IPv6: the
//! /64) that has most of them. So one address cannot take all connections without credentials. Where there is no other, an
//! idle connection gives way: the one that has waited longest for a request, of the address that has most of these.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use penstock_sys::net::PendingSet;
use tokio::sync::Notify;

use crate::CONNECTIONS_MAX;

/// Counters of connections and answers, and the limit of open connections.
#[derive(Debug)]
pub struct ConnectionTracker {
    limit: usize,
    open: AtomicUsize,
    refused: AtomicU64,
    answers: [AtomicU64; 3],
    yielding: Mutex<YieldingConnections>,
}

/// Connections that give way to others.
#[derive(Debug, Default)]
struct YieldingConnections {
    /// Those without valid credentials.
    unproven: PendingSet<Arc<Eviction>>,
    /// Those with credentials that wait for a request.
    idle: PendingSet<Arc<Eviction>>,
}

/// Request to close a connection.
#[derive(Debug)]
struct Eviction {
    peer: IpAddr,
    /// Also set once the connection has ended.
    is_evicted: AtomicBool,
    is_proven: AtomicBool,
    /// Number that the connection last had among the idle ones.
    idle: AtomicU64,
    notify: Notify,
}

impl Default for ConnectionTracker {
    fn default() -> Self {
        Self::new(CONNECTIONS_MAX)
    }
}

impl ConnectionTracker {
    /// Returns zeroed counters for at most `limit` open connections.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            open: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            answers: Default::default(),
            yielding: Mutex::default(),
        }
    }

    /// Counts an answer by the class of its status.
    pub fn count_answer(&self, status: StatusCode) {
        let class = match status.as_u16() {
            ..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Answers so far: successes, errors of the client, errors of the server.
    #[must_use]
    pub fn answers(&self) -> [u64; 3] {
        self.answers.each_ref().map(|answers| answers.load(Ordering::Relaxed))
    }

    /// Number of open connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Number of connections refused or closed because of the limit.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a connection of `peer`, until the slot is dropped. Over the limit, a connection without valid credentials
    /// gives way, or else an idle one; `None` if there is no other.
    #[must_use]
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let eviction = Arc::new(Eviction {
            peer,
            is_evicted: AtomicBool::new(false),
            is_proven: AtomicBool::new(false),
            idle: AtomicU64::new(u64::MAX),
            notify: Notify::new(),
        });
        let mut yielding = self.yielding();
        let mut number = yielding.unproven.add(Some(peer), Arc::clone(&eviction));
        if self.open.load(Ordering::Relaxed) >= self.limit {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let (victim, mut gone) = yielding.unproven.evict().expect("the newcomer is in the set");
            if victim == number {
                (_, gone) = yielding.idle.evict()?;
                number = yielding.unproven.add(Some(peer), Arc::clone(&eviction));
            }
            // Its place in the count is the newcomer's.
            gone.is_evicted.store(true, Ordering::Relaxed);
            gone.notify.notify_one();
        } else {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
        drop(yielding);
        let proof = ConnectionProof { tracker: Arc::clone(self), number, eviction };
        Some(ConnectionSlot { proof })
    }

    fn yielding(&self) -> MutexGuard<'_, YieldingConnections> {
        self.yielding.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    proof: ConnectionProof,
}

impl ConnectionSlot {
    /// Returns when the connection gives way to another.
    pub async fn evicted(&self) {
        self.proof.eviction.notify.notified().await;
    }

    /// Means to record valid credentials.
    #[must_use]
    pub fn proof(&self) -> ConnectionProof {
        self.proof.clone()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let ConnectionProof { tracker, number, eviction } = &self.proof;
        let mut yielding = tracker.yielding();
        yielding.unproven.remove(*number);
        yielding.idle.remove(eviction.idle.load(Ordering::Relaxed));
        if !eviction.is_evicted.swap(true, Ordering::Relaxed) {
            tracker.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Records that the client of a connection has shown valid credentials.
#[derive(Debug, Clone)]
pub struct ConnectionProof {
    tracker: Arc<ConnectionTracker>,
    number: u64,
    eviction: Arc<Eviction>,
}

impl ConnectionProof {
    /// Keeps the connection from giving way to others, unless it is idle.
    pub fn set(&self) {
        let mut yielding = self.tracker.yielding();
        self.eviction.is_proven.store(true, Ordering::Relaxed);
        yielding.unproven.remove(self.number);
    }

    /// Marks the connection as busy until the guard is dropped; it is idle from then on.
    pub(crate) fn begin_request(&self) -> RequestGuard {
        self.tracker.yielding().idle.remove(self.eviction.idle.load(Ordering::Relaxed));
        RequestGuard(self.clone())
    }
}

/// A request until its answer has left.
#[derive(Debug)]
pub(crate) struct RequestGuard(ConnectionProof);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let ConnectionProof { tracker, eviction, .. } = &self.0;
        let mut yielding = tracker.yielding();
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if is_set(&eviction.is_proven) && !is_set(&eviction.is_evicted) {
            let number = yielding.idle.add(Some(eviction.peer), Arc::clone(eviction));
            eviction.idle.store(number, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_proven_connections_never_give_way() {
        let tracker = Arc::new(ConnectionTracker::new(2));
        let flood: IpAddr = "192.0.2.1".parse().unwrap();
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        let first = tracker.admit(flood).unwrap();
        let second = tracker.admit(flood).unwrap();
        let third = tracker.admit(other).unwrap();
        let evicted =
            |slot: &ConnectionSlot| slot.proof.eviction.is_evicted.load(Ordering::Relaxed);
        assert_eq!((evicted(&first), evicted(&second), tracker.open()), (true, false, 2));
        drop(first);
        assert_eq!(tracker.open(), 2);
        third.proof().set();
        let fourth = tracker.admit(flood).unwrap();
        assert!(evicted(&second) && !evicted(&third));
        fourth.proof().set();
        assert!(tracker.admit(other).is_none());
        drop((second, third));
        assert_eq!((tracker.open(), tracker.refused()), (1, 3));
        assert!(tracker.admit(other).is_some());
    }

    #[test]
    fn idle_connections_give_way() {
        let tracker = Arc::new(ConnectionTracker::new(2));
        let peer: IpAddr = "192.0.2.1".parse().unwrap();
        let [idle, busy] = [(); 2].map(|()| {
            let slot = tracker.admit(peer).unwrap();
            slot.proof().set();
            slot
        });
        let request = busy.proof().begin_request();
        drop(idle.proof().begin_request());
        let newcomer = tracker.admit(peer).unwrap();
        let evicted =
            |slot: &ConnectionSlot| slot.proof.eviction.is_evicted.load(Ordering::Relaxed);
        assert!(evicted(&idle) && !evicted(&busy));
        newcomer.proof().set();
        assert!(tracker.admit(peer).is_none());
        drop(request);
        drop(busy.proof().begin_request());
        assert!(tracker.admit(peer).is_some() && evicted(&busy));
        drop((idle, busy, newcomer));
        assert_eq!(tracker.open(), 0);
        assert!(tracker.yielding().idle.is_empty());
    }
}
