//! `penstock nettest`: arguments in, a test run by the mover, lines or one JSON object out.
//!
//! Flags that iperf3 users type from memory mean the same here. Exit codes: 0 measured, 1 failed,
//! 2 usage. A reader that goes away (`| head`) ends it quietly.

use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::{Args, ValueEnum};
use penstock_mover::nettest::{
    self, DEFAULT_PORT, Direction, Limits, Listener, ListenerEvent, NettestError, SendPath, Sweep,
    SweepOptions, SweepPoint, Target, TestParams,
};
use serde_json::json;

mod show;

use show::{
    print_interval, print_json, print_point, print_report, print_sweep, show_bytes, show_rate,
};

const EXAMPLES: &str = "\
Examples:
  penstock nettest --listen                     on one machine, then on the other:
  penstock nettest dtn2.example.org             one stream, ten seconds
  penstock nettest dtn2 -P 8 -R -t 30           eight streams towards here, half a minute
  penstock nettest dtn2 --rate 10G --bidir      10 Gb/s each way at once
  penstock nettest dtn2 -C cubic -n 100GiB -J   a fixed amount, the result as JSON
  penstock nettest dtn2 --sweep                 how many streams are enough?";

/// Arguments of `penstock nettest`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NettestArgs {
    /// The listener: HOST, HOST:PORT, address or [ADDRESS]:PORT.
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    host: Option<String>,

    /// Answer tests on this address; without one, on every address, port 8620. Anybody who
    /// reaches the port may test.
    #[arg(long, short_alias = 's', value_name = "ADDR:PORT", num_args = 0..=1)]
    listen: Option<Option<SocketAddr>>,

    /// Port of the listener.
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,

    /// Parallel streams in each direction, each with its own thread.
    #[arg(short = 'P', long, visible_alias = "parallel", default_value_t = 1, value_name = "N")]
    streams: u32,

    /// How long to send, as 10, 90s, 5m [default: 10s; 3s for each step of --sweep].
    #[arg(short = 't', long, value_parser = parse_seconds, conflicts_with = "bytes")]
    time: Option<f64>,

    /// Send exactly this much in each direction instead, as 500M, 4GiB.
    #[arg(short = 'n', long, value_parser = parse_bytes, value_name = "SIZE")]
    bytes: Option<u64>,

    /// Limit all streams of a direction together, in bits per second, as 10G.
    #[arg(short = 'b', long, value_parser = parse_rate, value_name = "RATE")]
    rate: Option<u64>,

    /// The listener sends.
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    reverse: bool,

    /// Both ends send at once, each on its own streams.
    #[arg(long)]
    bidir: bool,

    /// Congestion control of both ends, as cubic or bbr [default: each end's own].
    #[arg(short = 'C', long, value_name = "NAME")]
    congestion: Option<String>,

    /// Fix the socket buffers of both ends; turns the kernel's own sizing off.
    #[arg(short, long, value_parser = parse_bytes_u32, value_name = "SIZE")]
    window: Option<u32>,

    /// Bytes handed to the kernel at once.
    #[arg(short = 'l', long, value_parser = parse_bytes_u32, value_name = "SIZE")]
    block: Option<u32>,

    /// How senders hand bytes to the kernel.
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
    #[arg(short, long, value_parser = parse_seconds, value_name = "TIME")]
    interval: Option<f64>,

    /// Do not count the first part of the test.
    #[arg(short = 'O', long, value_parser = parse_seconds, value_name = "TIME")]
    omit: Option<f64>,

    /// Add streams until the rate stops rising, and report the fewest that are enough.
    #[arg(long, conflicts_with_all = ["bytes", "bidir"])]
    sweep: bool,

    /// Most streams --sweep tries.
    #[arg(long, default_value_t = 64, value_name = "N", requires = "sweep")]
    sweep_max: u32,

    /// How far below the best rate is good enough for --sweep, in percent.
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT", requires = "sweep")]
    sweep_within: f64,

    /// Print one JSON object.
    #[arg(short = 'J', long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PathArg {
    /// The fastest that works.
    Auto,
    /// Pages through a pipe, not copied.
    Vmsplice,
    /// A memory file, not copied.
    Sendfile,
    /// Copied.
    Write,
}

