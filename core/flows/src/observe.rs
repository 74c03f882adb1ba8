//! One observation of traffic: a sampled packet or an exported flow.
//!
//! Frame lengths are those of the wire, header and check sequence included, so that they compare
//! with interface counters. The record that gives the length has a fixed precedence, or exporters
//! would differ by some percent (netsampler/goflow2#518): the sampled header, then the Ethernet
//! record, then an IP record plus [`FRAME_BYTES`].

use std::time::Duration;

use crate::packet::{Extensions, FirstHeader, IpHeader, IpVersion, Packet};
use crate::sflow::record::{
    ExtendedGateway, ExtendedRouter, ExtendedSwitch, ExtendedTcpInfo, SampledEthernet,
    SampledHeader, SampledIpv4, SampledIpv6,
};
use crate::sflow::sample::SampleRecords;
use crate::sflow::{FlowSample, SflowInterface};

/// Header and check sequence of an untagged Ethernet frame, which an IP length lacks.
pub const FRAME_BYTES: u64 = 18;

/// Longest frame. A host reports packets before they are segmented, of up to 512 KiB (BIG TCP).
const FRAME_BYTES_MAX: u64 = 1 << 20;

/// Time that a flow record covers at least, and at most if it has no duration.
const RECORD_INTERVALS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1800));

/// Highest VLAN id.
const VLAN_MAX: u32 = 4094;

/// Direction of a packet at its observation point. sFlow does not state it; it follows from which
/// of the packet's interfaces is the sampling one (pmacct/pmacct#725).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum InterfaceDirection {
    /// Received by the sampling interface.
    Ingress,
    /// Sent by the sampling interface.
    Egress,
    /// Neither or both interfaces sample.
    #[default]
    Unknown,
}

/// Traffic of one sample or exported flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Each packet counts for this many.
    pub sampling_rate: u32,
    /// Count of packets; 1 for a sample.
    pub packets: u64,
    /// Sum of their lengths on the wire, not scaled.
    pub frame_bytes: u64,
    /// Direction at the observation point.
    pub direction: InterfaceDirection,
    /// Interface that received the packet.
    pub input: SflowInterface,
    /// Interface that sent the packet.
    pub output: SflowInterface,
    /// VLAN of the packet, or as reported by the switch; the outer one of two tags (QinQ).
    pub vlan: Option<u16>,
    /// Inner VLAN of two tags.
    pub inner_vlan: Option<u16>,
    /// Parsed headers of the packet.
    pub packet: Packet,
    /// Origin AS of the source address.
    pub source_as: Option<u32>,
    /// Origin AS of the destination address.
    pub destination_as: Option<u32>,
    /// Prefix length of the source address.
    pub source_mask_bits: Option<u8>,
    /// Prefix length of the destination address.
    pub destination_mask_bits: Option<u8>,
    /// State of the agent's TCP connection.
    pub tcp: Option<ExtendedTcpInfo>,
    /// Reason of the drop, by sFlow's table.
    pub drop_reason: Option<u32>,
    /// Duration of the flow; zero for a sample.
    pub duration: Duration,
    /// Time from the flow's end to its export.
    pub age: Duration,
    /// Count of records that cannot be parsed.
    pub broken_records: u32,
    /// True if no frame has the stated length: it is 0, above 1 MiB, or less than the sampled part.
    pub is_implausible: bool,
}

impl Observation {
    /// IP version of the innermost header.
    #[must_use]
    pub fn version(&self) -> Option<IpVersion> {
        self.packet.ip().map(|ip| ip.version)
    }

    /// Time in which its traffic passed, generously: that of a single sample is a second.
    pub(crate) fn interval(&self) -> Duration {
        let (shortest, longest) = RECORD_INTERVALS;
        match (self.packets, self.duration) {
            (..=1, Duration::ZERO) => Duration::from_secs(1),
            (_, Duration::ZERO) => longest,
            (_, duration) => duration.max(shortest),
        }
    }

    /// An observation of one packet without any further fields.
    #[must_use]
    #[inline]
    pub fn nothing(sampling_rate: u32, input: SflowInterface, output: SflowInterface) -> Self {
        Self {
            sampling_rate,
            packets: 1,
            frame_bytes: 0,
            direction: InterfaceDirection::Unknown,
            input,
            output,
            vlan: None,
            inner_vlan: None,
            packet: Packet::default(),
            source_as: None,
            destination_as: None,
            source_mask_bits: None,
            destination_mask_bits: None,
            tcp: None,
            drop_reason: None,
            duration: Duration::ZERO,
            age: Duration::ZERO,
            broken_records: 0,
            is_implausible: false,
        }
    }

    /// Builds an observation from a flow sample.
    #[must_use]
    #[inline(always)]
    pub fn of_sample(sample: &FlowSample<'_>) -> Self {
        let mut this = Self::nothing(sample.sampling_rate, sample.input, sample.output);
        this.direction = match sample.source.class {
            0 if sample.input == SflowInterface::Index(sample.source.index) => {
                InterfaceDirection::Ingress
            }
            0 if sample.output == SflowInterface::Index(sample.source.index) => {
                InterfaceDirection::Egress
            }
            _ => InterfaceDirection::Unknown,
        };
        if let SflowInterface::Discarded(reason) = sample.output {
            this.drop_reason = Some(reason);
        }
        this.records(sample.records);
        this
    }

