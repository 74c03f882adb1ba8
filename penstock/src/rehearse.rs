//! `penstock rehearse`: simulates days of a controller in virtual time, with its real configuration.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use penstock_control::scheduler::Planner;
use penstock_controller::config::Config;
use penstock_controller::rehearsal::{StoreController, StoreSize};
use penstock_rehearsal::controller_api::{ControllerApi, ControllerFailure};
use penstock_rehearsal::in_memory::{ClassOutcome, InMemoryConfig, InMemoryController};
use penstock_rehearsal::metrics::{DurationSamples, SimulationMetrics};
use penstock_rehearsal::nodes::{NodeSpec, Nodes};
use penstock_rehearsal::workload::{DAY_S, DayWorkload, RequestArrivals, clock};
use penstock_scitags::Registry;
use penstock_topology::{Node, NodeId};
use penstock_units::{BitRate, ByteCount, parse_duration};
use serde_json::{Value, json};

use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::rehearsal as result;
use crate::table::table;
use crate::topology::text_of;

mod page;

/// Virtual start: Monday, 23 November 2026, 00:00 UTC, in milliseconds since 1970.
const BEGIN_MS: i64 = 1_795_392_000_000;

/// Limit on the virtual time for remaining requests, in days.
const FINISH_DAYS: u32 = 7;

/// Most concurrent transfers of a simulated node.
const NODE_TRANSFERS_MAX: u32 = 16;

/// Rehearse a day of a controller in virtual time: given demand, simulated nodes, real scheduling rounds
#[derive(Debug, clap::Args)]
#[command(after_help = "\
CONFIG is a controller's configuration (docs/controller.md): its topology, classes, batches and times apply. DEMAND lists \
the requests of a day and the faults (docs/controller-reference.md#rehearsals). Every second of the day the simulated nodes report \
and move files at their allotted rates, and the controller runs a scheduling round.

Without --database everything is in memory. With it the controller's own store is used, all but HTTP: sqlite for a new file \
in a temporary directory, else the address of an empty database.

Examples:
  penstock rehearse docs/samples/rehearsal/penstock.toml \\
    docs/samples/rehearsal/demand.toml --finish
  penstock rehearse docs/samples/rehearsal/penstock.toml \\
    docs/samples/rehearsal/demand.toml --output day
  penstock rehearse docs/samples/rehearsal/penstock.toml \\
    docs/samples/rehearsal/demand.toml \\
    --database sqlite --from 13h --for 10m --json")]
pub(crate) struct RehearseArgs {
    /// The controller's configuration
    config: PathBuf,
    /// Demand file: arriving requests and failures
    demand: PathBuf,
    /// Time of day at which it begins, such as 13h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = second)]
    from: u32,
    /// Time in which requests arrive, at most 168h
    #[arg(long = "for", value_name = "TIME", default_value = "24h", value_parser = length)]
    length: u32,
    /// Continue until all requests have ended
    #[arg(long)]
    finish: bool,
    /// Keep ended requests this long, in place of the value in CONFIG
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    keep: Option<Duration>,
    /// Use the controller's store on this database: sqlite, or its URL
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Write report.html and result.json into this folder
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long)]
    json: bool,
}

fn second(text: &str) -> anyhow::Result<u32> {
    let time = parse_duration(text)?;
    u32::try_from(time.as_secs())
        .ok()
        .filter(|second| *second < DAY_S)
        .context("give a time of the day below 24h")
}

fn length(text: &str) -> anyhow::Result<u32> {
    let time = parse_duration(text)?;
    u32::try_from(time.as_secs())
        .ok()
        .filter(|length| (1..=7 * DAY_S).contains(length))
        .context("give a time of 1s to 168h")
}

/// Results of a rehearsal.
struct RehearsalOutcome {
    name: String,
    /// Store of the controller's state.
    kept: String,
    begin: u32,
    /// Virtual seconds in which requests arrived.
    arriving: u32,
    /// Simulated virtual seconds, and elapsed real seconds.
    played: u32,
    wall: Duration,
    asked: (u64, u64),
    moved: (u64, u64),
    /// Seconds from the last arrival to the end of the last request; none without `--finish`.
    finish: Option<u32>,
    open: u64,
    figures: SimulationMetrics,
    /// Real seconds of whole rounds, and of the reports of all nodes.
    rounds: DurationSamples,
    reports: DurationSamples,
    ended: BTreeMap<String, ClassOutcome>,
    held: Option<StoreSize>,
}

