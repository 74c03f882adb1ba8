//! Fixtures of the binary's tests: agents and copies as processes. The rest is in the test kit.

// Every test binary takes what it needs.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, missing_debug_implementations)]

use std::ffi::OsStr;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

pub mod capture;
pub mod site;
pub mod veth;

pub use penstock_testkit::files::{
    assert_no_leftovers, assert_same, parts, tree, write_file, write_private, write_tree,
};
pub use penstock_testkit::process::{
    COMMAND_TIMEOUT, CommandOutcome, ReadyProcess, RunningCommand, run, stop_and_continue,
};
pub use penstock_testkit::proxy::FaultProxy;
pub use penstock_testkit::{Random, is_root, seeded, wait_until};

pub const PENSTOCK: &str = env!("CARGO_BIN_EXE_penstock");

/// Temporary directories of one test: `state`, `root` (the agent's export) and `source`.
pub struct TestEnv {
    pub dir: TempDir,
    pub state: PathBuf,
    pub root: PathBuf,
    pub source: PathBuf,
}

impl TestEnv {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [state, root, source] = ["state", "root", "source"].map(|name| dir.path().join(name));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&source).unwrap();
        Self { dir, state, root, source }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn agent(&self) -> Agent {
        Agent::start(&self.state, &self.root, "127.0.0.1:0", &[])
    }

    /// An agent that may start again on its address.
    pub fn restartable_agent(&self) -> Agent {
        Agent::start(&self.state, &self.root, &fixed_address(), &[])
    }

    /// `penstock` with the state directory of this test.
    pub fn penstock(&self) -> Command {
        penstock(&self.state)
    }

    /// `penstock cp --json` with these arguments.
    pub fn cp<T: AsRef<OsStr>>(&self, arguments: &[T]) -> Command {
        let mut command = self.penstock();
        command.args(["cp", "--json"]).args(arguments);
        command
    }
}

/// Address on a port that the kernel gives to no other socket while its server is down.
pub fn fixed_address() -> String {
    format!("127.0.0.1:{}", penstock_testkit::raw::free_port())
}

pub fn penstock(state: &Path) -> Command {
    let mut command = Command::new(PENSTOCK);
    command.env("PENSTOCK_STATE", state).env_remove("PENSTOCK_HTTP").env_remove("JOURNAL_STREAM");
    // Only one collector at a time can bind its ports.
    command.env("PENSTOCK_ROLES", "agent");
    command
}

/// A running `penstock serve`, an agent in most tests; killed when dropped.
pub struct Agent {
    process: ReadyProcess,
    pub listen: String,
    pub http: String,
    pub fingerprint: String,
}

impl Agent {
    pub fn start(state: &Path, root: &Path, listen: &str, more: &[&str]) -> Self {
        let mut command = penstock(state);
        command.args(["serve", "--listen", listen, "--http", "127.0.0.1:0", "--json", "--root"]);
        command.arg(root).args(more);
        Self::spawn(command)
    }

    #[track_caller]
    pub fn spawn(command: Command) -> Self {
        let process = ReadyProcess::start(command);
        Self {
            listen: process.fact("/listen/0"),
            http: process.fact("/http/0"),
            fingerprint: process.fact("/fingerprint"),
            process,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("penstock://{}/{path}", self.listen)
    }

    /// Running and ended transfers that the agent lists.
    pub fn transfers(&self, state: &Path) -> Vec<Value> {
        let mut command = penstock(state);
        let done = run(command.args(["transfers", "--json", "--http", &self.http]));
        done.json["transfers"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until no transfer runs, and returns all. A client ends a moment before its agent lists the end.
    #[track_caller]
    pub fn ended_transfers(&self, state: &Path) -> Vec<Value> {
        wait_until("its transfers end", Duration::from_secs(30), || {
            let all = self.transfers(state);
            all.iter().all(|one| one["state"] != "running").then_some(all)
        })
    }
}

impl Deref for Agent {
    type Target = ReadyProcess;

    fn deref(&self) -> &ReadyProcess {
        &self.process
    }
}

impl DerefMut for Agent {
    fn deref_mut(&mut self) -> &mut ReadyProcess {
        &mut self.process
    }
}

/// Asserts a failure with this exit code and one line that contains `words`.
#[track_caller]
pub fn fails(done: &CommandOutcome, code: i32, words: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert_eq!(done.lines().len(), 1, "{done:?}");
    assert!(
        done.error.starts_with("penstock: ") && done.error.contains(words),
        "{words}: {done:?}"
    );
}
