//! Where a transfer's threads run best: near the interface, else near the disk, and not where interrupts are served.
//!
//! Facts in, processors out. Of two nodes, crossing to the other costs every byte a trip between sockets: a disk of
//! another node crosses once, by its own DMA into buffers near the interface (rule `numa-pinning`). A processor that
//! serves an interface's interrupts at full rate has little left for a program.

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

/// Devices on top of each other, as a VLAN of a bond.
const STACKED_MAX: usize = 4;

/// A transfer needs more than one processor: storage and streams work at the same time.
const CPUS_MIN: usize = 2;

/// The processors that somebody wants a process to use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Wish {
    /// Those near what is used.
    Auto,
    /// These.
    These(Vec<usize>),
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        parse_cpus(text).map(Self::These).ok_or_else(|| {
            format!("'{text}' is no list of processors: write it like 0-3,8, or auto")
        })
    }
}

impl TryFrom<String> for Wish {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Processors for threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// In order; empty where it is not known which there are.
    pub cpus: Vec<usize>,
    /// Why these, in a line; empty where there was nothing to choose.
    pub why: String,
}

/// Keeps the calling thread, and those that it starts, to these processors.
///
/// # Errors
/// What an operator reads, when none of them is to be had.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    pin_thread_to(cpus).map_err(|error| {
        let why = penstock_sys::fs::describe(&error);
        io::Error::new(error.kind(), format!("cannot run on these processors: {why}"))
    })
}

/// Where each thread of a transfer is to run, by the device that it works with.
#[derive(Debug, Clone)]
pub struct Homes {
    machine: Arc<Machine>,
    /// Of the transfer.
    interface: Option<String>,
}

#[derive(Debug)]
struct Machine {
    facts: Facts,
    allowed: BTreeSet<usize>,
}

impl Homes {
    /// Of a machine, for a process that may use these processors.
    #[must_use]
    pub fn new(facts: Facts, allowed: &[usize]) -> Self {
        let allowed = allowed.iter().copied().collect();
        Self { machine: Arc::new(Machine { facts, allowed }), interface: None }
    }

    /// Of this machine and process. Of more than 1024 processors nothing is chosen.
    #[must_use]
    pub fn here() -> Self {
        Self::new(Facts::gather(), &allowed_cpus().unwrap_or_default())
    }

    /// Of a transfer by this interface.
    #[must_use]
    pub fn by(&self, interface: Option<String>) -> Self {
        Self { machine: Arc::clone(&self.machine), interface }
    }

    /// For all that has to do with files of a device (`st_dev`).
    #[must_use]
    pub fn of_files(&self, device: Option<u64>) -> Placement {
        let disk = device.and_then(disk_of);
        self.machine.place(self.interface.as_deref(), disk.as_deref())
    }

    /// For what sends or receives by this address of the machine.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> Placement {
        let interface = interface_with(address).or_else(|| self.interface.clone());
        self.machine.place(interface.as_deref(), None)
    }
}

impl Machine {
    /// Near that interface, else near that disk, of the processors that may be used.
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

    /// The interface of that name, or the hardware below a VLAN or the like.
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

/// Processors that serve the interface's interrupts, where each goes to one: those spread over all say nothing.
fn serving(nic: &Nic) -> BTreeSet<usize> {
    let lists = nic.irqs.iter().map(|irq| irq.effective_cpus.as_ref().unwrap_or(&irq.cpus));
    lists.filter_map(|list| set(list)).filter(|cpus| cpus.len() == 1).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::cpu::Node;
    use crate::facts::nics::Irq;

    /// Two nodes of eight; the interface is at the second, its two interrupts go to 8 and 9; disks at both.
    fn facts() -> Facts {
        let mut facts = Facts::default();
        facts.cpu.nodes = [(0, "0-7"), (1, "8-15")]
            .map(|(number, cpus)| Node { number, cpus: cpus.to_owned() })
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
        Homes::new(facts, &parse_cpus(allowed).unwrap()).machine.place(nic, disk)
    }

    fn cpus(nic: Option<&str>, disk: Option<&str>, allowed: &str) -> Vec<usize> {
        place(facts(), nic, disk, allowed).cpus
    }

    #[test]
    fn the_interface_goes_before_the_disk_and_interrupts_are_left_alone() {
        assert_eq!(cpus(Some("eth0"), Some("nvme0n1"), "0-15"), [10, 11, 12, 13, 14, 15]);
        assert_eq!(cpus(None, Some("nvme0n1"), "0-15"), (0..8).collect::<Vec<_>>());
        let why = place(facts(), Some("eth0"), None, "0-15").why;
        assert_eq!(why, "near eth0, beside its interrupts");
    }

    #[test]
    fn a_node_too_small_is_shared_with_interrupts() {
        assert_eq!(cpus(Some("eth0"), None, "0-10"), [8, 9, 10]);
    }

    #[test]
    fn where_there_is_nothing_to_choose_all_will_do() {
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
    fn a_vlan_is_where_its_interface_is() {
        let mut facts = facts();
        let vlan =
            Nic { name: "eth0.7".to_owned(), lower: Some("eth0".to_owned()), ..Nic::default() };
        facts.nics.push(vlan);
        let placement = place(facts, Some("eth0.7"), None, "0-15");
        assert_eq!(placement.cpus, [10, 11, 12, 13, 14, 15]);
        assert_eq!(placement.why, "near eth0, beside its interrupts");
    }

    #[test]
    fn streams_go_by_their_path_and_files_by_the_transfer() {
        let mut facts = facts();
        facts.nics[0].name = "lo".to_owned();
        let homes = Homes::new(facts, &(0..16).collect::<Vec<_>>());
        let near_lo = vec![10, 11, 12, 13, 14, 15];
        assert_eq!(homes.of_address("127.0.0.1".parse().unwrap()).cpus, near_lo);
        assert_eq!(homes.of_address("192.0.2.1".parse().unwrap()).cpus.len(), 16);
        // No disk has that number.
        assert_eq!(homes.of_files(Some(0)).cpus.len(), 16);
        let homes = homes.by(Some("lo".to_owned()));
        assert_eq!(homes.of_files(Some(0)).cpus, near_lo);
        assert_eq!(homes.of_address("192.0.2.1".parse().unwrap()).cpus, near_lo);
    }

    #[test]
    fn interrupts_that_may_go_anywhere_say_nothing() {
        let mut facts = facts();
        for irq in &mut facts.nics[0].irqs {
            irq.effective_cpus = None;
        }
        let placement = place(facts, Some("eth0"), None, "0-15");
        assert_eq!(placement.cpus, (8..16).collect::<Vec<_>>());
    }
}
