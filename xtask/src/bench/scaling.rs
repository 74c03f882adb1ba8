//! `cargo xtask bench scaling`: rates and processor time by the count of streams or threads.
//!
//! Each row does the same work with 1, 2, 4, … streams or threads, all counts in turn, so that drift of the machine affects
//! all alike. Both ends are on this machine, connected by loopback, and files are in memory that was touched before: what is
//! measured is processors and memory, not drives. Copies in memory show what the memory of the machine gives.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use super::contest::{Contestant, RunSample, median};
use super::meters::{NetTest, Tester};
use super::movers::{RecipeFolders, copy_penstock, find_program, serve_penstock};
use super::process::{Server, check_interrupt, free_port, interrupt_flag, run_client};
use super::telemetry::scaling::{CollectorScaling, SENDERS_MAX};
use super::work::{BenchDataset, Work};
use super::{INSIDE, enter_namespace, machine, reference, succeed};
use crate::workspace_root;

const COPY_LIMIT: Duration = Duration::from_secs(180);
/// Memory that each thread copies: more than its share of any cache.
const COPIED_BYTES: usize = 256 << 20;
/// Ports of the simulated fat-tree's switches, simulated milliseconds, congestion control.
const FABRIC_CASE: [&str; 3] = ["16", "1", "dcqcn"];

/// Options of `cargo xtask bench scaling`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Rows to measure, separated by commas; all by default.
    #[arg(long, value_delimiter = ',', value_enum)]
    rows: Vec<ScalingTable>,
    /// Counts of streams; threads have those of them that the machine has processors for.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    counts: Vec<u32>,
    /// Measured runs for each count.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Seconds of a run that has no other end.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Size of the copied file in GiB; memory must hold it twice.
    #[arg(long, default_value_t = 4)]
    gib: u64,
    /// Working folder, in memory; removed at the end.
    #[arg(long, default_value = "/dev/shm/penstock-scaling")]
    dir: PathBuf,
    /// Folder with `penstock`, `decode_speed` and `speed`, instead of building them.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Folder for the results.
    #[arg(long)]
    results: Option<PathBuf>,
}

/// One table of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScalingTable {
    /// Copies within memory: the limit of the machine.
    Memory,
    /// `penstock nettest`, beside a loop in C and iperf3.
    Nettest,
    /// `penstock cp` from memory to memory, checked and encrypted.
    Copy,
    /// The collector, from UDP.
    Collector,
    /// The collector's decoding and sums, without sockets.
    Intake,
    /// The fabric simulator.
    Fabric,
}

/// Work that can be done with any count of streams or threads.
struct ScaledWork<'a> {
    table: ScalingTable,
    name: String,
    /// Divides what [`RunSample::bytes`] counts into the unit of the rate.
    unit: (&'static str, f64),
    run: Box<dyn FnMut(u32) -> Result<RunSample> + 'a>,
}

/// The runs of one work with one count.
#[derive(Debug, Clone, Serialize)]
struct ScalingPoint {
    count: u32,
    samples: Vec<RunSample>,
    failure: Option<String>,
}

/// The runs of one work with all counts.
#[derive(Debug, Clone, Serialize)]
struct ScalingSeries {
    name: String,
    unit: &'static str,
    points: Vec<ScalingPoint>,
    #[serde(skip)]
    per_unit: f64,
}

const GIGABIT_UNIT: (&str, f64) = ("Gb/s", 0.125e9);

