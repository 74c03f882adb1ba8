//! What is numbered from 0 and told until the other side has acknowledged it.

use std::collections::VecDeque;

/// Things that were not acknowledged, in the order in which they came about.
#[derive(Debug)]
pub(super) struct Outbox<T> {
    first: u64,
    items: VecDeque<T>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { first: 0, items: VecDeque::new() }
    }
}

impl<T: Clone> Outbox<T> {
    /// Adds the next.
    pub(super) fn push(&mut self, item: T) {
        self.items.push_back(item);
    }

    /// Forgets those before this number. One that was never given counts as the last: nobody can have heard of more.
    pub(super) fn acknowledge(&mut self, before: u64) {
        let known = before.saturating_sub(self.first).min(self.items.len() as u64);
        self.items.drain(..usize::try_from(known).unwrap_or(usize::MAX));
        self.first += known;
    }

    /// The number of the first that is not acknowledged, and those from there on as long as `room` lets them in.
    pub(super) fn told(&self, mut room: impl FnMut(&T) -> bool) -> (u64, Vec<T>) {
        (self.first, self.items.iter().take_while(|item| room(item)).cloned().collect())
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_told_until_it_is_acknowledged() {
        let mut outbox = Outbox::default();
        (0..5).for_each(|number| outbox.push(number));
        let told = |outbox: &Outbox<i32>, most: usize| {
            let mut room = most;
            outbox.told(|_| {
                let is_left = room > 0;
                room = room.saturating_sub(1);
                is_left
            })
        };
        assert_eq!(told(&outbox, 2), (0, vec![0, 1]));
        assert_eq!(told(&outbox, 9), (0, vec![0, 1, 2, 3, 4]));
        outbox.acknowledge(3);
        outbox.acknowledge(2);
        assert_eq!(told(&outbox, 9), (3, vec![3, 4]));
        outbox.acknowledge(1000);
        outbox.push(5);
        assert_eq!((told(&outbox, 9), outbox.len()), ((5, vec![5]), 1));
    }
}
