//! `penstock experiment`: published results, measured again in a lab and put beside what was published.
//!
//! An experiment is a folder: `experiment.toml` with cases and columns, a scenario, a topology. Each case plays the
//! scenario with other values; each column is a number from the output of one of its programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::exit::{Code, Failure, OrExit, say};
use crate::lab::{Labs, Played, Report, play};

const FILE_BYTES_MAX: usize = 1 << 20;

/// Measure published results again in a lab, and put them beside what was published
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An experiment is a folder with experiment.toml, a scenario and a topology: see experiments/README.md.

Examples:
  penstock experiment list experiments
  penstock experiment run experiments/buffers
  penstock experiment run experiments/buffers --case stock --repeat 3 --json")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the experiments below a folder
    List {
        /// The folder
        #[arg(default_value = "experiments")]
        folder: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Play its cases and print a table in Markdown
    Run {
        /// The experiment's folder
        folder: PathBuf,
        /// Only cases with this in their name
        #[arg(long, value_name = "TEXT")]
        case: Option<String>,
        /// Plays of each case, of which the median counts
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u8).range(1..=99))]
        repeat: u8,
        /// Play again what was disturbed, until it was not or so many were played
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u8).range(1..=99))]
        tries: u8,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Experiment {
    title: String,
    source: String,
    /// The play of each case; or
    scenario: Option<String>,
    /// the arguments of this program, whose JSON columns read as that of the program `penstock`.
    #[serde(default)]
    command: Vec<String>,
    column: Vec<Column>,
    case: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Column {
    /// As the head of the table has it, with its unit.
    name: String,
    /// Which program of the scenario tells it.
    program: String,
    /// Where in its JSON: a pointer of RFC 6901; or `seconds`, how long it ran.
    value: String,
    /// What it is multiplied by.
    #[serde(default = "one")]
    scale: f64,
    /// It is a share of this link's rate: of its first direction, as it is at the end.
    share_of: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// Variables of the scenario.
    #[serde(default)]
    with: BTreeMap<String, String>,
    /// More arguments of the command.
    #[serde(default)]
    arguments: Vec<String>,
    /// What others measured, by column.
    #[serde(default)]
    published: BTreeMap<String, f64>,
}

/// A case and what it gave.
#[derive(Debug, Serialize)]
struct Row {
    case: String,
    /// By column: the median of valid plays, of all where none was; none where no play gave one.
    measured: Vec<Option<f64>>,
    published: Vec<Option<f64>>,
    /// Plays whose links were on time, of all.
    valid_plays: usize,
    plays: usize,
}

pub(crate) fn run(args: &Args) -> Result<Code, Failure> {
    match &args.what {
        What::List { folder, json } => list(folder, *json),
        What::Run { folder, case, repeat, tries, json } => {
            measure(folder, case.as_deref(), usize::from(*repeat), usize::from(*tries), *json)
        }
    }
}

fn read(folder: &Path) -> Result<Experiment, Failure> {
    let file = folder.join("experiment.toml");
    let cannot = || format!("cannot read {}", file.display());
    let bytes =
        crate::input::read(&file, FILE_BYTES_MAX).with_context(cannot).or_exit(Code::Usage)?;
    let text = String::from_utf8(bytes).with_context(cannot).or_exit(Code::Usage)?;
    let read: Experiment = toml::from_str(&text)
        .map_err(|error| {
            anyhow!("{}: {}", file.display(), error.to_string().trim().replace('\n', " "))
        })
        .or_exit(Code::Usage)?;
    if read.scenario.is_some() != read.command.is_empty() {
        let error = anyhow!("{}: give it either a scenario or a command", file.display());
        return Err(Failure::new(Code::Usage, error));
    }
    let share = read.column.iter().find(|column| column.share_of.is_some());
    if let Some(Column { name, .. }) = share.filter(|_| read.scenario.is_none()) {
        let error = anyhow!("{}: column {name:?}: a command has no links", file.display());
        return Err(Failure::new(Code::Usage, error));
    }
    for case in &read.case {
        if let Some(unknown) =
            case.published.keys().find(|name| !read.column.iter().any(|one| one.name == **name))
        {
            let error = anyhow!("{}: case {:?}: no column {unknown:?}", file.display(), case.name);
            return Err(Failure::new(Code::Usage, error));
        }
    }
    Ok(read)
}

fn list(folder: &Path, json: bool) -> Result<Code, Failure> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("experiment.toml").exists())
        .collect();
    folders.sort();
    let mut all = Vec::new();
    for folder in folders {
        let experiment = read(&folder)?;
        all.push(json!({
            "folder": folder.display().to_string(),
            "title": experiment.title,
            "cases": experiment.case.iter().map(|case| case.name.as_str()).collect::<Vec<_>>(),
        }));
    }
    if json {
        return print(&format!("{}\n", json!({ "experiments": all })));
    }
    let line = |one: &Value| {
        let word = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
        format!("{}: {}\n", word("folder"), word("title"))
    };
    print(&all.iter().map(line).collect::<String>())
}

