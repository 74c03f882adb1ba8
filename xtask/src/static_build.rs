//! Static release builds, of `penstock` above all: they start on any Linux, in an image without files too.
//!
//! The C library is glibc's static one; names of hosts are resolved without its plug-ins. Paths of this machine are
//! replaced, so that the same sources give the same binary in any folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::program::output_text;

/// Named, so that build scripts and macros are built without the flags.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds `penstock` and strips it; returns its path.
///
/// # Errors
/// When the build fails.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    build_program(root, "penstock")
}

/// Builds the program of a package of the same name and strips it; returns its path.
///
/// # Errors
/// When the build fails.
pub fn build_program(root: &Path, name: &str) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
        .context("HOME is not set")?;
    let mapped = [(root, "/penstock"), (&home, "/cargo")];
    let rust = mapped.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    let c = mapped.map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()));
    let status = Command::new("cargo")
        .args(["build", "--release", "--locked", "--package", name, "--target", TARGET])
        .current_dir(root)
        .env("RUSTFLAGS", format!("-C target-feature=+crt-static {}", rust.join(" ")))
        .env("CFLAGS", c.join(" "))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // The path below is that of the folder's own target.
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the static build failed");
    let binary = root.join("target").join(TARGET).join("release").join(name);
    let status = Command::new(root.join("tools/strip.sh")).arg(&binary).status();
    ensure!(status.context("cannot run tools/strip.sh")?.success(), "tools/strip.sh failed");
    Ok(binary)
}

/// Returns true if a program names a loader (`PT_INTERP`), which the kernel would start in its place.
///
/// # Errors
/// When readelf is missing or the file is no program.
pub(crate) fn is_dynamic(program: &Path) -> Result<bool> {
    let mut readelf = Command::new("readelf");
    readelf.env("LC_ALL", "C").args(["--program-headers", "--wide"]).arg(program);
    let headers = output_text(&mut readelf, "package")?;
    Ok(headers.lines().any(|line| line.trim_start().starts_with("INTERP ")))
}
