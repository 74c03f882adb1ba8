//! Data structures of Identify and of the discovery log page.

use crate::{u16_at, u32_at, u64_at};

/// Length of the header and of each entry of the discovery log page.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;
/// Most entries of a discovery log page that are read.
pub const DISCOVERY_ENTRIES_MAX: usize = 1024;

/// Controller as Identify describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerData {
    /// Serial number of the subsystem, 20 bytes at most.
    pub serial: String,
    /// Model of the subsystem, 40 bytes at most.
    pub model: String,
    /// Longest data of a command in units of 4 KiB; `None` without a limit.
    pub transfer_pages_max: Option<u64>,
    /// Longest data of a write within its capsule, in bytes.
    pub in_capsule_bytes: u64,
}

impl ControllerData {
    /// Parses 4096 bytes; missing bytes count as zero.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let shift = bytes.get(77).copied().unwrap_or(0);
        let capsule_bytes = u64::from(u32_at(bytes, 1792)) * 16;
        Self {
            serial: text_at(bytes, 4, 20),
            model: text_at(bytes, 24, 40),
            transfer_pages_max: (1..=32).contains(&shift).then(|| 1 << shift),
            in_capsule_bytes: capsule_bytes.saturating_sub(64),
        }
    }
}

/// Format of a namespace that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// The namespace does not exist or is not attached.
    #[error("namespace {0} does not exist at the target")]
    Missing(u32),
    /// Blocks of another size than a power of two from 512 B to 64 KiB.
    #[error("namespace {number} has blocks of 2^{shift} B; penstock reads 2^9 to 2^16")]
    BlockSize {
        /// Number of the namespace.
        number: u32,
        /// Logarithm of the size.
        shift: u8,
    },
    /// Metadata within the blocks.
    #[error(
        "namespace {number} has {bytes} B of metadata in each block, which penstock does not read"
    )]
    Metadata {
        /// Number of the namespace.
        number: u32,
        /// Bytes of metadata.
        bytes: u16,
    },
    /// More bytes than 2^63.
    #[error("namespace {0} states a size beyond 8 EiB")]
    Size(u32),
}

/// Namespace as Identify describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceData {
    /// Number of the namespace.
    pub number: u32,
    /// Number of blocks of `block_bytes` each.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl NamespaceData {
    /// Parses 4096 bytes of namespace `number`.
    ///
    /// # Errors
    /// If it does not exist, or has a format that is not read.
    pub fn parse(number: u32, bytes: &[u8]) -> Result<Self, NamespaceError> {
        let blocks = u64_at(bytes, 0);
        if blocks == 0 {
            return Err(NamespaceError::Missing(number));
        }
        let flags = bytes.get(26).copied().unwrap_or(0);
        // Bits 0 to 3, and 5 to 6 above them (NVM Command Set Specification 1.0, figure 97).
        let format = usize::from(flags & 0xF) | usize::from(flags >> 5 & 0x3) << 4;
        let at = 128 + 4 * format;
        let shift = bytes.get(at + 2).copied().unwrap_or(0);
        if !(9..=16).contains(&shift) {
            return Err(NamespaceError::BlockSize { number, shift });
        }
        let metadata = u16_at(bytes, at);
        if metadata != 0 && flags & 0x10 != 0 {
            return Err(NamespaceError::Metadata { number, bytes: metadata });
        }
        if blocks > (1 << 63) >> shift {
            return Err(NamespaceError::Size(number));
        }
        Ok(Self { number, blocks, block_bytes: 1 << shift })
    }

    /// Bytes of the namespace.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.block_bytes as u64
    }
}

/// Numbers in a list of active namespaces: ascending, the first 0 ends it.
#[must_use]
pub fn active_namespaces(bytes: &[u8]) -> Vec<u32> {
    let numbers = bytes.chunks_exact(4).map(|part| u32_at(part, 0));
    numbers.take_while(|number| *number != 0).collect()
}

/// Subsystem in a discovery log page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// Qualified name of the subsystem (NQN).
    pub nqn: String,
    /// Transport: 1 RDMA, 2 FC, 3 TCP, 254 loop.
    pub transport: u8,
    /// Address at this transport.
    pub address: String,
    /// Port at this transport.
    pub service: String,
    /// True for another discovery service.
    pub is_discovery: bool,
}

/// Number of entries that the header of a discovery log page states, at most [`DISCOVERY_ENTRIES_MAX`].
#[must_use]
pub fn discovery_entry_count(header: &[u8]) -> usize {
    usize::try_from(u64_at(header, 8)).unwrap_or(usize::MAX).min(DISCOVERY_ENTRIES_MAX)
}

/// Parses entries after the header; a part of an entry at the end is left out.
#[must_use]
pub fn discovery_entries(bytes: &[u8]) -> Vec<DiscoveredSubsystem> {
    let entries = bytes.chunks_exact(DISCOVERY_ENTRY_BYTES).take(DISCOVERY_ENTRIES_MAX);
    entries
        .map(|entry| DiscoveredSubsystem {
            nqn: text_at(entry, 256, 256),
            transport: entry[0],
            address: text_at(entry, 512, 256),
            service: text_at(entry, 32, 32),
            is_discovery: entry[2] != 2,
        })
        .collect()
}

/// Printable text of a field that ends with blanks or a zero; other characters become `?`.
fn text_at(bytes: &[u8], at: usize, length: usize) -> String {
    let field = bytes.get(at..at + length).unwrap_or_default();
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let printable = |byte: &u8| if (0x20..0x7F).contains(byte) { char::from(*byte) } else { '?' };
    field[..end].iter().map(printable).collect::<String>().trim().to_owned()
}
