//! sFlow version 5: reading datagrams where they lie, and writing them.
//!
//! A datagram is an agent's header and samples; a sample is a head and records; samples and records are
//! each format, length and body. What is not known is skipped by its length, and what is broken costs
//! itself alone: a record its record, a sample its sample.
//!
//! ```
//! use penstock_flows::sflow::{Datagram, Sample};
//! # let bytes = [0, 0, 0, 5, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0];
//! let datagram = Datagram::read(&bytes)?;
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
pub use datagram::{Datagram, DatagramError};
pub use encode::{Encoder, TooLong};
pub use record::FlowRecord;
pub use sample::{
    CountersSample, DiscardedPacket, FlowSample, Interface, Sample, SampleError, Source,
};

/// UDP port of collectors.
pub const PORT: u16 = 6343;

/// The version that is read and written.
pub const VERSION: u32 = 5;

/// What a structure is: enterprise 0 is the specification itself. The same number means different things
/// for samples, flow records and counter records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataFormat(u32);

impl DataFormat {
    /// Of 20 and 12 bits; higher bits are dropped.
    #[must_use]
    pub const fn new(enterprise: u32, format: u32) -> Self {
        Self(enterprise << 12 | format & 0xFFF)
    }

    /// As it stands on the wire.
    #[must_use]
    pub const fn from_value(value: u32) -> Self {
        Self(value)
    }

    /// As it stands on the wire.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Who defined it: the upper 20 bits.
    #[must_use]
    pub const fn enterprise(self) -> u32 {
        self.0 >> 12
    }

    /// Its number there: the lower 12 bits.
    #[must_use]
    pub const fn format(self) -> u32 {
        self.0 & 0xFFF
    }
}

/// `0:1`.
impl std::fmt::Display for DataFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.enterprise(), self.format())
    }
}
