//! Output of `penstock nettest`: lines, tables, and one JSON object.

use std::io::{self, Write};
use std::time::Duration;

use penstock_nettest::{
    DatagramCounts, FlowReport, Interval, ListenerEvent, Report, StreamResult, StreamSweepReport,
    SweepPoint,
};
use penstock_units::{BitRate, ByteCount, display_count};

use crate::buffer_limits::Ceiling;
use crate::json::nettest::ListenerEventJson;

pub(super) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

pub(super) fn print_interval(interval: &Interval) -> io::Result<()> {
    let rtt = interval.rtt_us.map_or_else(String::new, |rtt| format!("  rtt {rtt} us"));
    let omitted = if interval.omitted { "  (omitted)" } else { "" };
    let what = match &interval.udp {
        Some(counts) if interval.bytes_received > 0 => show_datagrams(counts),
        Some(counts) => display_count(counts.packets, "datagram"),
        None => format!("retransmits {}{rtt}", interval.retransmits),
    };
    let mut out = io::stdout();
    writeln!(
        out,
        "{:6.1}-{:<6.1} s  {:>10}  {:>11}  {what}{omitted}",
        interval.start_seconds,
        interval.end_seconds,
        show_bytes(interval.bytes_sent + interval.bytes_received),
        show_rate(interval.bits_per_second()),
    )?;
    out.flush()
}

/// Prints that nothing arrives.
pub(super) fn print_stall(silence: Duration, limit: Duration) -> io::Result<()> {
    let mut out = io::stdout();
    let (silence, limit) = (silence.as_secs(), limit.as_secs());
    writeln!(out, "no data for {silence} s: the test fails after {limit} s without any")?;
    out.flush()
}

pub(super) fn print_report(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if report.streams.len() > 1 {
        for stream in &report.streams {
            let what = match &stream.udp {
                Some(counts) => show_datagrams(counts),
                None => format!("retransmits {}{}", stream.retransmits, show_rtt(stream)),
            };
            writeln!(
                out,
                "stream {:3} {}  {:>10}  {:>11}  {what}",
                stream.index,
                stream.direction,
                show_bytes(stream.bytes),
                show_rate(stream.bits_per_second),
            )?;
        }
    }
    for flow in &report.flows {
        writeln!(
            out,
            "{}  {}  {} in {}, bound by {}, {}{}",
            flow.direction,
            show_rate(flow.bits_per_second),
            show_bytes(flow.bytes),
            show_seconds(flow.seconds),
            flow.bound_by,
            match (&flow.udp, report.datagram_bytes) {
                (Some(counts), _) => show_datagrams(counts),
                (None, Some(_)) => "loss unknown".to_owned(),
                (None, None) => format!("retransmits {}", flow.retransmits),
            },
            match &report.error {
                Some(_) => "  (the test failed)",
                None if report.interrupted => "  (interrupted)",
                None => "",
            }
        )?;
    }
    for flow in &report.flows {
        print_label(&mut out, flow)?;
    }
    let rtt = report.streams.iter().find_map(|stream| stream.rtt_us);
    let rtt = rtt.map_or_else(String::new, |rtt| format!(", rtt {rtt} us"));
    let transport = match (&report.rdma, report.datagram_bytes) {
        (Some(rdma), _) => format!(
            "RDMA {} to {}, path MTU {}, rtt {} us",
            rdma.sender_device, rdma.receiver_device, rdma.path_mtu, rdma.rtt_min_us
        ),
        (None, Some(bytes)) => format!("datagrams of {bytes} B"),
        (None, None) => format!("{}, mss {}{rtt}", report.congestion, report.mss),
    };
    write!(out, "{transport}, CPU here {:.0} %", report.cpu_local_percent)?;
    if report.error.is_none() {
        write!(out, ", there {:.0} %", report.cpu_remote_percent)?;
    }
    match &*report.path {
        "" => writeln!(out)?,
        path => writeln!(out, ", sent by {path}")?,
    }
    if let Some(rdma) = &report.rdma {
        writeln!(
            out,
            "{} x depth {} x {} in {} us: at most {} in each direction",
            display_count(rdma.queue_pairs.into(), "queue pair"),
            rdma.depth,
            show_bytes(rdma.message_bytes.into()),
            rdma.rtt_min_us,
            show_rate(rdma.limit_bits_per_second)
        )?;
    }
    if let Some(advice) = advice(report) {
        writeln!(out, "{advice}")?;
    }
    print_other_tests(&mut out, report.other_tests)?;
    if let Some(reason) = &report.path_reason {
        writeln!(out, "a faster path was not available: {reason}")?;
    }
    out.flush()
}

