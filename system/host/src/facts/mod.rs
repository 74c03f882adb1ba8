//! Facts about a machine that determine its transfer rate. Each may be unknown.
//!
//! [`Facts::gather`] reads them from procfs, sysfs and netlink and changes nothing; parts can be read separately
//! ([`Facts::sysctls`], [`nics::gather`]). A facts file has the same content as JSON, to judge another machine
//! ([`Facts::from_json`]).
//!
//! Not for: judging ([`crate::rules`]), or rates: of the counters, only those that a rule reads.
//!
//! Gathering does not fail: unreadable facts are omitted. The error of an invalid facts file names the position.

pub mod cpu;
pub mod disks;
pub mod kernel;
pub mod machine;
pub mod managers;
pub mod memory;
pub mod nics;
pub mod rdma;
pub mod sysctls;
mod tree;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub use self::cpu::Cpu;
pub use self::disks::{Disk, Mount};
pub use self::kernel::{Kernel, Release};
pub use self::machine::Machine;
pub use self::managers::Managers;
pub use self::memory::{Memory, Softnet};
pub use self::nics::Nic;
pub use self::rdma::RdmaPort;
pub use self::sysctls::Sysctls;
pub use self::tree::Tree;
pub(crate) use self::tree::chosen;

/// Version of the facts file that is written and read.
pub const FACTS_VERSION: u32 = 1;

/// Largest facts file in bytes.
pub const FACTS_BYTES_MAX: usize = 16 << 20;

/// Limits of processors, devices and disks of a machine, and interrupts of a device, in a facts file: several times
/// those of the largest machines.
const CPUS_MAX: usize = 65_536;
const NICS_MAX: usize = 4096;
const RDMA_PORTS_MAX: usize = 4096;
const IRQS_MAX: usize = 4096;
const DISKS_MAX: usize = 65_536;
const MODULE_KINDS_MAX: usize = 4096;

/// A machine. Every part is empty where nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Version of this format.
    pub version: u32,
    /// Remark for readers of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
    /// Facts about the running kernel.
    #[serde(default)]
    #[schema(required)]
    pub kernel: Kernel,
    /// Facts about the kind of machine.
    #[serde(default)]
    #[schema(required)]
    pub machine: Machine,
    /// Facts about CPUs and NUMA nodes.
    #[serde(default)]
    #[schema(required)]
    pub cpu: Cpu,
    /// Facts about memory and its limits.
    #[serde(default)]
    #[schema(required)]
    pub memory: Memory,
    /// Settings of the kernel.
    #[serde(default)]
    #[schema(required)]
    pub sysctls: Sysctls,
    /// Counters of the receive path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub softnet: Option<Softnet>,
    /// Network devices other than loopback.
    #[serde(default)]
    #[schema(required)]
    pub nics: Vec<Nic>,
    /// Ports of RDMA devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaPort>,
    /// Block devices that hold data.
    #[serde(default)]
    #[schema(required)]
    pub disks: Vec<Disk>,
    /// File systems that may hold data.
    #[serde(default)]
    #[schema(required)]
    pub mounts: Vec<Mount>,
    /// Other programs that tune this machine.
    #[serde(default)]
    #[schema(required)]
    pub managers: Managers,
}

/// Error of reading a facts file.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// Not JSON, or not of this structure.
    #[error("not a facts file: {0}")]
    Shape(#[from] serde_json::Error),
    /// The top-level value is not an object.
    #[error(
        "a facts file is an object with version {FACTS_VERSION}: gather one with penstock host facts"
    )]
    NoObject,
    /// A list exceeds its limit.
    #[error("the facts file has {count} {what}: {most} at most are taken")]
    TooMany {
        /// Kind of the items.
        what: &'static str,
        /// Number of items in the file.
        count: usize,
        /// Largest number that is accepted.
        most: usize,
    },
    /// A text contains a control character, which a terminal might interpret.
    #[error("the facts file has a control character in {place}: take it out")]
    Control {
        /// Position in the file, as `nics[0].name`.
        place: String,
    },
    /// The file has another version.
    #[error(
        "version {found} of the facts file is not known: this program reads {FACTS_VERSION}; gather it again with penstock host facts"
    )]
    Version {
        /// Version that the file states.
        found: u32,
    },
}

