//! `cargo xtask bench telemetry`: throughput of the flow collector, from UDP datagrams on loopback to stored minutes.
//!
//! One sender sends the same sFlow datagrams to each contestant at a fixed rate. CPU time comes from `/proc`, losses
//! from the kernel's drop counter of the socket. Contestants alternate, and ratios are of medians. goflow2 writes JSON to
//! /dev/null and sfacctd aggregates in memory; only ours stores its results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{HEADER_ETHERNET, SampledHeader};
use penstock_flows::sflow::xdr::Opaque;
use penstock_flows::sflow::{Encoder, FlowRecord, SflowInterface, Source};
use penstock_random::Random;
use penstock_scitags::{FlowLabel, Registry};
use penstock_sys::net::{DATAGRAMS_PER_CALL_MAX, DatagramSender};
use penstock_testkit::raw;
use serde::Serialize;
use serde_json::Value;

use self::cost::RunCost;
use super::contest::median;
use super::{machine, succeed};
use crate::workspace_root;

mod cost;
pub(super) mod scaling;

/// Samples per second that the collector promises to receive without loss.
const PROMISED_SAMPLES_PER_S: f64 = 600_000.0;

/// Number of distinct datagrams, sent repeatedly, and of their agents.
const DATAGRAM_COUNT: usize = 4_096;
const AGENT_COUNT: usize = 8;
const FLOW_COUNT: u64 = 20_000;

/// Samples per second in the comparison, low enough that no contestant drops any.
const COMPARED_SAMPLES_PER_S: f64 = 20_000.0;

/// Socket buffers: a large one, and one so small that datagrams are dropped.
const BUFFER_BYTES: usize = 64 << 20;
const SMALL_BUFFER_BYTES: usize = 256 << 10;

/// Options of `cargo xtask bench telemetry`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Rounds of the comparison.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each run.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Measure this binary instead of building target/release/penstock.
    #[arg(long)]
    penstock: Option<PathBuf>,
    /// A binary of an earlier commit, measured beside this one.
    #[arg(long)]
    before: Option<PathBuf>,
    /// A binary of goflow2, for comparison (go install github.com/netsampler/goflow2/v2/cmd/goflow2@latest).
    #[arg(long)]
    goflow2: Option<PathBuf>,
    /// Folder for the results.
    #[arg(long)]
    results: Option<PathBuf>,
}

/// Datagrams with their samples.
struct SflowLoad {
    datagrams: Vec<Vec<u8>>,
    samples: Vec<u64>,
    /// Last octet of the first agent's address.
    first_agent: u8,
    numbers: [u32; AGENT_COUNT],
    next: usize,
}

fn host(number: u64) -> [u8; 16] {
    Ipv6Addr::new(0x2001, 0xdb8, (number % 8) as u16, 0, 0, 0, 0, (number / 8) as u16 + 1).octets()
}

fn header(flow: u64) -> [u8; 128] {
    let mut random = Random::new(flow);
    let tags: Vec<_> = Registry::builtin().tags().collect();
    let tag = tags[random.next_bits() as usize % tags.len()];
    let label = FlowLabel::new(tag, flow as u8).map_or(0, |label| label.value());
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x0B, 0xB8, 0x86, 0xDD];
    bytes.extend((6 << 28 | label).to_be_bytes());
    bytes.extend([0x22, 0xF8, 6, 64]);
    bytes.extend(host(random.next_bits() % 400));
    bytes.extend(host(random.next_bits() % 400));
    bytes.extend((random.next_bits() as u16).to_be_bytes());
    bytes.extend([0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 255, 255, 0, 0, 0, 0]);
    bytes.resize(128, 0xA5);
    bytes.try_into().expect("128 bytes")
}

