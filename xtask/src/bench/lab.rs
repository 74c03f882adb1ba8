//! `cargo xtask bench lab`: accuracy and speed of the lab's links, measured by independent programs.
//!
//! Round-trip times are measured with UDP datagrams between two programs (ping rounds to a millisecond above 100 ms),
//! rates and speeds with iperf3, losses with ping. With `--rattan`, the table has a column for rattan (crates.io) at the
//! same settings.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::contest::median;
use super::machine;
use crate::workspace_root;

const RTTS_MS: [u32; 3] = [10, 65, 180];
const RATES_BPS: [u64; 4] = [10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];
const LOSS_SHARES: [f64; 3] = [0.001, 0.01, 0.1];
const MTU_BYTES: u32 = 9000;
/// Headers of IPv6 and of TCP with timestamps.
const HEADER_BYTES: f64 = 72.0;
const ETHERNET_BYTES: f64 = 38.0;
/// Time for a stream to reach its full rate.
const GROWTH_S: u32 = 6;
/// Twice the bandwidth-delay product of 30 Gb/s at 65 ms.
const TCP_MEMORY: &str = "4096 131072 1073741824";
const TOPOLOGY: &str = r#"
name = "bench"
[[host]]
name = "a"
interface = [{ name = "eth0", rate = "400G", mtu = 9000 }]
[[host]]
name = "b"
interface = [{ name = "eth0", rate = "400G", mtu = 9000 }]
[[link]]
name = "wan"
ends = ["a:eth0", "b:eth0"]
"#;

/// Echoes datagrams at the far end. Both ends run with real-time priority, so that scheduling delays do not count.
const ECHO: &str = "
import os, socket
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('::', 7))
while True:
    data, peer = s.recvfrom(99); s.sendto(data, peer)";

/// Measures a number of round trips to an address, 50 per second; prints milliseconds.
const PROBE: &str = "
import os, socket, struct, sys, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
count = int(sys.argv[1])
to = socket.getaddrinfo(sys.argv[2], 7, type=socket.SOCK_DGRAM)[0]
s = socket.socket(to[0], socket.SOCK_DGRAM)
now = time.perf_counter
due, sent, back = now(), 0, 0
while back < count:
    if sent < count and now() >= due:
        s.sendto(struct.pack('d', now()), to[4])
        sent, due = sent + 1, due + 0.02
    s.settimeout(max(0.0001, due - now()) if sent < count else 5)
    try: data = s.recv(9)
    except TimeoutError:
        if sent == count: break
        continue
    print((now() - struct.unpack('d', data)[0]) * 1000)
    back += 1";

/// Options of `cargo xtask bench lab`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Seconds that each rate and speed is measured; five times as many for 10 Mb/s, where a packet takes 7 ms.
    #[arg(long, default_value_t = 6)]
    seconds: u32,
    /// Round trips of each delay.
    #[arg(long, default_value_t = 300)]
    pings: u32,
    /// Rounds of each speed, of which the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only compare 64 streams with one, and print the row.
    #[arg(long)]
    streams_only: bool,
    /// Rate of the link on which 64 streams are compared with one, in bits per second: one that the machine can carry.
    #[arg(long, default_value_t = 8_000_000_000)]
    streams_rate: u64,
    /// The binary; target/release/penstock by default.
    #[arg(long)]
    penstock: Option<PathBuf>,
    /// A binary of rattan (`cargo install rattan`), to stand beside.
    #[arg(long)]
    rattan: Option<PathBuf>,
    /// Directory of the results.
    #[arg(long)]
    results: Option<PathBuf>,
}

/// A measured value beside the configured one.
#[derive(Debug, Serialize)]
struct LabRow {
    what: String,
    wanted: String,
    got: String,
    rattan: Option<String>,
    kept: bool,
}

/// Measures and writes the results.
///
/// # Errors
/// Without root, or when a program is missing or fails.
pub fn run(options: &Options) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "must run as root: namespaces");
    let root = workspace_root();
    let penstock = options.penstock.clone().unwrap_or_else(|| root.join("target/release/penstock"));
    ensure!(penstock.exists(), "{} is missing: cargo build --release", penstock.display());
    let lab = BenchLab::up(std::path::absolute(penstock)?)?;
    if options.streams_only {
        let row = many_streams(&lab, options)?;
        println!("{}: {} wanted, {} got", row.what, row.wanted, row.got);
        return Ok(());
    }
    let rattan = options.rattan.as_ref().map(|path| Rattan::new(path)).transpose()?;
    let mut rows = Vec::new();
    let mut note = |row: LabRow| {
        println!("{}: {} wanted, {} got", row.what, row.wanted, row.got);
        rows.push(row);
    };
    for rtt in RTTS_MS {
        note(round_trips(&lab, rattan.as_ref(), rtt, options.pings)?);
    }
    for loss in LOSS_SHARES {
        note(losses(&lab, loss)?);
    }
    for delay_ms in [0, 10] {
        for rate in RATES_BPS {
            note(rate_of(&lab, rate, delay_ms, options.seconds)?);
        }
    }
    for (streams, cap, wanted) in [(1, None, 25.0), (4, None, 25.0), (1, Some(10_000_000_000), 9.8)]
    {
        note(speed(&lab, rattan.as_ref(), streams, cap, wanted, options)?);
    }
    note(many_streams(&lab, options)?);
    let facts = machine::facts(&root, lab.state.path())?;
    let folder = options.results.clone().unwrap_or_else(|| root.join("bench/results"));
    write(&folder, &facts, &rows, options)
}

