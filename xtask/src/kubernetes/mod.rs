//! `cargo xtask kubernetes`: the programs that check the Helm chart, and the checks.
//!
//! [`tools`] builds helm and kubeconform from Go modules once, [`chart`] renders and checks. Not part of `make test`,
//! which calls it and goes on without the programs where Go is missing.

pub mod chart;
pub mod tools;

use std::path::Path;

use anyhow::Result;
use clap::Args;

use tools::Tool;

/// Options of `cargo xtask kubernetes`.
#[derive(Debug, Args)]
pub struct Options {
    /// Programs to build
    #[arg(value_enum, default_values = ["helm", "kubeconform"])]
    programs: Vec<Tool>,
}

/// Builds the programs that are missing, and the schemas of Kubernetes.
///
/// # Errors
/// When Go is missing or a build fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    for tool in &options.programs {
        println!("kubernetes: {}", tools::build(root, *tool)?.display());
    }
    println!("kubernetes: {}", chart::write_schemas(root)?.display());
    Ok(())
}