pub(crate) fn run(args: &RehearseArgs) -> Result<Code, CommandFailure> {
    let mut config = Config::load(Some(&args.config), Registry::builtin()).or_exit(Code::Usage)?;
    config.keep = args.keep.unwrap_or(config.keep);
    let demand = DayWorkload::read(&text_of(&args.demand)?)
        .map_err(|error| anyhow!("{}: {error}", args.demand.display()))
        .or_exit(Code::Usage)?;
    check(&config, &demand, &args.demand).or_exit(Code::Usage)?;
    let mut outcome = match &args.database {
        None => {
            let mut controller = InMemoryController::new(InMemoryConfig {
                batch: config.batch,
                silence: config.silence_limits(),
                lease_seconds: config.lease_seconds,
            });
            let mut outcome = play(args, &config, demand, &mut controller)?;
            outcome.ended = controller.ended().clone();
            outcome
        }
        Some(url) => {
            let directory = tempfile::tempdir().context("cannot make a directory")?;
            let url = match url.as_str() {
                "sqlite" => {
                    format!("sqlite://{}/controller.db?mode=rwc", directory.path().display())
                }
                other => other.to_owned(),
            };
            let mut store =
                StoreController::open(config.clone(), &url).map_err(|error| anyhow!("{error}"))?;
            let mut outcome = play(args, &config, demand, &mut store)?;
            outcome.kept = url.split(':').next().unwrap_or_default().to_owned();
            outcome.held = Some(store.held().map_err(|error| anyhow!("{error}"))?);
            outcome
        }
    };
    let object = json!(object(&mut outcome));
    if let Some(folder) = &args.output {
        let cannot = || format!("cannot write into {}", folder.display());
        std::fs::create_dir_all(folder).with_context(cannot)?;
        let page = page::page(&object, &mut outcome);
        std::fs::write(folder.join("report.html"), page).with_context(cannot)?;
        std::fs::write(folder.join("result.json"), format!("{object:#}\n")).with_context(cannot)?;
    }
    let text = if args.json { format!("{object}\n") } else { shown(&object) };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Code::Done)
}

/// Checks that names in the demand exist in the configuration.
fn check(config: &Config, demand: &DayWorkload, file: &Path) -> Result<(), anyhow::Error> {
    let topology = &config.topology;
    let unknown = |what: &str, name: &str| {
        anyhow!("{}: the configuration has no {what} '{}'", file.display(), name.escape_debug())
    };
    for site in &demand.sites {
        if !config.is_site(&site.name) {
            return Err(unknown("site", &site.name));
        }
    }
    for flow in &demand.flows {
        if config.class(&flow.class).is_none() {
            return Err(unknown("class", &flow.class));
        }
    }
    for failure in &demand.failures {
        if let Some(name) = failure.host.as_ref().filter(|name| !config.is_host(name)) {
            return Err(unknown("host", name));
        }
        let is_link = |name: &str| topology.links.iter().any(|link| link.name == name);
        if let Some(name) = failure.link.as_ref().filter(|name| !is_link(name)) {
            return Err(unknown("link", name));
        }
    }
    Ok(())
}

/// Every host of the topology with the rate of its first interface, else of its link.
fn specs(config: &Config) -> Vec<NodeSpec> {
    let topology = &config.topology;
    let spec = |(id, node): (NodeId, &Node)| {
        let interface = node.interfaces.first()?;
        let at = topology.links.iter().filter(|link| link.ends.iter().any(|end| end.node == id));
        let fastest = || at.map(|link| link.rate).max();
        Some(NodeSpec {
            name: node.name.clone(),
            interface: interface.name.clone(),
            rate_bps: interface.rate.or_else(fastest)?.0,
            transfers: NODE_TRANSFERS_MAX,
        })
    };
    topology.hosts().filter_map(spec).collect()
}

