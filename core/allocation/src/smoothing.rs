//! Rate steps of a running transfer towards its allotment: cuts at once, raises gradually, small raises not at all.
//!
//! A cut is never delayed or skipped: its capacity is already allotted to other demands. Apply cuts first, and raises
//! once the cuts are in force.

use penstock_units::BitRate;

/// Largest raise in one step, as a ratio to the present rate.
const RAISE_RATIO_MAX: (u64, u64) = (5, 4);
/// Smallest raise worth making, as a ratio to the present rate.
const RAISE_RATIO_MIN: (u64, u64) = (21, 20);

/// Next change of a transfer's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateStep {
    /// Leaves the rate unchanged.
    Keep,
    /// Lowers the rate to this.
    Cut(BitRate),
    /// Raises the rate to this, once the cuts of the same round are in force.
    Raise(BitRate),
}

/// Returns the step from the rate in force to the allotted one. A transfer without a rate starts at its allotment.
#[must_use]
pub fn step(in_force: Option<BitRate>, allotted: BitRate) -> RateStep {
    let now = in_force.unwrap_or_default().0;
    let times = |(over, under): (u64, u64)| {
        u64::try_from(u128::from(now) * u128::from(over) / u128::from(under)).unwrap_or(u64::MAX)
    };
    match allotted.0 {
        to if to < now => RateStep::Cut(allotted),
        to if now == 0 && to > 0 => RateStep::Raise(allotted),
        to if to == now || to < times(RAISE_RATIO_MIN) => RateStep::Keep,
        to => RateStep::Raise(BitRate(to.min(times(RAISE_RATIO_MAX).max(now + 1)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(now: u64, to: u64) -> RateStep {
        step(Some(BitRate(now)), BitRate(to))
    }

    #[test]
    fn cuts_are_immediate_raises_are_gradual() {
        assert_eq!(next(1_000, 999), RateStep::Cut(BitRate(999)), "small cuts are applied");
        assert_eq!(next(1_000, 0), RateStep::Cut(BitRate(0)));
        assert_eq!(next(1_000, 1_049), RateStep::Keep);
        assert_eq!(next(1_000, 1_050), RateStep::Raise(BitRate(1_050)));
        assert_eq!(next(1_000, 9_000), RateStep::Raise(BitRate(1_250)));
        assert_eq!(next(1_000, 1_000), RateStep::Keep);
        assert_eq!(
            step(None, BitRate(7)),
            RateStep::Raise(BitRate(7)),
            "the first one is no raise"
        );
        assert_eq!(next(0, 7), RateStep::Raise(BitRate(7)));
        assert_eq!(next(0, 0), RateStep::Keep);
        assert_eq!(next(u64::MAX, u64::MAX), RateStep::Keep);
    }

    #[test]
    fn steps_converge_within_five_percent() {
        for (from, to) in [(1, 1_000_000_000), (3, 5), (400, 100_000)] {
            let (mut now, mut steps) = (from, 0);
            while let RateStep::Raise(BitRate(rate)) = next(now, to) {
                assert!(rate > now && rate <= to);
                (now, steps) = (rate, steps + 1);
                assert!(steps < 120, "{from} to {to} stays at {now}");
            }
            assert!(now * 21 / 20 >= to, "{from} to {to} ends at {now}");
        }
    }
}
