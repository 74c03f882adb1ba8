//! Where a transfer's threads run best: near the interface, else near the disk, and not where interrupts are served.
//!
//! Facts in, processors out. Of two nodes, crossing to the other costs every byte a trip between sockets; a processor
//! that serves an interface's interrupts at full rate has little left for a program.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use penstock_sys::machine::{allowed_cpus, parse_cpus};
use penstock_sys::net::interface_with;
use serde::Deserialize;

use crate::facts::disks::disk_of;
use crate::facts::{Disk, Facts, Nic};

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

/// Processors for a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// In order; never empty.
    pub cpus: Vec<usize>,
    /// Why these, in a line.
    pub why: String,
}

/// Where a transfer by that interface, from or to that disk, is to run, of the processors that it may use. None where
/// there is nothing to choose.
#[must_use]
fn place(
    facts: &Facts,
    interface: Option<&str>,
    disk: Option<&str>,
    allowed: &[usize],
) -> Option<Placement> {
    let allowed: BTreeSet<usize> = allowed.iter().copied().collect();
    let nic = interface.and_then(|name| facts.nics.iter().find(|nic| nic.name == name));
    let disk = disk.and_then(|name| facts.disks.iter().find(|disk| disk.name == name));
    let near = |cpus: BTreeSet<usize>| -> Option<BTreeSet<usize>> {
        let cpus: BTreeSet<usize> = cpus.intersection(&allowed).copied().collect();
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
    (cpus != allowed).then(|| Placement { cpus: cpus.into_iter().collect(), why })
}

/// Where each thread of a process is to run, by the device that it works with.
#[derive(Debug)]
pub struct Homes {
    facts: Facts,
    allowed: Vec<usize>,
}

impl Homes {
    /// Of a machine, for a process that may use these processors.
    #[must_use]
    pub const fn new(facts: Facts, allowed: Vec<usize>) -> Self {
        Self { facts, allowed }
    }

    /// Of this machine and process.
    ///
    /// # Errors
    /// When the kernel does not say on which processors it may run: there are more than 1024.
    pub fn here() -> io::Result<Self> {
        Ok(Self::new(Facts::gather(), allowed_cpus()?))
    }

    /// For a transfer as a whole, by that interface, from or to that disk.
    #[must_use]
    pub fn of_transfer(&self, interface: Option<&str>, disk: Option<&str>) -> Option<Placement> {
        place(&self.facts, interface, disk, &self.allowed)
    }

    /// For what reads or writes files of a device (`st_dev`); none where any processor will do.
    #[must_use]
    pub fn of_files(&self, device: u64) -> Option<Placement> {
        place(&self.facts, None, Some(&disk_of(device)?), &self.allowed)
    }

    /// For what sends or receives by this address of the machine; none where any processor will do.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> Option<Placement> {
        place(&self.facts, Some(&interface_with(address)?), None, &self.allowed)
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

    fn cpus(facts: &Facts, nic: Option<&str>, disk: Option<&str>, allowed: &str) -> Vec<usize> {
        let allowed = parse_cpus(allowed).unwrap();
        place(facts, nic, disk, &allowed).map(|placement| placement.cpus).unwrap_or_default()
    }

    #[test]
    fn the_interface_goes_before_the_disk_and_interrupts_are_left_alone() {
        let facts = facts();
        assert_eq!(cpus(&facts, Some("eth0"), Some("nvme0n1"), "0-15"), [10, 11, 12, 13, 14, 15]);
        assert_eq!(cpus(&facts, None, Some("nvme0n1"), "0-15"), (0..8).collect::<Vec<_>>());
        let why = place(&facts, Some("eth0"), None, &(0..16).collect::<Vec<_>>()).unwrap().why;
        assert_eq!(why, "near eth0, beside its interrupts");
    }

    #[test]
    fn a_node_too_small_is_shared_with_interrupts() {
        assert_eq!(cpus(&facts(), Some("eth0"), None, "0-10"), [8, 9, 10]);
    }

    #[test]
    fn nothing_to_choose_is_nothing() {
        let facts = facts();
        assert_eq!(cpus(&facts, Some("lo"), Some("vda"), "0-15"), [0; 0]);
        // All that is allowed is on the other node.
        assert_eq!(cpus(&facts, Some("eth0"), None, "0-3"), [0; 0]);
        assert_eq!(cpus(&Facts::default(), Some("eth0"), None, "0-1"), [0; 0]);
    }

    #[test]
    fn each_device_has_its_home() {
        let mut facts = facts();
        facts.nics[0].name = "lo".to_owned();
        let homes = Homes::new(facts, (0..16).collect());
        let near_lo = homes.of_address("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(near_lo.cpus, [10, 11, 12, 13, 14, 15]);
        assert_eq!(homes.of_address("192.0.2.1".parse().unwrap()), None);
        // No disk has that number.
        assert_eq!(homes.of_files(0), None);
    }

    #[test]
    fn interrupts_that_may_go_anywhere_say_nothing() {
        let mut facts = facts();
        for irq in &mut facts.nics[0].irqs {
            irq.effective_cpus = None;
        }
        assert_eq!(cpus(&facts, Some("eth0"), None, "0-15"), (8..16).collect::<Vec<_>>());
    }
}
