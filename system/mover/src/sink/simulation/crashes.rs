//! Crash tests: stop the receiving side after every single change.

use std::io;
use std::sync::mpsc;

use penstock_protocol::digest::Algorithm;
use penstock_random::Random;

use super::storage::{Crash, SimulatedStorage, StorageState};
use super::transfer::{RunConfig, SimulatedDataset, difference, transfer};

const KILL_ONLY: &[Crash] = &[Crash::Kill];
const ALL_CRASHES: &[Crash] = &[Crash::Kill, Crash::PowerCut, Crash::CacheLoss];

/// File sizes around every boundary of pages, blocks, packs and partial files, with a few large ones.
const FILE_SIZES: &[u64] = &[
    0, 1, 511, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 16_383, 16_384, 16_385,
    20_480, 1, 100, 70_001, 65_536,
];

fn run(algorithm: Algorithm, seed: u64) -> RunConfig {
    RunConfig { algorithm, seed, key: 1 }
}

/// Fewer small files than share a sync, none of them empty.
const FEW_SIZES: &[u64] = &[1, 511, 2049, 8192, 4097, 20_480, 16_385];

/// Runs a transfer and passes the state before each of its changes, and the last one, to `visit` on
/// another thread.
fn for_each_crash_point(
    dataset: &SimulatedDataset,
    run: RunConfig,
    mut visit: impl FnMut(u64, StorageState) + Send,
) -> u64 {
    let storage = SimulatedStorage::new(run.seed);
    std::thread::scope(|scope| {
        let (states, visits) = mpsc::sync_channel(8);
        let visitor = scope.spawn(move || {
            let mut number = 0;
            while let Ok(state) = visits.recv() {
                visit(number, state);
                number += 1;
            }
            number
        });
        let observed = states.clone();
        // A panic of the visitor surfaces at join.
        storage.observe(Box::new(move |state| drop(observed.send(state.clone()))));
        let outcome = transfer(&storage, dataset, run).expect("an empty file system");
        storage.observe(Box::new(|_| {}));
        assert!(outcome.is_success(), "seed {}: {outcome:?}", run.seed);
        let last = storage.state();
        assert_eq!(difference(&last, dataset), None, "seed {} without a crash", run.seed);
        drop(states.send(last));
        drop(states);
        visitor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Repeats the command after a crash, possibly with a second crash, until it succeeds.
fn recover(
    state: StorageState,
    dataset: &SimulatedDataset,
    first: RunConfig,
    crash: Crash,
    number: u64,
) {
    let seed = first.seed.wrapping_mul(1_000_003) + number;
    let mut random = Random::new(seed);
    let describe = || format!("seed {}, {crash:?} before change {number}", first.seed);
    let mut state = state.after(crash, seed);
    // Another spelling of the command finds the same partial files.
    let key = if random.one_in(4) { 2 } else { first.key };
    let run = RunConfig { seed, key, ..first };
    if random.one_in(8) {
        let storage = SimulatedStorage::from(state.clone(), seed);
        let stop = random.below(300);
        let (snapshots, stopped) = mpsc::channel();
        let mut change = 0;
        storage.observe(Box::new(move |state| {
            if change == stop {
                let _ = snapshots.send(state.clone());
            }
            change += 1;
        }));
        let _ = transfer(&storage, dataset, run);
        if let Ok(stopped) = stopped.try_recv() {
            state = stopped.after(crash, seed + 1);
        }
    }
    let storage = SimulatedStorage::from(state, seed);
    let outcome = transfer(&storage, dataset, run).unwrap_or_else(|| panic!("{}", describe()));
    assert!(outcome.is_success(), "{}: {outcome:?}", describe());
    if key != first.key {
        // Files not announced again are removed by the first command or after the retention time.
        let storage = SimulatedStorage::from(storage.state(), seed);
        let again = transfer(&storage, dataset, first).expect("a file system");
        assert!(again.is_success(), "{}: {again:?}", describe());
        assert_eq!(again.tally.moved_bytes, 0, "{}", describe());
        assert_eq!(difference(&storage.state(), dataset), None, "{}, twice", describe());
    } else {
        assert_eq!(difference(&storage.state(), dataset), None, "{}", describe());
    }
}

#[test]
fn crash_points_of_boundary_sizes() {
    for (seed, algorithm) in [
        (1, Algorithm::Crc32c),
        (2, Algorithm::Blake3),
        (3, Algorithm::Sha256),
        (4, Algorithm::Adler32),
        (5, Algorithm::None),
    ] {
        let dataset = SimulatedDataset::new(FILE_SIZES, seed);
        let run = run(algorithm, seed);
        let points = for_each_crash_point(&dataset, run, |number, state| {
            for crash in ALL_CRASHES {
                recover(state.clone(), &dataset, run, *crash, number);
            }
        });
        assert!(points > 250, "{points}");
    }
}

#[test]
fn crash_points_of_many_files() {
    let size =
        |number: u64| if number.is_multiple_of(10) { 20_000 + number } else { 4096 + number * 20 };
    let sizes: Vec<_> = (0..200).map(size).collect();
    let dataset = SimulatedDataset::new(&sizes, 6);
    let run = run(Algorithm::Crc32c, 6);
    let points = for_each_crash_point(&dataset, run, |number, state| {
        let crash = ALL_CRASHES[number as usize % ALL_CRASHES.len()];
        recover(state, &dataset, run, crash, number);
    });
    assert!(points > 2000, "{points}");
}

#[test]
fn crash_points_of_few_files() {
    for seed in 20..26 {
        let dataset = SimulatedDataset::new(FEW_SIZES, seed).without_links();
        let run = run(Algorithm::Crc32c, seed);
        for_each_crash_point(&dataset, run, |number, state| {
            for crash in ALL_CRASHES {
                recover(state.clone(), &dataset, run, *crash, number);
            }
        });
    }
}

/// Everything that a successful copy wrote is durable, whether it syncs single directories or file systems.
#[test]
fn finished_copies_survive_power_cut() {
    for seed in 30..50 {
        let few = SimulatedDataset::new(FEW_SIZES, seed).without_links();
        let many = SimulatedDataset::new(FILE_SIZES, seed);
        for (dataset, is_few) in [(few, true), (many, false)] {
            let storage = SimulatedStorage::new(seed);
            let outcome = transfer(&storage, &dataset, run(Algorithm::Crc32c, seed));
            assert!(outcome.is_some_and(|outcome| outcome.is_success()), "seed {seed}");
            assert_eq!(storage.filesystem_syncs() == 0, is_few, "seed {seed}");
            for cut in 0..50 {
                let there = storage.state().after(Crash::PowerCut, seed * 1000 + cut).tree();
                for (path, wanted) in dataset.tree() {
                    assert_eq!(there.get(&path), Some(&wanted), "seed {seed}, cut {cut}: {path:?}");
                }
            }
        }
    }
}

#[test]
fn failing_call_is_reported_or_repaired() {
    for seed in [7, 8] {
        let dataset = SimulatedDataset::new(FILE_SIZES, seed);
        let run = run(Algorithm::Crc32c, seed);
        let points = for_each_crash_point(&dataset, run, |_, _| {});
        for number in 0..points {
            let kind =
                if number % 2 == 0 { io::ErrorKind::QuotaExceeded } else { io::ErrorKind::Other };
            let storage = SimulatedStorage::new(seed);
            storage.fail_at(number, kind);
            let describe = || format!("seed {seed}, {kind:?} at change {number}");
            if let Some(outcome) = transfer(&storage, &dataset, run) {
                let there = storage.state().tree();
                let wanted = dataset.tree();
                for path in &outcome.placed {
                    use std::os::unix::ffi::OsStrExt;
                    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
                    let is_file = wanted[path].kind == penstock_sys::fs::Kind::File;
                    if is_file {
                        assert_eq!(there.get(path), wanted.get(path), "{}: {path:?}", describe());
                    }
                }
                if outcome.is_success() {
                    let wrong = wanted.iter().find(|(path, found)| there.get(*path) != Some(found));
                    assert_eq!(wrong.map(|(path, _)| path), None, "{}", describe());
                }
            }
            let storage = SimulatedStorage::from(storage.state(), seed);
            let outcome = transfer(&storage, &dataset, run).expect("a file system");
            assert!(outcome.is_success(), "{}: {outcome:?}", describe());
            assert_eq!(difference(&storage.state(), &dataset), None, "{}", describe());
        }
    }
}

/// A source replaced by one of equal size and times is copied completely.
#[test]
fn replaced_sources_leave_no_old_bytes() {
    let dataset = SimulatedDataset::new(FILE_SIZES, 9);
    let replaced = dataset.replaced();
    let run = run(Algorithm::Crc32c, 9);
    for_each_crash_point(&dataset, run, |number, state| {
        let state = state.after(KILL_ONLY[0], number);
        let settled = state.tree();
        let storage = SimulatedStorage::from(state, number);
        let outcome = transfer(&storage, &replaced, run).expect("a file system");
        assert!(outcome.is_success(), "{number}: {outcome:?}");
        let (there, old, new) = (storage.state().tree(), dataset.tree(), replaced.tree());
        for (path, found) in &there {
            // Existing files of equal size and times are skipped, as documented.
            let was_in_place = settled.get(path) == old.get(path);
            let wanted = if was_in_place { &old } else { &new };
            assert_eq!(Some(found), wanted.get(path), "before change {number}: {path:?}");
        }
    });
}

/// Progress survives: durable ranges are not sent again.
#[test]
fn resumed_ranges_are_not_sent_again() {
    let dataset = SimulatedDataset::new(&[1 << 20], 10);
    let run = run(Algorithm::Crc32c, 11);
    let mut most = 0;
    for_each_crash_point(&dataset, run, |number, state| {
        let storage = SimulatedStorage::from(state.after(Crash::Kill, number), number);
        let other = RunConfig { key: 3, seed: number, ..run };
        let outcome = transfer(&storage, &dataset, other).expect("a file system");
        assert!(outcome.is_success(), "{number}: {outcome:?}");
        let resumed = outcome.tally.resumed_bytes - outcome.tally.skipped_bytes;
        assert_eq!(outcome.tally.rejected_bytes, 0);
        assert_eq!(outcome.tally.moved_bytes + outcome.tally.resumed_bytes, 1 << 20);
        most = most.max(resumed);
    });
    assert_eq!(most, 1 << 20, "the last crash points have every byte");
}
