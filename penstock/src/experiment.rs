//! `penstock experiment`: reproduces published results in a lab and compares them with the published figures.
//!
//! An experiment is a folder: `experiment.toml` with cases and columns, a scenario, a topology. Each case plays the
//! scenario with other values; each column is a number from the output of one of its programs. The experiments of the
//! source tree are embedded in the binary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, anyhow};
use penstock_random::Random;
use serde::Deserialize;
use serde_json::Value;

use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json::experiment::{ExperimentListJson, ExperimentRowJson, ExperimentRunJson, Listed};
use crate::json::lab::{Played, ScenarioReportJson};
use crate::lab::{Contention, LabDirectories, play};

mod embedded;

const FILE_BYTES_MAX: usize = 1 << 20;

/// Reproduce published results in a lab and compare them with the published figures
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An experiment is a folder with experiment.toml, a scenario and a topology: see experiments/README.md. Those that come with \
Penstock need no folder: their names do, wherever it runs.

Exit code 3: a program failed, or a figure is above its bound.

Examples:
  penstock experiment list
  penstock experiment run heps-fabric
  penstock experiment run buffers --case stock --case tuned --repeat 3 --json
  penstock experiment run heps-fabric --repeat 2 --shuffle 1")]
pub(crate) struct ExperimentArgs {
    #[command(subcommand)]
    command: ExperimentCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ExperimentCommand {
    /// List the embedded experiments, or those below a folder
    List {
        /// The folder
        folder: Option<PathBuf>,
        /// Print one JSON object; docs/json.md has its fields
        #[arg(long)]
        json: bool,
    },
    /// Play its cases and print a table in Markdown
    Run {
        /// The experiment: its folder, or the name of one that comes with Penstock
        #[arg(value_name = "EXPERIMENT")]
        folder: PathBuf,
        /// Only the case of this name; may be given several times
        #[arg(long, value_name = "NAME")]
        case: Vec<String>,
        /// Folder for pictures of the experiment's programs
        #[arg(long, value_name = "FOLDER", default_value = ".")]
        output: PathBuf,
        /// Plays of each case, of which the median counts
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u8).range(1..=99))]
        repeat: u8,
        /// Repeat disturbed plays up to this many times
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u8).range(1..=99))]
        tries: u8,
        /// Play the cases in rounds of random order, from this seed, so that a slow change of the machine favours none
        #[arg(long, value_name = "SEED")]
        shuffle: Option<u64>,
        /// Print one JSON object; docs/json.md has its fields
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Experiment {
    title: String,
    /// Source of the published figures.
    source: Option<String>,
    /// Note below the table, such as the source of bounds and expected figures.
    note: Option<String>,
    /// Scenario that each case plays.
    scenario: Option<String>,
    /// Arguments of `penstock`, in place of a scenario; columns read its JSON as that of the program `penstock`.
    #[serde(default)]
    command: Vec<String>,
    column: Vec<ExperimentColumn>,
    case: Vec<ExperimentCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExperimentColumn {
    /// Heading with its unit.
    name: String,
    /// Program of the scenario that prints the figure.
    program: String,
    /// JSON pointer (RFC 6901) into its output; or `seconds`, its run time.
    value: String,
    /// Factor of the figure.
    #[serde(default = "one")]
    scale: f64,
    /// Link by whose rate the figure is divided: the final rate of its first direction.
    share_of: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExperimentCase {
    /// Name for `--case`.
    name: String,
    /// Description in the table.
    title: Option<String>,
    /// Variables of the scenario.
    #[serde(default)]
    with: BTreeMap<String, String>,
    /// Further arguments of the command.
    #[serde(default)]
    arguments: Vec<String>,
    /// Published figures by column.
    #[serde(default)]
    published: BTreeMap<String, f64>,
    /// Expected figures by column, such as earlier measurements.
    #[serde(default)]
    expected: BTreeMap<String, f64>,
    /// Upper bounds by column.
    #[serde(default)]
    bounds: BTreeMap<String, f64>,
}

pub(crate) fn run(args: &ExperimentArgs) -> Result<Code, CommandFailure> {
    match &args.command {
        ExperimentCommand::List { folder, json } => list(folder.as_deref(), *json),
        ExperimentCommand::Run { folder, case, output, repeat, tries, shuffle, json } => {
            let output = std::path::absolute(output).context("--output").or_exit(Code::Usage)?;
            if !output.is_dir() {
                let error = anyhow!("--output {}: there is no such folder", output.display());
                return Err(CommandFailure::new(Code::Usage, error));
            }
            let (repeat, tries) = (usize::from(*repeat), usize::from(*tries));
            let plays = Plays { repeat, tries, shuffle: *shuffle };
            if folder.join("experiment.toml").exists() {
                return measure(folder, case, &output, plays, *json);
            }
            let Some(name) = embedded::named(folder) else {
                let error = anyhow!(
                    "{}: no experiment.toml is there, and no experiment that comes with Penstock has this name: there are {}",
                    folder.display(),
                    embedded::names().join(", ")
                );
                return Err(CommandFailure::new(Code::Usage, error));
            };
            let (_directory, folder) = embedded::extract(name)?;
            measure(&folder, case, &output, plays, *json)
        }
    }
}

/// Number of plays of a case, and their order.
#[derive(Debug, Clone, Copy)]
struct Plays {
    repeat: usize,
    /// Most plays, while plays are not valid.
    tries: usize,
    /// Seed of a random order.
    shuffle: Option<u64>,
}

impl Plays {
    /// Numbers of the cases in the order in which they are played: one after another, or in rounds of random order.
    fn order(&self, cases: usize) -> Vec<usize> {
        let Some(seed) = self.shuffle else {
            return (0..cases).flat_map(|case| std::iter::repeat_n(case, self.repeat)).collect();
        };
        let mut random = Random::new(seed);
        let mut round: Vec<usize> = (0..cases).collect();
        let mut order = Vec::with_capacity(cases * self.repeat);
        for _ in 0..self.repeat {
            for last in (1..cases).rev() {
                round.swap(last, random.below(last as u64 + 1) as usize);
            }
            order.extend(&round);
        }
        order
    }
}

fn read(folder: &Path) -> Result<Experiment, CommandFailure> {
    let file = folder.join("experiment.toml");
    let cannot = || format!("cannot read {}", file.display());
    let bytes =
        crate::input::read(&file, FILE_BYTES_MAX).with_context(cannot).or_exit(Code::Usage)?;
    parse(&file, bytes)
}

/// Parses the text of `experiment.toml`.
fn parse(file: &Path, bytes: Vec<u8>) -> Result<Experiment, CommandFailure> {
    let cannot = || format!("cannot read {}", file.display());
    let text = String::from_utf8(bytes).with_context(cannot).or_exit(Code::Usage)?;
    let read: Experiment = toml::from_str(&text)
        .map_err(|error| {
            anyhow!("{}: {}", file.display(), error.to_string().trim().replace('\n', " "))
        })
        .or_exit(Code::Usage)?;
    if read.scenario.is_some() != read.command.is_empty() {
        let error = anyhow!("{}: give it either a scenario or a command", file.display());
        return Err(CommandFailure::new(Code::Usage, error));
    }
    let share = read.column.iter().find(|column| column.share_of.is_some());
    if let Some(ExperimentColumn { name, .. }) = share.filter(|_| read.scenario.is_none()) {
        let error = anyhow!("{}: column {name:?}: a command has no links", file.display());
        return Err(CommandFailure::new(Code::Usage, error));
    }
    for (at, case) in read.case.iter().enumerate() {
        if read.case[..at].iter().any(|before| before.name == case.name) {
            let error = anyhow!("{}: there are two cases {:?}", file.display(), case.name);
            return Err(CommandFailure::new(Code::Usage, error));
        }
        let named = [&case.published, &case.expected, &case.bounds];
        let mut named = named.into_iter().flat_map(BTreeMap::keys);
        let is_unknown = |name: &&String| !read.column.iter().any(|one| one.name == **name);
        if let Some(unknown) = named.find(is_unknown) {
            let error = anyhow!("{}: case {:?}: no column {unknown:?}", file.display(), case.name);
            return Err(CommandFailure::new(Code::Usage, error));
        }
    }
    if read.source.is_none() && read.case.iter().any(|case| !case.published.is_empty()) {
        let error = anyhow!("{}: say in source who published the figures", file.display());
        return Err(CommandFailure::new(Code::Usage, error));
    }
    Ok(read)
}

fn list(folder: Option<&Path>, json: bool) -> Result<Code, CommandFailure> {
    let mut all = Vec::new();
    let mut add = |folder: String, experiment: &Experiment| {
        all.push(Listed {
            folder,
            title: experiment.title.clone(),
            cases: experiment.case.iter().map(|case| case.name.clone()).collect(),
        });
    };
    match folder {
        Some(folder) => {
            let entries =
                std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
            let mut folders: Vec<PathBuf> = entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.join("experiment.toml").exists())
                .collect();
            folders.sort();
            if folders.is_empty() {
                say(format!("{}: no folder in it has an experiment.toml", folder.display()));
            }
            for folder in folders {
                add(folder.display().to_string(), &read(&folder)?);
            }
        }
        None => {
            for name in embedded::names() {
                let bytes = embedded::definition(name).unwrap_or_default().to_vec();
                add(name.to_owned(), &parse(&Path::new(name).join("experiment.toml"), bytes)?);
            }
        }
    }
    if json {
        crate::json::print(&ExperimentListJson { experiments: all })?;
        return Ok(Code::Done);
    }
    let line = |one: &Listed| format!("{}: {}\n", one.folder, one.title);
    print(&all.iter().map(line).collect::<String>())
}

/// Cases of these names in the order of the file; all if `names` is empty.
fn chosen<'a>(
    experiment: &'a Experiment,
    names: &[String],
) -> Result<Vec<&'a ExperimentCase>, CommandFailure> {
    let known = |name: &&String| experiment.case.iter().any(|case| case.name == **name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all: Vec<&str> = experiment.case.iter().map(|case| case.name.as_str()).collect();
        let error = anyhow!("there is no case {unknown:?}: there are {}", all.join(", "));
        return Err(CommandFailure::new(Code::Usage, error));
    }
    let is_wanted = |case: &&ExperimentCase| names.is_empty() || names.contains(&case.name);
    Ok(experiment.case.iter().filter(is_wanted).collect())
}

