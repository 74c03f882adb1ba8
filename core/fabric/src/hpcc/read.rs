//! Reading `topology.txt`, `flow.txt` and `config.txt`.

use std::time::Duration;

use penstock_topology::{DelaySource, End, Kind, Link, Node, NodeId, Topology};
use penstock_units::{BitRate, ByteCount, parse_duration};

use crate::flow::Flow;
use crate::parameters::{CongestionControl, Parameters, PauseThreshold, Picoseconds, WireModel};
use crate::time::{MICROSECOND, SECOND};

const NODES_MAX: usize = 1 << 17;
const LINKS_MAX: usize = 1 << 20;

/// Times of links that fail count from here, as flows usually begin here.
const LINK_DOWN_FROM_PS: u64 = 2 * SECOND;

/// What is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {reason}")]
pub struct Fault {
    /// From 1.
    pub line: usize,
    /// Why.
    pub reason: String,
}

fn fault<T>(line: usize, reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line, reason: reason.into() })
}

/// Words of a text with their lines.
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

    fn next(&mut self, what: &str) -> Result<(usize, &'a str), Fault> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word.ok_or_else(|| Fault { line: self.lines, reason: format!("it ends before {what}") })
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<(usize, T), Fault> {
        let (line, word) = self.next(what)?;
        match word.parse() {
            Ok(number) => Ok((line, number)),
            Err(_) => fault(line, format!("'{}' is no {what}", word.escape_debug())),
        }
    }
}

/// A rate of ns-3: `100Gbps`, `40Mb/s`, or bits per second alone.
fn rate(line: usize, word: &str) -> Result<BitRate, Fault> {
    let rate = match word.parse::<f64>() {
        Ok(bits) if bits.is_finite() && bits >= 0.0 => Some(BitRate(bits as u64)),
        _ => word.parse().ok(),
    };
    match rate {
        Some(rate) if rate.0 > 0 => Ok(rate),
        _ => fault(line, format!("'{}' is no rate above 0, such as 100Gbps", word.escape_debug())),
    }
}

/// Reads `topology.txt`: nodes are `n0`, `n1` and so on. Its first line has the numbers of nodes, switches and links; or, as
/// PowerTCP has it, of nodes, switches, switches with hosts and links; or, as SimAI has it, of nodes, GPUs of a server,
/// NVSwitches, switches, links and the name of a GPU, with the NVSwitches before the switches.
///
/// # Errors
/// With the first thing that is wrong.
pub fn topology(text: &str) -> Result<Topology, Fault> {
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
            return fault(
                1,
                "the first line has 3 numbers (nodes, switches, links), 4 as PowerTCP, or 6 words as SimAI",
            );
        }
    };
    if nodes > NODES_MAX || switches > nodes || links > LINKS_MAX {
        return fault(
            line,
            format!("at most {NODES_MAX} nodes, as many switches and {LINKS_MAX} links"),
        );
    }
    let node = |id: usize| Node {
        name: format!("n{id}"),
        kind: Kind::Host,
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
    let id_of = |words: &mut Words<'_>, what: &str| -> Result<usize, Fault> {
        let (line, id) = words.number::<usize>(what)?;
        if id < nodes {
            Ok(id)
        } else {
            fault(line, format!("node {id} of {nodes}: ids are from 0"))
        }
    };
    for _ in 0..switches {
        let id = id_of(&mut words, "id of a switch")?;
        topology.nodes[id].kind = Kind::Switch;
    }
    for number in 0..links {
        let ends = [id_of(&mut words, "node of a link")?, id_of(&mut words, "node of a link")?];
        let (line, word) = words.next("rate of a link")?;
        let rate = rate(line, word)?;
        if ends[0] == ends[1] {
            return fault(line, format!("a link from node {} to itself", ends[0]));
        }
        let (line, word) = words.next("delay of a link")?;
        let delay = parse_duration(word);
        let Ok(delay) = delay else {
            return fault(line, format!("'{}' is no delay, such as 1us", word.escape_debug()));
        };
        let (line, loss) = words.number::<f64>("error rate of a link")?;
        if !(0.0..1.0).contains(&loss) {
            return fault(line, format!("an error rate is 0 up to 1, not {loss}"));
        }
        topology.links.push(link(number, ends, rate, delay, loss));
    }
    Ok(topology)
}

