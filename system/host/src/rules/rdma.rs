//! Rules for RDMA devices: locked memory, path MTU, addresses, priorities and the firmware's timer. They plan no changes.
//!
//! A host without such a device has the verdict `not applicable`.

use std::net::IpAddr;
use std::time::Duration;

use penstock_units::ByteCount;

use super::{Case, Finding, RULE, Rule, Verdict, differs, host, not_applicable, ok, unknown};
use crate::facts::RdmaPort;

const PERFTEST: &str =
    "linux-rdma/perftest#251: repetitions after 2, 4, 8 and 16 ms on a path of 40 ms";
const MLX5_DRIVER: &str = "mlx5_core";
/// Longest path, in round-trip time, that flow control by pause frames can span: its buffers hold what is in flight.
const PFC_RTT_MAX: Duration = Duration::from_millis(1);
/// Path MTUs of RDMA in bytes (enum ib_mtu).
const PATH_MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// Headers that drivers of cards leave room for (iboe_get_mtu in include/rdma/ib_addr.h), and software RoCE
/// (drivers/infiniband/sw/rxe/rxe_param.h).
const CARD_HEADER_BYTES: u32 = 96;
const SOFTWARE_HEADER_BYTES: u32 = 80;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "rdma-memlock",
        reads: "limit of locked memory (RLIMIT_MEMLOCK), CAP_IPC_LOCK of this process",
        wants: "rate x rtt of the goal, or no limit, for hosts with RDMA devices",
        why: "memory for RDMA is registered and then locked; as much as is in flight, 5.4 GB for 400 Gb/s at 108 ms",
        risk: "a program without a limit can lock all memory",
        sources: &["ibv_reg_mr(3)", "getrlimit(2): RLIMIT_MEMLOCK"],
        weight: 3,
        judge: |case| match ports(case).is_empty() {
            true => without("rdma-memlock"),
            false => host("rdma-memlock", memlock(case)),
        },
        ..RULE
    },
    Rule {
        name: "roce-mtu",
        reads: "MTU of the network device below the RDMA device",
        wants: "4200 bytes or more, for a path MTU of 4096",
        why: "RDMA divides messages by a path MTU of 256 to 4096; with 1500 it is 1024, four times the packets, and \
              7.4 % of the rate are headers, not 2",
        risk: "as that of the rule mtu; DF is set and there is no discovery: packets larger than a hop vanish",
        sources: &["include/rdma/ib_addr.h: iboe_get_mtu", "drivers/infiniband/sw/rxe/rxe_param.h"],
        weight: 4,
        judge: |case| each_port(case, "roce-mtu", |port| path_mtu(case, port)),
        ..RULE
    },
    Rule {
        name: "roce-gid",
        reads: "gids, gid_attrs/types and gid_attrs/ndevs of the port (/sys/class/infiniband)",
        wants: "a RoCE v2 GID of an IP address other than a link-local one",
        why: "RoCE v1 and link-local addresses are not routed; a queue pair takes its addresses from the GID",
        sources: &[
            "InfiniBand Architecture Specification, annex A17",
            "openucx/ucx: uct/ib/base/ib_device.c",
        ],
        weight: 5,
        judge: |case| each_port(case, "roce-gid", gid),
        ..RULE
    },
    Rule {
        name: "roce-priority",
        reads: "priorities with PFC and the map of DSCP (DCB_CMD_IEEE_GET)",
        wants: "with PFC also trust in DSCP, and a DSCP of a priority with PFC; PFC itself for paths below 1 ms",
        why: "untagged packets have priority 0 unless the card trusts DSCP, so that PFC on another one does nothing. \
              On a WAN PFC would need buffers for all that is in flight",
        risk: "pause frames spread congestion; every switch on the path needs the same priorities",
        sources: &[
            "IEEE 802.1Qbb",
            "include/uapi/linux/dcbnl.h",
            "mlnx_qos(8): --trust, --pfc, --dscp2prio",
        ],
        weight: 3,
        judge: |case| each_port(case, "roce-priority", |port| priority(case, port)),
        ..RULE
    },
    Rule {
        name: "roce-ecn",
        reads: "ecn/roce_np/enable and ecn/roce_rp/enable of the network device (NVIDIA's driver package)",
        wants: "on at both, for the priorities with PFC, or for one at least",
        why: "the card slows down for marked packets (DCQCN) before switches drop or pause; needs the marks of switches",
        sources: &[
            "NVIDIA MLNX_OFED: Explicit Congestion Notification",
            "Zhu et al., SIGCOMM 2015 (DCQCN)",
        ],
        contradicted: &[
            "the kernel's own mlx5 driver has these parameters in debugfs alone, without an on or off",
        ],
        weight: 2,
        judge: |case| each_port(case, "roce-ecn", ecn),
        ..RULE
    },
    Rule {
        name: "roce-retransmission",
        reads: "counter roce_adp_retrans of the port (mlx5)",
        wants: "adaptive retransmission off for paths of 1 ms and more",
        why: "the firmware repeats after a few milliseconds, whatever timeout the queue pair has: on a long path all is \
              sent several times",
        risk: "in a data centre losses are repaired later: at the timeout of the queue pair",
        sources: &[
            PERFTEST,
            "NVIDIA: Adaptive Retransmission, Parameters Control (ROCE_ACCL)",
            "NVIDIA/nccl#1555",
        ],
        weight: 5,
        judge: |case| each_port(case, "roce-retransmission", |port| retransmission(case, port)),
        ..RULE
    },
    Rule {
        name: "relaxed-ordering",
        reads: "Device Control of the PCI function (configuration space, as root)",
        wants: "relaxed ordering on",
        why: "writes of the card to memory need not wait for each other; with many cores or NUMA nodes strict order \
              costs a large part of the rate",
        risk: "the kernel turns it off behind root ports that are known to break it: see dmesg before setpci",
        sources: &[
            "PCI Express Base Specification 5.0, 7.5.3.4",
            "drivers/pci/probe.c: pci_configure_relaxed_ordering",
        ],
        weight: 2,
        judge: |case| each_port(case, "relaxed-ordering", |port| ordering(case, port)),
        ..RULE
    },
];