impl SflowLoad {
    fn new(first_agent: u8) -> Result<Self> {
        let (mut random, mut datagrams, mut samples) =
            (Random::new(0x5EED), Vec::new(), Vec::new());
        let mut encoders: Vec<_> = (0..AGENT_COUNT)
            .map(|agent| {
                let address = [192, 0, 2, first_agent + agent as u8];
                Encoder::new(IpAddr::from(address), 0, DATAGRAM_BYTES)
            })
            .collect();
        let (mut sequence, mut gathered) = ([0_u32; AGENT_COUNT], [0; AGENT_COUNT]);
        let headers: Vec<_> = (0..FLOW_COUNT).map(header).collect();
        let mut agent = 0;
        while datagrams.len() < DATAGRAM_COUNT {
            // Skewed flow sizes: 1 % of the flows have half of the packets.
            let share = random.next_bits() as f64 / u64::MAX as f64;
            let flow = ((FLOW_COUNT as f64).powf(share) as usize).min(FLOW_COUNT as usize - 1);
            sequence[agent] += 1;
            let port = flow as u32 % 32 + 1;
            let head = FlowHead {
                sequence: sequence[agent],
                source: Source::interface(port),
                sampling_rate: 10_000,
                sample_pool: sequence[agent].wrapping_mul(10_000),
                drops: 0,
                input: SflowInterface::Index(port),
                output: SflowInterface::Index(40),
            };
            let record = FlowRecord::Header(SampledHeader {
                protocol: HEADER_ETHERNET,
                frame_length: 9_018,
                stripped: 4,
                header: Opaque(&headers[flow]),
            });
            match encoders[agent].flow(sequence[agent], &head, &[record])? {
                None => gathered[agent] += 1,
                Some(datagram) => {
                    datagrams.push(datagram);
                    samples.push(gathered[agent]);
                    gathered[agent] = 1;
                    agent = (agent + 1) % AGENT_COUNT;
                }
            }
        }
        Ok(Self { datagrams, samples, first_agent, numbers: [0; AGENT_COUNT], next: 0 })
    }

    /// Sends `rate` samples a second; returns the datagrams and samples sent.
    fn send(&mut self, to: u16, rate: f64, time: Duration) -> Result<(u64, u64)> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(("127.0.0.1", to))?;
        let sender = DatagramSender::new(socket);
        let (begun, mut datagrams, mut samples) = (Instant::now(), 0, 0);
        while begun.elapsed() < time {
            let owed = begun.elapsed().as_secs_f64() * rate - samples as f64;
            if owed <= 0.0 {
                std::thread::sleep(Duration::from_micros(500));
                continue;
            }
            let end = (self.next + DATAGRAMS_PER_CALL_MAX / 2).min(self.datagrams.len());
            for datagram in &mut self.datagrams[self.next..end] {
                let agent = usize::from(datagram[11] - self.first_agent);
                self.numbers[agent] += 1;
                datagram[16..20].copy_from_slice(&self.numbers[agent].to_be_bytes());
            }
            let mut at = self.next;
            while at < end {
                at += sender.send(&self.datagrams[at..end])?;
            }
            datagrams += (end - self.next) as u64;
            samples += self.samples[self.next..end].iter().sum::<u64>();
            self.next = if end == self.datagrams.len() { 0 } else { end };
        }
        Ok((datagrams, samples))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TelemetryContestant {
    Penstock,
    Before,
    Goflow2,
    Sfacctd,
}

impl TelemetryContestant {
    fn name(self) -> &'static str {
        match self {
            Self::Penstock => "penstock serve",
            Self::Before => "penstock serve, earlier commit",
            Self::Goflow2 => "goflow2 (JSON to /dev/null)",
            Self::Sfacctd => "sfacctd (sums in memory)",
        }
    }
}

/// A running contestant; killed when dropped.
struct RunningContestant {
    child: Child,
    port: u16,
    http: String,
}

impl Drop for RunningContestant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct TelemetryBench {
    penstock: PathBuf,
    before: Option<PathBuf>,
    goflow2: Option<PathBuf>,
    dir: tempfile::TempDir,
}

