//! CPU rules: frequency, idle states, simultaneous multithreading.

use std::collections::BTreeMap;

use penstock_sys::machine::parse_cpus;

use super::{Case, RULE, Rule, Verdict, differs, host, not_applicable, ok, setting, unknown};
use crate::change::{Change, Tunable};
use crate::goal::HostRole;

const TUNED: &str = "redhat-performance/tuned: profiles/throughput-performance";
const TUNING_100G: &str = "fasterdata.es.net/host-tuning/linux/100g-tuning";
const SC23: &str = "Caltech at SC23: rules for better throughput";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "governor",
        reads: "cpufreq/scaling_governor of every processor",
        wants: "performance",
        why: "a processor that has slowed down takes milliseconds to speed up, and packets come in bursts",
        risk: "power",
        sources: &[TUNED, SC23, TUNING_100G],
        weight: 5,
        judge: |case| {
            host("governor", of_each(case, "scaling_governor", &case.facts.cpu.governors))
        },
        ..RULE
    },
    Rule {
        name: "energy-preference",
        reads: "cpufreq/energy_performance_preference of every processor",
        wants: "performance",
        why: "processors that govern themselves (intel_pstate, amd_pstate) go by it",
        risk: "power",
        sources: &[TUNED],
        weight: 2,
        judge: |case| {
            let have = &case.facts.cpu.energy_preferences;
            host("energy-preference", of_each(case, "energy_performance_preference", have))
        },
        ..RULE
    },
    Rule {
        name: "boost",
        reads: "cpufreq/boost, intel_pstate/no_turbo",
        wants: "on",
        why: "a stream is bound by one core: 30 Gb/s need 3 GHz or more",
        risk: "power and heat; tests repeat less well",
        sources: &[TUNED, "fasterdata.es.net/DTN/hardware"],
        weight: 2,
        judge: |case| {
            let verdict = match case.facts.cpu.boost {
                None => absent(case, "has no such control"),
                Some(true) => ok("on"),
                Some(false) => differs("off", "on: in the firmware, or cpufreq/boost", Vec::new()),
            };
            host("boost", verdict)
        },
        ..RULE
    },
    Rule {
        name: "c-states",
        reads: "cpuidle states of a processor",
        wants: "up to C1 for tests of latency; any for a mover",
        why: "to wake from C6 takes 100 us and more; under load processors do not go there",
        risk: "power; less boost for the others",
        sources: &["redhat-performance/tuned: profiles/latency-performance"],
        judge: |case| host("c-states", idle(case)),
        ..RULE
    },
    Rule {
        name: "smt",
        reads: "/sys/devices/system/cpu/smt/control",
        wants: "off on test hosts; as it is on a mover",
        why: "ESnet: results are erratic with it, most of all on AMD",
        risk: "half of the threads for checksums and encryption are gone: measure",
        sources: &[TUNING_100G],
        judge: |case| {
            let verdict = match case.facts.cpu.smt.as_deref() {
                None => unknown("whether cores have several threads is not known"),
                Some("notsupported" | "notimplemented") => {
                    not_applicable("its cores have one thread")
                }
                Some("on") if case.goal.role == HostRole::Test => {
                    let path = "/sys/devices/system/cpu/smt/control".to_owned();
                    differs("on", "off", vec![Change::new(Tunable::File { path }, "on", "off")])
                }
                Some(have) => ok(have),
            };
            host("smt", verdict)
        },
        only_if_named: Some("it takes half of the threads away: measure with and without"),
        ..RULE
    },
    Rule {
        name: "numa-balancing",
        reads: "kernel.numa_balancing",
        wants: "0 where there are several NUMA nodes",
        why: "the kernel takes pages away for a moment to see who uses them, and threads that are pinned gain nothing",
        sources: &[
            "redhat-performance/tuned: profiles/hpc-compute",
            "Documentation/admin-guide/sysctl/kernel.rst",
        ],
        weight: 2,
        judge: |case| {
            let verdict = if case.facts.cpu.nodes.len() < 2 {
                not_applicable("one NUMA node")
            } else {
                setting(case, "kernel.numa_balancing", "0")
            };
            host("numa-balancing", verdict)
        },
        ..RULE
    },
];

/// Verdict for a missing control: virtual machines depend on their host.
fn absent(case: &Case<'_>, why: &str) -> Verdict {
    match case.facts.machine.virtual_machine {
        Some(true) => not_applicable(format!("a virtual machine {why}: its host decides")),
        Some(false) => not_applicable(format!("this machine {why}")),
        None => unknown("what it can control is not known"),
    }
}

/// Requires `performance` on every CPU; `have` maps values to CPU lists. Changes only the CPUs that differ.
fn of_each(case: &Case<'_>, file: &str, have: &BTreeMap<String, String>) -> Verdict {
    const WANT: &str = "performance";
    let others: Vec<(&String, &String)> = have.iter().filter(|(one, _)| *one != WANT).collect();
    let formatted = match (have.len(), others.as_slice()) {
        (0, _) => return absent(case, "has no such control"),
        (_, []) => return ok(WANT),
        (1, [(one, _)]) => (*one).clone(),
        (_, others) => {
            let parts: Vec<_> =
                others.iter().map(|(one, cpus)| format!("{one} on {cpus}")).collect();
            parts.join(", ")
        }
    };
    let mut changes = BTreeMap::new();
    for (from, list) in others {
        let Some(cpus) = parse_cpus(list) else {
            return unknown(format!("'{list}' is no list of processors"));
        };
        for cpu in cpus {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}");
            changes.insert(cpu, Change::new(Tunable::File { path }, from, WANT));
        }
    }
    differs(formatted, WANT, changes.into_values().collect())
}

fn idle(case: &Case<'_>) -> Verdict {
    let states = &case.facts.cpu.idle_states;
    let Some(deepest) = states.iter().max_by_key(|state| state.latency_us) else {
        return absent(case, "shows no sleeping states");
    };
    let have = format!("{} at most, {} us to wake", deepest.name, deepest.latency_us);
    // C1 wakes in 1 or 2 us everywhere.
    if case.goal.role == HostRole::Dtn || deepest.latency_us <= 10 {
        return ok(have);
    }
    differs(have, "C1: cpupower idle-set -D 10, or hold /dev/cpu_dma_latency", Vec::new())
}