fn round_trips(lab: &BenchLab, rattan: Option<&Rattan>, rtt_ms: u32, pings: u32) -> Result<LabRow> {
    lab.set(&format!("delay={}us rate=none loss=0", rtt_ms * 500))?;
    let probe = |to: &str| format!("python3 -c \"{PROBE}\" {pings} {to}");
    let got = Trips::of(&lab.exec("a", &probe("b"))?)?;
    let theirs = match rattan {
        Some(rattan) => Some(Trips::of(&rattan.exec(rtt_ms, None, &probe("$PEER"))?)?),
        None => None,
    };
    let wanted = f64::from(rtt_ms);
    Ok(LabRow {
        what: format!("round trip, {pings} on an idle link"),
        wanted: format!("{rtt_ms} ms; p50 within 0.2 ms, p99 within 1 ms"),
        kept: got.p50 - wanted < 0.2 && got.p99 - wanted < 1.0 && got.least >= wanted,
        got: got.text(),
        rattan: theirs.map(|trips| trips.text()),
    })
}

/// Round trips in milliseconds.
struct Trips {
    least: f64,
    p50: f64,
    p99: f64,
}

impl Trips {
    /// Parses the output of [`PROBE`].
    fn of(text: &str) -> Result<Self> {
        let mut times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        times.sort_by(f64::total_cmp);
        let least = *times.first().context("no probe came back")?;
        Ok(Self { least, p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] })
    }

    fn text(&self) -> String {
        format!("p50 {:.2}, p99 {:.2} ms", self.p50, self.p99)
    }
}

/// Loss in one direction only, so that each probe passes it once.
fn losses(lab: &BenchLab, loss: f64) -> Result<LabRow> {
    lab.set("delay=0 rate=none loss=0")?;
    lab.set_one_way(&format!("loss={}%", loss * 100.0))?;
    let count = 20_000.0;
    // With -f, ping waits for a reply or 10 ms.
    let text = lab.exec("a", &format!("ping -q -n -f -c {count} b"))?;
    lab.set_one_way("loss=0")?;
    let received: f64 = text
        .split(',')
        .find_map(|part| part.trim().strip_suffix(" received")?.parse().ok())
        .with_context(|| format!("ping says nothing of packets received: {text}"))?;
    let interval = 1.96 * (loss * (1.0 - loss) / count).sqrt();
    let got = 1.0 - received / count;
    Ok(LabRow {
        what: format!("loss of {count} probes"),
        wanted: format!("{:.2} ± {:.3} %", loss * 100.0, interval * 100.0),
        got: format!("{:.3} %", got * 100.0),
        rattan: None,
        kept: (got - loss).abs() <= interval,
    })
}

fn rate_of(lab: &BenchLab, rate_bps: u64, delay_ms: u32, seconds: u32) -> Result<LabRow> {
    lab.set(&format!("delay={delay_ms}ms rate={rate_bps}b/s loss=0 queue=none"))?;
    let seconds = if rate_bps <= 10_000_000 { seconds * 5 } else { seconds };
    let (bps, _) = lab.iperf(seconds, 2)?;
    let segment = f64::from(MTU_BYTES);
    let wire = bps * (segment + ETHERNET_BYTES) / (segment - HEADER_BYTES);
    let share = wire / rate_bps as f64;
    let how = if delay_ms == 0 { "no delay" } else { "20 ms of round trip" };
    Ok(LabRow {
        what: format!("rate on the wire, two TCP streams, {how}"),
        wanted: format!("{} Mb/s within 1 %", rate_bps / 1_000_000),
        got: format!("{:.2} Mb/s ({:+.2} %)", wire / 1e6, (share - 1.0) * 100.0),
        rattan: None,
        kept: (share - 1.0).abs() <= 0.01,
    })
}