/// Ports of the network devices that carry the traffic, and those of InfiniBand.
fn ports<'a>(case: &'a Case<'_>) -> Vec<&'a RdmaPort> {
    let carries = |name: &str| {
        case.nics.iter().any(|nic| nic.name == name || nic.lower.as_deref() == Some(name))
    };
    let is_used = |port: &&RdmaPort| port.net_device.as_deref().is_none_or(carries);
    case.facts.rdma.iter().filter(is_used).collect()
}

fn without(rule: &'static str) -> Vec<Finding> {
    host(rule, not_applicable("no RDMA device"))
}

/// Creates a finding for each port, or one for the host where it has none.
fn each_port(
    case: &Case<'_>,
    rule: &'static str,
    judge: impl Fn(&RdmaPort) -> Verdict,
) -> Vec<Finding> {
    let ports = ports(case);
    if ports.is_empty() {
        return without(rule);
    }
    let finding = |port: &&RdmaPort| Finding { rule, object: port.object(), verdict: judge(port) };
    ports.iter().map(finding).collect()
}

fn memlock(case: &Case<'_>) -> Verdict {
    let memory = &case.facts.memory;
    let goal = &case.goal;
    let wanted = goal.rate_bps as f64 * goal.rtt.as_secs_f64() / 8.0;
    let wanted = ByteCount(wanted as u64);
    match memory.lock_limit_bytes {
        None if memory.total_bytes.is_none() => unknown("memory is not known"),
        None => ok("no limit"),
        Some(limit) if memory.locks_without_limit == Some(true) => {
            ok(format!("no limit for root, {} for others", ByteCount(limit)))
        }
        Some(limit) if limit >= wanted.0 => ok(ByteCount(limit).to_string()),
        Some(limit) => differs(
            ByteCount(limit).to_string(),
            format!(
                "{wanted}, or no limit: LimitMEMLOCK=infinity of the service, memlock in limits.conf"
            ),
            Vec::new(),
        ),
    }
}

