//! Counters of a controller since its start, and figures of its latest round.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_control::scheduler::Snapshot;

#[derive(Debug, Default)]
pub(crate) struct ControllerCounters {
    commits: AtomicU64,
    commit_us: AtomicU64,
    failures: AtomicU64,
    rounds: AtomicU64,
    round_us: AtomicU64,
    reports: AtomicU64,
    refused: AtomicU64,
}

/// Name, help text and value of each counter.
pub(crate) type CounterValues = [(&'static str, &'static str, f64); 7];

impl ControllerCounters {
    pub(crate) fn committed(&self, took: Duration) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.commit_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn round(&self, took: Duration) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.round_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn reported(&self) {
        self.reports.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn all(&self) -> CounterValues {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        [
            ("transactions", "Transactions written", count(&self.commits)),
            ("transaction_seconds", "Time that they took", count(&self.commit_us) / 1e6),
            ("database_failures", "Times that the database failed", count(&self.failures)),
            ("rounds", "Rounds made", count(&self.rounds)),
            ("round_seconds", "Time that they took", count(&self.round_us) / 1e6),
            ("reports", "Reports of nodes taken", count(&self.reports)),
            ("refusals", "Requests refused for lack of a scope or token", count(&self.refused)),
        ]
    }
}

/// Hosts and work in the latest round of this controller.
#[derive(Debug, Default)]
pub(crate) struct LatestRound {
    hosts_up: AtomicU64,
    hosts_down: AtomicU64,
    runs: AtomicU64,
    queued_bytes: AtomicU64,
}

impl LatestRound {
    pub(crate) fn set(&self, snapshot: &Snapshot) {
        let up = snapshot.hosts.iter().filter(|host| host.alive).count();
        self.hosts_up.store(up as u64, Ordering::Relaxed);
        self.hosts_down.store((snapshot.hosts.len() - up) as u64, Ordering::Relaxed);
        self.runs.store(snapshot.runs.len() as u64, Ordering::Relaxed);
        let queued = snapshot.queues.iter().map(|queue| queue.bytes).fold(0, u64::saturating_add);
        self.queued_bytes.store(queued, Ordering::Relaxed);
    }

    /// Returns the numbers of hosts that report and of those that fell silent.
    pub(crate) fn hosts(&self) -> [u64; 2] {
        [&self.hosts_up, &self.hosts_down].map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the files that wait for a run, where their sizes are known.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }
}
