//! Writers of `fct.txt`, `pfc.txt` and `qlen.txt` in the columns of the HPCC simulator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::path_ideal_ns;
use crate::routes::Routes;
use crate::simulation::Simulation;
use crate::time::PS_PER_NANOSECOND;

/// First source port of a pair of hosts; each further flow of the pair increments it.
const SOURCE_PORT: u32 = 10_000;
const DESTINATION_PORT: u32 = 100;

/// Returns the IPv4 address of a node.
const fn address(node: u32) -> u32 {
    0x0b00_0001 + ((node / 256) << 16) + ((node % 256) << 8)
}

/// Formats `fct.txt`: `sip dip sport dport size start fct ideal` of each completed flow in the order of completion,
/// times in nanoseconds. The destination port is the flow's group, or 100 if the group is 0.
#[must_use]
pub fn completions(simulation: &Simulation) -> String {
    let network = simulation.network();
    let routes = Routes::new(network, |_| true, |node| node);
    let payload = u64::from(simulation.parameters().mtu);
    let mut used: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut lines = Vec::new();
    for (number, flow) in simulation.flows().iter().enumerate() {
        let source_port = used.entry((flow.from, flow.to)).or_insert(SOURCE_PORT);
        let own = *source_port;
        *source_port += 1;
        let Some(done) = simulation.flow_result(number).finished_ps else { continue };
        let path = routes.find_path(network, flow.from, flow.to, 0).unwrap_or_default();
        let ideal = path_ideal_ns(network, &path, flow.bytes(), payload);
        let to_port = if flow.group == 0 { DESTINATION_PORT } else { flow.group };
        let line = format!(
            "{:08x} {:08x} {own} {to_port} {} {} {} {ideal}",
            address(flow.from),
            address(flow.to),
            flow.bytes(),
            flow.start_ps / PS_PER_NANOSECOND,
            (done - flow.start_ps) / PS_PER_NANOSECOND,
        );
        lines.push((done, number, line));
    }
    lines.sort();
    lines.into_iter().map(|(_, _, line)| line + "\n").collect()
}

/// Formats `pfc.txt`: `time node type interface pause` of each received PFC frame. Type 0 is a host, 1 a switch;
/// interfaces count from 1; pause is 1 for Xoff, 0 for Xon.
#[must_use]
pub fn pauses(simulation: &Simulation) -> String {
    let network = simulation.network();
    let mut text = String::new();
    for record in simulation.pause_records() {
        let node = network.ports[record.port as usize].node;
        let of = &network.nodes[node as usize];
        let _ = writeln!(
            text,
            "{} {node} {} {} {}",
            record.time_ps / PS_PER_NANOSECOND,
            u8::from(!of.is_host),
            record.port - of.ports.start + 1,
            u8::from(record.is_pause),
        );
    }
    text
}

/// Formats `qlen.txt`: `time: ns`, then `switch port c0 c1 ...` of each switch port, where c_i counts the samples
/// with a queue of i kB up to i + 1 kB.
#[must_use]
pub fn queues(simulation: &Simulation) -> String {
    let network = simulation.network();
    let mut text = format!("time: {}\n", simulation.now_ps() / PS_PER_NANOSECOND);
    for (id, port) in network.ports.iter().enumerate() {
        let bins = simulation.queue_bins(id as u32);
        if !bins.is_empty() {
            let first = network.nodes[port.node as usize].ports.start;
            let _ = write!(text, "{} {}", port.node, id as u32 - first + 1);
            bins.iter().for_each(|count| {
                let _ = write!(text, " {count}");
            });
            text.push('\n');
        }
    }
    text
}
