//! Submission queue entries of 64 bytes, and the capsules that carry them.

use crate::pdu::DATA_BYTES_MAX;

/// Length of a submission queue entry.
pub const ENTRY_BYTES: usize = 64;
/// Header of a command capsule with its entry.
pub const CAPSULE_BYTES: usize = 8 + ENTRY_BYTES;
/// Length of the data of Connect.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// Length of the data of Identify.
pub const IDENTIFY_BYTES: usize = 4096;
/// Most blocks of one Read.
pub const READ_BLOCKS_MAX: u32 = 1 << 16;
/// Longest data within a capsule for queue 0 (TCP Transport Specification 1.0, section 3.3.2.2).
pub const IN_CAPSULE_BYTES_MAX: usize = 8192;

const COMMAND_CAPSULE: u8 = 4;
const OPCODE_READ: u8 = 0x02;
const OPCODE_LOG_PAGE: u8 = 0x02;
const OPCODE_IDENTIFY: u8 = 0x06;
const OPCODE_SET_FEATURES: u8 = 0x09;
const OPCODE_KEEP_ALIVE: u8 = 0x18;
const OPCODE_FABRICS: u8 = 0x7F;
/// The data pointer is an SGL.
const FLAGS_SGL: u8 = 0x40;
/// Transport SGL data block: the data returns in C2HData PDUs.
const SGL_TRANSPORT: u8 = 0x5A;
/// SGL data block at an offset within the capsule.
const SGL_IN_CAPSULE: u8 = 0x01;
/// Connect without flow control of the submission queue: the target may leave out the response to a Read.
const ATTRIBUTE_NO_FLOW_CONTROL: u8 = 1 << 2;
const SECURITY_PROTOCOL_NVME: u8 = 0xE9;

/// Property of a controller: offset, and length of 8 bytes instead of 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerProperty {
    /// Controller capabilities.
    Capabilities,
    /// Controller configuration.
    Configuration,
    /// Controller status.
    Status,
}

impl ControllerProperty {
    const fn offset_and_attribute(self) -> (u32, u8) {
        match self {
            Self::Capabilities => (0x00, 1),
            Self::Configuration => (0x14, 0),
            Self::Status => (0x1C, 0),
        }
    }
}

/// Data structure that Identify returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentifyKind {
    /// Format and size of a namespace.
    Namespace(u32),
    /// Controller.
    Controller,
    /// Numbers of the active namespaces above one.
    ActiveNamespaces {
        /// The list begins with the next number.
        after: u32,
    },
}

/// Submission queue entry without its command identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvmeCommand {
    entry: [u8; ENTRY_BYTES],
    /// Data that the target returns, in bytes.
    pub reply_bytes: u32,
}

impl NvmeCommand {
    fn new(opcode: u8) -> Self {
        let mut entry = [0; ENTRY_BYTES];
        entry[0] = opcode;
        entry[1] = FLAGS_SGL;
        Self { entry, reply_bytes: 0 }
    }

    fn fabrics(kind: u8) -> Self {
        let mut command = Self::new(OPCODE_FABRICS);
        command.entry[4] = kind;
        command
    }

    fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.entry[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Sets the data pointer to data from the target.
    fn replying(mut self, bytes: u32) -> Self {
        self.reply_bytes = bytes.min(DATA_BYTES_MAX);
        self.put(32, &bytes.to_le_bytes()).put(39, &[SGL_TRANSPORT])
    }

    /// Sets the data pointer to data within the capsule.
    fn sending(self, bytes: usize) -> Self {
        self.put(32, &(bytes as u32).to_le_bytes()).put(39, &[SGL_IN_CAPSULE])
    }

    /// Connects a queue with entries of `depth` commands and more; goes with [`connect_data`].
    #[must_use]
    pub fn connect(queue: u16, depth: u16, keep_alive_ms: u32) -> Self {
        Self::fabrics(0x01)
            .put(42, &queue.to_le_bytes())
            .put(44, &depth.to_le_bytes())
            .put(46, &[ATTRIBUTE_NO_FLOW_CONTROL])
            .put(48, &keep_alive_ms.to_le_bytes())
            .sending(CONNECT_DATA_BYTES)
    }

    /// Reads a property of the controller.
    #[must_use]
    pub fn property_get(property: ControllerProperty) -> Self {
        let (offset, attribute) = property.offset_and_attribute();
        Self::fabrics(0x04).put(40, &[attribute]).put(44, &offset.to_le_bytes())
    }

    /// Writes a property of the controller.
    #[must_use]
    pub fn property_set(property: ControllerProperty, value: u64) -> Self {
        let (offset, attribute) = property.offset_and_attribute();
        let command = Self::fabrics(0x00).put(40, &[attribute]);
        command.put(44, &offset.to_le_bytes()).put(48, &value.to_le_bytes())
    }

    /// Sends a message of authentication within the capsule.
    #[must_use]
    pub fn authentication_send(bytes: usize) -> Self {
        Self::fabrics(0x05)
            .put(41, &[1, 1, SECURITY_PROTOCOL_NVME])
            .put(44, &(bytes as u32).to_le_bytes())
            .sending(bytes)
    }

    /// Asks for a message of authentication of at most `bytes`.
    #[must_use]
    pub fn authentication_receive(bytes: u32) -> Self {
        Self::fabrics(0x06)
            .put(41, &[1, 1, SECURITY_PROTOCOL_NVME])
            .put(44, &bytes.to_le_bytes())
            .replying(bytes)
    }

    /// Asks for a data structure of [`IDENTIFY_BYTES`].
    #[must_use]
    pub fn identify(kind: IdentifyKind) -> Self {
        let (namespace, structure) = match kind {
            IdentifyKind::Namespace(number) => (number, 0),
            IdentifyKind::Controller => (0, 1),
            IdentifyKind::ActiveNamespaces { after } => (after, 2),
        };
        Self::new(OPCODE_IDENTIFY)
            .put(4, &namespace.to_le_bytes())
            .put(40, &[structure])
            .replying(IDENTIFY_BYTES as u32)
    }

    /// Asks for `queues` queues for reads; the result has the granted number.
    #[must_use]
    pub fn set_queue_count(queues: u16) -> Self {
        let wanted = u32::from(queues.max(1) - 1);
        Self::new(OPCODE_SET_FEATURES)
            .put(40, &[0x07])
            .put(44, &(wanted | wanted << 16).to_le_bytes())
    }

    /// Asks for a part of the discovery log page; `bytes` is a multiple of 4.
    #[must_use]
    pub fn discovery_log(offset: u64, bytes: u32) -> Self {
        let dwords = (bytes / 4).max(1) - 1;
        Self::new(OPCODE_LOG_PAGE)
            .put(40, &[0x70])
            .put(42, &dwords.to_le_bytes())
            .put(48, &offset.to_le_bytes())
            .replying(bytes)
    }

    /// Sign of life on queue 0.
    #[must_use]
    pub fn keep_alive() -> Self {
        Self::new(OPCODE_KEEP_ALIVE)
    }

    /// Reads `blocks` (1 to [`READ_BLOCKS_MAX`]) of a namespace.
    #[must_use]
    pub fn read(namespace: u32, first_block: u64, blocks: u32, bytes: u32) -> Self {
        let count = (blocks.clamp(1, READ_BLOCKS_MAX) - 1) as u16;
        Self::new(OPCODE_READ)
            .put(4, &namespace.to_le_bytes())
            .put(40, &first_block.to_le_bytes())
            .put(48, &count.to_le_bytes())
            .replying(bytes)
    }

    /// Appends the capsule with this command and its data to `out`; `alignment` is that of the target's ICResp.
    pub fn write_capsule(&self, command: u16, data: &[u8], alignment: usize, out: &mut Vec<u8>) {
        let offset = match data.len() {
            0 => 0,
            _ => CAPSULE_BYTES.next_multiple_of(alignment.max(1)),
        };
        let total = if data.is_empty() { CAPSULE_BYTES } else { offset + data.len() };
        let begin = out.len();
        out.extend_from_slice(&[COMMAND_CAPSULE, 0, CAPSULE_BYTES as u8, offset as u8]);
        out.extend_from_slice(&(total as u32).to_le_bytes());
        out.extend_from_slice(&self.entry);
        out[begin + 10..begin + 12].copy_from_slice(&command.to_le_bytes());
        if !data.is_empty() {
            out.resize(begin + offset, 0);
            out.extend_from_slice(data);
        }
    }
}

/// Data of Connect. `controller` is `None` for queue 0, whose response has the number.
#[must_use]
pub fn connect_data(
    host_id: &[u8; 16],
    controller: Option<u16>,
    subsystem: &str,
    host: &str,
) -> Vec<u8> {
    const NAME_BYTES_MAX: usize = 223;
    let mut data = vec![0; CONNECT_DATA_BYTES];
    data[..16].copy_from_slice(host_id);
    data[16..18].copy_from_slice(&controller.unwrap_or(0xFFFF).to_le_bytes());
    for (at, name) in [(256, subsystem), (512, host)] {
        let name = &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)];
        data[at..at + name.len()].copy_from_slice(name);
    }
    data
}

/// Controller configuration that enables it: the NVM command set, entries of 64 and 16 bytes.
pub const CONFIGURATION_ENABLED: u64 = 1 | 6 << 16 | 4 << 20;

/// Controller capabilities (property CAP).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllerCapabilities {
    /// Most commands that a queue holds.
    pub queue_entries_max: u32,
    /// Longest wait for the controller to become ready, in milliseconds.
    pub ready_timeout_ms: u32,
}

impl ControllerCapabilities {
    /// Parses the value of the property.
    #[must_use]
    pub const fn of(value: u64) -> Self {
        Self {
            queue_entries_max: (value & 0xFFFF) as u32 + 1,
            ready_timeout_ms: (value >> 24 & 0xFF) as u32 * 500,
        }
    }
}
