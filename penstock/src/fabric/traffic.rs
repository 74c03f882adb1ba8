//! Workloads: flows of perftest, collective patterns, random arrivals and traces.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use penstock_fabric::workload::{self, Perftest, SizeDistribution};
use penstock_fabric::{FabricNetwork, FlowSpec, RdmaOperation};
use penstock_units::{ByteCount, parse_duration};

use crate::exit::{Code, CommandFailure, OrExit};

const FLOWS_MAX: usize = 4 << 20;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TrafficArgs {
    /// Workload of the hosts
    #[arg(long, value_enum, default_value_t = Workload::WriteBw)]
    pub(crate) workload: Workload,
    /// Host that sends (perftest)
    #[arg(long, value_name = "HOST")]
    from: Option<String>,
    /// Host that receives (perftest, incast)
    #[arg(long, value_name = "HOST")]
    to: Option<String>,
    /// Bytes of a message, of each flow, or of a whole ring
    #[arg(long, short)]
    size: Option<ByteCount>,
    /// All sizes from 2 to 2^23 (perftest)
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Number of messages (perftest) [default: 5000 writes, 1000 of others]
    #[arg(long, short = 'n', value_name = "N")]
    iterations: Option<u64>,
    /// Messages posted at a time (perftest)
    #[arg(long, short = 't', value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    depth: u64,
    /// Messages per completion (perftest) [default: 100, or 1 above 8 KiB without --all]
    #[arg(long, short = 'Q', value_name = "N")]
    moderation: Option<u64>,
    /// Queue pairs (perftest)
    #[arg(long, short = 'q', value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pairs: u32,
    /// Both directions at once (perftest)
    #[arg(long, short)]
    bidirectional: bool,
    /// Hosts that send (incast), or that have a detector (bursts); all others by default
    #[arg(long, value_name = "N")]
    senders: Option<usize>,
    /// Load as a share of each host's line rate (poisson)
    #[arg(long, default_value_t = 0.3)]
    load: f64,
    /// Flows, a line for each: start (seconds, or with a unit), source, destination, bytes (trace)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// web-search, hadoop, storage, google-rpc, or a file of bytes and percent (poisson)
    #[arg(long, value_name = "NAME|FILE", default_value = "web-search")]
    sizes: String,
    /// Time in which flows arrive (poisson, bursts)
    #[arg(long, default_value = "2ms", value_parser = parse_duration)]
    pub(crate) time: Duration,
    /// Interval between two bursts of a detector
    #[arg(long, default_value = "1ms", value_parser = parse_duration)]
    period: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Workload {
    /// Writes from one host to another, as ib_write_bw
    WriteBw,
    /// Writes back and forth, as ib_write_lat
    WriteLat,
    /// Reads, as ib_read_bw
    ReadBw,
    /// Sends, as ib_send_bw
    SendBw,
    /// All send to one
    Incast,
    /// Each sends to one and receives from one
    Permutation,
    /// Each sends to each
    AllToAll,
    /// All-reduce in a ring
    Ring,
    /// Random arrivals, with sizes from a distribution
    Poisson,
    /// Detectors that send at intervals to the other hosts
    Bursts,
    /// Flows of a file
    Trace,
}

impl Workload {
    /// Operation of a perftest, and true if it measures latency.
    pub(crate) const fn perftest(self) -> Option<(RdmaOperation, bool)> {
        match self {
            Self::WriteBw => Some((RdmaOperation::Write, false)),
            Self::WriteLat => Some((RdmaOperation::Write, true)),
            Self::ReadBw => Some((RdmaOperation::Read, false)),
            Self::SendBw => Some((RdmaOperation::Send, false)),
            _ => None,
        }
    }
}

impl TrafficArgs {
    /// Sets load, size or senders; returns false for other names.
    ///
    /// # Errors
    /// When the value is invalid.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, CommandFailure> {
        let wrong = || anyhow!("{name}: '{}' is no value of it", value.escape_debug());
        match name {
            "load" => self.load = value.parse().map_err(|_| wrong()).or_exit(Code::Usage)?,
            "size" => self.size = Some(value.parse().map_err(|_| wrong()).or_exit(Code::Usage)?),
            "senders" => {
                self.senders = Some(value.parse().map_err(|_| wrong()).or_exit(Code::Usage)?)
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Message sizes of successive runs; none for a single run.
    pub(crate) fn sweep(&self) -> Option<Vec<u64>> {
        let is_perftest = self.workload.perftest().is_some();
        (self.all && is_perftest)
            .then(|| workload::PERFTEST_SIZES.map(|power| 1 << power).collect())
    }

    /// Generates the flows, for message size `size` if given.
    ///
    /// # Errors
    /// When hosts are unknown or numbers invalid.
    pub(crate) fn flows(
        &self,
        network: &FabricNetwork,
        swept: Option<u64>,
        seed: u64,
    ) -> Result<Vec<FlowSpec>, CommandFailure> {
        let hosts: Vec<u32> = network.hosts().collect();
        let usage = |text: String| CommandFailure::new(Code::Usage, anyhow!(text));
        let size = swept.or(self.size.map(|size| size.0)).unwrap_or(match self.workload {
            Workload::WriteLat => 2,
            Workload::WriteBw | Workload::ReadBw | Workload::SendBw => 65_536,
            _ => 1_000_000,
        });
        if size == 0 {
            return Err(usage("--size is 0: give it bytes".to_owned()));
        }
        if let Some((operation, is_latency)) = self.workload.perftest() {
            let from = find(network, self.from.as_deref(), hosts[0])?;
            let to = find(network, self.to.as_deref(), hosts[hosts.len() - 1])?;
            if from == to {
                return Err(usage("--from and --to are the same host".to_owned()));
            }
            let mut test = Perftest::new(operation, size, self.all);
            test.iterations =
                self.iterations.unwrap_or(if is_latency { 1000 } else { test.iterations });
            test.depth = self.depth;
            test.moderation = self.moderation.unwrap_or(test.moderation).clamp(1, self.depth);
            test.pairs = self.pairs;
            test.is_bidirectional = self.bidirectional;
            if test.iterations == 0 {
                return Err(usage("--iterations is 0: nothing would be measured".to_owned()));
            }
            return Ok(if is_latency { test.latency(from, to) } else { test.bandwidth(from, to) });
        }
        let time_ps =
            |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 1000) * 1000;
        let few = |count: f64| match count <= FLOWS_MAX as f64 {
            true => Ok(()),
            false => Err(usage(format!(
                "that is {count:.0} flows; {FLOWS_MAX} is the most: choose fewer hosts or less time"
            ))),
        };
        let count = hosts.len() as f64;
        Ok(match self.workload {
            Workload::Incast => {
                let to = find(network, self.to.as_deref(), hosts[0])?;
                let senders = self.senders.unwrap_or(hosts.len() - 1);
                if senders == 0 || senders >= hosts.len() {
                    return Err(usage(format!("--senders is 1 to {}", hosts.len() - 1)));
                }
                workload::incast(&hosts, to, senders, size)
            }
            Workload::AllToAll => {
                few(count * count)?;
                workload::all_to_all(&hosts, size)
            }
            Workload::Ring => workload::ring(&hosts, size),
            Workload::Poisson => {
                if !(self.load > 0.0 && self.load <= 4.0) {
                    return Err(usage(format!(
                        "--load is {}: give it above 0 and up to 4",
                        self.load
                    )));
                }
                let sizes = self.distribution()?;
                let line = line_bps(network, hosts[0]);
                few(count * self.load * line as f64 * self.time.as_secs_f64()
                    / 8.0
                    / sizes.mean())?;
                workload::poisson(&hosts, line, &sizes, self.load, time_ps(self.time), seed)
            }
            Workload::Bursts => {
                let senders = self.senders.unwrap_or(hosts.len() / 2);
                if senders == 0 || senders >= hosts.len() {
                    return Err(usage(format!("--senders is 1 to {}", hosts.len() - 1)));
                }
                if self.period.is_zero() {
                    return Err(usage("--period is 0: give it a time".to_owned()));
                }
                few(senders as f64 * self.time.as_secs_f64() / self.period.as_secs_f64())?;
                let (from, to) = hosts.split_at(senders);
                workload::bursts(from, to, size, time_ps(self.period), time_ps(self.time), seed)
            }
            Workload::Trace => self.traced(network)?,
            _ => workload::permutation(&hosts, size, seed),
        })
    }

    fn traced(&self, network: &FabricNetwork) -> Result<Vec<FlowSpec>, CommandFailure> {
        let Some(file) = &self.trace else {
            let error = anyhow!("--workload trace has no file: name it by --trace");
            return Err(CommandFailure::new(Code::Usage, error));
        };
        let text = crate::topology::text_of(file)?;
        let hosts: HashMap<&str, u32> = network
            .hosts()
            .map(|host| (network.nodes[host as usize].name.as_str(), host))
            .collect();
        workload::trace(&text, |name| hosts.get(name).copied()).map_err(|fault| {
            CommandFailure::new(Code::Usage, anyhow!("{}:{fault}", file.display()))
        })
    }

    fn distribution(&self) -> Result<SizeDistribution, CommandFailure> {
        if let Some(sizes) = SizeDistribution::named(&self.sizes) {
            return Ok(sizes);
        }
        let path = PathBuf::from(&self.sizes);
        if !path.exists() {
            let known = SizeDistribution::NAMES.join(", ");
            let error = anyhow!(
                "there is no distribution and no file '{}': there are {known}",
                self.sizes.escape_debug()
            );
            return Err(CommandFailure::new(Code::Usage, error));
        }
        let text = crate::topology::text_of(&path)?;
        SizeDistribution::read(&text)
            .with_context(|| path.display().to_string())
            .or_exit(Code::Usage)
    }
}

/// Rate of a host's first link.
fn line_bps(network: &FabricNetwork, host: u32) -> u64 {
    let port = network.nodes[host as usize].ports.start;
    network.ports[port as usize].line.bits_per_second()
}

fn find(network: &FabricNetwork, name: Option<&str>, usual: u32) -> Result<u32, CommandFailure> {
    let Some(name) = name else { return Ok(usual) };
    let is_it = |host: &u32| network.nodes[*host as usize].name == name;
    network.hosts().find(is_it).ok_or_else(|| {
        let known: Vec<&str> = network
            .hosts()
            .take(20)
            .map(|host| network.nodes[host as usize].name.as_str())
            .collect();
        let name = name.escape_debug();
        CommandFailure::new(
            Code::Usage,
            anyhow!("there is no host '{name}': there are {}", known.join(", ")),
        )
    })
}
