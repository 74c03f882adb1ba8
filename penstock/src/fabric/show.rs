//! Results of a run as tables and JSON.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use penstock_fabric::report::{FabricSummary, Quantiles};
use penstock_fabric::{PortResult, Simulation, time};
use penstock_units::{BitRate, ByteCount, display_latency};

use super::run::{code, rate};
use super::threads::Threads;
use crate::exit::{Code, CommandFailure};
use crate::json::fabric as shown;
use crate::table::table;

/// Most ports in the table: those with the longest queues, pauses or drops.
const PORTS_SHOWN: usize = 10;

pub(crate) fn print(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes())
}

/// Result object of a run; the caller measures wall time.
pub(crate) fn object(
    name: &str,
    simulation: &Simulation,
    summary: &FabricSummary,
) -> shown::FabricRunJson {
    let network = simulation.network();
    let counts = simulation.counts();
    let ports = (0..network.ports.len() as u32).map(|port| {
        let result = simulation.port_result(port);
        shown::PortJson {
            port: network.show_port(port),
            sent_packets: result.sent_packets,
            sent_bytes: result.sent_bytes,
            utilisation: utilisation(&result, summary),
            marked: result.marked,
            dropped: result.dropped,
            lost: result.lost,
            queue_bytes_max: result.queue_bytes_max,
            pauses_sent: result.pauses_sent,
            paused_seconds: time::seconds(result.paused_ps),
            watchdog: result.watchdog,
            watchdog_dropped: result.watchdog_dropped,
        }
    });
    let switches = (0..network.nodes.len() as u32).filter_map(|node| {
        let result = simulation.switch_result(node)?;
        Some(shown::Switch {
            switch: network.nodes[node as usize].name.clone(),
            buffer_bytes: result.buffer_bytes,
            used_bytes_max: result.used_bytes_max,
        })
    });
    let parameters = simulation.parameters().rows().into_iter();
    let waits = simulation.cyclic_waits().iter().map(|wait| shown::CyclicWaitJson {
        found_seconds: time::seconds(wait.found_ps),
        ended_seconds: wait.ended_ps.map(time::seconds),
        priority: wait.priority,
        ports: wait.ports.iter().map(|port| network.show_port(*port)).collect(),
    });
    shown::FabricRunJson {
        network: name.to_owned(),
        flows: simulation.flows().len(),
        summary: summary.into(),
        base_round_trip_seconds: time::seconds(simulation.base_rtt_ps()),
        events: counts.events,
        packet_hops: counts.arrivals,
        dropped: counts.dropped,
        lost: counts.lost,
        digest: format!("{:016x}", simulation.digest()),
        warnings: warnings(simulation),
        cyclic_waits: waits.collect(),
        parameters: parameters.map(|row| (row.name.to_owned(), row.value)).collect(),
        switches: switches.collect(),
        ports: ports.collect(),
        threads: 0,
        wall_seconds: 0.0,
        events_per_second: 0.0,
        hops_per_second: 0.0,
        memory_peak_bytes: None,
    }
}

/// Warnings about the validity of the results.
fn warnings(simulation: &Simulation) -> Vec<String> {
    let mut warnings = Vec::new();
    let counts = simulation.counts();
    let parameters = simulation.parameters();
    if counts.early_timeouts > 0 {
        warnings.push(format!(
            "{} queue pairs have an acknowledgement time-out shorter than their round trip: raise timeout_exponent",
            counts.early_timeouts
        ));
    }
    if parameters.pfc && counts.dropped > 0 {
        warnings.push(format!(
            "{} packets were dropped with pausing on: the fabric is not lossless with these buffers",
            counts.dropped
        ));
    }
    if let Some(wait) = simulation.cyclic_waits().first() {
        let network = simulation.network();
        let ports: Vec<String> = wait.ports.iter().map(|port| network.show_port(*port)).collect();
        warnings.push(format!(
            "{} cyclic waits of pauses; the first after {:.6} s: {}; a watchdog (watchdog_detect), selective recovery or ways without a cycle end them",
            simulation.cyclic_waits().len(),
            time::seconds(wait.found_ps),
            ports.join(", ")
        ));
    }
    if parameters.switch_latency.0 == 0 || parameters.nic_latency.0 == 0 {
        warnings.push(
            "hosts or switches take no time of their own: set nic_latency and switch_latency for latencies"
                .to_owned(),
        );
    }
    warnings
}

