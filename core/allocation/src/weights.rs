//! Fractions scaled to integers, so that a filling adds and compares them exactly.
//!
//! Dividing a class's weight among its demands gives fractions. If their common denominator is small enough, the
//! integers have exactly the same ratios; otherwise they are rounded down by less than 2⁻⁵⁸ of the sum. Only ratios
//! matter.

/// Weights sum to less than 2 to this power, so that the sum times a capacity in grains fits 128 bits.
pub(crate) const SUM_BITS: u32 = 60;

/// A weight above zero, as numerator and denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExactFraction {
    /// Numerator, at most 2^72.
    pub(crate) over: u128,
    /// Denominator, at most 2^40.
    pub(crate) under: u64,
}

/// Returns integers in the ratios of the fractions, each at least 1.
pub(crate) fn to_integers(fractions: &[ExactFraction]) -> Vec<u64> {
    let common = fractions.iter().try_fold(1, |all, one| common_multiple(all, one.under));
    let exact = common.map(|common| {
        let one = |fraction: &ExactFraction| fraction.over * u128::from(common / fraction.under);
        fractions.iter().map(one).collect::<Vec<_>>()
    });
    if let Some(exact) = exact
        && let Some(spare) = SUM_BITS.checked_sub(bits(exact.iter().sum()))
    {
        return exact.into_iter().map(|weight| (weight << spare) as u64).collect();
    }
    let total: u128 = fractions.iter().map(|one| one.over / u128::from(one.under) + 1).sum();
    let shift = i64::from(SUM_BITS) - i64::from(bits(total));
    let one = |fraction: &ExactFraction| {
        let (over, under) = (fraction.over, u128::from(fraction.under));
        let scaled = if shift >= 0 { (over << shift) / under } else { (over / under) >> -shift };
        (scaled as u64).max(1)
    };
    fractions.iter().map(one).collect()
}

/// Quotient of a weight below 2^60 and a denominator, by which many numerators are multiplied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    whole: u64,
    under: u128,
    /// Bits by which numerators are shifted to the left; to the right if negative.
    shift: i32,
    /// Slightly less than 2^126 divided by the denominator, shifted to 63 bits.
    inverse: u64,
}

impl Ratio {
    /// `under` is from 1 to 2^80.
    pub(crate) const fn new(whole: u64, under: u128) -> Self {
        let shift = 63 - bits(under) as i32;
        let scaled = if shift >= 0 { under << shift } else { (under >> -shift) + 1 };
        Self { whole, under, shift, inverse: (((1 << 126) - 1) / scaled) as u64 }
    }

    /// Returns ⌊whole·over/under⌋ for a numerator up to the denominator.
    #[inline]
    pub(crate) const fn times(self, over: u128) -> u64 {
        if self.under < NARROW_DENOMINATOR {
            return self.times_narrow(over as u64, self.under as u64);
        }
        let scaled = if self.shift >= 0 { over << self.shift } else { over >> -self.shift };
        let fraction = (scaled * self.inverse as u128) >> 63;
        // Less by a few at most, as every step rounded down.
        let mut part = (self.whole as u128 * fraction) >> 63;
        let mut rest = self.whole as u128 * over - part * self.under;
        while rest >= self.under {
            part += 1;
            rest -= self.under;
        }
        part as u64
    }

    /// As [`Self::times`], where a few denominators fit 64 bits.
    #[inline]
    const fn times_narrow(self, over: u64, under: u64) -> u64 {
        let fraction = ((over << self.shift) as u128 * self.inverse as u128) >> 63;
        let mut part = ((self.whole as u128 * fraction) >> 63) as u64;
        let mut rest = self.whole.wrapping_mul(over).wrapping_sub(part.wrapping_mul(under));
        while rest >= under {
            part += 1;
            rest -= under;
        }
        part
    }
}

/// Denominators from which [`Ratio`] computes in 128 bits.
const NARROW_DENOMINATOR: u128 = 1 << 60;

const fn bits(number: u128) -> u32 {
    u128::BITS - number.leading_zeros()
}

/// Returns the least common multiple; none above 2^40, which would leave too few bits for the weights.
fn common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b).filter(|multiple| *multiple <= 1 << 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fraction(over: u128, under: u64) -> ExactFraction {
        ExactFraction { over, under }
    }

    #[test]
    fn small_fractions_keep_their_ratios_exactly() {
        let got = to_integers(&[fraction(3, 2), fraction(1, 3), fraction(1, 1)]);
        assert!(got[0] * 2 == got[1] * 9 && got[1] * 3 == got[2], "{got:?}");
        assert!(got.iter().sum::<u64>() < 1 << SUM_BITS);
        assert_eq!(to_integers(&[]), []);
    }

    #[test]
    fn ratios_equal_exact_division() {
        let mut random = penstock_random::Random::new(1);
        for _ in 0..200_000 {
            let whole = random.next_bits() >> (4 + random.below(60));
            let wide = u128::from(random.next_bits()) << 64 | u128::from(random.next_bits());
            let over = wide >> (61 + random.below(67));
            let under = over + (u128::from(random.next_bits()) >> random.below(64)).max(1);
            let exact = u128::from(whole) * over / under;
            assert_eq!(
                u128::from(Ratio::new(whole, under).times(over)),
                exact,
                "{whole} {over} {under}"
            );
        }
        assert_eq!(Ratio::new((1 << 60) - 1, 1).times(1), (1 << 60) - 1);
        assert_eq!(Ratio::new((1 << 60) - 1, 1 << 67).times(1 << 67), (1 << 60) - 1);
    }

    #[test]
    fn large_ones_fit_and_stay_close() {
        // A million guarantees of a petabit, and denominators without common factors.
        let most = to_integers(&vec![fraction(1 << 72, 1); 1 << 20]);
        assert!(most.iter().map(|one| u128::from(*one)).sum::<u128>() <= 1 << SUM_BITS);
        let primes = [999_983, 999_979, 999_961, 999_959, 999_953];
        let got = to_integers(&primes.map(|prime| fraction(1 << 20, prime)));
        for (one, prime) in got.iter().zip(primes) {
            let ratio = *one as f64 / got[0] as f64 * prime as f64 / primes[0] as f64;
            assert!((ratio - 1.0).abs() < 1e-15, "{ratio}");
        }
        assert!(to_integers(&[fraction(1, 1 << 40), fraction(1 << 72, 1)])[0] >= 1);
    }
}
