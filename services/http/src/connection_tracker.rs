//! Counters of connections and answers, and the limit of open connections.
//!
//! Over the limit, a connection that has shown no valid credentials gives way: the oldest of the address (IPv6: the
//! /64) that has most of them. So one address cannot take all connections without credentials.

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
    unproven: Mutex<PendingSet<Arc<Eviction>>>,
}

/// Request to close a connection.
#[derive(Debug, Default)]
struct Eviction {
    is_evicted: AtomicBool,
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
            unproven: Mutex::default(),
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
    /// gives way; `None` if there is no other.
    #[must_use]
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let eviction = Arc::new(Eviction::default());
        let mut unproven = self.unproven();
        let number = unproven.add(Some(peer), Arc::clone(&eviction));
        if self.open.load(Ordering::Relaxed) >= self.limit {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let (victim, gone) = unproven.evict().expect("the newcomer is in the set");
            if victim == number {
                return None;
            }
            // Its place in the count is the newcomer's.
            gone.is_evicted.store(true, Ordering::Relaxed);
            gone.notify.notify_one();
        } else {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
        drop(unproven);
        let proof = ConnectionProof { tracker: Arc::clone(self), number };
        Some(ConnectionSlot { proof, eviction })
    }

    fn unproven(&self) -> MutexGuard<'_, PendingSet<Arc<Eviction>>> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    proof: ConnectionProof,
    eviction: Arc<Eviction>,
}

impl ConnectionSlot {
    /// Returns when the connection gives way to another.
    pub async fn evicted(&self) {
        self.eviction.notify.notified().await;
    }

    /// Means to record valid credentials.
    #[must_use]
    pub fn proof(&self) -> ConnectionProof {
        self.proof.clone()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let tracker = &self.proof.tracker;
        let mut unproven = tracker.unproven();
        unproven.remove(self.proof.number);
        if !self.eviction.is_evicted.load(Ordering::Relaxed) {
            tracker.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Records that the client of a connection has shown valid credentials.
#[derive(Debug, Clone)]
pub struct ConnectionProof {
    tracker: Arc<ConnectionTracker>,
    number: u64,
}

impl ConnectionProof {
    /// Keeps the connection from giving way to others.
    pub fn set(&self) {
        self.tracker.unproven().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proven_connections_never_give_way() {
        let tracker = Arc::new(ConnectionTracker::new(2));
        let flood: IpAddr = "192.0.2.1".parse().unwrap();
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        let first = tracker.admit(flood).unwrap();
        let second = tracker.admit(flood).unwrap();
        let third = tracker.admit(other).unwrap();
        let evicted = |slot: &ConnectionSlot| slot.eviction.is_evicted.load(Ordering::Relaxed);
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
}