/// Measures the selected rows and writes the results.
///
/// # Errors
/// When a program cannot be built or found, or the results cannot be written.
pub fn run(options: &Options) -> Result<()> {
    ensure!(options.runs > 0 && options.seconds > 0, "--runs and --seconds must be at least 1");
    ensure!(
        !options.counts.is_empty() && options.counts.iter().all(|count| *count > 0),
        "--counts must be at least 1 each"
    );
    let root = workspace_root();
    if std::env::var_os(INSIDE).is_none() {
        if options.programs.is_none() {
            build(&root)?;
        }
        return Err(enter_namespace());
    }
    let stop = interrupt_flag()?;
    let work = Rc::new(Work::new(&std::path::absolute(&options.dir)?)?);
    let place = programs(&root, options.programs.as_deref())?;
    let mut series = Vec::new();
    for table in ScalingTable::value_variants() {
        if options.rows.is_empty() || options.rows.contains(table) {
            let works = works(*table, options, &place, &work, &stop)?;
            series.extend(alternate_counts(works, options, &stop)?);
        }
    }
    let facts = machine::facts(&root, &work.root)?;
    let page = page(&facts, &series, options);
    println!("{page}");
    let folder = options.results.clone().unwrap_or_else(|| root.join("bench/results"));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let stem = folder.join(format!("scaling-{}-{}", facts.date, facts.words()));
    let stem = stem.display();
    std::fs::write(format!("{stem}.md"), page)
        .with_context(|| format!("cannot write {stem}.md"))?;
    let object = json!({ "machine": facts, "series": series });
    std::fs::write(format!("{stem}.json"), format!("{object:#}\n"))?;
    Ok(())
}

fn build(root: &Path) -> Result<()> {
    for arguments in [
        &["-p", "penstock"][..],
        &["-p", "penstock-flows", "--example", "decode_speed"],
        &["-p", "penstock-fabric", "--example", "speed"],
    ] {
        let mut command = Command::new("cargo");
        command.args(["build", "--release", "--locked"]).args(arguments).current_dir(root);
        succeed(&mut command, "mend the build, or name a folder with --programs")?;
    }
    Ok(())
}

/// Paths of our programs.
struct ScaledPrograms {
    penstock: PathBuf,
    decode: PathBuf,
    fabric: PathBuf,
}

fn programs(root: &Path, folder: Option<&Path>) -> Result<ScaledPrograms> {
    let found = match folder {
        Some(folder) => {
            let folder = std::path::absolute(folder)?;
            ScaledPrograms {
                penstock: folder.join("penstock"),
                decode: folder.join("decode_speed"),
                fabric: folder.join("speed"),
            }
        }
        None => {
            let folder = root.join("target/release");
            ScaledPrograms {
                penstock: folder.join("penstock"),
                decode: folder.join("examples/decode_speed"),
                fabric: folder.join("examples/speed"),
            }
        }
    };
    for program in [&found.penstock, &found.decode, &found.fabric] {
        ensure!(program.is_file(), "no program at {}", program.display());
    }
    Ok(found)
}

