//! Samples: a packet that was picked, a packet that was dropped, counters that were read.
//!
//! Compact and expanded forms read as one. Numbers of interfaces become [`Interface`], because some of them
//! are none: the reading of 0x3FFFFFFF as an interface has misled other collectors
//! (akvorado/akvorado#153).

use std::fmt;

use super::DataFormat;
use super::counters::CounterRecord;
use super::record::FlowRecord;
use super::xdr::{Cut, Reader, Xdr};

/// Why a sample is lost; the others of its datagram are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// Its length leads beyond the datagram, so what follows cannot be found either.
    #[error("sample {index} reaches beyond the end of the datagram")]
    Length {
        /// Which one of the datagram, from 0.
        index: u32,
    },
    /// Its head is not whole.
    #[error("sample {index} of format {format} is shorter than its head")]
    Body {
        /// Which one of the datagram, from 0.
        index: u32,
        /// Its format.
        format: DataFormat,
    },
}

/// Why a record is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Its length leads beyond the sample, so what follows cannot be found either.
    #[error("a record reaches beyond the end of its sample")]
    Length,
    /// It is not whole.
    #[error("a record of format {0} ends before its last field")]
    Body(DataFormat),
}

/// What samples are taken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// 0 interface, 1 VLAN, 2 physical entity, 3 logical entity.
    pub class: u32,
    /// Number in that class; of an interface its ifIndex.
    pub index: u32,
}

impl Source {
    /// The interface with this ifIndex.
    #[must_use]
    pub const fn interface(index: u32) -> Self {
        Self { class: 0, index }
    }

    /// Eight bits of class and 24 of index.
    #[must_use]
    pub const fn from_compact(value: u32) -> Self {
        Self { class: value >> 24, index: value & 0x00FF_FFFF }
    }
}

/// Where a packet came in or went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interface {
    /// Not known.
    Unknown,
    /// This ifIndex.
    Index(u32),
    /// The agent itself sent or received it.
    Internal,
    /// It was dropped, for this reason.
    Discarded(u32),
    /// It left on that many interfaces; 0 when their number is not known.
    Multiple(u32),
    /// A format that does not exist yet.
    Other {
        /// The format, 3 or more.
        format: u32,
        /// What it says.
        value: u32,
    },
}

/// The 30 bits that mean the agent itself, not an ifIndex.
const INTERNAL: u32 = 0x3FFF_FFFF;

impl Interface {
    /// Of the two words of the expanded form.
    #[must_use]
    pub const fn from_expanded(format: u32, value: u32) -> Self {
        match (format, value) {
            (0, 0) => Self::Unknown,
            // The expanded form writes the same mark with 30 or, by some agents, with 32 bits.
            (0, INTERNAL | u32::MAX) => Self::Internal,
            (0, index) => Self::Index(index),
            (1, reason) => Self::Discarded(reason),
            (2, count) => Self::Multiple(count),
            (format, value) => Self::Other { format, value },
        }
    }

    /// Of the one word of the compact form: two bits of format, 30 of value.
    #[must_use]
    pub const fn from_compact(value: u32) -> Self {
        Self::from_expanded(value >> 30, value & INTERNAL)
    }

    /// The two words of the expanded form.
    #[must_use]
    pub const fn expanded(self) -> (u32, u32) {
        match self {
            Self::Unknown => (0, 0),
            Self::Index(index) => (0, index),
            Self::Internal => (0, INTERNAL),
            Self::Discarded(reason) => (1, reason),
            Self::Multiple(count) => (2, count),
            Self::Other { format, value } => (format, value),
        }
    }

    /// The one word of the compact form; `None` for what does not fit.
    #[must_use]
    pub const fn compact(self) -> Option<u32> {
        let (format, value) = self.expanded();
        if format > 3 || value > INTERNAL { None } else { Some(format << 30 | value) }
    }

    /// The ifIndex, if it is one.
    #[must_use]
    pub const fn index(self) -> Option<u32> {
        match self {
            Self::Index(index) => Some(index),
            _ => None,
        }
    }
}

