//! Flow telemetry: sFlow, IPFIX and NetFlow, decoded, labelled and aggregated.
//!
//! ```text
//! sFlow v5 ──── sflow ────┐                          scitag ── owner of a packet, and the reason to trust it
//!                         ├─ observe ── packet ──────┤
//! IPFIX, NetFlow ─ export ┘                          aggregate ── by site, host, interface, VLAN, owner, ...
//!    exporter ── loss, restarts, sampling rates      talkers ── the largest flows
//!    interface ─ counters against samples            rates ── estimates with their 95 % error
//!                                                    estimate ── counters and samples as one, for any time
//! ```
//!
//! [`intake::Intake`] combines all of it: datagrams and the time in, values out. The modules can be
//! used alone, too: [`sflow`] reads and writes, [`packet`] parses any packet.
//!
//! Nothing here opens a socket or a file, starts a thread or reads a clock. All input is untrusted
//! UDP, so every parser is bounded, returns errors and never panics, and all state has a limit, a
//! named constant.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod asn;
mod bounded;
pub mod estimate;
pub mod export;
pub mod exporter;
pub mod intake;
pub mod interface;
pub mod observe;
pub mod packet;
pub mod prefixes;
pub mod rates;
pub mod scitag;
pub mod sequence;
pub mod sflow;
pub mod shard;
pub mod talkers;
