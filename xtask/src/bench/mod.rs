//! `cargo xtask bench mover`: our mover compared with established programs in one run.
//!
//! All programs run in a new network namespace with cubic as congestion control, so that all have the same settings and
//! those of the machine do not change. All files are under one working folder, which is removed at the end, also after
//! Ctrl-C. The results describe the machine by its hardware, never by its host name.

pub mod compare;
mod contest;
pub mod controller;
pub mod fabric;
pub mod gateway;
pub mod lab;
mod machine;
pub mod marking;
mod meters;
mod movers;
mod process;
mod reference;
mod report;
pub mod scaling;
pub mod telemetry;
pub mod tuner;
mod work;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::workspace_root;
use contest::{Contestant, alternate};
use meters::{Device, NetTest, Tester};
use movers::{Mover, Recipe, RecipeFolders, our_recipes, peer_recipes};
use reference::{CopyParts, ReferenceCopy};
use report::RowReport;
use work::{BenchDataset, Work};

const LARGE_BYTES: u64 = 4 << 30;
const INSIDE: &str = "PENSTOCK_BENCH_NAMESPACE";
const PACKAGES: [&str; 9] = [
    "fio",
    "globus-gass-copy-progs",
    "globus-gridftp-server-progs",
    "iperf3",
    "iproute2",
    "rclone",
    "rsync",
    "xrootd-client",
    "xrootd-server",
];

/// Options of `cargo xtask bench mover`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Rows to measure, separated by commas; all by default.
    #[arg(long, value_delimiter = ',', value_enum)]
    rows: Vec<BenchTable>,
    /// Fewer and shorter runs of smaller data: under 8 minutes for all rows, with more variance.
    #[arg(long)]
    quick: bool,
    /// Measured runs of each contestant, after one warm-up.
    #[arg(long)]
    runs: Option<usize>,
    /// Working folder, on the disk to be measured; removed at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Install the peers from Debian first (as root).
    #[arg(long)]
    install: bool,
    /// Measure this binary instead of building target/release/penstock.
    #[arg(long)]
    penstock: Option<PathBuf>,
    /// Compare with this earlier binary instead of the peers.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Folder for the results.
    #[arg(long)]
    results: Option<PathBuf>,
}

/// One table of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTable {
    /// One TCP stream, memory to memory.
    Nettest,
    /// Two TCP streams.
    #[value(name = "nettest2")]
    Nettest2,
    /// Four TCP streams.
    #[value(name = "nettest4")]
    Nettest4,
    /// One UDP stream, memory to memory, received rate.
    NettestUdp,
    /// A 4 GiB file, disk to disk, checked but not encrypted.
    Large,
    /// The same, encrypted.
    LargeTls,
    /// 20,000 files of 64 KiB.
    #[value(name = "small64k")]
    Small64k,
    /// 200,000 files of 1 KiB.
    #[value(name = "small1k")]
    Small1k,
    /// A file of 1 KiB: what a command takes besides the data.
    #[value(name = "single1k")]
    Single1k,
}

/// Measures the selected rows and writes the results.
pub fn run(options: &Options) -> Result<()> {
    let root = workspace_root();
    let penstock = options.penstock.clone().unwrap_or_else(|| root.join("target/release/penstock"));
    if std::env::var_os(INSIDE).is_none() {
        prepare(&root, options)?;
        return Err(enter_namespace());
    }
    let bench = BenchRun {
        quick: options.quick,
        runs: options.runs,
        penstock: std::path::absolute(penstock)?,
        baseline: options.baseline.as_deref().map(std::path::absolute).transpose()?,
        work: Rc::new(Work::new(&std::path::absolute(
            options.dir.clone().unwrap_or_else(|| root.join("target/bench")),
        )?)?),
        stop: process::interrupt_flag()?,
    };
    let congestion = machine::congestion_control();
    if congestion != "cubic" {
        eprintln!(
            "warning: the congestion control is {congestion}, not cubic; over loopback that may be much slower"
        );
    }
    let rows = if options.rows.is_empty() {
        BenchTable::value_variants().to_vec()
    } else {
        options.rows.clone()
    };
    let mut reports = Vec::new();
    for (row, streams) in [
        (BenchTable::Nettest, 1),
        (BenchTable::Nettest2, 2),
        (BenchTable::Nettest4, 4),
        (BenchTable::NettestUdp, 1),
    ] {
        if rows.contains(&row) {
            reports.push(bench.nettest(row, streams)?);
        }
    }
    if rows.contains(&BenchTable::Large) || rows.contains(&BenchTable::LargeTls) {
        reports.extend(
            bench.large(rows.contains(&BenchTable::Large), rows.contains(&BenchTable::LargeTls))?,
        );
    }
    for (row, title, name, files, bytes) in [
        (BenchTable::Small64k, "files of 64 KiB", "small64k", 20_000, 65_536),
        (BenchTable::Small1k, "files of 1 KiB", "small1k", 200_000, 1024),
    ] {
        if rows.contains(&row) {
            reports.push(bench.small(row, title, name, files, bytes)?);
        }
    }
    if rows.contains(&BenchTable::Single1k) {
        reports.push(bench.single()?);
    }
    let facts = machine::facts(&root, &bench.work.root)?;
    let folder = options.results.clone().unwrap_or_else(|| root.join("bench/results"));
    report::write(&folder, &facts, &reports, options.quick)
}

