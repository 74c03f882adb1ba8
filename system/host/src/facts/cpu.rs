//! Processors: how many, in which nodes, how their speed and sleep are governed.

use std::collections::BTreeSet;

use penstock_sys::machine::parse_cpus;
use serde::{Deserialize, Serialize};

use super::Tree;

const CPU: &str = "/sys/devices/system/cpu";

/// Processors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// As it calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Logical processors that are on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online: Option<usize>,
    /// NUMA nodes and their processors, as `0-17,36-53`.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// `on`, `off`, `notsupported`; none where there is no such control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smt: Option<String>,
    /// Governors of speed in use; empty where the machine has no such control.
    #[serde(default)]
    pub governors: BTreeSet<String>,
    /// What drives speed, as `intel_pstate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_driver: Option<String>,
    /// Preferences between energy and performance in use.
    #[serde(default)]
    pub energy_preferences: BTreeSet<String>,
    /// Whether it may run above its nominal speed for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boost: Option<bool>,
    /// What drives sleep, as `intel_idle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_driver: Option<String>,
    /// Sleeping states that are not turned off, with the time to wake.
    #[serde(default)]
    pub idle_states: Vec<IdleState>,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// Its processors.
    pub cpus: String,
}

/// A state in which a processor sleeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleState {
    /// As `C6`.
    pub name: String,
    /// Time to wake from it.
    pub latency_us: u32,
}

/// Reads them.
#[must_use]
pub fn gather(tree: &Tree) -> Cpu {
    let all = |file: &str| -> BTreeSet<String> {
        let cpus = tree.names(CPU).into_iter().filter(|name| is_cpu(name));
        cpus.filter_map(|cpu| tree.text(&format!("{CPU}/{cpu}/cpufreq/{file}"))).collect()
    };
    let model = tree.text("/proc/cpuinfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
        Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
    });
    let drivers: BTreeSet<String> = all("scaling_driver");
    Cpu {
        model,
        online: tree.text(&format!("{CPU}/online")).and_then(|list| Some(parse_cpus(&list)?.len())),
        nodes: nodes(tree),
        smt: tree.text(&format!("{CPU}/smt/control")),
        governors: all("scaling_governor"),
        speed_driver: drivers.into_iter().next(),
        energy_preferences: all("energy_performance_preference"),
        boost: boost(tree),
        idle_driver: tree
            .text(&format!("{CPU}/cpuidle/current_driver"))
            .filter(|driver| driver != "none"),
        idle_states: idle_states(tree),
    }
}

fn is_cpu(name: &str) -> bool {
    name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok())
}

fn nodes(tree: &Tree) -> Vec<Node> {
    const NODES: &str = "/sys/devices/system/node";
    let mut nodes: Vec<Node> = tree
        .names(NODES)
        .iter()
        .filter_map(|name| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            Some(Node { number, cpus: tree.text(&format!("{NODES}/{name}/cpulist"))? })
        })
        .collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// Drivers say it in their own ways: acpi-cpufreq by `boost`, intel_pstate by its opposite.
fn boost(tree: &Tree) -> Option<bool> {
    let plain = tree.number::<u8>(&format!("{CPU}/cpufreq/boost")).map(|on| on != 0);
    plain.or_else(|| Some(tree.number::<u8>(&format!("{CPU}/intel_pstate/no_turbo"))? == 0))
}

fn idle_states(tree: &Tree) -> Vec<IdleState> {
    let place = format!("{CPU}/cpu0/cpuidle");
    let on = tree.names(&place).into_iter().filter_map(|state| {
        let file = |name: &str| format!("{place}/{state}/{name}");
        let off = tree.number::<u8>(&file("disable")).is_some_and(|off| off != 0);
        let state = IdleState {
            name: tree.text(&file("name"))?,
            latency_us: tree.number(&file("latency"))?,
        };
        (!off).then_some(state)
    });
    on.collect()
}
