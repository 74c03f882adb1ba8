//! `cargo xtask bench gateway`: files over HTTPS by curl, davix and rclone, from and to our gateway, XRootD, nginx and
//! Apache.
//!
//! All servers run at once and share one folder on the disk; contestants of a row take turns. Downloads come from the page
//! cache and are dropped by the client, or written where it has no other way. Our gateway ends an upload with the data
//! on the device, unless its configuration has `durable = false`, so the time of a sync of the file system afterwards is
//! measured, too.

mod clients;
mod servers;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::contest::{Series, alternate, median};
use super::machine::MachineFacts;
use super::work::Work;
use super::{machine, process};
use crate::workspace_root;
use clients::{DavClient, DavExchange};
use servers::DavServer;

/// Name of our gateway in the tables.
const OURS: &str = "penstock";

const LARGE_BYTES: u64 = 4 << 30;
const QUICK_LARGE_BYTES: u64 = 512 << 20;
const MANY_FILES: u64 = 2_000;
const QUICK_MANY_FILES: u64 = 200;
const MANY_FILE_BYTES: usize = 1 << 20;

/// Options of `cargo xtask bench gateway`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Rows to measure, separated by commas; all by default.
    #[arg(long, value_delimiter = ',', value_enum)]
    rows: Vec<GatewayRow>,
    /// Clients, separated by commas; all by default.
    #[arg(long, value_delimiter = ',', value_enum)]
    clients: Vec<DavClient>,
    /// Smaller data: a first impression in a few minutes.
    #[arg(long)]
    quick: bool,
    /// Measured runs of each contestant, after one warm-up.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Working folder, on the disk to be measured; removed at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure this binary instead of target/release/penstock.
    #[arg(long)]
    penstock: Option<PathBuf>,
    /// Measure this binary, too, as "penstock before".
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Folder for the results.
    #[arg(long)]
    results: Option<PathBuf>,
}

/// One table of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GatewayRow {
    /// Download of one file of 4 GiB.
    GetLarge,
    /// Upload of one file of 4 GiB.
    PutLarge,
    /// Download of 2,000 files of 1 MiB.
    GetMany,
    /// Upload of 2,000 files of 1 MiB.
    PutMany,
}

impl GatewayRow {
    fn is_upload(self) -> bool {
        matches!(self, Self::PutLarge | Self::PutMany)
    }

    fn has_many(self) -> bool {
        matches!(self, Self::GetMany | Self::PutMany)
    }

    fn title(self) -> &'static str {
        match self {
            Self::GetLarge => "download of one large file",
            Self::PutLarge => "upload of one large file",
            Self::GetMany => "download of many files of 1 MiB",
            Self::PutMany => "upload of many files of 1 MiB",
        }
    }
}

/// A row as one client measured it against all servers.
#[derive(Debug)]
struct ClientReport {
    row: GatewayRow,
    client: DavClient,
    series: Vec<Series>,
}

/// Measures the selected rows and writes the results.
pub fn run(options: &Options) -> Result<()> {
    let root = workspace_root();
    if std::env::var_os(super::INSIDE).is_none() {
        return Err(super::enter_namespace());
    }
    let penstock = options.penstock.clone().unwrap_or_else(|| root.join("target/release/penstock"));
    let penstock = std::path::absolute(penstock)?;
    let baseline = options.baseline.as_deref().map(std::path::absolute).transpose()?;
    let directory = options.dir.clone().unwrap_or_else(|| root.join("target/bench"));
    let work = Rc::new(Work::new(&std::path::absolute(directory)?)?);
    let stop = process::interrupt_flag()?;
    let large = if options.quick { QUICK_LARGE_BYTES } else { LARGE_BYTES };
    let many = if options.quick { QUICK_MANY_FILES } else { MANY_FILES };
    let large = work.make_file("large", large)?;
    let many = work.make_folder("many", many, MANY_FILE_BYTES)?;
    let servers: Vec<Rc<DavServer>> = servers::start_all(&work, &penstock, baseline.as_deref())?
        .into_iter()
        .map(Rc::new)
        .collect();
    let rows = match options.rows.as_slice() {
        [] => GatewayRow::value_variants(),
        rows => rows,
    };
    let clients = match options.clients.as_slice() {
        [] => DavClient::value_variants(),
        clients => clients,
    };
    let folder = options.results.clone().unwrap_or_else(|| root.join("bench/results"));
    let mut reports = Vec::new();
    let mut page = String::new();
    for row in rows {
        let data = if row.has_many() { &many } else { &large };
        for &client in clients {
            if client == DavClient::CurlSerial && !row.has_many() {
                // As curl with one file.
                continue;
            }
            eprintln!("{} by {}", row.title(), client.name());
            let contestants = servers
                .iter()
                .map(|server| {
                    let exchange = DavExchange {
                        client,
                        server: Rc::clone(server),
                        work: Rc::clone(&work),
                        data: data.clone(),
                        is_upload: row.is_upload(),
                        stop: std::sync::Arc::clone(&stop),
                    };
                    Box::new(exchange) as Box<dyn super::contest::Contestant>
                })
                .collect();
            let series = alternate(contestants, options.runs, &stop)?;
            reports.push(ClientReport { row: *row, client, series });
            // Written each time, so that an interrupted run leaves what it measured.
            let facts = machine::facts(&root, &work.root)?;
            page = write(&folder, &facts, &reports, options)?;
        }
    }
    println!("{page}");
    Ok(())
}

