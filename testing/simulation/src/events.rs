//! Queue of future events in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in the order of their time; those of one time in the order in which they were added.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    heap: BinaryHeap<Reverse<(u64, u64, Slot<T>)>>,
    added: u64,
}

/// An event, which does not take part in the order.
#[derive(Debug)]
struct Slot<T>(T);

impl<T> PartialEq for Slot<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Slot<T> {}

impl<T> PartialOrd for Slot<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Slot<T> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<T> EventQueue<T> {
    /// Adds an event at a time in milliseconds.
    pub(crate) fn add(&mut self, at_ms: u64, event: T) {
        self.added += 1;
        self.heap.push(Reverse((at_ms, self.added, Slot(event))));
    }

    /// Removes the next event; returns it with its time.
    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        self.heap.pop().map(|Reverse((at, _, Slot(event)))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_insertion_order() {
        let mut queue = EventQueue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            queue.add(at, event);
        }
        let all: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(all, [(1, 'a'), (3, 'b'), (5, 'c'), (5, 'd')]);
    }
}