/// Result of a run as text.
pub(crate) fn text(
    name: &str,
    simulation: &Simulation,
    summary: &FabricSummary,
    wall: Duration,
    threads: usize,
) -> String {
    let counts = simulation.counts();
    let mut text = format!(
        "{name}: {} flows, {} done, {} failed, {} unfinished, {:.6} s simulated\n",
        simulation.flows().len(),
        summary.finished,
        summary.failed,
        summary.unfinished,
        summary.seconds
    );
    let _ = writeln!(
        text,
        "goodput {} in sum, {} delivered; fairness {}",
        BitRate(summary.goodput_bps as u64),
        ByteCount(summary.delivered_bytes),
        summary.fairness.map_or("-".to_owned(), |fairness| format!("{fairness:.4}"))
    );
    let _ = writeln!(
        text,
        "{} pauses, longest standstill {}, {} marks, {} dropped, {} lost, {} sent again, {} time-outs",
        summary.pauses,
        latency(summary.paused_seconds_max),
        summary.marks,
        counts.dropped,
        counts.lost,
        summary.packets_again,
        summary.timeouts
    );
    let _ = writeln!(
        text,
        "longest queue {}, most memory of a switch {}; longest time in which a flow got nothing {}\n",
        ByteCount(summary.queue_bytes_max),
        ByteCount(summary.buffer_bytes_max),
        latency(summary.stalled_seconds_max)
    );
    text += &table(&quantile_rows(summary));
    let busiest = ports(simulation, summary);
    if busiest.len() > 1 {
        text.push('\n');
        text += &table(&busiest);
    }
    for warning in warnings(simulation) {
        let _ = writeln!(text, "\nnote: {warning}");
    }
    let _ = writeln!(
        text,
        "\n{} events and {} packets over links in {:.2} s ({:.2} M a second) on {threads} {}; digest {:016x}",
        counts.events,
        counts.arrivals,
        wall.as_secs_f64(),
        rate(counts.arrivals, wall) / 1e6,
        if threads == 1 { "thread" } else { "threads" },
        simulation.digest()
    );
    text
}

