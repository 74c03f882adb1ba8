//! Rows of a comparison: which program each runs, and what it measures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::builds::{BenchExample, ComparedBuilds};
use super::verdict::Figure;
use crate::bench::contest::Contestant;
use crate::bench::meters::{NetTest, Tester};
use crate::bench::movers::{RecipeFolders, copy_penstock, serve_penstock};
use crate::bench::process::{Server, check_interrupt, free_port, run_client};
use crate::bench::work::{BenchDataset, Work};

const COPY_BYTES: u64 = 2 << 30;
const COPY_LIMIT: Duration = Duration::from_secs(120);

/// Row of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CompareRow {
    /// `penstock cp` of a file in the page cache, checked but not encrypted.
    CpIntegrity,
    /// The same, encrypted.
    CpEncrypted,
    /// `penstock nettest`, one TCP stream.
    Nettest,
    /// Allocation of rates with several paths and classes, and one changed demand.
    Allocation,
    /// Decoding, labelling and aggregation of flow samples.
    Decode,
    /// The fabric simulator.
    Fabric,
}

/// Name of a figure, whether it is a rate, and its tolerance.
type FigureKind = (&'static str, bool, f64);

/// Settings that the sides of every row share.
pub(super) struct RowSettings {
    pub(super) short: bool,
    pub(super) work: Rc<Work>,
    pub(super) stop: Arc<AtomicBool>,
}

impl CompareRow {
    pub(super) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::CpIntegrity => "cp-integrity",
            Self::CpEncrypted => "cp-encrypted",
            Self::Nettest => "nettest",
            Self::Allocation => "allocation",
            Self::Decode => "decode",
            Self::Fabric => "fabric",
        }
    }

    /// The example that measures the row, if it is not the binary.
    pub(super) const fn example(self) -> Option<BenchExample> {
        let (package, folder, name) = match self {
            Self::CpIntegrity | Self::CpEncrypted | Self::Nettest => return None,
            Self::Allocation => ("penstock-allocation", "core/allocation", "allocation_speed"),
            Self::Decode => ("penstock-flows", "core/flows", "decode_speed"),
            Self::Fabric => ("penstock-fabric", "core/fabric", "speed"),
        };
        Some(BenchExample { package, folder, name })
    }

    /// Name of the program that the row runs.
    pub(super) const fn program(self) -> &'static str {
        match self.example() {
            Some(example) => example.name,
            None => "penstock",
        }
    }

    /// Figures of a run. The tolerances are above what two builds of one commit differ by.
    const fn figures(self) -> &'static [FigureKind] {
        match self {
            Self::CpIntegrity | Self::CpEncrypted => &[("CPU s/GB, both ends", false, 0.03)],
            Self::Nettest => &[("CPU s/GB, both ends", false, 0.05), ("Gb/s", true, 0.05)],
            Self::Allocation => {
                &[("CPU ms, ten classes", false, 0.03), ("CPU ms, a change", false, 0.03)]
            }
            Self::Decode => &[("CPU ns a sample", false, 0.03)],
            Self::Fabric => &[("CPU ns a packet hop", false, 0.03)],
        }
    }
}

/// Both sides of a row, ready to run.
pub(super) struct RowMeasurement {
    row: CompareRow,
    /// Before and now.
    sides: [SideRun; 2],
    stop: Arc<AtomicBool>,
}

/// One side of a row.
enum SideRun {
    Copy(CopyRun),
    Nettest(NetTest),
    Example { row: CompareRow, program: PathBuf, short: bool },
}

impl RowMeasurement {
    pub(super) fn start(
        row: CompareRow,
        builds: &ComparedBuilds,
        settings: &RowSettings,
    ) -> Result<Self> {
        let [before, now] = builds.programs(row)?;
        let sides = match row {
            CompareRow::CpIntegrity | CompareRow::CpEncrypted => {
                let data = settings.work.make_file("source.bin", COPY_BYTES)?;
                let protect = if row == CompareRow::CpEncrypted { "full" } else { "integrity" };
                [
                    SideRun::Copy(CopyRun::start(before, protect, &data, settings)?),
                    SideRun::Copy(CopyRun::start(now, protect, &data, settings)?),
                ]
            }
            CompareRow::Nettest => {
                let test = |tester| {
                    SideRun::Nettest(NetTest {
                        tester,
                        udp: false,
                        streams: 1,
                        seconds: if settings.short { 2 } else { 4 },
                        work: Rc::clone(&settings.work),
                        server: None,
                        stop: Arc::clone(&settings.stop),
                        note: None,
                    })
                };
                [test(Tester::Baseline(before.into())), test(Tester::Penstock(now.into()))]
            }
            CompareRow::Allocation | CompareRow::Decode | CompareRow::Fabric => {
                [before, now].map(|program| {
                    let program = program.to_owned();
                    SideRun::Example { row, program, short: settings.short }
                })
            }
        };
        Ok(Self { row, sides, stop: Arc::clone(&settings.stop) })
    }

