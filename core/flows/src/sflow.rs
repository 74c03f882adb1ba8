//! sFlow version 5: zero-copy parsing of datagrams, and encoding.
//!
//! A datagram is a header and samples; a sample is a header and records; samples and records each
//! have format, length and body. Unknown formats are skipped by their length, and an error affects
//! only its own record or sample.
//!
//! ```
//! use penstock_flows::sflow::{Sample, SflowDatagram};
//! # let bytes = [0, 0, 0, 5, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0];
//! let datagram = SflowDatagram::read(&bytes)?;
//! for sample in datagram.samples().flatten() {
//!     if let Sample::Flow(flow) = sample {
//!         println!("1 of {} packets", flow.sampling_rate);
//!     }
//! }
//! # Ok::<(), penstock_flows::sflow::DatagramError>(())
//! ```
//!
//! Sources: the sFlow version 5 memorandum (sflow.org, July 2004) with its errata, and the host, optical,
//! tunnel and discard structures that were published after it.

pub mod counters;
pub mod datagram;
pub mod encode;
pub mod record;
pub mod sample;
pub mod xdr;

pub use counters::CounterRecord;
pub use datagram::{DatagramError, SflowDatagram};
pub use encode::{Encoder, TooLong};
pub use record::FlowRecord;
pub use sample::{
    CountersSample, DiscardedPacket, FlowSample, Sample, SampleError, SflowInterface, Source,
};

/// UDP port of sFlow collectors.
pub const SFLOW_PORT: u16 = 6343;

/// Protocol version that is parsed and written.
pub const SFLOW_VERSION: u32 = 5;

/// Format of a structure: enterprise 0 is the specification itself. A number has different meanings
/// for samples, flow records and counter records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataFormat(u32);

impl DataFormat {
    /// Combines 20 bits of enterprise and 12 of format; higher bits are dropped.
    #[must_use]
    pub const fn new(enterprise: u32, format: u32) -> Self {
        Self(enterprise << 12 | format & 0xFFF)
    }

    /// Format from its value on the wire.
    #[must_use]
    pub const fn from_value(value: u32) -> Self {
        Self(value)
    }

    /// Value of the format on the wire.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Enterprise that defined the format: the upper 20 bits.
    #[must_use]
    pub const fn enterprise(self) -> u32 {
        self.0 >> 12
    }

    /// Number within the enterprise: the lower 12 bits.
    #[must_use]
    pub const fn format(self) -> u32 {
        self.0 & 0xFFF
    }
}

/// Prints enterprise and format: `0:1`.
impl std::fmt::Display for DataFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.enterprise(), self.format())
    }
}