fn path_mtu(case: &Case<'_>, port: &RdmaPort) -> Verdict {
    const CARD_MTU_BYTES: u32 = 4200;
    if !port.is_ethernet() {
        return not_applicable("InfiniBand");
    }
    let nic = case.facts.nics.iter().find(|nic| Some(&nic.name) == port.net_device.as_ref());
    let Some((nic, mtu)) = nic.and_then(|nic| Some((nic, nic.mtu_bytes?))) else {
        return unknown("the MTU of its network device is not known");
    };
    let header = if port.is_software() { SOFTWARE_HEADER_BYTES } else { CARD_HEADER_BYTES };
    let path = PATH_MTUS.into_iter().find(|path| path + header <= mtu).unwrap_or(0);
    let have = format!("{path}, of MTU {mtu}");
    if path == PATH_MTUS[0] {
        return ok(have);
    }
    match nic.mtu_bytes_max {
        Some(most) if most < PATH_MTUS[0] + header => {
            not_applicable(format!("MTU {most} is the most that {} takes", nic.name))
        }
        _ => differs(
            have,
            format!("4096: MTU {CARD_MTU_BYTES} or more of {} (rule mtu)", nic.name),
            Vec::new(),
        ),
    }
}

fn gid(port: &RdmaPort) -> Verdict {
    if !port.is_ethernet() {
        return not_applicable("InfiniBand");
    }
    let Some(addresses) = &port.roce_v2_addresses else {
        return unknown("its GIDs cannot be read");
    };
    let is_routed = |text: &&String| match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => !address.is_link_local(),
        Ok(IpAddr::V6(address)) => !address.is_unicast_link_local(),
        Err(_) => false,
    };
    let routed: Vec<&str> = addresses.iter().filter(is_routed).map(String::as_str).collect();
    if !routed.is_empty() {
        return ok(routed.join(" "));
    }
    let net_device = port.net_device.as_deref().unwrap_or("its network device");
    let have = if addresses.is_empty() { "no RoCE v2 GID" } else { "link-local addresses alone" };
    differs(have, format!("an IP address on {net_device}: its GID is then RoCE v2"), Vec::new())
}

fn priority(case: &Case<'_>, port: &RdmaPort) -> Verdict {
    if port.is_software() || !port.is_ethernet() {
        return not_applicable("no card with priorities of Ethernet");
    }
    let (Some(pfc), Some(dscp)) = (&port.pfc_priorities, &port.dscp_priorities) else {
        return unknown("its driver does not show its priorities");
    };
    let net_device = port.net_device.as_deref().unwrap_or("DEVICE");
    let trust = if dscp.is_empty() { "the VLAN's priority" } else { "DSCP" };
    let on: Vec<String> = pfc.iter().map(u8::to_string).collect();
    let on = if on.is_empty() { "none".to_owned() } else { on.join(" ") };
    let have = format!("PFC on {on}, trust in {trust}");
    let is_mapped = dscp.values().any(|priority| pfc.contains(priority));
    if pfc.is_empty() && case.goal.rtt < PFC_RTT_MAX {
        let want = format!(
            "PFC for the priority of RoCE here and on the switches: mlnx_qos -i {net_device} --trust dscp --pfc 0,0,0,1,0,0,0,0"
        );
        return differs(have, want, Vec::new());
    }
    if pfc.is_empty() || is_mapped {
        return ok(have);
    }
    let want = match dscp.is_empty() {
        true => format!("trust in DSCP: mlnx_qos -i {net_device} --trust dscp"),
        false => format!(
            "a DSCP of priority {on}: mlnx_qos -i {net_device} --dscp2prio set,26,{}",
            pfc[0]
        ),
    };
    differs(have, want, Vec::new())
}

