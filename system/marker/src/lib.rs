//! Labels outgoing IPv6 packets of any program with a scitag, by eBPF at tc egress, and counts them.
//!
//! For: loading and attaching the programs of `bpf/` ([`Marker`]), labelling rules ([`rule`], [`table`]), tags of single
//! sockets ([`SocketTags`]), and counters ([`status`]). All state is in maps and links pinned in a directory of bpffs, so
//! labelling continues without a running process, and the next process takes over without a gap.
//!
//! Not for: configuration, names of tags, HTTP, or the mover's own sockets, which it labels without privilege.
//!
//! Fails with [`MarkerError`], formatted as one line; the error of a rejected program has the verifier's log.

#![forbid(unsafe_code)]

mod attach;
mod error;
mod exclusive;
mod maps;
mod marker;
pub mod processes;
pub mod rule;
mod sockets;
pub mod status;
pub mod table;

pub use attach::AttachedMarker;
pub use error::{MarkerError, RuleRefusal};
pub use exclusive::Exclusive;
pub use marker::{Marker, remove};
pub use penstock_hooks::{Attach, KernelError};
pub use rule::{AddressMatch, LabelAction, Method, Prefix, Protocol};
pub use sockets::SocketTags;

/// Default directory of the pinned maps and links.
pub const DEFAULT_PIN: &str = "/sys/fs/bpf/penstock";
