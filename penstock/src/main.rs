//! The `penstock` command: one file per verb.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod nettest;

/// Software of a Data Transfer Node site.
#[derive(Debug, Parser)]
#[command(name = "penstock", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure what TCP carries between two machines, memory to memory.
    Nettest(nettest::NettestArgs),
}

fn main() -> ExitCode {
    match Cli::parse().verb {
        Verb::Nettest(args) => nettest::run(args),
    }
}