    /// Fills the fields from sFlow records.
    #[inline]
    pub fn records(&mut self, records: SampleRecords<'_>) {
        // Lengths by precedence: header, Ethernet, IP.
        let mut lengths = [None; 3];
        let mut switch_vlan = None;
        for record in records {
            let Ok(record) = record else {
                self.broken_records += 1;
                break;
            };
            if record.format.enterprise() != 0 {
                continue;
            }
            let whole = match record.format.format() {
                1 => record.body_as().map(|header: SampledHeader<'_>| {
                    lengths[0] = Some(header.frame_length.into());
                    self.is_implausible = header.header.0.len() > header.frame_length as usize;
                    if let Some(start) = FirstHeader::of_sflow(header.protocol) {
                        self.packet = Packet::default();
                        self.packet.walk(start, header.header.0);
                    }
                }),
                2 => record.body_as().map(|frame: SampledEthernet| {
                    lengths[1] = Some(frame.length.into());
                    self.packet.macs.get_or_insert((frame.source, frame.destination));
                }),
                3 => record.body_as().map(|ip: SampledIpv4| {
                    lengths[2] = Some(u64::from(ip.length) + FRAME_BYTES);
                    self.packet.outer.get_or_insert_with(|| of_ipv4(&ip));
                }),
                4 => record.body_as().map(|ip: SampledIpv6| {
                    lengths[2] = Some(u64::from(ip.length) + FRAME_BYTES);
                    self.packet.outer.get_or_insert_with(|| of_ipv6(&ip));
                }),
                1001 => record.body_as().map(|switch: ExtendedSwitch| {
                    let vlan = match self.direction {
                        InterfaceDirection::Egress => switch.destination_vlan,
                        _ => switch.source_vlan,
                    };
                    // 0xFFFFFFFF is unknown, and ids beyond 4094 are invalid.
                    switch_vlan = (1..=VLAN_MAX).contains(&vlan).then_some(vlan as u16);
                }),
                1002 => record.body_as().map(|router: ExtendedRouter| {
                    let bits = |bits: u32| u8::try_from(bits).ok().filter(|bits| *bits <= 128);
                    self.source_mask_bits = bits(router.source_mask_bits);
                    self.destination_mask_bits = bits(router.destination_mask_bits);
                }),
                1003 => record.body_as().map(|gateway: ExtendedGateway<'_>| {
                    let known = |number: u32| (number != 0).then_some(number);
                    self.source_as = known(gateway.source_as);
                    // A route without a path is one of the agent's own AS.
                    let end = gateway.destination_as().unwrap_or(gateway.as_number);
                    self.destination_as = known(end);
                }),
                2209 => record.body_as().map(|tcp: ExtendedTcpInfo| self.tcp = Some(tcp)),
                _ => Ok(()),
            };
            if whole.is_err() {
                self.broken_records += 1;
            }
        }
        if let Some(bytes) = lengths.into_iter().flatten().next() {
            self.frame_bytes = bytes;
            self.is_implausible |= bytes == 0 || bytes > FRAME_BYTES_MAX;
        }
        self.set_vlans(self.packet.vlan, self.packet.inner_vlan);
        if self.vlan.is_none_or(|vlan| vlan == 0) {
            self.vlan = switch_vlan.or(self.vlan);
        }
    }

    /// Sets the VLANs from the tags of a packet. A tag of VLAN 0 carries a priority only (802.1Q
    /// 9.6): the inner one counts.
    pub(crate) fn set_vlans(&mut self, outer: Option<u16>, inner: Option<u16>) {
        let inner = inner.filter(|vlan| *vlan != 0);
        (self.vlan, self.inner_vlan) = match (outer, inner) {
            (None | Some(0), Some(inner)) => (Some(inner), None),
            _ => (outer, inner),
        };
    }

    /// Returns the observation of the reverse direction.
    pub(crate) fn reversed(mut self) -> Self {
        let swap = |ip: &mut IpHeader| {
            std::mem::swap(&mut ip.source, &mut ip.destination);
            ip.ports = ip.ports.map(|(source, destination)| (destination, source));
        };
        self.packet.outer.iter_mut().chain(&mut self.packet.inner).for_each(swap);
        self.packet.macs = self.packet.macs.map(|(source, destination)| (destination, source));
        std::mem::swap(&mut self.input, &mut self.output);
        std::mem::swap(&mut self.source_as, &mut self.destination_as);
        std::mem::swap(&mut self.source_mask_bits, &mut self.destination_mask_bits);
        self
    }
}

fn of_ipv4(record: &SampledIpv4) -> IpHeader {
    IpHeader {
        version: IpVersion::V4,
        source: std::net::IpAddr::V4(record.source).into(),
        destination: std::net::IpAddr::V4(record.destination).into(),
        protocol: record.protocol as u8,
        traffic_class: record.tos as u8,
        hop_limit: 0,
        flow_label: 0,
        length_bytes: record.length,
        fragment: false,
        extensions: Extensions::default(),
        hop_by_hop_mark: None,
        destination_mark: None,
        ports: Some((record.source_port as u16, record.destination_port as u16)),
        tcp_flags: record.tcp_flags as u8,
    }
}

/// The record has no flow label.
fn of_ipv6(record: &SampledIpv6) -> IpHeader {
    IpHeader {
        version: IpVersion::V6,
        source: std::net::IpAddr::V6(record.source).into(),
        destination: std::net::IpAddr::V6(record.destination).into(),
        protocol: record.protocol as u8,
        traffic_class: record.priority as u8,
        hop_limit: 0,
        flow_label: 0,
        length_bytes: record.length,
        fragment: false,
        extensions: Extensions::default(),
        hop_by_hop_mark: None,
        destination_mark: None,
        ports: Some((record.source_port as u16, record.destination_port as u16)),
        tcp_flags: record.tcp_flags as u8,
    }
}

impl Default for Observation {
    fn default() -> Self {
        Self::nothing(1, SflowInterface::Unknown, SflowInterface::Unknown)
    }
}
