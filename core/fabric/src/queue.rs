//! Pending events, earliest first.
//!
//! Packets of one size on links of one delay arrive in the order in which they were sent, and transmissions of one
//! duration end in the order in which they began. These events wait in FIFO lanes, as in patience sorting: an event
//! joins the first lane whose last event is not later. All others wait in a binary heap. A calendar queue (Brown,
//! Communications of the ACM 31, 1988) and a timing wheel were not faster than the heap alone on the cases of
//! `examples/speed.rs`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::event::SimEvent;

/// Lanes: for data, acknowledgements, packets from other regions and ends of transmissions; 4 and 8 were slower.
const LANE_COUNT: usize = 6;

/// Pending events in their total order, which does not depend on the order of insertion.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// First event of each lane; [`SimEvent::NEVER`] if it is empty.
    firsts: [SimEvent; LANE_COUNT],
    /// Event that joined each lane last.
    lasts: [SimEvent; LANE_COUNT],
    /// Events of each lane after the first.
    rests: [VecDeque<SimEvent>; LANE_COUNT],
    heap: BinaryHeap<Reverse<SimEvent>>,
    /// Lane from which an event was taken last.
    lane: usize,
    /// True while the first entry of the heap is the event that [`Self::pop`] returned last. Most events cause another
    /// one, which takes its place: that orders the heap once in place of twice.
    holds_popped: bool,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            firsts: [SimEvent::NEVER; LANE_COUNT],
            lasts: [SimEvent::default(); LANE_COUNT],
            rests: Default::default(),
            heap: BinaryHeap::new(),
            lane: 0,
            holds_popped: false,
        }
    }
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

    /// Adds an arrival or the end of a transmission, which are due soon: a late one would keep others out of its lane.
    #[inline]
    pub(crate) fn push_near(&mut self, event: SimEvent) {
        for lane in 0..LANE_COUNT {
            if self.lasts[lane] <= event {
                self.lasts[lane] = event;
                if self.firsts[lane] == SimEvent::NEVER {
                    self.firsts[lane] = event;
                } else {
                    self.rests[lane].push_back(event);
                }
                return;
            }
        }
        self.push(event);
    }

    /// Removes and returns the earliest event; none if it is later than `until_ps`.
    #[inline]
    pub(crate) fn pop(&mut self, until_ps: u64) -> Option<SimEvent> {
        if std::mem::take(&mut self.holds_popped) {
            self.heap.pop();
        }
        // Pairs first: half of the comparisons wait for no other one.
        let earlier = |one: (SimEvent, usize), other: (SimEvent, usize)| {
            if other.0 < one.0 { other } else { one }
        };
        let pair =
            |lane: usize| earlier((self.firsts[lane], lane), (self.firsts[lane + 1], lane + 1));
        let (event, lane) = earlier(earlier(pair(0), pair(2)), pair(4));
        if let Some(Reverse(first)) = self.heap.peek()
            && *first < event
        {
            self.holds_popped = first.time_ps() <= until_ps;
            return self.holds_popped.then_some(*first);
        }
        if event.time_ps() > until_ps || event == SimEvent::NEVER {
            return None;
        }
        self.lane = lane;
        self.firsts[lane] = self.rests[lane].pop_front().unwrap_or(SimEvent::NEVER);
        Some(event)
    }

    /// Returns the next event of the lane that the last event came from; [`SimEvent::NEVER`] if it is empty.
    pub(crate) fn following(&self) -> SimEvent {
        self.firsts[self.lane]
    }

    /// Returns the time of the earliest event; none if the queue is empty.
    pub(crate) fn next_time_ps(&self) -> Option<u64> {
        let entries = self.heap.as_slice();
        // The second entry in order is one of the two below the first.
        let first =
            if self.holds_popped { entries.iter().skip(1).take(2).max() } else { entries.first() };
        let first = first.map_or(SimEvent::NEVER, |event| event.0);
        let event = self.firsts.into_iter().fold(first, SimEvent::min);
        (event != SimEvent::NEVER).then(|| event.time_ps())
    }

    /// Iterates over all events in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SimEvent> {
        let firsts = self.firsts.into_iter().filter(|event| *event != SimEvent::NEVER);
        let heap = self.heap.as_slice().iter().skip(usize::from(self.holds_popped));
        firsts.chain(self.rests.iter().flatten().copied()).chain(heap.map(|event| event.0))
    }

    /// Removes and returns all events that `is_removed` selects, in order.
    pub(crate) fn remove(&mut self, is_removed: impl Fn(SimEvent) -> bool) -> Vec<SimEvent> {
        let (mut removed, kept): (Vec<_>, Vec<_>) =
            self.iter().partition(|event| is_removed(*event));
        *self = Self::default();
        kept.into_iter().for_each(|event| self.push(event));
        removed.sort_unstable();
        removed
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
                if random.one_in(2) {
                    queue.push(event);
                } else {
                    queue.push_near(event);
                }
                expected.insert(event);
            } else {
                let until_ps = random.below(1_200);
                let due = expected.first().copied().filter(|event| event.time_ps() <= until_ps);
                assert_eq!(queue.pop(until_ps), due);
                due.map(|event| expected.remove(&event));
            }
            assert_eq!(queue.next_time_ps(), expected.first().map(|event| event.time_ps()));
            if random.one_in(100) {
                let seen: BTreeSet<SimEvent> = queue.iter().collect();
                assert_eq!(seen, expected);
                let is_removed = |event: SimEvent| event.entity().is_multiple_of(8);
                let removed: Vec<SimEvent> =
                    expected.iter().copied().filter(|event| is_removed(*event)).collect();
                assert_eq!(queue.remove(is_removed), removed);
                expected.retain(|event| !is_removed(*event));
            }
        }
    }
}
