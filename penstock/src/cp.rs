//! `penstock cp`: copy a dataset, fast, intact, resumable.
//!
//! This file defines the arguments. [`location`] parses paths, [`plan`] lowers the arguments once into a transfer,
//! [`show`] prints progress and results.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use penstock_host::placement::{self, NumaPlacement, Placement, PlacementPolicy};
use penstock_mover::{Engine, TuningMode};
use penstock_protocol::digest::Algorithm;
use penstock_units::{BitRate, ByteCount, Dscp, parse_duration};

use crate::exit::{Code, CommandFailure, OrExit};
use crate::numbers;

mod control_socket;
mod list;
mod local;
pub(crate) mod location;
mod plan;
mod show;
pub(crate) use show::transport_line;
mod sources;
mod ssh_remote;
mod third_party;
mod tuning;

pub(crate) use ssh_remote::{FarEndArgs, run as run_far_end};

/// Copy files and directories between this machine and agents, or between two agents.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CpArgs {
    /// Sources and destination: a local path, penstock://HOST[:PORT]/PATH, or [USER@]HOST:PATH by ssh
    #[arg(value_name = "SRC... DST", required = true, num_args = 1..)]
    pub paths: Vec<std::ffi::OsString>,
    /// Copy directories with all their contents
    #[arg(short, long)]
    pub recursive: bool,
    /// Read the paths to copy from a file, one a line ("-": standard input), relative to SRC, here or remote
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
    /// Paths in the list are separated by NUL bytes, as find -print0 writes them
    #[arg(short = '0', long, requires = "files_from")]
    pub null: bool,
    /// Print one JSON object at the end, and no progress; docs/json.md has its fields
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Data streams; "auto" begins with 2 to 8, and --tune adjusts them
    #[arg(long, value_name = "N", default_value = "auto", value_parser = streams)]
    pub streams: Streams,
    /// Adjust streams, readers and writers while the copy runs, where no option names a number (auto), keep them (off), or
    /// keep them and list what would be tried (observe); for copies that this end, or one agent to another, sends. penstock
    /// transfers show ID --why lists the decisions
    #[arg(long, value_enum, default_value_t = Tune::Auto)]
    pub tune: Tune,
    /// Total rate, such as 10G
    #[arg(long, value_name = "RATE", value_parser = numbers::rate)]
    pub rate: Option<BitRate>,
    /// Protect data streams by encryption (full) or only against changes (integrity)
    #[arg(long, value_enum, default_value_t = Protect::Full)]
    pub protect: Protect,
    /// Carry data by TCP, by RDMA over RoCE (rdma), or by RDMA where both ends can and else by TCP (auto); RDMA needs
    /// --protect integrity
    #[arg(long, value_enum, value_name = "NAME", default_value_t = CopyTransport::Tcp)]
    pub transport: CopyTransport,
    /// DSCP of the packets of data streams, in both directions: a name such as le, af31 or ef, or 0 to 63; agents allow le,
    /// default and their own, unless their operator allows more
    #[arg(long, value_name = "DSCP")]
    pub dscp: Option<Dscp>,
    /// Scitag of the data: OWNER/ACTIVITY by name or number, or a scitag number
    #[arg(long, value_name = "OWNER/ACTIVITY")]
    pub scitag: Option<String>,
    /// Carry the scitag in the IPv6 flow label (flow), in an IPv6 destination option (destination; the sending end
    /// needs CAP_NET_RAW), or in fireflies only (none)
    #[arg(long, value_enum, default_value_t = Labels::Flow, requires = "scitag")]
    pub label: Labels,
    /// Send fireflies to these collectors too, besides to the destination of the data
    #[arg(long, value_name = "HOST[:PORT],...", value_delimiter = ',', requires = "scitag")]
    pub collector: Vec<String>,
    /// Digest of whole files: adler32, crc32c, blake3, sha256, md5 or none
    #[arg(long, value_name = "NAME", default_value = "crc32c")]
    pub checksum: Algorithm,
    /// Write the digests to a file in the format of sha256sum; existing files are read for it
    #[arg(long, value_name = "FILE")]
    pub checksum_file: Option<PathBuf>,
    /// After writing, read every file back and compare its digest
    #[arg(long, value_name = "HOW", value_parser = ["readback"])]
    pub verify: Option<String>,
    /// Treat files as equal only if their digests agree
    #[arg(long, value_name = "HOW", value_parser = ["digest"])]
    pub compare: Option<String>,
    /// Write under the final name from the start (no resume)
    #[arg(long)]
    pub inplace: bool,
    /// Copy extended attributes; warnings name those that the destination refuses
    #[arg(long)]
    pub xattrs: bool,
    /// Connect from these addresses, in turn
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    pub from: Vec<IpAddr>,
    /// Connect to these addresses of the host, in turn
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    pub to: Vec<IpAddr>,
    /// TCP congestion control of data streams, such as cubic or bbr
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Bytes in a block, a power of two
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub block: ByteCount,
    /// Most memory for blocks at this end
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub memory: ByteCount,
    /// Reader threads per source device
    #[arg(long, value_name = "N", value_parser = numbers::threads)]
    pub readers: Option<NonZeroU16>,
    /// Writer threads per destination device
    #[arg(long, value_name = "N", value_parser = numbers::threads)]
    pub writers: Option<NonZeroU16>,
    /// Storage engine at this end: auto, direct, threads or buffered
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub engine: Engine,
    /// Run on these processors, such as 0-3,8; auto chooses those near the network interface, else near the disk, leaves
    /// out those that serve the interface's interrupts, and runs each stream near the interface of its path
    #[arg(long, value_name = "LIST")]
    pub cpu: Option<PlacementPolicy>,
    /// Run on this NUMA node; auto chooses as --cpu auto does
    #[arg(long, value_name = "NODE")]
    pub numa: Option<String>,
    /// Carry data inside ssh too, for hosts without another open port
    #[arg(long)]
    pub via_ssh: bool,
    /// The ssh command and its options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", env = "PENSTOCK_SSH")]
    pub ssh: String,
    /// The penstock command on the remote host
    #[arg(long, value_name = "COMMAND", default_value = "penstock")]
    pub remote_command: String,
    /// Give up after this long without any success
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub give_up_after: Duration,
}

