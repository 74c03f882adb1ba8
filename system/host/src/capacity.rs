//! Capacity of a data transfer node: processors, memory bandwidth, PCI Express lanes and NVMe drives that a rate needs.
//!
//! For: the need of a rate ([`NodeNeed`]), from costs for each byte that were measured or counted, and the comparison of
//! a machine with it ([`compare`]). SPECIFICATION.md has a table from this module and its assumptions.
//!
//! Not for: predicting a rate within ten percent. Processors differ by a factor of two, and the driver of a NIC needs
//! other cycles than the loopback interface on which the costs were measured.
//!
//! Pure arithmetic on facts: unknown facts give the verdict `unknown`.

use std::collections::BTreeMap;

use penstock_units::{BitRate, display_count};
use serde::Serialize;
use utoipa::ToSchema;

use crate::facts::memory::MemoryModules;
use crate::facts::nics::Pcie;
use crate::facts::{Disk, Facts};
use crate::rules::Case;

/// Side of a copy that a node is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEnd {
    /// Reads files and sends them.
    Sender,
    /// Receives files and writes them.
    Receiver,
}

/// Protection of the data on its way, as `--protect` of `penstock cp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataProtection {
    /// Authenticated, without encryption.
    Integrity,
    /// TLS 1.3, the default.
    Full,
}

/// Share of the processors that copies may use; the rest serves interrupts, file systems and other programs. Assumed.
pub const PROCESSOR_SHARE_MAX: f64 = 0.8;

/// Share of the peak rate of all memory channels that copies reach. STREAM's copy reaches 0.77 (Texas Instruments
/// SPRAD45A, table 3-3).
pub const MEMORY_SHARE_MAX: f64 = 0.75;

/// Share of the rate of a PCI Express link, after its line code, that is payload: 0.92 for acknowledgements and flow control,
/// 256 of 280 bytes for headers (Neugebauer and others, Understanding PCIe performance for end host networking,
/// SIGCOMM 2018, section 3: 57.9 of 63.0 Gb/s; 24 bytes for each packet).
pub const PCIE_PAYLOAD_SHARE: f64 = 0.92 * 256.0 / 280.0;

/// Writes of one NVMe drive with PCIe 4.0 x4: 0.7 of the 5.6 GB/s of a large Micron 7450
/// (servethehome.com, Micron 7450, 2022). The margin is for smaller models, wear and the file system; reads are faster.
pub const DRIVE_WRITE_BYTES_PER_SECOND: f64 = 0.7 * 5.6e9;

/// Processor time of both ends for 10^9 bytes of one large file, disk to disk, with the kernel's part, in seconds: with
/// integrity and encrypted, rows `large` and `large-tls` in
/// bench/results/mover-peers-2026-11-28-intel-xeon-2cpu-23gib.md. The processors were virtual ones of an Intel Xeon.
const COPY_CPU_SECONDS_PER_GB: [f64; 2] = [0.42, 0.59];

/// Part of that time that the receiver uses, from the means of both ends in bench/results/mover-cpu-2026-11-28.md.
const RECEIVER_CPU_SHARES: [f64; 2] = [0.191 / (0.154 + 0.191), 0.218 / (0.255 + 0.218)];

/// Processor time of one end for 10^9 bytes of one TCP stream from memory to memory: half of the 0.15 s of both in
/// bench/results/mover-2026-11-23-amd-epyc-2cpu-23gib.md, row `penstock nettest`.
const NETTEST_CPU_SECONDS_PER_GB: f64 = 0.15 / 2.0;

/// Processor time of one end for 10^9 bytes of a large file, disk to disk, in seconds.
#[must_use]
pub fn cpu_seconds_per_gb(end: NodeEnd, protection: DataProtection) -> f64 {
    let protection = usize::from(protection == DataProtection::Full);
    let (both, received) = (COPY_CPU_SECONDS_PER_GB[protection], RECEIVER_CPU_SHARES[protection]);
    both * match end {
        NodeEnd::Sender => 1.0 - received,
        NodeEnd::Receiver => received,
    }
}

