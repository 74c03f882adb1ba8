//! Queue of blocks from readers to streams.

use std::collections::VecDeque;
use std::time::Duration;

use crate::base::lock::{lock, wait};
use crate::base::sync::{Condvar, Mutex};

/// Limit of queued blocks. Blocks with a buffer are bounded by the pool; this bounds holes, which have none.
const READY_BLOCKS_MAX: usize = 256;

/// Interval at which a reader that waits for room looks again.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Bounded queue from many readers to many streams, until it is closed.
#[derive(Debug)]
pub(crate) struct ReadyQueue<T> {
    state: Mutex<QueueState<T>>,
    /// Signalled when a block came or the queue was closed.
    came: Condvar,
    /// Signalled when a block went or the queue was closed.
    went: Condvar,
    blocks_max: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    blocks: VecDeque<T>,
    closed: bool,
}

impl<T> Default for ReadyQueue<T> {
    fn default() -> Self {
        Self::new(READY_BLOCKS_MAX)
    }
}

impl<T> ReadyQueue<T> {
    /// Creates an open queue of at most `blocks_max` blocks.
    pub(crate) fn new(blocks_max: usize) -> Self {
        let state = QueueState { blocks: VecDeque::new(), closed: false };
        Self { state: Mutex::new(state), came: Condvar::new(), went: Condvar::new(), blocks_max }
    }

    /// Appends a block; waits while the queue is full. Drops the block if the queue is closed.
    pub(crate) fn push(&self, block: T) {
        let mut state = lock(&self.state);
        while state.blocks.len() >= self.blocks_max && !state.closed {
            state = wait(&self.went, state, ROOM_CHECK_INTERVAL);
        }
        if state.closed {
            // The block returns its buffer, which takes the lock of the pool.
            drop(state);
            return;
        }
        state.blocks.push_back(block);
        drop(state);
        self.came.notify_one();
    }

    /// Takes the oldest block; waits at most `timeout` for one. `None` if there is none, or the queue is
    /// closed.
    pub(crate) fn pop(&self, timeout: Duration) -> Option<T> {
        let mut state = lock(&self.state);
        if state.blocks.is_empty() && !state.closed {
            state = wait(&self.came, state, timeout);
        }
        let block = state.blocks.pop_front();
        drop(state);
        if block.is_some() {
            self.went.notify_one();
        }
        block
    }

    /// Drops the queued blocks and wakes all threads; later blocks are dropped, too.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let blocks = std::mem::take(&mut state.blocks);
        drop(state);
        self.came.notify_all();
        self.went.notify_all();
        drop(blocks);
    }
}