impl TelemetryBench {
    fn start(&self, who: TelemetryContestant) -> Result<RunningContestant> {
        let free = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        let quiet = |mut command: Command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let (child, http) = match who {
            TelemetryContestant::Penstock => return self.start_ours(BUFFER_BYTES, Some(1)),
            TelemetryContestant::Before => return self.start_ours(BUFFER_BYTES, None),
            TelemetryContestant::Goflow2 => {
                let mut command = Command::new(self.goflow2.as_ref().context("no goflow2")?);
                command.args(["-listen", &format!("sflow://127.0.0.1:{free}")]);
                command.args(["-transport", "file", "-transport.file", "/dev/null", "-addr", ""]);
                (quiet(command)?, String::new())
            }
            TelemetryContestant::Sfacctd => {
                let mut command = Command::new("sfacctd");
                command.args(["-L", "127.0.0.1", "-l", &free.to_string(), "-P", "memory"]);
                command.args(["-c", "src_host,dst_host,vlan,peer_src_ip,in_iface"]);
                command.args(["-p", &self.dir.path().join("pipe").display().to_string()]);
                (quiet(command)?, String::new())
            }
        };
        let running = RunningContestant { child, port: free, http };
        let begun = Instant::now();
        while drops(free).is_none() {
            ensure!(begun.elapsed() < Duration::from_secs(20), "{} does not listen", who.name());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    /// Starts our collector with this count of receiving threads; the earlier commit for `None`.
    fn start_ours(&self, buffer_bytes: usize, threads: Option<usize>) -> Result<RunningContestant> {
        let binary = match threads {
            Some(_) => &self.penstock,
            None => self.before.as_ref().context("no earlier binary")?,
        };
        let threads = threads.map_or_else(String::new, |count| format!("threads = {count}\n"));
        let file = self.dir.path().join("penstock.toml");
        std::fs::write(
            &file,
            format!(
                "roles = [\"collector\"]\n[agent]\nhttp = \"127.0.0.1:0\"\nstate = \"state\"\n[collector]\nsflow = [\"127.0.0.1:0\"]\nipfix = []\nfireflies = []\nmarking = [\"2001:db8::/33\"]\nreceive_buffer_bytes = {buffer_bytes}\n{threads}"
            ),
        )?;
        let mut child = Command::new(binary)
            .args(["serve", "--json", "--config"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let facts: Value = serde_json::from_str(&line).context("penstock serve does not start")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let port = text(&facts["telemetry"]["sflow"][0]);
        let port = port.rsplit(':').next().and_then(|port| port.parse().ok()).context("no port")?;
        Ok(RunningContestant { child, port, http: text(&facts["http"][0]) })
    }
}

impl RunningContestant {
    fn cpu_seconds(&self) -> f64 {
        // Count child processes, too: sfacctd aggregates in one.
        let ids = std::iter::once(self.child.id()).chain(children(self.child.id()));
        ids.map(cpu_seconds).sum()
    }

    fn get(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&raw::get(&self.http, path)?)?)
    }

    /// Waits until it uses no more CPU time: all received samples are processed.
    fn settle(&self) {
        let mut last = self.cpu_seconds();
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(250));
            let now = self.cpu_seconds();
            if now - last < 0.02 {
                return;
            }
            last = now;
        }
    }

    /// Sends SIGTERM and waits for the end.
    fn end(mut self) -> Result<()> {
        let id = self.child.id().to_string();
        succeed(Command::new("kill").args(["-TERM", &id]), "is it still there?")?;
        self.child.wait()?;
        Ok(())
    }
}

fn stat_fields(id: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(str::to_owned).collect()
}

/// CPU time of all threads from the scheduler's nanoseconds: ticks are too coarse for hundredths of a second.
fn cpu_seconds(id: u32) -> f64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{id}/task")) else { return 0.0 };
    let of = |path: PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    threads.flatten().filter_map(|thread| of(thread.path())).sum::<f64>() / 1e9
}

fn children(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = parent.to_string();
    ids.filter(|id| stat_fields(*id).get(1) == Some(&parent)).collect()
}

/// Datagrams that the kernel dropped at the sockets of this port; `None` if there is no socket.
fn drops(port: u16) -> Option<u64> {
    ["/proc/net/udp", "/proc/net/udp6"].iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let of_port = text.lines().skip(1).filter(|line| {
            let local = line.split_whitespace().nth(1).unwrap_or_default();
            local.rsplit(':').next() == Some(&format!("{port:04X}"))
        });
        let dropped = of_port.map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        dropped.reduce(|sum, one| Some(sum? + one?))?
    })
}

/// A run of our collector at a rate.
#[derive(Debug, Serialize)]
struct Rate {
    /// Receiving threads; `None` for the earlier commit.
    threads: Option<usize>,
    buffer_kib: usize,
    asked_samples_per_s: f64,
    sent_samples_per_s: f64,
    datagrams_sent: u64,
    datagrams_taken: u64,
    datagrams_dropped: u64,
    /// True if received and dropped datagrams add up to the sent ones.
    exact: bool,
    samples_taken_per_s: f64,
    cpu_share: f64,
    stored_minutes: u64,
    peak_mib: u64,
}

