//! Fixtures of the binary's tests: agents and copies as processes, comparison of trees, and random choices that a
//! printed seed repeats.
//!
//! Nothing here sleeps to wait for something: conditions are polled until a deadline.

// Every test binary takes what it needs.
#![allow(dead_code, unreachable_pub, missing_docs, missing_debug_implementations)]

use std::borrow::BorrowMut;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

pub mod proxy;
pub mod site;

pub use penstock_testkit::{Random, seeded};

pub const PENSTOCK: &str = env!("CARGO_BIN_EXE_penstock");

/// Limit on the run time of one command.
pub const COMMAND_WITHIN: Duration = Duration::from_secs(90);

/// Polls `ask` every 5 ms until it returns a value; panics after `within`.
pub fn wait_until<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

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

pub fn penstock(state: &Path) -> Command {
    let mut command = Command::new(PENSTOCK);
    command.env("PENSTOCK_STATE", state).env_remove("PENSTOCK_HTTP").env_remove("JOURNAL_STREAM");
    // Only one collector at a time can bind its ports.
    command.env("PENSTOCK_ROLES", "agent");
    command
}

/// A running agent; killed when dropped.
pub struct Agent {
    pub child: Child,
    pub listen: String,
    pub http: String,
    pub fingerprint: String,
    /// JSON object that the agent printed when it was ready.
    pub facts: Value,
    log: Arc<Mutex<Vec<u8>>>,
}