fn measure(
    folder: &Path,
    only: Option<&str>,
    repeat: usize,
    tries: usize,
    json: bool,
) -> Result<Code, Failure> {
    let experiment = read(folder)?;
    let labs = Labs::open()?;
    // A whole name means that case, though others begin like it.
    let whole = only.filter(|text| experiment.case.iter().any(|case| case.name == **text));
    let wanted = |case: &&Case| match whole {
        Some(name) => case.name == *name,
        None => only.is_none_or(|text| case.name.contains(text)),
    };
    let cases: Vec<&Case> = experiment.case.iter().filter(wanted).collect();
    if cases.is_empty() {
        let names: Vec<&str> = experiment.case.iter().map(|case| case.name.as_str()).collect();
        let error = anyhow!(
            "no case has {:?} in its name: there are {}",
            only.unwrap_or(""),
            names.join(", ")
        );
        return Err(Failure::new(Code::Usage, error));
    }
    let mut rows = Vec::new();
    let mut code = Code::Done;
    for (index, case) in cases.iter().enumerate() {
        say(format!("case {} of {}: {}", index + 1, cases.len(), case.name));
        let mut reports = Vec::new();
        for _ in 0..repeat {
            for again in (0..tries).rev() {
                let report = match &experiment.scenario {
                    Some(scenario) => play(&folder.join(scenario), &case.with, &labs, None)?,
                    None => command(&experiment, case, folder)?,
                };
                let valid = report.valid;
                refuse_unknown_links(&experiment, &report)?;
                if !valid {
                    let links = report.disturbed_links.join(", ");
                    let next = if again > 0 { "; it is played again" } else { "" };
                    say(format!("  packets were late on {links}{next}"));
                }
                reports.push(report);
                if valid {
                    break;
                }
            }
        }
        let is_any = reports.iter().any(|report| report.valid);
        for failed in reports.iter().filter(|report| report.valid || !is_any).flat_map(failures) {
            say(failed);
            code = Code::Partial;
        }
        let row = row(&experiment, case, &reports);
        let figures: Vec<String> = experiment
            .column
            .iter()
            .zip(&row.measured)
            .map(|(column, value)| format!("{} {}", column.name, number(*value)))
            .collect();
        say(format!("  {}", figures.join(", ")));
        rows.push(row);
    }
    if json {
        let columns: Vec<&str> =
            experiment.column.iter().map(|column| column.name.as_str()).collect();
        let value = json!({
            "title": experiment.title,
            "source": experiment.source,
            "kernel": penstock_sys::machine::kernel_release(),
            "cores": penstock_sys::machine::cores(),
            "columns": columns,
            "rows": rows,
        });
        print(&format!("{value}\n"))?;
    } else {
        print(&markdown(&experiment, &rows))?;
    }
    Ok(code)
}

