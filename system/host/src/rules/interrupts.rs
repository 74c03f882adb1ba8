//! Interrupt rules: affinity, packet steering (RPS, XPS), NUMA pinning.

use std::collections::BTreeSet;

use penstock_sys::machine::parse_cpus;

use super::{Case, RULE, Rule, Verdict, differs, each_nic, host, not_applicable, ok, unknown};
use crate::change::{Change, Tunable};
use crate::facts::Nic;

const BINDING: &str = "fasterdata.es.net/host-tuning/linux/interrupt-binding";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "irq-affinity",
        reads: "msi_irqs of the card, /proc/irq/N/smp_affinity_list, local_cpulist",
        wants: "each interrupt on one processor of the card's NUMA node, one after the other",
        why: "packets that wake the other socket cost up to half of the rate",
        risk: "undone by irqbalance and by any change of rings or channels: check again afterwards",
        sources: &[
            BINDING,
            "SC14: one R920, 3 x 40G, 'extensive tuning of IRQs'",
            "Irqbalance/irqbalance#175, #275, #169",
        ],
        contradicted: &[
            "irqbalance puts a card's interrupts on the other node (#175, #169), and leaves Mellanox's where they are \
             until it is started again (#275)",
            "set_irq_affinity.sh does not last: persist, or stop irqbalance",
        ],
        weight: 6,
        judge: |case| each_nic(case, "irq-affinity", |nic| affinity(case, nic)),
        ..RULE
    },
    Rule {
        name: "rps",
        reads: "rps_cpus of the receive queues",
        wants: "off where the card has a queue for each processor near it",
        why: "handing packets on to other processors costs an interrupt between them; queues of the card do the same \
              for nothing",
        sources: &["Documentation/networking/scaling.rst", "Mellanox/mlnx-tools: mlnx_tune"],
        judge: |case| each_nic(case, "rps", rps),
        ..RULE
    },
    Rule {
        name: "xps",
        reads: "xps_cpus of the send queues",
        wants: "every queue has its processors, where there are several",
        why: "a processor that sends by a queue of its own waits for no lock",
        sources: &["Documentation/networking/scaling.rst", "Mellanox/mlnx-tools: mlnx_tune"],
        judge: |case| each_nic(case, "xps", xps),
        ..RULE
    },
    Rule {
        name: "numa-pinning",
        reads: "NUMA nodes of cards and disks",
        wants: "threads and buffers on the card's node; for a disk of another node that node's card",
        why: "memory of the other node halves what a thread copies. The mover pins its streams itself; what it cannot \
              mend is a disk that is attached to another node than the card",
        sources: &["fasterdata.es.net/host-tuning/linux", "SC14: one R920, NUMA-aware binding"],
        weight: 2,
        judge: |case| host("numa-pinning", pinning(case)),
        ..RULE
    },
];

fn affinity(case: &Case<'_>, nic: &Nic) -> Verdict {
    if nic.kind.is_some() {
        return not_applicable("a software device");
    }
    if nic.irqs.is_empty() {
        return unknown("its interrupts are not known");
    }
    if case.facts.cpu.nodes.len() < 2 {
        return not_applicable("one NUMA node: every processor is near");
    }
    let Some(local) =
        nic.local_cpus.as_deref().and_then(parse_cpus).filter(|cpus| !cpus.is_empty())
    else {
        return unknown("the processors near it are not known");
    };
    let goes_to = |irq: &crate::facts::nics::Irq| {
        parse_cpus(irq.effective_cpus.as_deref().unwrap_or(&irq.cpus)).unwrap_or_default()
    };
    let own: BTreeSet<usize> = local.iter().copied().collect();
    let near = |cpus: &[usize]| cpus.iter().all(|cpu| own.contains(cpu));
    let far: Vec<_> = nic.irqs.iter().filter(|irq| !near(&goes_to(irq))).collect();
    let count = nic.irqs.len();
    if far.is_empty() {
        return ok(format!("{count} interrupts on its node"));
    }
    let have = format!("{} of {count} interrupts on another node", far.len());
    let list = nic.local_cpus.clone().unwrap_or_default();
    let want = format!("on processors {list}");
    if case.facts.managers.irqbalance == Some(true) {
        return Verdict::Conflict {
            have,
            want,
            with: "irqbalance moves them: systemctl disable --now irqbalance, or give it --banirq for them".to_owned(),
        };
    }
    let changes = nic
        .irqs
        .iter()
        .enumerate()
        .filter(|(_, irq)| !near(&goes_to(irq)))
        .map(|(index, irq)| {
            let path = format!("/proc/irq/{}/smp_affinity_list", irq.number);
            let cpu = local[index % local.len()].to_string();
            Change::new(Tunable::File { path }, irq.cpus.clone(), cpu)
        })
        .collect();
    differs(have, want, changes)
}

fn rps(nic: &Nic) -> Verdict {
    match nic.steering {
        None => unknown("its queues are not known"),
        Some(steering) if steering.rps_queues == 0 => ok("off"),
        Some(steering) if steering.rx_queues < 2 => ok("on, with one queue"),
        Some(steering) => differs(
            format!("on for {} of {} queues", steering.rps_queues, steering.rx_queues),
            "off: write 0 to rps_cpus of its queues",
            Vec::new(),
        ),
    }
}

fn xps(nic: &Nic) -> Verdict {
    match nic.steering {
        None => unknown("its queues are not known"),
        Some(steering) if steering.tx_queues < 2 => not_applicable("one queue"),
        Some(steering) if steering.xps_queues == steering.tx_queues => ok("on"),
        Some(steering) => differs(
            format!("{} of {} queues", steering.xps_queues, steering.tx_queues),
            "all queues: drivers set it when channels are made; else write to xps_cpus",
            Vec::new(),
        ),
    }
}

fn pinning(case: &Case<'_>) -> Verdict {
    if case.facts.cpu.nodes.len() < 2 {
        return not_applicable("one NUMA node");
    }
    let cards: Vec<usize> = case.nics.iter().filter_map(|nic| nic.numa_node).collect();
    if cards.is_empty() {
        return unknown("the nodes of the cards are not known");
    }
    let far: Vec<String> = case
        .facts
        .disks
        .iter()
        .filter_map(|disk| {
            let node = disk.numa_node.filter(|node| !cards.contains(node))?;
            Some(format!("{} on node {node}", disk.name))
        })
        .collect();
    let nodes: Vec<String> = cards.iter().map(usize::to_string).collect();
    let have = format!("cards on node {}", nodes.join(" "));
    if far.is_empty() {
        return ok(have);
    }
    differs(format!("{have}, {}", far.join(", ")), "a card on each disk's node", Vec::new())
}
