//! NVMe over Fabrics on TCP, the host's side of reading a namespace.
//!
//! ```text
//! host     ICReq ─ Connect ─ authentication ─ Property Set CC.EN ─ Identify ─ Set Features ─ Read … Read, Keep Alive
//! target   ICResp ─ CapsuleResp ─ … ─ C2HData … C2HData [CapsuleResp]
//! ```
//!
//! A queue is a TCP connection. Queue 0 is for administration, each other one carries reads. A command is a capsule of 72
//! bytes; its data returns in C2HData PDUs that name the command, so that many commands are outstanding at once.
//!
//! | module | purpose |
//! |---|---|
//! | [`pdu`] | PDUs on the wire, checked against limits |
//! | [`command`] | submission queue entries and the capsules that carry them |
//! | [`queue`] | state machine of the outstanding commands of a queue |
//! | [`identify`] | controllers, namespaces and discovery log pages |
//! | [`status`] | status codes and their causes |
//! | [`auth`] | DH-HMAC-CHAP: secrets, and the state machine of the host |
//! | [`nqn`] | qualified names of hosts and subsystems |
//! | [`depth`] | rate by queues, depth, size and round-trip time |
//!
//! Numbers are those of the NVM Express Base Specification 2.0, the TCP Transport Specification 1.0 and the NVM Command
//! Set Specification 1.0; little-endian.
//!
//! Not for: writing, digests of PDUs, TLS, other transports.

#![forbid(unsafe_code)]

pub mod auth;
pub mod command;
pub mod depth;
pub mod identify;
pub mod nqn;
pub mod pdu;
pub mod queue;
pub mod status;

/// Little-endian number of 2 bytes at `at`; 0 beyond the end.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |part| u16::from_le_bytes([part[0], part[1]]))
}

/// Little-endian number of 4 bytes at `at`; 0 beyond the end.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// Little-endian number of 8 bytes at `at`; 0 beyond the end.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
