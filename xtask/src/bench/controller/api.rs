//! The controller's API with its database: submissions, files in batches, completions, a million queued files, a restart.
//!
//! Runs `services/controller/examples/controller_speed.rs` once for each database. Clients, controller and database share this
//! machine's processors.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::BenchPart;

/// Label, JSON field, and promised rate per second of each measurement.
const ROWS: [(&str, &str, Option<u32>); 9] = [
    ("single_files", "submissions of one file", Some(3_000)),
    ("files_in_batches", "files in batches of 10,000", Some(100_000)),
    ("completions", "file completions where 1,200 a second are offered", Some(1_000)),
    ("completions_at_most", "file completions as fast as it goes", None),
    ("queued_files", "files queued up to a million more", None),
    ("single_files_with_a_million_queued", "submissions, a million queued", Some(3_000)),
    ("files_in_batches_with_a_million_queued", "files in batches, a million queued", Some(100_000)),
    (
        "completions_with_a_million_queued",
        "completions where 1,200 are offered, a million queued",
        Some(1_000),
    ),
    (
        "completions_at_most_with_a_million_queued",
        "completions as fast as it goes, a million queued",
        None,
    ),
];

/// Measures on SQLite, and on PostgreSQL where it is installed.
pub(super) fn run(root: &Path) -> Result<BenchPart> {
    let status = Command::new("cargo")
        .args([
            "build",
            "--release",
            "--locked",
            "-p",
            "penstock-controller",
            "--example",
            "controller_speed",
        ])
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the example does not build");
    let program = root.join("target/release/examples/controller_speed");
    let mut text = String::from(
        "## The API\n\n| | database | promised /s | /s | p50 ms | p99 ms |\n|---|---|---|---|---|---|\n",
    );
    let mut all = Vec::new();
    for store in ["sqlite", "postgres"] {
        let output = Command::new(&program).args([store, "5"]).output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            writeln!(text, "| not measured | {store} | | | | {why} |")?;
            continue;
        }
        let measured: Value = serde_json::from_slice(&output.stdout)?;
        for (key, name, promised) in ROWS {
            let row = &measured[key];
            let number = |field: &str| row[field].as_f64().unwrap_or(0.0);
            writeln!(
                text,
                "| {name} | {store} | {} | {:.0} | {:.1} | {:.1} |",
                promised.map_or(String::new(), |promised| promised.to_string()),
                number("per_second"),
                number("p50_ms"),
                number("p99_ms")
            )?;
        }
        let restart = measured["restart_seconds"].as_f64().unwrap_or(0.0);
        writeln!(text, "| restart with them, s (promised: 10) | {store} | | {restart:.2} | | |")?;
        all.push(measured);
    }
    Ok(BenchPart { name: "api", text, rows: json!(all) })
}
