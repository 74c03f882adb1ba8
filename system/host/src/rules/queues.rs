//! Packet queues: qdiscs of a device, transmit queue length, CPU backlog.

use super::{
    Case, RULE, Rule, Verdict, at_least, differs, each_nic, host, no_op, not_applicable, ok,
    setting, setting_where, together, unknown,
};
use crate::change::{Change, Tunable};
use crate::facts::Nic;

const PACING: &str = "fasterdata.es.net/host-tuning/packet-pacing (January 2025)";

pub(super) const HOST_RULES: &[Rule] = &[
    Rule {
        name: "default-qdisc",
        reads: "net.core.default_qdisc",
        wants: "fq",
        why: "fq lets every stream out at its own pace, at little cost with many streams. TCP paces without it too, one \
              timer for each socket: 10 Gb/s took 48 % of a processor",
        risk: "holds only for disciplines that are made afterwards: the rule qdisc looks at the devices",
        sources: &[PACING, "measured: SO_MAX_PACING_RATE without fq (docs/host.md)"],
        contradicted: &[
            "fasterdata's 100G page finds fq_codel fine, its pacing page wants fq: fq below mq",
            "osg-htc: TuneD network-throughput sets it; that profile (2.28) has no such key",
        ],
        weight: 4,
        judge: |case| {
            let verdict = match case.facts.kernel.has("NET_SCH_FQ") {
                Some(false) => no_op("this kernel is built without fq; TCP paces by itself"),
                _ => setting(case, "net.core.default_qdisc", "fq"),
            };
            host("default-qdisc", verdict)
        },
        ..RULE
    },
    Rule {
        name: "netdev-backlog",
        reads: "net.core.netdev_max_backlog, dropped in /proc/net/softnet_stat",
        wants: "10000 where packets were dropped; else as it is",
        why: "a processor's queue for packets of RPS, loopback, veth and tunnels; drivers with NAPI do not use it",
        risk: "latency and memory when it is long",
        sources: &["Documentation/networking/scaling.rst", "net/core/dev.c"],
        contradicted: &[
            "every older guide: 250,000, osg-htc up to 1,000,000, whether packets are dropped or not",
        ],
        weight: 2,
        judge: |case| {
            let verdict = match case.facts.softnet {
                None => unknown("what was dropped is not known"),
                Some(softnet) if softnet.dropped_packets == 0 => ok("nothing was dropped"),
                Some(_) => at_least(case, "net.core.netdev_max_backlog", 10_000),
            };
            host("netdev-backlog", verdict)
        },
        ..RULE
    },
    Rule {
        name: "netdev-budget",
        reads: "net.core.netdev_budget, netdev_budget_usecs, squeezed in /proc/net/softnet_stat",
        wants: "600 packets and 4000 us where rounds of receiving often ended early; else as they are",
        why: "a round of receiving ends after so many packets or so long, with packets left in the ring",
        risk: "programs on that processor wait longer",
        sources: &[
            "Documentation/admin-guide/sysctl/net.rst",
            "Caltech at SC23: time and packets of a polling cycle",
        ],
        weight: 2,
        judge: |case| {
            // A few each day are normal; the count is since boot.
            let verdict = match case.facts.softnet {
                None => unknown("whether rounds ended early is not known"),
                Some(softnet) if softnet.squeezed_rounds < 1000 => {
                    ok(format!("{} rounds ended early", softnet.squeezed_rounds))
                }
                Some(_) => together(vec![
                    at_least(case, "net.core.netdev_budget", 600),
                    at_least(case, "net.core.netdev_budget_usecs", 4000),
                ]),
            };
            host("netdev-budget", verdict)
        },
        ..RULE
    },
    Rule {
        name: "arp",
        reads: "net.ipv4.conf.all.arp_ignore, arp_announce, arp_filter",
        wants: "1, 2, 1 where several devices carry traffic",
        why: "else any device answers for any address of the host, and traffic of one comes in by another",
        risk: "hosts that serve addresses of loopback behind a load balancer rely on the old way",
        sources: &[
            "perfsonar/toolkit: scripts/configure_sysctl",
            "Documentation/networking/ip-sysctl.rst",
        ],
        weight: 2,
        only_if_named: Some("it is right where devices share a network: you know"),
        judge: |case| {
            host(
                "arp",
                several(case, || {
                    together(vec![
                        setting_where(case, "net.ipv4.conf.all.arp_ignore", "1", |have| {
                            have != "0"
                        }),
                        setting(case, "net.ipv4.conf.all.arp_announce", "2"),
                        setting(case, "net.ipv4.conf.all.arp_filter", "1"),
                    ])
                }),
            )
        },
        ..RULE
    },
    Rule {
        name: "rp-filter",
        reads: "net.ipv4.conf.all.rp_filter, net.ipv4.conf.default.rp_filter, rp_filter of each device; of all's and a \
                device's own the larger holds",
        wants: "2 or 0 in effect, not 1, where several devices carry traffic: all 2 where a device is strict",
        why: "the strict filter drops what comes in by another device than the answer leaves by, as with a routing \
              table for each source address",
        risk: "2 takes forged source addresses that have any route: for security to review",
        sources: &["osg-htc/networking: perfSONAR-and-rp_filter-EL9.md", "RFC 3704"],
        weight: 3,
        only_if_named: Some("it is a filter against forged addresses: you decide"),
        judge: |case| host("rp-filter", several(case, || reverse_path(case))),
        ..RULE
    },
];

