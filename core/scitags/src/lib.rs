//! Scitags: the owner and activity of a flow, in every form that networks and storages use.
//!
//! A [`Scitag`] is an owner (the registry says "experiment") and an activity. It travels as:
//!
//! | form | module | where |
//! |---|---|---|
//! | a decimal number, `owner << 6 \| activity` | [`tag`] | between storages and clients |
//! | that number in a URL or an HTTP header | [`carry`] | `scitag.flow=206`, `SciTag: 206` |
//! | an IPv6 flow label | [`label`] | every packet |
//! | an IPv6 extension-header option | [`option`] | every packet |
//! | a firefly, one datagram at start, while it runs and at the end | [`firefly`] | beside the flow, IPv4 too |
//! | names, by the public registry | [`registry`] | people |
//!
//! Three different numbers name one pair: 206, 0x30038 and `00 03 0E` are all cms/analysis-input. Each
//! has a separate type here.
//!
//! Nothing here opens a socket or a file or reads a clock: callers pass times as [`time::UtcTime`]. Every
//! parser takes untrusted input: it is bounded, returns errors and never panics.

#![forbid(unsafe_code)]

pub mod carry;
pub mod firefly;
pub mod label;
pub mod option;
pub mod registry;
pub mod tag;
pub mod time;

pub use label::FlowLabel;
pub use registry::Registry;
pub use tag::Scitag;
