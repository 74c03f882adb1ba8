//! Receiving state machine behind a lock, with the conditions on which planner and committer wait.

use std::time::Duration;

use crate::base::lock::{lock, wait};
use crate::base::sync::{Condvar, Mutex, MutexGuard};

/// Work that a state machine has for the threads that wait on it.
pub(crate) trait HasWork {
    /// True if the planner has something to do.
    fn has_plan_work(&self) -> bool;
    /// True if the committer has something to do.
    fn has_commit_work(&self) -> bool;
}

/// State machine shared by streams, planner, writers and committer.
#[derive(Debug)]
pub(crate) struct SharedMachine<M> {
    machine: Mutex<M>,
    plan: Condvar,
    commit: Condvar,
}

impl<M: HasWork> SharedMachine<M> {
    /// Shares `machine`, on which no thread waits yet.
    pub(crate) fn new(machine: M) -> Self {
        Self { machine: Mutex::new(machine), plan: Condvar::new(), commit: Condvar::new() }
    }

    /// Locks the machine, for changes that make no work.
    pub(crate) fn lock(&self) -> MutexGuard<'_, M> {
        lock(&self.machine)
    }

    /// Calls `change` with the machine, then wakes the threads that have work.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut M) -> T) -> T {
        let mut machine = self.lock();
        let answer = change(&mut machine);
        let (plan, commit) = (machine.has_plan_work(), machine.has_commit_work());
        drop(machine);
        if commit {
            self.commit.notify_one();
        }
        if plan {
            self.plan.notify_one();
        }
        answer
    }

    /// Wakes planner and committer, whose session may be over.
    pub(crate) fn wake_all(&self) {
        // Under the lock, so that no thread is between its check and its wait.
        let machine = self.lock();
        self.plan.notify_all();
        self.commit.notify_all();
        drop(machine);
    }

    /// Waits until there may be work for the planner, at most the time that `patience` returns.
    pub(crate) fn wait_to_plan(&self, patience: impl FnOnce(&M) -> Option<Duration>) {
        let machine = self.lock();
        if let Some(time) = patience(&machine) {
            drop(wait(&self.plan, machine, time));
        }
    }

    /// Waits until there may be work for the committer, at most the time that `patience` returns.
    pub(crate) fn wait_to_commit(&self, patience: impl FnOnce(&M) -> Option<Duration>) {
        let machine = self.lock();
        if let Some(time) = patience(&machine) {
            drop(wait(&self.commit, machine, time));
        }
    }
}
