//! `cargo xtask bench --compare COMMIT`: the processor time of this working tree against that of a commit.
//!
//! Both are built in release mode, the commit in a git worktree under `target/compare`, and take turns on the same machine;
//! the order within a round alternates. The code that measures is that of this working tree for both: the binaries
//! are run by their command lines, and the examples of the pure crates are compiled from this tree's sources. Where the
//! commit's crates do not fit these, its own example is taken, and where it has none the row is skipped.
//!
//! The ratio of a round is the cost now over the cost before, so that above 1 is slower. A figure is lost when the lower
//! quartile of its ratios is above 1 plus its tolerance. Its row is then measured once more; only a figure that is lost
//! twice fails the run.

mod builds;
mod rows;
mod verdict;

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;

use super::work::Work;
use super::{INSIDE, enter_namespace, machine, process};
use crate::workspace_root;
use builds::ComparedBuilds;
use rows::{CompareRow, RowMeasurement, RowSettings};
use verdict::Figure;

/// Rounds of a row, without the warm-up.
const ROUNDS_FULL: usize = 12;
const ROUNDS_SHORT: usize = 6;

/// Options of `cargo xtask bench --compare`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Compare this working tree with a commit, and fail if it needs more processor time.
    #[arg(long, value_name = "COMMIT")]
    compare: Option<String>,
    /// Rows to measure, separated by commas; all by default.
    #[arg(long, value_delimiter = ',', value_enum, requires = "compare")]
    rows: Vec<CompareRow>,
    /// Fewer and shorter runs: under five minutes after the builds.
    #[arg(long, requires = "compare")]
    short: bool,
    /// Rounds of each row, after a warm-up.
    #[arg(long, requires = "compare", value_parser = clap::value_parser!(u16).range(2..=1000))]
    rounds: Option<u16>,
    /// Print a JSON object instead of a table.
    #[arg(long, requires = "compare")]
    json: bool,
    /// Working folder; removed at the end.
    #[arg(long, requires = "compare")]
    dir: Option<PathBuf>,
}

/// Measures the rows and prints the ratios; true if no figure is lost.
///
/// # Errors
/// Without `--compare` or root, and when a build or a run fails.
pub fn run(options: &Options) -> Result<bool> {
    let Some(commit) = &options.compare else {
        bail!(
            "name a subject to measure, or a commit with --compare: see cargo xtask bench --help"
        );
    };
    ensure!(rustix::process::geteuid().is_root(), "must run as root: a network namespace is made");
    let root = workspace_root();
    let rows: Vec<CompareRow> =
        if options.rows.is_empty() { CompareRow::all() } else { options.rows.clone() };
    if std::env::var_os(INSIDE).is_none() {
        ComparedBuilds::build(&root, commit, &rows)?.write(&root)?;
        return Err(enter_namespace());
    }
    let builds = ComparedBuilds::read(&root)?;
    let folder = options.dir.clone().unwrap_or_else(|| root.join("target/compare/work"));
    let settings = RowSettings {
        short: options.short,
        work: Rc::new(Work::new(&std::path::absolute(folder)?)?),
        stop: process::interrupt_flag()?,
    };
    let rounds = match options.rounds {
        Some(rounds) => usize::from(rounds),
        None if options.short => ROUNDS_SHORT,
        None => ROUNDS_FULL,
    };
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for row in rows {
        if let Some(reason) = builds.lacks(row) {
            eprintln!("{}: skipped: {reason}", row.name());
            skipped.push(json!({ "row": row.name(), "reason": reason }));
            continue;
        }
        let mut measure = RowMeasurement::start(row, &builds, &settings)
            .with_context(|| format!("cannot start {}", row.name()))?;
        let mut measured = measure.rounds(rounds)?;
        if measured.iter().any(Figure::is_lost) {
            eprintln!("{}: slower: measured once more", row.name());
            let again = measure.rounds(rounds)?;
            for (figure, again) in measured.iter_mut().zip(again) {
                figure.repeat(again);
            }
        }
        figures.extend(measured);
    }
    let facts = machine::facts(&root, &settings.work.root)?;
    let is_good = !figures.iter().any(Figure::is_lost);
    if options.json {
        let rows: Vec<_> = figures.iter().map(Figure::to_json).collect();
        let object = json!({ "machine": facts, "before": builds.commit, "figures": rows, "skipped": skipped, "passed": is_good });
        println!("{object:#}");
    } else {
        println!(
            "{} ({} cores) at {}, against {}\n\n{}",
            facts.cpu,
            facts.cores,
            facts.commit,
            builds.commit,
            verdict::table(&figures)
        );
    }
    Ok(is_good)
}