/// Round-trip time of a stream, if one was measured.
fn show_rtt(stream: &StreamResult) -> String {
    let Some(rtt) = stream.rtt_us else { return String::new() };
    let min = stream.rtt_min_us.map_or_else(String::new, |min| format!(" (min {min})"));
    format!("  rtt {rtt} us{min}")
}

/// Loss, jitter and order of datagrams.
fn show_datagrams(counts: &DatagramCounts) -> String {
    let mut text = format!(
        "lost {} of {} ({:.3} %), jitter {:.0} us",
        counts.lost,
        display_count(counts.packets, "datagram"),
        counts.lost_percent,
        counts.jitter_us
    );
    for (count, what) in [(counts.out_of_order, "out of order"), (counts.duplicates, "duplicates")]
    {
        if let Some(count) = count.filter(|count| *count > 0) {
            text.push_str(&format!(", {what} {count}"));
        }
    }
    text
}

/// Advice where socket buffers bind a direction, or may do so.
pub(super) fn advice(report: &Report) -> Option<String> {
    if let Some(rdma) = &report.rdma {
        let is_bound = report.flows.iter().any(|flow| flow.bound_by == "depth");
        return is_bound.then(|| {
            format!(
                "the messages in flight bound the rate: try --depth {}, a larger --block or more streams",
                rdma.depth.saturating_mul(2)
            )
        });
    }
    let flow = report
        .flows
        .iter()
        .find(|flow| matches!(flow.bound_by, "network" | "receive buffer" | "send buffer"))?;
    let streams = report.streams.iter().filter(|one| one.direction == flow.direction);
    let count = streams.clone().count();
    let rtt = streams.filter_map(|one| one.rtt_min_us).min()?;
    if let Some(window) = report.window_bytes
        && flow.bound_by != "network"
    {
        return Some(format!(
            "socket buffers of {} (-w) bound the rate: leave -w out, or give the wanted rate times the round trip of {rtt} us",
            show_bytes(window.into())
        ));
    }
    let ceiling = Ceiling::here(Duration::from_micros(u64::from(rtt)))?;
    let sends_here = flow.direction == "forward";
    match (flow.bound_by, sends_here) {
        ("send buffer", true) | ("receive buffer", false) => Some(ceiling.line()),
        ("send buffer" | "receive buffer", _) => Some(format!(
            "the {} is the other end's: see penstock host check --rtt {rtt}us there, or use more streams",
            flow.bound_by
        )),
        _ => ceiling.advice(flow.bits_per_second, count),
    }
}

fn print_label(out: &mut impl Write, flow: &FlowReport) -> io::Result<()> {
    match (&flow.label, &flow.label_note) {
        (Some(label), Some(why)) => writeln!(out, "{}: label {label}: {why}", flow.direction),
        (Some(label), None) => writeln!(out, "{}: label {label}", flow.direction),
        (None, _) => Ok(()),
    }
}

/// Prints a note if the listener ran other tests.
fn print_other_tests(out: &mut impl Write, other_tests: u32) -> io::Result<()> {
    if other_tests == 0 {
        return Ok(());
    }
    let tests = display_count(other_tests.into(), "other test");
    writeln!(
        out,
        "the listener ran {tests} at the same time: they shared its network and processors"
    )
}

