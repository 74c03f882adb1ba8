//! A PostgreSQL server for tests: in a temporary directory, on a Unix socket, as a user other than root.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tempfile::TempDir;

use crate::{is_root, wait_until};

/// The server could not be started here.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The programs of PostgreSQL are not installed.
    #[error("PostgreSQL is not installed (tools/setup.sh test)")]
    Missing,
    /// A program could not be started.
    #[error("{command}: {source}")]
    Start {
        /// Command line of the program.
        command: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A program ended without success.
    #[error("{command}: {status}")]
    Failed {
        /// Command line of the program.
        command: String,
        /// Exit code or signal of the program.
        status: ExitStatus,
    },
}

/// A server that stops with its last user.
#[derive(Debug)]
pub struct PostgresServer {
    directory: TempDir,
    bin: PathBuf,
    databases: AtomicU32,
}

static SHARED: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());

/// Returns the directory of the programs on Debian.
fn bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|bin| bin.join("postgres").exists());
    found.sort();
    found.pop()
}

impl PostgresServer {
    /// Returns the server of this process; starts it if there is none.
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start.
    pub fn shared() -> Result<Arc<Self>, PostgresError> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Ok(server);
        }
        let server = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&server);
        Ok(server)
    }

    /// Starts a separate server.
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start.
    pub fn start() -> Result<Self, PostgresError> {
        let bin = bin().ok_or(PostgresError::Missing)?;
        let directory = tempfile::Builder::new().prefix("penstock-pg").tempdir().unwrap();
        let server = Self { directory, bin, databases: AtomicU32::new(0) };
        let data = server.data();
        if is_root() {
            let path = server.directory.path();
            run(Command::new("chown").arg("postgres").arg(path))?;
        }
        run(server
            .command("initdb")
            .args(["-A", "trust", "-U", "penstock", "--no-sync", "-D"])
            .arg(&data))?;
        server.begin()?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns a command for a program of PostgreSQL, as a user that it accepts.
    fn command(&self, program: &str) -> Command {
        let program = self.bin.join(program);
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", "postgres", "--"]).arg(program);
                command
            }
            false => Command::new(program),
        };
        // Child processes must not hold the test runner's pipes.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir(self.directory.path());
        command
    }

    /// Starts the server on its data.
    ///
    /// # Errors
    /// When it does not start.
    pub fn begin(&self) -> Result<(), PostgresError> {
        let socket = self.directory.path().display();
        let options = format!(
            "-c listen_addresses='' -k {socket} -c max_connections=100 -c shared_buffers=64MB"
        );
        run(self
            .command("pg_ctl")
            .args(["-w", "-t", "60", "-l", "log", "-o"])
            .arg(options)
            .arg("-D")
            .arg(self.data())
            .arg("start"))
    }

    /// Kills the server with all its processes, as a crash would.
    pub fn kill(&self) {
        let file = self.data().join("postmaster.pid");
        let text = std::fs::read_to_string(file).unwrap();
        let process: i32 = text.lines().next().unwrap().parse().unwrap();
        let _ = Command::new("kill").args(["-9", &process.to_string()]).status();
        // Its children exit when they notice; a new server waits for them.
        let process = format!("/proc/{process}");
        wait_until("PostgreSQL ends", Duration::from_secs(20), || {
            (!Path::new(&process).exists()).then_some(())
        });
    }

    /// Restarts the server after [`Self::kill`].
    pub fn again(&self) {
        wait_until("PostgreSQL starts again", Duration::from_secs(60), || self.begin().ok());
    }

    /// Returns the URL of a new, empty database.
    #[must_use]
    pub fn new_database(&self) -> String {
        let name = format!("d{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let socket = self.directory.path().display().to_string();
        run(self.command("createdb").args(["-U", "penstock", "-h", &socket]).arg(&name)).unwrap();
        let host = socket.replace('/', "%2F");
        format!("postgres://penstock@{host}/{name}")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let data = self.data();
        let _ =
            self.command("pg_ctl").args(["-m", "immediate", "-D"]).arg(data).arg("stop").status();
    }
}

fn run(command: &mut Command) -> Result<(), PostgresError> {
    let line = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(PostgresError::Failed { command: line, status }),
        Err(source) => Err(PostgresError::Start { command: line, source }),
    }
}
