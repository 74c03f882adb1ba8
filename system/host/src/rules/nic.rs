//! NIC rules: MTU, rings, interrupt moderation, pause frames, offloads, BIG TCP.

use super::{Case, RULE, Rule, Verdict, differs, each_nic, no_op, not_applicable, ok, unknown};
use crate::change::{Change, Tunable};
use crate::facts::{Nic, Release};

const TUNING_100G: &str = "fasterdata.es.net/host-tuning/linux/100g-tuning";
const SENSE: &str = "sdn-sense.github.io: software-based-router-dpdk.md";
const SC23: &str = "Caltech at SC23: rules for better throughput";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "mtu",
        reads: "IFLA_MTU, IFLA_MAX_MTU",
        wants: "9000 from 10 Gb/s on, on every device of the stack, and tcp_mtu_probing with it",
        why: "rate over a lossy path goes with the size of a segment (Mathis), and each packet costs time at both ends",
        risk: "a path on which one switch has less swallows what is larger: probe every peer first (ping -M do -s 8972) \
               and set tcp_mtu_probing",
        sources: &["LHCONE/LHCOPN MTU recommendation (2019)", SENSE, SC23],
        weight: 8,
        only_if_named: Some(
            "every switch and peer must carry it: probe first (ping -M do -s 8972 PEER)",
        ),
        interrupts: true,
        judge: |case| each_nic(case, "mtu", |nic| mtu(case, nic)),
        ..RULE
    },
    Rule {
        name: "channels",
        reads: "queues of the driver (ETHTOOL_MSG_CHANNELS_GET), processors of the card's NUMA node",
        wants: "as many as its NUMA node has processors, or fewer",
        why: "queues on processors of the other node cross the link between them for every packet",
        risk: "queues are created again: the link may go down, interrupts get other processors, disciplines other children",
        sources: &["fasterdata.es.net/host-tuning/linux/interrupt-binding"],
        weight: 3,
        interrupts: true,
        judge: |case| each_nic(case, "channels", |nic| channels(case, nic)),
        ..RULE
    },
    Rule {
        name: "rss",
        reads: "the table by which received packets are spread (ETHTOOL_MSG_RSS_GET), queues of the driver",
        wants: "all queues in it",
        why: "streams that share a queue share a processor; a table made for fewer queues leaves the others idle",
        risk: "none known: ethtool -X DEVICE equal N",
        sources: &[
            "Documentation/networking/scaling.rst",
            "fasterdata.es.net/host-tuning/linux/interrupt-binding",
        ],
        weight: 3,
        judge: |case| each_nic(case, "rss", rss),
        ..RULE
    },
    Rule {
        name: "rings",
        reads: "descriptors (ETHTOOL_MSG_RINGS_GET)",
        wants: "the most that the driver offers, from 10 Gb/s on",
        why: "a burst of a long path waits in the ring while the processor is busy; when it is full packets are lost \
              (rx_missed_errors, rx_out_of_buffer)",
        risk: "more memory and cache; queues are created again and the link may go down for a moment",
        sources: &[TUNING_100G, SENSE, SC23],
        contradicted: &[
            "osg-htc looks for the words 'RX max:', which ethtool never prints, and so never raises them; \
             bltierney/fasterdata-tuning writes 8192 whatever the card has. Asked by netlink here",
        ],
        weight: 4,
        interrupts: true,
        judge: |case| each_nic(case, "rings", |nic| rings(case, nic)),
        ..RULE
    },
    Rule {
        name: "coalescing",
        reads: "interrupt moderation (ETHTOOL_MSG_COALESCE_GET)",
        wants: "adaptive for receiving and sending where the driver has it, or 50 to 100 us fixed; else 100 us or less",
        why: "the driver waits long at high rates and briefly at low ones; 1 ms fixed adds 1 ms to every \
              acknowledgement and to every measured round-trip time",
        risk: "for bulk alone 50 to 100 us fixed may be faster: measure both",
        sources: &[TUNING_100G],
        contradicted: &[
            "Caltech at SC23 and SENSE turn adaptive-rx off, SENSE with rx-usecs 1000, for routers; fasterdata turns it \
             on: on unless measured otherwise",
        ],
        weight: 3,
        judge: |case| each_nic(case, "coalescing", coalescing),
        ..RULE
    },
    Rule {
        name: "pause",
        reads: "pause frames (ETHTOOL_MSG_PAUSE_GET)",
        wants: "received and sent ones on",
        why: "the switch waits where the card is full, in place of losing packets; Intel's ice ships with them off",
        risk: "on a shared switch congestion spreads to others: ask who runs it",
        sources: &[TUNING_100G],
        weight: 2,
        only_if_named: Some("on a shared switch it spreads congestion: ask who runs it"),
        interrupts: true,
        judge: |case| each_nic(case, "pause", pause),
        ..RULE
    },
    Rule {
        name: "offloads",
        reads: "rx-checksum, tx-checksum, scatter-gather, TSO, GSO, GRO (ETHTOOL_MSG_FEATURES_GET)",
        wants: "on",
        why: "without them every packet of 1500 or 9000 bytes goes through the whole stack alone",
        sources: &["Documentation/networking/segmentation-offloads.rst", TUNING_100G],
        contradicted: &[
            "osg-htc looks for gro: and lro: in ethtool -k, which prints other names, and so never finds them",
        ],
        weight: 7,
        judge: |case| {
            each_nic(case, "offloads", |nic| match nic.kind.as_deref() {
                // Super-packets cross a veth pair whole: GRO has nothing to merge.
                Some("veth") => features(nic, &OFFLOADS[1..], true),
                _ => features(nic, &OFFLOADS, true),
            })
        },
        ..RULE
    },
    Rule {
        name: "lro",
        reads: "rx-lro",
        wants: "off",
        why: "it merges packets so that they cannot be forwarded or counted as they came; GRO does the work",
        sources: &[
            "Documentation/networking/netdevices.rst",
            "osg-htc/networking: fasterdata-tuning.sh",
        ],
        contradicted: &[
            "mlnx_tune HIGH_THROUGHPUT turns hw_lro on for some cards: off, with GRO or rx-gro-hw",
        ],
        weight: 2,
        judge: |case| each_nic(case, "lro", |nic| features(nic, &["rx-lro"], false)),
        ..RULE
    },
    Rule {
        name: "hw-gro",
        reads: "rx-gro-hw, maker and product of the card",
        wants: "on for ConnectX-7, BlueField-3 and newer, after a test",
        why: "the card puts packets together before the processor sees them",
        risk: "drivers differ in how they split headers",
        sources: &["Documentation/networking/netdevices.rst"],
        only_if_named: Some("drivers differ: test it on this card first"),
        judge: |case| {
            each_nic(case, "hw-gro", |nic| match nic.device_id.as_deref() {
                Some(id) if HW_GRO.contains(&id) => features(nic, &["rx-gro-hw"], true),
                Some(id) => not_applicable(format!("{id} is no ConnectX-7 or newer")),
                None if nic.driver.as_deref().is_some_and(|driver| driver != "mlx5_core") => {
                    not_applicable("no ConnectX-7 or newer")
                }
                None if nic.kind.is_some() => not_applicable("a software device"),
                None => unknown("which card it is is not known"),
            })
        },
        ..RULE
    },
    Rule {
        name: "big-tcp",
        reads: "IFLA_GSO_MAX_SIZE, IFLA_GRO_MAX_SIZE and their IPv4 twins, IFLA_TSO_MAX_SIZE",
        wants: "185000 for IPv6 (Linux 5.19), 150000 for IPv4 (6.3), up to tso_max_size, on every device of the stack",
        why: "one super-packet of 185,000 bytes in place of three: 65 to 74 Gb/s for one stream at SC23",
        risk: "tunnels and forwarding: vxlan refuses it (cilium/cilium#46337), some paths lose packets \
               (projectcalico/calico#11160)",
        sources: &[
            SC23,
            "esnet/testing-harness: utils/enable_BIG.sh",
            "INDIS 2024, Tierney et al.",
        ],
        contradicted: &[
            "ip of iproute2 6.1 (Debian 12) does not know the IPv4 sizes; set by netlink here",
        ],
        weight: 4,
        judge: |case| each_nic(case, "big-tcp", |nic| big_tcp(case, nic)),
        ..RULE
    },
];

