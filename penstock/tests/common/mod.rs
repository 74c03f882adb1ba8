//! What the tests of the binary share: agents and copies as processes, trees that are compared, and
//! random choices that a printed seed repeats.
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
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

pub mod proxy;
pub mod site;

pub const PENSTOCK: &str = env!("CARGO_BIN_EXE_penstock");

/// Longest that any one command may take.
pub const COMMAND_WITHIN: Duration = Duration::from_secs(90);

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From `PENSTOCK_TEST_SEED`, or from `default`; says which.
    pub fn seeded(default: u64) -> Self {
        let given = std::env::var("PENSTOCK_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or(default);
        println!("repeat with PENSTOCK_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

/// Polls `ask` until it gives something.
pub fn until<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A place of its own for one test: `state`, `root` (what the agent exports) and `source`.
pub struct House {
    pub dir: TempDir,
    pub state: PathBuf,
    pub root: PathBuf,
    pub source: PathBuf,
}

impl House {
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

    /// `penstock` with this house's state.
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
    // The collector's ports are for one at a time.
    command.env("PENSTOCK_ROLES", "agent");
    command
}

/// An agent that runs; killed when dropped.
pub struct Agent {
    pub child: Child,
    pub listen: String,
    pub http: String,
    pub fingerprint: String,
    /// All that it printed when it was ready.
    pub facts: Value,
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
        // What it logs is shown with a failing test, and must not fill the pipe.
        std::thread::spawn(move || {
            let mut log = String::new();
            let _ = stderr.read_to_string(&mut log);
        });
        let facts: Value = serde_json::from_str(&line).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            child,
            listen: text(&facts["listen"][0]),
            http: text(&facts["http"][0]),
            fingerprint: text(&facts["fingerprint"]),
            facts,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("penstock://{}/{path}", self.listen)
    }

    /// SIGKILL, and gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Transfers that this agent runs or remembers.
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

/// A command that ended.
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

    /// It ended with 0.
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

/// A command that runs; killed when dropped.
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

    /// Waits for its end; a signal counts as -1.
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

    /// SIGKILL, and gone.
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

/// Writes a file with its mode and a time of modification of its own.
pub fn write_file(random: &mut Random, path: &Path, bytes: usize) {
    fs::write(path, random.bytes(bytes)).unwrap();
    let mode = [0o644, 0o600, 0o755, 0o444][random.between(0, 4) as usize];
    let seconds = random.between(1_000_000_000, 1_700_000_000);
    let nanos = random.between(0, 1_000_000_000) as u32;
    let file = fs::File::options().read(true).open(path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)).unwrap();
}

/// A tree of `large` files of about 3 MiB, `small` ones of up to 20 KiB, an empty one, links and an
/// empty directory; how many bytes are in its files.
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

/// What one thing in a tree is; two trees are the same when these are.
#[derive(Debug, PartialEq, Eq)]
pub struct Thing {
    kind: char,
    mode: u32,
    modified: (i64, i64),
    digest: [u8; 32],
    link: Option<PathBuf>,
}

/// Everything below `root`, by its path.
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

/// The trees are the same, to the byte, the mode and the nanosecond.
#[track_caller]
pub fn assert_same(source: &Path, copy: &Path) {
    let (wanted, got) = (tree(source), tree(copy));
    let names = |things: &BTreeMap<PathBuf, Thing>| things.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&wanted), names(&got));
    for (path, thing) in &wanted {
        assert_eq!(thing, &got[path], "{}", path.display());
    }
}

/// Unfinished files below `root`.
pub fn parts(root: &Path) -> Vec<PathBuf> {
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b".penstock-")
    };
    let mut found: Vec<_> = tree(root).into_keys().collect();
    found.retain(is_part);
    found
}

/// Neither unfinished files below `root` nor anything of a transfer in `state`.
#[track_caller]
pub fn assert_no_leftovers(root: &Path, state: &Path) {
    assert_eq!(parts(root), Vec::<PathBuf>::new());
    let kept: Vec<OsString> = fs::read_dir(state.join("transfers"))
        .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
        .unwrap_or_default();
    assert_eq!(kept, Vec::<OsString>::new());
}

/// Whether this process may do everything.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Says why a test is not run here; what is not checked must be seen.
pub fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}
