//! `penstock nettest`: arguments in, a test run by the mover, lines or one JSON object out.
//!
//! Flags that iperf3 users type from memory mean the same here. Exit codes: 0 measured, 1 failed (after the results until
//! then), 2 usage, or a source address or congestion control that this machine lacks. A closed output (`| head`) ends it silently.

use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use penstock_nettest::{
    DEFAULT_PORT, LabelBy, Listener, ListenerLimits, NettestError, RdmaParams, RdmaVerb, SendPath,
    StreamSweep, SweepOptions, SweepPoint, TestDirection, TestParams, TestProgress, TestProtocol,
    TestTarget,
};
use penstock_units::{BitRate, ByteCount, Dscp, parse_duration};

use crate::cp::Labels;
use crate::json::nettest::{Listening, Swept, Tested};
use crate::terminal::printable;

mod show;

use show::{
    advice, log_json, log_line, print_interval, print_json, print_point, print_report, print_stall,
    print_sweep,
};

const EXAMPLES: &str = "\
Examples:
  penstock nettest --listen                     # on dtn2, then elsewhere:
  penstock nettest dtn2.example.org             # one stream, ten seconds
  penstock nettest dtn2 -P 8 -R -t 30           # eight streams towards here
  penstock nettest dtn2 --rate 10G --bidir      # 10 Gb/s each way at once
  penstock nettest dtn2 -C cubic -n 100GiB -J   # a fixed amount, as JSON
  penstock nettest dtn2 --sweep                 # how many streams are enough?
  penstock nettest dtn2 --udp --rate 500M       # loss, jitter and order
  penstock nettest dtn3 --iperf3 -R             # against iperf3 -s
  penstock nettest dtn2 --transport rdma --depth 256 -P 4  # RoCE, 4 queue pairs";

/// Rate of a UDP test without `--rate`, as in iperf3: datagrams do not give way to other traffic.
const UDP_RATE_BPS_DEFAULT: u64 = 1_000_000;

