//! Random numbers that are the same for the same seed on every machine and in every release: SplitMix64 (Steele, Lea and
//! Flood, Fast splittable pseudorandom number generators, 2014).
//!
//! For simulations, emulated losses, generated data and tests. Not for secrets: the numbers are predictable.

#![forbid(unsafe_code)]

/// Increment of the state: 2^64 divided by the golden ratio, odd.
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A generator with 64 bits of state and a period of 2^64.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// Finalizer of SplitMix64, a bijection: every bit of the input changes every bit of the result.
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// FNV-1a hash of a name (draft-eastlake-fnv).
const fn hash_name(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut hash: u64 = 0xCBF2_9CE4_8422_2325;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01B3);
        at += 1;
    }
    hash
}

impl Random {
    /// Creates a generator whose state is the seed, as the reference implementation does.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates the stream of one entity of one kind, independent of all other streams of the seed: numbers that one
    /// entity draws change none of another.
    #[must_use]
    pub const fn stream(seed: u64, kind: &str, entity: u64) -> Self {
        Self(mix(seed ^ hash_name(kind)).wrapping_add(mix(entity.wrapping_mul(GOLDEN_GAMMA))))
    }

    /// Creates the stream `name` of a seed, independent of the seed's other names.
    #[must_use]
    pub const fn named(seed: u64, name: &str) -> Self {
        let mut random = Self(seed ^ hash_name(name));
        random.next_bits();
        random
    }

    /// Creates a generator from the next number; its numbers are independent of those that follow here.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.next_bits())
    }

    /// Returns the next 64 random bits.
    pub const fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform integer in [0, `end`), 0 where `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next_bits() as u128 * end as u128) >> 64) as u64
    }

    /// Uniform integer in [`low`, `high`), which is not empty.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// True with this probability; draws no number for 0.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// True with the probability 1 / `count`.
    pub const fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Uniform element of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// Number of the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Number of the standard normal distribution (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Fills a buffer with random bytes, which no compression makes smaller.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_bits().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns a vector of `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_matches_published_output() {
        // Reference output of the authors' splitmix64.c for two states.
        let first = |seed| {
            let mut random = Random::new(seed);
            [random.next_bits(), random.next_bits(), random.next_bits()]
        };
        assert_eq!(first(0)[..2], [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]);
        assert_eq!(
            first(1_234_567),
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    /// Runs of the simulator and the lab depend on these numbers.
    #[test]
    fn streams_are_stable_and_differ() {
        let stream = |kind, entity| Random::stream(7, kind, entity).next_bits();
        assert_ne!(stream("port", 0), stream("port", 1));
        assert_ne!(stream("port", 0), stream("flow", 0));
        let named = |seed, name| Random::named(seed, name).next_bits();
        assert_eq!(named(1, "wan"), named(1, "wan"));
        assert_ne!(named(1, "wan"), named(2, "wan"));
        assert_ne!(named(1, "wan"), named(1, "lan"));
        assert_eq!(
            [stream("port", 1), named(1, "wan")],
            [0x0660_48EF_7BFA_8131, 0xF531_878B_DBFA_2846]
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
        assert!(!random.chance(0.0) && random.chance(1.0) && random.one_in(1));
        assert_eq!(random.bytes(13).len(), 13);
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut random = Random::named(7, "normal");
        let normal: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = normal.iter().sum::<f64>() / 1e5;
        let variance = normal.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
        let mean = (0..100_000).map(|_| random.exponential(3.0)).sum::<f64>() / 1e5;
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
    }
}
