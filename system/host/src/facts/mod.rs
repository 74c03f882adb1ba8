//! Facts about a machine that decide how fast it moves data, each of which may be unknown.
//!
//! [`Facts::gather`] reads them from procfs, sysfs and netlink and changes nothing; the parts are cheap on their own
//! ([`Facts::sysctls`], [`nics::gather`]). The same as JSON is the facts file, which stands in for a machine that is
//! not here ([`Facts::from_json`]).
//!
//! Not for: judging ([`crate::rules`]). Not for state that changes by the second: counters are here where a rule reads
//! them, rates are not.
//!
//! Gathering does not fail: what cannot be read is left out. A facts file that is not one says where it is wrong.

pub mod cpu;
pub mod disks;
pub mod kernel;
pub mod machine;
pub mod managers;
pub mod memory;
pub mod nics;
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
pub use self::sysctls::Sysctls;
pub use self::tree::Tree;
pub(crate) use self::tree::chosen;

/// The version of the facts file that this program writes and reads.
pub const FACTS_VERSION: u32 = 1;

/// Largest facts file in bytes.
pub const FACTS_BYTES_MAX: usize = 16 << 20;

/// Most processors, devices and disks of a machine, and interrupts of a device, in a facts file: several times what
/// the largest machines have.
const CPUS_MAX: usize = 65_536;
const NICS_MAX: usize = 4096;
const IRQS_MAX: usize = 4096;
const DISKS_MAX: usize = 65_536;

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

/// A facts file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// It is not JSON of this shape.
    #[error("not a facts file: {0}")]
    Shape(#[from] serde_json::Error),
    /// It is something else than an object.
    #[error(
        "a facts file is an object with version {FACTS_VERSION}: gather one with penstock host facts"
    )]
    NoObject,
    /// No machine has so many.
    #[error("the facts file has {count} {what}: {most} at most are taken")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A terminal would obey it.
    #[error("the facts file has a control character in {place}: take it out")]
    Control {
        /// Where, as `nics[0].name`.
        place: String,
    },
    /// It is another version's.
    #[error(
        "version {found} of the facts file is not known: this program reads {FACTS_VERSION}; gather it again with penstock host facts"
    )]
    Version {
        /// Version that the file states.
        found: u32,
    },
}

impl Facts {
    /// Everything, of this machine.
    #[must_use]
    pub fn gather() -> Self {
        Self::gather_from(&Tree::default())
    }

    /// Everything, of `tree`; what comes by netlink only where the tree is this machine.
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
            disks: disks::gather(tree),
            mounts: disks::mounts(tree),
            managers: managers::gather(tree),
        }
    }

    /// The settings of this machine's kernel alone.
    #[must_use]
    pub fn sysctls() -> Sysctls {
        sysctls::gather(&Tree::default())
    }

    /// From a facts file.
    ///
    /// # Errors
    /// When it is not one, with line and column, or says what no machine is.
    pub fn from_json(text: &[u8]) -> Result<Self, FactsError> {
        // A list would be taken for the fields in their order.
        if matches!(text.trim_ascii_start().first(), Some(b'[')) {
            return Err(FactsError::NoObject);
        }
        // Asked first: another version's fields would only be strange.
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
            ("interrupts of a device", irqs, IRQS_MAX),
            ("disks", self.disks.len(), DISKS_MAX),
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

    /// As a facts file.
    #[must_use]
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.unwrap_or_else(|error| unreachable!("facts are plain data: {error}"))
    }
}

/// Where a text or a name has a control character, as `nics[0].name`.
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