/// Arguments of `penstock nettest`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NettestArgs {
    /// The listener: HOST, HOST:PORT, address or [ADDRESS]:PORT.
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    host: Option<String>,

    /// Answer tests on this address [default: every address, port 8620]. Any client that
    /// reaches the port may test.
    #[arg(long, short_alias = 's', value_name = "ADDR:PORT", num_args = 0..=1)]
    listen: Option<Option<SocketAddr>>,

    /// Port of the listener [default: 8620; 5201 with --iperf3].
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,

    /// Parallel streams in each direction, each with its own thread.
    #[arg(short = 'P', long, visible_alias = "parallel", default_value_t = 1, value_name = "N")]
    streams: u32,

    /// Duration of the test, as 10, 90s, 5m [default: 10s; 3s for each step of --sweep].
    #[arg(short = 't', long, value_parser = parse_duration, conflicts_with = "bytes")]
    time: Option<Duration>,

    /// Send exactly this much in each direction instead, as 500M, 4GiB.
    #[arg(short = 'n', long, value_name = "SIZE")]
    bytes: Option<ByteCount>,

    /// Limit all streams of a direction together, in bits per second, as 10G; 0 for no limit [default: 0; 1M with --udp].
    #[arg(short = 'b', long, value_name = "RATE", value_parser = crate::numbers::rate_or_unlimited)]
    rate: Option<BitRate>,

    /// Send datagrams instead of TCP, and report their loss, jitter and order.
    #[arg(short, long, conflicts_with_all = ["listen", "sweep", "scitag", "congestion", "path"])]
    udp: bool,

    /// Size of the datagrams [default: what the path takes whole].
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "udp", conflicts_with = "block")]
    datagram_size: Option<u32>,

    /// Transport of the data: TCP, or RDMA over RoCE with a queue pair for each stream. RDMA is not encrypted.
    #[arg(
        long,
        value_enum,
        default_value_t = TransportArg::Tcp,
        conflicts_with_all = ["listen", "udp", "iperf3", "sweep"]
    )]
    transport: TransportArg,

    /// Messages in flight of each queue pair, of --block bytes each [default: 64 of 1 MiB].
    #[arg(long, value_name = "N")]
    depth: Option<u32>,

    /// Verb of RDMA: the sender writes into memory of the receiver, or the receiver reads from the sender's [default: write].
    #[arg(long, value_enum, value_name = "VERB")]
    verb: Option<VerbArg>,

    /// The other end is an iperf3 server (iperf3 -s), of one client at a time.
    #[arg(long, conflicts_with = "listen")]
    iperf3: bool,

    /// Label packets of the sending end: OWNER/ACTIVITY by name or number, or a scitag number.
    #[arg(long, value_name = "OWNER/ACTIVITY")]
    scitag: Option<String>,

    /// Carry the scitag in the IPv6 flow label, in an IPv6 destination option, or not at all.
    #[arg(long, value_enum, default_value_t = Labels::Flow, requires = "scitag")]
    label: Labels,

    /// DSCP of the packets of both ends: a name such as le, af31 or ef, or 0 to 63.
    #[arg(long, value_name = "DSCP", conflicts_with = "listen")]
    dscp: Option<Dscp>,

    /// Type of service of the packets as iperf3 writes it: four times the DSCP.
    #[arg(short = 'S', long, value_name = "TOS", value_parser = parse_tos, conflicts_with_all = ["listen", "dscp"])]
    tos: Option<Dscp>,

    /// The listener sends.
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    reverse: bool,

    /// Both ends send at once, each on its own streams.
    #[arg(long)]
    bidir: bool,

    /// Congestion control of both ends, as cubic or bbr [default: each end's own].
    #[arg(short = 'C', long, value_name = "NAME")]
    congestion: Option<String>,

    /// Fix the socket buffers of both ends; disables the kernel's autotuning.
    #[arg(short, long, value_parser = parse_size, value_name = "SIZE")]
    window: Option<u32>,

    /// Bytes handed to the kernel at once.
    #[arg(short = 'l', long, value_parser = parse_size, value_name = "SIZE")]
    block: Option<u32>,

    /// System call with which senders pass bytes to the kernel.
    #[arg(long, value_enum, default_value = "auto")]
    path: PathArg,

    /// Local address to test from.
    #[arg(short = 'B', long, value_name = "ADDR")]
    bind: Option<IpAddr>,

    /// Only IPv4.
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    ipv4: bool,

    /// Only IPv6.
    #[arg(short = '6', long)]
    ipv6: bool,

    /// Time between interval lines; they are printed on a terminal, or when this is given.
    #[arg(short, long, value_parser = parse_duration, value_name = "TIME")]
    interval: Option<Duration>,

    /// Do not count the first part of the test.
    #[arg(short = 'O', long, value_parser = parse_duration, value_name = "TIME")]
    omit: Option<Duration>,

    /// Add streams until the rate stops rising, and report the fewest that are enough.
    #[arg(long, conflicts_with_all = ["bytes", "bidir"])]
    sweep: bool,

    /// Most streams --sweep tries.
    #[arg(long, default_value_t = 64, value_name = "N", requires = "sweep")]
    sweep_max: u32,

    /// Tolerance of --sweep below the best rate, in percent.
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT", requires = "sweep")]
    sweep_within: f64,

    /// Print one JSON object; docs/json.md has its fields.
    #[arg(short = 'J', long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PathArg {
    /// The fastest that works.
    Auto,
    /// Pages through a pipe, without a copy.
    Vmsplice,
    /// A memory file, without a copy.
    Sendfile,
    /// Plain writes, with a copy.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransportArg {
    /// TCP.
    Tcp,
    /// RDMA: RoCE version 2.
    Rdma,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VerbArg {
    /// RDMA_WRITE_WITH_IMM into granted slots.
    Write,
    /// RDMA_READ.
    Read,
}

