//! Readers of `topology.txt` and `flow.txt`.

use std::time::Duration;

use penstock_topology::{DelaySource, Link, LinkEnd, Node, NodeId, NodeKind, Topology};
use penstock_units::{BitRate, parse_duration};

use super::fault::{HpccFault, HpccFileError, fault};
use crate::flow::FlowSpec;
use crate::time::PS_PER_SECOND;

pub(super) const NODES_MAX: usize = 1 << 17;
pub(super) const LINKS_MAX: usize = 1 << 20;

/// Tokenizer: words of a text with their line numbers.
struct Words<'a> {
    words: Vec<(usize, &'a str)>,
    at: usize,
    lines: usize,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        let words = text
            .lines()
            .enumerate()
            .flat_map(|(number, line)| line.split_whitespace().map(move |word| (number + 1, word)))
            .collect();
        Self { words, at: 0, lines: text.lines().count().max(1) }
    }

    fn next(&mut self, what: &'static str) -> Result<(usize, &'a str), HpccFileError> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word.ok_or(HpccFileError { line: self.lines, fault: HpccFault::End(what) })
    }

    fn number<T: std::str::FromStr>(
        &mut self,
        what: &'static str,
    ) -> Result<(usize, T), HpccFileError> {
        let (line, word) = self.next(what)?;
        match word.parse() {
            Ok(number) => Ok((line, number)),
            Err(_) => fault(line, HpccFault::word(word, what)),
        }
    }
}

/// Parses a rate of ns-3: `100Gbps`, `40Mb/s`, or a number of bits per second.
pub(super) fn rate(line: usize, word: &str) -> Result<BitRate, HpccFileError> {
    let rate = match word.parse::<f64>() {
        Ok(bits) if bits.is_finite() && bits >= 0.0 => Some(BitRate(bits as u64)),
        _ => word.parse().ok(),
    };
    match rate {
        Some(rate) if rate.0 > 0 => Ok(rate),
        _ => fault(line, HpccFault::word(word, "rate above 0, such as 100Gbps")),
    }
}

/// Parses `topology.txt`; nodes are named `n0`, `n1`, …. The first line holds the numbers of nodes, switches and
/// links; in the form of PowerTCP those of nodes, switches, switches with hosts and links; in the form of SimAI those
/// of nodes, GPUs per server, NVSwitches, switches and links, and the name of a GPU, with the NVSwitches listed
/// before the switches.
///
/// # Errors
/// Reports the first error.
pub fn topology(text: &str) -> Result<Topology, HpccFileError> {
    let mut words = Words::new(text);
    let heads = text.lines().next().unwrap_or_default().split_whitespace().count();
    let (line, nodes) = words.number::<usize>("number of nodes")?;
    let (switches, links) = match heads {
        3 => (words.number("number of switches")?.1, words.number("number of links")?.1),
        4 => {
            let (_, switches) = words.number("number of switches")?;
            words.number::<usize>("number of switches with hosts")?;
            (switches, words.number("number of links")?.1)
        }
        6 => {
            words.number::<usize>("number of GPUs of a server")?;
            let (_, inner) = words.number::<usize>("number of NVSwitches")?;
            let (_, outer) = words.number::<usize>("number of switches")?;
            let (_, links) = words.number("number of links")?;
            words.next("name of a GPU")?;
            (inner.saturating_add(outer), links)
        }
        _ => {
            return fault(1, HpccFault::TopologyHead);
        }
    };
    if nodes > NODES_MAX || switches > nodes || links > LINKS_MAX {
        return fault(line, HpccFault::TopologySize);
    }
    let node = |id: usize| Node {
        name: format!("n{id}"),
        kind: NodeKind::Host,
        site: None,
        buffer: None,
        interfaces: Vec::new(),
    };
    let mut topology = Topology {
        name: "hpcc".to_owned(),
        title: None,
        source: None,
        sites: Vec::new(),
        nodes: (0..nodes).map(node).collect(),
        links: Vec::with_capacity(links),
    };
    let id_of = |words: &mut Words<'_>, what: &'static str| -> Result<usize, HpccFileError> {
        let (line, id) = words.number::<usize>(what)?;
        if id < nodes { Ok(id) } else { fault(line, HpccFault::NodeId { id, nodes }) }
    };
    for _ in 0..switches {
        let id = id_of(&mut words, "id of a switch")?;
        topology.nodes[id].kind = NodeKind::Switch;
    }
    for number in 0..links {
        let ends = [id_of(&mut words, "node of a link")?, id_of(&mut words, "node of a link")?];
        let (line, word) = words.next("rate of a link")?;
        let rate = rate(line, word)?;
        if ends[0] == ends[1] {
            return fault(line, HpccFault::Loop(ends[0]));
        }
        let (line, word) = words.next("delay of a link")?;
        let delay = parse_duration(word);
        let Ok(delay) = delay else {
            return fault(line, HpccFault::word(word, "delay, such as 1us"));
        };
        let (line, loss) = words.number::<f64>("error rate of a link")?;
        if !(0.0..1.0).contains(&loss) {
            return fault(line, HpccFault::ErrorRate(loss));
        }
        topology.links.push(link(number, ends, rate, delay, loss));
    }
    Ok(topology)
}

