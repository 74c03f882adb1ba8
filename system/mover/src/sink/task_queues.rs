//! Queues of tasks from streams to writers, one per device.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::base::lock::{lock, wait};
use crate::base::sync::{Condvar, Mutex};

/// Queues from many streams to the writers of many devices, until they are closed. The pool of buffers bounds
/// them.
#[derive(Debug)]
pub(crate) struct TaskQueues<T> {
    state: Mutex<TaskState<T>>,
    /// Signalled when a task came or the queues were closed.
    came: Condvar,
}

#[derive(Debug)]
struct TaskState<T> {
    queues: BTreeMap<u64, VecDeque<T>>,
    closed: bool,
}

impl<T> Default for TaskQueues<T> {
    fn default() -> Self {
        let state = TaskState { queues: BTreeMap::new(), closed: false };
        Self { state: Mutex::new(state), came: Condvar::new() }
    }
}

impl<T> TaskQueues<T> {
    /// Appends a task for a device. Drops it if the queues are closed.
    pub(crate) fn push(&self, device: u64, task: T) {
        let mut state = lock(&self.state);
        if state.closed {
            // The task returns its buffer, which takes the lock of the pool.
            drop(state);
            return;
        }
        state.queues.entry(device).or_default().push_back(task);
        drop(state);
        // Writers of other devices wait on the same condition.
        self.came.notify_all();
    }

    /// Takes the oldest task of a device; waits at most `timeout` for one.
    pub(crate) fn pop(&self, device: u64, timeout: Duration) -> Option<T> {
        let mut state = lock(&self.state);
        let task = state.queues.get_mut(&device).and_then(VecDeque::pop_front);
        if task.is_some() || timeout.is_zero() || state.closed {
            return task;
        }
        state = wait(&self.came, state, timeout);
        state.queues.get_mut(&device).and_then(VecDeque::pop_front)
    }

    /// Drops the queued tasks and wakes all writers; later tasks are dropped, too.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let queues = std::mem::take(&mut state.queues);
        drop(state);
        self.came.notify_all();
        drop(queues);
    }
}