pub(crate) fn run(args: NettestArgs) -> ExitCode {
    let signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return fail(1, &format!("cannot take signals: {error}")),
    };
    // Hundreds of streams need more than 1024 descriptors; if the limit stays, the test's error names it.
    let _ = penstock_sys::machine::raise_open_files();
    let result = match &args.listen {
        Some(address) => listen(&args, *address, &signals),
        None if args.sweep => sweep(&args, &signals),
        None => test(&args, &signals),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(NettestFailure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(NettestFailure::Output(error)) => fail(1, &format!("cannot write the result: {error}")),
        Err(NettestFailure::Test(
            error @ (NettestError::Params(_) | NettestError::Option(_) | NettestError::Host { .. }),
        )) => fail(2, &error.to_string()),
        Err(NettestFailure::Test(error)) => fail(1, &error.to_string()),
        Err(NettestFailure::Listen(address, error)) => {
            let owner = match error.kind() {
                io::ErrorKind::AddrInUse => " (an agent, penstock serve, uses port 8620 too)",
                _ => "",
            };
            fail(
                1,
                &format!(
                    "cannot listen on {address}: {error}{owner}; choose another with --listen ADDR:PORT and name it to the client as HOST:PORT"
                ),
            )
        }
    }
}

enum NettestFailure {
    Output(io::Error),
    Test(NettestError),
    Listen(SocketAddr, io::Error),
}

impl From<io::Error> for NettestFailure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<NettestError> for NettestFailure {
    fn from(error: NettestError) -> Self {
        Self::Test(error)
    }
}

fn fail(code: u8, reason: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "penstock nettest: {}", printable(reason));
    ExitCode::from(code)
}

/// Flags of SIGINT and SIGTERM. Before a test runs they end the process at once; later the first requests an end with
/// summary, and the second ends the process.
struct Signals {
    /// Set by the first signal during a test.
    stop: Arc<AtomicBool>,
    /// Set when the next signal ends the process.
    deadly: Arc<AtomicBool>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let signals = Self {
            stop: Arc::new(AtomicBool::new(false)),
            deadly: Arc::new(AtomicBool::new(true)),
        };
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_default(signal, signals.deadly.clone())?;
            signal_hook::flag::register(signal, signals.deadly.clone())?;
            signal_hook::flag::register(signal, signals.stop.clone())?;
        }
        Ok(signals)
    }

    /// Marks the start of a test, which the first signal then finishes.
    fn started(&self) {
        self.deadly.store(self.stop.load(Relaxed), Relaxed);
    }
}

impl NettestArgs {
    /// Scitag number of the arguments.
    fn scitag(&self) -> Result<Option<u16>, NettestError> {
        let Some(name) = &self.scitag else { return Ok(None) };
        let wrong =
            |text: String| NettestError::Option(io::Error::other(format!("--scitag: {text}")));
        let tag = crate::tag::lookup(name).map_err(|error| wrong(error.to_string()))?;
        if self.label != Labels::None {
            tag.fits_on_packets().map_err(|error| wrong(error.to_string()))?;
        }
        Ok(u16::try_from(tag.number()).ok())
    }

    fn target(&self) -> TestTarget {
        TestTarget {
            host: self.host.clone().unwrap_or_default(),
            port: self.port,
            source: self.bind,
            protocol: match self.iperf3 {
                true => TestProtocol::Iperf3,
                false => TestProtocol::Penstock,
            },
            ipv4: match (self.ipv4, self.ipv6) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
        }
    }