/// Installs and builds all programs before the run leaves the network.
fn prepare(root: &Path, options: &Options) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("must run as root: page caches are dropped and a network namespace is made");
    }
    if options.install {
        let mut command = Command::new("apt-get");
        command.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(PACKAGES);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        succeed(&mut command, "run apt-get update first, or install the peers by hand")?;
    }
    if options.penstock.is_none() {
        let mut command = Command::new("cargo");
        command.args(["build", "--release", "--package", "penstock"]).current_dir(root);
        succeed(&mut command, "mend the build, or name a binary with --penstock")?;
    }
    Ok(())
}

fn succeed(command: &mut Command, remedy: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("{program} failed ({status}): {remedy}");
    }
    Ok(())
}

/// Creates a network namespace with cubic and executes a program in it. Only an algorithm of the machine's allowed list
/// can be a namespace's default, so cubic is added to the list for a moment. The namespace ends with its last process.
const ENTER_NAMESPACE: &str = r#"
set -e
allowed=/proc/sys/net/ipv4/tcp_allowed_congestion_control
before=$(cat $allowed)
namespace=$(mktemp)
unshare --net="$namespace" ip link set lo up
echo "$before cubic" > $allowed
nsenter --net="$namespace" sh -c 'echo cubic > /proc/sys/net/ipv4/tcp_congestion_control' || true
echo "$before" > $allowed
exec nsenter --net="$namespace" sh -c 'umount "$0"; rm "$0"; exec "$@"' "$namespace" "$@"
"#;

