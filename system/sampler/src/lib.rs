//! Samples the packets of this machine and sends them, with its counters, as sFlow version 5.
//!
//! For: one of N packets at ingress and egress of network devices, taken in the kernel by eBPF (`program`,
//! `record`), counters of interfaces and of the machine (`interface`, `host`), datagrams to `collectors`, and
//! the loop that ties them together ([`Sampler`]). What was lost is counted and told, in the datagrams too.
//!
//! Not for: reading sFlow (`penstock-flows`), what a label means, the command line.
//!
//! Fails with [`SamplerError`] while it starts. Afterwards it goes on: a collector that is away, or an interface that
//! is gone, is a [`Notice`].

#![forbid(unsafe_code)]

mod collectors;
mod error;
mod host;
mod interface;
mod program;
mod record;
mod sampler;

pub use error::SamplerError;
pub use interface::{RATE_MAX, default_rate};
pub use penstock_hooks::{Attach, KernelError};
pub use program::{Attached, Direction, RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN};
pub use record::{Frame, Taken};
pub use sampler::{CollectorStatus, Config, InterfaceStatus, Notice, Sampler, Status};
