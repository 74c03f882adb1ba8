//! `penstock disk`: disks over NVMe/TCP. `stream` reads one with this program's own host; `export` and `connect` use the
//! target and the host of the kernel, also over RDMA.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use penstock_disk::nvme::auth::HostSecret;
use penstock_disk::{DiskError, DiskHost, DiskLocation, FabricsTransport, NvmeHostIdentity};
use penstock_protocol::open::{Mark, PacketLabel};
use penstock_sys::net::{egress_link, speed_bps};

use crate::cp::Labels;
use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::disk::DiskSecretJson;

mod agent;
mod connect;
mod export;
mod stream;

/// Rate that is planned for where the device does not report its speed.
const RATE_BPS_DEFAULT: u64 = 10_000_000_000;
/// Largest file with a secret.
const SECRET_BYTES_MAX: usize = 4096;

/// Read, export and connect disks over NVMe/TCP and NVMe/RDMA
#[derive(Debug, Args)]
#[command(after_help = "\
stream needs no privilege: it reads with penstock's own host, over many queues, each with the scitag in its flow label. \
export and connect use the kernel's target and host, and need root. docs/disk.md tells more.

Examples:
  penstock disk secret /root/run-7.secret
  penstock disk export /data/run-7.img --to nqn.2020-01.org.example:dtn2
  penstock disk export /data/b.img --to nqn.2020-01.org.example:dtn2 --at dtn1
  penstock disk check dtn1.example.org/run-7
  penstock disk stream dtn1.example.org/run-7 run-7.img
  penstock disk stream dtn1.example.org/run-7 /dev/null --rate 100G --rtt 88ms
  penstock disk connect dtn1.example.org/run-7
  penstock disk connect dtn1-roce.example.org/run-7 --transport rdma
  penstock disk connect dtn1.example.org/run-7 --agent
  penstock disk list
  penstock disk disconnect dtn1.example.org/run-7")]
pub(crate) struct DiskArgs {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: DiskCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DiskCommand {
    /// Read a remote disk to a file, by direct I/O, without root
    Stream(stream::StreamArgs),
    /// Export a file or block device until interrupted (root)
    Export(export::ExportArgs),
    /// End an export of an agent that disk export --at or another client of its API made
    Remove {
        /// The disk: AGENT/NAME, AGENT:PORT/NAME with the port of the HTTP API
        #[arg(value_name = "DISK", value_parser = location)]
        disk: DiskLocation,
    },
    /// Connect a remote disk as a block device (root)
    Connect(connect::ConnectArgs),
    /// List the exports and connected disks of this host
    List,
    /// Disconnect a block device (root)
    Disconnect(connect::DisconnectArgs),
    /// Find what is missing, here or at a remote disk
    Check(connect::CheckDiskArgs),
    /// Write a new secret for a host to a file
    Secret {
        /// File, which must not exist; mode 0600
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Arguments of commands that connect as a host.
#[derive(Debug, Args)]
struct DiskHostArgs {
    /// Qualified name of this host [default: that of /etc/nvme/hostnqn, or one of this machine]
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<String>,
    /// File with the secret of this host (DH-HMAC-CHAP)
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Ask the agent at the host of SOURCE, whose port is then that of its HTTP API [default: 8621], for address, transport
    /// and secret; needs penstock login
    #[arg(long, conflicts_with = "secret_file")]
    agent: bool,
    /// Local address to connect from
    #[arg(long, value_name = "ADDR")]
    bind: Option<IpAddr>,
}

impl DiskHostArgs {
    fn host(&self) -> Result<DiskHost, CommandFailure> {
        let identity = match &self.host_nqn {
            Some(name) => NvmeHostIdentity::named(name).or_exit(Code::Usage)?,
            None => NvmeHostIdentity::of_machine(),
        };
        let secret = self.secret_file.as_deref().map(read_secret).transpose()?;
        Ok(DiskHost { secret, source: self.bind, ..DiskHost::new(identity) })
    }

    /// The disk at `source` over `transport`, or as the agent there states it.
    fn target(
        &self,
        source: &DiskLocation,
        transport: FabricsTransport,
    ) -> Result<DiskTarget, CommandFailure> {
        let host = self.host()?;
        match self.agent {
            true => agent::target(source, host),
            false => Ok(DiskTarget { location: source.clone(), host, transport }),
        }
    }
}

/// A remote disk, and this host as it connects to it.
struct DiskTarget {
    location: DiskLocation,
    host: DiskHost,
    transport: FabricsTransport,
}

impl DiskTarget {
    /// Refuses another transport than that of the own host.
    fn over_tcp(self) -> Result<Self, CommandFailure> {
        match self.transport {
            FabricsTransport::Tcp => Ok(self),
            FabricsTransport::Rdma => Err(CommandFailure::new(
                Code::Failed,
                anyhow!(
                    "the agent exports {} over RDMA, which disk connect alone can use",
                    self.location
                ),
            )),
        }
    }
}

/// Transport of NVMe over Fabrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DiskTransport {
    /// NVMe/TCP
    Tcp,
    /// NVMe over RDMA: RoCE, iWARP or InfiniBand
    Rdma,
}

impl From<DiskTransport> for FabricsTransport {
    fn from(choice: DiskTransport) -> Self {
        match choice {
            DiskTransport::Tcp => Self::Tcp,
            DiskTransport::Rdma => Self::Rdma,
        }
    }
}

/// Arguments of commands that plan queues and depth.
#[derive(Debug, Args)]
struct DepthArgs {
    /// Rate to plan for [default: the speed of the network device, or 10G]
    #[arg(long, value_name = "RATE", value_parser = crate::numbers::rate_of_goal)]
    rate: Option<penstock_units::BitRate>,
    /// Bytes of a read, a power of two
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    size: u32,
}

impl DepthArgs {
    fn rate_bps(&self, location: &DiskLocation, host: &DiskHost) -> u64 {
        let speed = || {
            let device = egress_link(location.address().ok()?, host.source).ok()?;
            speed_bps(&device.name).ok()?.map(|(speed, _)| speed)
        };
        self.rate.map(|rate| rate.0).or_else(speed).unwrap_or(RATE_BPS_DEFAULT)
    }
}

fn size(text: &str) -> anyhow::Result<u32> {
    let bytes: penstock_units::ByteCount = text.parse()?;
    u32::try_from(bytes.0).context("4 GiB or more is too much here")
}

fn location(text: &str) -> anyhow::Result<DiskLocation> {
    Ok(text.parse()?)
}

fn read_secret(path: &Path) -> Result<HostSecret, CommandFailure> {
    let shown = path.display();
    let bytes = crate::input::read(path, SECRET_BYTES_MAX)
        .with_context(|| format!("cannot read {shown}"))
        .or_exit(Code::Usage)?;
    let text = String::from_utf8_lossy(&bytes);
    let secret = HostSecret::parse(text.trim()).with_context(|| shown.to_string());
    secret.or_exit(Code::Usage)
}

/// Scitag of the arguments.
fn mark(scitag: Option<&str>, label: Labels) -> Result<Option<Mark>, CommandFailure> {
    let Some(name) = scitag else { return Ok(None) };
    let tag = crate::tag::lookup(name).context("--scitag").or_exit(Code::Usage)?;
    if label != Labels::None {
        tag.fits_on_packets().context("--scitag").or_exit(Code::Usage)?;
    }
    let scitag = u16::try_from(tag.number()).context("--scitag").or_exit(Code::Usage)?;
    let label = match label {
        Labels::Flow => PacketLabel::Flow,
        Labels::Destination => PacketLabel::Destination,
        Labels::None => PacketLabel::None,
    };
    Ok(Some(Mark { scitag, label }))
}

/// Failure of a disk, with its exit code.
fn failed(error: DiskError) -> CommandFailure {
    let code = match &error {
        DiskError::Location(_) | DiskError::Name(_) | DiskError::ReadSize { .. } => Code::Usage,
        error if error.is_refusal() => Code::Refused,
        _ => Code::Failed,
    };
    CommandFailure::new(code, error)
}

/// Prints lines to standard output.
fn print(text: &str) -> Result<Code, CommandFailure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Code::Done)
}

