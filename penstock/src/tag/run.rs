//! `penstock tag run` and `penstock tag stop`: the marker of other programs' packets.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use penstock_agent::marking::{Config, MarkerService, MarkingError};
use penstock_daemon::state::default_directory;
use penstock_marker::{Attach, DEFAULT_PIN, KernelError, MarkerError, remove};
use serde_json::json;

use crate::exit::{Code, CommandFailure};
use crate::json::tag::{Running, Stopped};

/// Label the IPv6 packets of other programs by rules, in the kernel
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file has [[rule]] tables: scitag = \"OWNER/ACTIVITY\", label = \"flow\" (default), \"destination\", \
\"both\" or \"none\", name for messages, and either source, destination, source_port, destination_port, \
protocol, or cgroup = \"/path\", or process = \"name\". The most specific wins: a tag of the socket, then \
addresses, then cgroup, then process. SIGHUP reads the file again; a bad one is refused with its line.

Without rules it labels what programs tag themselves: an agent tags the connections by which it sends pulls. \
One of these runs for each directory of --pin and each interface.

Labelling continues after this program ends, and the next start takes over without a gap; penstock tag stop ends it. \
Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (CAP_SYS_PTRACE for connections of programs that \
run already); gives up all others once attached.

Examples:
  penstock tag run --config /etc/penstock/tags.toml --interface eth0
  penstock tag run --config tags.toml --interface eth0,eth1 \\
    --pipe /run/penstock/tags
  penstock tag run --interface eth0 --http 127.0.0.1:8622")]
pub(super) struct TagRunArgs {
    /// File of rules
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Network interfaces whose outgoing packets are labelled
    #[arg(long, value_name = "IF", value_delimiter = ',', required = true)]
    interface: Vec<String>,
    /// Directory on a bpf file system for maps and links
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN)]
    pin: PathBuf,
    /// Named pipe for flowd-go's line protocol; created if missing
    #[arg(long, value_name = "PATH")]
    pipe: Option<PathBuf>,
    /// Time for which a flow without an end is tagged
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = lifetime)]
    lifetime: Duration,
    /// Addresses of the HTTP API and metrics
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    http: Vec<SocketAddr>,
    /// Hook of the programs: auto, tcx (Linux 6.6), clsact
    #[arg(long, value_name = "HOW", default_value = "auto")]
    attach: Attach,
}

/// Detach everything that tag run attached, and delete its rules and counters
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only what is pinned in the directory is removed; other programs at the same interfaces stay. \
Without --pin it succeeds where nothing is attached.

Examples:
  penstock tag stop")]
pub(super) struct StopArgs {
    /// Directory that tag run was given [default: /sys/fs/bpf/penstock]
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
}

fn lifetime(text: &str) -> anyhow::Result<Duration> {
    let time = penstock_units::parse_duration(text)?;
    ensure!(time >= Duration::from_secs(1), "at least 1s");
    Ok(time)
}

pub(super) fn run(args: TagRunArgs, as_json: bool) -> Result<Code, CommandFailure> {
    let service = MarkerService::start(Config {
        file: args.config,
        interfaces: args.interface,
        pin: args.pin,
        pipe: args.pipe,
        lifetime: args.lifetime,
        http: args.http,
        state: default_directory().map_err(anyhow::Error::from)?,
        attach: args.attach,
    })
    .map_err(failure)?;
    let mut output = io::stdout();
    let printed =
        if as_json { print_json(&service, &mut output) } else { print(&service, &mut output) };
    if let Err(error) = printed {
        tracing::warn!("cannot print what is attached: {error}");
    }
    service.run();
    Ok(Code::Done)
}

pub(super) fn stop(args: &StopArgs, as_json: bool) -> Result<Code, CommandFailure> {
    let removed = match remove(args.pin.as_deref().unwrap_or(Path::new(DEFAULT_PIN))) {
        // What removes a marker from many hosts also meets those on which none has run.
        Err(MarkerError::Absent(_)) if args.pin.is_none() => Vec::new(),
        removed => removed.map_err(|error| failure(error.into()))?,
    };
    if as_json {
        writeln!(
            io::stdout(),
            "{}",
            json!(Stopped { detached: removed.iter().map(ToString::to_string).collect() })
        )?;
    } else if removed.is_empty() {
        writeln!(io::stdout(), "nothing was attached")?;
    } else {
        for one in removed {
            writeln!(io::stdout(), "detached from {one}")?;
        }
    }
    Ok(Code::Done)
}

/// Exit code of a kernel error; prints the verifier's log first.
pub(crate) fn kernel_code(error: &KernelError) -> Code {
    if let Some(log) = error.verifier_log() {
        eprintln!("{log}");
    }
    if matches!(error, KernelError::Privilege) { Code::Refused } else { Code::Failed }
}

/// Converts an error into a failure with its exit code.
pub(super) fn failure(error: MarkingError) -> CommandFailure {
    let code = match &error {
        MarkingError::File(_) => Code::Usage,
        MarkingError::Marker(error) => match error {
            MarkerError::Kernel(error) => kernel_code(error),
            MarkerError::Interface(_) | MarkerError::Rules(_) | MarkerError::BigTcp { .. } => {
                Code::Usage
            }
            _ => Code::Failed,
        },
        _ => Code::Failed,
    };
    CommandFailure::new(code, error)
}

fn print_json(service: &MarkerService, output: &mut impl Write) -> io::Result<()> {
    let running = Running {
        attached: service.attached().iter().map(Into::into).collect(),
        rules: service.rules(),
        http: service.http().iter().map(ToString::to_string).collect(),
    };
    writeln!(output, "{}", json!(running))?;
    output.flush()
}

fn print(service: &MarkerService, output: &mut impl Write) -> io::Result<()> {
    for one in service.attached() {
        writeln!(output, "attached to {} {} ({})", one.interface, one.direction, one.by)?;
    }
    for address in service.http() {
        writeln!(output, "api at http://{address}/api/v1/marker")?;
    }
    writeln!(output, "{} rules in force", service.rules())?;
    if service.rules() == 0 {
        writeln!(output, "packets of sockets that their programs tag are labelled")?;
    }
    output.flush()
}
