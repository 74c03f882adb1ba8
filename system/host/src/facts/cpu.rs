//! CPUs: count, NUMA nodes, frequency and idle control.

use std::collections::{BTreeMap, BTreeSet};

use penstock_sys::machine::{display_cpus, parse_cpus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tree;

const CPU: &str = "/sys/devices/system/cpu";

/// CPU model, topology, frequency and idle control.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Model name, as in `/proc/cpuinfo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub model: Option<String>,
    /// Logical processors that are on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub online: Option<usize>,
    /// NUMA nodes and their processors, as `0-17,36-53`.
    #[serde(default)]
    #[schema(required)]
    pub nodes: Vec<NumaNode>,
    /// Simultaneous multithreading: `on`, `off`, `notsupported`; left out where there is no such control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub smt: Option<String>,
    /// Frequency governors, each with its processors as `0-17,36-53`; empty where the machine has no such control.
    #[serde(default)]
    #[schema(required)]
    pub governors: BTreeMap<String, String>,
    /// Frequency driver, as `intel_pstate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub speed_driver: Option<String>,
    /// Preferences between energy and performance, each with its processors.
    #[serde(default)]
    #[schema(required)]
    pub energy_preferences: BTreeMap<String, String>,
    /// True where processors may run above their nominal frequency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub boost: Option<bool>,
    /// Idle driver, as `intel_idle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub idle_driver: Option<String>,
    /// Idle states that are enabled.
    #[serde(default)]
    #[schema(required)]
    pub idle_states: Vec<IdleState>,
}

/// A NUMA node and its CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Number of the node.
    pub number: usize,
    /// Processors of the node.
    pub cpus: String,
}

/// A state in which a processor sleeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IdleState {
    /// Name in cpuidle, as `C6`.
    pub name: String,
    /// Time to wake from it.
    pub latency_us: u32,
}

/// Reads CPU facts from `/proc` and `/sys`.
#[must_use]
pub fn gather(tree: &Tree) -> Cpu {
    let cpus: BTreeSet<usize> = tree.names(CPU).iter().filter_map(|name| number(name)).collect();
    let all = |file: &str| -> BTreeMap<String, String> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for cpu in &cpus {
            if let Some(value) = tree.text(&format!("{CPU}/cpu{cpu}/cpufreq/{file}")) {
                groups.entry(value).or_default().push(*cpu);
            }
        }
        groups.into_iter().map(|(value, cpus)| (value, display_cpus(&cpus))).collect()
    };
    let model = tree.text("/proc/cpuinfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
        Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
    });
    Cpu {
        model,
        online: tree.text(&format!("{CPU}/online")).and_then(|list| Some(parse_cpus(&list)?.len())),
        nodes: nodes(tree),
        smt: tree.text(&format!("{CPU}/smt/control")),
        governors: all("scaling_governor"),
        speed_driver: all("scaling_driver").into_keys().next(),
        energy_preferences: all("energy_performance_preference"),
        boost: boost(tree),
        idle_driver: tree
            .text(&format!("{CPU}/cpuidle/current_driver"))
            .filter(|driver| driver != "none"),
        idle_states: idle_states(tree),
    }
}

fn number(name: &str) -> Option<usize> {
    name.strip_prefix("cpu")?.parse().ok()
}

fn nodes(tree: &Tree) -> Vec<NumaNode> {
    const NODES: &str = "/sys/devices/system/node";
    let mut nodes: Vec<NumaNode> = tree
        .names(NODES)
        .iter()
        .filter_map(|name| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            Some(NumaNode { number, cpus: tree.text(&format!("{NODES}/{name}/cpulist"))? })
        })
        .collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// Reads `boost` of acpi-cpufreq, or its inverse `no_turbo` of intel_pstate.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Processors 2 and 3 are off: their numbers are left out.
    #[test]
    fn governors_have_their_processors() {
        let root = tempfile::tempdir().unwrap();
        let have = ["performance", "powersave", "", "", "powersave", "powersave", "performance"];
        for (cpu, governor) in have.iter().enumerate().filter(|(_, governor)| !governor.is_empty())
        {
            let place = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq"));
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("scaling_governor"), format!("{governor}\n")).unwrap();
        }
        let governors = gather(&Tree::below(root.path())).governors;
        let formatted: Vec<_> =
            governors.iter().map(|(one, cpus)| format!("{one} {cpus}")).collect();
        assert_eq!(formatted, ["performance 0,6", "powersave 1,4-5"]);
    }
}