fn quantile_rows(summary: &FabricSummary) -> Vec<Vec<String>> {
    let heads = ["", "flows", "mean", "p50", "p95", "p99", "p99.9", "max"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut add = |what: String, flows: usize, q: Quantiles, show: &dyn Fn(f64) -> String| {
        let mut row = vec![what, flows.to_string()];
        row.extend([q.mean, q.p50, q.p95, q.p99, q.p999, q.max].map(show));
        rows.push(row);
    };
    if let Some(q) = summary.completion_seconds {
        add("completion".to_owned(), summary.finished, q, &latency);
    }
    if let Some(q) = summary.flow_goodput_bps {
        add("goodput".to_owned(), summary.finished, q, &|bps| BitRate(bps as u64).to_string());
    }
    let factor = |factor: f64| format!("{factor:.2}");
    if let Some(q) = summary.slowdown {
        add("slowdown".to_owned(), summary.finished, q, &factor);
    }
    let distinct = summary.by_size.first().map(|bin| bin.bytes_max)
        != summary.by_size.last().map(|bin| bin.bytes_max);
    for bin in summary.by_size.iter().filter(|_| distinct) {
        let what = format!("  up to {}", ByteCount(bin.bytes_max));
        add(what, bin.flows, bin.slowdown, &factor);
    }
    rows
}

/// `time_ps` as a share of the time in which flows ran.
fn share_of_run(time_ps: u64, summary: &FabricSummary) -> f64 {
    (time::seconds(time_ps) / summary.active_seconds.max(1e-12)).min(1.0)
}

/// Share of the time in which flows ran that a port was transmitting.
pub(super) fn utilisation(port: &PortResult, summary: &FabricSummary) -> f64 {
    share_of_run(port.busy_ps, summary)
}

fn ports(simulation: &Simulation, summary: &FabricSummary) -> Vec<Vec<String>> {
    let network = simulation.network();
    let mut all: Vec<_> = (0..network.ports.len() as u32)
        .map(|port| (port, simulation.port_result(port)))
        .filter(|(_, result)| result.sent_packets > 0)
        .collect();
    all.sort_by_key(|(port, r)| {
        std::cmp::Reverse((r.dropped, r.paused_ps, r.queue_bytes_max, r.sent_bytes, *port))
    });
    let heads = ["port", "used", "queue max", "paused", "pauses sent", "marked", "dropped"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (port, result) in all.into_iter().take(PORTS_SHOWN) {
        rows.push(vec![
            network.show_port(port),
            format!("{:.1} %", 100.0 * utilisation(&result, summary)),
            ByteCount(result.queue_bytes_max).to_string(),
            format!("{:.1} %", 100.0 * share_of_run(result.paused_ps, summary)),
            result.pauses_sent.to_string(),
            result.marked.to_string(),
            result.dropped.to_string(),
        ]);
    }
    rows
}

fn latency(seconds: f64) -> String {
    display_latency(Duration::from_secs_f64(seconds.max(0.0)))
}

/// Figures of one perftest run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PerftestFigures {
    bytes: u64,
    iterations: u64,
    /// Gb/s from the first post to the last completion, or half of the mean round trip in microseconds.
    average: Option<f64>,
    messages_per_second: f64,
}

/// Computes the figures as perftest does: all bytes over the time from the first post to the last completion, or half of
/// the mean round trip.
pub(crate) fn perftest_row(simulation: &Simulation, is_latency: bool) -> PerftestFigures {
    let flow = &simulation.flows()[0];
    let (bytes, iterations) = (flow.message_bytes, flow.messages);
    let results: Vec<_> =
        (0..simulation.flows().len()).map(|flow| simulation.flow_result(flow)).collect();
    let finished: Option<Vec<u64>> = results.iter().map(|result| result.finished_ps).collect();
    let last = finished.and_then(|times| times.into_iter().max());
    let all_messages: u64 = results.iter().map(|result| result.completed).sum();
    let average = last.and_then(|last| {
        if is_latency {
            let answered = results[1].arrived_ps?;
            Some(time::seconds(answered) * 1e6 / iterations as f64 / 2.0)
        } else {
            Some(all_messages as f64 * bytes as f64 * 8.0 / time::seconds(last) / 1e9)
        }
    });
    let messages_per_second =
        last.map_or(0.0, |last| all_messages as f64 / time::seconds(last).max(1e-12));
    PerftestFigures { bytes, iterations, average, messages_per_second }
}

/// A run of a perftest with its wall time.
type PerftestRun = (Simulation, PerftestFigures, Duration);

/// Table in the columns of perftest.
pub(crate) fn perftest(
    name: &str,
    runs: &[PerftestRun],
    is_latency: bool,
    threads: Threads,
    json: bool,
) -> Result<Code, CommandFailure> {
    let worst = runs.iter().map(|(simulation, ..)| code(simulation));
    let worst = worst.max_by_key(|code| *code as u8).unwrap_or(Code::Done);
    if json {
        let rows = runs.iter().map(|(simulation, row, wall)| {
            let counts = simulation.counts();
            shown::PerftestRow {
                bytes: row.bytes,
                iterations: row.iterations,
                average_gigabits_per_second: row.average.filter(|_| !is_latency),
                average_microseconds: row.average.filter(|_| is_latency),
                messages_per_second: row.messages_per_second,
                dropped: counts.dropped,
                lost: counts.lost,
                timeouts: simulation.flow_result(0).timeouts,
                packet_hops: counts.arrivals,
                threads: threads.of(simulation),
                wall_seconds: wall.as_secs_f64(),
                digest: format!("{:016x}", simulation.digest()),
                warnings: warnings(simulation),
            }
        });
        crate::json::print(&shown::PerftestJson {
            network: name.to_owned(),
            rows: rows.collect(),
        })?;
        return Ok(worst);
    }
    let average = if is_latency { "t_avg[usec]" } else { "BW average[Gb/sec]" };
    let heads = ["#bytes", "#iterations", average, "MsgRate[Mpps]"];
    let mut cells = vec![heads.map(str::to_owned).to_vec()];
    for (_, row, _) in runs {
        let digits = if is_latency { 3 } else { 2 };
        cells.push(vec![
            row.bytes.to_string(),
            row.iterations.to_string(),
            row.average.map_or("-".to_owned(), |average| format!("{average:.digits$}")),
            format!("{:.6}", row.messages_per_second / 1e6),
        ]);
    }
    let mut text = table(&cells);
    if let Some((simulation, ..)) = runs.last() {
        for warning in warnings(simulation) {
            let _ = writeln!(text, "\nnote: {warning}");
        }
    }
    print(&text)?;
    Ok(worst)
}