fn measure(
    folder: &Path,
    only: &[String],
    output: &Path,
    plays: Plays,
    json: bool,
) -> Result<Code, CommandFailure> {
    let experiment = read(folder)?;
    let cases = chosen(&experiment, only)?;
    let labs = LabDirectories::open()?;
    let mut rows = Vec::new();
    let mut code = Code::Done;
    let mut played: Vec<Vec<ScenarioReportJson>> = cases.iter().map(|_| Vec::new()).collect();
    let order = plays.order(cases.len());
    for (index, of) in order.iter().enumerate() {
        let case = cases[*of];
        let title = case.title.as_ref().map_or(String::new(), |title| format!(" ({title})"));
        say(format!("play {} of {}: {}{title}", index + 1, order.len(), case.name));
        for again in (0..plays.tries).rev() {
            let report = match &experiment.scenario {
                Some(scenario) => play(&folder.join(scenario), &case.with, &labs, None, output)?,
                None => command(&experiment, case, folder)?,
            };
            let valid = report.valid;
            refuse_unknown_links(&experiment, &report)?;
            for reason in report.invalid_because() {
                let next = if again > 0 { "; it is played again" } else { "" };
                say(format!("  not valid: {reason}{next}"));
            }
            let of_this = row(&experiment, case, std::slice::from_ref(&report));
            say(format!("  {}", figures(&experiment, &of_this)));
            played[*of].push(report);
            if valid {
                break;
            }
        }
    }
    for (case, reports) in cases.iter().zip(&played) {
        let is_any = reports.iter().any(|report| report.valid);
        for failed in reports.iter().filter(|report| report.valid || !is_any).flat_map(failures) {
            say(failed);
            code = Code::Partial;
        }
        let row = row(&experiment, case, reports);
        for column in &row.above_bounds {
            say(format!("{}: {column} is above its bound", case.name));
            code = Code::Partial;
        }
        rows.push(row);
    }
    if json {
        crate::json::print(&ExperimentRunJson {
            columns: experiment.column.iter().map(|column| column.name.clone()).collect(),
            title: experiment.title,
            source: experiment.source,
            note: experiment.note,
            kernel: penstock_sys::machine::kernel_release(),
            cores: penstock_sys::machine::cores(),
            rows,
        })?;
    } else {
        print(&markdown(&experiment, &rows))?;
    }
    Ok(code)
}