/// A sample.
#[derive(Debug, Clone, Copy)]
pub enum Sample<'a> {
    /// A packet.
    Flow(FlowSample<'a>),
    /// Counters.
    Counters(CountersSample<'a>),
    /// A packet that was dropped.
    Discarded(DiscardedPacket<'a>),
    /// One that is not known here, of sFlow-RT's for example: its format and its body.
    Unknown(DataFormat, &'a [u8]),
}

/// One packet of many.
#[derive(Debug, Clone, Copy)]
pub struct FlowSample<'a> {
    /// Counts the samples of this source.
    pub sequence: u32,
    /// Where samples are taken.
    pub source: Source,
    /// One of so many packets is taken, at this moment: it changes while an agent runs.
    pub sampling_rate: u32,
    /// Packets that could have been taken, counted by the agent.
    pub sample_pool: u32,
    /// Samples that the agent lost, since it started.
    pub drops: u32,
    /// Where the packet came in.
    pub input: Interface,
    /// Where it went out.
    pub output: Interface,
    /// What is known of the packet.
    pub records: Records<'a>,
}

/// Counters of one source.
#[derive(Debug, Clone, Copy)]
pub struct CountersSample<'a> {
    /// Counts the counter samples of this source.
    pub sequence: u32,
    /// What the counters are of.
    pub source: Source,
    /// The counters.
    pub records: Records<'a>,
}

/// A packet that was dropped.
#[derive(Debug, Clone, Copy)]
pub struct DiscardedPacket<'a> {
    /// Counts the notifications of this source.
    pub sequence: u32,
    /// Where drops are noticed.
    pub source: Source,
    /// Notifications that the agent lost, since it started.
    pub drops: u32,
    /// Where the packet came in.
    pub input: Interface,
    /// Where it would have gone out.
    pub output: Interface,
    /// Why, by the table of the specification.
    pub reason: u32,
    /// What is known of the packet.
    pub records: Records<'a>,
}

impl<'a> Sample<'a> {
    /// Reads the body of a sample.
    ///
    /// # Errors
    /// When its head is not whole.
    #[inline]
    pub fn read(format: DataFormat, body: &'a [u8]) -> Result<Self, Cut> {
        let mut from = Reader::new(body);
        match (format.enterprise(), format.format()) {
            (0, 1) => {
                let [sequence, source, rate, pool, drops, input, output, count] = from.get()?;
                Ok(Self::Flow(FlowSample {
                    sequence,
                    source: Source::from_compact(source),
                    sampling_rate: rate,
                    sample_pool: pool,
                    drops,
                    input: Interface::from_compact(input),
                    output: Interface::from_compact(output),
                    records: Records { left: count, rest: from },
                }))
            }
            (0, 2) => {
                let [sequence, source, count] = from.get()?;
                let records = Records { left: count, rest: from };
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
                    input: Interface::from_expanded(in_format, in_value),
                    output: Interface::from_expanded(out_format, out_value),
                    records: Records { left: count, rest: from },
                }))
            }
            (0, 4) => {
                let [sequence, class, index, count] = from.get()?;
                let records = Records { left: count, rest: from };
                let source = Source { class, index };
                Ok(Self::Counters(CountersSample { sequence, source, records }))
            }
            (0, 5) => {
                let [sequence, class, index, drops, input, output, reason, count] = from.get()?;
                Ok(Self::Discarded(DiscardedPacket {
                    sequence,
                    source: Source { class, index },
                    drops,
                    input: Interface::from_expanded(0, input),
                    output: Interface::from_expanded(0, output),
                    reason,
                    records: Records { left: count, rest: from },
                }))
            }
            _ => Ok(Self::Unknown(format, body)),
        }
    }
}

/// The records of a sample, still in their bytes.
#[derive(Clone, Copy)]
pub struct Records<'a> {
    left: u32,
    rest: Reader<'a>,
}

/// One record, still in its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// What it is.
    pub format: DataFormat,
    /// Its bytes.
    pub body: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// Reads it as a record of a flow or of a dropped packet.
    ///
    /// # Errors
    /// When it is not whole.
    pub fn flow(self) -> Result<FlowRecord<'a>, RecordError> {
        FlowRecord::read(self.format, self.body).map_err(|Cut| RecordError::Body(self.format))
    }

    /// Reads it as counters.
    ///
    /// # Errors
    /// When it is not whole.
    pub fn counters(self) -> Result<CounterRecord<'a>, RecordError> {
        CounterRecord::read(self.format, self.body).map_err(|Cut| RecordError::Body(self.format))
    }

    /// Reads its body as `T`, whatever its format.
    ///
    /// # Errors
    /// When it is not whole.
    #[inline]
    pub fn body_as<T: Xdr<'a>>(self) -> Result<T, RecordError> {
        Reader::new(self.body).get().map_err(|Cut| RecordError::Body(self.format))
    }
}

impl<'a> Records<'a> {
    /// How many it says to be.
    #[must_use]
    pub fn declared(&self) -> u32 {
        self.left
    }

    /// The records of a flow or of a dropped packet.
    pub fn flow(self) -> impl Iterator<Item = Result<FlowRecord<'a>, RecordError>> {
        self.map(|record| record.and_then(RawRecord::flow))
    }

    /// The counters.
    pub fn counters(self) -> impl Iterator<Item = Result<CounterRecord<'a>, RecordError>> {
        self.map(|record| record.and_then(RawRecord::counters))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RawRecord<'a>, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let mut read = || {
            let format = DataFormat::from_value(self.rest.word()?);
            let length = self.rest.word()? as usize;
            // By the length alone: a structure may have grown since (sflow.org discussion 0017).
            Ok(RawRecord { format, body: self.rest.opaque(length)? })
        };
        Some(read().map_err(|Cut| {
            self.left = 0;
            RecordError::Length
        }))
    }
}

impl fmt::Debug for Records<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}
