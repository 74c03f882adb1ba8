//! `cargo xtask simulate`: runs the deterministic simulation of the control plane (`testing/simulation`).
//!
//! It is a separate program, so that the other verbs do not depend on the services.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::suite::build_messages;

/// Options of `cargo xtask simulate`.
#[derive(Debug, Args)]
pub struct Options {
    /// First seed; each later one adds 1.
    #[arg(long, value_name = "N", env = "PENSTOCK_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Seeds, from the first on.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub seeds: u64,
    /// Virtual hours in which requests arrive and faults happen; some minutes by default.
    #[arg(long, value_name = "H")]
    pub hours: Option<f64>,
    /// Simulate without injected faults.
    #[arg(long)]
    pub calm: bool,
    /// Go on after a failure.
    #[arg(long)]
    pub keep_going: bool,
}

/// Builds the program and runs it.
///
/// # Errors
/// When it does not build, or an invariant is violated.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let mut command = Command::new(build(root)?);
    command.arg("--seed").arg(options.seed.to_string());
    command.arg("--seeds").arg(options.seeds.to_string());
    if let Some(hours) = options.hours {
        command.arg("--hours").arg(hours.to_string());
    }
    command.args(options.calm.then_some("--calm"));
    command.args(options.keep_going.then_some("--keep-going"));
    let status = command.current_dir(root).status().context("cannot run the simulation")?;
    if !status.success() {
        bail!("the simulation failed");
    }
    Ok(())
}

/// Builds the program with the features of the whole workspace, as the tests are built; returns its path.
fn build(root: &Path) -> Result<PathBuf> {
    let messages = build_messages(root, &["build", "--bin", "penstock-simulation"])?;
    let path = messages.iter().find_map(|message| message["executable"].as_str());
    path.map(PathBuf::from).context("cargo names no program")
}
