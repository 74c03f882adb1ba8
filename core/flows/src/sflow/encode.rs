//! Writing sFlow: samples are gathered into datagrams that fit a frame.
//!
//! For: agents. An [`Encoder`] is one sub-agent; it counts its datagrams and the caller counts samples,
//! because each source has its own count. A sample that fits no datagram is refused ([`TooLong`]).
//! Written are the expanded forms, which have room for every interface.

use std::net::IpAddr;

use super::counters::CounterRecord;
use super::record::FlowRecord;
use super::xdr::{Xdr, tlv};
use super::{DataFormat, Interface, Source, VERSION};

/// Datagrams up to this many bytes by default: with the headers of IPv6 and UDP they fit a frame of 1500.
pub const DATAGRAM_BYTES: usize = 1400;

/// No datagram may be longer: the payload of UDP over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

const FLOW: DataFormat = DataFormat::new(0, 3);
const COUNTERS: DataFormat = DataFormat::new(0, 4);
const DISCARDED: DataFormat = DataFormat::new(0, 5);

/// The head of a flow sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowHead {
    /// Counts the samples of this source.
    pub sequence: u32,
    /// Where samples are taken.
    pub source: Source,
    /// One of so many packets is taken.
    pub sampling_rate: u32,
    /// Packets that could have been taken.
    pub sample_pool: u32,
    /// Samples lost since the start.
    pub drops: u32,
    /// Where the packet came in.
    pub input: Interface,
    /// Where it went out.
    pub output: Interface,
}

/// The head of a note of a dropped packet. Interfaces are ifIndex, 0 unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscardedHead {
    /// Counts the notes of this source.
    pub sequence: u32,
    /// Where drops are noticed.
    pub source: Source,
    /// Notes lost since the start.
    pub drops: u32,
    /// Where the packet came in.
    pub input: u32,
    /// Where it would have gone out.
    pub output: u32,
    /// Why.
    pub reason: u32,
}

/// A sample that fits no datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a sample of {bytes} bytes does not fit a datagram of {limit}: sample fewer bytes of a packet, or raise the limit"
)]
pub struct TooLong {
    /// Of the sample.
    pub bytes: usize,
    /// Of the datagram.
    pub limit: usize,
}

/// One sub-agent: gathers samples into datagrams.
#[derive(Debug)]
pub struct Encoder {
    agent: IpAddr,
    sub_agent: u32,
    limit: usize,
    sequence: u32,
    count: u32,
    samples: Vec<u8>,
    sample: Vec<u8>,
}

impl Encoder {
    /// Of this agent. `limit` bounds a datagram in bytes; it is brought within 256 and
    /// [`DATAGRAM_BYTES_MAX`].
    #[must_use]
    pub fn new(agent: IpAddr, sub_agent: u32, limit: usize) -> Self {
        let limit = limit.clamp(256, DATAGRAM_BYTES_MAX);
        let [samples, sample] = [Vec::new(), Vec::new()];
        Self { agent, sub_agent, limit, sequence: 0, count: 0, samples, sample }
    }

    /// Adds a packet. Returns the datagram that had to go out to make room.
    ///
    /// # Errors
    /// When the sample fits no datagram.
    pub fn flow(
        &mut self,
        uptime_ms: u32,
        head: &FlowHead,
        records: &[FlowRecord<'_>],
    ) -> Result<Option<Vec<u8>>, TooLong> {
        self.sample.clear();
        tlv(&mut self.sample, FLOW, |to| {
            let (in_format, in_value) = head.input.expanded();
            let (out_format, out_value) = head.output.expanded();
            [head.sequence, head.source.class, head.source.index, head.sampling_rate].write(to);
            [head.sample_pool, head.drops, in_format, in_value, out_format, out_value].write(to);
            count(records.len()).write(to);
            records.iter().for_each(|record| record.write(to));
        });
        self.add(uptime_ms)
    }

    /// Adds a dropped packet, likewise.
    ///
    /// # Errors
    /// As [`Self::flow`].
    pub fn discarded(
        &mut self,
        uptime_ms: u32,
        head: &DiscardedHead,
        records: &[FlowRecord<'_>],
    ) -> Result<Option<Vec<u8>>, TooLong> {
        self.sample.clear();
        tlv(&mut self.sample, DISCARDED, |to| {
            [head.sequence, head.source.class, head.source.index, head.drops].write(to);
            [head.input, head.output, head.reason, count(records.len())].write(to);
            records.iter().for_each(|record| record.write(to));
        });
        self.add(uptime_ms)
    }

    /// Adds counters, likewise.
    ///
    /// # Errors
    /// As [`Self::flow`].
    pub fn counters(
        &mut self,
        uptime_ms: u32,
        sequence: u32,
        source: Source,
        records: &[CounterRecord<'_>],
    ) -> Result<Option<Vec<u8>>, TooLong> {
        self.sample.clear();
        tlv(&mut self.sample, COUNTERS, |to| {
            [sequence, source.class, source.index, count(records.len())].write(to);
            records.iter().for_each(|record| record.write(to));
        });
        self.add(uptime_ms)
    }

    /// The datagram of what was gathered; `None` when there is nothing.
    pub fn take(&mut self, uptime_ms: u32) -> Option<Vec<u8>> {
        if self.count == 0 {
            return None;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut datagram = Vec::with_capacity(self.head_bytes() + self.samples.len());
        VERSION.write(&mut datagram);
        Some(self.agent).write(&mut datagram);
        [self.sub_agent, self.sequence, uptime_ms, self.count].write(&mut datagram);
        datagram.append(&mut self.samples);
        self.count = 0;
        Some(datagram)
    }

    fn head_bytes(&self) -> usize {
        if self.agent.is_ipv4() { 28 } else { 40 }
    }

    fn add(&mut self, uptime_ms: u32) -> Result<Option<Vec<u8>>, TooLong> {
        let bytes = self.sample.len();
        let room = self.limit - self.head_bytes();
        if bytes > room {
            return Err(TooLong { bytes, limit: self.limit });
        }
        let full = if self.samples.len() + bytes > room { self.take(uptime_ms) } else { None };
        self.samples.append(&mut self.sample);
        self.count += 1;
        Ok(full)
    }
}

fn count(records: usize) -> u32 {
    u32::try_from(records).unwrap_or(u32::MAX)
}