fn link(number: usize, ends: [usize; 2], rate: BitRate, delay: Duration, loss: f64) -> Link {
    Link {
        name: format!("n{}-n{}-{number}", ends[0], ends[1]),
        ends: ends.map(|id| End { node: NodeId(id), interface: None }),
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

/// Reads `flow.txt`: a number, and so many lines of source, destination, priority, port, bytes and start in seconds, with a
/// flow's own number before them or not. The port is the flow's group.
///
/// # Errors
/// With the first thing that is wrong.
pub fn flows(text: &str) -> Result<Vec<Flow>, Fault> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, first)) = lines.next() else { return fault(1, "it is empty") };
    let Ok(count) = first.trim().parse::<usize>() else {
        return fault(1, "the first line is the number of flows");
    };
    let mut flows: Vec<Flow> = Vec::new();
    let mut last = 1;
    for (number, text) in lines.by_ref().take(count) {
        let line = number + 1;
        last = line;
        let words: Vec<&str> = text.split_whitespace().collect();
        let words = match words.len() {
            6 => &words[..],
            7 => &words[1..],
            _ => return fault(line, "a flow is: source destination priority port bytes start"),
        };
        let number = |at: usize, what: &str| match words[at].parse::<u64>() {
            Ok(number) => Ok(number),
            Err(_) => fault(line, format!("'{}' is no {what}", words[at].escape_debug())),
        };
        let host = |at: usize, what: &str| {
            number(at, what)?.try_into().or_else(|_| fault(line, format!("no such {what}")))
        };
        let (from, to) = (host(0, "source")?, host(1, "destination")?);
        let priority = number(2, "priority")?;
        if priority > 7 {
            return fault(line, format!("priority {priority}: there are 0 to 7"));
        }
        let (group, bytes) = (number(3, "port")?, number(4, "number of bytes")?);
        if from == to || bytes == 0 || group > 65_535 {
            return fault(
                line,
                "a flow goes to another node, with bytes above 0 and a port up to 65535",
            );
        }
        let start = words[5].parse::<f64>().ok().filter(|start| (0.0..1e6).contains(start));
        let Some(start) = start else {
            return fault(line, format!("'{}' is no start in seconds", words[5].escape_debug()));
        };
        let start_ps = (start * SECOND as f64).round() as u64;
        if flows.last().is_some_and(|before| before.start_ps > start_ps) {
            return fault(line, "flows are in the order of their start");
        }
        let flow = Flow::new(from, to, start_ps, bytes);
        flows.push(Flow { priority: Some(priority as u8), group: group as u32, ..flow });
    }
    if flows.len() < count {
        return fault(last, format!("{count} flows are announced and {} are there", flows.len()));
    }
    Ok(flows)
}

/// What a configuration says.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// As our parameters.
    pub parameters: Parameters,
    /// Names of the other files, as they stand there.
    pub topology_file: String,
    /// See above.
    pub flow_file: String,
    /// When the run ends.
    pub until_ps: u64,
    /// Rate, bytes and probabilities for marking, by rate of a port.
    pub marking: Vec<(u64, u64, u64, f64)>,
    /// Loss on every link.
    pub loss: f64,
    /// Between which times queues are looked at, in nanoseconds.
    pub queue_times_ns: Option<(u64, u64)>,
    /// A link that fails: when, and the nodes at its ends.
    pub link_down: Option<(u64, [usize; 2])>,
    /// Keys that have no meaning here.
    pub ignored: Vec<String>,
}

