//! Files of a run: everything as JSON, flows and ports as CSV, flows as Parquet, a page with plots, and the files of the HPCC simulator.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use penstock_fabric::report::Summary;
use penstock_fabric::{Simulation, hpcc, time};
use penstock_units::{BitRate, ByteCount};
use serde_json::Value;

use super::parquet;
use crate::exit::Failure;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 56.0;

/// Writes all of them into a folder, which is made where it is not there.
///
/// # Errors
/// When that cannot be.
pub(crate) fn write(
    folder: &Path,
    name: &str,
    simulation: &Simulation,
    summary: &Summary,
    object: &Value,
) -> Result<(), Failure> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = vec![
        ("result.json", format!("{object:#}\n")),
        ("flows.csv", flows(simulation)),
        ("ports.csv", ports(simulation)),
        ("fct.txt", hpcc::completions(simulation)),
        ("pfc.txt", hpcc::pauses(simulation)),
        ("report.html", page(name, simulation, summary, object)),
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

fn ports(simulation: &Simulation) -> String {
    let network = simulation.network();
    let seconds = time::seconds(simulation.now_ps()).max(1e-12);
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
            time::seconds(result.busy_ps) / seconds,
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

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn page(name: &str, simulation: &Simulation, summary: &Summary, object: &Value) -> String {
    let changed: Vec<String> = simulation
        .parameters()
        .rows()
        .into_iter()
        .zip(penstock_fabric::Parameters::default().rows())
        .filter(|(now, usual)| now.value != usual.value)
        .map(|(now, _)| format!("{} = {}", now.name, now.value))
        .collect();
    let changed =
        if changed.is_empty() { "all at their defaults".to_owned() } else { changed.join(", ") };
    let mut body = format!(
        "<h1>{}</h1>\n<p>{} flows, {} done; {} in sum; {} dropped, {} pauses, longest queue {}. Parameters: {}.</p>\n\
         <p>{:.6} s simulated in {:.2} s, on {} threads, which change no result; digest {}.</p>\n",
        escaped(name),
        simulation.flows().len(),
        summary.finished,
        BitRate(summary.goodput_bps as u64),
        simulation.counts().dropped,
        summary.pauses,
        ByteCount(summary.queue_bytes_max),
        escaped(&changed),
        summary.seconds,
        object["wall_seconds"].as_f64().unwrap_or(0.0),
        object["threads"],
        object["digest"].as_str().unwrap_or_default()
    );
    let mut times: Vec<f64> = simulation
        .flows()
        .iter()
        .enumerate()
        .filter_map(|(number, flow)| {
            let done = simulation.flow_result(number).finished_ps?;
            Some(time::seconds(done - flow.start_ps) * 1e6)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    if times.len() > 1 {
        let count = times.len() as f64;
        let step = (times.len() / 500).max(1);
        let line: Vec<(f64, f64)> = times
            .iter()
            .enumerate()
            .filter(|(at, _)| at % step == 0 || at + 1 == times.len())
            .map(|(at, us)| (us.max(1e-3).log10(), (at + 1) as f64 / count))
            .collect();
        body += &plot(
            "Completion times",
            "log10 of microseconds",
            "share of flows",
            &[("flows", line)],
        );
    }
    if summary.by_size.len() > 1 {
        type Pick = fn(&penstock_fabric::report::Quantiles) -> f64;
        let picks: [(&str, Pick); 3] = [("p50", |q| q.p50), ("p95", |q| q.p95), ("p99", |q| q.p99)];
        let lines = picks.map(|(label, pick)| {
            let points = summary.by_size.iter();
            let line: Vec<(f64, f64)> = points
                .map(|bin| ((bin.bytes_max.max(1) as f64).log10(), pick(&bin.slowdown)))
                .collect();
            (label, line)
        });
        body += &plot(
            "Slowdown by size",
            "log10 of bytes",
            "completion over that in an empty network",
            &lines,
        );
    }
    let bars: Vec<(f64, f64)> = busiest(simulation);
    if bars.len() > 1 {
        body += &plot("Ports by use", "rank of the port", "share of time busy", &[("ports", bars)]);
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{}</title>\n<style>body{{font:15px sans-serif;max-width:44em;margin:2em auto}}svg{{width:100%}}</style>\n{body}</html>\n",
        escaped(name)
    )
}

fn busiest(simulation: &Simulation) -> Vec<(f64, f64)> {
    let seconds = time::seconds(simulation.now_ps()).max(1e-12);
    let mut used: Vec<f64> = (0..simulation.network().ports.len() as u32)
        .map(|port| time::seconds(simulation.port_result(port).busy_ps) / seconds)
        .collect();
    used.sort_by(|a, b| b.total_cmp(a));
    used.into_iter().enumerate().map(|(rank, share)| (rank as f64, share)).collect()
}

/// Lines over two axes.
pub(crate) fn plot(
    title: &str,
    across: &str,
    up: &str,
    lines: &[(&str, Vec<(f64, f64)>)],
) -> String {
    const COLOURS: [&str; 6] = ["#1b6ca8", "#d9822b", "#a82b2b", "#4d9221", "#8073ac", "#777777"];
    let all = || lines.iter().flat_map(|(_, line)| line);
    let (mut low, mut high, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 0.0_f64);
    for (x, y) in all() {
        (low, high, top) = (low.min(*x), high.max(*x), top.max(*y));
    }
    let (span, top) = ((high - low).max(1e-9), top.max(1e-9));
    let place = |(x, y): &(f64, f64)| {
        let across = MARGIN + (x - low) / span * (WIDTH - 2.0 * MARGIN);
        format!("{across:.1},{:.1}", HEIGHT - MARGIN - y / top * (HEIGHT - 2.0 * MARGIN))
    };
    let mut text =
        format!("<h2>{title}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-size=\"12\">\n");
    let base = HEIGHT - MARGIN;
    let _ = writeln!(
        text,
        "<path d=\"M{MARGIN} {MARGIN}V{base}H{}\" fill=\"none\" stroke=\"#888\"/>",
        WIDTH - MARGIN
    );
    let mut label = |x: f64, y: f64, anchor: &str, words: &str| {
        let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>");
    };
    label(MARGIN, base + 18.0, "middle", &format!("{low:.2}"));
    label(WIDTH - MARGIN, base + 18.0, "middle", &format!("{high:.2}"));
    label(WIDTH / 2.0, base + 36.0, "middle", across);
    label(MARGIN - 6.0, MARGIN + 4.0, "end", &format!("{top:.2}"));
    label(MARGIN - 6.0, base, "end", "0");
    label(MARGIN, MARGIN - 14.0, "start", up);
    for (number, (name, line)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> = line.iter().map(place).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{name}</text>",
            points.join(" "),
            WIDTH - MARGIN + 6.0,
            MARGIN + 16.0 * number as f64
        );
    }
    text + "</svg>\n"
}
