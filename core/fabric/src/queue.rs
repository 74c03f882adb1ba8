//! Events in the order of their time.
//!
//! A binary heap. A calendar queue (Brown, Communications of the ACM 31, 1988) with buckets of 8 ns was no more than a
//! fifth faster on the cases of `examples/speed.rs`, and sometimes slower, so that it went.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::Event;

/// Events that are ahead. They are totally ordered, so that nothing depends on how they were put in.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<Event>>,
}

impl EventQueue {
    /// Puts an event in.
    pub(crate) fn push(&mut self, event: Event) {
        self.heap.push(Reverse(event));
    }

    /// Takes the next event out, unless it is later than this.
    pub(crate) fn pop(&mut self, until_ps: u64) -> Option<Event> {
        if self.heap.peek()?.0.time_ps() > until_ps {
            return None;
        }
        self.heap.pop().map(|event| event.0)
    }

    /// The time of the next event.
    pub(crate) fn next_time_ps(&self) -> Option<u64> {
        self.heap.peek().map(|event| event.0.time_ps())
    }
}