pub(super) const DEVICE_RULES: &[Rule] = &[
    Rule {
        name: "qdisc",
        reads: "the discipline at the device's root and those below it (RTM_GETQDISC)",
        wants: "fq; on a device with several queues mq with fq below",
        why: "as default-qdisc, for the devices that are there. mq keeps a lock for each queue",
        risk: "packets that wait are lost while it changes",
        sources: &[
            PACING,
            "esnet/testing-harness: utils/set-pacing.sh",
            "osg-htc/networking: packet-pacing.md",
        ],
        contradicted: &[
            "ESnet's and osg-htc's recipes put fq at the root, which takes mq away and puts one lock before all queues: \
             bad from 100G on",
            "osg-htc's cap hands tc rates as mbps, which are megabytes: its 90 % of a rate are 720 %",
        ],
        weight: 4,
        judge: |case| each_nic(case, "qdisc", |nic| qdisc(case, nic)),
        ..RULE
    },
    Rule {
        name: "tx-queue-length",
        reads: "length of the device's queue (IFLA_TXQLEN) and its discipline",
        wants: "10000 packets for pfifo_fast from 10 Gb/s on; as it is elsewhere",
        why: "a burst of a long path fits. pfifo and bfifo take it when they are made and follow no change; fq and \
              others have limits of their own",
        risk: "below HTB a length of 10000 made 410 ms of delay at 10 Gb/s",
        sources: &["Caltech at SC23: 10000", "measured: HTB (docs/host.md)"],
        contradicted: &[
            "FDT's documents: 50000; osg-htc: 10,000 to 25,000 by rate; neither asks for the discipline",
        ],
        weight: 2,
        judge: |case| each_nic(case, "tx-queue-length", |nic| queue_length(case, nic)),
        ..RULE
    },
    Rule {
        name: "pacing",
        reads: "nothing of the host: it is a property of sockets",
        wants: "each stream at 0.8 to 0.9 of the path's rate divided by the streams (SO_MAX_PACING_RATE)",
        why: "ESnet saw 2 to 4 times the rate on paths of 50 to 80 ms; the mover knows its streams, the host does not",
        risk: "fq's maxrate is for each flow, not for a device, and hits all traffic",
        sources: &["fasterdata.es.net/DTN/tuning", PACING],
        contradicted: &["bltierney/fasterdata-tuning paces every flow at 20 % by fq's maxrate"],
        judge: |_| host("pacing", not_applicable("by the tuner of a copy, and penstock cp --rate")),
        ..RULE
    },
];

fn several(case: &Case<'_>, judge: impl FnOnce() -> Verdict) -> Verdict {
    let hardware = case.nics.iter().filter(|nic| nic.is_hardware()).count();
    if hardware < 2 { not_applicable("one device carries the traffic") } else { judge() }
}

