//! Seeded random numbers for tests.

/// Variable with the seed of a failed run.
const SEED_VARIABLE: &str = "PENSTOCK_TEST_SEED";

/// SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator with the seed of `PENSTOCK_TEST_SEED`, or with `default`; prints the seed.
    #[must_use]
    pub fn seeded(default: u64) -> Self {
        let given = std::env::var(SEED_VARIABLE).ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or(default);
        println!("repeat with {SEED_VARIABLE}={seed}");
        Self(seed)
    }

    /// A generator with this seed, whatever the environment says.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, not including, `bound`, which is at least 1.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From `low` up to, not including, `high`, which is greater.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    /// From 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with the probability 1 / `count`.
    pub const fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    /// An element of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next() as usize % list.len()]
    }

    /// A generator whose numbers are independent of those that follow here.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// Returns a vector of `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First outputs of the reference implementation with the seed 1234567.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn ranges_are_kept() {
        let mut random = Random::new(1);
        for _ in 0..1_000 {
            assert!(random.below(3) < 3);
            assert!((5..9).contains(&random.between(5, 9)));
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert_eq!(random.bytes(13).len(), 13);
    }
}
