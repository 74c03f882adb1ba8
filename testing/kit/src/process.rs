//! Programs as processes: commands that end, and servers that print a line when they are ready. Both are killed when
//! dropped.

use std::borrow::BorrowMut;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::wait_until;

/// Limit on the run time of one command.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);

/// Exit code and output of a command.
#[derive(Debug)]
pub struct CommandOutcome {
    /// Exit code, or -1 after a signal.
    pub code: i32,
    /// Standard output if it is JSON, or null.
    pub json: Value,
    /// Standard output as text.
    pub output: String,
    /// Standard error as text.
    pub error: String,
}

impl CommandOutcome {
    /// Returns a whole number of the printed object.
    ///
    /// # Panics
    /// When the object has none of this name.
    #[must_use]
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.json[name].as_u64().unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    /// Returns the lines on standard error.
    #[must_use]
    pub fn lines(&self) -> Vec<&str> {
        self.error.lines().collect()
    }

    /// Asserts exit code 0.
    ///
    /// # Panics
    /// When it is another.
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

/// A running command; killed when dropped.
#[derive(Debug)]
pub struct RunningCommand {
    /// Process of the command.
    pub child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    error: Option<JoinHandle<Vec<u8>>>,
}

impl RunningCommand {
    /// Starts `command` without input, and collects its output.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = from.read_to_end(&mut bytes);
                bytes
            })
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = child.stdout.take().map(collect);
        let error = child.stderr.take().map(collect);
        Self { child, output, error }
    }

    /// Waits until the process catches the signal of this number: before that it ends the process.
    ///
    /// # Panics
    /// When it does not, or has ended.
    #[track_caller]
    pub fn await_handler(&self, signal: u32) {
        let path = format!("/proc/{}/status", self.child.id());
        wait_until("it catches the signal", Duration::from_secs(30), || {
            let status = std::fs::read_to_string(&path).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"))?;
            let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
            (caught & 1 << (signal - 1) != 0).then_some(())
        });
    }

    /// Returns true if the process has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the command ends.
    ///
    /// # Panics
    /// When it runs longer than [`COMMAND_TIMEOUT`].
    #[track_caller]
    pub fn wait(mut self) -> CommandOutcome {
        let begun = std::time::Instant::now();
        while !self.is_over() {
            if begun.elapsed() > COMMAND_TIMEOUT {
                let _ = self.child.kill();
                let outcome = self.collect();
                panic!("a command does not end: {outcome:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.collect()
    }

    fn collect(&mut self) -> CommandOutcome {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        let text = |thread: Option<JoinHandle<Vec<u8>>>| {
            String::from_utf8_lossy(&thread.unwrap().join().unwrap()).into_owned()
        };
        let output = text(self.output.take());
        let error = text(self.error.take());
        CommandOutcome {
            code,
            json: serde_json::from_str(&output).unwrap_or_default(),
            output,
            error,
        }
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be started or does not end in time.
#[track_caller]
pub fn run(mut command: impl BorrowMut<Command>) -> CommandOutcome {
    RunningCommand::start(command.borrow_mut()).wait()
}

/// Stops each thread of a process (SIGSTOP), and continues it: system calls with a timeout then fail with `EINTR`, even
/// without handlers (signal(7)).
///
/// # Panics
/// When the process has ended.
#[track_caller]
pub fn stop_and_continue(process: u32) {
    let signal = |name: &str| {
        let status = Command::new("kill").args(["-s", name, &process.to_string()]).status();
        assert!(status.unwrap().success(), "SIG{name} to {process}");
    };
    signal("STOP");
    wait_until("the threads stop", Duration::from_secs(20), || {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        // A thread may have ended meanwhile.
        let mut states =
            threads.filter_map(|one| std::fs::read_to_string(one.path().join("stat")).ok());
        let is_stopped =
            |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        states.all(is_stopped).then_some(())
    });
    signal("CONT");
}

/// A server that printed a line when it was ready; killed when dropped.
#[derive(Debug)]
pub struct ReadyProcess {
    /// Process of the server.
    pub child: Child,
    /// JSON object that the server printed when it was ready, or a text if it was none.
    pub facts: Value,
    log: Arc<Mutex<Vec<u8>>>,
    drain: Option<JoinHandle<()>>,
}

impl ReadyProcess {
    /// Starts `command` and waits for its first line on standard output.
    ///
    /// # Panics
    /// When it ends before that: the message is its standard error.
    #[track_caller]
    pub fn start(command: Command) -> Self {
        Self::start_until(command, "")
    }

    /// Starts `command` and waits for a line on standard output with `words`.
    ///
    /// # Panics
    /// When it ends before that: the message is its standard error.
    #[track_caller]
    pub fn start_until(mut command: Command, words: &str) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut stderr = child.stderr.take().unwrap();
        let Some(line) = lines.find(|line| line.contains(words)) else {
            panic!("{command:?} did not start: {}", std::io::read_to_string(stderr).unwrap());
        };
        // Drain the log: a full pipe would block the server.
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        let drain = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut part) {
                kept.lock().unwrap().extend_from_slice(&part[..read]);
            }
        });
        let facts = serde_json::from_str(&line).unwrap_or(Value::String(line));
        Self { child, facts, log, drain: Some(drain) }
    }

    /// Returns a text of the printed object by its JSON pointer; empty if it has none.
    #[must_use]
    pub fn fact(&self, pointer: &str) -> String {
        self.facts.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Returns standard error of the process so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    /// Sends the signal of this name, such as `TERM`.
    ///
    /// # Panics
    /// When the process has ended.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(status.success(), "SIG{name} to {id}: {status}");
    }

    /// Waits until the process ends by itself; returns its exit code.
    ///
    /// # Panics
    /// When it does not end within 60 s, or a signal ended it.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        let ended = || self.child.try_wait().unwrap();
        let status = wait_until("the server ends", Duration::from_secs(60), ended);
        status.code().unwrap()
    }

    /// Ends the server by SIGTERM; returns its whole log.
    ///
    /// # Panics
    /// When it does not end with success.
    #[track_caller]
    pub fn end(self) -> String {
        self.end_by("TERM")
    }

    /// Ends the server by the signal of this name; returns its whole log.
    ///
    /// # Panics
    /// When it does not end with success.
    #[track_caller]
    pub fn end_by(mut self, signal: &str) -> String {
        self.signal(signal);
        assert_eq!(self.wait(), 0, "{}", self.log());
        self.drain.take().unwrap().join().unwrap();
        self.log()
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for ReadyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