    fn params(&self) -> Result<TestParams, NettestError> {
        let defaults = TestParams::default();
        let seconds = if self.sweep { Some(3.0) } else { defaults.seconds };
        Ok(TestParams {
            direction: match (self.reverse, self.bidir) {
                (true, _) => TestDirection::Reverse,
                (_, true) => TestDirection::Bidir,
                _ => TestDirection::Forward,
            },
            streams: self.streams,
            seconds: self
                .time
                .map(|time| time.as_secs_f64())
                .or(seconds)
                .filter(|_| self.bytes.is_none()),
            bytes: self.bytes.map(|bytes| bytes.0),
            rate_bps: self
                .rate
                .map(|rate| rate.0)
                .or_else(|| self.udp.then_some(UDP_RATE_BPS_DEFAULT))
                .filter(|rate| *rate > 0),
            congestion: self.congestion.clone(),
            window_bytes: self.window,
            block_bytes: self.datagram_size.or(self.block),
            path: match self.path {
                PathArg::Auto => SendPath::Auto,
                PathArg::Vmsplice => SendPath::Vmsplice,
                PathArg::Sendfile => SendPath::Sendfile,
                PathArg::Write => SendPath::Write,
            },
            interval_seconds: self
                .interval
                .map_or(defaults.interval_seconds, |time| time.as_secs_f64()),
            omit_seconds: self.omit.unwrap_or_default().as_secs_f64(),
            scitag: self.scitag()?,
            label: match self.label {
                Labels::Flow => LabelBy::Flow,
                Labels::Destination => LabelBy::Destination,
                Labels::None => LabelBy::None,
            },
            dscp: self.dscp.or(self.tos),
            udp: self.udp,
            rdma: self.rdma()?,
        })
    }

    /// Parameters of RDMA, with `--transport rdma`.
    fn rdma(&self) -> Result<Option<RdmaParams>, NettestError> {
        if self.transport == TransportArg::Rdma {
            let verb = match self.verb {
                Some(VerbArg::Read) => RdmaVerb::Read,
                Some(VerbArg::Write) | None => RdmaVerb::Write,
            };
            let depth = self.depth.unwrap_or(RdmaParams::DEPTH_DEFAULT);
            return Ok(Some(RdmaParams { verb, depth }));
        }
        let flag = self.depth.map(|_| "--depth").or(self.verb.map(|_| "--verb"));
        flag.map_or(Ok(None), |flag| {
            let text = format!("{flag} needs --transport rdma");
            Err(NettestError::Option(io::Error::other(text)))
        })
    }
}

