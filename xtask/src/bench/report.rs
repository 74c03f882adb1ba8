//! Results as Markdown and JSON, with verdicts on the promises of SPECIFICATION.md.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::BenchTable;
use super::contest::{RunSample, Series};
use super::machine::MachineFacts;
use super::meters::DEVICE;

pub(super) const OURS_INTEGRITY: &str = "penstock cp, integrity";
pub(super) const OURS_ENCRYPTED: &str = "penstock cp, encrypted";
pub(super) const OURS_NETTEST: &str = "penstock nettest";
pub(super) const BASELINE_INTEGRITY: &str = "baseline cp, integrity";
pub(super) const BASELINE_ENCRYPTED: &str = "baseline cp, encrypted";
pub(super) const BASELINE_NETTEST: &str = "baseline nettest";
pub(super) const NETTEST_LIMIT: &str = "limit (vmsplice to recv in C)";
pub(super) const FILES_LIMIT: &str = "limit (create, write, sync, rename in C)";
pub(super) const COPY_LIMIT: &str = "limit (read, vmsplice, recv, write in C)";
pub(super) const FILES_COPY_LIMIT: &str = "limit (the same, reading the source)";
/// Limits of the device and programs in C, which are no programs that one would use.
const LIMIT_NAMES: [&str; 5] = [DEVICE, NETTEST_LIMIT, COPY_LIMIT, FILES_LIMIT, FILES_COPY_LIMIT];

/// Least rate over that of an earlier binary.
const BASELINE_RATIO_MIN: f64 = 0.98;
/// Least received rate of UDP over that of iperf3.
const UDP_RATIO_MIN: f64 = 2.0;
const MEMORY_LIMIT_MIB: f64 = 300.0;

/// One row of the comparison with all runs of its contestants.
#[derive(Debug, Clone)]
pub(super) struct RowReport {
    pub(super) row: BenchTable,
    pub(super) title: String,
    pub(super) series: Vec<Series>,
}

