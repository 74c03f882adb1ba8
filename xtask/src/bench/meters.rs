//! Contestants that move no files: memory-to-memory network tests, and fio for the device limit.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::contest::{Contestant, RunSample};
use super::movers::find_program;
use super::process::{Server, free_port, run_client};
use super::report::{BASELINE_NETTEST, NETTEST_LIMIT, OURS_NETTEST};
use super::work::{BenchDataset, Work};

/// Name of the row with the device's concurrent read and write rate.
pub(super) const DEVICE: &str = "device limit (fio)";

/// Program of a network test.
#[derive(Debug, Clone)]
pub(super) enum Tester {
    Penstock(PathBuf),
    /// An earlier binary.
    Baseline(PathBuf),
    Iperf {
        zero_copy: bool,
    },
    /// The loop of `bench/reference/nettest.c`.
    Reference(PathBuf),
}

/// Streams for a fixed time: TCP with cubic on both sides, or UDP as fast as the sender can.
pub(super) struct NetTest {
    pub(super) tester: Tester,
    pub(super) udp: bool,
    pub(super) streams: u32,
    pub(super) seconds: u64,
    pub(super) work: Rc<Work>,
    pub(super) server: Option<(Server, u16)>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) note: Option<String>,
}

impl NetTest {
    fn server_command(&self, port: u16) -> Result<Command> {
        let mut command = match &self.tester {
            Tester::Penstock(path) | Tester::Baseline(path) if !path.is_file() => {
                bail!("binary not found at {}: build it or name it with --penstock", path.display())
            }
            Tester::Penstock(path) | Tester::Baseline(path) => {
                let mut command = Command::new(path);
                command.args(["nettest", "--listen", &format!("127.0.0.1:{port}")]);
                command
            }
            Tester::Iperf { .. } if find_program("iperf3").is_none() => {
                bail!("iperf3 is not installed: --install gets it")
            }
            Tester::Iperf { .. } => {
                let mut command = Command::new("iperf3");
                command.args(["-s", "-B", "127.0.0.1", "-p", &port.to_string()]);
                command
            }
            Tester::Reference(path) => {
                let mut command = Command::new(path);
                command.args(["-s", &port.to_string()]);
                command
            }
        };
        command.env("PENSTOCK_STATE", self.work.configuration().join("penstock"));
        Ok(command)
    }

    fn client_command(&self, port: u16) -> Command {
        let (time, streams) = (self.seconds.to_string(), self.streams.to_string());
        let mut command;
        match &self.tester {
            Tester::Penstock(path) | Tester::Baseline(path) => {
                command = Command::new(path);
                command.args([
                    "nettest",
                    &format!("127.0.0.1:{port}"),
                    "--streams",
                    &streams,
                    "--time",
                    &time,
                ]);
                command.arg("--json");
                match self.udp {
                    false => command.args(["--congestion", "cubic"]),
                    true => command.args(["--udp", "--rate", "none", "--datagram-size", "1400"]),
                };
            }
            Tester::Iperf { zero_copy } => {
                command = Command::new("iperf3");
                command.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-J"]);
                match self.udp {
                    false => command.args(["-C", "cubic", "-l", "1M"]),
                    true => command.args(["-u", "-b", "0", "-l", "1400"]),
                };
                command.args(["-t", &time, "-P", &streams]).args(zero_copy.then_some("-Z"));
            }
            Tester::Reference(path) => {
                command = Command::new(path);
                command.args(["-c", &port.to_string(), &streams, &time]);
            }
        }
        command.env("PENSTOCK_STATE", self.work.configuration().join("penstock"));
        command
    }
}

impl Contestant for NetTest {
    fn name(&self) -> String {
        match &self.tester {
            Tester::Penstock(_) => OURS_NETTEST,
            Tester::Baseline(_) => BASELINE_NETTEST,
            Tester::Iperf { zero_copy: false } => "iperf3",
            Tester::Iperf { zero_copy: true } => "iperf3 -Z",
            Tester::Reference(_) => NETTEST_LIMIT,
        }
        .to_owned()
    }