/// Figures of a row with their headings.
fn figures(experiment: &Experiment, row: &ExperimentRowJson) -> String {
    let columns = experiment.column.iter().zip(&row.measured);
    let all: Vec<String> =
        columns.map(|(column, value)| format!("{} {}", column.name, number(*value))).collect();
    all.join(", ")
}

/// Runs a case that is a `penstock` command in the experiment's folder.
fn command(
    experiment: &Experiment,
    case: &ExperimentCase,
    folder: &Path,
) -> Result<ScenarioReportJson, CommandFailure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let arguments: Vec<String> =
        experiment.command.iter().chain(&case.arguments).cloned().collect();
    let began = Instant::now();
    // On a terminal the program shows its own progress.
    let is_shown = io::stderr().is_terminal();
    let output = Command::new(program)
        .args(&arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(if is_shown { Stdio::inherit() } else { Stdio::piped() })
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
    Ok(ScenarioReportJson {
        scenario: String::new(),
        kernel: penstock_sys::machine::kernel_release(),
        backend: "none".to_owned(),
        seconds,
        valid: true,
        disturbed_links: Vec::new(),
        processors: Contention::default(),
        programs: vec![played],
        links: Vec::new(),
        samples: Vec::new(),
        steps_left: Vec::new(),
    })
}