/// ConnectX-7 and 8, BlueField-3 and 4.
const HW_GRO: [&str; 4] = ["15b3:1021", "15b3:1023", "15b3:a2dc", "15b3:a2df"];

const OFFLOADS: [&str; 8] = [
    "rx-gro",
    "rx-checksum",
    "tx-checksum-ip-generic",
    "tx-generic-segmentation",
    "tx-scatter-gather",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
];

pub(super) fn fast(case: &Case<'_>, nic: &Nic) -> bool {
    let rate = nic.speed_mbps.map_or(case.goal.rate_bps, |mbps| u64::from(mbps) * 1_000_000);
    rate >= 10_000_000_000
}

fn device(nic: &Nic, setting: &str, have: u32, want: u32) -> Change {
    let tunable = Tunable::Device { device: nic.name.clone(), setting: setting.to_owned() };
    Change::new(tunable, have.to_string(), want.to_string())
}

fn driver(nic: &Nic, setting: &str, have: u32, want: u32) -> Change {
    let tunable = Tunable::Driver { device: nic.name.clone(), setting: setting.to_owned() };
    Change::new(tunable, have.to_string(), want.to_string())
}

fn mtu(case: &Case<'_>, nic: &Nic) -> Verdict {
    const JUMBO_MTU_BYTES: u32 = 9000;
    let Some(have) = nic.mtu_bytes else { return unknown("its MTU is not known") };
    if have >= JUMBO_MTU_BYTES || !fast(case, nic) {
        return ok(have.to_string());
    }
    let max = nic.mtu_bytes_max.unwrap_or(JUMBO_MTU_BYTES);
    if max <= have {
        return not_applicable(format!("{max} is the most it takes"));
    }
    let want = max.min(JUMBO_MTU_BYTES);
    if case.facts.managers.network_manager == Some(true) && nic.is_hardware() {
        return Verdict::Conflict {
            have: have.to_string(),
            want: want.to_string(),
            with: format!(
                "NetworkManager sets it when the device comes up: nmcli connection modify {} 802-3-ethernet.mtu {want}",
                nic.name
            ),
        };
    }
    let mut changes = vec![device(nic, "mtu", have, want)];
    // Path MTU discovery for paths that drop larger packets silently.
    const PROBING: &str = "net.ipv4.tcp_mtu_probing";
    if case.facts.sysctls.get(PROBING) == Some("0") {
        changes.insert(0, Change::new(Tunable::sysctl(PROBING), "0", "1"));
    }
    differs(have.to_string(), want.to_string(), changes)
}