fn link(number: usize, ends: [usize; 2], rate: BitRate, delay: Duration, loss: f64) -> Link {
    Link {
        name: format!("n{}-n{}-{number}", ends[0], ends[1]),
        ends: ends.map(|id| LinkEnd { node: NodeId(id), interface: None }),
        rate,
        delay,
        delay_source: DelaySource::Given,
        jitter: Duration::ZERO,
        loss,
        loss_burst: 1.0,
        queue: None,
        mark: None,
        vlan: None,
        risk_groups: Vec::new(),
        operator: None,
    }
}

/// Parses `flow.txt`: the number of flows, then one line per flow with source, destination, priority, port, bytes and
/// start in seconds, optionally preceded by a flow number. The port becomes the flow's group.
///
/// # Errors
/// Reports the first error.
pub fn flows(text: &str) -> Result<Vec<FlowSpec>, HpccFileError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, first)) = lines.next() else { return fault(1, HpccFault::Empty) };
    let Ok(count) = first.trim().parse::<usize>() else {
        return fault(1, HpccFault::FlowHead);
    };
    let mut flows: Vec<FlowSpec> = Vec::new();
    let mut last = 1;
    for (number, text) in lines.by_ref().take(count) {
        let line = number + 1;
        last = line;
        let words: Vec<&str> = text.split_whitespace().collect();
        let words = match words.len() {
            6 => &words[..],
            7 => &words[1..],
            _ => return fault(line, HpccFault::FlowWords),
        };
        let number = |at: usize, what: &'static str| match words[at].parse::<u64>() {
            Ok(number) => Ok(number),
            Err(_) => fault(line, HpccFault::word(words[at], what)),
        };
        let host = |at: usize, what: &'static str| {
            number(at, what)?.try_into().or_else(|_| fault(line, HpccFault::NoNode(what)))
        };
        let (from, to) = (host(0, "source")?, host(1, "destination")?);
        let priority = number(2, "priority")?;
        if priority > 7 {
            return fault(line, HpccFault::Priority(priority));
        }
        let (group, bytes) = (number(3, "port")?, number(4, "number of bytes")?);
        if from == to || bytes == 0 || group > 65_535 {
            return fault(line, HpccFault::FlowValues);
        }
        let start = words[5].parse::<f64>().ok().filter(|start| (0.0..1e6).contains(start));
        let Some(start) = start else {
            return fault(line, HpccFault::word(words[5], "start in seconds"));
        };
        let start_ps = (start * PS_PER_SECOND as f64).round() as u64;
        if flows.last().is_some_and(|before| before.start_ps > start_ps) {
            return fault(line, HpccFault::FlowOrder);
        }
        let flow = FlowSpec::new(from, to, start_ps, bytes);
        flows.push(FlowSpec { priority: Some(priority as u8), group: group as u32, ..flow });
    }
    if flows.len() < count {
        return fault(last, HpccFault::FlowCount { announced: count, found: flows.len() });
    }
    Ok(flows)
}
