//! Random numbers that are the same for the same seed on every machine and in every release: one stream for each
//! entity, so that what one does moves nothing of another.

/// SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

/// The finishing step of SplitMix64: every bit of the input moves every bit of the result.
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

impl Random {
    /// The stream of one entity of one kind.
    #[must_use]
    pub const fn new(seed: u64, kind: &str, entity: u64) -> Self {
        // FNV-1a of the kind.
        let bytes = kind.as_bytes();
        let mut named: u64 = 0xCBF2_9CE4_8422_2325;
        let mut at = 0;
        while at < bytes.len() {
            named = (named ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01B3);
            at += 1;
        }
        Self(mix(seed ^ named).wrapping_add(mix(entity.wrapping_mul(0x9E37_79B9_7F4A_7C15))))
    }

    /// Returns the next 64 random bits.
    pub const fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// From 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 up to, not including, `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_bits()) * u128::from(end)) >> 64) as u64
    }

    /// Of the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_matches_published_output() {
        // Reference output for state 0, of the authors' splitmix64.c.
        let mut random = Random(0);
        assert_eq!(random.next_bits(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(random.next_bits(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn entities_have_streams_of_their_own() {
        let first = |kind, entity| Random::new(7, kind, entity).next_bits();
        assert_ne!(first("port", 0), first("port", 1));
        assert_ne!(first("port", 0), first("flow", 0));
        let mut random = Random::new(7, "mean", 0);
        let mean = (0..100_000).map(|_| random.exponential(3.0)).sum::<f64>() / 100_000.0;
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
        assert!((0..1000).all(|_| random.below(3) < 3));
    }
}
