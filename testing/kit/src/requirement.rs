//! Requirements of tests on the machine that runs them.
//!
//! A test that cannot run calls [`skip`] and returns. `cargo xtask test` lists all of these at its end. A run on a machine
//! that must be able to run them names the requirements in `PENSTOCK_REQUIRE`: there a skipped test fails.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Requirements that must not be missing, separated by commas; `all` stands for each of them.
const REQUIRED_VARIABLE: &str = "PENSTOCK_REQUIRE";

/// Variable with the file to which skipped tests are appended, a line each.
pub const SKIPPED_FILE_VARIABLE: &str = "PENSTOCK_SKIPPED_FILE";

/// Kind of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// Privileges of root: mounts, namespaces, eBPF, other users.
    Root,
    /// A feature of the kernel or of a file system.
    Kernel,
    /// A program of others: a peer, a database, a browser.
    Program,
    /// Processors, memory, descriptors or devices.
    Machine,
}

impl Requirement {
    /// Name of the requirement in `PENSTOCK_REQUIRE`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Kernel => "kernel",
            Self::Program => "program",
            Self::Machine => "machine",
        }
    }
}

/// Returns true if the PATH has `program`.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|directory| Path::new(directory).join(program).is_file())
}

/// Returns true and reports the running test as skipped if the PATH lacks `program`.
#[track_caller]
#[must_use]
pub fn missing_program(program: &str) -> bool {
    let missing = !is_installed(program);
    if missing {
        skip(Requirement::Program, program);
    }
    missing
}

/// Returns true if the test runs as root.
#[must_use]
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Reports that the running test cannot run here, and why.
///
/// # Panics
/// Where `PENSTOCK_REQUIRE` names the requirement.
#[track_caller]
pub fn skip(requirement: Requirement, reason: &str) {
    let name = requirement.name();
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("SKIPPED: {test}: needs {name}: {reason}");
    let required = std::env::var(REQUIRED_VARIABLE).unwrap_or_default();
    let is_required = required.split(',').map(str::trim).any(|one| one == name || one == "all");
    assert!(!is_required, "{REQUIRED_VARIABLE} requires {name}, and {test} cannot run: {reason}");
    let Some(path) = std::env::var_os(SKIPPED_FILE_VARIABLE) else { return };
    let line = format!("{test}: needs {name}: {reason}\n");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    // One write: lines of tests that end together do not mix.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        eprintln!("{}: {error}", path.display());
    }
}
