//! `cargo xtask bench marking`: cost of labelling, by iperf3 over a veth pair between two namespaces.
//!
//! Every round runs each contestant once, unmarked first; figures are medians over the rounds of the ratio
//! to the unmarked run of the same round, so that other load of the machine affects all alike. The
//! cost per packet is measured by the kernel (bpf_stats_enabled) in separate rounds. flowd-go is a
//! contestant where its binary is given.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::contest::median;
use super::machine;
use crate::workspace_root;

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
const IPERF_PORT: u16 = 5201;
const IPV6_AND_TCP_BYTES: u32 = 60;
const OPTION_BYTES: u32 = 8;
/// Rounds of the cost measurement, which varies less than throughput.
const COST_ROUNDS: usize = 3;

/// Options of `cargo xtask bench marking`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Rounds; medians need at least 7.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of each run.
    #[arg(long, default_value_t = 4)]
    seconds: u32,
    /// MTU of the veth pair.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Bytes of an iperf3 write (-l).
    #[arg(long, default_value = "128K")]
    block: String,
    /// The penstock binary; compiler options do not affect packets.
    #[arg(long)]
    penstock: Option<PathBuf>,
    /// A binary of flowd-go with its eBPF programs, for comparison.
    #[arg(long)]
    flowd_go: Option<PathBuf>,
    /// Folder for the results.
    #[arg(long)]
    results: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkingContestant {
    /// With segments shortened by the size of an option, or at full size.
    Unmarked {
        smaller: bool,
    },
    Ours {
        method: &'static str,
        rules: usize,
    },
    FlowdGo {
        method: &'static str,
    },
}

#[derive(Debug, Clone, Copy)]
struct IperfRun {
    gbit_per_s: f64,
    cpu_s_per_gb: f64,
}

#[derive(Debug, Serialize)]
struct MarkingRow {
    contestant: String,
    gbit_per_s: f64,
    throughput_ratio: f64,
    throughput_ratio_least: f64,
    throughput_ratio_most: f64,
    cpu_s_per_gb: f64,
    cpu_ratio: f64,
    program_ns_per_packet: Option<f64>,
    program_runs: Option<u64>,
}

struct VethPair {
    here: String,
    there: String,
    dir: tempfile::TempDir,
    penstock: PathBuf,
    flowd_go: Option<PathBuf>,
    mtu: u32,
    block: String,
    server: Option<Child>,
}

/// Measures and writes the results.
///
/// # Errors
/// Without root, or when a program is missing or fails.
pub fn run(options: &Options) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "must run as root: namespaces and eBPF");
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    let root = workspace_root();
    let penstock = options.penstock.clone().unwrap_or_else(|| root.join("target/release/penstock"));
    ensure!(penstock.exists(), "{} is missing: cargo build --release", penstock.display());
    let lab = VethPair::new(std::path::absolute(penstock)?, options)?;
    let mut contestants = vec![
        MarkingContestant::Unmarked { smaller: false },
        MarkingContestant::Unmarked { smaller: true },
        MarkingContestant::Ours { method: "flow", rules: 1 },
        MarkingContestant::Ours { method: "flow", rules: 10_000 },
        MarkingContestant::Ours { method: "destination", rules: 1 },
        MarkingContestant::Ours { method: "destination", rules: 10_000 },
    ];
    if options.flowd_go.is_some() {
        contestants.push(MarkingContestant::FlowdGo { method: "label" });
        contestants.push(MarkingContestant::FlowdGo { method: "destination" });
    }
    lab.measure(contestants[0], options.seconds)?;
    let mut runs: Vec<Vec<IperfRun>> = vec![Vec::new(); contestants.len()];
    for round in 1..=options.rounds {
        for (who, runs) in contestants.iter().zip(&mut runs) {
            let run = lab.measure(*who, options.seconds)?;
            println!("round {round}: {:<32} {:.2} Gbit/s", who.name(), run.gbit_per_s);
            runs.push(run);
        }
    }
    let mut costs: Vec<Vec<(f64, u64)>> = vec![Vec::new(); contestants.len()];
    for _ in 0..options.rounds.min(COST_ROUNDS) {
        for (who, costs) in contestants.iter().zip(&mut costs).skip(2) {
            costs.extend(lab.cost(*who, options.seconds)?);
        }
    }
    let rows: Vec<MarkingRow> = contestants
        .iter()
        .zip(&runs)
        .zip(&costs)
        .map(|((who, theirs), costs)| row(*who, &runs[who.beside()], theirs, costs))
        .collect();
    let facts = machine::facts(&root, lab.dir.path())?;
    let folder = options.results.clone().unwrap_or_else(|| root.join("bench/results"));
    write(&folder, &facts, &rows, options)
}

