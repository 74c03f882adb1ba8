//! Pending events, earliest first.
//!
//! A binary heap. A calendar queue (Brown, Communications of the ACM 31, 1988) with buckets of 8 ns was at most a fifth
//! faster on the cases of `examples/speed.rs` and sometimes slower, so it was removed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::SimEvent;

/// Pending events in their total order, which does not depend on the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<SimEvent>>,
}

impl EventQueue {
    pub(crate) fn push(&mut self, event: SimEvent) {
        self.heap.push(Reverse(event));
    }

    /// Removes and returns the earliest event; none if it is later than `until_ps`.
    pub(crate) fn pop(&mut self, until_ps: u64) -> Option<SimEvent> {
        if self.heap.peek()?.0.time_ps() > until_ps {
            return None;
        }
        self.heap.pop().map(|event| event.0)
    }

    /// Returns the time of the earliest event; none if the queue is empty.
    pub(crate) fn next_time_ps(&self) -> Option<u64> {
        self.heap.peek().map(|event| event.0.time_ps())
    }
}
