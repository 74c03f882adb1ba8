//! Program that runs one hot path by name, so that its instructions can be counted.
//!
//! `hot_paths` lists the names. `hot_paths NAME` runs the path once as a warm-up, which detects the processor and fills
//! lazy tables, and once more inside [`measured`], the function whose instructions `tests/instructions.rs` counts.
//! Input comes from seeds: each run executes the same instructions.

#![forbid(unsafe_code)]

mod checksums;
mod computations;
mod frames;
mod labels;
mod telemetry;

use std::hint::black_box;
use std::process::ExitCode;

/// Hot path: its name, and the function that prepares its input and runs it.
type HotPath = (&'static str, fn());

const PATHS: &[&[HotPath]] =
    &[checksums::PATHS, frames::PATHS, labels::PATHS, telemetry::PATHS, computations::PATHS];

/// Runs `work`; the profiler counts what this function executes.
#[inline(never)]
fn measured<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// Runs `work` as a warm-up, then measured.
fn count<T>(mut work: impl FnMut() -> T) {
    black_box(work());
    drop(measured(work));
}

fn main() -> ExitCode {
    let mut paths = PATHS.iter().copied().flatten();
    let Some(wanted) = std::env::args().nth(1) else {
        paths.for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    };
    let Some((_, run)) = paths.find(|(name, _)| *name == wanted) else {
        eprintln!("hot_paths: no path is named {wanted}: call it without arguments for the names");
        return ExitCode::FAILURE;
    };
    run();
    ExitCode::SUCCESS
}
