//! Sandbox that runs commands of the documentation as they are written.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::common::{PENSTOCK, is_root};

const SCRIPT: &str = include_str!("sandbox.sh");

/// Line of the shell that ends a step.
const MARK: &str = "@@ ";

/// Longest time of one step.
const STEP_WITHIN: Duration = Duration::from_secs(60);

/// A shell in its own namespaces; every process in them ends with it.
#[derive(Debug)]
pub(crate) struct Sandbox {
    shell: Child,
    input: ChildStdin,
    marks: Receiver<String>,
    steps: tempfile::TempDir,
    _scratch: tempfile::TempDir,
    count: usize,
}

/// End of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) output: String,
}

/// A command that runs in the background.
#[derive(Debug)]
pub(crate) struct Background {
    step: usize,
    pid: String,
}

impl Sandbox {
    /// Starts a sandbox with this repository's checkout and binary; the error is the reason why none is possible.
    pub(crate) fn start() -> Result<Self, String> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
        let [steps, scratch] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let script = steps.path().join("sandbox.sh");
        fs::write(&script, SCRIPT).expect("a file");
        let log = fs::File::create(steps.path().join("shell.log")).expect("a file");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["bash", "-c"]);
        // Steps come by standard input, separated by NUL.
        command.arg("source \"$0\"; while IFS= read -r -d '' step; do eval \"$step\"; done");
        command.arg(&script);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
            .envs([("HOME", "/home/reader"), ("USER", "root"), ("LANG", "C.UTF-8")])
            .env("REPOSITORY", repository)
            .env("BINARY", PENSTOCK)
            .env("STEPS", steps.path())
            .env("SCRATCH", scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut shell = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let input = shell.stdin.take().expect("a pipe");
        let output = BufReader::new(shell.stdout.take().expect("a pipe"));
        let (sender, marks) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(mark) = line.strip_prefix(MARK)
                    && sender.send(mark.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let sandbox = Self { shell, input, marks, steps, _scratch: scratch, count: 0 };
        match sandbox.mark() {
            Ok(_) => Ok(sandbox),
            Err(_) => Err(fs::read_to_string(sandbox.file("shell.log")).unwrap_or_default()),
        }
    }

    /// Runs a command to its end.
    pub(crate) fn run(&mut self, command: &str) -> Result<Outcome, String> {
        let step = self.step();
        self.write_shell(&format!(
            "{{ {command}\n}} </dev/null >/run/steps/{step}.out 2>&1; echo \"{MARK}$?\""
        ));
        let code = self.mark().map_err(|error| format!("{error}: {}", self.output(step)))?;
        Ok(Outcome { code: code.parse().unwrap_or(-1), output: self.output(step) })
    }

    /// Starts a command, and returns once it has printed `ready`.
    pub(crate) fn spawn(&mut self, command: &str, ready: &str) -> Result<Background, String> {
        let step = self.step();
        self.write_shell(&format!(
            "( exec {command}\n) </dev/null >/run/steps/{step}.out 2>&1 & echo \"{MARK}$!\""
        ));
        let pid = self.mark()?;
        let background = Background { step, pid };
        self.until(step, ready)?;
        Ok(background)
    }

    /// Waits until the last command has printed `ready`.
    pub(crate) fn printed(&self, ready: &str) -> Result<(), String> {
        self.until(self.count - 1, ready)
    }

    /// Sends SIGINT to a background command and waits for its end.
    pub(crate) fn interrupt(&mut self, background: Background) -> Result<Outcome, String> {
        let Background { step, pid } = background;
        self.write_shell(&format!("kill -INT -- -{pid}; wait {pid}; echo \"{MARK}$?\""));
        let code = self.mark().map_err(|error| format!("{error}: {}", self.output(step)))?;
        Ok(Outcome { code: code.parse().unwrap_or(-1), output: self.output(step) })
    }

    fn step(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    fn write_shell(&mut self, text: &str) {
        // A write error is ignored: if the shell has ended, its mark is missing.
        let _ = self.input.write_all(text.as_bytes());
        let _ = self.input.write_all(b"\0");
        let _ = self.input.flush();
    }

    fn mark(&self) -> Result<String, String> {
        self.marks.recv_timeout(STEP_WITHIN).map_err(|_| format!("no end within {STEP_WITHIN:?}"))
    }

    fn until(&self, step: usize, ready: &str) -> Result<(), String> {
        let begun = Instant::now();
        while !self.output(step).contains(ready) {
            if begun.elapsed() > STEP_WITHIN {
                return Err(format!("never printed `{ready}`: {}", self.output(step)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn output(&self, step: usize) -> String {
        let bytes = fs::read(self.file(&format!("{step}.out"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.steps.path().join(name)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The shell is the first process of its namespace: all others end with it.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
