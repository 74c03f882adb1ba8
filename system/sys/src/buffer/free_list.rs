//! Free items of a bounded pool, and the threads that wait for one.
//!
//! Generic and without system calls, so that the mover's `tests/handover.rs` can run it under many schedules of its
//! threads.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::sync::{Condvar, Mutex, MutexGuard};

/// Items that are allocated on first use up to a limit, and reused last in, first out.
pub(super) struct FreeList<T> {
    state: Mutex<ListState<T>>,
    returned: Condvar,
}

/// State of a [`FreeList`].
pub(super) struct ListState<T> {
    pub(super) free: Vec<T>,
    /// Items in use or free.
    pub(super) allocated: usize,
    pub(super) limit: usize,
    pub(super) closed: bool,
    /// Count of takes that had to wait.
    pub(super) waits: u64,
    /// Total time of all finished waits.
    pub(super) waited: Duration,
}

impl<T> FreeList<T> {
    /// Creates a list of at most `limit` items and allocates none.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            state: Mutex::new(ListState {
                free: Vec::new(),
                allocated: 0,
                limit,
                closed: false,
                waits: 0,
                waited: Duration::ZERO,
            }),
            returned: Condvar::new(),
        }
    }

    /// Takes an item if fewer than `in_use_max` are in use, and one is free now or `allocate`, called with true for the
    /// first item, returns one.
    pub(super) fn try_take(
        &self,
        in_use_max: usize,
        allocate: impl Fn(bool) -> Option<T>,
    ) -> Option<T> {
        self.lock().take_now(in_use_max, &allocate)
    }

    /// As [`Self::try_take`]; blocks until `deadline`, or until the list is closed.
    pub(super) fn take(
        &self,
        in_use_max: usize,
        deadline: Option<Instant>,
        allocate: impl Fn(bool) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        if let Some(item) = state.take_now(in_use_max, &allocate) {
            return Some(item);
        }
        if state.closed {
            return None;
        }
        let began = Instant::now();
        state.waits += 1;
        let taken = loop {
            state = match deadline {
                None => self.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let woken = self.returned.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            // Looked at before the clock, so that a wake-up that meets the deadline is not lost to the other waiters.
            if let Some(item) = state.take_now(in_use_max, &allocate) {
                break Some(item);
            }
            if state.closed || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break None;
            }
        };
        state.waited += began.elapsed();
        taken
    }

    /// Returns an item, or drops it if the list is closed or over its limit.
    pub(super) fn give_back(&self, item: T) {
        let mut state = self.lock();
        if state.closed || state.allocated > state.limit {
            state.allocated -= 1;
            drop(state);
            drop(item);
        } else {
            state.free.push(item);
            drop(state);
            self.returned.notify_one();
        }
    }

    /// Accounts for an item in use that will not return: another may be allocated.
    pub(super) fn forget(&self) {
        self.lock().allocated -= 1;
        self.returned.notify_one();
    }

    /// Changes the limit. Surplus free items are dropped at once, those in use on return.
    pub(super) fn resize(&self, limit: usize) {
        let mut state = self.lock();
        state.limit = limit;
        while state.allocated > limit && state.free.pop().is_some() {
            state.allocated -= 1;
        }
        drop(state);
        self.returned.notify_all();
    }

    /// Makes blocked and later takes return `None`.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.allocated -= state.free.len();
        state.free.clear();
        drop(state);
        self.returned.notify_all();
    }

    /// Locks the state of the list.
    pub(super) fn lock(&self) -> MutexGuard<'_, ListState<T>> {
        // No code that can panic runs between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ListState<T> {
    fn take_now(&mut self, in_use_max: usize, allocate: &impl Fn(bool) -> Option<T>) -> Option<T> {
        if self.closed || self.allocated - self.free.len() >= in_use_max {
            return None;
        }
        if let Some(item) = self.free.pop() {
            return Some(item);
        }
        if self.allocated >= self.limit {
            return None;
        }
        let item = allocate(self.allocated == 0)?;
        self.allocated += 1;
        Some(item)
    }
}