fn channels(case: &Case<'_>, nic: &Nic) -> Verdict {
    let Some(have) = nic.setting("combined-channels") else {
        return not_applicable("its driver has no combined queues");
    };
    let local = nic.local_cpus.as_deref().and_then(penstock_sys::machine::parse_cpus);
    let Some(local) = local.map(|cpus| cpus.len()).or(case.facts.cpu.online) else {
        return unknown("the processors near it are not known");
    };
    let local = u32::try_from(local).unwrap_or(u32::MAX).max(1);
    if have.value <= local {
        return ok(format!("{} for {local} processors", have.value));
    }
    let changes = vec![driver(nic, "combined-channels", have.value, local)];
    differs(have.value.to_string(), local.to_string(), changes)
}

fn rss(nic: &Nic) -> Verdict {
    let Some(spread) = nic.rss_queues else {
        return match &nic.kind {
            Some(_) => not_applicable("a software device"),
            None => unknown("how it spreads packets is not known"),
        };
    };
    match nic.setting("combined-channels").map(|channels| channels.value) {
        Some(queues) if spread < queues => differs(
            format!("over {spread} of {queues} queues"),
            format!("over all: ethtool -X {} equal {queues}", nic.name),
            Vec::new(),
        ),
        _ => ok(format!("over {spread} queues")),
    }
}

fn rings(case: &Case<'_>, nic: &Nic) -> Verdict {
    let rings: Vec<_> = ["rx-ring", "tx-ring"]
        .into_iter()
        .filter_map(|word| {
            let ring = nic.setting(word)?;
            Some((word, ring.value, ring.max?))
        })
        .collect();
    if rings.is_empty() {
        return not_applicable("its driver has no rings to set");
    }
    let formatted = |pick: fn(&(&str, u32, u32)) -> u32| -> String {
        rings.iter().map(|ring| pick(ring).to_string()).collect::<Vec<_>>().join(" and ")
    };
    let have = formatted(|ring| ring.1);
    if !fast(case, nic) || rings.iter().all(|(_, value, max)| value >= max) {
        return ok(have);
    }
    let small = rings.iter().filter(|(_, value, max)| value < max);
    let changes = small.map(|(word, value, max)| driver(nic, word, *value, *max)).collect();
    let lost = nic.rx_missed_packets.filter(|missed| *missed > 0);
    let have = lost.map_or(have.clone(), |missed| format!("{have}, {missed} packets lost"));
    differs(have, formatted(|ring| ring.2), changes)
}

