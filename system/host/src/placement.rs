//! NUMA placement of a transfer's threads: CPUs near the NIC, else near the disk, without those that serve interrupts.
//!
//! Pure, from facts to CPUs. Data near the other node crosses the socket interconnect: a disk of another node crosses
//! once, by its own DMA into buffers near the NIC (rule `numa-pinning`). A CPU that serves a NIC's interrupts at full rate
//! has little time left for a program.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use penstock_sys::machine::{allowed_cpus, parse_cpus, pin_thread_to};
use penstock_sys::net::interface_with;
use serde::Deserialize;

use crate::facts::disks::disk_of;
use crate::facts::{Disk, Facts, Nic};

/// Depth of stacked devices, as a VLAN on a bond.
const STACKED_MAX: usize = 4;

/// A transfer needs at least two CPUs: storage and streams work concurrently.
const CPUS_MIN: usize = 2;

/// CPUs that the operator chose for a process.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum PlacementPolicy {
    /// CPUs near the NIC or disk in use.
    Auto,
    /// These CPUs.
    Cpus(Vec<usize>),
}

/// A text that is no list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no list of processors: write it like 0-3,8, or auto")]
pub struct PlacementPolicyError(String);

impl FromStr for PlacementPolicy {
    type Err = PlacementPolicyError;

    fn from_str(text: &str) -> Result<Self, PlacementPolicyError> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        parse_cpus(text).map(Self::Cpus).ok_or_else(|| PlacementPolicyError(text.to_owned()))
    }
}

impl TryFrom<String> for PlacementPolicy {
    type Error = PlacementPolicyError;

    fn try_from(text: String) -> Result<Self, PlacementPolicyError> {
        text.parse()
    }
}

/// CPUs chosen for threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Sorted; empty where the machine's CPUs are unknown.
    pub cpus: Vec<usize>,
    /// Reason for users; empty where there was no choice.
    pub why: String,
}

/// Pins the calling thread, and threads that it starts, to these CPUs.
///
/// # Errors
/// When none of them is available.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    pin_thread_to(cpus).map_err(|error| {
        let why = penstock_sys::fs::describe(&error);
        io::Error::new(error.kind(), format!("cannot run on these processors: {why}"))
    })
}

/// Chooses CPUs for each thread of a transfer by the device that it uses.
#[derive(Debug, Clone)]
pub struct NumaPlacement {
    machine: Arc<MachineTopology>,
    /// NIC of the transfer.
    interface: Option<String>,
}

#[derive(Debug)]
struct MachineTopology {
    facts: Facts,
    allowed: BTreeSet<usize>,
}

impl NumaPlacement {
    /// Creates a placement for a machine and the CPUs allowed to the process.
    #[must_use]
    pub fn new(facts: Facts, allowed: &[usize]) -> Self {
        let allowed = allowed.iter().copied().collect();
        Self { machine: Arc::new(MachineTopology { facts, allowed }), interface: None }
    }

    /// Gathers the facts of this machine and process. Beyond 1024 CPUs it chooses none.
    #[must_use]
    pub fn detect() -> Self {
        Self::new(Facts::gather(), &allowed_cpus().unwrap_or_default())
    }

    /// Returns the placement for a transfer over this interface.
    #[must_use]
    pub fn via_interface(&self, interface: Option<String>) -> Self {
        Self { machine: Arc::clone(&self.machine), interface }
    }

    /// CPUs for threads that work on files of a device (`st_dev`).
    #[must_use]
    pub fn of_files(&self, device: Option<u64>) -> Placement {
        let disk = device.and_then(disk_of);
        self.machine.place(self.interface.as_deref(), disk.as_deref())
    }

    /// CPUs for threads that send or receive by this address of the machine.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> Placement {
        let interface = interface_with(address).or_else(|| self.interface.clone());
        self.machine.place(interface.as_deref(), None)
    }
}

impl MachineTopology {
    /// Chooses among the allowed CPUs those near the interface, else near the disk.
    fn place(&self, interface: Option<&str>, disk: Option<&str>) -> Placement {
        let Self { facts, allowed } = self;
        let nic = interface.and_then(|name| self.nic(name));
        let disk = disk.and_then(|name| facts.disks.iter().find(|disk| disk.name == name));
        let near = |cpus: BTreeSet<usize>| -> Option<BTreeSet<usize>> {
            let cpus: BTreeSet<usize> = cpus.intersection(allowed).copied().collect();
            (!cpus.is_empty()).then_some(cpus)
        };
        let (mut cpus, mut why) = None
            .or_else(|| Some((near(of_nic(facts, nic?)?)?, format!("near {}", nic?.name))))
            .or_else(|| Some((near(of_disk(facts, disk?)?)?, format!("near {}", disk?.name))))
            .unwrap_or_else(|| (allowed.clone(), String::new()));
        let busy: BTreeSet<usize> = nic.map(serving).unwrap_or_default();
        let free: BTreeSet<usize> = cpus.difference(&busy).copied().collect();
        if free.len() >= CPUS_MIN && free.len() < cpus.len() {
            cpus = free;
            let comma = if why.is_empty() { "" } else { ", " };
            why += &format!("{comma}beside its interrupts");
        }
        if cpus == *allowed {
            why.clear();
        }
        Placement { cpus: cpus.into_iter().collect(), why }
    }

    /// Finds an interface, or the hardware below a VLAN or bond.
    fn nic(&self, name: &str) -> Option<&Nic> {
        let find = |name: &str| self.facts.nics.iter().find(|nic| nic.name == name);
        let mut nic = find(name)?;
        for _ in 0..STACKED_MAX {
            match nic.lower.as_deref().and_then(find) {
                Some(lower) if nic.numa_node.is_none() => nic = lower,
                _ => break,
            }
        }
        Some(nic)
    }
}

