//! Files of a run: JSON result, CSV of flows and ports, Parquet of flows, HTML report, and files of the HPCC simulator.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use penstock_fabric::report::{FabricSummary, Quantiles};
use penstock_fabric::{Simulation, hpcc, time};
use penstock_units::{BitRate, ByteCount};

use super::parquet;
use super::show::utilisation;
use super::timeline::RunTimeline;
use crate::chart::{self, Axis, PlotLine, Quantity, escaped, with_unit};
use crate::exit::CommandFailure;
use crate::json::fabric::FabricRunJson;

/// Most ports in the utilisation chart.
const PORTS_SHOWN: usize = 20;

/// Writes all files into a folder, and creates it if needed.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(
    folder: &Path,
    name: &str,
    simulation: &Simulation,
    summary: &FabricSummary,
    object: &FabricRunJson,
    timeline: &RunTimeline,
) -> Result<(), CommandFailure> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = vec![
        ("result.json", format!("{:#}\n", serde_json::json!(object))),
        ("flows.csv", flows(simulation)),
        ("ports.csv", ports(simulation, summary)),
        ("fct.txt", hpcc::completions(simulation)),
        ("pfc.txt", hpcc::pauses(simulation)),
        ("report.html", page(name, simulation, summary, object, timeline)),
    ];
    if (0..simulation.network().ports.len() as u32)
        .any(|port| !simulation.queue_bins(port).is_empty())
    {
        files.push(("qlen.txt", hpcc::queues(simulation)));
    }
    for (file, text) in files {
        let path = folder.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    parquet::write(&folder.join("results.parquet"), simulation)
}

fn flows(simulation: &Simulation) -> String {
    let network = simulation.network();
    let name = |node: u32| &network.nodes[node as usize].name;
    let mut text = "flow,group,from,to,bytes,messages,start_seconds,completion_seconds,ideal_seconds,slowdown,\
                    delivered_bytes,packets_sent,packets_sent_again,timeouts,marks,stalled_seconds_max,state\n"
        .to_owned();
    for (number, flow) in simulation.flows().iter().enumerate() {
        let result = simulation.flow_result(number);
        let took = result.finished_ps.map(|done| done - flow.start_ps);
        let ideal = result.ideal_ps.max(1);
        let show = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.12}"));
        let state = parquet::state(&result);
        let _ = writeln!(
            text,
            "{number},{},{},{},{},{},{:.12},{},{:.12},{},{},{},{},{},{},{:.12},{state}",
            flow.group,
            name(flow.from),
            name(flow.to),
            flow.message_bytes,
            flow.messages,
            time::seconds(flow.start_ps),
            show(took.map(time::seconds)),
            time::seconds(ideal),
            show(took.map(|took| (took as f64 / ideal as f64).max(1.0))),
            result.delivered_bytes,
            result.packets_sent,
            result.packets_again,
            result.timeouts,
            result.marks,
            time::seconds(result.stalled_ps_max),
        );
    }
    text
}

fn ports(simulation: &Simulation, summary: &FabricSummary) -> String {
    let network = simulation.network();
    let mut text =
        "port,sent_packets,sent_bytes,utilisation,queue_bytes_max,marked,dropped,lost,pauses_sent,\
                    paused_seconds,watchdog\n"
            .to_owned();
    for port in 0..network.ports.len() as u32 {
        let result = simulation.port_result(port);
        let _ = writeln!(
            text,
            "{},{},{},{:.6},{},{},{},{},{},{:.12},{}",
            network.show_port(port),
            result.sent_packets,
            result.sent_bytes,
            utilisation(&result, summary),
            result.queue_bytes_max,
            result.marked,
            result.dropped,
            result.lost,
            result.pauses_sent,
            time::seconds(result.paused_ps),
            result.watchdog,
        );
    }
    text
}

fn page(
    name: &str,
    simulation: &Simulation,
    summary: &FabricSummary,
    object: &FabricRunJson,
    timeline: &RunTimeline,
) -> String {
    let title = escaped(name);
    let mut body = format!("<h1>{title}</h1>\n");
    body += &figures(simulation, summary, object);
    body += &quantiles(summary);
    body += &timeline.plots(simulation);
    let seconds: Vec<f64> = simulation
        .flows()
        .iter()
        .enumerate()
        .filter_map(|(number, flow)| {
            let done = simulation.flow_result(number).finished_ps?;
            Some(time::seconds(done - flow.start_ps).max(1e-12))
        })
        .collect();
    if seconds.len() > 1 {
        body += &chart::lines(
            "Completion times",
            Axis::log("completion time of a flow", Quantity::Seconds),
            Axis::new("flows that are done by then", Quantity::Share),
            &[PlotLine::distribution("", seconds)],
        );
    }
    body += &slowdowns(simulation, summary);
    body += &busiest(simulation, summary);
    body += &parameters(simulation);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title>\n<style>{}</style>\n{body}</html>\n",
        chart::STYLE
    )
}