impl Facts {
    /// Reads all facts of this machine.
    #[must_use]
    pub fn gather() -> Self {
        Self::gather_from(&Tree::default())
    }

    /// Reads all facts from `tree`; those by netlink only if the tree is that of this machine.
    #[must_use]
    pub fn gather_from(tree: &Tree) -> Self {
        Self {
            version: FACTS_VERSION,
            note: None,
            kernel: kernel::gather(tree),
            machine: machine::gather(tree),
            cpu: cpu::gather(tree),
            memory: memory::gather(tree),
            sysctls: sysctls::gather(tree),
            softnet: memory::softnet(tree),
            nics: nics::gather(tree),
            rdma: rdma::gather(tree),
            disks: disks::gather(tree),
            mounts: disks::mounts(tree),
            managers: managers::gather(tree),
        }
    }

    /// Reads the sysctls of this machine.
    #[must_use]
    pub fn sysctls() -> Sysctls {
        sysctls::gather(&Tree::default())
    }

    /// Parses and checks a facts file.
    ///
    /// # Errors
    /// When it is malformed, with line and column, or exceeds a limit.
    pub fn from_json(text: &[u8]) -> Result<Self, FactsError> {
        // serde would accept a list as the fields in their order.
        if matches!(text.trim_ascii_start().first(), Some(b'[')) {
            return Err(FactsError::NoObject);
        }
        // Checked first, because another version has other fields.
        #[derive(Deserialize)]
        struct FactsVersion {
            version: u32,
        }
        let FactsVersion { version } = serde_json::from_slice(text)?;
        if version != FACTS_VERSION {
            return Err(FactsError::Version { found: version });
        }
        let facts: Self = serde_json::from_slice(text)?;
        facts.check()?;
        Ok(facts)
    }

    fn check(&self) -> Result<(), FactsError> {
        let irqs = self.nics.iter().map(|nic| nic.irqs.len()).max().unwrap_or(0);
        for (what, count, most) in [
            ("processors", self.cpu.online.unwrap_or(0), CPUS_MAX),
            ("NUMA nodes", self.cpu.nodes.len(), CPUS_MAX),
            ("network devices", self.nics.len(), NICS_MAX),
            ("ports of RDMA devices", self.rdma.len(), RDMA_PORTS_MAX),
            ("interrupts of a device", irqs, IRQS_MAX),
            ("disks", self.disks.len(), DISKS_MAX),
            ("kinds of memory modules", self.memory.modules.len(), MODULE_KINDS_MAX),
        ] {
            if count > most {
                return Err(FactsError::TooMany { what, count, most });
            }
        }
        match control_character(&serde_json::to_value(self)?) {
            Some(place) => Err(FactsError::Control { place }),
            None => Ok(()),
        }
    }

    /// Formats a facts file in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.unwrap_or_else(|error| unreachable!("facts are plain data: {error}"))
    }
}

/// Position of the first text or key with a control character, as `nics[0].name`.
fn control_character(value: &Value) -> Option<String> {
    let odd = |text: &str| text.contains(char::is_control);
    match value {
        Value::String(text) => odd(text).then(String::new),
        Value::Array(list) => list.iter().enumerate().find_map(|(index, one)| {
            control_character(one).map(|place| format!("[{index}]{}", dotted(&place)))
        }),
        Value::Object(fields) => fields.iter().find_map(|(name, one)| {
            if odd(name) {
                return Some("a name".to_owned());
            }
            control_character(one).map(|place| format!("{name}{}", dotted(&place)))
        }),
        _ => None,
    }
}

fn dotted(place: &str) -> String {
    if place.is_empty() || place.starts_with('[') { place.to_owned() } else { format!(".{place}") }
}
