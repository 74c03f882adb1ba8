//! Status of a command, and the causes that a user can remove.

use std::fmt;

/// Status of a completion: status code type (3 bits) and status code (8 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NvmeStatus {
    code: u16,
    is_final: bool,
}

/// Cause of a failed Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectRefusal {
    /// The subsystem does not exist at this port of the target.
    UnknownSubsystem,
    /// The subsystem exists and does not allow this host.
    HostNotAllowed,
    /// The queue or its depth is beyond the limits of the target.
    QueueLimits,
    /// The controller or queue is in use.
    Busy,
    /// The host must authenticate first.
    AuthenticationRequired,
    /// Another cause, in the status.
    Other,
}

impl NvmeStatus {
    /// Status of commands that succeed.
    pub const SUCCESS: Self = Self { code: 0, is_final: false };

    /// Status field of a completion queue entry, whose lowest bit is the phase.
    #[must_use]
    pub const fn of_entry(field: u16) -> Self {
        Self { code: field >> 1 & 0x7FF, is_final: field & 0x8000 != 0 }
    }

    /// Status code type in bits 8 to 10, status code in bits 0 to 7.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.code
    }

    /// True where the command has succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code == 0
    }

    /// True where a repetition fails, too (Do Not Retry).
    #[must_use]
    pub const fn is_final(self) -> bool {
        self.is_final
    }

    /// Cause of a failed Connect; `result` names the invalid parameter (Base Specification 2.0, figure 390).
    #[must_use]
    pub const fn connect_refusal(self, result: u64) -> ConnectRefusal {
        const SUBSYSTEM_NAME_OFFSET: u64 = 256;
        const HOST_NAME_OFFSET: u64 = 512;
        const QUEUE_OFFSETS: [u64; 2] = [42, 44];
        let is_in_data = result >> 16 & 1 == 1;
        let offset = result & 0xFFFF;
        match self.code {
            0x182 if is_in_data && offset == SUBSYSTEM_NAME_OFFSET => {
                ConnectRefusal::UnknownSubsystem
            }
            0x182 if is_in_data && offset == HOST_NAME_OFFSET => ConnectRefusal::HostNotAllowed,
            0x182 if !is_in_data && (offset == QUEUE_OFFSETS[0] || offset == QUEUE_OFFSETS[1]) => {
                ConnectRefusal::QueueLimits
            }
            0x184 => ConnectRefusal::HostNotAllowed,
            0x181 => ConnectRefusal::Busy,
            0x191 => ConnectRefusal::AuthenticationRequired,
            _ => ConnectRefusal::Other,
        }
    }

    const fn words(self) -> &'static str {
        match self.code {
            0x000 => "success",
            0x001 => "invalid command opcode",
            0x002 => "invalid field in command",
            0x004 => "data transfer error",
            0x005 => "aborted by power loss",
            0x006 => "internal error",
            0x007 => "command aborted",
            0x00B => "invalid namespace or format",
            0x00C => "command sequence error",
            0x00F => "invalid length of data",
            0x018 => "host identifier inconsistent",
            0x019 => "keep alive time-out",
            0x01D => "namespace is write protected",
            0x080 => "LBA out of range",
            0x081 => "capacity exceeded",
            0x082 => "namespace not ready",
            0x083 => "reservation conflict",
            0x180 => "incompatible format of Connect",
            0x181 => "controller busy",
            0x182 => "invalid parameter of Connect",
            0x183 => "restart discovery",
            0x184 => "host not allowed",
            0x190 => "discovery information outdated",
            0x191 => "authentication required",
            0x281 => "unrecovered read error",
            0x282 => "end-to-end guard check failed",
            0x286 => "access denied",
            0x287 => "deallocated block",
            0x300 => "internal path error",
            0x301 => "path lost for good (ANA)",
            0x302 => "path inaccessible (ANA)",
            0x303 => "path in transition (ANA)",
            _ => "unknown status",
        }
    }
}

impl fmt::Display for NvmeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {:#05x})", self.words(), self.code)
    }
}