/// Programs that failed.
fn failures(report: &ScenarioReportJson) -> Vec<String> {
    let failed = report.programs.iter().filter(|one| one.exit.is_some_and(|exit| exit != 0));
    failed.map(|one| format!("{} on {} failed: {}", one.name, one.host, one.errors)).collect()
}

fn refuse_unknown_links(
    experiment: &Experiment,
    report: &ScenarioReportJson,
) -> Result<(), CommandFailure> {
    let has = |name: &String| report.links.iter().any(|link| link.name == *name);
    let mut named = experiment.column.iter().filter_map(|column| column.share_of.as_ref());
    match named.find(|name| !has(name)) {
        None => Ok(()),
        Some(unknown) => {
            let error = anyhow!("share_of = {unknown:?}: the topology has no link of that name");
            Err(CommandFailure::new(Code::Usage, error))
        }
    }
}

fn row(
    experiment: &Experiment,
    case: &ExperimentCase,
    reports: &[ScenarioReportJson],
) -> ExperimentRowJson {
    let valid_plays = reports.iter().filter(|report| report.valid).count();
    // Plays with late links count only if there are no valid ones.
    let counts = |report: &&ScenarioReportJson| report.valid || valid_plays == 0;
    let measured = experiment.column.iter().map(|column| {
        let counted = reports.iter().filter(counts);
        let mut found: Vec<f64> = counted.filter_map(|report| column.of(report)).collect();
        found.sort_by(f64::total_cmp);
        found.get(found.len() / 2).copied()
    });
    let measured: Vec<Option<f64>> = measured.collect();
    let of = |figures: &BTreeMap<String, f64>| -> Vec<Option<f64>> {
        experiment.column.iter().map(|column| figures.get(&column.name).copied()).collect()
    };
    let bounds = of(&case.bounds);
    let is_above =
        |at: &usize| matches!((measured[*at], bounds[*at]), (Some(is), Some(most)) if is > most);
    let above = (0..measured.len()).filter(is_above);
    ExperimentRowJson {
        case: case.name.clone(),
        title: case.title.clone(),
        above_bounds: above.map(|at| experiment.column[at].name.clone()).collect(),
        measured,
        published: of(&case.published),
        expected: of(&case.expected),
        bounds,
        valid_plays,
        plays: reports.len(),
    }
}