fn figures(simulation: &Simulation, summary: &FabricSummary, object: &FabricRunJson) -> String {
    let counts = simulation.counts();
    let flows = simulation.flows().len();
    let rows = [
        (
            "flows",
            format!(
                "{flows}, {} done, {} failed, {} unfinished",
                summary.finished, summary.failed, summary.unfinished
            ),
        ),
        (
            "goodput",
            format!(
                "{} in sum over {}; {} delivered",
                BitRate(summary.goodput_bps as u64),
                with_unit(Quantity::Seconds, summary.active_seconds),
                ByteCount(summary.delivered_bytes)
            ),
        ),
        (
            "losses",
            format!(
                "{} packets dropped, {} lost, {} sent again, {} time-outs",
                counts.dropped, counts.lost, summary.packets_again, summary.timeouts
            ),
        ),
        (
            "pauses",
            format!(
                "{}; the port that was paused longest for {}",
                summary.pauses,
                with_unit(Quantity::Seconds, summary.paused_seconds_max)
            ),
        ),
        (
            "queues",
            format!(
                "longest {}, most memory of a switch {}; {} marks",
                ByteCount(summary.queue_bytes_max),
                ByteCount(summary.buffer_bytes_max),
                summary.marks
            ),
        ),
        (
            "run",
            format!(
                "{:.6} s simulated in {:.2} s, on {} threads, which change no result; digest {}",
                summary.seconds, object.wall_seconds, object.threads, object.digest
            ),
        ),
    ];
    let mut text = "<table>\n".to_owned();
    for (what, value) in rows {
        let _ = writeln!(text, "<tr><th>{what}</th><td>{}</td></tr>", escaped(&value));
    }
    text += "</table>\n";
    for warning in &object.warnings {
        let warning = escaped(warning);
        let _ = writeln!(text, "<p class=\"note\">Note: {warning}.</p>");
    }
    text
}

/// Completion times, goodputs and slowdowns.
fn quantiles(summary: &FabricSummary) -> String {
    let rows = [
        ("completion time", summary.completion_seconds, Quantity::Seconds),
        ("goodput of a flow", summary.flow_goodput_bps, Quantity::BitsPerSecond),
        ("slowdown", summary.slowdown, Quantity::Number),
    ];
    let mut text =
        "<table>\n<tr><th></th><th>mean</th><th>p50</th><th>p95</th><th>p99</th><th>p99.9</th><th>max</th></tr>\n"
            .to_owned();
    for (what, found, quantity) in rows {
        let Some(Quantiles { mean, p50, p95, p99, p999, max }) = found else { continue };
        let cells: String = [mean, p50, p95, p99, p999, max]
            .map(|value| format!("<td class=\"number\">{}</td>", with_unit(quantity, value)))
            .concat();
        let _ = writeln!(text, "<tr><th>{what}</th>{cells}</tr>");
    }
    text + "</table>\n"
}

/// Slowdowns by flow size, or their distribution if all flows have one size.
fn slowdowns(simulation: &Simulation, summary: &FabricSummary) -> String {
    const LABEL: &str = "completion time over that of the flow alone";
    match summary.by_size.as_slice() {
        [] => String::new(),
        [only] => {
            let values = simulation.flows().iter().enumerate().filter_map(|(number, flow)| {
                let result = simulation.flow_result(number);
                let took = result.finished_ps? - flow.start_ps;
                Some((took as f64 / result.ideal_ps.max(1) as f64).max(1.0))
            });
            let values: Vec<f64> = values.collect();
            if values.len() < 2 {
                return String::new();
            }
            let title = format!(
                "Slowdown of flows of {}",
                with_unit(Quantity::Bytes, only.bytes_max as f64)
            );
            chart::lines(
                &title,
                Axis::new(LABEL, Quantity::Number),
                Axis::new("flows that are not slower", Quantity::Share),
                &[PlotLine::distribution("", values)],
            )
        }
        bins => {
            type QuantileField = fn(&Quantiles) -> f64;
            let picks: [(&str, QuantileField); 3] =
                [("p50", |q| q.p50), ("p95", |q| q.p95), ("p99", |q| q.p99)];
            let lines = picks.map(|(name, pick)| {
                let point = |bin: &penstock_fabric::report::SizeBin| {
                    (bin.bytes_max.max(1) as f64, pick(&bin.slowdown))
                };
                PlotLine::new(name, bins.iter().map(point).collect())
            });
            chart::lines(
                "Slowdown by size",
                Axis::log("size of a flow", Quantity::Bytes),
                Axis::new(LABEL, Quantity::Number),
                &lines,
            )
        }
    }
}

/// Ports by utilisation while flows ran.
fn busiest(simulation: &Simulation, summary: &FabricSummary) -> String {
    let network = simulation.network();
    let ports = 0..network.ports.len() as u32;
    let mut used: Vec<(u32, f64)> =
        ports.map(|port| (port, utilisation(&simulation.port_result(port), summary))).collect();
    used.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let all = used.len();
    used.truncate(PORTS_SHOWN);
    let title = if all > PORTS_SHOWN {
        format!("Time that ports were busy while flows ran: the {PORTS_SHOWN} busiest of {all}")
    } else {
        "Time that ports were busy while flows ran".to_owned()
    };
    let rows: Vec<(String, f64)> =
        used.into_iter().map(|(port, share)| (network.show_port(port), share)).collect();
    chart::bars(&title, &rows)
}

/// Parameters that differ from their defaults.
fn parameters(simulation: &Simulation) -> String {
    let usual = penstock_fabric::Parameters::default().rows();
    let rows = simulation.parameters().rows().into_iter().zip(usual);
    let changed: Vec<String> = rows
        .filter(|(now, usual)| now.value != usual.value)
        .map(|(now, _)| format!("<tr><th>{}</th><td>{}</td></tr>\n", now.name, escaped(&now.value)))
        .collect();
    if changed.is_empty() {
        return "<h2>Parameters</h2>\n<p>all at their defaults</p>\n".to_owned();
    }
    format!(
        "<h2>Parameters that are not at their defaults</h2>\n<table>\n{}</table>\n",
        changed.concat()
    )
}
