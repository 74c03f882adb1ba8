//! Counting what is missing from a row of numbered things that may come late, twice, or start over.
//!
//! Numbers have 32 bits and wrap. A number that was skipped counts as lost until it comes after all, within
//! the last [`WINDOW`]; a naive count goes negative under reordering and duplicates
//! (netsampler/goflow2#161).

/// How far behind the newest a number may be and still be told as late or as a duplicate.
pub const WINDOW: u32 = 64;

/// A jump of so many is never taken for a new start.
pub const JUMP_MIN: u32 = 50;

/// A jump of more is always taken for one.
pub const JUMP_MAX: u32 = 65_536;

/// What a number was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The first, or the first after the numbers started over.
    Start,
    /// The next, after so many that are missing.
    Next {
        /// Missing before it.
        missing: u32,
    },
    /// One that was counted as lost.
    Late,
    /// One that had come before.
    Duplicate,
}

/// A row of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sequence {
    newest: Option<u32>,
    /// Bit i: the number i before the newest has come.
    seen: u64,
    run: u32,
    /// Numbers that came, duplicates not counted.
    pub received: u64,
    /// Numbers that have not come.
    pub lost: u64,
    /// Numbers that came twice.
    pub duplicates: u64,
    /// Times that the row started over.
    pub restarts: u64,
}

impl Sequence {
    /// Forgets the row: what comes next is a start.
    pub fn restart(&mut self) {
        if self.newest.take().is_some() {
            self.restarts += 1;
        }
    }

    /// Takes a number.
    ///
    /// Agents start over at 1, and jumps of more than some 50 are mostly that (sflow.org discussion
    /// 0092). A busy exporter can lose more than that at once, so a jump counts as loss up to as many as
    /// have come since the last start.
    #[inline]
    pub fn arrive(&mut self, number: u32) -> Arrival {
        let Some(newest) = self.newest else { return self.start(number) };
        let ahead = number.wrapping_sub(newest);
        if ahead == 1 {
            self.newest = Some(number);
            self.seen = self.seen << 1 | 1;
            self.run = self.run.saturating_add(1);
            self.received += 1;
            return Arrival::Next { missing: 0 };
        }
        if ahead == 0 {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        if ahead <= u32::MAX / 2 {
            if ahead > self.run.clamp(JUMP_MIN, JUMP_MAX) {
                self.restarts += 1;
                return self.start(number);
            }
            self.newest = Some(number);
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.run = self.run.saturating_add(1);
            self.received += 1;
            self.lost += u64::from(ahead - 1);
            return Arrival::Next { missing: ahead - 1 };
        }
        let behind = newest.wrapping_sub(number);
        if behind >= WINDOW {
            self.restarts += 1;
            return self.start(number);
        }
        if self.seen >> behind & 1 == 1 {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        self.seen |= 1 << behind;
        self.received += 1;
        self.lost = self.lost.saturating_sub(1);
        Arrival::Late
    }

    fn start(&mut self, number: u32) -> Arrival {
        self.newest = Some(number);
        // Nothing before the start is missing: what comes from there is a duplicate at worst.
        self.seen = u64::MAX;
        self.run = 1;
        self.received += 1;
        Arrival::Start
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(numbers: impl IntoIterator<Item = u32>) -> Sequence {
        let mut sequence = Sequence::default();
        numbers.into_iter().for_each(|number| {
            sequence.arrive(number);
        });
        sequence
    }

    fn counts(sequence: Sequence) -> (u64, u64, u64, u64) {
        (sequence.received, sequence.lost, sequence.duplicates, sequence.restarts)
    }

    #[test]
    fn loss_reordering_duplicates_and_new_starts_are_told_apart() {
        assert_eq!(counts(of(1..=100)), (100, 0, 0, 0));
        assert_eq!(counts(of((1..=100).filter(|n| n % 10 != 0))), (90, 9, 0, 0));
        assert_eq!(counts(of([1, 2, 5, 4, 3, 6])), (6, 0, 0, 0));
        assert_eq!(counts(of([1, 2, 2, 3, 1])), (3, 0, 2, 0));
        assert_eq!(counts(of([u32::MAX - 1, u32::MAX, 0, 1])), (4, 0, 0, 0));
        // An agent that starts over, far below and not far below.
        assert_eq!(counts(of((1000..1100).chain(1..50))), (149, 0, 0, 1));
        // A jump beyond all that came before is a new start, one within is loss.
        assert_eq!(counts(of((1..=10).chain([100_000]))), (11, 0, 0, 1));
        assert_eq!(counts(of((1..=1000).chain([1500]))), (1001, 499, 0, 0));
        let mut rebooted = of(1..=10);
        rebooted.restart();
        rebooted.arrive(3);
        assert_eq!(counts(rebooted), (11, 0, 0, 1));
    }

    proptest! {
        #[test]
        fn any_order_within_the_window_loses_nothing(start: u32, swaps in prop::collection::vec(0_usize..190, 0..40)) {
            let mut numbers: Vec<u32> = (0..200).map(|n| start.wrapping_add(n)).collect();
            for at in swaps {
                numbers.swap(at.max(1), at.max(1) + 5);
            }
            // Numbers that swaps carried further than the window are another matter.
            let near = numbers.iter().enumerate().all(|(at, n)| {
                (i64::from(n.wrapping_sub(start)) - at as i64).abs() < 30
            });
            prop_assume!(near);
            prop_assert_eq!(counts(of(numbers)), (200, 0, 0, 0));
        }

        #[test]
        fn anything_may_come(numbers in prop::collection::vec(any::<u32>(), 0..100)) {
            let sequence = of(numbers.iter().copied());
            prop_assert_eq!(sequence.received + sequence.duplicates, numbers.len() as u64);
        }
    }
}