fn ecn(port: &RdmaPort) -> Verdict {
    if port.driver.as_deref() != Some(MLX5_DRIVER) || !port.is_ethernet() {
        return not_applicable("no RoCE of mlx5");
    }
    let Some(on) = &port.ecn_priorities else {
        return unknown("only NVIDIA's driver package shows it");
    };
    let pfc = port.pfc_priorities.as_deref().unwrap_or_default();
    let missing: Vec<String> =
        pfc.iter().filter(|priority| !on.contains(priority)).map(u8::to_string).collect();
    let have = match on.is_empty() {
        true => "off".to_owned(),
        false => format!("on for {}", on.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")),
    };
    if missing.is_empty() && !on.is_empty() {
        return ok(have);
    }
    let priority = missing.first().map_or("3", String::as_str);
    let net_device = port.net_device.as_deref().unwrap_or("DEVICE");
    let want = format!(
        "1 in /sys/class/net/{net_device}/ecn/roce_np/enable/{priority} and in that of roce_rp"
    );
    differs(have, want, Vec::new())
}

fn retransmission(case: &Case<'_>, port: &RdmaPort) -> Verdict {
    let device = &port.device;
    if port.driver.as_deref() != Some(MLX5_DRIVER) || !port.is_ethernet() {
        return not_applicable("no RoCE of mlx5");
    }
    if case.goal.rtt < PFC_RTT_MAX {
        return ok("a path below 1 ms");
    }
    let have = match (port.adaptive_timer, port.adaptive_retransmissions) {
        (Some(false), _) => return ok("off"),
        (Some(true), _) => "on".to_owned(),
        (None, Some(count)) if count > 0 => format!("on: {count} repetitions so far"),
        (None, _) => {
            return unknown(format!(
                "mlxreg -d {device} --reg_name ROCE_ACCL --get shows it: roce_adp_retrans_en should be 0"
            ));
        }
    };
    let want = format!("off: mlxreg -d {device} --reg_name ROCE_ACCL --set roce_adp_retrans_en=0");
    differs(have, want, Vec::new())
}

fn ordering(case: &Case<'_>, port: &RdmaPort) -> Verdict {
    if port.is_software() {
        return not_applicable("a software device");
    }
    if case.facts.machine.virtual_machine == Some(true) {
        return not_applicable("a virtual machine's: its host decides");
    }
    match port.relaxed_ordering {
        None => unknown("its configuration space cannot be read: only root may"),
        Some(true) => ok("on"),
        Some(false) => differs("off", "on: by hand, with setpci CAP_EXP+8.w", Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::goal::Goal;

    const MACHINE: &[u8] = include_bytes!("../../tests/fixtures/roce-wan.json");

    /// Verdict on the first device, or the host, of a changed machine, for 400 Gb/s.
    fn verdict(rule: &str, rtt: Duration, change: impl FnOnce(&mut Facts)) -> Verdict {
        let mut facts = Facts::from_json(MACHINE).unwrap();
        change(&mut facts);
        let case = Case::new(&facts, Goal::new(400_000_000_000, rtt), &[]);
        let rule = RULES.iter().find(|one| one.name == rule).unwrap();
        (rule.judge)(&case).into_iter().next().unwrap().verdict
    }

    /// Wanted value, or the verdict's word.
    fn wanted(verdict: &Verdict) -> String {
        verdict.difference().map_or(verdict.word(), |(_, want)| want).to_owned()
    }

    const WAN_ROUND_TRIP: Duration = Duration::from_millis(108);
    const LAN_ROUND_TRIP: Duration = Duration::from_micros(50);

    #[test]
    fn priorities_follow_the_path() {
        let with = |rtt, pfc: &[u8], dscp: &[(&str, u8)]| {
            let dscp = dscp.iter().map(|(dscp, priority)| ((*dscp).to_owned(), *priority));
            wanted(&verdict("roce-priority", rtt, |facts| {
                facts.rdma[0].pfc_priorities = Some(pfc.to_vec());
                facts.rdma[0].dscp_priorities = Some(dscp.collect());
            }))
        };
        assert_eq!(with(WAN_ROUND_TRIP, &[], &[]), "ok");
        assert!(with(LAN_ROUND_TRIP, &[], &[]).contains("--pfc 0,0,0,1"));
        assert!(with(WAN_ROUND_TRIP, &[4], &[]).ends_with("--trust dscp"));
        assert!(with(LAN_ROUND_TRIP, &[4], &[("26", 3)]).ends_with("--dscp2prio set,26,4"));
        assert_eq!(with(LAN_ROUND_TRIP, &[3], &[("26", 3)]), "ok");
    }

    #[test]
    fn adaptive_timer_shows_by_counter() {
        let with = |rtt, timer: Option<bool>, count: Option<u64>| {
            let found = verdict("roce-retransmission", rtt, |facts| {
                facts.rdma[0].adaptive_timer = timer;
                facts.rdma[0].adaptive_retransmissions = count;
            });
            found.word()
        };
        assert_eq!(with(WAN_ROUND_TRIP, None, None), "unknown");
        assert_eq!(with(WAN_ROUND_TRIP, None, Some(0)), "unknown");
        assert_eq!(with(WAN_ROUND_TRIP, None, Some(1)), "differs");
        assert_eq!(with(WAN_ROUND_TRIP, Some(false), Some(1)), "ok");
        assert_eq!(with(WAN_ROUND_TRIP, Some(true), None), "differs");
        assert_eq!(with(LAN_ROUND_TRIP, Some(true), None), "ok");
    }

    #[test]
    fn path_mtu_needs_room_for_headers() {
        let with = |mtu: u32, driver: Option<&str>| {
            let found = verdict("roce-mtu", WAN_ROUND_TRIP, |facts| {
                facts.nics[1].mtu_bytes = Some(mtu);
                facts.rdma[0].driver = driver.map(str::to_owned);
            });
            let have = match &found {
                Verdict::Ok { have } | Verdict::Differs { have, .. } => have.as_str(),
                other => other.word(),
            };
            have.split(',').next().unwrap().to_owned()
        };
        assert_eq!(with(4192, Some("mlx5_core")), "4096");
        assert_eq!(with(4191, Some("mlx5_core")), "2048");
        assert_eq!(with(4176, None), "4096");
        assert_eq!(with(1500, None), "1024");
        assert_eq!(with(300, None), "0");
    }

    #[test]
    fn locked_memory_follows_the_path() {
        let with = |limit: Option<u64>, root: bool| {
            let found = verdict("rdma-memlock", WAN_ROUND_TRIP, |facts| {
                facts.memory.lock_limit_bytes = limit;
                facts.memory.locks_without_limit = Some(root);
            });
            found.word()
        };
        assert_eq!(with(None, false), "ok");
        assert_eq!(with(Some(8 << 20), false), "differs");
        assert_eq!(with(Some(5_400_000_000), false), "ok");
        assert_eq!(with(Some(8 << 20), true), "ok");
    }

    #[test]
    fn hosts_without_devices_are_not_judged() {
        for rule in RULES {
            let found = verdict(rule.name, WAN_ROUND_TRIP, |facts| facts.rdma.clear());
            assert_eq!(found.word(), "not applicable", "{}", rule.name);
            // The device of another network interface is none of the path.
            let other = verdict(rule.name, WAN_ROUND_TRIP, |facts| {
                facts.rdma.retain(|port| port.net_device.as_deref() == Some("eno1"));
            });
            assert_eq!(other.word(), "not applicable", "{}", rule.name);
        }
    }
}
