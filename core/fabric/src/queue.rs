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
    /// True while the first entry is the event that [`Self::pop`] returned last. Most events cause another one, which
    /// takes its place: that orders the heap once in place of twice.
    holds_popped: bool,
}

impl EventQueue {
    pub(crate) fn push(&mut self, event: SimEvent) {
        if std::mem::take(&mut self.holds_popped)
            && let Some(mut popped) = self.heap.peek_mut()
        {
            *popped = Reverse(event);
            return;
        }
        self.heap.push(Reverse(event));
    }

    /// Removes and returns the earliest event; none if it is later than `until_ps`.
    pub(crate) fn pop(&mut self, until_ps: u64) -> Option<SimEvent> {
        if std::mem::take(&mut self.holds_popped) {
            self.heap.pop();
        }
        let event = self.heap.peek()?.0;
        self.holds_popped = event.time_ps() <= until_ps;
        self.holds_popped.then_some(event)
    }

    /// Returns the time of the earliest event; none if the queue is empty.
    pub(crate) fn next_time_ps(&self) -> Option<u64> {
        let entries = self.heap.as_slice();
        // The second entry in order is one of the two below the first.
        let first =
            if self.holds_popped { entries.iter().skip(1).take(2).max() } else { entries.first() };
        first.map(|event| event.0.time_ps())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use penstock_random::Random;

    use super::*;
    use crate::event::SimEventKind;

    #[test]
    fn events_leave_in_total_order() {
        let mut random = Random::new(1);
        let (mut queue, mut expected) = (EventQueue::default(), BTreeSet::new());
        for entity in 0..20_000 {
            // As many pushes as pops, in runs of either.
            if random.one_in(2) {
                let event = SimEvent::new(random.below(1_000), SimEventKind::Arrival, entity);
                queue.push(event);
                expected.insert(event);
            } else {
                let until_ps = random.below(1_200);
                let due = expected.first().copied().filter(|event| event.time_ps() <= until_ps);
                assert_eq!(queue.pop(until_ps), due);
                due.map(|event| expected.remove(&event));
            }
            assert_eq!(queue.next_time_ps(), expected.first().map(|event| event.time_ps()));
        }
    }
}