fn speed(
    lab: &BenchLab,
    rattan: Option<&Rattan>,
    streams: u32,
    cap: Option<u64>,
    wanted: f64,
    options: &Options,
) -> Result<LabRow> {
    let rate = cap.map_or("none".to_owned(), |cap| format!("{cap}b/s"));
    lab.set(&format!("delay=32500us rate={rate} loss=0 queue=none"))?;
    // Without a rate limit no queue ends cubic's slow start, and HyStart would end it at random. Windows of several streams
    // without HyStart exceed the kernel's memory for TCP, which then drops packets.
    let is_alone = cap.is_none() && streams == 1;
    let hystart = if is_alone { Some(WithoutHystart::begin()?) } else { None };
    let (mut ours, mut theirs, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let (bps, late_ms) = lab.iperf(options.seconds, streams)?;
        ours.push(bps / 1e9);
        late.push(late_ms);
        if let Some(rattan) = rattan {
            theirs.push(rattan.iperf(65, cap, options.seconds, streams)? / 1e9);
        }
    }
    drop(hystart);
    let middle = |values: &[f64]| median(values.iter().copied()).unwrap_or_default();
    let got = middle(&ours);
    let cap =
        cap.map_or("no cap".to_owned(), |cap| format!("a cap of {} Gb/s", cap / 1_000_000_000));
    Ok(LabRow {
        what: format!("TCP at 65 ms, streams: {streams}, {cap}"),
        wanted: format!("at least {wanted} Gb/s"),
        got: format!("{got:.2} Gb/s ({}); late p99 {:.1} ms", list(&ours), middle(&late)),
        rattan: (!theirs.is_empty())
            .then(|| format!("{:.2} Gb/s ({})", middle(&theirs), list(&theirs))),
        kept: got >= wanted,
    })
}

/// Compares what 64 streams carry together at 65 ms with what one carries, alternately.
fn many_streams(lab: &BenchLab, options: &Options) -> Result<LabRow> {
    let rate = options.streams_rate;
    lab.set(&format!("delay=32500us rate={rate}b/s loss=0 queue=none"))?;
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        one.push(lab.iperf(options.seconds, 1)?.0 / 1e9);
        many.push(lab.iperf(options.seconds, 64)?.0 / 1e9);
    }
    let middle = |values: &[f64]| median(values.iter().copied()).unwrap_or_default();
    let share = middle(&many) / middle(&one);
    Ok(LabRow {
        what: format!(
            "TCP at 65 ms: 64 streams beside one, a cap of {} Gb/s",
            rate / 1_000_000_000
        ),
        wanted: "0.95 of one, at least".to_owned(),
        got: format!(
            "{share:.3}: {:.2} Gb/s ({}) beside {:.2} ({})",
            middle(&many),
            list(&many),
            middle(&one),
            list(&one)
        ),
        rattan: None,
        kept: share >= 0.95,
    })
}

/// Disables cubic's HyStart until dropped: it ends slow start at the first late packet, and the window then takes minutes
/// to grow.
struct WithoutHystart(String);

impl WithoutHystart {
    const FILE: &str = "/sys/module/tcp_cubic/parameters/hystart";

    fn begin() -> Result<Self> {
        let before = std::fs::read_to_string(Self::FILE).context(Self::FILE)?;
        std::fs::write(Self::FILE, "0").context(Self::FILE)?;
        Ok(Self(before))
    }
}

impl Drop for WithoutHystart {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::FILE, &self.0);
    }
}

fn list(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
}

/// A lab of two hosts and a link; dropping it shuts it down.
struct BenchLab {
    penstock: PathBuf,
    state: tempfile::TempDir,
}

impl BenchLab {
    fn up(penstock: PathBuf) -> Result<Self> {
        let state = tempfile::tempdir()?;
        let file = state.path().join("bench.toml");
        std::fs::write(&file, TOPOLOGY)?;
        let lab = Self { penstock, state };
        lab.penstock(&["up", &file.display().to_string(), "--no-calibration"])?;
        for host in ["a", "b"] {
            let memory = format!(
                "echo '{TCP_MEMORY}' | tee /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_wmem"
            );
            lab.exec(host, &memory)?;
        }
        lab.exec(
            "b",
            &format!("iperf3 -s -D >/dev/null 2>&1; python3 -c \"{ECHO}\" >/dev/null 2>&1 &"),
        )?;
        Ok(lab)
    }

