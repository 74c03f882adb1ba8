//! Seeds of randomised tests: `PENSTOCK_SEED=N cargo test NAME` repeats a failed one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use penstock_random::Random;
use proptest::test_runner::{Config, RngSeed};

/// Variable with the seed of a failed run.
pub const SEED_VARIABLE: &str = "PENSTOCK_SEED";

/// Returns the seed of `PENSTOCK_SEED`, or `default`; prints it.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn seed(default: u64) -> u64 {
    let given = std::env::var(SEED_VARIABLE).ok();
    let seed = given.map_or(default, |text| {
        text.parse().unwrap_or_else(|error| panic!("{SEED_VARIABLE}={text}: {error}"))
    });
    println!("repeat with {SEED_VARIABLE}={seed}");
    seed
}

/// Creates a generator with the seed of `PENSTOCK_SEED`, or with `default`; prints the seed.
#[must_use]
pub fn seeded(default: u64) -> Random {
    Random::new(seed(default))
}

/// Returns the configuration of property tests: 256 cases from the seed of `PENSTOCK_SEED`, or from a fresh one, which a
/// failed test prints.
#[must_use]
pub fn properties() -> Config {
    // The keys of each new state differ.
    let fresh = RandomState::new().hash_one(SEED_VARIABLE);
    Config { rng_seed: RngSeed::Fixed(seed(fresh)), ..Config::default() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    use super::*;

    fn numbers(config: Config) -> Vec<u64> {
        let mut runner = TestRunner::new(config);
        let mut numbers = Vec::new();
        for _ in 0..4 {
            numbers.push(any::<u64>().new_tree(&mut runner).unwrap().current());
        }
        numbers
    }

    #[test]
    fn property_tests_follow_seed() {
        let config = properties();
        assert_eq!(numbers(config.clone()), numbers(config.clone()));
        let RngSeed::Fixed(seed) = config.rng_seed else { panic!("{config:?}") };
        let other = Config { rng_seed: RngSeed::Fixed(seed.wrapping_add(1)), ..config.clone() };
        assert_ne!(numbers(config), numbers(other));
    }
}
