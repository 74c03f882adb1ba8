//! Queue of future events in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in the order of their time; those of one time in the order in which they were added.
#[derive(Debug)]
pub(crate) struct SimulationQueue<T> {
    heap: BinaryHeap<Reverse<(u64, u64, QueueSlot<T>)>>,
    added: u64,
}

/// An event, which does not take part in the order.
#[derive(Debug)]
struct QueueSlot<T>(T);

impl<T> PartialEq for QueueSlot<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for QueueSlot<T> {}

impl<T> PartialOrd for QueueSlot<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for QueueSlot<T> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<T> Default for SimulationQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<T> SimulationQueue<T> {
    /// Adds an event at a time in milliseconds.
    pub(crate) fn add(&mut self, at_ms: u64, event: T) {
        self.added += 1;
        self.heap.push(Reverse((at_ms, self.added, QueueSlot(event))));
    }

    /// Removes the next event; returns it with its time.
    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        self.heap.pop().map(|Reverse((at, _, QueueSlot(event)))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_insertion_order() {
        let mut queue = SimulationQueue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            queue.add(at, event);
        }
        let all: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(all, [(1, 'a'), (3, 'b'), (5, 'c'), (5, 'd')]);
    }
}
