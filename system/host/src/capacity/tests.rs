//! Odd machines and rates against the capacity model.

use std::time::Duration;

use super::*;
use crate::facts::Nic;
use crate::goal::Goal;

const FILES: NodeWork = NodeWork::Files(DataProtection::Full);

fn checks(facts: &Facts, rate_bps: u64, work: NodeWork) -> Vec<ResourceCheck> {
    let goal = Goal::new(rate_bps, Duration::from_millis(65));
    compare(&Case::new(facts, goal, &[]), work)
}

fn words(checks: &[ResourceCheck]) -> Vec<(&str, &str, &str)> {
    checks.iter().map(|one| (one.resource, one.verdict.word(), one.have.as_str())).collect()
}

fn link(speed_gts: f64, width: u32) -> Option<Pcie> {
    Some(Pcie { speed_gts, width, speed_gts_max: speed_gts, width_max: width, ..Pcie::default() })
}

/// A node with two ports of 400 Gb/s on one card, and 16 drives.
fn node() -> Facts {
    let mut facts = Facts::default();
    facts.cpu.online = Some(64);
    facts.memory.modules = vec![MemoryModules { count: 12, width_bits: 64, rate_mtps: 4800 }];
    facts.nics = [0, 1]
        .map(|port| Nic {
            name: format!("port{port}"),
            bus: Some(format!("pci 0000:17:00.{port}")),
            carrier: Some(true),
            speed_mbps: Some(400_000),
            pcie: link(32.0, 16),
            ..Nic::default()
        })
        .to_vec();
    let disk =
        |number| Disk { name: format!("nvme{number}n1"), pcie: link(16.0, 4), ..Disk::default() };
    facts.disks = (0..16).map(disk).collect();
    facts
}

#[test]
fn need_grows_with_rate() {
    let need = |gbps: u64, work| NodeNeed::of_rate(gbps * 1_000_000_000, work);
    let (slow, fast) = (need(100, FILES), need(400, FILES));
    assert!((fast.processors / slow.processors - 4.0).abs() < 1e-9);
    let integrity = need(400, NodeWork::Files(DataProtection::Integrity));
    assert!(integrity.processors < fast.processors);
    assert!((14.0..15.0).contains(&integrity.processors), "{integrity:?}");
    assert!((330e9..340e9).contains(&fast.memory_bytes_per_second), "{fast:?}");
    assert_eq!((fast.drives.ceil(), fast.lanes(32.0).ceil()), (13.0, 16.0));
    let test = need(400, NodeWork::NetworkTest);
    assert!(test.drives == 0.0 && test.processors < integrity.processors);
}

#[test]
fn both_ends_add_up() {
    for protection in [DataProtection::Integrity, DataProtection::Full] {
        let cost = |end| cpu_seconds_per_gb(end, protection);
        let both = cost(NodeEnd::Sender) + cost(NodeEnd::Receiver);
        assert!(COPY_CPU_SECONDS_PER_GB.iter().any(|one| (both - one).abs() < 1e-9), "{both}");
    }
}

#[test]
fn slots_carry_their_cards() {
    let gbps = |gts, lanes| (pcie_payload_bps(gts, lanes) / 1e9).round();
    assert_eq!([gbps(32.0, 16), gbps(16.0, 16), gbps(8.0, 16)], [424.0, 212.0, 106.0]);
    assert_eq!(gbps(5.0, 8), 27.0, "8b/10b");
}

#[test]
fn sufficient_node_is_ok() {
    let checks = checks(&node(), 400_000_000_000, FILES);
    assert!(checks.iter().all(|one| one.verdict == ResourceVerdict::Ok), "{checks:#?}");
    assert_eq!(
        words(&checks)[1..4],
        [
            (
                "memory bandwidth",
                "ok",
                "461 GB/s: 12 modules of 64 bits at 4800 MT/s, if each has its own channel"
            ),
            ("network", "ok", "800 Gb/s by port0, port1"),
            ("PCIe of NICs", "ok", "424 Gb/s by 32 GT/s x16"),
        ],
        "both ports share a slot"
    );
    assert_eq!(checks[5].have, "848 Gb/s by 16 of 16 GT/s x4");
}

#[test]
fn ports_of_one_slot_fall_short() {
    let found = checks(&node(), 800_000_000_000, FILES);
    let short = |one: &&ResourceCheck| one.verdict == ResourceVerdict::Short;
    let names: Vec<&str> = found.iter().filter(short).map(|one| one.resource).collect();
    assert_eq!(names, ["memory bandwidth", "PCIe of NICs", "NVMe drives"]);
    assert_eq!(found[4].need, "26 drives");
    let tests = checks(&node(), 400_000_000_000, NodeWork::NetworkTest);
    assert_eq!(tests.len(), 4, "no drives");
}

#[test]
fn missing_facts_are_unknown() {
    let found = checks(&Facts::default(), 400_000_000_000, FILES);
    assert!(found.iter().all(|one| one.verdict == ResourceVerdict::Unknown), "{found:#?}");
    assert!(found.iter().all(|one| one.have_over_need.is_none() && !one.have.is_empty()));

    let mut facts = node();
    facts.machine.virtual_machine = Some(true);
    facts.memory.modules.clear();
    facts.nics[0].speed_mbps = None;
    facts.nics[1].carrier = Some(false);
    facts.nics[0].pcie = None;
    facts.disks = vec![Disk { name: "vda".to_owned(), ..Disk::default() }];
    assert_eq!(
        words(&checks(&facts, 400_000_000_000, FILES))[1..],
        [
            ("memory bandwidth", "unknown", "a virtual machine does not show its memory modules"),
            ("network", "unknown", "the rate of port0 is not known"),
            ("PCIe of NICs", "unknown", "the slot of port0 is not known"),
            ("NVMe drives", "unknown", "no NVMe drive, and the rate of vda is not known"),
            ("PCIe of drives", "unknown", "no NVMe drive"),
        ]
    );
}

#[test]
fn extreme_rates_are_compared() {
    let one = checks(&node(), 1, FILES);
    assert!(one.iter().all(|one| one.verdict == ResourceVerdict::Ok), "{one:#?}");
    assert_eq!(one[0].need, "1 processor");
    for rate in [5_000_000_000_000_000, u64::MAX] {
        let found = checks(&node(), rate, FILES);
        assert!(found.iter().all(|one| one.verdict == ResourceVerdict::Short), "{found:#?}");
    }
    let none = checks(&node(), 0, FILES);
    assert!(none.iter().all(|one| one.verdict != ResourceVerdict::Short), "{none:#?}");
}

#[test]
fn namespaces_of_a_drive_count_once() {
    let disk = |name: &str| Disk { name: name.to_owned(), ..Disk::default() };
    let names = ["nvme0n1", "nvme0n2", "nvme1c2n1", "nvme10n1", "nvmen1", "nvme3", "sda"];
    let facts = Facts { disks: names.map(disk).to_vec(), ..Facts::default() };
    assert_eq!(nvme(&facts).into_keys().collect::<Vec<_>>(), ["nvme0", "nvme10"]);
}
