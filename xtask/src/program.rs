//! Runs of other programs.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs a program that `tools/setup.sh PURPOSE` installs; returns its standard output without white space around it.
///
/// # Errors
/// When it cannot run, or fails.
pub(crate) fn output_text(command: &mut Command, purpose: &str) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}: tools/setup.sh {purpose} installs it"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