impl ExperimentColumn {
    fn of(&self, report: &ScenarioReportJson) -> Option<f64> {
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

/// A column beside a measured figure: its heading, and the figures.
type Beside = (&'static str, fn(&ExperimentRowJson) -> &Vec<Option<f64>>);

const BESIDE: [Beside; 3] = [
    ("published", |row| &row.published),
    ("expected", |row| &row.expected),
    ("at most", |row| &row.bounds),
];

fn markdown(experiment: &Experiment, rows: &[ExperimentRowJson]) -> String {
    let mut text = format!("# {}\n\n", experiment.title);
    let _ = write!(
        text,
        "Linux {}, {} cores.",
        penstock_sys::machine::kernel_release(),
        penstock_sys::machine::cores(),
    );
    if let Some(source) = &experiment.source {
        let _ = write!(text, " Published: {source}.");
    }
    if let Some(note) = &experiment.note {
        let _ = write!(text, " {note}.");
    }
    if experiment.scenario.is_some() {
        text += " A play is valid when its links were on time and no other program took its processors.";
    }
    text += "\n\n";
    let is_there = |beside: &Beside, at: usize| rows.iter().any(|row| beside.1(row)[at].is_some());
    let has_titles = rows.iter().any(|row| row.title.is_some());
    let mut heads = vec!["case".to_owned()];
    heads.extend(has_titles.then(|| "what".to_owned()));
    for (at, column) in experiment.column.iter().enumerate() {
        heads.push(column.name.clone());
        let besides = BESIDE.iter().filter(|beside| is_there(beside, at));
        heads.extend(besides.map(|(what, _)| format!("{} {what}", column.name)));
    }
    heads.push("valid".to_owned());
    let _ = writeln!(text, "| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        let mut cells = vec![row.case.clone()];
        cells.extend(has_titles.then(|| row.title.clone().unwrap_or_default()));
        for (at, column) in experiment.column.iter().enumerate() {
            let value = number(row.measured[at]);
            let is_above = row.above_bounds.contains(&column.name);
            cells.push(if is_above { format!("**{value}**") } else { value });
            let besides = BESIDE.iter().filter(|beside| is_there(beside, at));
            cells.extend(besides.map(|(_, figures)| number(figures(row)[at])));
        }
        cells.push(format!("{} of {}", row.valid_plays, row.plays));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Formats with three significant digits.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.0}"),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

fn print(text: &str) -> Result<Code, CommandFailure> {
    crate::lab::print(text)?;
    Ok(Code::Done)
}

const fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_rounds_have_each_case() {
        let plays = Plays { repeat: 3, tries: 1, shuffle: None };
        assert_eq!(plays.order(2), [0, 0, 0, 1, 1, 1]);
        let plays = Plays { repeat: 5, shuffle: Some(3), ..plays };
        let order = plays.order(6);
        assert_eq!(order, plays.order(6), "by its seed alone");
        let mut rounds: Vec<Vec<usize>> = order.chunks(6).map(<[usize]>::to_vec).collect();
        assert!(rounds.windows(2).any(|pair| pair[0] != pair[1]), "{rounds:?}");
        for round in &mut rounds {
            round.sort_unstable();
            assert_eq!(*round, [0, 1, 2, 3, 4, 5]);
        }
    }
}