fn works<'a>(
    table: ScalingTable,
    options: &'a Options,
    programs: &'a ScaledPrograms,
    work: &Rc<Work>,
    stop: &'a Arc<AtomicBool>,
) -> Result<Vec<ScaledWork<'a>>> {
    let time = Duration::from_secs(options.seconds);
    let one = |name: &str, unit, run: Box<dyn FnMut(u32) -> Result<RunSample> + 'a>| ScaledWork {
        table,
        name: name.to_owned(),
        unit,
        run,
    };
    Ok(match table {
        ScalingTable::Memory => {
            vec![one(
                "copies in memory, threads",
                ("GB/s", 1e9),
                Box::new(move |count| memory(count, time)),
            )]
        }
        ScalingTable::Nettest => {
            let mut testers = vec![
                Tester::Penstock(programs.penstock.clone()),
                Tester::Reference(reference::build(work, "nettest.c")?),
            ];
            testers.extend(find_program("iperf3").map(|_| Tester::Iperf { zero_copy: false }));
            let test = |tester| {
                let mut test = NetTest {
                    tester,
                    udp: false,
                    streams: 1,
                    seconds: options.seconds,
                    work: Rc::clone(work),
                    server: None,
                    stop: Arc::clone(stop),
                    note: None,
                };
                let name = format!("{}, streams", test.name());
                let run = move |count| {
                    test.streams = count;
                    test.run(false)
                };
                one(&name, GIGABIT_UNIT, Box::new(run))
            };
            testers.into_iter().map(test).collect()
        }
        ScalingTable::Copy => {
            let data = work.make_file("scaling.bin", options.gib << 30)?;
            ["integrity", "full"]
                .map(|protect| {
                    let mut copy = ScaledCopy {
                        protect,
                        data: data.clone(),
                        folders: RecipeFolders {
                            destination: work.destination(),
                            configuration: work.configuration(),
                            penstock: programs.penstock.clone(),
                        },
                        work: Rc::clone(work),
                        server: None,
                        stop: Arc::clone(stop),
                    };
                    let name = format!("penstock cp --protect {protect}, streams");
                    one(&name, GIGABIT_UNIT, Box::new(move |count| copy.run(count)))
                })
                .into()
        }
        ScalingTable::Collector => {
            let most = thread_counts(table, options)?.into_iter().max().unwrap_or(1);
            let mut collector = CollectorScaling::new(&programs.penstock, most as usize, time)?;
            vec![one(
                "penstock serve, the collector, receiving threads",
                ("M samples/s", 1e6),
                Box::new(move |count| collector.run(count as usize)),
            )]
        }
        ScalingTable::Intake => vec![one(
            "decoding and sums, threads",
            ("M samples/s", 1e6),
            Box::new(|count| intake(&programs.decode, count, options.seconds)),
        )],
        ScalingTable::Fabric => vec![one(
            "simulated fat-tree of 16 ports, threads",
            ("M hops/s", 1e6),
            Box::new(|count| fabric(&programs.fabric, count)),
        )],
    })
}

/// Counts that a table is measured with: streams as asked, threads up to the processors that are there. The collector's
/// senders need as many processors as its threads.
fn thread_counts(table: ScalingTable, options: &Options) -> Result<Vec<u32>> {
    let processors = std::thread::available_parallelism()?.get();
    let most = match table {
        ScalingTable::Nettest | ScalingTable::Copy => u32::MAX as usize,
        ScalingTable::Memory | ScalingTable::Intake | ScalingTable::Fabric => processors,
        ScalingTable::Collector => (processors / 2).clamp(1, SENDERS_MAX),
    };
    Ok(options.counts.iter().copied().filter(|count| *count as usize <= most).collect())
}

/// Runs all works with all counts in turn. The largest count runs once before, unmeasured: it touches memory.
fn alternate_counts(
    mut works: Vec<ScaledWork<'_>>,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Vec<ScalingSeries>> {
    let Some(table) = works.first().map(|work| work.table) else { return Ok(Vec::new()) };
    let counts = thread_counts(table, options)?;
    let point = |count: &u32| ScalingPoint { count: *count, samples: Vec::new(), failure: None };
    let mut all: Vec<_> = works
        .iter()
        .map(|work| ScalingSeries {
            name: work.name.clone(),
            unit: work.unit.0,
            points: counts.iter().map(point).collect(),
            per_unit: work.unit.1,
        })
        .collect();
    for (work, series) in works.iter_mut().zip(&mut all) {
        let Some(point) = series.points.last_mut() else { continue };
        point.failure = (work.run)(point.count).err().map(|error| format!("{error:#}"));
    }
    for round in 1..=options.runs {
        for at in 0..counts.len() {
            for (work, series) in works.iter_mut().zip(&mut all) {
                check_interrupt(stop)?;
                let point = &mut series.points[at];
                match (work.run)(point.count) {
                    Ok(sample) => {
                        let rate = sample.bytes / sample.seconds / work.unit.1;
                        let (name, unit) = (&work.name, work.unit.0);
                        eprintln!("  run {round} {name}: {}: {rate:.2} {unit}", point.count);
                        point.samples.push(sample);
                    }
                    Err(error) => point.failure = Some(format!("{error:#}")),
                }
            }
        }
    }
    Ok(all)
}

