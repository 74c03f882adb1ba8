//! Simulations of many seeds, and their repeatability. `PENSTOCK_SEED` chooses the first seed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_simulation::{Defect, Intensity, Options, run};

/// Seeds of the test with faults.
const SEEDS_WITH_FAULTS: u64 = 1_000;

/// Most seeds until an invariant detects a defect.
const SEEDS_PER_DEFECT: u64 = 100;

/// Simulations at once for each processor: one alone often waits, as each statement goes to the thread of SQLite and back.
const SIMULATIONS_PER_PROCESSOR: usize = 4;

/// Runs seeds on all processors; returns the failure of the lowest seed that fails.
fn run_seeds(count: u64, options: &Options) -> Option<String> {
    let first = penstock_testkit::seed(1);
    let next = AtomicU64::new(0);
    let failure: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..processors * SIMULATIONS_PER_PROCESSOR {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if let Err(found) = run(first + number, options) {
                        next.store(count, Ordering::Relaxed);
                        let text = format!(
                            "{found}\nrepeat with cargo xtask simulate --seed {}",
                            found.seed
                        );
                        // Lower seeds have begun before, and may end later.
                        let mut lowest = failure.lock().unwrap();
                        if lowest.as_ref().is_none_or(|(seed, _)| number < *seed) {
                            *lowest = Some((number, text));
                        }
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap().map(|(_, text)| text)
}

#[test]
fn requests_end_without_faults() {
    let calm = Options { intensity: Intensity::None, ..Options::default() };
    let failure = run_seeds(50, &calm);
    assert!(failure.is_none(), "{}", failure.unwrap_or_default());
}

#[test]
fn invariants_hold_under_faults() {
    let failure = run_seeds(SEEDS_WITH_FAULTS, &Options::default());
    assert!(failure.is_none(), "{}", failure.unwrap_or_default());
}

#[test]
fn same_seed_repeats_every_event() {
    let first = penstock_testkit::seed(1);
    for seed in first..first + 20 {
        let outcomes: Vec<_> = (0..2).map(|_| run(seed, &Options::default())).collect();
        assert_eq!(outcomes[0], outcomes[1], "seed {seed}");
    }
}

/// Each invariant finds the defect that it exists for, within a few seeds.
#[test]
fn invariants_detect_each_defect() {
    let cases = [
        (Defect::LeaseIgnored, "its lease has expired"),
        (Defect::TicketsKept, "is left"),
        (Defect::CancelledWritersKept, "write"),
        (Defect::CommitSkipped, "was never committed"),
        (Defect::CapacityDoubled, "allotted of"),
        (Defect::AgentsStopped, "after the last fault"),
        (Defect::WithdrawnOrdersBegun, "withdrawn"),
    ];
    for (defect, expected) in cases {
        let options = Options { defect: Some(defect), ..Options::default() };
        let found = run_seeds(SEEDS_PER_DEFECT, &options);
        let found = found.unwrap_or_else(|| panic!("{defect:?} was not detected"));
        assert!(found.contains(expected), "{defect:?}: {found}");
    }
}