/// Keys that are known and change nothing of a result here.
const WITHOUT_EFFECT: [&str; 22] = [
    "TRACE_FILE",
    "TRACE_OUTPUT_FILE",
    "FCT_OUTPUT_FILE",
    "PFC_OUTPUT_FILE",
    "QLEN_MON_FILE",
    "ENABLE_TRACE",
    "DATA_RATE",
    "LINK_DELAY",
    "INT_MULTI",
    "MULTI_RATE",
    "SAMPLE_FEEDBACK",
    "PINT_LOG_BASE",
    "PINT_PROB",
    "RATE_BOUND",
    "GLOBAL_T",
    "VAR_WIN",
    "FAST_REACT",
    "ACK_HIGH_PRIO",
    "L2_CHUNK_SIZE",
    "PAUSE_TIME",
    "L2_WAIT_FOR_ACK",
    "NIC_TOTAL_PAUSE_TIME",
];

/// Reads `config.txt`.
///
/// # Errors
/// With the first thing that is wrong, or that cannot be done here.
pub fn config(text: &str) -> Result<Config, Fault> {
    let parameters = Parameters {
        wire: WireModel::Ns3Hpcc,
        mtu: 1000,
        hpcc_stages: 0,
        timeout_exponent: 0,
        ..Parameters::default()
    };
    let mut config = Config {
        parameters,
        topology_file: String::new(),
        flow_file: String::new(),
        until_ps: 4 * SECOND,
        marking: Vec::new(),
        loss: 0.0,
        queue_times_ns: None,
        link_down: None,
        ignored: Vec::new(),
    };
    let mut maps: [Vec<(u64, f64)>; 3] = Default::default();
    for (number, text) in text.lines().enumerate() {
        let line = number + 1;
        let words: Vec<&str> = text.split_whitespace().collect();
        let Some((key, values)) = words.split_first() else { continue };
        if key.starts_with('#') {
            continue;
        }
        if let Some(map) = ["KMIN_MAP", "KMAX_MAP", "PMAX_MAP"].iter().position(|name| name == key)
        {
            maps[map] = rate_map(line, values)?;
        } else {
            config.take(line, key, values)?;
        }
    }
    for (name, file) in [("TOPOLOGY_FILE", &config.topology_file), ("FLOW_FILE", &config.flow_file)]
    {
        if file.is_empty() {
            return fault(text.lines().count().max(1), format!("it names no {name}"));
        }
    }
    for (rate, kmin) in &maps[0] {
        let of = |map: &[(u64, f64)]| {
            map.iter().find(|(other, _)| other == rate).map(|(_, value)| *value)
        };
        let (Some(kmax), Some(pmax)) = (of(&maps[1]), of(&maps[2])) else {
            return fault(1, format!("KMIN_MAP has {rate}, and KMAX_MAP or PMAX_MAP has not"));
        };
        config.marking.push((*rate, (kmin * 1000.0) as u64, (kmax * 1000.0) as u64, pmax));
    }
    Ok(config)
}

fn rate_map(line: usize, values: &[&str]) -> Result<Vec<(u64, f64)>, Fault> {
    let numbers: Option<Vec<f64>> = values.iter().map(|word| word.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| {
        numbers.first().is_some_and(|count| *count < 1e6 && *count as usize * 2 < numbers.len())
            && numbers.iter().all(|number| *number >= 0.0 && number.is_finite())
    });
    let Some(numbers) = numbers else {
        return fault(line, "a map is a number, and so many pairs of rate and value");
    };
    let count = numbers[0] as usize;
    Ok((0..count).map(|at| (numbers[1 + 2 * at] as u64, numbers[2 + 2 * at])).collect())
}