impl MarkingContestant {
    fn name(self) -> String {
        match self {
            Self::Unmarked { smaller: false } => "unmarked".to_owned(),
            Self::Unmarked { smaller: true } => "unmarked, 8 bytes less in a segment".to_owned(),
            Self::Ours { method, rules } => {
                let method = if method == "flow" { "flow label" } else { "destination option" };
                format!("{method}, {rules} rule{}", if rules == 1 { "" } else { "s" })
            }
            Self::FlowdGo { method } => format!("flowd-go {method}"),
        }
    }

    /// Number of the contestant that it is compared with. Of two flows over veth with segments of different
    /// size one may be twice as fast without any label, so options, for which TCP makes segments 8 bytes
    /// smaller, are compared with unmarked ones of their size. flowd-go does not change the segment size.
    fn beside(self) -> usize {
        match self {
            Self::Unmarked { smaller: true } | Self::Ours { method: "destination", .. } => 1,
            _ => 0,
        }
    }

    /// Name of its egress program in the kernel.
    fn program(self) -> &'static str {
        match self {
            Self::FlowdGo { .. } => "marker",
            _ => "mark_frame",
        }
    }
}

fn row(
    who: MarkingContestant,
    unmarked: &[IperfRun],
    theirs: &[IperfRun],
    costs: &[(f64, u64)],
) -> MarkingRow {
    let pairs = || unmarked.iter().zip(theirs);
    let ratios: Vec<f64> = pairs().map(|(none, run)| run.gbit_per_s / none.gbit_per_s).collect();
    let cpu: Vec<f64> = pairs().map(|(none, run)| run.cpu_s_per_gb / none.cpu_s_per_gb).collect();
    let middle = |values: &[f64]| median(values.iter().copied()).unwrap_or_default();
    MarkingRow {
        contestant: who.name(),
        gbit_per_s: median(theirs.iter().map(|run| run.gbit_per_s)).unwrap_or_default(),
        throughput_ratio: middle(&ratios),
        throughput_ratio_least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        throughput_ratio_most: ratios.iter().copied().fold(0.0, f64::max),
        cpu_s_per_gb: median(theirs.iter().map(|run| run.cpu_s_per_gb)).unwrap_or_default(),
        cpu_ratio: middle(&cpu),
        program_ns_per_packet: median(costs.iter().map(|(ns, _)| *ns)),
        program_runs: (!costs.is_empty()).then(|| costs.iter().map(|(_, runs)| runs).sum()),
    }
}