/// Copies within memory on `count` threads, each with buffers of its own, touched before.
fn memory(count: u32, time: Duration) -> Result<RunSample> {
    let thread = |start: &std::sync::Barrier| {
        let (from, mut to) = (vec![1_u8; COPIED_BYTES], vec![2_u8; COPIED_BYTES]);
        start.wait();
        let (begun, mut bytes) = (Instant::now(), 0.0);
        while begun.elapsed() < time {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
            bytes += COPIED_BYTES as f64;
        }
        bytes / begun.elapsed().as_secs_f64()
    };
    let start = std::sync::Barrier::new(count as usize);
    let rates = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| thread(&start))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|rate| rate.map_err(|_| anyhow!("a thread failed"))).sum::<Result<f64>>()
    })?;
    let seconds = time.as_secs_f64();
    Ok(RunSample {
        seconds,
        bytes: rates * seconds,
        cpu_seconds: Some(seconds * f64::from(count)),
        ..RunSample::default()
    })
}

/// `penstock cp` of a file in memory to an agent that stores it in memory.
struct ScaledCopy {
    protect: &'static str,
    data: BenchDataset,
    folders: RecipeFolders,
    work: Rc<Work>,
    server: Option<(Server, u16)>,
    stop: Arc<AtomicBool>,
}

impl ScaledCopy {
    fn run(&mut self, streams: u32) -> Result<RunSample> {
        let log = self.work.log(&format!("cp {}", self.protect));
        if self.server.is_none() {
            let port = free_port()?;
            let command = serve_penstock(&self.folders, port)?;
            self.server =
                Some((Server::start(command, port, &log.with_extension("server"))?, port));
        }
        let Some((server, port)) = &self.server else { bail!("no server") };
        self.work.reset_kept_cache()?;
        let mut command = copy_penstock(&self.folders, *port, &self.data, self.protect);
        command.args(["--streams", &streams.to_string()]);
        let cost = run_client(command, Some(server), COPY_LIMIT, &log, &self.stop)?;
        self.work.check_delivered(&self.data)?;
        Ok(RunSample {
            seconds: cost.wall.as_secs_f64(),
            bytes: self.data.bytes as f64,
            cpu_seconds: Some(cost.cpu_seconds),
            client_peak_bytes: cost.client_peak_bytes,
            server_peak_bytes: cost.server_peak_bytes,
            ..RunSample::default()
        })
    }
}

