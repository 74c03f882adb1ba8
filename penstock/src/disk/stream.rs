//! `penstock disk stream`: reads a remote disk at the rate of the path.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use penstock_disk::controller::RemoteController;
use penstock_disk::stream::{
    DiskStreamProgress, DiskStreamReport, READ_BYTES_DEFAULT, StreamDestination, StreamParams,
    stream,
};
use penstock_disk::{DiskLocation, FabricsTransport};
use penstock_protocol::digest::Algorithm;
use penstock_units::{BitRate, ByteCount, parse_duration};

use super::{DepthArgs, DiskHostArgs, DiskTarget, failed, location, mark, print, show_rtt};
use crate::buffer_limits::Ceiling;
use crate::cp::Labels;
use crate::exit::{Code, CommandFailure};
use crate::progress::ProgressLine;

#[derive(Debug, clap::Args)]
pub(crate) struct StreamArgs {
    /// The disk: HOST/NAME, HOST:PORT/NAME, [ADDRESS]:PORT/NAME; NAME is that of an export, or an NQN
    #[arg(value_name = "SOURCE", value_parser = location)]
    source: DiskLocation,
    /// File, block device, - for standard output, or /dev/null to measure
    #[arg(value_name = "DEST")]
    destination: PathBuf,
    #[command(flatten)]
    plan: DepthArgs,
    /// Round-trip time to plan for [default: measured]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    rtt: Option<Duration>,
    /// Queues, each a connection and a thread [default: from rate, RTT and size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: Option<u16>,
    /// Reads in flight of each queue [default: from rate, RTT and size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: Option<u16>,
    /// Namespace of the disk [default: the first]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    namespace: Option<u32>,
    /// First byte, a multiple of the block size
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: ByteCount,
    /// Bytes to read [default: to the end]
    #[arg(long, value_name = "SIZE")]
    length: Option<ByteCount>,
    /// Digest of the stream: crc32c, blake3, adler32 or none
    #[arg(long, value_name = "NAME", default_value = "crc32c", value_parser = digest)]
    digest: Algorithm,
    /// Threads that write the destination
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    writers: u16,
    /// Label packets of this host: OWNER/ACTIVITY by name or number, or a scitag number
    #[arg(long, value_name = "OWNER/ACTIVITY")]
    scitag: Option<String>,
    /// Carry the scitag in the IPv6 flow label, in an IPv6 destination option, or not at all
    #[arg(long, value_enum, default_value_t = Labels::Flow, requires = "scitag")]
    label: Labels,
    #[command(flatten)]
    host: DiskHostArgs,
}

fn digest(text: &str) -> anyhow::Result<Algorithm> {
    let algorithm: Algorithm = text.parse()?;
    anyhow::ensure!(
        algorithm.combines(),
        "blocks arrive in any order, and {text} needs them in that of the disk: use crc32c or blake3"
    );
    Ok(algorithm)
}

pub(super) fn run(args: &StreamArgs, json: bool) -> Result<Code, CommandFailure> {
    let _ = penstock_sys::machine::raise_open_files();
    let target = args.host.target(&args.source, FabricsTransport::Tcp)?.over_tcp()?;
    let DiskTarget { location, mut host, .. } = target;
    host.mark = mark(args.scitag.as_deref(), args.label)?;
    let params = StreamParams {
        namespace: args.namespace,
        offset: args.offset.0,
        length: args.length.map(|length| length.0),
        rate_bps: args.plan.rate_bps(&location, &host),
        rtt: args.rtt,
        queues: args.queues,
        depth: args.depth,
        size_bytes: args.plan.size,
        writers: usize::from(args.writers),
        digest: args.digest,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let controller = RemoteController::connect(&location, &host).map_err(failed)?;
    let mut line = ProgressLine::begin();
    let mut progress = |now: DiskStreamProgress| line.update(|| show_progress(&now));
    let destination = StreamDestination::of(&args.destination);
    let result = stream(controller, &location.nqn, &params, &destination, &stop, &mut progress);
    line.clear();
    let report = result.map_err(failed)?;
    if destination == StreamDestination::Standard {
        return Ok(Code::Done);
    }
    if json {
        crate::json::print(&report)?;
        return Ok(Code::Done);
    }
    print(&text(&report))
}

fn show_progress(now: &DiskStreamProgress) -> String {
    let percent = 100 * u128::from(now.bytes) / u128::from(now.total_bytes.max(1));
    format!(
        "{percent:3} %  {} of {}  {}",
        ByteCount(now.bytes),
        ByteCount(now.total_bytes),
        BitRate::over(now.bytes, now.elapsed)
    )
}

fn text(report: &DiskStreamReport) -> String {
    let rtt = Duration::from_micros(report.rtt_us);
    let rate = BitRate(report.bits_per_second as u64);
    let mut text = format!(
        "{} in {:.2} s: {rate}\n{} queues of {} reads of {}: {} in flight, RTT {}: {} at most\n",
        ByteCount(report.bytes),
        report.seconds,
        report.queues,
        report.depth,
        ByteCount(u64::from(report.read_bytes)),
        ByteCount(report.in_flight_bytes),
        show_rtt(rtt),
        BitRate(report.law_bits_per_second),
    );
    if let Some(digest) = &report.digest {
        let _ = writeln!(text, "{} {digest}", report.digest_algorithm);
    }
    if !report.label.is_empty() {
        let _ = writeln!(text, "label {}", report.label);
    }
    if let Some(reason) = &report.direct_reason {
        let _ = writeln!(text, "written through the page cache: {reason}");
    }
    if report.bits_per_second < report.law_bits_per_second as f64 / 2.0
        && let Some(ceiling) = Ceiling::here(rtt)
        && let Some(advice) = ceiling.advice(report.bits_per_second, usize::from(report.queues))
    {
        let _ = writeln!(text, "{advice}");
    }
    text
}

/// The default in `DepthArgs`.
const _: () = assert!(READ_BYTES_DEFAULT == 1 << 20);