/// Runs the verb.
pub(crate) fn run(args: NettestArgs) -> ExitCode {
    let stop = match stop_on_signals() {
        Ok(stop) => stop,
        Err(error) => return fail(1, &format!("cannot take signals: {error}")),
    };
    let result = match &args.listen {
        Some(address) => listen(&args, *address, &stop),
        None if args.sweep => sweep(&args, &stop),
        None => test(&args, &stop),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(Failure::Output(error)) => fail(1, &format!("cannot write the result: {error}")),
        Err(Failure::Test(NettestError::Params(error))) => fail(2, &error.to_string()),
        Err(Failure::Test(error)) => fail(1, &error.to_string()),
        Err(Failure::Listen(address, error)) => fail(
            1,
            &format!("cannot listen on {address}: {error}; choose another with --listen ADDR:PORT"),
        ),
    }
}

enum Failure {
    Output(io::Error),
    Test(NettestError),
    Listen(SocketAddr, io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<NettestError> for Failure {
    fn from(error: NettestError) -> Self {
        Self::Test(error)
    }
}

fn fail(code: u8, reason: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "penstock nettest: {reason}");
    ExitCode::from(code)
}

/// The first Ctrl-C asks for an end with a summary, the second ends at once.
fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

impl NettestArgs {
    fn target(&self) -> Target {
        Target {
            host: self.host.clone().unwrap_or_default(),
            port: self.port,
            source: self.bind,
            ipv4: match (self.ipv4, self.ipv6) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
        }
    }