fn coalescing(nic: &Nic) -> Verdict {
    // virtio_net accepts the settings, but its host decides.
    if nic.driver.as_deref() == Some("virtio_net") {
        return not_applicable("a virtual machine's: its host decides");
    }
    let adaptive: Vec<_> = ["adaptive-rx", "adaptive-tx"]
        .into_iter()
        .filter_map(|word| Some((word, nic.setting(word)?.value)))
        .collect();
    let microseconds = nic.setting("rx-usecs").map(|setting| setting.value);
    if adaptive.is_empty() {
        return match microseconds {
            None => not_applicable("its driver has none"),
            Some(usecs) if usecs <= 100 => ok(format!("{usecs} us")),
            Some(usecs) => {
                differs(format!("{usecs} us"), "100 us", vec![driver(nic, "rx-usecs", usecs, 100)])
            }
        };
    }
    let off: Vec<_> = adaptive.iter().filter(|(_, value)| *value == 0).collect();
    if off.is_empty() {
        return ok("adaptive");
    }
    // The operator selected the profile for bulk data.
    if let Some(usecs @ 50..=100) = microseconds {
        return ok(format!("{usecs} us fixed"));
    }
    let names: Vec<&str> = off.iter().map(|(word, _)| *word).collect();
    let changes = off.iter().map(|(word, value)| driver(nic, word, *value, 1)).collect();
    let fixed = microseconds.map(|usecs| format!(", {usecs} us")).unwrap_or_default();
    differs(format!("{} off{fixed}", names.join(" and ")), "adaptive", changes)
}

fn pause(nic: &Nic) -> Verdict {
    let both =
        ["pause-rx", "pause-tx"].map(|word| nic.setting(word).map(|setting| (word, setting.value)));
    let [Some(rx), Some(tx)] = both else { return not_applicable("its driver has none") };
    let off: Vec<_> = [rx, tx].into_iter().filter(|(_, value)| *value == 0).collect();
    if off.is_empty() {
        return ok("on");
    }
    let names: Vec<&str> = off.iter().map(|(word, _)| *word).collect();
    let changes = off.iter().map(|(word, value)| driver(nic, word, *value, 1)).collect();
    differs(format!("{} off", names.join(" and ")), "on", changes)
}

/// Judges the offloads in `names`; ignores those that the device lacks or does not allow to change.
fn features(nic: &Nic, names: &[&str], want: bool) -> Verdict {
    if nic.features.is_empty() {
        return unknown("its offloads are not known");
    }
    let word = |on: bool| if on { "on" } else { "off" };
    let there: Vec<(&str, bool, bool)> = names
        .iter()
        .filter_map(|name| nic.feature(name).map(|(on, fixed)| (*name, on, fixed)))
        .collect();
    let wrong: Vec<&str> = there
        .iter()
        .filter(|(_, on, fixed)| *on != want && !fixed)
        .map(|(name, _, _)| *name)
        .collect();
    if there.is_empty() {
        return not_applicable("it has none");
    }
    if wrong.is_empty() {
        return ok(word(want));
    }
    let changes = wrong
        .iter()
        .map(|name| {
            let tunable =
                Tunable::Feature { device: nic.name.clone(), feature: (*name).to_owned() };
            Change::new(tunable, word(!want), word(want))
        })
        .collect();
    differs(format!("{} {}", wrong.join(" "), word(!want)), word(want), changes)
}

fn big_tcp(case: &Case<'_>, nic: &Nic) -> Verdict {
    const IPV6_BYTES: u32 = 185_000;
    const IPV4_BYTES: u32 = 150_000;
    if !fast(case, nic) {
        return ok("below 10 Gb/s");
    }
    match case.facts.kernel.version() {
        None => return unknown("the kernel's release is not known"),
        Some(version) if version < Release(5, 19) && !case.facts.kernel.is_enterprise() => {
            return no_op("the kernel has it since Linux 5.19, for IPv4 since 6.3");
        }
        Some(_) => {}
    }
    let segments = nic.segments;
    let Some(most) = segments.tso_max_bytes else {
        return not_applicable("its driver does not say how much it segments");
    };
    if most <= 65_536 {
        return not_applicable(format!("its driver segments {most} bytes at most"));
    }
    let sizes = [
        ("gso-max-bytes", segments.gso_max_bytes, IPV6_BYTES),
        ("gro-max-bytes", segments.gro_max_bytes, IPV6_BYTES),
        ("gso-ipv4-max-bytes", segments.gso_ipv4_max_bytes, IPV4_BYTES),
        ("gro-ipv4-max-bytes", segments.gro_ipv4_max_bytes, IPV4_BYTES),
    ];
    let small: Vec<_> = sizes
        .into_iter()
        .filter_map(|(word, have, want)| {
            let (have, want) = (have?, want.min(most));
            (have < want).then_some((word, have, want))
        })
        .collect();
    let known: Vec<u32> = sizes.iter().filter_map(|(_, have, _)| *have).collect();
    let formatted = |sizes: &[u32]| -> String {
        sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
    };
    if known.is_empty() {
        return unknown("its sizes are not known");
    }
    if small.is_empty() {
        return ok(formatted(&known));
    }
    let wanted: Vec<u32> = sizes
        .iter()
        .filter_map(|(_, have, want)| have.map(|have| have.max((*want).min(most))))
        .collect();
    let changes = small.iter().map(|(word, have, want)| device(nic, word, *have, *want)).collect();
    differs(formatted(&known), formatted(&wanted), changes)
}