/// Passes of a byte over the memory channels at one end, as designed: direct I/O, blocks of 4 MiB, which are larger than
/// a processor's own cache, CRC-32C as digest. Parts of 256 KiB that are used again at once stay in that cache and do not
/// count, and neither do caches that devices write to.
#[must_use]
pub fn memory_passes(end: NodeEnd, protection: DataProtection) -> &'static [&'static str] {
    match (end, protection) {
        (NodeEnd::Sender, DataProtection::Integrity) => {
            &["drive writes block", "hash and CRC-32C read it", "NIC reads it"]
        }
        (NodeEnd::Sender, DataProtection::Full) => &[
            "drive writes block",
            "CRC-32C reads it",
            "encryption reads it",
            "send writes socket",
            "NIC reads socket",
        ],
        (NodeEnd::Receiver, DataProtection::Integrity) => {
            &["NIC writes socket", "receive reads socket", "receive writes block", "drive reads it"]
        }
        (NodeEnd::Receiver, DataProtection::Full) => &[
            "NIC writes socket",
            "receive reads socket",
            "decryption writes block",
            "drive reads it",
        ],
    }
}

/// Passes of a byte of a test from memory to memory: the buffers of the program stay in a cache.
const NETTEST_MEMORY_PASSES: f64 = 2.0;

/// Payload of a PCI Express link in bits per second and direction.
#[must_use]
pub fn pcie_payload_bps(gts: f64, lanes: u32) -> f64 {
    // Line code: 128b/130b from PCIe 3.0 on, 8b/10b before.
    let coded = if gts >= 8.0 { 128.0 / 130.0 } else { 0.8 };
    gts * 1e9 * f64::from(lanes) * coded * PCIE_PAYLOAD_SHARE
}

/// Work of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeWork {
    /// Sends or receives files; the end with the larger need counts.
    Files(DataProtection),
    /// Tests the network from memory to memory.
    NetworkTest,
}

/// Resources that a rate in one direction needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeNeed {
    /// Rate in bits per second.
    pub rate_bps: f64,
    /// Processors as the kernel counts them.
    pub processors: f64,
    /// Peak rate of all memory channels in bytes per second.
    pub memory_bytes_per_second: f64,
    /// NVMe drives; 0 for tests from memory.
    pub drives: f64,
}

impl NodeNeed {
    /// Computes the need of a rate.
    #[must_use]
    pub fn of_rate(rate_bps: u64, work: NodeWork) -> Self {
        let rate_bps = rate_bps as f64;
        let bytes_per_second = rate_bps / 8.0;
        let (cpu, passes) = match work {
            NodeWork::Files(protection) => {
                let cost = |end| cpu_seconds_per_gb(end, protection);
                let passes = |end| memory_passes(end, protection).len() as f64;
                let (sender, receiver) = (NodeEnd::Sender, NodeEnd::Receiver);
                (cost(sender).max(cost(receiver)), passes(sender).max(passes(receiver)))
            }
            NodeWork::NetworkTest => (NETTEST_CPU_SECONDS_PER_GB, NETTEST_MEMORY_PASSES),
        };
        let drives = match work {
            NodeWork::Files(_) => bytes_per_second / DRIVE_WRITE_BYTES_PER_SECOND,
            NodeWork::NetworkTest => 0.0,
        };
        Self {
            rate_bps,
            processors: bytes_per_second / 1e9 * cpu / PROCESSOR_SHARE_MAX,
            memory_bytes_per_second: bytes_per_second * passes / MEMORY_SHARE_MAX,
            drives,
        }
    }

    /// PCI Express lanes of this transfer rate that carry the rate; as many again for the drives.
    #[must_use]
    pub fn lanes(&self, gts: f64) -> f64 {
        self.rate_bps / pcie_payload_bps(gts, 1)
    }
}

