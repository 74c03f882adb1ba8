//! Seeds of randomised tests: `PENSTOCK_SEED=N cargo test NAME` repeats a failed one.

use penstock_random::Random;

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
