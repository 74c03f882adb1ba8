//! `cargo xtask test`: runs every test of the workspace, then lists skipped tests and the slowest ones.
//!
//! Cargo builds the test programs; this module runs them in sequence, each in the folder of its package, as `cargo test`
//! does. libtest reports the time of a test only with an unstable option, so the programs run with `RUSTC_BOOTSTRAP=1`;
//! nothing is compiled with it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use penstock_testkit::SKIPPED_FILE_VARIABLE;
use serde_json::Value;

/// Tests in the list of the slowest.
const SLOWEST_SHOWN: usize = 20;

/// Lines of the message of a failed test that the summary repeats.
const MESSAGE_LINES_MAX: usize = 12;

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub struct Options {
    /// Run tests whose names contain one of these.
    filters: Vec<String>,
}

/// A test program.
struct TestProgram {
    executable: PathBuf,
    folder: PathBuf,
}

/// Results of one run.
#[derive(Debug, Default)]
struct SuiteSummary {
    counts: BTreeMap<&'static str, usize>,
    failed: Vec<FailedTest>,
    times: Vec<(Duration, String)>,
    /// Index of the failed test whose message is being read.
    message_of: Option<usize>,
}

/// A failed test or program, with the start of its message.
#[derive(Debug, Default, PartialEq, Eq)]
struct FailedTest {
    name: String,
    message: Vec<String>,
}

impl FailedTest {
    fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), message: Vec::new() }
    }
}

/// Runs the tests of the checkout at `root`.
///
/// # Errors
/// When a test fails, a program dies, or cargo cannot build.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let programs = build(root)?;
    let built = begun.elapsed();
    let skipped = root.join("target/skipped.txt");
    match std::fs::remove_file(&skipped) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", skipped.display()));
        }
        _ => {}
    }
    let mut summary = SuiteSummary::default();
    for program in &programs {
        run_program(root, program, &skipped, options, &mut summary)?;
    }
    if options.filters.is_empty() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["test", "--workspace", "--locked", "--doc"])
            .current_dir(root)
            .status()
            .context("cannot run cargo test --doc")?;
        if !status.success() {
            summary.failed.push(FailedTest::named("tests in documentation"));
        }
    }
    print_summary(&summary, &std::fs::read_to_string(&skipped).unwrap_or_default());
    println!(
        "built in {:.0} s, tested in {:.0} s",
        built.as_secs_f64(),
        (begun.elapsed() - built).as_secs_f64()
    );
    if !summary.failed.is_empty() {
        // The last line names them: of a long run often nothing else is kept.
        let names: Vec<_> = summary.failed.iter().map(|failed| failed.name.as_str()).collect();
        bail!("{} failed: {}", names.len(), names.join(", "));
    }
    Ok(())
}

/// Runs a building command of cargo with the features of the whole workspace; returns its messages.
///
/// # Errors
/// When cargo does not run or the build fails.
pub(crate) fn build_messages(root: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(arguments)
        .args(["--workspace", "--locked", "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run cargo {}", arguments.join(" ")))?;
    if !output.status.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    let lines = output.stdout.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

fn build(root: &Path) -> Result<Vec<TestProgram>> {
    let messages = build_messages(root, &["test", "--no-run"])?;
    let program = |message: &Value| {
        let executable = message["executable"].as_str()?;
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let is_test = message["profile"]["test"] == true;
        is_test.then(|| TestProgram { executable: executable.into(), folder: folder.to_owned() })
    };
    Ok(messages.iter().filter_map(program).collect())
}

fn run_program(
    root: &Path,
    program: &TestProgram,
    skipped: &Path,
    options: &Options,
    summary: &mut SuiteSummary,
) -> Result<()> {
    let shown = program.executable.strip_prefix(root).unwrap_or(&program.executable);
    let name = shown.file_name().and_then(|name| name.to_str()).unwrap_or("test");
    let name = name.rsplit_once('-').map_or(name, |(name, _hash)| name);
    println!("     Running {} ({})", name, shown.display());
    let mut child = Command::new(&program.executable)
        .args(["-Zunstable-options", "--report-time"])
        .args(&options.filters)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env("RUSTC_BOOTSTRAP", "1")
        .env(SKIPPED_FILE_VARIABLE, skipped)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", shown.display()))?;
    let Some(output) = child.stdout.take() else { bail!("no output of {}", shown.display()) };
    let failed_before = summary.failed.len();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        summary.read(name, &line);
    }
    std::io::stdout().flush()?;
    let status = child.wait()?;
    if !status.success() && summary.failed.len() == failed_before {
        summary.failed.push(FailedTest::named(format!("{name}: {status}")));
    }
    Ok(())
}