/// Starts this program anew, inside a network namespace. Returns only when that fails.
fn enter_namespace() -> anyhow::Error {
    let Ok(program) = std::env::current_exe() else {
        return anyhow::anyhow!("cannot find this program");
    };
    let mut command = Command::new("sh");
    command
        .args(["-c", ENTER_NAMESPACE, "sh"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1");
    anyhow::Error::from(command.exec()).context("cannot start sh")
}

struct BenchRun {
    quick: bool,
    runs: Option<usize>,
    penstock: PathBuf,
    /// An earlier binary, which replaces the peers.
    baseline: Option<PathBuf>,
    work: Rc<Work>,
    stop: Arc<AtomicBool>,
}

impl BenchRun {
    fn runs(&self, full: usize) -> usize {
        self.runs.unwrap_or(if self.quick { 3 } else { full })
    }

    fn nettest(&self, row: BenchTable, streams: u32) -> Result<RowReport> {
        let udp = row == BenchTable::NettestUdp;
        let title = match (udp, streams) {
            (true, _) => {
                "One UDP stream over loopback without a rate limit, datagrams of 1,400 bytes, received rate"
                    .to_owned()
            }
            (false, 1) => "One TCP stream over loopback, memory to memory".to_owned(),
            (false, _) => format!("{streams} TCP streams over loopback, memory to memory"),
        };
        eprintln!("{title}");
        let mut testers = vec![Tester::Penstock(self.penstock.clone())];
        match &self.baseline {
            Some(binary) => testers.push(Tester::Baseline(binary.clone())),
            None if udp => testers.push(Tester::Iperf { zero_copy: false }),
            None => {
                testers.push(Tester::Reference(reference::build(&self.work, "nettest.c")?));
                testers.push(Tester::Iperf { zero_copy: false });
                testers.push(Tester::Iperf { zero_copy: true });
            }
        }
        let all = testers.into_iter().map(|tester| {
            let (work, stop) = (Rc::clone(&self.work), Arc::clone(&self.stop));
            let seconds = if self.quick { 3 } else { 5 };
            Box::new(NetTest {
                tester,
                udp,
                streams,
                seconds,
                work,
                server: None,
                stop,
                note: None,
            }) as Box<dyn Contestant>
        });
        let series = alternate(all.collect(), self.runs(7), &self.stop)?;
        Ok(RowReport { row, title, series })
    }

    /// Both protections share one contest and so one set of the peers' figures.
    fn large(&self, integrity: bool, encrypted: bool) -> Result<Vec<RowReport>> {
        let bytes = if self.quick { LARGE_BYTES / 2 } else { LARGE_BYTES };
        let title = format!("One file of {} GiB, disk to disk", bytes >> 30);
        eprintln!("{title}");
        let data = self.work.make_file("large.bin", bytes)?;
        let device = Device {
            data: data.clone(),
            work: Rc::clone(&self.work),
            seconds: if self.quick { 4 } else { 6 },
            stop: Arc::clone(&self.stop),
            best: None,
        };
        // The promise of the encrypted row is relative to the unencrypted figure, which is therefore always measured.
        let mut all = self.movers(false, encrypted, true, &data, None);
        // The run after the device's has less of the page cache and of the disk: with a baseline it is left out.
        if self.baseline.is_none() {
            let limit = ReferenceCopy::new(CopyParts::LargeFile, &self.work, &data, &self.stop)?;
            all.insert(0, Box::new(limit));
            all.insert(0, Box::new(device));
        }
        let series = alternate(all, self.runs(5), &self.stop)?;
        let mut reports = Vec::new();
        if integrity {
            let mut series = series.clone();
            let encrypted = [report::OURS_ENCRYPTED, report::BASELINE_ENCRYPTED];
            series.retain(|one| !encrypted.contains(&one.name.as_str()));
            reports.push(RowReport {
                row: BenchTable::Large,
                title: format!("{title}, integrity only"),
                series,
            });
        }
        if encrypted {
            reports.push(RowReport {
                row: BenchTable::LargeTls,
                title: format!("{title}, encrypted (peers are not)"),
                series,
            });
        }
        std::fs::remove_file(&data.path)?;
        Ok(reports)
    }

    fn single(&self) -> Result<RowReport> {
        let title = "One file of 1 KiB in the page cache, encrypted (peers are not)".to_owned();
        eprintln!("{title}");
        let data = self.work.make_file("single1k.bin", 1024)?;
        let data = BenchDataset { is_warm: true, ..data };
        let all = self.movers(false, true, true, &data, None);
        let series = alternate(all, self.runs(15), &self.stop)?;
        std::fs::remove_file(&data.path)?;
        Ok(RowReport { row: BenchTable::Single1k, title, series })
    }

    fn small(
        &self,
        row: BenchTable,
        title: &str,
        name: &str,
        files: u64,
        bytes: usize,
    ) -> Result<RowReport> {
        let files = if self.quick { files / 4 } else { files };
        let title = format!("{files} {title}");
        eprintln!("{title}");
        let data = self.work.make_folder(name, files, bytes)?;
        let part = self.work.make_folder(&format!("{name}-part"), files / 20, bytes)?;
        let mut all = self.movers(true, false, true, &data, Some(&part));
        if self.baseline.is_none() {
            for parts in [CopyParts::FilesAndSource, CopyParts::Files] {
                all.insert(0, Box::new(ReferenceCopy::new(parts, &self.work, &data, &self.stop)?));
            }
        }
        let series = alternate(all, self.runs(5), &self.stop)?;
        std::fs::remove_dir_all(&data.path)?;
        std::fs::remove_dir_all(&part.path)?;
        Ok(RowReport { row, title: format!("{title}, disk to disk"), series })
    }

    fn movers(
        &self,
        folder: bool,
        encrypted: bool,
        integrity: bool,
        data: &BenchDataset,
        part: Option<&BenchDataset>,
    ) -> Vec<Box<dyn Contestant>> {
        let folders = |penstock: &Path| RecipeFolders {
            destination: self.work.destination(),
            configuration: self.work.configuration(),
            penstock: penstock.to_owned(),
        };
        let mover = |(recipe, penstock): (Recipe, &Path)| {
            let data = (data.clone(), part.cloned());
            let mover = Mover::new(
                recipe,
                folders(penstock),
                Rc::clone(&self.work),
                data,
                Arc::clone(&self.stop),
            );
            Box::new(mover) as Box<dyn Contestant>
        };
        let ours = our_recipes(encrypted, integrity).into_iter();
        let ours = ours.map(|recipe| (recipe, self.penstock.as_path()));
        let others: Vec<_> = match &self.baseline {
            Some(binary) => {
                let recipes = our_recipes(encrypted, integrity).into_iter();
                recipes.map(|recipe| (recipe.of_baseline(), binary.as_path())).collect()
            }
            None => {
                let recipes = peer_recipes(folder).into_iter();
                recipes.map(|recipe| (recipe, self.penstock.as_path())).collect()
            }
        };
        ours.chain(others).map(mover).collect()
    }
}
