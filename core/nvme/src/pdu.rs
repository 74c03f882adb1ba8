//! PDUs of NVMe/TCP (TCP Transport Specification 1.0, section 3.6).
//!
//! Each PDU begins with 8 bytes: type, flags, header length, data offset, total length. After ICResp every PDU from a
//! target has a header of [`PDU_HEADER_BYTES`], so that a host reads that many bytes and knows the rest.

use crate::status::NvmeStatus;
use crate::{u16_at, u32_at, u64_at};

/// Length of ICReq and ICResp.
pub const INITIALIZATION_BYTES: usize = 128;
/// Length of the header of all other PDUs from a target.
pub const PDU_HEADER_BYTES: usize = 24;
/// Longest error data of a termination request.
pub const TERMINATION_DATA_BYTES_MAX: u32 = 152;
/// Longest data that one PDU may carry: the length of a command's data is its limit, this is one for all commands.
pub const DATA_BYTES_MAX: u32 = 64 << 20;

const IC_REQUEST: u8 = 0;
const IC_RESPONSE: u8 = 1;
const C2H_TERMINATION: u8 = 3;
const CAPSULE_RESPONSE: u8 = 5;
const C2H_DATA: u8 = 7;
const READY_TO_TRANSFER: u8 = 9;

const FLAG_DIGESTS: u8 = 0b0011;
const FLAG_LAST: u8 = 0b0100;
const FLAG_SUCCESS: u8 = 0b1000;

/// PDU that a host does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PduError {
    /// The first bytes are not those of an ICResp.
    #[error("the other end does not speak NVMe/TCP: its first bytes are no ICResp")]
    NotNvmeTcp,
    /// Another version of the PDU format.
    #[error("the target speaks PDU format {0}, and penstock format 0")]
    Format(u16),
    /// Digests that were not asked for.
    #[error("the target sends PDUs with digests, which were not negotiated")]
    Digests,
    /// Alignment of the data of a command beyond what the specification allows.
    #[error("the target asks for data aligned to {0} dwords; the most is 32")]
    Alignment(u8),
    /// Unknown or unexpected type.
    #[error("PDU of type {0:#04x}, which a target does not send here")]
    Type(u8),
    /// Wrong lengths.
    #[error(
        "PDU of type {kind:#04x} with header {header_bytes}, data at {data_offset}, length {total_bytes}"
    )]
    Length {
        /// Type of the PDU.
        kind: u8,
        /// Stated length of the header.
        header_bytes: u8,
        /// Stated offset of the data.
        data_offset: u8,
        /// Stated length of the PDU.
        total_bytes: u32,
    },
}

/// ICReq: asks for format 0, no alignment, no digests, one outstanding R2T.
#[must_use]
pub fn initialization_request() -> [u8; INITIALIZATION_BYTES] {
    let mut pdu = [0; INITIALIZATION_BYTES];
    pdu[0] = IC_REQUEST;
    pdu[2] = INITIALIZATION_BYTES as u8;
    pdu[4] = INITIALIZATION_BYTES as u8;
    pdu
}

/// ICResp with the parameters that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitializationResponse {
    /// Alignment of data in capsules to the target, in bytes.
    pub data_alignment: usize,
}

impl InitializationResponse {
    /// Parses the answer to [`initialization_request`].
    ///
    /// # Errors
    /// If the other end is no NVMe/TCP target, or one with other parameters than were asked for.
    pub fn parse(pdu: &[u8; INITIALIZATION_BYTES]) -> Result<Self, PduError> {
        if pdu[0] == C2H_TERMINATION {
            return Err(PduError::Type(pdu[0]));
        }
        let is_response = pdu[0] == IC_RESPONSE
            && usize::from(pdu[2]) == INITIALIZATION_BYTES
            && u32_at(pdu, 4) as usize == INITIALIZATION_BYTES;
        if !is_response {
            return Err(PduError::NotNvmeTcp);
        }
        match (u16_at(pdu, 8), pdu[10], pdu[11]) {
            (0, 0..=31, 0) => Ok(Self { data_alignment: (usize::from(pdu[10]) + 1) * 4 }),
            (0, 0..=31, _) => Err(PduError::Digests),
            (0, alignment, _) => Err(PduError::Alignment(alignment)),
            (format, ..) => Err(PduError::Format(format)),
        }
    }
}