fn of_nic(facts: &Facts, nic: &Nic) -> Option<BTreeSet<usize>> {
    of_node(facts, nic.numa_node).or_else(|| set(nic.local_cpus.as_deref()?))
}

fn of_disk(facts: &Facts, disk: &Disk) -> Option<BTreeSet<usize>> {
    of_node(facts, disk.numa_node)
}

fn of_node(facts: &Facts, number: Option<usize>) -> Option<BTreeSet<usize>> {
    let node = facts.cpu.nodes.iter().find(|node| Some(node.number) == number)?;
    set(&node.cpus)
}

fn set(list: &str) -> Option<BTreeSet<usize>> {
    Some(parse_cpus(list)?.into_iter().collect())
}

/// CPUs that serve the interface's interrupts; ignores interrupts that may go to several CPUs.
fn serving(nic: &Nic) -> BTreeSet<usize> {
    let lists = nic.irqs.iter().map(|irq| irq.effective_cpus.as_ref().unwrap_or(&irq.cpus));
    lists.filter_map(|list| set(list)).filter(|cpus| cpus.len() == 1).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::cpu::NumaNode;
    use crate::facts::nics::Irq;

    /// Two nodes of eight; the interface is at the second, its two interrupts go to 8 and 9; disks at both.
    fn facts() -> Facts {
        let mut facts = Facts::default();
        facts.cpu.nodes = [(0, "0-7"), (1, "8-15")]
            .map(|(number, cpus)| NumaNode { number, cpus: cpus.to_owned() })
            .to_vec();
        let irq = |number, cpu: &str| Irq {
            number,
            cpus: "8-15".to_owned(),
            effective_cpus: Some(cpu.to_owned()),
        };
        facts.nics = vec![Nic {
            name: "eth0".to_owned(),
            numa_node: Some(1),
            irqs: vec![irq(30, "8"), irq(31, "9")],
            ..Nic::default()
        }];
        facts.disks = [("nvme0n1", Some(0)), ("vda", None)]
            .map(|(name, numa_node)| Disk { name: name.to_owned(), numa_node, ..Disk::default() })
            .to_vec();
        facts
    }

    fn place(facts: Facts, nic: Option<&str>, disk: Option<&str>, allowed: &str) -> Placement {
        NumaPlacement::new(facts, &parse_cpus(allowed).unwrap()).machine.place(nic, disk)
    }

    fn cpus(nic: Option<&str>, disk: Option<&str>, allowed: &str) -> Vec<usize> {
        place(facts(), nic, disk, allowed).cpus
    }

    #[test]
    fn interface_precedes_disk_without_irq_cpus() {
        assert_eq!(cpus(Some("eth0"), Some("nvme0n1"), "0-15"), [10, 11, 12, 13, 14, 15]);
        assert_eq!(cpus(None, Some("nvme0n1"), "0-15"), (0..8).collect::<Vec<_>>());
        let why = place(facts(), Some("eth0"), None, "0-15").why;
        assert_eq!(why, "near eth0, beside its interrupts");
    }

    #[test]
    fn small_node_is_shared_with_interrupts() {
        assert_eq!(cpus(Some("eth0"), None, "0-10"), [8, 9, 10]);
    }

    #[test]
    fn without_choice_all_cpus_are_used() {
        let nothing = |facts, nic, disk, allowed| {
            let placement = place(facts, nic, disk, allowed);
            assert_eq!(placement.cpus, parse_cpus(allowed).unwrap());
            assert_eq!(placement.why, "");
        };
        nothing(facts(), Some("lo"), Some("vda"), "0-15");
        // All that is allowed is on the other node.
        nothing(facts(), Some("eth0"), None, "0-3");
        nothing(Facts::default(), Some("eth0"), None, "0-1");
    }

    #[test]
    fn vlan_uses_its_interfaces_node() {
        let mut facts = facts();
        let vlan =
            Nic { name: "eth0.7".to_owned(), lower: Some("eth0".to_owned()), ..Nic::default() };
        facts.nics.push(vlan);
        let placement = place(facts, Some("eth0.7"), None, "0-15");
        assert_eq!(placement.cpus, [10, 11, 12, 13, 14, 15]);
        assert_eq!(placement.why, "near eth0, beside its interrupts");
    }

    #[test]
    fn streams_and_files_choose_separately() {
        let mut facts = facts();
        facts.nics[0].name = "lo".to_owned();
        let homes = NumaPlacement::new(facts, &(0..16).collect::<Vec<_>>());
        let near_lo = vec![10, 11, 12, 13, 14, 15];
        assert_eq!(homes.of_address("127.0.0.1".parse().unwrap()).cpus, near_lo);
        assert_eq!(homes.of_address("192.0.2.1".parse().unwrap()).cpus.len(), 16);
        // No disk has that number.
        assert_eq!(homes.of_files(Some(0)).cpus.len(), 16);
        let homes = homes.via_interface(Some("lo".to_owned()));
        assert_eq!(homes.of_files(Some(0)).cpus, near_lo);
        assert_eq!(homes.of_address("192.0.2.1".parse().unwrap()).cpus, near_lo);
    }

    #[test]
    fn unpinned_interrupts_are_ignored() {
        let mut facts = facts();
        for irq in &mut facts.nics[0].irqs {
            irq.effective_cpus = None;
        }
        let placement = place(facts, Some("eth0"), None, "0-15");
        assert_eq!(placement.cpus, (8..16).collect::<Vec<_>>());
    }
}