/// Verdict on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResourceVerdict {
    /// The machine has as much as the rate needs.
    Ok,
    /// The machine has less.
    Short,
    /// A fact is missing.
    Unknown,
}

impl ResourceVerdict {
    /// Word of the verdict in tables and in the JSON object.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Short => "short",
            Self::Unknown => "unknown",
        }
    }
}

/// A resource of a machine against the need of a rate.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ResourceCheck {
    /// Name of the resource, as `memory bandwidth`.
    pub resource: &'static str,
    /// Result of the comparison.
    pub verdict: ResourceVerdict,
    /// Amount that the rate needs, with its unit.
    pub need: String,
    /// Amount that the machine has, or the reason why it is unknown.
    pub have: String,
    /// Amount that the machine has over the need; null where it is unknown \[ratio\].
    pub have_over_need: Option<f64>,
}

/// Known amount with its description, or the reason why it is unknown.
type KnownAmount = Result<(f64, String), String>;

fn check(resource: &'static str, need: (f64, String), have: KnownAmount) -> ResourceCheck {
    let (need, text) = need;
    let ratio = have.as_ref().ok().map(|(amount, _)| amount / need).filter(|one| one.is_finite());
    let verdict = match ratio {
        Some(ratio) if ratio >= 1.0 => ResourceVerdict::Ok,
        Some(_) => ResourceVerdict::Short,
        None => ResourceVerdict::Unknown,
    };
    let have = have.map_or_else(|why| why, |(_, text)| text);
    ResourceCheck { resource, verdict, need: text, have, have_over_need: ratio }
}

/// Compares a machine with the need of the case's rate.
#[must_use]
pub fn compare(case: &Case<'_>, work: NodeWork) -> Vec<ResourceCheck> {
    let need = NodeNeed::of_rate(case.goal.rate_bps, work);
    let rate = || (need.rate_bps, BitRate(case.goal.rate_bps).to_string());
    let whole = |amount: f64, noun: &str| {
        let amount = amount.ceil().max(1.0);
        (amount, display_count(amount as u64, noun))
    };
    let mut checks = vec![
        check("processors", whole(need.processors, "processor"), processors(case.facts)),
        check(
            "memory bandwidth",
            (need.memory_bytes_per_second, gigabytes_per_second(need.memory_bytes_per_second)),
            memory(case.facts),
        ),
        check("network", rate(), network(case)),
        check("PCIe of NICs", rate(), nic_links(case)),
    ];
    if need.drives > 0.0 {
        checks.push(check("NVMe drives", whole(need.drives, "drive"), drives(case.facts)));
        checks.push(check("PCIe of drives", rate(), drive_links(case.facts)));
    }
    checks
}

fn gigabytes_per_second(rate: f64) -> String {
    let digits = if rate < 10e9 { 1 } else { 0 };
    format!("{:.digits$} GB/s", rate / 1e9)
}

fn payload(bps: f64, of: &str) -> (f64, String) {
    // A sum of links is far below the largest u64.
    (bps, format!("{} by {of}", BitRate(bps as u64)))
}

fn processors(facts: &Facts) -> KnownAmount {
    let count = facts.cpu.online.ok_or("the number of processors is not known")?;
    Ok((count as f64, display_count(count as u64, "processor")))
}

fn memory(facts: &Facts) -> KnownAmount {
    let modules = &facts.memory.modules;
    if modules.is_empty() {
        return Err(if facts.machine.virtual_machine == Some(true) {
            "a virtual machine does not show its memory modules".to_owned()
        } else {
            "the memory modules are not known: the firmware's list is for root only".to_owned()
        });
    }
    let rate = |of: &MemoryModules| {
        f64::from(of.count) * f64::from(of.width_bits) / 8.0 * f64::from(of.rate_mtps) * 1e6
    };
    let total: f64 = modules.iter().map(rate).sum();
    let described: Vec<String> = modules
        .iter()
        .map(|of| {
            let count = display_count(of.count.into(), "module");
            format!("{count} of {} bits at {} MT/s", of.width_bits, of.rate_mtps)
        })
        .collect();
    let text = format!(
        "{}: {}, if each has its own channel",
        gigabytes_per_second(total),
        described.join(", ")
    );
    Ok((total, text))
}

