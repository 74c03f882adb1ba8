//! Bounded set of unauthenticated connections, shared fairly between source prefixes ([`PendingSet`]).

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use penstock_sys::net::PendingSet;

use crate::base::lock::lock;
use crate::net::transport::Transport;

/// Limit of pending connections.
const PENDING_MAX: usize = 256;

/// Limit of threads for unauthenticated peers.
const PENDING_THREADS_MAX: usize = 2 * PENDING_MAX;

/// Pending connections, by arrival.
#[derive(Debug, Default)]
pub(crate) struct PendingConnections {
    pending: Mutex<PendingSet<Transport>>,
    /// Numbers of pending connections and of closed ones whose threads have not ended yet.
    threads: Mutex<HashSet<u64>>,
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
        let mut pending = lock(&self.pending);
        let number = pending.add(transport.peer_address(), handle);
        if pending.len() > PENDING_MAX
            && let Some((_, gone)) = pending.evict()
        {
            gone.shut_down();
        }
        lock(&self.threads).insert(number);
        Ok(number)
    }

    /// Removes a connection that has authenticated or ended.
    pub(crate) fn remove(&self, number: u64) {
        lock(&self.pending).remove(number);
        lock(&self.threads).remove(&number);
    }

    /// Closes connections pending for longer than `within`.
    pub(crate) fn close_expired(&self, within: Duration) {
        let pending = lock(&self.pending);
        let slow = pending.iter().filter(|one| one.since.elapsed() > within);
        slow.for_each(|one| one.handle.shut_down());
    }
}
