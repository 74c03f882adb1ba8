//! Instruction counts of the pure hot paths stay within 3 % of bench/instructions.json.
//!
//! Callgrind counts the instructions of each path. The counts do not depend on the speed or the load of the machine, and
//! not on its kind either: programs that choose code by processor features see the processor that valgrind emulates, with
//! AES, CLMUL and AVX2 but without AVX-512, VAES and SHA. Processors other than x86-64 with AVX2 are skipped, because
//! valgrind passes on whether the processor has it, and so are machines without valgrind.
//!
//! The program is the one that cargo builds with the tests, in their profile: it costs no second build of the crates, and
//! its counts are larger than those of a release build. A change of the algorithm shows in both.
//!
//! `UPDATE_GOLDEN=1 cargo test -p penstock-instructions` rewrites the file; the change is reviewed as a diff.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use penstock_testkit::{Requirement, missing_program, skip};
use serde::{Deserialize, Serialize};

/// Program whose paths are counted.
const PROGRAM: &str = env!("CARGO_BIN_EXE_hot_paths");
/// File with the committed counts.
const COUNTS_FILE: &str = "bench/instructions.json";
/// Largest difference from the committed count, in percent.
const COUNT_TOLERANCE_PERCENT: f64 = 3.0;
/// Function whose instructions are counted, as callgrind's pattern.
const MEASURED: &str = "--toggle-collect=hot_paths::measured*";
/// Features that valgrind passes on from the processor, as in `/proc/cpuinfo`.
const FEATURES: [&str; 6] = ["aes", "avx2", "bmi2", "f16c", "pclmulqdq", "rdrand"];

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct InstructionCounts {
    /// Version of valgrind that counted.
    valgrind: String,
    /// Instructions of each path.
    paths: BTreeMap<String, u64>,
}

#[test]
fn hot_paths_keep_instruction_counts() {
    if let Some(reason) = unfit_machine() {
        skip(Requirement::Machine, &reason);
        return;
    }
    if missing_program("valgrind") {
        return;
    }
    let counts = count_all();
    let file = counts_file();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let text = serde_json::to_string_pretty(&counts).expect("counts are JSON") + "\n";
        std::fs::write(&file, text).expect("the file of the counts can be written");
        return;
    }
    let text = std::fs::read_to_string(&file).expect("the committed counts can be read");
    let committed: InstructionCounts = serde_json::from_str(&text).expect("a file of counts");
    let differences = differences(&committed.paths, &counts.paths);
    assert!(
        differences.is_empty(),
        "instruction counts differ from {COUNTS_FILE} by more than {COUNT_TOLERANCE_PERCENT} % (valgrind {}, \
         committed with {}):\n{}\nfind out why; if the change is meant, run UPDATE_GOLDEN=1 cargo test \
         -p penstock-instructions and commit the file",
        counts.valgrind,
        committed.valgrind,
        differences.join("\n")
    );
}

fn counts_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(COUNTS_FILE)
}

/// Reason why this machine cannot count as others do.
fn unfit_machine() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the committed counts are of x86-64".to_owned());
    }
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let missing: Vec<_> = FEATURES.into_iter().filter(|one| !flags.contains(one)).collect();
    (!missing.is_empty()).then(|| format!("the processor lacks {}", missing.join(", ")))
}

/// Counts all paths, as many at once as there are processors.
fn count_all() -> InstructionCounts {
    let version = output(Command::new("valgrind").arg("--version"));
    let valgrind = version.trim().trim_start_matches("valgrind-").to_owned();
    let names = output(&mut Command::new(PROGRAM));
    let waiting = Mutex::new(names.lines());
    let next = || waiting.lock().expect("no count panics with the lock").next();
    let count_waiting = || {
        let mut counted = Vec::new();
        while let Some(name) = next() {
            counted.push((name.to_owned(), count(name)));
        }
        counted
    };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let paths = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(count_waiting)).collect();
        let counted =
            threads.into_iter().flat_map(|thread| thread.join().expect("paths are counted"));
        counted.collect()
    });
    InstructionCounts { valgrind, paths }
}

fn count(name: &str) -> u64 {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let profile = folder.path().join("profile");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", MEASURED]);
    command.arg(format!("--callgrind-out-file={}", profile.display())).arg(PROGRAM).arg(name);
    output(&mut command);
    let text = std::fs::read_to_string(&profile).expect("callgrind writes a profile");
    total(&text).unwrap_or_else(|| panic!("callgrind counted nothing in {name}"))
}

/// Reads the line with the sum of a profile, such as `totals: 1358170`.
fn total(profile: &str) -> Option<u64> {
    let total = profile.lines().find_map(|line| line.strip_prefix("totals:"))?;
    total.trim().parse().ok().filter(|count| *count > 0)
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {}", messages.trim());
    String::from_utf8(output.stdout).expect("output is text")
}

/// A line for each path whose counts differ, and for each that only one side has.
fn differences(committed: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, count) in now {
        let Some(before) = committed.get(name) else {
            lines.push(format!("  {name}: {count}, and no committed count"));
            continue;
        };
        let change_percent = (*count as f64 / *before as f64 - 1.0) * 100.0;
        if change_percent.abs() > COUNT_TOLERANCE_PERCENT {
            lines.push(format!("  {name}: {count} against {before} ({change_percent:+.1} %)"));
        }
    }
    let gone = committed.keys().filter(|name| !now.contains_key(*name));
    lines.extend(gone.map(|name| format!("  {name}: committed, and no path has this name")));
    lines
}

fn counts(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
    of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn counts_within_tolerance_are_equal() {
    let committed = counts(&[("crc", 1000), ("gmac", 1000)]);
    assert!(differences(&committed, &counts(&[("crc", 1029), ("gmac", 971)])).is_empty());
}

#[test]
fn changed_and_missing_counts_differ() {
    let committed = counts(&[("crc", 1000), ("gmac", 1000), ("old", 1)]);
    let now = counts(&[("crc", 1032), ("gmac", 968), ("new", 1)]);
    let lines = differences(&committed, &now);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].contains("+3.2 %"), "{lines:?}");
}

#[test]
fn total_of_profile_is_read() {
    assert_eq!(total("version: 1\ntotals: 1358170\n"), Some(1_358_170));
    assert_eq!(total("totals: 0\n"), None);
    assert_eq!(total("version: 1\n"), None);
}