    fn params(&self) -> TestParams {
        let defaults = TestParams::default();
        let seconds = if self.sweep { Some(3.0) } else { defaults.seconds };
        TestParams {
            direction: match (self.reverse, self.bidir) {
                (true, _) => Direction::Reverse,
                (_, true) => Direction::Bidir,
                _ => Direction::Forward,
            },
            streams: self.streams,
            seconds: self.time.or(seconds).filter(|_| self.bytes.is_none()),
            bytes: self.bytes,
            rate_bps: self.rate,
            congestion: self.congestion.clone(),
            window_bytes: self.window,
            block_bytes: self.block,
            path: match self.path {
                PathArg::Auto => SendPath::Auto,
                PathArg::Vmsplice => SendPath::Vmsplice,
                PathArg::Sendfile => SendPath::Sendfile,
                PathArg::Write => SendPath::Write,
            },
            interval_seconds: self.interval.unwrap_or(defaults.interval_seconds),
            omit_seconds: self.omit.unwrap_or(0.0),
        }
    }
}

fn test(args: &NettestArgs, stop: &AtomicBool) -> Result<(), Failure> {
    let params = args.params();
    let lines = !args.json && (args.interval.is_some() || io::stdout().is_terminal());
    let mut broken = None;
    let report = nettest::run(&args.target(), &params, stop, &mut |interval| {
        if lines
            && broken.is_none()
            && let Err(error) = print_interval(interval)
        {
            broken = Some(error);
            stop.store(true, Relaxed);
        }
    })?;
    if let Some(error) = broken {
        return Err(error.into());
    }
    if args.json {
        print_json(&report)?
    } else {
        print_report(&report)?
    }
    Ok(())
}

fn sweep(args: &NettestArgs, stop: &AtomicBool) -> Result<(), Failure> {
    let options = SweepOptions {
        streams_max: args.sweep_max,
        knee_percent: args.sweep_within,
        rise_percent: args.sweep_within,
    };
    let mut params = args.params();
    (params.streams, params.interval_seconds) = (args.sweep_max, 1.0);
    params.validate().map_err(NettestError::from)?;
    let mut out = io::stdout();
    if !args.json {
        writeln!(out, "streams        rate  retransmits  CPU here  CPU there")?;
    }
    let mut sweep = Sweep::new(options);
    let mut last = None;
    while let Some(streams) = sweep.next().filter(|_| !stop.load(Relaxed)) {
        params.streams = streams;
        let report = nettest::run(&args.target(), &params, stop, &mut |_| {})?;
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
        last = Some(report);
    }
    let (Some(found), Some(last)) = (sweep.report(), last) else {
        return Ok(());
    };
    if args.json {
        let object = json!({
            "peer": last.peer, "direction": last.direction, "congestion": last.congestion,
            "path": last.path, "seconds_each": params.seconds,
            "bits_per_second": found.best_bits_per_second, "sweep": found,
        });
        print_json(&object)?;
    } else {
        print_sweep(&found)?;
    }
    Ok(())
}

fn listen(
    args: &NettestArgs,
    address: Option<SocketAddr>,
    stop: &Arc<AtomicBool>,
) -> Result<(), Failure> {
    let port = args.port.unwrap_or(DEFAULT_PORT);
    let any4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let first = address.unwrap_or(if args.ipv4 { any4 } else { any6 });
    let listener = Listener::bind(first, Limits::default())
        .or_else(|error| match error.raw_os_error() {
            // A kernel without IPv6: EAFNOSUPPORT or EADDRNOTAVAIL.
            Some(97 | 99) if address.is_none() && !args.ipv6 => {
                Listener::bind(any4, Limits::default())
            }
            _ => Err(error),
        })
        .map_err(|error| Failure::Listen(first, error))?;
    let address = listener.local_addr();
    let mut out = io::stdout();
    if args.json {
        writeln!(out, "{}", json!({ "listening": address.to_string(), "open": true }))?;
    } else {
        writeln!(out, "listening on {address}")?;
        writeln!(out, "open: anybody who reaches this port may test; Ctrl-C ends it")?;
    }
    out.flush()?;
    listener.run(stop, log_event).map_err(|error| Failure::Listen(address, error))
}

/// One line for each event, on stderr: stdout is the address, for scripts.
fn log_event(event: &ListenerEvent<'_>) {
    let line = match event {
        ListenerEvent::Started { peer, params } => format!(
            "{peer}: test {}, {} stream{}",
            params.direction.name(),
            params.streams,
            if params.streams == 1 { "" } else { "s" }
        ),
        ListenerEvent::Finished { peer, bytes_sent, bytes_received, seconds } => {
            let bits = (bytes_sent + bytes_received) as f64 * 8.0 / seconds;
            format!(
                "{peer}: done, received {}, sent {}, {}",
                show_bytes(*bytes_received),
                show_bytes(*bytes_sent),
                show_rate(bits)
            )
        }
        ListenerEvent::Failed { peer, reason } => format!("{peer}: test failed: {reason}"),
        ListenerEvent::Dropped { peer, reason } => format!("{peer}: dropped: {reason}"),
    };
    let _ = writeln!(io::stderr(), "{line}");
}

// Quantities: to be replaced by penstock-units once it has them. From here to the end.

fn parse_scaled(text: &str, units: &[&str]) -> Result<f64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 =
        text[..end].parse().map_err(|_| format!("'{text}' does not start with a number"))?;
    let suffix = units
        .iter()
        .fold(text[end..].trim(), |suffix, unit| suffix.strip_suffix(unit).unwrap_or(suffix));
    let scale = match suffix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" | "m" => 1e6,
        "G" | "g" => 1e9,
        "T" | "t" => 1e12,
        "Ki" => f64::from(1 << 10),
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        "Ti" => f64::from(1 << 30) * 1024.0,
        other => {
            return Err(format!("unknown unit '{other}' (k, M, G, T or Ki, Mi, Gi, Ti)"));
        }
    };
    Ok(number * scale)
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    Ok(parse_scaled(text, &["B"])? as u64)
}

fn parse_bytes_u32(text: &str) -> Result<u32, String> {
    u32::try_from(parse_bytes(text)?).map_err(|_| "4 GiB or more is too much here".to_owned())
}

fn parse_rate(text: &str) -> Result<u64, String> {
    Ok(parse_scaled(text, &["bps", "bit/s", "b/s"])? as u64)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let (digits, scale) = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
        .iter()
        .find_map(|(unit, scale)| text.strip_suffix(unit).map(|digits| (digits, *scale)))
        .unwrap_or((text, 1.0));
    let number: f64 = digits.trim().parse().map_err(|_| format!("'{text}' is not a time"))?;
    if number.is_finite() && number >= 0.0 { Ok(number * scale) } else { Err("not a time".into()) }
}
