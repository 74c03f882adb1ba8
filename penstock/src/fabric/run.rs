//! `penstock fabric run`: one run, or one for each message size of a perftest.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use penstock_fabric::{FabricNetwork, Parameters, RunProgress, Simulation, report, time};
use penstock_units::{display_duration, parse_duration};

use super::failures::FailureArgs;
use super::network::NetworkArgs;
use super::threads::Threads;
use super::timeline::RunTimeline;
use super::traffic::TrafficArgs;
use super::{hpcc, page, show};
use crate::exit::{Code, CommandFailure, OrExit};
use crate::progress::ProgressLine;

/// Events of a thread between two clock reads: some tens of milliseconds.
pub(super) const EVENTS_PER_SLICE: u64 = 300_000;
/// Interval of queue samples, as in the HPCC simulator.
const QUEUE_SAMPLES_PS: u64 = 100 * time::PS_PER_NANOSECOND;

/// Run a workload and print its results
#[derive(Debug, clap::Args)]
pub(crate) struct FabricRunArgs {
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    traffic: TrafficArgs,
    #[command(flatten)]
    settings: RunSettings,
    #[command(flatten)]
    failures: FailureArgs,
    #[command(flatten)]
    threads: Threads,
    /// Take network, flows and parameters from a configuration of the HPCC simulator
    #[arg(long, value_name = "CONFIG")]
    hpcc: Option<PathBuf>,
    /// Write result.json, flows.csv, ports.csv, results.parquet, report.html, fct.txt and pfc.txt here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Options that single runs and sweeps share.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunSettings {
    /// Set a parameter
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// End after this simulated time, even with unfinished flows
    #[arg(long, value_name = "TIME", default_value = "100s", value_parser = parse_duration)]
    until: Duration,
}

impl RunSettings {
    /// # Errors
    /// When a parameter is unknown or its value invalid.
    pub(crate) fn parameters(&self) -> Result<Parameters, CommandFailure> {
        let mut parameters = Parameters::default();
        self.set_in(&mut parameters)?;
        Ok(parameters)
    }

    fn set_in(&self, parameters: &mut Parameters) -> Result<(), CommandFailure> {
        for one in &self.set {
            let (name, value) = one
                .split_once('=')
                .ok_or_else(|| anyhow!("--set {one}: write NAME=VALUE, such as cc=hpcc"))
                .or_exit(Code::Usage)?;
            parameters.set(name.trim(), value.trim()).or_exit(Code::Usage)?;
        }
        Ok(())
    }

    pub(crate) fn until_ps(&self) -> u64 {
        u64::try_from(self.until.as_nanos())
            .unwrap_or(u64::MAX)
            .saturating_mul(time::PS_PER_NANOSECOND)
    }
}

pub(crate) fn run(args: &FabricRunArgs, json: bool) -> Result<Code, CommandFailure> {
    let mut progress = ProgressLine::begin();
    progress.update(|| "reading the network and making its traffic".to_owned());
    let result = run_shown(args, json);
    progress.clear();
    result
}

fn run_shown(args: &FabricRunArgs, json: bool) -> Result<Code, CommandFailure> {
    if let Some(config) = &args.hpcc {
        if !args.network.is_none() {
            let error = anyhow!("--hpcc has its own network: name no other");
            return Err(CommandFailure::new(Code::Usage, error));
        }
        let mut setup = hpcc::read(config)?;
        args.settings.set_in(&mut setup.parameters)?;
        let until_ps = setup.until_ps.min(args.settings.until_ps());
        let regions = args.threads.regions();
        let mut simulation =
            Simulation::divided(setup.network, setup.parameters, setup.flows, regions)
                .or_exit(Code::Usage)?;
        simulation.record_pauses();
        simulation.change(&setup.changes);
        if let Some((from, until)) = setup.queue_times_ns {
            let ps = |ns: u64| ns.saturating_mul(time::PS_PER_NANOSECOND);
            simulation.sample_queues(QUEUE_SAMPLES_PS, ps(from), ps(until).min(until_ps));
        }
        let name = config.display().to_string();
        return finish(&name, simulation, &setup.notes, until_ps, args, json);
    }
    let (name, network) = args.network.network()?;
    let parameters = args.settings.parameters()?;
    if let Some(sizes) = args.traffic.sweep() {
        return perftest(args, &name, &network, &parameters, &sizes, json);
    }
    let flows = args.traffic.flows(&network, None, parameters.seed)?;
    let is_single = args.traffic.workload.perftest();
    let regions = args.threads.regions();
    let mut simulation =
        Simulation::divided(network, parameters, flows, regions).or_exit(Code::Usage)?;
    simulation.change(&args.failures.changes(simulation.network())?);
    if args.out.is_some() {
        simulation.record_pauses();
    }
    if let (Some((_, is_latency)), None) = (is_single, &args.out) {
        let wall = drive(&mut simulation, args.settings.until_ps(), args.threads, None)?;
        let row = show::perftest_row(&simulation, is_latency);
        return show::perftest(&name, &[(simulation, row, wall)], is_latency, args.threads, json);
    }
    finish(&name, simulation, &[], args.settings.until_ps(), args, json)
}