impl TelemetryBench {
    /// Measures from UDP to stored minutes; the service stores them before it ends.
    fn rate(
        &self,
        load: &mut SflowLoad,
        rate: f64,
        time: Duration,
        buffer_bytes: usize,
        threads: Option<usize>,
    ) -> Result<Rate> {
        let running = self.start_ours(buffer_bytes, threads)?;
        let begun = Instant::now();
        let cpu = running.cpu_seconds();
        let (mut datagrams, mut samples) = load.send(running.port, rate, time)?;
        let sent_time = begun.elapsed().as_secs_f64();
        let cpu_share = (running.cpu_seconds() - cpu) / sent_time;
        running.settle();
        // The kernel reports drops with the next received datagram.
        let (more, their) = load.send(running.port, 1_000.0, Duration::from_millis(200))?;
        (datagrams, samples) = (datagrams + more, samples + their);
        running.settle();
        let status = running.get("/api/v1/telemetry/status")?;
        let input = &status["inputs"][0];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let (taken, dropped) = (number(&input["datagrams"]), number(&input["kernel_drops"]));
        let taken_samples = number(&status["received"]["samples"]);
        let id = running.child.id();
        let memory = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let peak = memory.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        running.end()?;
        // A restarted collector reads the stored minutes.
        let again = self.start_ours(buffer_bytes, threads)?;
        let stored = again.get("/api/v1/telemetry/series?by=total&from=-900&step=60")?;
        let minutes = stored["total"]["bps"].as_array().map_or(0, |points| {
            points.iter().filter(|point| point.as_f64().is_some_and(|bps| bps > 0.0)).count()
        });
        ensure!(taken_samples <= samples, "more samples were taken than sent");
        Ok(Rate {
            threads,
            buffer_kib: buffer_bytes >> 10,
            asked_samples_per_s: rate,
            sent_samples_per_s: samples as f64 / sent_time,
            datagrams_sent: datagrams,
            datagrams_taken: taken,
            datagrams_dropped: dropped,
            exact: taken + dropped == datagrams,
            samples_taken_per_s: taken_samples as f64 / sent_time,
            cpu_share,
            stored_minutes: minutes as u64,
            peak_mib: peak.unwrap_or(0) >> 10,
        })
    }

    /// Samples for each second of processor time.
    fn compare(
        &self,
        who: TelemetryContestant,
        load: &mut SflowLoad,
        time: Duration,
    ) -> Result<f64> {
        let running = self.start(who)?;
        // Warm up templates, tables and thread pools before measuring.
        load.send(running.port, COMPARED_SAMPLES_PER_S, time / 6)?;
        running.settle();
        let (cpu, before) = (running.cpu_seconds(), drops(running.port).unwrap_or(0));
        let (datagrams, samples) = load.send(running.port, COMPARED_SAMPLES_PER_S, time)?;
        running.settle();
        let lost = drops(running.port).unwrap_or(0) - before;
        let taken = samples as f64 * (1.0 - lost as f64 / datagrams as f64);
        Ok(taken / (running.cpu_seconds() - cpu))
    }
}

/// Count of receiving threads for a table.
fn threads_name(threads: Option<usize>) -> String {
    threads.map_or_else(|| "earlier commit".to_owned(), |count| count.to_string())
}