    fn penstock(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.penstock);
        command.arg("lab").args(arguments).env("PENSTOCK_STATE", self.state.path());
        output(&mut command)
    }

    /// Runs a shell line on a host.
    fn exec(&self, host: &str, line: &str) -> Result<String> {
        self.penstock(&["exec", host, "--", "sh", "-c", line])
    }

    fn set(&self, settings: &str) -> Result<()> {
        let words: Vec<&str> = ["set", "wan"].into_iter().chain(settings.split(' ')).collect();
        self.penstock(&words).map(|_| ())
    }

    fn set_one_way(&self, setting: &str) -> Result<()> {
        self.penstock(&["set", "wan", setting, "--way", "forward"]).map(|_| ())
    }

    /// Received bits per second after some seconds of growth, and the p99 delay error of the link in milliseconds.
    fn iperf(&self, seconds: u32, streams: u32) -> Result<(f64, f64)> {
        let line = format!("iperf3 -c b -C cubic -P {streams} -O {GROWTH_S} -t {seconds} -l 1M -J");
        let received = received_bps(&self.exec("a", &line)?)?;
        let status: Value = serde_json::from_str(&self.penstock(&["status", "--json"])?)?;
        let late = &status["links"][0]["directions"][0]["late_p99_seconds"];
        Ok((received, late.as_f64().unwrap_or_default() * 1e3))
    }
}

impl Drop for BenchLab {
    fn drop(&mut self) {
        let _ = self.penstock(&["down"]);
    }
}

/// Received bits per second in the output of `iperf3 -J`.
fn received_bps(text: &str) -> Result<f64> {
    let report: Value = serde_json::from_str(text).context("iperf3 prints no JSON")?;
    report["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .with_context(|| format!("iperf3 measured nothing: {}", report["error"]))
}

/// The emulator rattan, which runs a program behind its own link.
struct Rattan(PathBuf);

impl Rattan {
    fn new(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
        ensure!(path.exists(), "{} is missing: cargo install rattan", path.display());
        Ok(Self(path))
    }

    /// Runs a shell line behind a link; $PEER is the far namespace, with an iperf3 server.
    fn exec(&self, rtt_ms: u32, rate_bps: Option<u64>, line: &str) -> Result<String> {
        let delay = format!("{}us", rtt_ms * 500);
        let rate = rate_bps.map_or(String::new(), |rate| {
            let rate = rate / 1_000_000;
            format!("--uplink-bandwidth {rate}Mbps --downlink-bandwidth {rate}Mbps")
        });
        let far = format!(
            "ip link set lo up; iperf3 -s -D >/dev/null 2>&1; python3 -c \"{ECHO}\" & '{}' link --uplink-delay {delay} --downlink-delay {delay} \
             {rate} -- sh -c \"$0\"; pkill --ns $$ --nslist net 'iperf3|python3'",
            self.0.display()
        );
        let near = format!("PEER=$RATTAN_BASE; {line}");
        let mut command = Command::new("unshare");
        output(command.args(["--net", "sh", "-c", &far, &near]).env("RUST_LOG", "error"))
    }

    fn iperf(&self, rtt_ms: u32, rate_bps: Option<u64>, seconds: u32, streams: u32) -> Result<f64> {
        let line =
            format!("iperf3 -c $PEER -C cubic -P {streams} -O {GROWTH_S} -t {seconds} -l 1M -J");
        received_bps(&self.exec(rtt_ms, rate_bps, &line)?)
    }
}

fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {}{text}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(text)
}

fn write(
    folder: &Path,
    facts: &machine::MachineFacts,
    rows: &[LabRow],
    options: &Options,
) -> Result<()> {
    let mut page = format!(
        "# The lab's links, {}\n\n{}, {} cores, {} GiB, Linux {}; commit {}; load at the end {}\n\n\
         iperf3 with cubic (one stream without a cap also without HyStart) for {} s after {GROWTH_S} s to grow; MTU {MTU_BYTES}, tcp_rmem and tcp_wmem to 1 GiB; speeds are medians of \
         {}.\n\n| what | wanted | got | rattan | kept |\n|---|---|---|---|---|\n",
        facts.date,
        facts.cpu,
        facts.cores,
        facts.memory_gib,
        facts.kernel,
        facts.commit,
        facts.load_at_end,
        options.seconds,
        options.rounds,
    );
    for LabRow { what, wanted, got, rattan, kept } in rows {
        let (rattan, kept) = (rattan.as_deref().unwrap_or(""), if *kept { "yes" } else { "no" });
        writeln!(page, "| {what} | {wanted} | {got} | {rattan} | {kept} |")?;
    }
    std::fs::create_dir_all(folder)?;
    let name = format!("lab-{}-{}", facts.date, facts.words());
    std::fs::write(folder.join(format!("{name}.md")), &page)?;
    let json = serde_json::json!({ "machine": facts, "rows": rows });
    std::fs::write(
        folder.join(format!("{name}.json")),
        serde_json::to_string_pretty(&json)? + "\n",
    )?;
    println!("\n{page}");
    Ok(())
}
