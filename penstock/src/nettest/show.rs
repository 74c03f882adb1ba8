//! What `penstock nettest` writes for people: lines, tables, and the one JSON object for scripts.

use std::io::{self, Write};

use penstock_mover::nettest::{Interval, Report, SweepPoint, SweepReport};

pub(super) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

pub(super) fn print_interval(interval: &Interval) -> io::Result<()> {
    let rtt = interval.rtt_us.map_or_else(String::new, |rtt| format!("  rtt {rtt} us"));
    let omitted = if interval.omitted { "  (omitted)" } else { "" };
    let mut out = io::stdout();
    writeln!(
        out,
        "{:6.1}-{:<6.1} s  {:>10}  {:>11}  retransmits {}{rtt}{omitted}",
        interval.start_seconds,
        interval.end_seconds,
        show_bytes(interval.bytes_sent + interval.bytes_received),
        show_rate(interval.bits_per_second()),
        interval.retransmits,
    )?;
    out.flush()
}

pub(super) fn print_report(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if report.streams.len() > 1 {
        for stream in &report.streams {
            writeln!(
                out,
                "stream {:3} {}  {:>10}  {:>11}  retransmits {}  rtt {} us (min {})",
                stream.index,
                stream.direction,
                show_bytes(stream.bytes),
                show_rate(stream.bits_per_second),
                stream.retransmits,
                stream.rtt_us,
                stream.rtt_min_us
            )?;
        }
    }
    for flow in &report.flows {
        writeln!(
            out,
            "{}  {}  {} in {:.2} s  retransmits {}{}",
            flow.direction,
            show_rate(flow.bits_per_second),
            show_bytes(flow.bytes),
            flow.seconds,
            flow.retransmits,
            if report.interrupted { "  (interrupted)" } else { "" }
        )?;
    }
    let rtt = report.streams.first().map_or(0, |stream| stream.rtt_us);
    writeln!(
        out,
        "{}, mss {}, rtt {rtt} us, CPU here {:.0} %, there {:.0} %, sent by {}",
        report.congestion,
        report.mss,
        report.cpu_local_percent,
        report.cpu_remote_percent,
        report.path
    )?;
    if let Some(reason) = &report.path_reason {
        writeln!(out, "a faster path was not available: {reason}")?;
    }
    out.flush()
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

pub(super) fn print_sweep(found: &SweepReport) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(
        out,
        "{} stream{} enough: {}, within {} % of the best ({} with {})",
        found.knee_streams,
        if found.knee_streams == 1 { " is" } else { "s are" },
        show_rate(found.knee_bits_per_second),
        found.knee_percent,
        show_rate(found.best_bits_per_second),
        found.best_streams
    )?;
    if found.still_rising {
        writeln!(out, "the rate was still rising: try a larger --sweep-max")?;
    }
    out.flush()
}

// Quantities: to be replaced by penstock-units once it has them. From here to the end.

pub(super) fn show_rate(bits_per_second: f64) -> String {
    let (scaled, unit) = scale(bits_per_second, 1000.0, &["", "k", "M", "G", "T"]);
    format!("{scaled:.2} {unit}b/s")
}

pub(super) fn show_bytes(bytes: u64) -> String {
    let (scaled, unit) = scale(bytes as f64, 1024.0, &["", "Ki", "Mi", "Gi", "Ti", "Pi"]);
    format!("{scaled:.2} {unit}B")
}

fn scale<'a>(mut number: f64, base: f64, units: &[&'a str]) -> (f64, &'a str) {
    let mut place = 0;
    while number >= base && place + 1 < units.len() {
        number /= base;
        place += 1;
    }
    (number, units[place])
}
