//! Labels the IPv6 packets of any program with a scitag, by eBPF where packets leave, and counts them.
//!
//! For: loading and attaching the programs of `bpf/` beside what is there ([`Marker`]), the rules that say
//! which packet gets what ([`rule`], [`table`]), tags of single sockets ([`SocketTags`]), and reading what
//! was done ([`status`]). Everything lives in maps and links that are pinned in a directory of bpffs, so it
//! goes on while no process of ours runs, and the next one takes it over without a gap.
//!
//! Not for: configuration, names of tags, HTTP; nor for the mover's own sockets, which need no privilege.
//!
//! Fails with [`MarkerError`], one line each; where the kernel refuses a program its log is kept.

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

pub use attach::Attached;
pub use error::MarkerError;
pub use exclusive::Exclusive;
pub use marker::{Marker, remove};
pub use penstock_hooks::{Attach, KernelError};
pub use rule::{Action, AddressMatch, Method, Prefix, Protocol};
pub use sockets::SocketTags;

/// Where the pinned maps and links are unless said otherwise.
pub const DEFAULT_PIN: &str = "/sys/fs/bpf/penstock";
