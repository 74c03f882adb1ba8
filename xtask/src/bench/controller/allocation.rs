//! Time of an allocation, compared with linear programmes of HiGHS for the same problems.
//!
//! Ours is `core/allocation/examples/allocation_speed.rs`, on one core, with the translation of names to numbers; HiGHS
//! is `bench/controller/maxmin.py`, in a Python virtual environment under target/. Both report CPU seconds.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::BenchPart;

/// Flows, links, paths of each flow, runs.
const CASES: [[&str; 4]; 4] = [
    ["1000", "100", "1", "200"],
    ["10000", "1000", "1", "50"],
    ["1000", "100", "3", "20"],
    ["10000", "1000", "3", "5"],
];

pub(super) fn run(root: &Path, seconds: u64) -> Result<BenchPart> {
    let mut build = Command::new("cargo");
    build.args([
        "build",
        "--release",
        "--locked",
        "-p",
        "penstock-allocation",
        "--example",
        "allocation_speed",
    ]);
    run_in(root, &mut build)?;
    let python = python(root)?;
    let work = tempfile::tempdir()?;
    let mut rows = Vec::new();
    for case in CASES {
        let file = work.path().join("problem.txt");
        let mut speed = Command::new(root.join("target/release/examples/allocation_speed"));
        let ours = answer(speed.args(case).arg(&file))?;
        // With several paths, which links are full does not follow from the level alone.
        let highs = if case[2] == "1" {
            let mut maxmin = Command::new(&python);
            maxmin.arg(root.join("bench/controller/maxmin.py")).arg(&file);
            answer(maxmin.arg(seconds.to_string()))?
        } else {
            Value::Null
        };
        rows.push(json!({ "ours": ours, "highs": highs }));
    }
    Ok(BenchPart { name: "allocation", text: markdown(&rows), rows: rows.into() })
}

fn python(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/bench-python");
    let python = folder.join("bin/python");
    if !python.exists() {
        run_in(root, Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "highspy", "numpy"];
    run_in(root, Command::new(&python).args(pip))?;
    Ok(python)
}

fn run_in(root: &Path, command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.current_dir(root).status();
    let status = status.with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} failed ({status})");
    Ok(())
}

fn answer(command: &mut Command) -> Result<Value> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn markdown(rows: &[Value]) -> String {
    let mut text = "## Allocation\n\nMilliseconds on a processor, the mean of all runs, from names to names. With classes: ten of them in three \
                    tiers with floors and marks. A change: the weight of one flow, all others sharing something with it. HiGHS: linear \
                    programmes one after the other, each from the basis of the one before.\n\n\
                    | flows | links | paths | allocation | with classes | a change | HiGHS, first programme | HiGHS, rates fixed | in | largest difference |\n\
                    |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let milliseconds = |value: &Value| value.as_f64().unwrap_or(0.0) * 1e3;
    for row in rows {
        let (ours, highs) = (&row["ours"], &row["highs"]);
        let _ = write!(
            text,
            "| {} | {} | {} | {:.2} | {:.2} | {:.2} |",
            ours["flows"],
            ours["links"],
            ours["paths"],
            milliseconds(&ours["seconds"][1]),
            milliseconds(&ours["seconds_with_classes"][1]),
            milliseconds(&ours["seconds_of_a_change"][1]),
        );
        if highs.is_null() {
            text += " - | - | - | - |\n";
            continue;
        }
        let _ = writeln!(
            text,
            " {:.0} | {} of {} by {} programmes | {:.0} | {:.1e} |",
            milliseconds(&highs["seconds_of_first"]),
            highs["fixed"],
            ours["flows"],
            highs["programmes"],
            milliseconds(&highs["seconds"]),
            highs["largest_difference"].as_f64().unwrap_or(f64::NAN),
        );
    }
    text
}
