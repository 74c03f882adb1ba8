//! Release builds by cargo, for programs that are measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Builds a program in release mode and returns its path. `arguments` name the package and, if need be, the target;
/// `target` is another target folder than that of the checkout at `root`.
///
/// Compiler flags of the environment are left out: the same source gives the same program.
///
/// # Errors
/// When cargo does not run, the build fails or makes no program.
pub(crate) fn build_release(
    root: &Path,
    target: Option<&Path>,
    arguments: &[&str],
) -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--locked", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .current_dir(root)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stderr(Stdio::inherit());
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let shown = arguments.join(" ");
    let output = command.output().with_context(|| format!("cannot run cargo build {shown}"))?;
    if !output.status.success() {
        bail!("cargo build {shown} failed in {}", root.display());
    }
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let mut programs =
        messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next_back().with_context(|| format!("cargo build {shown} made no program"))
}