fn network(case: &Case<'_>) -> KnownAmount {
    let nics: Vec<_> = case.nics.iter().filter(|nic| nic.is_hardware()).collect();
    if nics.is_empty() {
        return Err("no network card is known".to_owned());
    }
    let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
    let speeds: Option<Vec<u32>> = nics.iter().map(|nic| nic.speed_mbps).collect();
    let speeds = speeds.ok_or_else(|| format!("the rate of {} is not known", names.join(", ")))?;
    let total: f64 = speeds.into_iter().map(|mbps| f64::from(mbps) * 1e6).sum();
    Ok(payload(total, &names.join(", ")))
}

/// Sum over links; `None` for a link that is unknown.
fn links<'a>(links: impl Iterator<Item = (&'a str, Option<Pcie>)>) -> KnownAmount {
    let links: Vec<_> = links.collect();
    let unknown: Vec<&str> =
        links.iter().filter(|(_, link)| link.is_none()).map(|(name, _)| *name).collect();
    if !unknown.is_empty() {
        return Err(format!("the slot of {} is not known", unknown.join(", ")));
    }
    let known = || links.iter().filter_map(|(_, link)| *link);
    let total = known().map(|link| pcie_payload_bps(link.speed_gts, link.width)).sum();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for link in known() {
        *kinds.entry(format!("{} GT/s x{}", link.speed_gts, link.width)).or_default() += 1;
    }
    let described: Vec<String> = kinds
        .into_iter()
        .map(|(kind, count)| if count > 1 { format!("{count} of {kind}") } else { kind })
        .collect();
    Ok(payload(total, &described.join(", ")))
}

fn nic_links(case: &Case<'_>) -> KnownAmount {
    // Ports of one card share its slot: the address without the function, as in `pci 0000:17:00.1`.
    let slot = |bus: &'_ str| bus.rsplit_once('.').map_or(bus, |(slot, _)| slot).to_owned();
    let cards: BTreeMap<String, _> = case
        .nics
        .iter()
        .filter(|nic| nic.is_hardware())
        .filter_map(|nic| Some((slot(nic.bus.as_deref()?), (nic.name.as_str(), nic.pcie))))
        .collect();
    if cards.is_empty() {
        return Err("no network card is known".to_owned());
    }
    links(cards.into_values())
}

/// NVMe drives by their controllers, as `nvme0`: a drive may have several namespaces.
fn nvme(facts: &Facts) -> BTreeMap<&str, &Disk> {
    let controller = |name: &'_ str| -> Option<usize> {
        let digits = name.strip_prefix("nvme")?;
        let (number, namespace) = digits.split_once('n')?;
        // Not the paths of a multipath device, as nvme0c1n1.
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (is_number(number) && is_number(namespace)).then_some("nvme".len() + number.len())
    };
    let drives = facts.disks.iter();
    drives.filter_map(|disk| Some((&disk.name[..controller(&disk.name)?], disk))).collect()
}

fn drives(facts: &Facts) -> KnownAmount {
    let count = nvme(facts).len();
    if count > 0 {
        return Ok((count as f64, display_count(count as u64, "drive")));
    }
    if facts.disks.is_empty() {
        return Err("no disk is known".to_owned());
    }
    let names: Vec<&str> = facts.disks.iter().map(|disk| disk.name.as_str()).collect();
    Err(format!("no NVMe drive, and the rate of {} is not known", names.join(", ")))
}

fn drive_links(facts: &Facts) -> KnownAmount {
    let drives = nvme(facts);
    if drives.is_empty() {
        return Err("no NVMe drive".to_owned());
    }
    links(drives.into_iter().map(|(name, disk)| (name, disk.pcie)))
}

#[cfg(test)]
mod tests;