fn test(args: &NettestArgs, signals: &Signals) -> Result<(), NettestFailure> {
    let params = args.params()?;
    let lines = !args.json && (args.interval.is_some() || io::stdout().is_terminal());
    let mut broken = None;
    let stop = &signals.stop;
    let result = penstock_nettest::run(&args.target(), &params, stop, &mut |progress| {
        let printed = match progress {
            TestProgress::Started => {
                signals.started();
                return;
            }
            _ if !lines || broken.is_some() => return,
            TestProgress::Interval(interval) => print_interval(interval),
            TestProgress::Stalled { silence, limit } => print_stall(silence, limit),
        };
        if let Err(error) = printed {
            broken = Some(error);
            stop.store(true, Relaxed);
        }
    });
    if let Some(error) = broken {
        return Err(error.into());
    }
    let (report, failure) = match result {
        Err(NettestError::Broken { error, report }) => (*report, Some(*error)),
        result => (result?, None),
    };
    if args.json {
        let advice = advice(&report);
        print_json(&Tested { report, advice })?;
    } else {
        print_report(&report)?;
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}

fn sweep(args: &NettestArgs, signals: &Signals) -> Result<(), NettestFailure> {
    let options = SweepOptions {
        streams_max: args.sweep_max,
        knee_percent: args.sweep_within,
        rise_percent: args.sweep_within,
    };
    let mut params = args.params()?;
    (params.streams, params.interval_seconds) = (args.sweep_max, 1.0);
    params.validate().map_err(NettestError::from)?;
    let mut out = io::stdout();
    if !args.json {
        writeln!(out, "streams        rate  retransmits  CPU here  CPU there")?;
    }
    let mut sweep = StreamSweep::new(options);
    let mut last = None;
    let mut other_tests = 0;
    while let Some(streams) = sweep.next().filter(|_| !signals.stop.load(Relaxed)) {
        params.streams = streams;
        let report =
            penstock_nettest::run(&args.target(), &params, &signals.stop, &mut |progress| {
                if matches!(progress, TestProgress::Started) {
                    signals.started();
                }
            })?;
        if report.interrupted {
            break;
        }
        let point = SweepPoint {
            streams,
            bits_per_second: report.bits_per_second,
            retransmits: report.retransmits,
            cpu_local_percent: report.cpu_local_percent,
            cpu_remote_percent: report.cpu_remote_percent,
        };
        if !args.json {
            print_point(&point)?;
        }
        sweep.record(point);
        other_tests = other_tests.max(report.other_tests);
        last = Some(report);
    }
    let (Some(found), Some(last)) = (sweep.report(), last) else {
        return Ok(());
    };
    if args.json {
        let flow = last.flows.first();
        print_json(&Swept {
            peer: last.peer.clone(),
            direction: last.direction,
            congestion: last.congestion.clone(),
            path: last.path.clone(),
            seconds_each: params.seconds,
            label: flow.and_then(|flow| flow.label.clone()),
            label_note: flow.and_then(|flow| flow.label_note.clone()),
            other_tests,
            bits_per_second: found.best_bits_per_second,
            sweep: found,
        })?;
    } else {
        print_sweep(&found, &last, other_tests)?;
    }
    Ok(())
}

fn listen(
    args: &NettestArgs,
    address: Option<SocketAddr>,
    signals: &Signals,
) -> Result<(), NettestFailure> {
    let port = args.port.unwrap_or(DEFAULT_PORT);
    let any4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let first = address.unwrap_or(if args.ipv4 { any4 } else { any6 });
    let listener = Listener::bind(first, ListenerLimits::default())
        .or_else(|error| match error.raw_os_error() {
            // A kernel without IPv6: EAFNOSUPPORT or EADDRNOTAVAIL.
            Some(97 | 99) if address.is_none() && !args.ipv6 => {
                Listener::bind(any4, ListenerLimits::default())
            }
            _ => Err(error),
        })
        .map_err(|error| NettestFailure::Listen(first, error))?;
    let address = listener.local_addr();
    // One write, so that a reader that closes after the first line causes no broken pipe.
    let hello = if args.json {
        let udp_unavailable = listener.udp_unavailable().map(str::to_owned);
        let listening = Listening { listening: address.to_string(), open: true, udp_unavailable };
        format!("{}\n", serde_json::json!(listening))
    } else {
        format!(
            "listening on {address}\n\
             open: any host that reaches this port may test; Ctrl-C stops it\n"
        )
    };
    let mut out = io::stdout();
    out.write_all(hello.as_bytes())?;
    out.flush()?;
    if let Some(reason) = listener.udp_unavailable().filter(|_| !args.json) {
        writeln!(out, "tests with UDP are refused: {reason}")?;
    }
    signals.started();
    let log = if args.json { log_json } else { log_line };
    listener.run(&signals.stop, log).map_err(|error| NettestFailure::Listen(address, error))
}

/// Parses a type of service without bits of ECN: decimal, `0x` or octal with a leading 0, as iperf3 does.
fn parse_tos(text: &str) -> anyhow::Result<Dscp> {
    let lower = text.to_ascii_lowercase();
    let parsed = match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
        (Some(digits), _) => u8::from_str_radix(digits, 16),
        (None, Some(digits)) if !digits.is_empty() => u8::from_str_radix(digits, 8),
        _ => lower.parse(),
    };
    parsed.ok().filter(|tos| tos % 4 == 0).and_then(|tos| Dscp::new(tos / 4)).with_context(|| {
        let shown = text.escape_debug();
        format!(
            "'{shown}' is no type of service: write a multiple of 4 from 0 to 252, or --dscp NAME"
        )
    })
}

fn parse_size(text: &str) -> anyhow::Result<u32> {
    let bytes: ByteCount = text.parse()?;
    u32::try_from(bytes.0).context("4 GiB or more is too much here")
}