impl Config {
    fn take(&mut self, line: usize, key: &str, values: &[&str]) -> Result<(), Fault> {
        let word = values.first().copied().unwrap_or_default();
        let number = || match word.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
            _ => fault(line, format!("{key} is a number, not '{}'", word.escape_debug())),
        };
        let micro = || number().map(|us| Picoseconds((us * MICROSECOND as f64) as u64));
        let p = &mut self.parameters;
        match key {
            "TOPOLOGY_FILE" => self.topology_file = word.to_owned(),
            "FLOW_FILE" => self.flow_file = word.to_owned(),
            "SIMULATOR_STOP_TIME" => self.until_ps = (number()? * SECOND as f64) as u64,
            "PACKET_PAYLOAD_SIZE" => p.mtu = number()? as u32,
            "ENABLE_QCN" if number()? == 0.0 => p.cc = CongestionControl::None,
            "ENABLE_QCN" => {}
            "USE_DYNAMIC_PFC_THRESHOLD" => {
                let is_dynamic = number()? != 0.0;
                p.pfc_threshold =
                    if is_dynamic { PauseThreshold::Dynamic } else { PauseThreshold::Static };
            }
            "ENABLE_PFC" => p.pfc = number()? != 0.0,
            "CC_MODE" => {
                p.cc = match number()? as u32 {
                    1 => CongestionControl::Dcqcn,
                    3 => CongestionControl::Hpcc,
                    7 => CongestionControl::Timely,
                    8 => CongestionControl::Dctcp,
                    other => {
                        return fault(
                            line,
                            format!(
                                "CC_MODE {other}: there are 1 (DCQCN), 3 (HPCC), 7 (TIMELY) and 8 (DCTCP)"
                            ),
                        );
                    }
                }
            }
            "ALPHA_RESUME_INTERVAL" => p.dcqcn_alpha_interval = micro()?,
            "RATE_DECREASE_INTERVAL" => p.dcqcn_decrease_interval = micro()?,
            "RP_TIMER" => p.dcqcn_increase_interval = micro()?,
            "CLAMP_TARGET_RATE" => p.dcqcn_clamp = number()? != 0.0,
            "EWMA_GAIN" => (p.dcqcn_gain, p.dctcp_gain) = (number()?, number()?),
            "FAST_RECOVERY_TIMES" => p.dcqcn_recovery_stages = number()? as u32,
            "RATE_AI" => {
                let rate = Some(rate(line, word)?);
                (p.dcqcn_additive, p.hpcc_additive, p.timely_additive) = (rate, rate, rate);
            }
            "RATE_HAI" => {
                let rate = Some(rate(line, word)?);
                (p.dcqcn_hyper, p.timely_hyper) = (rate, rate);
            }
            "MIN_RATE" => p.rate_min = Some(rate(line, word)?),
            "DCTCP_RATE_AI" => p.dctcp_additive = Some(rate(line, word)?),
            "ERROR_RATE_PER_LINK" => self.loss = number()?.min(0.999),
            "L2_ACK_INTERVAL" => p.ack_every = (number()? as u32).max(1),
            "L2_BACK_TO_ZERO" if number()? != 0.0 => {
                return fault(
                    line,
                    "L2_BACK_TO_ZERO: hosts go back to the packet that is missing, not to the first",
                );
            }
            "L2_BACK_TO_ZERO" => {}
            "HAS_WIN" => p.dcqcn_window = number()? != 0.0,
            "U_TARGET" => p.hpcc_target = number()?,
            "MI_THRESH" => p.hpcc_stages = number()? as u32,
            "BUFFER_SIZE" => {
                let bytes = (number()? * f64::from(1 << 20)) as u64;
                p.buffer = (bytes > 0).then_some(ByteCount(bytes));
            }
            "LINK_DOWN" => {
                let numbers: Option<Vec<u64>> =
                    values.iter().map(|word| word.parse().ok()).collect();
                match numbers.as_deref() {
                    Some([0, 0, 0]) => {}
                    Some([us, a, b]) if *us < 1_000_000_000 => {
                        let at_ps = LINK_DOWN_FROM_PS + us * MICROSECOND;
                        self.link_down = Some((at_ps, [*a as usize, *b as usize]));
                    }
                    _ => return fault(line, "LINK_DOWN is microseconds after 2 s and two nodes"),
                }
            }
            "QLEN_MON_START" => {
                self.queue_times_ns.get_or_insert((0, u64::MAX)).0 = number()? as u64;
            }
            "QLEN_MON_END" => self.queue_times_ns.get_or_insert((0, u64::MAX)).1 = number()? as u64,
            _ if WITHOUT_EFFECT.contains(&key) => {}
            _ => self.ignored.push(format!("{line}: {}", key.escape_debug())),
        }
        Ok(())
    }
}