fn sh(line: &str) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .output()
        .with_context(|| format!("cannot run {}", words[0]))?;
    if !output.status.success() {
        bail!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl VethPair {
    fn new(penstock: PathBuf, options: &Options) -> Result<Self> {
        let mtu = options.mtu;
        let name = format!("pb{}", std::process::id());
        let flowd_go = options.flowd_go.as_ref().map(std::path::absolute).transpose()?;
        let mut lab = Self {
            here: format!("{name}a"),
            there: format!("{name}b"),
            dir: tempfile::tempdir()?,
            penstock,
            flowd_go,
            mtu,
            block: options.block.clone(),
            server: None,
        };
        std::fs::create_dir(lab.bpf())?;
        sh(&format!("mount -t bpf bpf {}", lab.bpf().display()))?;
        let (here, there) = (lab.here.clone(), lab.there.clone());
        for ns in [&here, &there] {
            sh(&format!("ip netns add {ns}"))?;
            sh(&format!("ip -n {ns} link set lo up"))?;
        }
        sh(&format!("ip -n {here} link add pb0 type veth peer name pb0 netns {there}"))?;
        for (ns, last) in [(&here, 1), (&there, 2)] {
            sh(&format!("ip -n {ns} link set pb0 mtu {mtu}"))?;
            sh(&format!("ip -n {ns} addr add fd00:78::{last}/64 dev pb0 nodad"))?;
            sh(&format!("ip -n {ns} link set pb0 up"))?;
        }
        let server = lab.inside(&there, "iperf3").arg("-s").stdout(Stdio::null()).spawn();
        lab.server = Some(server.context("cannot run iperf3")?);
        Ok(lab)
    }

    fn bpf(&self) -> PathBuf {
        self.dir.path().join("bpf")
    }

    fn inside(&self, ns: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{ns}")).arg(program);
        command
    }

    fn measure(&self, who: MarkingContestant, seconds: u32) -> Result<IperfRun> {
        let marker = self.begin(who)?;
        let run = self.iperf(who, seconds);
        self.end(who, marker)?;
        run
    }

    /// Nanoseconds of the egress program per run, and its runs.
    fn cost(&self, who: MarkingContestant, seconds: u32) -> Result<Option<(f64, u64)>> {
        let before = std::fs::read_to_string(STATS).unwrap_or_default();
        let marker = self.begin(who)?;
        std::fs::write(STATS, "1")?;
        let run = self.iperf(who, seconds);
        std::fs::write(STATS, before.trim())?;
        let shown = sh("bpftool -j prog show");
        self.end(who, marker)?;
        run?;
        let shown: Value = serde_json::from_str(&shown?)?;
        let programs = shown.as_array().cloned().unwrap_or_default();
        let found = programs.iter().filter(|one| one["name"] == who.program());
        let counts = found.filter_map(|one| {
            Some((one["run_time_ns"].as_u64()?, one["run_cnt"].as_u64().filter(|runs| *runs > 0)?))
        });
        let most = counts.max_by_key(|(_, runs)| *runs);
        Ok(most.map(|(time, runs)| (time as f64 / runs as f64, runs)))
    }

    fn iperf(&self, who: MarkingContestant, seconds: u32) -> Result<IperfRun> {
        // TCP_MAXSEG counts the 12 bytes of the timestamps, too.
        let smaller = match who {
            MarkingContestant::Unmarked { smaller: true } => {
                vec!["-M".to_owned(), (self.mtu - IPV6_AND_TCP_BYTES - OPTION_BYTES).to_string()]
            }
            _ => Vec::new(),
        };
        let mut last = String::new();
        for _ in 0..20 {
            let output = self
                .inside(&self.here, "iperf3")
                .args(["-6", "-c", "fd00:78::2", "-J", "-C", "cubic"])
                // Pin each end to its own processor: placement affects throughput more than labels do.
                .args(["-A", "0,1", "-t", &seconds.to_string(), "-l", &self.block])
                .args(&smaller)
                .output()?;
            let facts: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
            let end = &facts["end"];
            if let (Some(bits), Some(bytes)) = (
                end["sum_received"]["bits_per_second"].as_f64(),
                end["sum_received"]["bytes"].as_f64(),
            ) {
                let cpu = &end["cpu_utilization_percent"];
                let percent = cpu["host_total"].as_f64().unwrap_or(0.0)
                    + cpu["remote_total"].as_f64().unwrap_or(0.0);
                return Ok(IperfRun {
                    gbit_per_s: bits / 1e9,
                    cpu_s_per_gb: percent / 100.0 * f64::from(seconds) / (bytes / 1e9),
                });
            }
            last = facts["error"].as_str().unwrap_or("no result").to_owned();
            // The server still handles the previous run, or is not up yet.
            std::thread::sleep(Duration::from_millis(250));
        }
        bail!("iperf3: {last}")
    }

    fn begin(&self, who: MarkingContestant) -> Result<Option<Child>> {
        let log = self.dir.path().join("log");
        let mut command = match who {
            MarkingContestant::Unmarked { .. } => return Ok(None),
            MarkingContestant::Ours { method, rules } => {
                let file = self.dir.path().join("rules.toml");
                std::fs::write(&file, rules_file(method, rules))?;
                let mut command = self.inside(&self.here, &self.penstock);
                command
                    .args(["tag", "run", "--interface", "pb0", "--pin"])
                    .arg(self.bpf().join("m"));
                command
                    .arg("--config")
                    .arg(file)
                    .env("PENSTOCK_STATE", self.dir.path().join("state"));
                command
            }
            MarkingContestant::FlowdGo { method } => {
                let file = self.dir.path().join("conf.yaml");
                std::fs::write(&file, flowd_go_file(method, self.dir.path()))?;
                let binary = self.flowd_go.as_ref().context("no flowd-go")?;
                let mut command = self.inside(&self.here, binary);
                command.args(["run", "--conf"]).arg(file);
                command
            }
        };
        let output = std::fs::File::create(&log)?;
        let child = command.stdout(output.try_clone()?).stderr(output).spawn()?;
        let begun = Instant::now();
        while !self.attached(who)? {
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("{} does not start: {}", who.name(), std::fs::read_to_string(&log)?);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Some(child))
    }

    fn attached(&self, who: MarkingContestant) -> Result<bool> {
        if matches!(who, MarkingContestant::Ours { .. }) {
            let log = std::fs::read_to_string(self.dir.path().join("log"))?;
            return Ok(log.contains("rules in force"));
        }
        let shown =
            sh(&format!("nsenter --net=/run/netns/{} tc filter show dev pb0 egress", self.here))?;
        Ok(shown.contains("bpf"))
    }

    fn end(&self, who: MarkingContestant, marker: Option<Child>) -> Result<()> {
        let Some(mut marker) = marker else { return Ok(()) };
        sh(&format!("kill -TERM {}", marker.id()))?;
        marker.wait()?;
        if matches!(who, MarkingContestant::Ours { .. }) {
            let pin = self.bpf().join("m");
            sh(&format!("{} tag stop --pin {}", self.penstock.display(), pin.display()))?;
        }
        let _ = sh(&format!("nsenter --net=/run/netns/{} tc qdisc del dev pb0 clsact", self.here));
        Ok(())
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        for ns in [&self.here, &self.there] {
            let _ = sh(&format!("ip netns del {ns}"));
        }
        let _ = sh(&format!("umount -l {}", self.bpf().display()));
    }
}

fn rules_file(method: &str, rules: usize) -> String {
    let mut text = String::new();
    for number in 0..rules {
        let (to, port) = match number {
            0 => ("fd00:78::2".to_owned(), IPERF_PORT),
            _ => (format!("fd00:1::{number:x}"), 1094),
        };
        let _ = write!(
            text,
            "[[rule]]\nscitag = \"3/14\"\nlabel = \"{method}\"\ndestination = \"{to}\"\ndestination_port = {port}\nprotocol = \"tcp\"\n"
        );
    }
    text
}

/// Configuration of flowd-go that marks everything: its least work per packet.
fn flowd_go_file(method: &str, dir: &Path) -> String {
    format!(
        "pidPath: {}/pid\nworkDir: {}\nplugins:\n  perfsonar:\n    activityId: 14\n    experimentId: 3\nbackends:\n  marker:\n    targetInterfaces: [\"pb0\"]\n    markingStrategy: {method}\n    matchAll: true\n",
        dir.display(),
        dir.display()
    )
}

fn write(
    folder: &Path,
    facts: &machine::MachineFacts,
    rows: &[MarkingRow],
    options: &Options,
) -> Result<()> {
    let mut text = format!(
        "# Marking: what labels cost\n\niperf3 (-C cubic -A 0,1 -l {}), one TCP stream over veth in namespaces, MTU {}, {} rounds of {} s. Ratios are\nmedians over the rounds of the ratio to the unmarked run of the same round with segments of the same size (least to most). CPU is that of both iperf3 processes, in which\nveth does the work of the kernel, too. Cost is the egress program's, by the kernel's count, per packet that it\nsees (super-packets of up to 64 KiB), a median over rounds, too.\n\n",
        options.block, options.mtu, options.rounds, options.seconds
    );
    text.push_str("| contestant | Gbit/s | ratio | CPU s/GB | CPU ratio | program ns/packet |\n|---|---|---|---|---|---|\n");
    for row in rows {
        let cost = row.program_ns_per_packet.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.3} ({:.3} to {:.3}) | {:.3} | {:.3} | {cost} |",
            row.contestant,
            row.gbit_per_s,
            row.throughput_ratio,
            row.throughput_ratio_least,
            row.throughput_ratio_most,
            row.cpu_s_per_gb,
            row.cpu_ratio
        );
    }
    let _ = write!(
        text,
        "\nMachine: {}, {} CPUs, {} GiB, Linux {}, {}; commit {}; load at the end {}; {}.\n",
        facts.cpu,
        facts.cores,
        facts.memory_gib,
        facts.kernel,
        facts.congestion_control,
        facts.commit,
        facts.load_at_end,
        facts.date
    );
    std::fs::create_dir_all(folder)?;
    let name = format!("marking-{}-{}-{}", options.block, facts.date, facts.words());
    std::fs::write(folder.join(format!("{name}.md")), &text)?;
    let object = serde_json::json!({"machine": facts, "mtu": options.mtu, "block": options.block, "rounds": options.rounds, "seconds": options.seconds, "rows": rows});
    std::fs::write(
        folder.join(format!("{name}.json")),
        serde_json::to_string_pretty(&object)? + "\n",
    )?;
    println!("\n{text}");
    Ok(())
}
