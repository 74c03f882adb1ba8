//! Coverage-guided fuzzing with the workspace's stable toolchain.
//!
//! The counters that libFuzzer follows are an option of the stable compiler, so neither a nightly
//! toolchain nor another tool is needed. The address sanitizer would need one; the code under test has no
//! unsafe code of its own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

/// Options of `cargo xtask fuzz`.
#[derive(Debug, Args)]
pub struct Options {
    /// Targets; all of them when none is named
    pub targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 10)]
    pub seconds: u32,
}

/// Compiler flags that insert the coverage counters (`-Cpasses` of LLVM, from Clang's SanitizerCoverage document).
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg=fuzzing";

/// Builds the targets and runs each.
///
/// # Errors
/// When a target does not build, or finds a fault.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let folder = root.join("fuzz");
    let host = host()?;
    let build = Command::new("cargo")
        .args(["build", "--release", "--target", &host, "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .args(["--target-dir"])
        .arg(root.join("target/fuzz"))
        .env("RUSTFLAGS", FLAGS)
        .status()?;
    if !build.success() {
        bail!("the fuzz targets do not build");
    }
    let targets = match options.targets.as_slice() {
        [] => all(&folder)?,
        named => named.to_vec(),
    };
    for target in targets {
        let [corpus, artifacts] =
            ["corpus", "artifacts"].map(|kind| folder.join(kind).join(&target));
        for place in [&corpus, &artifacts] {
            std::fs::create_dir_all(place)?;
        }
        let program = root.join(format!("target/fuzz/{host}/release/{target}"));
        println!("fuzz: {target} for {} s", options.seconds);
        let status = Command::new(&program)
            .arg(&corpus)
            .arg(format!("-max_total_time={}", options.seconds))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(["-verbosity=0", "-print_final_stats=1", "-rss_limit_mb=1024", "-timeout=10"])
            .status()
            .with_context(|| format!("no target {target}: see fuzz/README.md"))?;
        if !status.success() {
            bail!("{target} found something: the input is in {}", artifacts.display());
        }
    }
    Ok(())
}

fn all(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.join("targets"))? {
        if let Some(name) = entry?.path().file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not name its host")
}