/// Measures and writes the results.
pub fn run(options: &Options) -> Result<()> {
    let root = workspace_root();
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(arguments).current_dir(&root);
        command
    };
    if options.penstock.is_none() {
        succeed(&mut cargo(&["build", "--release", "--package", "penstock"]), "mend the build")?;
    }
    let penstock = options.penstock.clone().unwrap_or_else(|| root.join("target/release/penstock"));
    let bench = TelemetryBench {
        penstock: std::path::absolute(penstock)?,
        before: options.before.clone().map(std::path::absolute).transpose()?,
        goflow2: options.goflow2.clone(),
        dir: tempfile::tempdir()?,
    };
    let (time, mut load) = (Duration::from_secs(options.seconds.max(1)), SflowLoad::new(0)?);
    let mut rates = Vec::new();
    let large = [1.0, 2.0, 4.0].map(|factor| (factor, BUFFER_BYTES));
    for (factor, buffer) in large.into_iter().chain([(4.0, SMALL_BUFFER_BYTES)]) {
        eprintln!("UDP to stored minutes, {} samples/s", factor * PROMISED_SAMPLES_PER_S);
        let before = bench.before.as_ref().map(|_| None);
        for threads in before.into_iter().chain([Some(1), Some(2)]) {
            let rate = factor * PROMISED_SAMPLES_PER_S;
            rates.push(bench.rate(&mut load, rate, time, buffer, threads)?);
        }
    }
    let costs = bench.costs(&mut load, time, options.rounds.max(1))?;
    let mut contestants = vec![TelemetryContestant::Penstock];
    contestants.extend(bench.before.as_ref().map(|_| TelemetryContestant::Before));
    contestants.extend(bench.goflow2.as_ref().map(|_| TelemetryContestant::Goflow2));
    let mut sfacctd = Command::new("sfacctd");
    if sfacctd.arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok() {
        contestants.push(TelemetryContestant::Sfacctd);
    }
    let mut figures: BTreeMap<TelemetryContestant, Vec<f64>> = BTreeMap::new();
    for round in 1..=options.rounds.max(1) {
        eprintln!("samples for a second of processor time, round {round}");
        for who in &contestants {
            let figure = bench.compare(*who, &mut load, time)?;
            figures.entry(*who).or_default().push(figure);
        }
    }
    eprintln!("decoding");
    let decode = cargo(&[
        "run",
        "--release",
        "--quiet",
        "--package",
        "penstock-flows",
        "--example",
        "decode_speed",
        "--",
        "2",
    ])
    .output()
    .context("cannot start cargo")?;
    let decode = String::from_utf8_lossy(&decode.stdout).into_owned();
    let facts = machine::facts(&root, bench.dir.path())?;
    let folder = options.results.clone().unwrap_or_else(|| root.join("bench/results"));
    write(&folder, &facts, &rates, &costs, &mut figures, &decode, options)
}

fn write(
    folder: &Path,
    facts: &machine::MachineFacts,
    rates: &[Rate],
    costs: &[RunCost],
    figures: &mut BTreeMap<TelemetryContestant, Vec<f64>>,
    decode: &str,
    options: &Options,
) -> Result<()> {
    let mut text = format!(
        "# Telemetry: from UDP to stored minutes\n\nsFlow over loopback, six samples in a datagram, {FLOW_COUNT} flows of all sizes between 400 hosts, {AGENT_COUNT} agents; the sender runs on the same machine.\n\n## Without loss, and with loss that is counted\n\n| asked, samples/s | receiving threads | socket buffer | sent | taken | datagrams sent | taken | dropped by the kernel | all accounted for | processors used | minutes stored | peak memory |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for rate in rates {
        let _ = writeln!(
            text,
            "| {:.0} | {} | {} KiB | {:.0} | {:.0} | {} | {} | {} | {} | {:.2} | {} | {} MiB |",
            rate.asked_samples_per_s,
            threads_name(rate.threads),
            rate.buffer_kib,
            rate.sent_samples_per_s,
            rate.samples_taken_per_s,
            rate.datagrams_sent,
            rate.datagrams_taken,
            rate.datagrams_dropped,
            if rate.exact { "yes" } else { "NO" },
            rate.cpu_share,
            rate.stored_minutes,
            rate.peak_mib
        );
    }
    cost::write(&mut text, costs, options.rounds);
    let _ = write!(
        text,
        "\n## Samples for each second of processor time\n\n{COMPARED_SAMPLES_PER_S:.0} samples/s to each in turn, {} rounds, medians (least to most).\n\n| collector | samples per CPU second | ours by it |\n|---|---|---|\n",
        options.rounds
    );
    let ours = figures
        .get(&TelemetryContestant::Penstock)
        .and_then(|values| median(values.iter().copied()));
    let ours = ours.unwrap_or_default();
    for (who, values) in figures.iter_mut() {
        values.sort_by(f64::total_cmp);
        let middle = median(values.iter().copied()).unwrap_or_default();
        let (least, most) = (values[0], values[values.len() - 1]);
        let _ = writeln!(
            text,
            "| {} | {middle:.0} ({least:.0} to {most:.0}) | {:.2} |",
            who.name(),
            ours / middle
        );
    }
    let _ = write!(
        text,
        "\n## Decoding alone (records), labelling and summing\n\n```\n{decode}```\n\nMachine: {}, {} CPUs, {} GiB, Linux {}; commit {}; load at the end {}; {}.\n",
        facts.cpu,
        facts.cores,
        facts.memory_gib,
        facts.kernel,
        facts.commit,
        facts.load_at_end,
        facts.date
    );
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(format!("telemetry-{}.md", facts.date)), &text)?;
    println!("\n{text}");
    Ok(())
}