fn perftest(
    args: &FabricRunArgs,
    name: &str,
    network: &FabricNetwork,
    parameters: &Parameters,
    sizes: &[u64],
    json: bool,
) -> Result<Code, CommandFailure> {
    if args.out.is_some() || !args.failures.is_none() {
        let error = anyhow!(
            "--out, --fail, --repair and --storm are for one run, not for --all sizes: leave one of them out"
        );
        return Err(CommandFailure::new(Code::Usage, error));
    }
    let is_latency = args.traffic.workload.perftest().is_some_and(|(_, is_latency)| is_latency);
    let mut rows = Vec::new();
    for size in sizes {
        let flows = args.traffic.flows(network, Some(*size), parameters.seed)?;
        let (network, parameters) = (network.clone(), parameters.clone());
        let mut simulation =
            Simulation::divided(network, parameters, flows, args.threads.regions())
                .or_exit(Code::Usage)?;
        let wall = drive(&mut simulation, args.settings.until_ps(), args.threads, None)?;
        let row = show::perftest_row(&simulation, is_latency);
        rows.push((simulation, row, wall));
    }
    show::perftest(name, &rows, is_latency, args.threads, json)
}

fn finish(
    name: &str,
    mut simulation: Simulation,
    notes: &[String],
    until_ps: u64,
    args: &FabricRunArgs,
    json: bool,
) -> Result<Code, CommandFailure> {
    let mut timeline = args.out.as_ref().map(|_| RunTimeline::new(&simulation));
    let wall = drive(&mut simulation, until_ps, args.threads, timeline.as_mut())?;
    let threads = args.threads.of(&simulation);
    let summary = report::summarise(&simulation);
    let mut object = show::object(name, &simulation, &summary);
    object.warnings.extend(notes.iter().map(ToString::to_string));
    object.threads = threads;
    object.wall_seconds = wall.as_secs_f64();
    object.events_per_second = rate(simulation.counts().events, wall);
    object.hops_per_second = rate(simulation.counts().arrivals, wall);
    object.memory_peak_bytes = memory_peak_bytes();
    if let (Some(folder), Some(timeline)) = (&args.out, &timeline) {
        page::write(folder, name, &simulation, &summary, &object, timeline)?;
    }
    if json {
        crate::json::print(&object)?;
    } else {
        show::print(&show::text(name, &simulation, &summary, wall, threads))?;
    }
    Ok(code(&simulation))
}

/// Peak resident memory of this process, if known.
fn memory_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Exit code: partial success if flows failed or are unfinished.
pub(crate) fn code(simulation: &Simulation) -> Code {
    let all_done = (0..simulation.flows().len())
        .all(|flow| simulation.flow_result(flow).finished_ps.is_some());
    if all_done { Code::Done } else { Code::Partial }
}

pub(crate) fn rate(count: u64, wall: Duration) -> f64 {
    count as f64 / wall.as_secs_f64().max(1e-9)
}

/// Runs to the end, shows progress on a terminal, and returns the elapsed time.
fn drive(
    simulation: &mut Simulation,
    until_ps: u64,
    threads: Threads,
    mut timeline: Option<&mut RunTimeline>,
) -> Result<Duration, CommandFailure> {
    let began = Instant::now();
    let mut progress = ProgressLine::begin();
    let total: u64 = simulation.flows().iter().map(penstock_fabric::FlowSpec::bytes).sum();
    loop {
        progress.update(|| place(simulation, until_ps, total, began.elapsed()));
        let next_ps = timeline.as_ref().map_or(until_ps, |timeline| timeline.next_ps());
        let stop_ps = next_ps.min(until_ps);
        match threads.run(simulation, stop_ps, EVENTS_PER_SLICE) {
            RunProgress::Running => continue,
            // Events may follow the last sample.
            RunProgress::Done if stop_ps < until_ps => {
                while threads.run(simulation, until_ps, EVENTS_PER_SLICE) == RunProgress::Running {}
                break;
            }
            RunProgress::Done => break,
            RunProgress::Stopped if stop_ps == until_ps || simulation.now_ps() < stop_ps => break,
            RunProgress::Stopped => {}
        }
        if let Some(timeline) = &mut timeline {
            timeline.look(simulation);
        }
    }
    if let Some(timeline) = timeline {
        timeline.look(simulation);
    }
    progress.clear();
    let fault = |fault| anyhow!("the simulator miscounted, which is a fault of it: {fault}");
    simulation.audit().map_err(fault)?;
    Ok(began.elapsed())
}

/// Progress of a run in one line.
fn place(simulation: &Simulation, until_ps: u64, total: u64, elapsed: Duration) -> String {
    let by_bytes = simulation.delivered_bytes() as f64 / total.max(1) as f64;
    let done = by_bytes.max(simulation.now_ps() as f64 / until_ps as f64);
    let left = match done {
        done if done > 0.001 => {
            let seconds = (elapsed.as_secs_f64() * (1.0 - done) / done).clamp(0.0, 1e9);
            format!(", {} left", display_duration(Duration::from_secs_f64(seconds)))
        }
        _ => String::new(),
    };
    format!(
        "{:.6} s simulated, {:.1} M events/s, {:.0} %{left}",
        time::seconds(simulation.now_ps()),
        rate(simulation.counts().events, elapsed) / 1e6,
        done * 100.0
    )
}

/// Summary of a run for a sweep.
pub(crate) fn kept(simulation: &Simulation) -> crate::json::fabric::SummaryJson {
    (&report::summarise(simulation)).into()
}