fn directory() -> Result<PathBuf, CommandFailure> {
    let state = penstock_daemon::state::default_directory().map_err(anyhow::Error::from)?;
    Ok(state.join("disks"))
}

fn show_rtt(rtt: Duration) -> String {
    penstock_units::display_latency(rtt)
}

pub(crate) fn run(args: DiskArgs) -> Result<Code, CommandFailure> {
    match args.command {
        DiskCommand::Stream(stream) => stream::run(&stream, args.json),
        DiskCommand::Export(export) => export::run(&export, args.json),
        DiskCommand::Remove { disk } => remove(&disk, args.json),
        DiskCommand::Connect(connect) => connect::run(&connect, args.json),
        DiskCommand::List => connect::list(args.json),
        DiskCommand::Disconnect(disconnect) => connect::disconnect(&disconnect, args.json),
        DiskCommand::Check(check) => connect::check(&check, args.json),
        DiskCommand::Secret { file } => secret(&file, args.json),
    }
}

fn remove(disk: &DiskLocation, json: bool) -> Result<Code, CommandFailure> {
    let removed = agent::remove(disk)?;
    if json {
        crate::json::print(&removed)?;
        return Ok(Code::Done);
    }
    print(&format!("the agent exports {} no more\n", removed.nqn))
}

fn secret(file: &Path, json: bool) -> Result<Code, CommandFailure> {
    let secret = penstock_disk::new_secret().context("no random numbers")?;
    let mut how = fs::OpenOptions::new();
    let mut created = how
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .with_context(|| format!("cannot create {}", file.display()))?;
    writeln!(created, "{}", secret.text())?;
    created.sync_all()?;
    if json {
        crate::json::print(&DiskSecretJson { file: file.display().to_string() })?;
        return Ok(Code::Done);
    }
    print(&format!(
        "{}: a new secret: copy it to the other host over a secure channel, and give it with --secret-file to disk \
         export there and to disk stream or connect here\n",
        file.display()
    ))
}