/// Writes `gateway[-ROW]-<date>-<machine>.md` and `.json` into `folder`; the row if only one was selected. Returns the page.
fn write(
    folder: &Path,
    facts: &MachineFacts,
    reports: &[ClientReport],
    options: &Options,
) -> Result<String> {
    let page = page(facts, reports, options);
    let rows: Vec<_> = reports
        .iter()
        .map(|report| {
            json!({ "row": report.row.title(), "client": report.client.name(), "contestants": report.series })
        })
        .collect();
    let json = json!({ "machine": facts, "quick": options.quick, "rows": rows });
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let row = match options.rows.as_slice() {
        [row] => row.to_possible_value().map(|value| format!("{}-", value.get_name())),
        _ => None,
    };
    let row = row.unwrap_or_default();
    let stem = folder.join(format!("gateway-{row}{}-{}", facts.date, facts.words()));
    std::fs::write(format!("{}.md", stem.display()), &page)?;
    std::fs::write(
        format!("{}.json", stem.display()),
        serde_json::to_string_pretty(&json)? + "\n",
    )?;
    Ok(page)
}

fn page(facts: &MachineFacts, reports: &[ClientReport], options: &Options) -> String {
    let mut text = format!(
        "# Gateway: files over HTTPS\n\nOne large file of {}, and {} files of 1 MiB. Medians of {} runs (least to most), in turns. \"Durable\" adds a \
         sync of the file system after the client has ended; \"nginx, synced\" syncs each file and its directory before it answers, as ours does; \"penstock, not synced\" does not, as the others. CPU seconds are those of client and server. \
         \"Ours by it\": median over the rounds of our rate by its rate.\n",
        if options.quick { "512 MiB" } else { "4 GiB" },
        if options.quick { QUICK_MANY_FILES } else { MANY_FILES },
        options.runs
    );
    let mut row = None;
    for report in reports {
        if row != Some(report.row) {
            row = Some(report.row);
            let durable = if report.row.is_upload() { " | durable, Gb/s" } else { "" };
            let rule = if report.row.is_upload() { "---|" } else { "" };
            let _ = write!(
                text,
                "\n## {}\n\n| client | server | Gb/s{durable} | CPU s/GB | ours by it |\n|---|---|---|{rule}---|---|\n",
                report.row.title()
            );
        }
        write_series(&mut text, report);
    }
    let _ = write!(
        text,
        "\nMachine: {}, {} CPUs, {} GiB, Linux {}, {}; {}; commit {}; load at the end {}; {}.\n",
        facts.cpu,
        facts.cores,
        facts.memory_gib,
        facts.kernel,
        facts.file_system,
        facts.congestion_control,
        facts.commit,
        facts.load_at_end,
        facts.date
    );
    text
}

fn write_series(text: &mut String, report: &ClientReport) {
    let ours = report.series.iter().find(|series| series.name == OURS);
    for series in &report.series {
        let _ = write!(text, "| {} | {} | ", report.client.name(), series.name);
        let Some(rate) = series.bits_per_second() else {
            let reason = series.failure.as_deref().unwrap_or("not measured");
            let _ = writeln!(text, "failed: {} |", reason.replace('|', "/"));
            continue;
        };
        let (least, most) =
            series.extremes(|one| one.bytes * 8e-9 / one.seconds).unwrap_or_default();
        let _ = write!(text, "{:.2} ({least:.2} to {most:.2})", rate * 1e-9);
        if report.row.is_upload() {
            let durable = series.durable_bits_per_second().unwrap_or_default();
            let _ = write!(text, " | {:.2}", durable * 1e-9);
        }
        let cpu = series.median(|one| one.cpu_seconds.unwrap_or_default() * 1e9 / one.bytes);
        let _ = writeln!(
            text,
            " | {:.2} | {} |",
            cpu.unwrap_or_default(),
            ours.and_then(|ours| paired_ratio(ours, series))
                .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
        );
    }
}

/// Median of the ratios of the rates of `ours` and `other` in each round.
fn paired_ratio(ours: &Series, other: &Series) -> Option<f64> {
    let pairs = ours.samples.iter().zip(&other.samples);
    median(pairs.map(|(ours, other)| other.seconds / ours.seconds))
}