fn reverse_path(case: &Case<'_>) -> Verdict {
    const ALL: &str = "net.ipv4.conf.all.rp_filter";
    const DEFAULT: &str = "net.ipv4.conf.default.rp_filter";
    const RP_FILTER_STRICT: i64 = 1;
    let sysctls = &case.facts.sysctls;
    let (Some(all), Some(default)) = (sysctls.number(ALL), sysctls.number(DEFAULT)) else {
        return super::unseen(case, ALL, "2");
    };
    // A new device gets the value of `default`.
    let own = |nic: &Nic| nic.rp_filter.map_or(default, i64::from);
    let strict: Vec<String> = case
        .nics
        .iter()
        .filter(|nic| all.max(own(nic)) == RP_FILTER_STRICT)
        .map(|nic| format!("{} {}", nic.name, own(nic)))
        .collect();
    let (key, have, want) = if !strict.is_empty() {
        (ALL, format!("all {all}, {}", strict.join(", ")), "all 2")
    } else if all.max(default) == RP_FILTER_STRICT {
        (DEFAULT, format!("all {all}, default {default}"), "default 2, for devices to come")
    } else {
        return ok(format!("all {all}, default {default}"));
    };
    if sysctls.read_only.contains(key) {
        return Verdict::NeedsHost { have, want: want.to_owned() };
    }
    let from = sysctls.get(key).unwrap_or_default();
    differs(have, want, vec![Change::new(Tunable::sysctl(key), from, "2")])
}

fn qdisc(case: &Case<'_>, nic: &Nic) -> Verdict {
    let Some(root) = &nic.qdisc else { return unknown("its disciplines are not known") };
    if nic.kind.is_some() {
        return not_applicable("a software device: the one below it queues");
    }
    let many = nic.tx_queues.unwrap_or(1) > 1;
    let below = root.below.join(" and ");
    let have =
        if below.is_empty() { root.kind.clone() } else { format!("{} with {below}", root.kind) };
    let good = match root.kind.as_str() {
        "fq" => !many || nic.speed_mbps.is_some_and(|mbps| mbps < 100_000),
        "mq" => root.below == ["fq"],
        _ => false,
    };
    if good {
        return ok(have);
    }
    if case.facts.kernel.has("NET_SCH_FQ") == Some(false) {
        return no_op(format!("this kernel is built without fq: {have}; TCP paces by itself"));
    }
    let (kind, want) = if many { ("mq", "mq with fq") } else { ("fq", "fq") };
    if !root.default {
        return Verdict::Conflict {
            have,
            want: want.to_owned(),
            with: "it was set by hand, with options that could not be restored: change it with tc"
                .to_owned(),
        };
    }
    let tunable = Tunable::Qdisc { device: nic.name.clone() };
    let mut changes = vec![Change::new(tunable, "default", kind)];
    // mq creates its children by the default qdisc.
    const BELOW: &str = "net.core.default_qdisc";
    if many && let Some(below) = case.facts.sysctls.get(BELOW).filter(|below| *below != "fq") {
        changes.insert(0, Change::new(Tunable::sysctl(BELOW), below, "fq"));
    }
    differs(have, want, changes)
}

fn queue_length(case: &Case<'_>, nic: &Nic) -> Verdict {
    let (Some(have), Some(root)) = (nic.tx_queue_packets, &nic.qdisc) else {
        return unknown("its queue is not known");
    };
    let mut kinds = std::iter::once(&root.kind).chain(&root.below);
    if !kinds.clone().any(|kind| kind == "pfifo_fast") {
        return not_applicable(match kinds.find(|kind| *kind == "pfifo" || *kind == "bfifo") {
            Some(kind) => format!("{kind} took it when it was made, and follows no change"),
            None => format!("{} does not read it", root.kind),
        });
    }
    let rate = nic.speed_mbps.map_or(case.goal.rate_bps, |mbps| u64::from(mbps) * 1_000_000);
    if have >= 10_000 || rate < 10_000_000_000 {
        return ok(have.to_string());
    }
    let tunable =
        Tunable::Device { device: nic.name.clone(), setting: "tx-queue-packets".to_owned() };
    differs(have.to_string(), "10000", vec![Change::new(tunable, have.to_string(), "10000")])
}
