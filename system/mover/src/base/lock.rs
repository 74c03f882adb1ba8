//! Locks and conditions that ignore poisoning: a panic of one thread ends its session, not the agent.

use std::sync::PoisonError;
use std::time::Duration;

use crate::base::sync::{Condvar, Mutex, MutexGuard};

/// Locks a mutex and ignores poisoning: the guarded state is valid at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition for at most `timeout`; ignores poisoning.
pub(crate) fn wait<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> MutexGuard<'a, T> {
    condition
        .wait_timeout(guard, timeout)
        .map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard)
}