fn play(
    args: &RehearseArgs,
    config: &Config,
    demand: DayWorkload,
    controller: &mut dyn ControllerApi,
) -> Result<RehearsalOutcome, CommandFailure> {
    let failed = |error: ControllerFailure| {
        CommandFailure::from(anyhow!("the controller's store failed: {error}"))
    };
    let planner = Planner::new(config.topology.clone(), config.classes.clone(), config.rules);
    let mut nodes = Nodes::new(specs(config), demand.faults_permille);
    let mut arrivals = RequestArrivals::new(demand.clone(), args.from);
    let mut outcome = RehearsalOutcome {
        name: demand.name.clone(),
        kept: "memory".to_owned(),
        begin: args.from,
        arriving: args.length,
        played: 0,
        wall: Duration::ZERO,
        asked: (0, 0),
        moved: (0, 0),
        finish: None,
        open: 0,
        figures: SimulationMetrics::new(&config.classes),
        rounds: DurationSamples::default(),
        reports: DurationSamples::default(),
        ended: BTreeMap::new(),
        held: None,
    };
    let begun = Instant::now();
    let arriving = args.length;
    let end = if args.finish { arriving + FINISH_DAYS * DAY_S } else { arriving };
    let mut down: Vec<String> = Vec::new();
    let mut progress = crate::progress::ProgressLine::begin();
    for played in 0..end {
        let second = args.from + played;
        let now_ms = BEGIN_MS + i64::from(second) * 1000;
        if played >= arriving && controller.open().map_err(failed)? == 0 {
            outcome.finish = Some(played - arriving);
            break;
        }
        progress.update(|| match played.checked_sub(arriving) {
            None => format!(
                "{} of the rehearsal, {:.0} % of {} s, {} files in place",
                clock(second),
                f64::from(played) / f64::from(arriving) * 100.0,
                arriving,
                nodes.moved.1
            ),
            Some(late) => {
                format!("{late} s after the last request, {} files in place", nodes.moved.1)
            }
        });
        let (links, hosts) = demand.down(second);
        nodes.set_down(&hosts);
        for name in links.iter().filter(|name| !down.iter().any(|one| one == *name)) {
            controller.link(now_ms, name, true).map_err(failed)?;
        }
        for name in down.iter().filter(|name| !links.contains(&name.as_str())) {
            controller.link(now_ms, name, false).map_err(failed)?;
        }
        down = links.into_iter().map(str::to_owned).collect();
        if played < arriving {
            let asked = arrivals.until(second);
            outcome.asked.0 += asked.len() as u64;
            outcome.asked.1 += asked.iter().map(|one| one.files.len() as u64).sum::<u64>();
            controller.submit(now_ms, asked).map_err(failed)?;
        }
        nodes.advance(1000);
        let reports = nodes.reports();
        let hosts: Vec<String> = reports.iter().map(|(host, _)| host.clone()).collect();
        let asked = Instant::now();
        let instructions = controller.report(now_ms, reports).map_err(failed)?;
        outcome.reports.record(asked.elapsed().as_secs_f64());
        for (host, instructions) in hosts.iter().zip(&instructions) {
            nodes
                .apply_instructions(host, instructions, |host, order| controller.order(host, order))
                .map_err(failed)?;
        }
        let asked = Instant::now();
        let figures = &mut outcome.figures;
        let mut decide = |snapshot: &penstock_control::scheduler::Snapshot| {
            let begun = Instant::now();
            let decision = planner.plan(snapshot);
            figures.round(second, snapshot, &decision, begun.elapsed().as_secs_f64());
            decision
        };
        controller.round(now_ms, &mut decide).map_err(failed)?;
        outcome.rounds.record(asked.elapsed().as_secs_f64());
        outcome.played = played + 1;
    }
    outcome.open = controller.open().map_err(failed)?;
    outcome.wall = begun.elapsed();
    outcome.moved = nodes.moved;
    Ok(outcome)
}

/// p50, p99 and the longest, in seconds.
fn times(times: &DurationSamples) -> result::Times {
    result::Times {
        count: times.count(),
        p50_seconds: times.quantile(0.5),
        p99_seconds: times.quantile(0.99),
        max_seconds: times.quantile(1.0),
    }
}