/// A case that is a command of this program, run in the experiment's folder.
fn command(experiment: &Experiment, case: &Case, folder: &Path) -> Result<Report, Failure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let arguments: Vec<String> =
        experiment.command.iter().chain(&case.arguments).cloned().collect();
    let began = Instant::now();
    let output = Command::new(program)
        .args(&arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("cannot run penstock {}", arguments.join(" ")))?;
    let seconds = began.elapsed().as_secs_f64();
    let played = Played {
        name: "penstock".to_owned(),
        host: "this machine".to_owned(),
        command: arguments,
        began_seconds: 0.0,
        ended_seconds: Some(seconds),
        exit: output.status.code(),
        output: serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
        errors: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    };
    Ok(Report {
        scenario: String::new(),
        kernel: penstock_sys::machine::kernel_release(),
        backend: "none".to_owned(),
        seconds,
        valid: true,
        disturbed_links: Vec::new(),
        programs: vec![played],
        links: Vec::new(),
        samples: Vec::new(),
        steps_left: Vec::new(),
    })
}

/// Programs that did not end well.
fn failures(report: &Report) -> Vec<String> {
    let failed = report.programs.iter().filter(|one| one.exit.is_some_and(|exit| exit != 0));
    failed.map(|one| format!("{} on {} failed: {}", one.name, one.host, one.errors)).collect()
}

fn refuse_unknown_links(experiment: &Experiment, report: &Report) -> Result<(), Failure> {
    let has = |name: &String| report.links.iter().any(|link| link.name == *name);
    let mut named = experiment.column.iter().filter_map(|column| column.share_of.as_ref());
    match named.find(|name| !has(name)) {
        None => Ok(()),
        Some(unknown) => {
            let error = anyhow!("share_of = {unknown:?}: the topology has no link of that name");
            Err(Failure::new(Code::Usage, error))
        }
    }
}

fn row(experiment: &Experiment, case: &Case, reports: &[Report]) -> Row {
    let valid_plays = reports.iter().filter(|report| report.valid).count();
    // Those whose links were late count only where there are no others.
    let counts = |report: &&Report| report.valid || valid_plays == 0;
    let measured = experiment.column.iter().map(|column| {
        let counted = reports.iter().filter(counts);
        let mut found: Vec<f64> = counted.filter_map(|report| column.of(report)).collect();
        found.sort_by(f64::total_cmp);
        found.get(found.len() / 2).copied()
    });
    let published =
        experiment.column.iter().map(|column| case.published.get(&column.name).copied());
    Row {
        case: case.name.clone(),
        measured: measured.collect(),
        published: published.collect(),
        valid_plays,
        plays: reports.len(),
    }
}

impl Column {
    fn of(&self, report: &Report) -> Option<f64> {
        let program = report.programs.iter().find(|one| one.name == self.program)?;
        if program.exit != Some(0) {
            return None;
        }
        let value = match self.value.as_str() {
            "seconds" => program.ended_seconds? - program.began_seconds,
            pointer => program.output.pointer(pointer)?.as_f64()?,
        };
        let whole = match &self.share_of {
            None => 1.0,
            Some(name) => {
                let link = report.links.iter().find(|link| link.name == *name)?;
                link.directions[0].rate_bps? as f64
            }
        };
        Some(value * self.scale / whole)
    }
}

fn markdown(experiment: &Experiment, rows: &[Row]) -> String {
    let mut text = format!("# {}\n\n", experiment.title);
    let _ = writeln!(
        text,
        "Linux {}, {} cores. Published: {}.{}\n",
        penstock_sys::machine::kernel_release(),
        penstock_sys::machine::cores(),
        experiment.source,
        if experiment.scenario.is_some() {
            " A case is valid when its links were on time."
        } else {
            ""
        }
    );
    let published = |index: usize| rows.iter().any(|row| row.published[index].is_some());
    let mut heads = vec!["case".to_owned()];
    for (index, column) in experiment.column.iter().enumerate() {
        heads.push(column.name.clone());
        if published(index) {
            heads.push(format!("{} published", column.name));
        }
    }
    heads.push("valid".to_owned());
    let _ = writeln!(text, "| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        let mut cells = vec![row.case.clone()];
        for index in 0..experiment.column.len() {
            cells.push(number(row.measured[index]));
            if published(index) {
                cells.push(number(row.published[index]));
            }
        }
        cells.push(format!("{} of {}", row.valid_plays, row.plays));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Three significant digits.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

fn print(text: &str) -> Result<Code, Failure> {
    crate::lab::print(text)?;
    Ok(Code::Done)
}

const fn one() -> f64 {
    1.0
}