impl Agent {
    pub fn start(state: &Path, root: &Path, listen: &str, more: &[&str]) -> Self {
        let mut command = penstock(state);
        command.args(["serve", "--listen", listen, "--http", "127.0.0.1:0", "--json", "--root"]);
        command.arg(root).args(more);
        Self::spawn(command)
    }

    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut stderr = child.stderr.take().unwrap();
        if line.is_empty() {
            let mut error = String::new();
            stderr.read_to_string(&mut error).unwrap();
            panic!("the agent did not start: {error}");
        }
        // Drain the log: a full pipe would block the agent.
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut part) {
                kept.lock().unwrap().extend_from_slice(&part[..read]);
            }
        });
        let facts: Value = serde_json::from_str(&line).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            child,
            listen: text(&facts["listen"][0]),
            http: text(&facts["http"][0]),
            fingerprint: text(&facts["fingerprint"]),
            facts,
            log,
        }
    }

    /// Standard error of the process so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    pub fn url(&self, path: &str) -> String {
        format!("penstock://{}/{path}", self.listen)
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Running and ended transfers that the agent lists.
    pub fn transfers(&self, state: &Path) -> Vec<Value> {
        let mut command = penstock(state);
        let done = run(command.args(["transfers", "--json", "--http", &self.http]));
        done.json["transfers"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub json: Value,
    pub error: String,
}

impl Done {
    pub fn number(&self, name: &str) -> u64 {
        self.json[name].as_u64().unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    /// Lines on standard error.
    pub fn lines(&self) -> Vec<&str> {
        self.error.lines().collect()
    }

    /// Asserts exit code 0.
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

/// A running command; killed when dropped.
pub struct Run {
    pub child: Child,
    output: Option<std::thread::JoinHandle<Vec<u8>>>,
    error: Option<std::thread::JoinHandle<Vec<u8>>>,
}

impl Run {
    pub fn start(command: &mut Command) -> Self {
        fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
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

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the command ends; the exit code is -1 after a signal.
    #[track_caller]
    pub fn wait(mut self) -> Done {
        let begun = Instant::now();
        while !self.is_over() {
            if begun.elapsed() > COMMAND_WITHIN {
                let _ = self.child.kill();
                let done = self.collect();
                panic!("a command does not end: {done:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.collect()
    }

    fn collect(&mut self) -> Done {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        let text = |thread: Option<std::thread::JoinHandle<Vec<u8>>>| {
            String::from_utf8_lossy(&thread.unwrap().join().unwrap()).into_owned()
        };
        let output = text(self.output.take());
        let error = text(self.error.take());
        Done { code, json: serde_json::from_str(&output).unwrap_or(Value::Null), error }
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
pub fn run(mut command: impl BorrowMut<Command>) -> Done {
    Run::start(command.borrow_mut()).wait()
}

/// Writes a file of random content, mode and modification time.
pub fn write_file(random: &mut Random, path: &Path, bytes: usize) {
    fs::write(path, random.bytes(bytes)).unwrap();
    let mode = [0o644, 0o600, 0o755, 0o444][random.between(0, 4) as usize];
    let seconds = random.between(1_000_000_000, 1_700_000_000);
    let nanos = random.between(0, 1_000_000_000) as u32;
    let file = fs::File::options().read(true).open(path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)).unwrap();
}

/// Writes a tree of `large` files of about 3 MiB, `small` ones of up to 20 KiB, an empty one, symlinks and an
/// empty directory. Returns the bytes in its files.
pub fn write_tree(random: &mut Random, root: &Path, large: usize, small: usize) -> u64 {
    let mut total = 0;
    fs::create_dir_all(root.join("deep/er/est")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for number in 0..large {
        let bytes = random.between(2 << 20, 4 << 20) as usize;
        write_file(random, &root.join(format!("large{number}")), bytes);
        total += bytes as u64;
    }
    for number in 0..small {
        let place = ["", "deep", "deep/er", "deep/er/est"][number % 4];
        let bytes = random.between(1, 20 << 10) as usize;
        write_file(random, &root.join(place).join(format!("small{number}")), bytes);
        total += bytes as u64;
    }
    write_file(random, &root.join("nothing"), 0);
    std::os::unix::fs::symlink("large0", root.join("link")).unwrap();
    std::os::unix::fs::symlink("../nowhere", root.join("deep/dangling")).unwrap();
    fs::set_permissions(root.join("deep/er"), fs::Permissions::from_mode(0o750)).unwrap();
    total
}

/// Compared properties of a tree entry: two trees are equal when all entries are.
#[derive(Debug, PartialEq, Eq)]
pub struct Thing {
    kind: char,
    mode: u32,
    modified: (i64, i64),
    digest: [u8; 32],
    link: Option<PathBuf>,
}

/// Entries below `root` by relative path.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Thing> {
    fn walk(root: &Path, path: &Path, things: &mut BTreeMap<PathBuf, Thing>) {
        for entry in fs::read_dir(root.join(path)).unwrap() {
            let path = path.join(entry.unwrap().file_name());
            let full = root.join(&path);
            let meta = full.symlink_metadata().unwrap();
            let kind = match meta.file_type() {
                kind if kind.is_dir() => 'd',
                kind if kind.is_symlink() => 'l',
                _ => 'f',
            };
            let digest = match kind {
                'f' => blake3::hash(&fs::read(&full).unwrap()).into(),
                _ => [0; 32],
            };
            let thing = Thing {
                kind,
                mode: meta.mode(),
                modified: (meta.mtime(), meta.mtime_nsec()),
                digest,
                link: (kind == 'l').then(|| fs::read_link(&full).unwrap()),
            };
            things.insert(path.clone(), thing);
            if kind == 'd' {
                walk(root, &path, things);
            }
        }
    }
    let mut things = BTreeMap::new();
    walk(root, Path::new(""), &mut things);
    things
}

/// Asserts equal trees: content, mode, modification time in nanoseconds and link targets.
#[track_caller]
pub fn assert_same(source: &Path, copy: &Path) {
    let (wanted, got) = (tree(source), tree(copy));
    let names = |things: &BTreeMap<PathBuf, Thing>| things.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&wanted), names(&got));
    for (path, thing) in &wanted {
        assert_eq!(thing, &got[path], "{}", path.display());
    }
}

/// Partial files (`.penstock-*`) below `root`.
pub fn parts(root: &Path) -> Vec<PathBuf> {
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b".penstock-")
    };
    let mut found: Vec<_> = tree(root).into_keys().collect();
    found.retain(is_part);
    found
}

/// Asserts that `root` has no partial files and `state` no transfer journals.
#[track_caller]
pub fn assert_no_leftovers(root: &Path, state: &Path) {
    assert_eq!(parts(root), Vec::<PathBuf>::new());
    let kept: Vec<OsString> = fs::read_dir(state.join("transfers"))
        .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
        .unwrap_or_default();
    assert_eq!(kept, Vec::<OsString>::new());
}

/// True if the tests run as root.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Asserts a failure with this exit code and one line that contains `words`.
#[track_caller]
pub fn fails(done: &Done, code: i32, words: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert_eq!(done.lines().len(), 1, "{done:?}");
    assert!(
        done.error.starts_with("penstock: ") && done.error.contains(words),
        "{words}: {done:?}"
    );
}
