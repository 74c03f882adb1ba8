//! sFlow encoder, which collects samples into datagrams that fit a frame.
//!
//! For: agents. An [`Encoder`] is one sub-agent; it numbers its datagrams and the caller numbers
//! samples, because each source has its own sequence. A sample larger than a datagram is an error
//! ([`TooLong`]). It writes the expanded forms, which have room for every ifIndex.

use std::net::IpAddr;

use super::counters::CounterRecord;
use super::record::FlowRecord;
use super::xdr::{Xdr, tlv};
use super::{DataFormat, SFLOW_VERSION, SflowInterface, Source};

/// Default limit of a datagram: with the headers of IPv6 and UDP it fits a frame of 1500.
pub const DATAGRAM_BYTES: usize = 1400;

/// Longest datagram: the payload of UDP over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

const FLOW: DataFormat = DataFormat::new(0, 3);
const COUNTERS: DataFormat = DataFormat::new(0, 4);
const DISCARDED: DataFormat = DataFormat::new(0, 5);

/// Header of a flow sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowHead {
    /// Sequence number of the source's samples.
    pub sequence: u32,
    /// Data source of the sample.
    pub source: Source,
    /// Sampling rate, 1 of this many packets.
    pub sampling_rate: u32,
    /// Count of packets that could have been sampled.
    pub sample_pool: u32,
    /// Samples dropped since the start.
    pub drops: u32,
    /// Interface that received the packet.
    pub input: SflowInterface,
    /// Interface that sent the packet.
    pub output: SflowInterface,
}

/// Header of a notification of a dropped packet. Interfaces are ifIndex, 0 unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscardedHead {
    /// Sequence number of the source's notifications.
    pub sequence: u32,
    /// Data source of the notification.
    pub source: Source,
    /// Notifications dropped since the start.
    pub drops: u32,
    /// Interface that received the packet.
    pub input: u32,
    /// Interface that would have sent it.
    pub output: u32,
    /// Reason of the drop, by the specification's table.
    pub reason: u32,
}

/// The sample exceeds the limit of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a sample of {bytes} bytes does not fit a datagram of {limit}: sample fewer bytes of a packet, or raise the limit"
)]
pub struct TooLong {
    /// Length of the sample in bytes.
    pub bytes: usize,
    /// Room in a datagram, in bytes.
    pub limit: usize,
}

/// Encoder of one sub-agent.
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
    /// Creates a sub-agent of this agent. `limit` bounds a datagram in bytes, clamped to
    /// 256..=[`DATAGRAM_BYTES_MAX`].
    #[must_use]
    pub fn new(agent: IpAddr, sub_agent: u32, limit: usize) -> Self {
        let limit = limit.clamp(256, DATAGRAM_BYTES_MAX);
        let [samples, sample] = [Vec::new(), Vec::new()];
        Self { agent, sub_agent, limit, sequence: 0, count: 0, samples, sample }
    }

    /// Adds a flow sample. Returns the full datagram, if the sample did not fit it.
    ///
    /// # Errors
    /// When the sample exceeds the limit of a datagram.
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

    /// Adds a dropped packet, as [`Self::flow`].
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

    /// Adds counters, as [`Self::flow`].
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

    /// Returns the pending datagram; `None` without samples.
    pub fn take(&mut self, uptime_ms: u32) -> Option<Vec<u8>> {
        if self.count == 0 {
            return None;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut datagram = Vec::with_capacity(self.head_bytes() + self.samples.len());
        SFLOW_VERSION.write(&mut datagram);
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