const EXAMPLES: &str = "\
Examples:
  # a file to an agent; a directory, which arrives as store/data; and back
  penstock cp run7.dat penstock://dtn1.example.org/store/
  penstock cp -r data penstock://dtn1.example.org/store/
  penstock cp -r penstock://dtn1.example.org/store/data .
  # from agent to agent: data goes directly
  penstock cp -r penstock://dtn1.example.org/store/data \\
    penstock://dtn2.example.org/store/
  # no agent there: ssh starts penstock
  penstock cp -r data user@dtn2.example.org:/scratch/
  penstock cp -r data penstock://dtn1/store/ \\
    --rate 10G --streams 8 --protect integrity
  penstock cp -r data penstock://dtn1/store/ --scitag cms/analysis-input
  # files that a list names: below here, then below /store
  find . -newer mark -type f |\\
    penstock cp --files-from - . penstock://dtn1/store/
  penstock cp --files-from list penstock://dtn1/store .

The same command again sends only what is not there. Exit status: 0 done, 1 failed, 2 usage,
3 some files failed, 4 an integrity check failed, 5 refused.";

/// Number of data streams; none for `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams(pub Option<u16>);

fn streams(text: &str) -> anyhow::Result<Streams> {
    match text {
        "auto" => Ok(Streams(None)),
        number => match numbers::streams(number) {
            Ok(count) => Ok(Streams(Some(count.get()))),
            Err(error) => bail!("{error}, or auto"),
        },
    }
}

/// Use of the tuner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tune {
    /// Applies its decisions, unless `--streams` names a number.
    Auto,
    /// Keeps the numbers.
    Off,
    /// Keeps the numbers, and lists what would be tried.
    Observe,
}

impl Tune {
    /// Mode of the tuner.
    pub(crate) const fn mode(self) -> TuningMode {
        match self {
            Self::Auto => TuningMode::Auto,
            Self::Off => TuningMode::Off,
            Self::Observe => TuningMode::Observe,
        }
    }
}

/// Protection of data streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protect {
    /// TLS 1.3.
    Full,
    /// Authenticated, without encryption.
    Integrity,
}

/// Transport of data streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CopyTransport {
    /// TCP.
    Tcp,
    /// RDMA, or the copy fails.
    Rdma,
    /// RDMA where it is possible, else TCP.
    Auto,
}

/// Packet field that carries the scitag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Labels {
    /// IPv6 flow label.
    Flow,
    /// IPv6 destination option.
    Destination,
    /// No field: fireflies only.
    None,
}

pub(crate) fn run(args: &CpArgs) -> Result<Code, CommandFailure> {
    // If the limit stays low, a copy that reaches it names it in its error.
    let _ = penstock_sys::machine::raise_open_files();
    let homes = pin_process(args).or_exit(Code::Usage)?;
    let shown = show::OutputOptions::of(args);
    match plan::start(args, homes) {
        Ok(running) => show::follow(running, &shown, &control_socket::ControlSocket::start(args)),
        Err(error) => show::not_started(&shown, error),
    }
}

/// Sets the CPU affinity of this process; returns the placement of threads for `auto`.
fn pin_process(args: &CpArgs) -> anyhow::Result<Option<NumaPlacement>> {
    let wish = match (&args.cpu, args.numa.as_deref()) {
        (Some(wish), _) => wish.clone(),
        (None, Some("auto")) => PlacementPolicy::Auto,
        (None, Some(node)) => PlacementPolicy::Cpus(of_node(node)?),
        (None, None) => return Ok(None),
    };
    let (cpus, homes) = match wish {
        PlacementPolicy::Cpus(cpus) => (cpus, None),
        PlacementPolicy::Auto => {
            let homes = NumaPlacement::detect().via_interface(interface_of(args));
            let Placement { cpus, why } = homes.of_files(device_of(args));
            if why.is_empty() {
                return Ok(Some(homes));
            }
            tracing::info!("runs on processors {cpus:?}: {why}");
            (cpus, Some(homes))
        }
    };
    placement::pin(&cpus)?;
    Ok(homes)
}

fn of_node(node: &str) -> anyhow::Result<Vec<usize>> {
    let number =
        node.parse().map_err(|_| anyhow!("--numa '{node}' is no node: use 0, 1, ... or auto"))?;
    let cpus = penstock_sys::machine::cpus_of_node(number);
    if cpus.is_empty() {
        bail!("--numa {node}: this machine has no such node");
    }
    Ok(cpus)
}

/// Network interface on the route to the first remote location.
fn interface_of(args: &CpArgs) -> Option<String> {
    let host = args.paths.iter().find_map(|path| location::host_of(path))?;
    penstock_sys::net::interface_towards(&host)
}

/// Device number of the first existing local location.
fn device_of(args: &CpArgs) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    args.paths.iter().find_map(|path| Some(std::fs::metadata(path).ok()?.dev()))
}
