//! Events in the order of their time: a ring of short buckets for what is near, and a heap for what is far.
//!
//! Most events of a fabric lie within some microseconds. A bucket is sorted when its time comes (a calendar queue
//! after Brown, Communications of the ACM 31, 1988, with fixed days and a heap for other years). Events are totally
//! ordered, so that this gives what a heap gives; measured against one in docs/fabric.md.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::Event;

/// A bucket holds 2^13 ps, about 8 ns: some dozen events of a busy fabric.
const BUCKET_SHIFT: u32 = 13;
/// 2^12 buckets are a horizon of about 34 us.
const BUCKETS: u64 = 1 << 12;

/// Events that are ahead.
#[derive(Debug)]
pub struct EventQueue {
    buckets: Vec<Vec<Event>>,
    /// A bit for each bucket with something in it.
    occupied: Vec<u64>,
    /// Of the bucket that is being emptied, counted from time zero.
    current: u64,
    /// That bucket, the next event last.
    today: Vec<Event>,
    far: BinaryHeap<Reverse<Event>>,
    len: usize,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            buckets: vec![Vec::new(); BUCKETS as usize],
            occupied: vec![0; BUCKETS as usize / 64],
            current: 0,
            today: Vec::new(),
            far: BinaryHeap::new(),
            len: 0,
        }
    }
}

impl EventQueue {
    /// How many events are ahead.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an event in, at no time before that of the last one taken out.
    pub fn push(&mut self, event: Event) {
        self.len += 1;
        let bucket = event.time_ps() >> BUCKET_SHIFT;
        if bucket <= self.current {
            let at = self.today.partition_point(|other| *other > event);
            self.today.insert(at, event);
        } else if bucket - self.current < BUCKETS {
            self.put(bucket, event);
        } else {
            self.far.push(Reverse(event));
        }
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<Event> {
        if self.today.is_empty() && !self.advance() {
            return None;
        }
        self.len -= 1;
        self.today.pop()
    }

    /// An event that is so many behind the next, as far as that is known without effort.
    #[must_use]
    pub fn ahead(&self, count: usize) -> Option<Event> {
        let at = self.today.len().checked_sub(count + 1)?;
        Some(self.today[at])
    }

    /// The time of the next event.
    pub fn next_time_ps(&mut self) -> Option<u64> {
        if self.today.is_empty() && !self.advance() {
            return None;
        }
        self.today.last().map(|event| event.time_ps())
    }

    fn put(&mut self, bucket: u64, event: Event) {
        let slot = (bucket % BUCKETS) as usize;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.buckets[slot].push(event);
    }

    /// Goes on to the next bucket that holds anything; false where none does.
    fn advance(&mut self) -> bool {
        let near = self.next_occupied();
        let far = self.far.peek().map(|event| event.0.time_ps() >> BUCKET_SHIFT);
        let Some(next) = near.into_iter().chain(far).min() else { return false };
        self.current = next;
        while let Some(Reverse(event)) = self.far.peek().copied() {
            let bucket = event.time_ps() >> BUCKET_SHIFT;
            if bucket - self.current >= BUCKETS {
                break;
            }
            self.far.pop();
            self.put(bucket, event);
        }
        let slot = (next % BUCKETS) as usize;
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        std::mem::swap(&mut self.today, &mut self.buckets[slot]);
        self.today.sort_unstable_by(|a, b| b.cmp(a));
        true
    }

    /// The first bucket after the current one with anything in it.
    fn next_occupied(&self) -> Option<u64> {
        let start = ((self.current + 1) % BUCKETS) as usize;
        let words = self.occupied.len();
        for step in 0..=words {
            let word = (start / 64 + step) % words;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            } else if step == words {
                bits &= !(u64::MAX << (start % 64));
            }
            if bits != 0 {
                let slot = (word * 64) as u64 + u64::from(bits.trailing_zeros());
                let ahead = (slot + BUCKETS - start as u64) % BUCKETS;
                return Some(self.current + 1 + ahead);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Kind;

    proptest! {
        /// Against a heap, with steps from one bucket to far beyond the ring.
        #[test]
        fn order_is_that_of_a_heap(steps in prop::collection::vec((0_u32..46, any::<u32>(), 0_usize..4), 1..400)) {
            let mut queue = EventQueue::default();
            let mut heap = BinaryHeap::new();
            let mut now = 0;
            for (number, (shift, ahead, pops)) in steps.into_iter().enumerate() {
                let time = now + (u64::from(ahead) << 14 >> shift);
                let event = Event::new(time, Kind::Arrives, number as u32);
                queue.push(event);
                heap.push(Reverse(event));
                for _ in 0..pops {
                    prop_assert_eq!(queue.next_time_ps(), heap.peek().map(|event| event.0.time_ps()));
                    let expected = heap.pop().map(|event| event.0);
                    prop_assert_eq!(queue.pop(), expected);
                    now = expected.map_or(now, Event::time_ps);
                }
                prop_assert_eq!(queue.len(), heap.len());
            }
            while let Some(Reverse(expected)) = heap.pop() {
                prop_assert_eq!(queue.pop(), Some(expected));
            }
            prop_assert!(queue.is_empty() && queue.pop().is_none());
        }
    }
}
