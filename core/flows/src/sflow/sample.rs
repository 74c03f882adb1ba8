//! Samples: a sampled packet, a dropped packet, a reading of counters.
//!
//! Compact and expanded forms parse to the same types. Interface numbers become [`SflowInterface`],
//! because some are special: taking 0x3FFFFFFF for an ifIndex has misled other collectors
//! (akvorado/akvorado#153).

use std::fmt;

use super::DataFormat;
use super::counters::CounterRecord;
use super::record::FlowRecord;
use super::xdr::{Cut, Xdr, XdrReader};

/// Error of one sample; the others of its datagram are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The length exceeds the datagram, so later samples cannot be found either.
    #[error("sample {index} reaches beyond the end of the datagram")]
    Length {
        /// Position in the datagram, from 0.
        index: u32,
    },
    /// The sample is shorter than its header.
    #[error("sample {index} of format {format} is shorter than its head")]
    Body {
        /// Position in the datagram, from 0.
        index: u32,
        /// Format of the sample.
        format: DataFormat,
    },
}

/// Error of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The length exceeds the sample, so later records cannot be found either.
    #[error("a record reaches beyond the end of its sample")]
    Length,
    /// The record is truncated.
    #[error("a record of format {0} ends before its last field")]
    Body(DataFormat),
}

/// Data source of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// 0 interface, 1 VLAN, 2 physical entity, 3 logical entity.
    pub class: u32,
    /// Number in that class; of an interface its ifIndex.
    pub index: u32,
}

impl Source {
    /// The interface with this ifIndex as a source.
    #[must_use]
    pub const fn interface(index: u32) -> Self {
        Self { class: 0, index }
    }

    /// Decodes 8 bits of class and 24 of index.
    #[must_use]
    pub const fn from_compact(value: u32) -> Self {
        Self { class: value >> 24, index: value & 0x00FF_FFFF }
    }
}

/// Interface that received or sent a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SflowInterface {
    /// The interface is unknown.
    Unknown,
    /// The interface with this ifIndex.
    Index(u32),
    /// The agent itself sent or received the packet.
    Internal,
    /// The packet was dropped for this reason.
    Discarded(u32),
    /// The packet left on this many interfaces; 0 if their number is unknown.
    Multiple(u32),
    /// An undefined format.
    Other {
        /// Number of the format, 3 or more.
        format: u32,
        /// Value in that format.
        value: u32,
    },
}

/// Value of 30 bits for the agent itself, which is no ifIndex.
const INTERFACE_INTERNAL: u32 = 0x3FFF_FFFF;

impl SflowInterface {
    /// Decodes the two words of the expanded form.
    #[must_use]
    pub const fn from_expanded(format: u32, value: u32) -> Self {
        match (format, value) {
            (0, 0) => Self::Unknown,
            // Some agents write this value with 32 bits in the expanded form.
            (0, INTERFACE_INTERNAL | u32::MAX) => Self::Internal,
            (0, index) => Self::Index(index),
            (1, reason) => Self::Discarded(reason),
            (2, count) => Self::Multiple(count),
            (format, value) => Self::Other { format, value },
        }
    }

    /// Decodes the one word of the compact form: 2 bits of format, 30 of value.
    #[must_use]
    pub const fn from_compact(value: u32) -> Self {
        Self::from_expanded(value >> 30, value & INTERFACE_INTERNAL)
    }

    /// Encodes the two words of the expanded form.
    #[must_use]
    pub const fn expanded(self) -> (u32, u32) {
        match self {
            Self::Unknown => (0, 0),
            Self::Index(index) => (0, index),
            Self::Internal => (0, INTERFACE_INTERNAL),
            Self::Discarded(reason) => (1, reason),
            Self::Multiple(count) => (2, count),
            Self::Other { format, value } => (format, value),
        }
    }

    /// Encodes the one word of the compact form; `None` if it does not fit.
    #[must_use]
    pub const fn compact(self) -> Option<u32> {
        let (format, value) = self.expanded();
        if format > 3 || value > INTERFACE_INTERNAL { None } else { Some(format << 30 | value) }
    }

    /// The ifIndex; `None` for other values.
    #[must_use]
    pub const fn index(self) -> Option<u32> {
        match self {
            Self::Index(index) => Some(index),
            _ => None,
        }
    }
}

/// A parsed sample of a datagram.
#[derive(Debug, Clone, Copy)]
pub enum Sample<'a> {
    /// A sampled packet.
    Flow(FlowSample<'a>),
    /// Counters of a source.
    Counters(CountersSample<'a>),
    /// A dropped packet.
    Discarded(DiscardedPacket<'a>),
    /// Unknown format (for example sFlow-RT's): format and body.
    Unknown(DataFormat, &'a [u8]),
}

/// A sampled packet with its sampling parameters.
#[derive(Debug, Clone, Copy)]
pub struct FlowSample<'a> {
    /// Sequence number of the source's samples.
    pub sequence: u32,
    /// Data source of the sample.
    pub source: Source,
    /// Sampling rate at this time, 1 of this many packets; it may change while the agent runs.
    pub sampling_rate: u32,
    /// Agent's count of packets that could have been sampled.
    pub sample_pool: u32,
    /// Samples that the agent dropped since it started.
    pub drops: u32,
    /// Interface that received the packet.
    pub input: SflowInterface,
    /// Interface that sent the packet.
    pub output: SflowInterface,
    /// Records about the packet.
    pub records: SampleRecords<'a>,
}

/// Counters of one source.
#[derive(Debug, Clone, Copy)]
pub struct CountersSample<'a> {
    /// Sequence number of the source's counter samples.
    pub sequence: u32,
    /// Data source of the counters.
    pub source: Source,
    /// Counter records of the source.
    pub records: SampleRecords<'a>,
}

/// Notification of a dropped packet.
#[derive(Debug, Clone, Copy)]
pub struct DiscardedPacket<'a> {
    /// Sequence number of the source's notifications.
    pub sequence: u32,
    /// Data source of the notification.
    pub source: Source,
    /// Notifications that the agent dropped since it started.
    pub drops: u32,
    /// Interface that received the packet.
    pub input: SflowInterface,
    /// Interface that would have sent it.
    pub output: SflowInterface,
    /// Reason of the drop, by the specification's table.
    pub reason: u32,
    /// Records about the packet.
    pub records: SampleRecords<'a>,
}

