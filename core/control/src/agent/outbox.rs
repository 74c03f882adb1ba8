//! Numbered items that are reported until the receiver has acknowledged them.

use std::collections::VecDeque;

/// Items without an acknowledgement, in the order in which they were added.
#[derive(Debug)]
pub struct Outbox<T> {
    first: u64,
    items: VecDeque<T>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { first: 0, items: VecDeque::new() }
    }
}

impl<T: Clone> Outbox<T> {
    /// Adds an item, which gets the next number.
    pub fn push(&mut self, item: T) {
        self.items.push_back(item);
    }

    /// Drops the items before number `before`; a number beyond the last item counts as the last.
    pub fn acknowledge(&mut self, before: u64) {
        let known = before.saturating_sub(self.first).min(self.items.len() as u64);
        self.items.drain(..usize::try_from(known).unwrap_or(usize::MAX));
        self.first += known;
    }

    /// Number of the first pending item, and the items from there while `fits` accepts them.
    pub fn pending(&self, mut fits: impl FnMut(&T) -> bool) -> (u64, Vec<T>) {
        (self.first, self.items.iter().take_while(|item| fits(item)).cloned().collect())
    }

    /// Number of pending items.
    pub fn pending_count(&self) -> usize {
        self.items.len()
    }

    /// Drops all items and restarts the numbering at 0.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_repeat_until_acknowledged() {
        let mut outbox = Outbox::default();
        (0..5).for_each(|number| outbox.push(number));
        let pending = |outbox: &Outbox<i32>, most: usize| {
            let mut room = most;
            outbox.pending(|_| {
                let is_left = room > 0;
                room = room.saturating_sub(1);
                is_left
            })
        };
        assert_eq!(pending(&outbox, 2), (0, vec![0, 1]));
        assert_eq!(pending(&outbox, 9), (0, vec![0, 1, 2, 3, 4]));
        outbox.acknowledge(3);
        outbox.acknowledge(2);
        assert_eq!(pending(&outbox, 9), (3, vec![3, 4]));
        outbox.acknowledge(1000);
        outbox.push(5);
        assert_eq!((pending(&outbox, 9), outbox.pending_count()), ((5, vec![5]), 1));
    }
}
