//! `penstock fabric sweep`: a grid of parameters, several runs at once, a line of JSON for each.
//!
//! Lines are in grid order for any number of threads and contain no wall-clock times, so that equal sweeps give equal
//! files. An existing partial file is continued.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, anyhow};
use penstock_fabric::{FabricNetwork, Parameters, RunProgress, Simulation};
use serde_json::{Value, json};

use super::network::NetworkArgs;
use super::run::{EVENTS_PER_SLICE, RunSettings, kept};
use super::show;
use super::traffic::TrafficArgs;
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json::fabric::{SweepJson, SweepRow};
use crate::progress::ProgressLine;
use crate::table::table;

const RUNS_MAX: usize = 100_000;

/// Run a workload over a grid of parameters, several runs at once
#[derive(Debug, clap::Args)]
pub(crate) struct FabricSweepArgs {
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    traffic: TrafficArgs,
    #[command(flatten)]
    settings: RunSettings,
    /// A parameter, or load, size or senders, and its values
    #[arg(long, value_name = "NAME=VALUE,...", required = true)]
    grid: Vec<String>,
    /// Concurrent runs; the number of processors by default
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Append a line of JSON for each run to this file; runs that it contains are skipped
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Point of the grid: names and values of its parameters.
type GridPoint = Vec<(String, String)>;

pub(crate) fn run(args: &FabricSweepArgs, json: bool) -> Result<Code, CommandFailure> {
    let (name, network) = args.network.network()?;
    let points = grid(&args.grid)?;
    let base = args.settings.parameters()?;
    // Reject invalid points before any run.
    for point in &points {
        args.prepare(&network, &base, point)?;
    }
    let done = args.out.as_deref().map(finished).transpose()?.unwrap_or_default();
    let open: Vec<&GridPoint> = points
        .iter()
        .filter(|point| !done.iter().any(|row| row["point"] == json!(object(point))))
        .collect();
    if open.len() < points.len() {
        say(format!("{} of {} runs are there already", points.len() - open.len(), points.len()));
    }
    let rows = args.runs(&name, &network, &base, &open)?;
    let all = || done.iter().chain(&rows);
    if json {
        crate::json::print(&SweepJson { rows: all().cloned().collect() })?;
    } else {
        show::print(&text(&points, &all().collect::<Vec<_>>()))?;
    }
    let is_whole = rows.iter().all(|row| row["flows_unfinished"] == 0 && row["flows_failed"] == 0);
    Ok(if is_whole { Code::Done } else { Code::Partial })
}

impl FabricSweepArgs {
    fn prepare(
        &self,
        network: &FabricNetwork,
        base: &Parameters,
        point: &GridPoint,
    ) -> Result<Simulation, CommandFailure> {
        let mut parameters = base.clone();
        let mut traffic = self.traffic.clone();
        for (name, value) in point {
            if !traffic.set(name, value)? {
                parameters.set(name, value).or_exit(Code::Usage)?;
            }
        }
        let flows = traffic.flows(network, None, parameters.seed)?;
        Simulation::new(network.clone(), parameters, flows).or_exit(Code::Usage)
    }