impl RowReport {
    fn ours(&self) -> &'static str {
        match self.row {
            BenchTable::Nettest
            | BenchTable::Nettest2
            | BenchTable::Nettest4
            | BenchTable::NettestUdp => OURS_NETTEST,
            BenchTable::LargeTls | BenchTable::Single1k => OURS_ENCRYPTED,
            BenchTable::Large | BenchTable::Small64k | BenchTable::Small1k => OURS_INTEGRITY,
        }
    }

    /// Name of the series of an earlier binary, if one was measured.
    fn baseline(&self) -> Option<&'static str> {
        let name = match self.row {
            BenchTable::Nettest
            | BenchTable::Nettest2
            | BenchTable::Nettest4
            | BenchTable::NettestUdp => BASELINE_NETTEST,
            BenchTable::LargeTls | BenchTable::Single1k => BASELINE_ENCRYPTED,
            BenchTable::Large | BenchTable::Small64k | BenchTable::Small1k => BASELINE_INTEGRITY,
        };
        self.series.iter().any(|series| series.name == name).then_some(name)
    }

    fn counts_files(&self) -> bool {
        matches!(self.row, BenchTable::Small64k | BenchTable::Small1k | BenchTable::Single1k)
    }

    /// Compared rate: files per second for many files, else bits per second. Peers measured on a part of the files are
    /// compared by rate, too.
    fn rate(&self, series: &Series) -> Option<f64> {
        if self.counts_files() { series.files_per_second() } else { series.bits_per_second() }
    }

    fn rate_of(&self, name: &str) -> Option<f64> {
        self.series.iter().find(|series| series.name == name).and_then(|series| self.rate(series))
    }

    /// Fastest program that is neither ours nor a limit.
    fn best_peer(&self) -> Option<(f64, &str)> {
        let peers = self.series.iter().filter(|series| {
            !series.name.starts_with("penstock") && !LIMIT_NAMES.contains(&series.name.as_str())
        });
        peers
            .filter_map(|series| Some((self.rate(series)?, series.name.as_str())))
            .max_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// A promise, its measured figure, and whether it is kept; unknown if a figure is missing.
#[derive(Debug, Clone, Serialize)]
struct PromiseVerdict {
    promise: String,
    measured: Option<f64>,
    met: Option<bool>,
}

impl PromiseVerdict {
    fn at_least(promise: &str, wanted: f64, measured: Option<f64>) -> Self {
        let promise = format!("{promise}: at least {wanted}");
        Self { promise, measured, met: measured.map(|value| value >= wanted) }
    }
}

/// Writes `mover-<date>-<machine>.md` and `.json` into `folder`, and the verdicts to the terminal.
pub(super) fn write(
    folder: &Path,
    facts: &MachineFacts,
    rows: &[RowReport],
    quick: bool,
) -> Result<()> {
    let verdicts = verdicts(rows);
    let page = page(facts, rows, &verdicts, quick);
    let rows_json: Vec<_> = rows
        .iter()
        .map(|row| json!({ "row": format!("{:?}", row.row), "title": row.title, "contestants": row.series }))
        .collect();
    let json = json!({ "machine": facts, "quick": quick, "rows": rows_json, "promises": verdicts });
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let compared = rows.iter().any(|row| row.baseline().is_some());
    let name = if compared { "mover-baseline" } else { "mover" };
    let stem = folder.join(format!("{name}-{}-{}", facts.date, facts.words()));
    let (md_path, json_path) =
        (format!("{}.md", stem.display()), format!("{}.json", stem.display()));
    std::fs::write(&md_path, &page).with_context(|| format!("cannot write {md_path}"))?;
    std::fs::write(&json_path, serde_json::to_string_pretty(&json)? + "\n")?;
    println!("{page}\nwritten to {md_path}");
    Ok(())
}

fn verdicts(rows: &[RowReport]) -> Vec<PromiseVerdict> {
    let mut all = Vec::new();
    for row in rows {
        let ours = row.rate_of(row.ours());
        let over = |other: Option<f64>| Some(ours? / other?);
        let peer = |name: &str| over(row.rate_of(name));
        if let Some(baseline) = row.baseline() {
            let promise = format!("{}: over the baseline", row.title);
            all.push(PromiseVerdict::at_least(&promise, BASELINE_RATIO_MIN, peer(baseline)));
            continue;
        }
        match row.row {
            BenchTable::Nettest => {
                let best = over(row.best_peer().map(|(rate, _)| rate));
                all.push(PromiseVerdict::at_least(
                    "nettest, one stream, over the best of iperf3",
                    1.25,
                    best,
                ));
            }
            BenchTable::Nettest2 | BenchTable::Nettest4 | BenchTable::Single1k => {}
            BenchTable::NettestUdp => {
                let best = over(row.best_peer().map(|(rate, _)| rate));
                all.push(PromiseVerdict::at_least(
                    "nettest, UDP received, over iperf3 -u",
                    UDP_RATIO_MIN,
                    best,
                ));
            }
            BenchTable::Large => {
                all.push(PromiseVerdict::at_least(
                    "large file, integrity, over the device's limit",
                    0.9,
                    peer(DEVICE),
                ));
                all.push(PromiseVerdict::at_least(
                    "large file, integrity, over the rsync daemon",
                    2.5,
                    peer("rsync daemon"),
                ));
            }
            BenchTable::LargeTls => {
                all.push(PromiseVerdict::at_least(
                    "large file, encrypted over integrity only",
                    0.85,
                    peer(OURS_INTEGRITY),
                ));
            }
            BenchTable::Small64k => {
                all.push(PromiseVerdict::at_least(
                    "files of 64 KiB over the rsync daemon",
                    2.0,
                    peer("rsync daemon"),
                ));
            }
            BenchTable::Small1k => {
                all.push(PromiseVerdict::at_least(
                    "files of 1 KiB over the rsync daemon",
                    1.5,
                    peer("rsync daemon"),
                ));
            }
        }
        for (limit, least) in [(NETTEST_LIMIT, 1.0), (FILES_LIMIT, 0.8), (FILES_COPY_LIMIT, 0.8)] {
            if row.rate_of(limit).is_some() {
                let promise = format!("{}: over the {limit}", row.title);
                all.push(PromiseVerdict::at_least(&promise, least, peer(limit)));
            }
        }
        let best = over(row.best_peer().map(|(rate, _)| rate));
        let name = row.best_peer().map_or("none", |(_, name)| name);
        let failed = row
            .series
            .iter()
            .filter(|one| one.samples.is_empty() && !one.name.starts_with("penstock"))
            .count();
        let missing = if failed > 0 { format!(", {failed} not measured") } else { String::new() };
        all.push(PromiseVerdict::at_least(
            &format!("{}: over the fastest peer ({name}{missing})", row.title),
            1.0,
            best,
        ));
    }
    let copies = rows.iter().filter(|row| row.ours() != OURS_NETTEST).flat_map(|row| &row.series);
    let ours = copies
        .filter(|series| series.name.starts_with("penstock"))
        .flat_map(|series| &series.samples);
    let most = ours
        .map(|sample| mib(sample.client_peak_bytes.max(sample.server_peak_bytes)))
        .max_by(f64::total_cmp);
    all.push(PromiseVerdict {
        promise: format!("resident memory per end: under {MEMORY_LIMIT_MIB} MiB"),
        measured: most,
        met: most.map(|most| most < MEMORY_LIMIT_MIB),
    });
    all
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn page(
    facts: &MachineFacts,
    rows: &[RowReport],
    verdicts: &[PromiseVerdict],
    quick: bool,
) -> String {
    let mut page = format!("# Mover, measured {}\n\n", facts.date);
    let how = if quick { " --quick" } else { "" };
    let _ = writeln!(page, "`cargo xtask bench mover{how}` at commit {}.\n", facts.commit);
    let _ = writeln!(
        page,
        "Machine: {}, {} cores, {} GiB memory, kernel {}, {}, congestion control {}, loopback MTU {}, load at the end {}.",
        facts.cpu,
        facts.cores,
        facts.memory_gib,
        facts.kernel,
        facts.file_system,
        facts.congestion_control,
        facts.loopback_mtu,
        facts.load_at_end
    );
    let _ = writeln!(page, "Peers from Debian: {}.\n", facts.tools.join(", "));
    page += "Contestants take turns; the first round is dropped. Before every run the destination is emptied, the file \
             system synced and the page cache dropped. *Durable* adds a sync of the destination's file system. CPU is \
             user and system time of both ends. Ours / peer is the ratio of the medians.\n\n";
    page += "| promise | measured | |\n|---|---|---|\n";
    for verdict in verdicts {
        let measured = verdict.measured.map_or("–".to_owned(), |value| format!("{value:.2}"));
        let met = verdict.met.map_or("not measured", |met| if met { "met" } else { "**not met**" });
        let _ = writeln!(page, "| {} | {measured} | {met} |", verdict.promise);
    }
    for row in rows {
        page += &table(row);
    }
    page
}

fn table(row: &RowReport) -> String {
    let rate_head = if row.counts_files() { "files/s" } else { "Gb/s" };
    let mut text = format!(
        "\n## {}\n\n| | runs | median s | min–max s | {rate_head} | min–max | durable Gb/s | CPU s/GB | client MiB | server MiB | ours / peer |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        row.title
    );
    let ours = row.rate_of(row.ours());
    let mut notes = String::new();
    for series in &row.series {
        if series.samples.is_empty() {
            let reason = series.failure.as_deref().unwrap_or("no run");
            let _ = writeln!(
                text,
                "| {} | 0 | {} | | | | | | | | |",
                series.name,
                reason.replace('|', "/")
            );
            continue;
        }
        text += &line(row, series, ours);
        let _ = writeln!(notes, "- {}: `{}`{}", series.name, series.how, remarks(series));
    }
    text + "\n" + &notes
}

fn remarks(series: &Series) -> String {
    let note = series.note.as_deref().map(|note| format!(" ({note})")).unwrap_or_default();
    let failure = series
        .failure
        .as_deref()
        .map(|reason| format!("; a run failed: {reason}"))
        .unwrap_or_default();
    note + &failure
}

fn line(row: &RowReport, series: &Series, ours: Option<f64>) -> String {
    let rate = |sample: &RunSample| match row.counts_files() {
        true => sample.files as f64 / sample.seconds,
        false => sample.bytes * 8e-9 / sample.seconds,
    };
    let digits = if row.counts_files() { 0 } else { 2 };
    let second_digits = if row.row == BenchTable::Single1k { 3 } else { 2 };
    let spread = |extremes: Option<(f64, f64)>, digits: usize| {
        extremes.map_or(String::new(), |(least, most)| format!("{least:.digits$}–{most:.digits$}"))
    };
    let optional = |value: Option<f64>, digits: usize| {
        value.map_or(String::new(), |value| format!("{value:.digits$}"))
    };
    let durable = series.samples.iter().all(|sample| sample.durable_seconds.is_some());
    let measured_cpu = series.samples.iter().all(|sample| sample.cpu_seconds.is_some());
    let cpu = series.median(|sample| sample.cpu_seconds.unwrap_or(0.0) / (sample.bytes * 1e-9));
    let peak = |value: fn(&RunSample) -> u64| {
        let most = series.samples.iter().map(value).max().unwrap_or(0);
        if most == 0 { String::new() } else { format!("{:.0}", mib(most)) }
    };
    let ratio = ours
        .zip(row.rate(series))
        .filter(|_| series.name != row.ours())
        .map(|(ours, theirs)| ours / theirs);
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        series.name,
        series.samples.len(),
        optional(series.seconds(), second_digits),
        spread(series.extremes(|sample| sample.seconds), second_digits),
        optional(series.median(rate), digits),
        spread(series.extremes(rate), digits),
        optional(series.durable_bits_per_second().filter(|_| durable).map(|rate| rate * 1e-9), 2),
        optional(cpu.filter(|_| measured_cpu), 2),
        peak(|sample| sample.client_peak_bytes),
        peak(|sample| sample.server_peak_bytes),
        optional(ratio, 2),
    )
}