impl<'a> Sample<'a> {
    /// Parses the body of a sample.
    ///
    /// # Errors
    /// When it is shorter than its header.
    #[inline]
    pub fn read(format: DataFormat, body: &'a [u8]) -> Result<Self, Cut> {
        let mut from = XdrReader::new(body);
        match (format.enterprise(), format.format()) {
            (0, 1) => {
                let [sequence, source, rate, pool, drops, input, output, count] = from.get()?;
                Ok(Self::Flow(FlowSample {
                    sequence,
                    source: Source::from_compact(source),
                    sampling_rate: rate,
                    sample_pool: pool,
                    drops,
                    input: SflowInterface::from_compact(input),
                    output: SflowInterface::from_compact(output),
                    records: SampleRecords { left: count, rest: from },
                }))
            }
            (0, 2) => {
                let [sequence, source, count] = from.get()?;
                let records = SampleRecords { left: count, rest: from };
                let source = Source::from_compact(source);
                Ok(Self::Counters(CountersSample { sequence, source, records }))
            }
            (0, 3) => {
                let [sequence, class, index, rate, pool, drops] = from.get()?;
                let [in_format, in_value, out_format, out_value, count] = from.get()?;
                Ok(Self::Flow(FlowSample {
                    sequence,
                    source: Source { class, index },
                    sampling_rate: rate,
                    sample_pool: pool,
                    drops,
                    input: SflowInterface::from_expanded(in_format, in_value),
                    output: SflowInterface::from_expanded(out_format, out_value),
                    records: SampleRecords { left: count, rest: from },
                }))
            }
            (0, 4) => {
                let [sequence, class, index, count] = from.get()?;
                let records = SampleRecords { left: count, rest: from };
                let source = Source { class, index };
                Ok(Self::Counters(CountersSample { sequence, source, records }))
            }
            (0, 5) => {
                let [sequence, class, index, drops, input, output, reason, count] = from.get()?;
                Ok(Self::Discarded(DiscardedPacket {
                    sequence,
                    source: Source { class, index },
                    drops,
                    input: SflowInterface::from_expanded(0, input),
                    output: SflowInterface::from_expanded(0, output),
                    reason,
                    records: SampleRecords { left: count, rest: from },
                }))
            }
            _ => Ok(Self::Unknown(format, body)),
        }
    }
}

/// Iterator over the unparsed records of a sample.
#[derive(Clone, Copy)]
pub struct SampleRecords<'a> {
    left: u32,
    rest: XdrReader<'a>,
}

/// An unparsed record of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// Format of the record.
    pub format: DataFormat,
    /// Body of the record, without padding.
    pub body: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// Parses the body as a flow record.
    ///
    /// # Errors
    /// When the body is truncated.
    pub fn flow(self) -> Result<FlowRecord<'a>, RecordError> {
        FlowRecord::read(self.format, self.body).map_err(|Cut| RecordError::Body(self.format))
    }

    /// Parses the body as a counter record.
    ///
    /// # Errors
    /// When the body is truncated.
    pub fn counters(self) -> Result<CounterRecord<'a>, RecordError> {
        CounterRecord::read(self.format, self.body).map_err(|Cut| RecordError::Body(self.format))
    }

    /// Parses the body as `T`, regardless of its format.
    ///
    /// # Errors
    /// When the body is truncated.
    #[inline]
    pub fn body_as<T: Xdr<'a>>(self) -> Result<T, RecordError> {
        XdrReader::new(self.body).get().map_err(|Cut| RecordError::Body(self.format))
    }
}

impl<'a> SampleRecords<'a> {
    /// Count of records that are left, by the sample's header.
    #[must_use]
    pub fn declared(&self) -> u32 {
        self.left
    }

    /// Parses the records as flow records.
    pub fn flow(self) -> impl Iterator<Item = Result<FlowRecord<'a>, RecordError>> {
        self.map(|record| record.and_then(RawRecord::flow))
    }

    /// Parses the records as counter records.
    pub fn counters(self) -> impl Iterator<Item = Result<CounterRecord<'a>, RecordError>> {
        self.map(|record| record.and_then(RawRecord::counters))
    }
}

impl<'a> Iterator for SampleRecords<'a> {
    type Item = Result<RawRecord<'a>, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let mut read = || {
            let format = DataFormat::from_value(self.rest.word()?);
            let length = self.rest.word()? as usize;
            // By the length only: newer agents may append fields (sflow.org discussion 0017).
            Ok(RawRecord { format, body: self.rest.opaque(length)? })
        };
        Some(read().map_err(|Cut| {
            self.left = 0;
            RecordError::Length
        }))
    }
}

impl fmt::Debug for SampleRecords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}