    /// Runs points on several threads, and writes their rows in order.
    fn runs(
        &self,
        name: &str,
        network: &FabricNetwork,
        base: &Parameters,
        open: &[&GridPoint],
    ) -> Result<Vec<Value>, CommandFailure> {
        let jobs =
            self.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let next = AtomicUsize::new(0);
        let kept_rows = Mutex::new(RowWriter::new(self.out.as_deref())?);
        let failures: Mutex<Vec<CommandFailure>> = Mutex::new(Vec::new());
        let shown = SweepProgress {
            progress: Mutex::new(ProgressLine::begin()),
            done: AtomicUsize::new(0),
            all: open.len(),
        };
        shown.draw();
        thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, open.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(point) = open.get(at) else { break };
                        let row = self.one(name, network, base, point, &shown);
                        shown.done.fetch_add(1, Ordering::Relaxed);
                        let added = row.and_then(|row| {
                            let mut rows =
                                kept_rows.lock().map_err(|_| anyhow!("a run panicked"))?;
                            rows.add(at, row)
                        });
                        if let Err(failure) = added {
                            if let Ok(mut failures) = failures.lock() {
                                failures.push(failure);
                            }
                            next.store(open.len(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        if let Some(failure) = failures.into_inner().ok().and_then(|mut all| all.pop()) {
            return Err(failure);
        }
        Ok(kept_rows.into_inner().map_err(|_| anyhow!("a run panicked"))?.done)
    }

    fn one(
        &self,
        name: &str,
        network: &FabricNetwork,
        base: &Parameters,
        point: &GridPoint,
        shown: &SweepProgress,
    ) -> Result<Value, CommandFailure> {
        let mut simulation = self.prepare(network, base, point)?;
        while simulation.run(self.settings.until_ps(), EVENTS_PER_SLICE) == RunProgress::Running {
            shown.draw();
        }
        simulation.audit().map_err(|fault| {
            anyhow!("the simulator miscounted, which is a fault of it: {fault}")
        })?;
        let row = SweepRow {
            network: name.to_owned(),
            point: object(point),
            summary: kept(&simulation),
            dropped: simulation.counts().dropped,
            digest: format!("{:016x}", simulation.digest()),
        };
        Ok(json!(row))
    }
}

/// Progress of a sweep on a terminal.
struct SweepProgress {
    progress: Mutex<ProgressLine>,
    done: AtomicUsize,
    all: usize,
}

impl SweepProgress {
    fn draw(&self) {
        if let Ok(mut progress) = self.progress.try_lock() {
            let done = self.done.load(Ordering::Relaxed);
            progress.update(|| format!("{done} of {} runs done", self.all));
        }
    }
}

/// Writes rows in grid order; buffers rows that wait for earlier ones.
struct RowWriter {
    file: Option<fs::File>,
    waiting: BTreeMap<usize, Value>,
    done: Vec<Value>,
}

impl RowWriter {
    fn new(out: Option<&Path>) -> Result<Self, CommandFailure> {
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
        let file = out
            .map(|path| open(path).with_context(|| format!("cannot write {}", path.display())))
            .transpose()?;
        Ok(Self { file, waiting: BTreeMap::new(), done: Vec::new() })
    }

    fn add(&mut self, at: usize, row: Value) -> Result<(), CommandFailure> {
        self.waiting.insert(at, row);
        while let Some(row) = self.waiting.remove(&self.done.len()) {
            if let Some(file) = &mut self.file {
                file.write_all(format!("{row}\n").as_bytes()).context("cannot write a row")?;
            }
            self.done.push(row);
        }
        Ok(())
    }
}

fn object(point: &GridPoint) -> BTreeMap<String, String> {
    point.iter().cloned().collect()
}

/// All combinations; the last name changes fastest.
fn grid(texts: &[String]) -> Result<Vec<GridPoint>, CommandFailure> {
    let usage = |text: String| CommandFailure::new(Code::Usage, anyhow!(text));
    let mut points: Vec<GridPoint> = vec![Vec::new()];
    for text in texts {
        let Some((name, values)) = text.split_once('=') else {
            return Err(usage(format!(
                "--grid {text}: write NAME=VALUE,VALUE, such as cc=hpcc,dctcp"
            )));
        };
        let values: Vec<&str> =
            values.split(',').map(str::trim).filter(|value| !value.is_empty()).collect();
        if points.len() * values.len() > RUNS_MAX {
            return Err(usage(format!("that is more than {RUNS_MAX} runs")));
        }
        let with = |point: &GridPoint, value: &str| {
            let mut point = point.clone();
            point.push((name.trim().to_owned(), value.to_owned()));
            point
        };
        points = points
            .iter()
            .flat_map(|point| values.iter().map(|value| with(point, value)).collect::<Vec<_>>())
            .collect();
    }
    if points.is_empty() {
        return Err(usage("--grid has a name without values".to_owned()));
    }
    Ok(points)
}

/// Reads the rows of a file and truncates an incomplete last line.
fn finished(path: &Path) -> Result<Vec<Value>, CommandFailure> {
    // Devices and pipes may have no end.
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        let error = anyhow!(
            "--out {}: no regular file, and a sweep reads the rows that it has",
            path.display()
        );
        return Err(error).or_exit(Code::Usage);
    }
    let Ok(text) = fs::read_to_string(path) else { return Ok(Vec::new()) };
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    if whole < text.len() {
        fs::write(path, &text[..whole])
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut rows = Vec::new();
    for (number, line) in text[..whole].lines().enumerate() {
        let row = serde_json::from_str(line).map_err(|error| {
            anyhow!("{}:{}: no row of a sweep: {error}", path.display(), number + 1)
        });
        rows.push(row.or_exit(Code::Usage)?);
    }
    Ok(rows)
}

fn text(points: &[GridPoint], rows: &[&Value]) -> String {
    let names: Vec<&str> = points[0].iter().map(|(name, _)| name.as_str()).collect();
    let mut heads: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    heads.extend(
        [
            "Gb/s",
            "fct p50 us",
            "fct p99 us",
            "slowdown p99",
            "fairness",
            "pauses",
            "queue max kB",
            "dropped",
        ]
        .map(str::to_owned),
    );
    let mut cells = vec![heads];
    let number = |value: &Value, scale: f64| match value.as_f64() {
        Some(number) => format!("{:.3}", number * scale),
        None => "-".to_owned(),
    };
    for row in rows {
        let mut line: Vec<String> = names
            .iter()
            .map(|name| row["point"][*name].as_str().unwrap_or("-").to_owned())
            .collect();
        line.extend([
            number(&row["goodput_bits_per_second"], 1e-9),
            number(&row["completion_seconds"]["p50"], 1e6),
            number(&row["completion_seconds"]["p99"], 1e6),
            number(&row["slowdown"]["p99"], 1.0),
            number(&row["fairness"], 1.0),
            row["pauses"].to_string(),
            number(&row["queue_bytes_max"], 1e-3),
            row["dropped"].to_string(),
        ]);
        cells.push(line);
    }
    table(&cells)
}
