//! sFlow version 5 agent: samples packets of this machine by eBPF and exports them with its counters.
//!
//! For: sampling 1 of N packets at ingress and egress of network devices (`program`, `record`), counters of interfaces
//! and of the machine (`interface`, `host`), datagrams to `collectors`, and the main loop ([`Sampler`]). Lost samples are
//! counted and reported, also in the datagrams.
//!
//! Not for: decoding sFlow (`penstock-flows`), flow labels, the command line.
//!
//! Fails with [`SamplerError`] during start only. Later failures, such as an unreachable collector or a removed
//! interface, are reported as a [`Notice`].

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
pub use program::{AttachedSampler, PacketDirection, RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN};
pub use record::{Frame, SampledSegments};
pub use sampler::{CollectorStatus, Config, Notice, SampledInterface, Sampler, SamplerStatus};