pub(super) fn print_point(point: &SweepPoint) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(
        out,
        "{:7} {:>11} {:12} {:7.0} % {:8.0} %",
        point.streams,
        show_rate(point.bits_per_second),
        point.retransmits,
        point.cpu_local_percent,
        point.cpu_remote_percent
    )?;
    out.flush()
}

/// Prints the result of a sweep; its last report has the label.
pub(super) fn print_sweep(
    found: &StreamSweepReport,
    last: &Report,
    other_tests: u32,
) -> io::Result<()> {
    let mut out = io::stdout();
    for flow in &last.flows {
        print_label(&mut out, flow)?;
    }
    writeln!(
        out,
        "{} {} enough: {}, within {} % of the best ({} with {})",
        display_count(u64::from(found.knee_streams), "stream"),
        if found.knee_streams == 1 { "is" } else { "are" },
        show_rate(found.knee_bits_per_second),
        found.knee_percent,
        show_rate(found.best_bits_per_second),
        found.best_streams
    )?;
    print_other_tests(&mut out, other_tests)?;
    if found.still_rising {
        writeln!(out, "the rate was still rising: try a larger --sweep-max")?;
    }
    out.flush()
}

/// Prints a line for each event of a listener to stderr; stdout has only the address.
pub(super) fn log_line(event: &ListenerEvent<'_>) {
    let line = match event {
        ListenerEvent::Started { peer, params } => format!(
            "{peer}: test {}, {}",
            params.direction.name(),
            display_count(u64::from(params.streams), "stream"),
        ),
        ListenerEvent::Finished { peer, bytes_sent, bytes_received, seconds } => {
            format!("{peer}: done, {}", show_totals(*bytes_sent, *bytes_received, *seconds))
        }
        ListenerEvent::Failed { peer, reason, bytes_sent: 0, bytes_received: 0, .. } => {
            format!("{peer}: test failed: {reason}")
        }
        ListenerEvent::Failed { peer, reason, bytes_sent, bytes_received, seconds } => format!(
            "{peer}: test failed: {reason}; until then {}",
            show_totals(*bytes_sent, *bytes_received, *seconds)
        ),
        ListenerEvent::Dropped { peer, reason } => format!("{peer}: dropped: {reason}"),
    };
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints events of a listener as JSON objects.
pub(super) fn log_json(event: &ListenerEvent<'_>) {
    let event = match event {
        ListenerEvent::Started { peer, params } => {
            ListenerEventJson::Started { peer: peer.to_string(), params: (*params).clone() }
        }
        ListenerEvent::Finished { peer, bytes_sent, bytes_received, seconds } => {
            ListenerEventJson::Finished {
                peer: peer.to_string(),
                bytes_sent: *bytes_sent,
                bytes_received: *bytes_received,
                seconds: *seconds,
            }
        }
        ListenerEvent::Failed { peer, reason, bytes_sent, bytes_received, seconds } => {
            ListenerEventJson::Failed {
                peer: peer.to_string(),
                reason: reason.to_string(),
                bytes_sent: *bytes_sent,
                bytes_received: *bytes_received,
                seconds: *seconds,
            }
        }
        ListenerEvent::Dropped { peer, reason } => {
            ListenerEventJson::Dropped { peer: peer.to_string(), reason: reason.to_string() }
        }
    };
    let _ = writeln!(io::stderr(), "{}", serde_json::json!(event));
}

fn show_totals(bytes_sent: u64, bytes_received: u64, seconds: f64) -> String {
    format!(
        "received {}, sent {}, {}",
        show_bytes(bytes_received),
        show_bytes(bytes_sent),
        show_rate((bytes_sent + bytes_received) as f64 * 8.0 / seconds)
    )
}

fn show_seconds(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.2} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

fn show_rate(bits_per_second: f64) -> String {
    BitRate(bits_per_second as u64).to_string()
}

fn show_bytes(bytes: u64) -> String {
    ByteCount(bytes).to_string()
}
