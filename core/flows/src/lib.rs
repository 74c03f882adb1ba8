//! Flow telemetry: what switches, routers and hosts tell of traffic, decoded, labelled and summed up.
//!
//! ```text
//! sFlow v5 ──── sflow ────┐                          scitag ── whose, and why it is believed
//!                         ├─ observe ── packet ──────┤
//! IPFIX, NetFlow ─ export ┘                          aggregate ── by site, host, interface, VLAN, owner, ...
//!    exporter ── loss, new starts, sampling rates    talkers ── the greatest flows
//!    interface ─ counters against samples            rates ── estimates with their 95 % error
//!                                                    estimate ── counters and samples as one, for any time
//! ```
//!
//! [`intake::Intake`] is all of it in one: datagrams and the time in, values out. The rooms can be used alone, too:
//! [`sflow`] reads and writes, [`packet`] walks any packet.
//!
//! Nothing here opens a socket or a file, starts a thread or reads a clock. Everything comes from strangers
//! over UDP, so every reader is bounded, gives errors and never panics, and everything that is kept has a
//! limit that is a constant with a name.

#![forbid(unsafe_code)]

pub mod aggregate;
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
pub mod systems;
pub mod talkers;
