//! The steps in which a running transfer follows its allotment: down at once, up a little at a time, and small raises
//! not at all.
//!
//! A cut is never put off or left out, however small: others were already given what it frees. A raise may wait, so
//! send cuts first, and raises once the cuts are in force.

use penstock_units::BitRate;

/// A raise is to at most five quarters of what is.
const RAISE: (u64, u64) = (5, 4);
/// A raise by less than a twentieth is left out.
const RAISE_LEAST: (u64, u64) = (21, 20);

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Keep,
    /// Lower the rate to this.
    Cut(BitRate),
    /// Raise the rate to this, once the cuts of the same round are in force.
    Raise(BitRate),
}

/// From the rate in force to the one allotted. What has no rate yet, or none, starts with its allotment.
#[must_use]
pub fn step(in_force: Option<BitRate>, allotted: BitRate) -> Step {
    let now = in_force.unwrap_or_default().0;
    let times = |(over, under): (u64, u64)| {
        u64::try_from(u128::from(now) * u128::from(over) / u128::from(under)).unwrap_or(u64::MAX)
    };
    match allotted.0 {
        to if to < now => Step::Cut(allotted),
        to if now == 0 && to > 0 => Step::Raise(allotted),
        to if to == now || to < times(RAISE_LEAST) => Step::Keep,
        to => Step::Raise(BitRate(to.min(times(RAISE).max(now + 1)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(now: u64, to: u64) -> Step {
        step(Some(BitRate(now)), BitRate(to))
    }

    #[test]
    fn cuts_are_at_once_and_raises_by_steps() {
        assert_eq!(next(1_000, 999), Step::Cut(BitRate(999)), "small cuts too");
        assert_eq!(next(1_000, 0), Step::Cut(BitRate(0)));
        assert_eq!(next(1_000, 1_049), Step::Keep);
        assert_eq!(next(1_000, 1_050), Step::Raise(BitRate(1_050)));
        assert_eq!(next(1_000, 9_000), Step::Raise(BitRate(1_250)));
        assert_eq!(next(1_000, 1_000), Step::Keep);
        assert_eq!(step(None, BitRate(7)), Step::Raise(BitRate(7)), "the first one is no raise");
        assert_eq!(next(0, 7), Step::Raise(BitRate(7)));
        assert_eq!(next(0, 0), Step::Keep);
        assert_eq!(next(u64::MAX, u64::MAX), Step::Keep);
    }

    #[test]
    fn steps_arrive_within_a_twentieth() {
        for (from, to) in [(1, 1_000_000_000), (3, 5), (400, 100_000)] {
            let (mut now, mut steps) = (from, 0);
            while let Step::Raise(BitRate(rate)) = next(now, to) {
                assert!(rate > now && rate <= to);
                (now, steps) = (rate, steps + 1);
                assert!(steps < 120, "{from} to {to} stays at {now}");
            }
            assert!(now * 21 / 20 >= to, "{from} to {to} ends at {now}");
        }
    }
}
