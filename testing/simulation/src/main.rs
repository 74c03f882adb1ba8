//! Simulates the control plane: `cargo xtask simulate`.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Parser;
use penstock_simulation::{Intensity, Options, run};

/// Simulate controller and agents under faults, from one seed each.
#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Args {
    /// First seed; each later one adds 1.
    #[arg(long, value_name = "N", env = "PENSTOCK_SEED", default_value_t = 1)]
    seed: u64,
    /// Number of seeds, from the first on.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    seeds: u64,
    /// Virtual hours in which requests arrive and faults happen; some minutes by default.
    #[arg(long, value_name = "H")]
    hours: Option<f64>,
    /// Simulate without injected faults.
    #[arg(long)]
    calm: bool,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = Options {
        active_ms: args.hours.map(|hours| (hours * 3_600_000.0).max(1000.0) as u64),
        intensity: if args.calm { Intensity::None } else { Intensity::Full },
        ..Options::default()
    };
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    let virtual_ms = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(args.seeds.try_into().unwrap_or(usize::MAX)) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= args.seeds {
                        return;
                    }
                    match run(args.seed + number, &options) {
                        Ok(summary) => {
                            virtual_ms.fetch_add(summary.simulated_ms, Ordering::Relaxed);
                            if args.seeds <= 20 {
                                println!("seed {}: {summary:?}", args.seed + number);
                            }
                        }
                        Err(failure) => {
                            let mut failures =
                                failures.lock().unwrap_or_else(PoisonError::into_inner);
                            println!("{failure}\n");
                            failures.push(failure.seed);
                            stop.fetch_or(!args.keep_going, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    let ran = next.load(Ordering::Relaxed).min(args.seeds);
    println!(
        "{ran} seeds from {} on, {:.1} virtual hours in {:.1} s: {} failed",
        args.seed,
        virtual_ms.load(Ordering::Relaxed) as f64 / 3_600_000.0,
        begun.elapsed().as_secs_f64(),
        failures.len()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