/// Completion queue entry: the end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandCompletion {
    /// Identifier of the command.
    pub command: u16,
    /// Result, by the command.
    pub result: u64,
    /// Status of the command.
    pub status: NvmeStatus,
}

/// PDU from a target after ICResp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetPdu {
    /// A command has ended.
    Response(CommandCompletion),
    /// Data of a command follows this header.
    Data {
        /// Identifier of the command.
        command: u16,
        /// Offset in the data of the command.
        offset: u32,
        /// Bytes that follow.
        bytes: u32,
        /// True for the last data of the command.
        is_last: bool,
        /// True where no response follows, as the command has succeeded.
        is_success: bool,
    },
    /// The target waits for data of a command.
    ReadyToTransfer {
        /// Identifier of the command.
        command: u16,
    },
    /// The target ends the connection because of an error of this host.
    Termination {
        /// Fatal error status.
        fault: u16,
    },
}

impl TargetPdu {
    /// Parses a header of 24 bytes.
    ///
    /// # Errors
    /// For unknown types, and lengths that do not fit the type.
    pub fn parse(header: &[u8; PDU_HEADER_BYTES]) -> Result<Self, PduError> {
        let [kind, flags, header_bytes, data_offset, ..] = *header;
        let total_bytes = u32_at(header, 4);
        let wrong = PduError::Length { kind, header_bytes, data_offset, total_bytes };
        if !matches!(kind, C2H_TERMINATION | CAPSULE_RESPONSE | C2H_DATA | READY_TO_TRANSFER) {
            return Err(PduError::Type(kind));
        }
        if kind != C2H_TERMINATION && flags & FLAG_DIGESTS != 0 {
            return Err(PduError::Digests);
        }
        let data = total_bytes.checked_sub(PDU_HEADER_BYTES as u32).ok_or(wrong)?;
        if usize::from(header_bytes) != PDU_HEADER_BYTES {
            return Err(wrong);
        }
        let command = u16_at(header, 8);
        match kind {
            CAPSULE_RESPONSE if data == 0 => Ok(Self::Response(CommandCompletion {
                command: u16_at(header, 20),
                result: u64_at(header, 8),
                status: NvmeStatus::of_entry(u16_at(header, 22)),
            })),
            READY_TO_TRANSFER if data == 0 => Ok(Self::ReadyToTransfer { command }),
            C2H_TERMINATION if data <= TERMINATION_DATA_BYTES_MAX => {
                Ok(Self::Termination { fault: command })
            }
            C2H_DATA
                if usize::from(data_offset) == PDU_HEADER_BYTES
                    && (1..=DATA_BYTES_MAX).contains(&data)
                    && u32_at(header, 16) == data
                    && (flags & FLAG_SUCCESS == 0 || flags & FLAG_LAST != 0) =>
            {
                Ok(Self::Data {
                    command,
                    offset: u32_at(header, 12),
                    bytes: data,
                    is_last: flags & FLAG_LAST != 0,
                    is_success: flags & FLAG_SUCCESS != 0,
                })
            }
            _ => Err(wrong),
        }
    }
}

/// Words for the fatal error status of a termination request.
#[must_use]
pub const fn fault_words(fault: u16) -> &'static str {
    match fault {
        1 => "invalid PDU header field",
        2 => "PDU sequence error",
        3 => "header digest error",
        4 => "data transfer out of range",
        5 => "data transfer limit exceeded",
        6 => "unsupported parameter",
        _ => "unknown error",
    }
}
