//! Queues of tasks from streams to writers, one per device.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::base::lock::{lock, wait};
use crate::base::sync::{Condvar, Mutex};

/// Queues from many streams to the writers of many devices, until they are closed. The pool of buffers bounds
/// them.
#[derive(Debug)]
pub(crate) struct TaskQueues<T>(Mutex<TaskState<T>>);

#[derive(Debug)]
struct TaskState<T> {
    devices: BTreeMap<u64, WriterQueue<T>>,
    closed: bool,
}

#[derive(Debug)]
struct WriterQueue<T> {
    tasks: VecDeque<T>,
    /// Signalled to one writer for each task, and to all when the queues were closed.
    came: Arc<Condvar>,
}

impl<T> Default for TaskQueues<T> {
    fn default() -> Self {
        Self(Mutex::new(TaskState { devices: BTreeMap::new(), closed: false }))
    }
}

impl<T> Default for WriterQueue<T> {
    fn default() -> Self {
        Self { tasks: VecDeque::new(), came: Arc::new(Condvar::new()) }
    }
}

impl<T> TaskQueues<T> {
    /// Appends a task for a device and wakes one of its writers. Drops it if the queues are closed.
    pub(crate) fn push(&self, device: u64, task: T) {
        let mut state = lock(&self.0);
        if state.closed {
            // The task returns its buffer, which takes the lock of the pool.
            drop(state);
            return;
        }
        let queue = state.devices.entry(device).or_default();
        queue.tasks.push_back(task);
        let came = Arc::clone(&queue.came);
        drop(state);
        came.notify_one();
    }

    /// Takes the oldest task of a device; waits at most `timeout` for one.
    pub(crate) fn pop(&self, device: u64, timeout: Duration) -> Option<T> {
        let mut state = lock(&self.0);
        let is_closed = state.closed;
        let queue = state.devices.entry(device).or_default();
        let task = queue.tasks.pop_front();
        if task.is_some() || timeout.is_zero() || is_closed {
            return task;
        }
        let came = Arc::clone(&queue.came);
        state = wait(&came, state, timeout);
        state.devices.get_mut(&device).and_then(|queue| queue.tasks.pop_front())
    }

    /// Drops the queued tasks and wakes all writers; later tasks are dropped, too.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.0);
        state.closed = true;
        let devices = std::mem::take(&mut state.devices);
        drop(state);
        devices.values().for_each(|queue| queue.came.notify_all());
        drop(devices);
    }
}