/// Reads `… N M samples per CPU second, N M samples/s` of the example.
fn intake(program: &Path, threads: u32, seconds: u64) -> Result<RunSample> {
    let name = format!("intake, {threads} threads");
    let output = Command::new(program).args([&seconds.to_string(), &name]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with(&name));
    let line = line.with_context(|| format!("{} has no row {name:?}", program.display()))?;
    let figures: Vec<f64> =
        line[name.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [per_cpu_second, per_second] = figures[..] else { bail!("cannot read {line:?}") };
    let seconds = seconds as f64;
    Ok(RunSample {
        seconds,
        bytes: per_second * 1e6 * seconds,
        cpu_seconds: Some(per_second * seconds / per_cpu_second),
        ..RunSample::default()
    })
}

fn fabric(program: &Path, threads: u32) -> Result<RunSample> {
    let before = machine::children_seconds();
    let output = Command::new(program).args(FABRIC_CASE).arg(threads.to_string()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cpu_seconds = machine::children_seconds() - before;
    let row: Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| row[name].as_f64().with_context(|| format!("no {name}"));
    Ok(RunSample {
        seconds: number("wall_seconds")?,
        bytes: number("hops")?,
        cpu_seconds: Some(cpu_seconds),
        ..RunSample::default()
    })
}

fn page(facts: &machine::MachineFacts, all: &[ScalingSeries], options: &Options) -> String {
    let mut page = format!(
        "# Scaling by streams and threads, measured {}\n\n`cargo xtask bench scaling` at commit {}.\n\n\
         Machine: {}, {} processors, {} GiB memory, {} NUMA node(s), kernel {}, congestion control {}, loopback MTU {}, load at \
         the end {}.\n\n\
         All counts take turns, {} runs each, medians (least to most). Both ends run on this machine, over loopback; files of {} \
         GiB are in memory. *By one* is the rate divided by that of one stream or thread; *processors* are those in use, of both \
         ends together; *per processor second* relates the rate to them.\n",
        facts.date,
        facts.commit,
        facts.cpu,
        facts.cores,
        facts.memory_gib,
        machine::numa_nodes(),
        facts.kernel,
        facts.congestion_control,
        facts.loopback_mtu,
        facts.load_at_end,
        options.runs,
        options.gib
    );
    for series in all {
        page += &table(series);
    }
    page
}

fn table(series: &ScalingSeries) -> String {
    let unit = series.unit;
    let mut text = format!(
        "\n## {}\n\n| count | {unit} | by one | processors | {unit} per processor | by one |\n|---|---|---|---|---|---|\n",
        series.name
    );
    let rate = |sample: &RunSample| sample.bytes / sample.seconds / series.per_unit;
    let share = |sample: &RunSample| sample.cpu_seconds.unwrap_or(f64::NAN) / sample.seconds;
    let of = |point: &ScalingPoint, value: &dyn Fn(&RunSample) -> f64| {
        median(point.samples.iter().map(value))
    };
    let per_processor = |sample: &RunSample| rate(sample) / share(sample);
    let first = series.points.first();
    let first_rate = first.and_then(|point| of(point, &rate));
    let first_efficiency = first.and_then(|point| of(point, &per_processor));
    for point in &series.points {
        let (Some(middle), Some(processors), Some(efficiency)) =
            (of(point, &rate), of(point, &share), of(point, &per_processor))
        else {
            let reason = point.failure.as_deref().unwrap_or("no run");
            let _ = writeln!(text, "| {} | {} | | | | |", point.count, reason.replace('|', "/"));
            continue;
        };
        let rates = point.samples.iter().map(rate);
        let (least, most) = (rates.clone().fold(f64::MAX, f64::min), rates.fold(0.0, f64::max));
        let _ = writeln!(
            text,
            "| {} | {middle:.2} ({least:.2} to {most:.2}) | {:.2} | {processors:.2} | {efficiency:.2} | {:.2} |",
            point.count,
            middle / first_rate.unwrap_or(f64::NAN),
            efficiency / first_efficiency.unwrap_or(f64::NAN),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_relates_to_one_stream() {
        let sample = |bytes| RunSample {
            seconds: 2.0,
            bytes,
            cpu_seconds: Some(4.0),
            ..RunSample::default()
        };
        let point = |count, bytes: f64| ScalingPoint {
            count,
            samples: vec![sample(bytes), sample(3.0 * bytes), sample(2.0 * bytes)],
            failure: None,
        };
        let failed =
            ScalingPoint { count: 4, samples: Vec::new(), failure: Some("a|b".to_owned()) };
        let text = table(&ScalingSeries {
            name: "work, threads".to_owned(),
            unit: "GB/s",
            points: vec![point(1, 1e9), point(2, 1.5e9), failed],
            per_unit: 1e9,
        });
        assert!(text.contains("| 1 | 1.00 (0.50 to 1.50) | 1.00 | 2.00 | 0.50 | 1.00 |"), "{text}");
        assert!(text.contains("| 2 | 1.50 (0.75 to 2.25) | 1.50 | 2.00 | 0.75 | 1.50 |"), "{text}");
        assert!(text.contains("| 4 | a/b |"), "{text}");
    }

    #[test]
    fn memory_is_copied_by_threads() {
        let sample = memory(2, Duration::from_millis(1)).unwrap();
        assert!(sample.bytes > 0.0);
    }
}