impl SuiteSummary {
    /// Parses a line of libtest, such as `test a::b ... ok <0.012s>`, or of the message of a failed test, which follows
    /// `---- a::b stdout ----`.
    fn read(&mut self, program: &str, line: &str) {
        let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = heading {
            let name = format!("{program} {test}");
            self.message_of = self.failed.iter().position(|failed| failed.name == name);
            return;
        }
        if matches!(line, "failures:" | "stack backtrace:") {
            self.message_of = None;
        }
        if let Some(failed) = self.message_of.and_then(|index| self.failed.get_mut(index)) {
            if !line.is_empty() && failed.message.len() < MESSAGE_LINES_MAX {
                failed.message.push(line.to_owned());
            }
            return;
        }
        let Some((test, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        else {
            return;
        };
        let (word, rest) = result.split_once([' ', ',']).unwrap_or((result, ""));
        let counted = match word {
            "ok" => "passed",
            "FAILED" => "failed",
            "ignored" => "ignored",
            _ => return,
        };
        *self.counts.entry(counted).or_default() += 1;
        let name = format!("{program} {test}");
        if counted == "failed" {
            self.failed.push(FailedTest::named(name.clone()));
        }
        let seconds = rest.strip_prefix('<').and_then(|rest| rest.strip_suffix("s>"));
        if let Some(seconds) = seconds.and_then(|text| text.parse().ok()) {
            self.times.push((Duration::from_secs_f64(seconds), name));
        }
    }
}

fn print_summary(summary: &SuiteSummary, skipped: &str) {
    let mut times = summary.times.clone();
    times.sort_by(|a, b| b.cmp(a));
    println!("\nslowest tests:");
    for (time, name) in times.iter().take(SLOWEST_SHOWN) {
        println!("{:8.1} s  {name}", time.as_secs_f64());
    }
    println!("\nskipped, in whole or in part: {}", skipped.lines().count());
    for line in skipped.lines() {
        println!("  {line}");
    }
    if !summary.failed.is_empty() {
        println!("\nfailed:");
        for failed in &summary.failed {
            println!("  {}", failed.name);
            failed.message.iter().for_each(|line| println!("    | {line}"));
        }
    }
    let counts = summary.counts.iter().map(|(word, count)| format!("{count} {word}"));
    println!("\n{}", counts.collect::<Vec<_>>().join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_lines_are_counted() {
        let mut summary = SuiteSummary::default();
        for line in [
            "running 4 tests",
            "test a::quick ... ok <0.002s>",
            "test a::slow ... ok <61.500s>",
            "test b ... FAILED <0.100s>",
            "test c ... ignored, takes minutes",
            "test d has been running for over 60 seconds",
            "failures:",
            "---- b stdout ----",
            "",
            "thread 'b' (7) panicked at tests/resume.rs:7:5:",
            "test c ... ok",
            "stack backtrace:",
            "   0: main",
            "failures:",
            "    b",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored",
        ] {
            summary.read("resume", line);
        }
        assert_eq!(summary.counts, [("failed", 1), ("ignored", 1), ("passed", 2)].into());
        let message = ["thread 'b' (7) panicked at tests/resume.rs:7:5:", "test c ... ok"];
        let message = message.map(str::to_owned).to_vec();
        assert_eq!(summary.failed, [FailedTest { name: "resume b".to_owned(), message }]);
        let slowest = summary.times.iter().max().unwrap();
        assert_eq!(slowest, &(Duration::from_millis(61_500), "resume a::slow".to_owned()));
    }
}