fn object(outcome: &mut RehearsalOutcome) -> result::Rehearsal {
    let classes = outcome.ended.iter().map(|(class, ended)| {
        let mut all = DurationSamples::default();
        ended.seconds.iter().for_each(|seconds| all.record(f64::from(*seconds)));
        let of_class = result::ClassJson {
            files_done: ended.done,
            files_failed: ended.failed,
            requests: ended.seconds.len(),
            request_p50_seconds: all.quantile(0.5),
            request_p99_seconds: all.quantile(0.99),
        };
        (class.clone(), of_class)
    });
    let classes = classes.collect();
    let database = outcome.held.as_ref().map(|held| {
        let of_files = held.tables.get("file").copied().unwrap_or(0);
        result::DatabaseJson {
            requests: held.requests,
            files: held.files,
            bytes: held.bytes,
            tables_bytes: held.tables.clone(),
            bytes_per_file: of_files as f64 / held.files.max(1) as f64,
            bytes_per_request: (held.bytes - of_files) as f64 / held.requests.max(1) as f64,
        }
    });
    let points = outcome.figures.points().to_vec();
    let contended = points.iter().filter_map(|point| point.jain);
    let (count, worst) =
        contended.fold((0_u32, f64::INFINITY), |(count, worst), x| (count + 1, worst.min(x)));
    result::Rehearsal {
        name: outcome.name.clone(),
        controller: outcome.kept.clone(),
        begin: clock(outcome.begin),
        arriving_seconds: outcome.arriving,
        virtual_seconds: outcome.played,
        wall_seconds: outcome.wall.as_secs_f64(),
        requests_submitted: outcome.asked.0,
        files_submitted: outcome.asked.1,
        files_submitted_per_second: outcome.asked.1 as f64 / f64::from(outcome.arriving),
        files_done: outcome.moved.1,
        bytes_moved: outcome.moved.0,
        bits_per_second: outcome.moved.0 as f64 * 8.0 / f64::from(outcome.played.max(1)),
        finish_seconds: outcome.finish,
        requests_open: outcome.open,
        plan: times(&outcome.figures.round_times),
        round: times(&outcome.rounds),
        reports: times(&outcome.reports),
        transfers_at_once_max: outcome.figures.most.0,
        batches_waiting_max: outcome.figures.most.1,
        jain: outcome.figures.fairness(),
        jain_worst_5_minutes: (count > 0).then_some(worst),
        contended_5_minutes: count,
        classes,
        database,
    }
}

/// Results as text.
fn shown(object: &Value) -> String {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_f64);
    let bytes = |pointer: &str| ByteCount(number(pointer).unwrap_or(0.0) as u64).to_string();
    let ms = |name: &str| {
        let at = |part: &str| {
            let seconds = number(&format!("/{name}/{part}_seconds"));
            seconds.map_or("-".to_owned(), |seconds| format!("{:.1} ms", seconds * 1e3))
        };
        format!("p50 {}, p99 {}, at most {}", at("p50"), at("p99"), at("max"))
    };
    let plain = |name: &str| match &object[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut rows = vec![
        ["rehearsal".to_owned(), format!("{}, state in {}", plain("name"), plain("controller"))],
        [
            "played".to_owned(),
            format!(
                "{} s from {} in {:.0} s",
                plain("virtual_seconds"),
                plain("begin"),
                number("/wall_seconds").unwrap_or(0.0)
            ),
        ],
        [
            "submitted".to_owned(),
            format!(
                "{} files in {} requests",
                plain("files_submitted"),
                plain("requests_submitted")
            ),
        ],
        [
            "in place".to_owned(),
            format!(
                "{} files, {}, {}",
                plain("files_done"),
                bytes("/bytes_moved"),
                BitRate(number("/bits_per_second").unwrap_or(0.0) as u64)
            ),
        ],
        [
            "left".to_owned(),
            match object["finish_seconds"].as_u64() {
                Some(seconds) => format!("nothing {seconds} s after the last request came"),
                None => format!("{} requests", plain("requests_open")),
            },
        ],
        ["planning".to_owned(), ms("plan")],
        ["round".to_owned(), ms("round")],
        ["reports".to_owned(), ms("reports")],
        [
            "at most".to_owned(),
            format!(
                "{} transfers at once, {} batches waiting",
                plain("transfers_at_once_max"),
                plain("batches_waiting_max")
            ),
        ],
        [
            "fairness".to_owned(),
            match number("/jain") {
                Some(jain) => format!(
                    "Jain's index {jain:.4} where all classes waited; the worst of {} times of 5 minutes {:.4}",
                    plain("contended_5_minutes"),
                    number("/jain_worst_5_minutes").unwrap_or(1.0)
                ),
                None => "the classes never waited all at once".to_owned(),
            },
        ],
    ];
    if object["database"].is_object() {
        rows.push([
            "database".to_owned(),
            format!(
                "{}: {:.0} bytes a file, {:.0} bytes a request besides",
                bytes("/database/bytes"),
                number("/database/bytes_per_file").unwrap_or(0.0),
                number("/database/bytes_per_request").unwrap_or(0.0)
            ),
        ]);
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    let mut text = table(&rows);
    for (class, facts) in object["classes"].as_object().into_iter().flatten() {
        let _ = writeln!(
            text,
            "class {class}: {} files in place, {} failed; requests take p50 {} s, p99 {} s",
            facts["files_done"],
            facts["files_failed"],
            facts["request_p50_seconds"],
            facts["request_p99_seconds"]
        );
    }
    text
}