    /// Runs a warm-up and `rounds` rounds.
    pub(super) fn rounds(&mut self, rounds: usize) -> Result<Vec<Figure>> {
        let kinds = self.row.figures();
        let figure = |(name, is_rate, tolerance): &FigureKind| Figure {
            row: self.row.name(),
            name,
            is_rate: *is_rate,
            tolerance: *tolerance,
            pairs: Vec::new(),
            is_acquitted: false,
        };
        let mut figures: Vec<Figure> = kinds.iter().map(figure).collect();
        for round in 0..=rounds {
            let mut values = [Vec::new(), Vec::new()];
            for turn in [0, 1] {
                check_interrupt(&self.stop)?;
                // The side that runs second may profit or suffer from the first.
                let side = (turn + round) % 2;
                values[side] = self.sides[side]
                    .run()
                    .with_context(|| format!("{}, {}", self.row.name(), ["before", "now"][side]))?;
            }
            let [before, now] = values;
            let progress =
                if round == 0 { "warm-up".to_owned() } else { format!("round {round}/{rounds}") };
            eprintln!("  {} {progress}: before {before:.3?}, now {now:.3?}", self.row.name());
            if round > 0 {
                for (figure, pair) in figures.iter_mut().zip(before.into_iter().zip(now)) {
                    figure.pairs.push(pair.into());
                }
            }
        }
        Ok(figures)
    }
}

impl SideRun {
    /// Runs once; returns a value for each figure of the row.
    fn run(&mut self) -> Result<Vec<f64>> {
        match self {
            Self::Copy(copy) => copy.run(),
            Self::Nettest(test) => {
                let sample = test.run(false)?;
                let cpu = sample.cpu_seconds.context("no processor time")?;
                Ok(vec![cpu / (sample.bytes * 1e-9), sample.bytes * 8e-9 / sample.seconds])
            }
            Self::Example { row, program, short } => run_example(*row, program, *short),
        }
    }
}

/// `penstock cp` into a server of the same build.
struct CopyRun {
    place: RecipeFolders,
    server: Server,
    port: u16,
    protect: &'static str,
    data: BenchDataset,
    work: Rc<Work>,
    stop: Arc<AtomicBool>,
}

impl CopyRun {
    fn start(
        program: &Path,
        protect: &'static str,
        data: &BenchDataset,
        settings: &RowSettings,
    ) -> Result<Self> {
        let work = Rc::clone(&settings.work);
        let place = RecipeFolders {
            destination: work.destination(),
            configuration: work.configuration(),
            penstock: program.to_owned(),
        };
        let port = free_port()?;
        let server = Server::start(
            serve_penstock(&place, port)?,
            port,
            &work.log(&format!("server-{port}")),
        )?;
        let (data, stop) = (data.clone(), Arc::clone(&settings.stop));
        Ok(Self { place, server, port, protect, data, work, stop })
    }

    fn run(&mut self) -> Result<Vec<f64>> {
        self.work.reset_kept_cache()?;
        let command = copy_penstock(&self.place, self.port, &self.data, self.protect);
        let log = self.work.log(&format!("client-{}", self.port));
        let cost = run_client(command, Some(&self.server), COPY_LIMIT, &log, &self.stop)?;
        self.work.check_delivered(&self.data)?;
        Ok(vec![cost.cpu_seconds / (self.data.bytes as f64 * 1e-9)])
    }
}

fn run_example(row: CompareRow, program: &Path, short: bool) -> Result<Vec<f64>> {
    let arguments: &[&str] = match (row, short) {
        (CompareRow::Allocation, true) => &["2000", "200", "3", "2"],
        (CompareRow::Allocation, false) => &["10000", "1000", "3", "2"],
        (CompareRow::Decode, true) => &["0.5", "all, flows of all sizes"],
        (CompareRow::Decode, false) => &["2", "all, flows of all sizes"],
        (_, true) => &["8", "1", "dcqcn", "1"],
        (_, false) => &["8", "4", "dcqcn", "1"],
    };
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {}", program.display(), error.trim());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = || serde_json::from_str::<Value>(&text).context("printed no JSON object");
    match row {
        CompareRow::Allocation => {
            let json = json()?;
            // Wall and processor time of each.
            let milliseconds = |name: &str| Some(json[name][1].as_f64()? * 1e3);
            let both =
                milliseconds("seconds_with_classes").zip(milliseconds("seconds_of_a_change"));
            let (classes, change) = both.context("no times in the JSON")?;
            Ok(vec![classes, change])
        }
        CompareRow::Decode => Ok(vec![1e3 / decode_rate(&text)?]),
        _ => {
            let rate = json()?["hops_per_processor_second"].as_f64();
            Ok(vec![1e9 / rate.context("no rate in the JSON")?])
        }
    }
}

/// Reads millions of samples a second of the best round from a line of `decode_speed`.
fn decode_rate(text: &str) -> Result<f64> {
    let line =
        text.lines().find(|line| line.starts_with("all, ")).context("no line with the rate")?;
    let rate = line.split_whitespace().last().and_then(|word| word.parse().ok());
    rate.filter(|rate| *rate > 0.0).with_context(|| format!("no rate in '{line}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_rate_is_of_best_round() {
        let text =
            "all, flows of all sizes         1.23 M samples/s, best round    1.50\n  12 groups";
        assert_eq!(decode_rate(text).unwrap(), 1.5);
        assert!(decode_rate("records 2.00 M samples/s").is_err());
    }

    #[test]
    fn rows_have_names_of_their_options() {
        for row in CompareRow::all() {
            assert_eq!(row.to_possible_value().unwrap().get_name(), row.name());
        }
    }
}