    fn how(&self) -> String {
        let command = self.client_command(0);
        let arguments: Vec<_> = command
            .get_args()
            .map(|a| a.to_string_lossy().replace("127.0.0.1:0", "HOST"))
            .collect();
        let program = PathBuf::from(command.get_program());
        format!("{} {}", program.file_name().unwrap_or_default().display(), arguments.join(" "))
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn run(&mut self, _warm_up: bool) -> Result<RunSample> {
        let log = self.work.log(&self.name());
        if self.server.is_none() {
            let port = free_port()?;
            let command = self.server_command(port)?;
            self.server =
                Some((Server::start(command, port, &log.with_extension("server"))?, port));
        }
        let Some((server, port)) = &self.server else { bail!("no server") };
        let limit = Duration::from_secs(self.seconds + 20);
        let cost = run_client(self.client_command(*port), Some(server), limit, &log, &self.stop)?;
        let json: Value = serde_json::from_str(&cost.stdout).context("printed no JSON object")?;
        let bits_per_second = match &self.tester {
            Tester::Penstock(_) | Tester::Baseline(_) => {
                let lost = json["udp"]["lost_percent"].as_f64();
                let lost = lost.map_or_else(String::new, |lost| format!(", lost {lost:.0} %"));
                self.note = json["path"].as_str().map(|path| format!("path: {path}{lost}"));
                json["bits_per_second"].as_f64().context("no bits_per_second in the JSON")?
            }
            Tester::Iperf { .. } => {
                let end = &json["end"];
                let lost = end["sum"]["lost_percent"].as_f64().filter(|_| self.udp);
                self.note = lost.map(|lost| format!("lost {lost:.0} %"));
                if !self.udp
                    && [&end["sender_tcp_congestion"], &end["receiver_tcp_congestion"]]
                        .iter()
                        .any(|c| *c != "cubic")
                {
                    bail!("iperf3 did not use cubic on both sides");
                }
                end["sum_received"]["bits_per_second"]
                    .as_f64()
                    .context("no received rate in the JSON")?
            }
            Tester::Reference(_) => {
                json["bits_per_second"].as_f64().context("no bits_per_second in the JSON")?
            }
        };
        Ok(RunSample {
            seconds: self.seconds as f64,
            bytes: bits_per_second * self.seconds as f64 / 8.0,
            cpu_seconds: Some(cost.cpu_seconds),
            client_peak_bytes: cost.client_peak_bytes,
            server_peak_bytes: cost.server_peak_bytes,
            ..RunSample::default()
        })
    }
}

/// Direct reads of the source and direct writes beside the destination at once, 4 MiB blocks, kept in step by fio as a
/// copy would keep them. Left free, reads crowd out writes and the lesser rate is half of what the device can copy.
pub(super) struct Device {
    pub(super) data: BenchDataset,
    pub(super) work: Rc<Work>,
    pub(super) seconds: u64,
    pub(super) stop: Arc<AtomicBool>,
    /// The best engine, found in the warm-up.
    pub(super) best: Option<&'static str>,
}

impl Device {
    /// Bytes per second, the lesser of read and written.
    fn measure(&self, engine: &'static str) -> Result<f64> {
        if find_program("fio").is_none() {
            bail!("fio is not installed: --install gets it");
        }
        self.work.reset(self.data.is_folder)?;
        let mut command = Command::new("fio");
        command.args(["--output-format=json", "--direct=1", "--bs=4M", "--time_based"]);
        command.args([format!("--ioengine={engine}"), format!("--runtime={}", self.seconds)]);
        command.arg(format!("--size={}", self.data.bytes));
        command.arg(if engine == "psync" { "--iodepth=1" } else { "--iodepth=8" });
        command.args(["--flow_id=1", "--flow_sleep=200"]);
        command.args(["--name=source", "--rw=read", "--flow=1"]);
        command.arg(format!("--filename={}", self.data.path.display()));
        command.args(["--name=destination", "--rw=write", "--flow=1"]);
        command.arg(format!("--filename={}", self.work.destination().join("fio.bin").display()));
        let limit = Duration::from_secs(self.seconds + 30);
        let cost = run_client(command, None, limit, &self.work.log("fio"), &self.stop)?;
        let start = cost.stdout.find('{').context("fio printed no JSON")?;
        let json: Value =
            serde_json::from_str(&cost.stdout[start..]).context("cannot read fio's JSON")?;
        let rate = |job: usize, kind: &str| json["jobs"][job][kind]["bw_bytes"].as_f64();
        let (read, write) =
            rate(0, "read").zip(rate(1, "write")).context("no rates in fio's JSON")?;
        Ok(read.min(write))
    }

    fn find_best(&self) -> Result<&'static str> {
        let mut tried = Vec::new();
        let mut last_error = None;
        for engine in ["libaio", "io_uring", "psync"] {
            match self.measure(engine) {
                Ok(rate) => tried.push((rate, engine)),
                Err(error) => last_error = Some(error),
            }
        }
        match (tried.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)), last_error) {
            (Some((_, engine)), _) => Ok(engine),
            (None, Some(error)) => Err(error),
            (None, None) => bail!("fio has no engine"),
        }
    }
}

impl Contestant for Device {
    fn name(&self) -> String {
        DEVICE.to_owned()
    }

    fn how(&self) -> String {
        let engine = self.best.unwrap_or("no engine");
        format!("fio, direct, 4 MiB blocks, {engine}, reads and writes at once and in step")
    }

    fn note(&self) -> Option<String> {
        Some("the lesser of the read and the write rate".to_owned())
    }

    fn run(&mut self, _warm_up: bool) -> Result<RunSample> {
        if self.best.is_none() {
            self.best = Some(self.find_best()?);
        }
        let Some(engine) = self.best else { bail!("no engine") };
        let rate = self.measure(engine)?;
        let seconds = self.seconds as f64;
        Ok(RunSample { seconds, bytes: rate * seconds, files: 1, ..RunSample::default() })
    }
}
