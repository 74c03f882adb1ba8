//! Output of `penstock lab`.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use crate::json::lab::ScenarioReportJson;
use crate::table::table;
use penstock_lab::control::{
    CircuitReport, DirectionReport, LinkReport, MeasuredLink, RunningLab, ShutdownReport,
};
use penstock_units::{BitRate, ByteCount, display_latency};

pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Text about a started lab.
pub(crate) fn began(status: &RunningLab) -> String {
    let hosts = status.nodes.iter().filter(|node| node.host).count();
    let mut text = format!(
        "lab {} is up: {}, {}, {}; links by {}\n",
        status.name,
        count(hosts, "host", "hosts"),
        count(status.nodes.len() - hosts, "switch", "switches"),
        count(status.links.len(), "link", "links"),
        status.backend,
    );
    for note in &status.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

pub(super) fn count(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// Text about an ended lab.
pub(super) fn ended(name: &str, ended: &ShutdownReport) -> String {
    format!(
        "lab {name} is down: {}, {} and {} removed, {} that ran in it ended\n",
        count(ended.hosts, "host", "hosts"),
        count(ended.switches, "switch", "switches"),
        count(ended.links, "link", "links"),
        count(ended.processes, "process", "processes"),
    )
}

/// Table of configured and measured links.
pub(crate) fn calibration(measured: &[MeasuredLink]) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let mut rows =
        vec![["link", "round trip", "got", "p95", "rate", "got", ""].map(str::to_owned).to_vec()];
    for one in measured {
        let rate = |bps: Option<u64>| bps.map_or("-".to_owned(), |bps| BitRate(bps).to_string());
        rows.push(vec![
            one.link.clone(),
            latency(one.rtt_wanted_seconds),
            one.rtt_seconds.map_or("-".to_owned(), latency),
            one.rtt_p95_seconds.map_or("-".to_owned(), latency),
            one.rate_wanted_bps.map_or("any".to_owned(), |bps| BitRate(bps).to_string()),
            rate(one.rate_bps),
            match (one.good, one.rtt_seconds) {
                _ if one.too_slow => "too slow to be measured",
                (true, _) => "",
                (false, None) => "nothing arrived",
                (false, Some(_)) => "not as wanted",
            }
            .to_owned(),
        ]);
    }
    table(&rows)
}

/// State of a lab.
pub(crate) fn status(status: &RunningLab) -> String {
    let mut text = began(status);
    let mut rows =
        vec![["node", "device", "link", "IPv6", "IPv4", "MTU"].map(str::to_owned).to_vec()];
    for node in &status.nodes {
        for port in &node.interfaces {
            rows.push(vec![
                node.name.clone(),
                port.device.clone(),
                port.link.clone(),
                port.ipv6.to_string(),
                port.ipv4.to_string(),
                port.mtu.to_string(),
            ]);
        }
    }
    text += &format!("\n{}\n", table(&rows));
    let mut rows = vec![
        ["link", "direction", "does", "packets", "on the wire", "lost", "late p99"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for link in &status.links {
        for direction in &link.directions {
            rows.push(vec![
                link.name.clone(),
                format!("{} > {}", direction.from, direction.to),
                does(direction),
                direction.counters.packets.to_string(),
                ByteCount(direction.counters.wire_bytes).to_string(),
                losses(direction),
                late(direction),
            ]);
        }
    }
    text += &table(&rows);
    if !status.circuits.is_empty() {
        text += &format!("\n{}", circuits(&status.circuits));
    }
    text
}

/// Table of circuits with their traffic.
pub(crate) fn circuits(circuits: &[CircuitReport]) -> String {
    let headings = ["circuit", "rate", "over", "carried", "addresses"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    for one in circuits {
        let links: Vec<&str> = one.links.iter().map(|link| link.link.as_str()).collect();
        let carried = one.links.iter().map(|link| link.forward.wire_bytes).min().unwrap_or(0);
        let addresses = one.addresses.iter().map(|(host, address)| format!("{host} {address}"));
        rows.push(vec![
            one.name.clone(),
            BitRate(one.rate_bps).to_string(),
            links.join(" "),
            ByteCount(carried).to_string(),
            addresses.collect::<Vec<_>>().join(", "),
        ]);
    }
    table(&rows)
}

/// A link after a change.
pub(crate) fn link(link: &LinkReport) -> String {
    let mut text = String::new();
    let [one, other] = &link.directions;
    if does(one) == does(other) {
        let _ = writeln!(text, "{}: {}", link.name, does(one));
    } else {
        for direction in &link.directions {
            let DirectionReport { from, to, .. } = direction;
            let _ = writeln!(text, "{} ({from} > {to}): {}", link.name, does(direction));
        }
    }
    text
}

/// Report of a play.
pub(crate) fn report(report: &ScenarioReportJson) -> String {
    let mut text = format!(
        "{}: {:.1} s on Linux {}, links by {}\n\n",
        report.scenario, report.seconds, report.kernel, report.backend
    );
    let mut rows = vec![["program", "host", "from", "to", "exit", ""].map(str::to_owned).to_vec()];
    for one in &report.programs {
        let seconds = |seconds: f64| format!("{seconds:.1} s");
        let failed = one.exit.is_some_and(|exit| exit != 0);
        let last = one.errors.lines().last().filter(|_| failed).unwrap_or_default();
        rows.push(vec![
            one.name.clone(),
            one.host.clone(),
            seconds(one.began_seconds),
            one.ended_seconds.map_or("-".to_owned(), seconds),
            one.exit.map_or("-".to_owned(), |exit| exit.to_string()),
            last.to_owned(),
        ]);
    }
    text += &format!("{}\n", table(&rows));
    let mut rows = vec![
        ["link", "direction", "packets", "on the wire", "lost", "late p99"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for link in &report.links {
        for direction in &link.directions {
            rows.push(vec![
                link.name.clone(),
                format!("{} > {}", direction.from, direction.to),
                direction.counters.packets.to_string(),
                ByteCount(direction.counters.wire_bytes).to_string(),
                losses(direction),
                late(direction),
            ]);
        }
    }
    text += &table(&rows);
    for step in &report.steps_left {
        let _ = writeln!(text, "step {step} was still due when the last program ended");
    }
    for reason in report.invalid_because() {
        let _ = writeln!(text, "\nnot valid: {reason}: the machine was busy with something else");
    }
    text
}

fn does(direction: &DirectionReport) -> String {
    if direction.is_cut {
        return "cut".to_owned();
    }
    let mut words = Vec::new();
    words.push(direction.rate_bps.map_or("any rate".to_owned(), |bps| BitRate(bps).to_string()));
    if direction.delay_seconds > 0.0 {
        words.push(latency(direction.delay_seconds));
    }
    if direction.jitter_seconds > 0.0 {
        words.push(format!("jitter {}", latency(direction.jitter_seconds)));
    }
    if direction.loss > 0.0 {
        words.push(format!("loss {}%", direction.loss * 100.0));
    }
    if direction.loss_burst_packets > 1.0 && direction.loss > 0.0 {
        words.push(format!("in bursts of {}", direction.loss_burst_packets));
    }
    if direction.rate_bps.is_some() {
        words.push(format!("queue {}", ByteCount(direction.queue_bytes)));
    }
    if let Some(mark) = direction.mark_bytes {
        words.push(format!("marks from {}", ByteCount(mark)));
    }
    words.join(", ")
}

fn losses(direction: &DirectionReport) -> String {
    let counters = &direction.counters;
    let all = [
        (counters.lost, "lost"),
        (counters.overflowed, "queue full"),
        (counters.cut, "cut"),
        (counters.marked, "marked"),
    ];
    let counts = all.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    if counts.is_empty() { "0".to_owned() } else { counts.join(", ") }
}

fn late(direction: &DirectionReport) -> String {
    let Some(late) = direction.late_p99_seconds else { return "-".to_owned() };
    let disturbed = if direction.disturbed { " DISTURBED" } else { "" };
    format!("{}{disturbed}", latency(late))
}

fn latency(seconds: f64) -> String {
    display_latency(Duration::from_secs_f64(seconds))
}
