//! One observation of traffic, whoever tells it: a packet that was sampled, or a flow that was exported.
//!
//! Frame lengths are those of the wire, header and check sequence included, so that they compare with
//! counters of interfaces. Which record the length is from has an order that does not depend on the order
//! in the datagram, or exporters would differ by some percent (netsampler/goflow2#518): the sampled
//! header, then the Ethernet record, then an IP record with [`FRAME_BYTES`] added.

use std::time::Duration;

use crate::packet::{Extensions, Ip, Packet, Start, Version};
use crate::sflow::record::{
    ExtendedGateway, ExtendedRouter, ExtendedSwitch, ExtendedTcpInfo, SampledEthernet,
    SampledHeader, SampledIpv4, SampledIpv6,
};
use crate::sflow::sample::Records;
use crate::sflow::{FlowSample, Interface};

/// Header and check sequence of an Ethernet frame without tags: what an IP length lacks.
pub const FRAME_BYTES: u64 = 18;

/// No VLAN is higher.
const VLAN_MAX: u32 = 4094;

/// On its way in or out of where it was seen. sFlow does not say; it shows in which of a packet's
/// interfaces is the one that samples (pmacct/pmacct#725).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Direction {
    /// In.
    Ingress,
    /// Out.
    Egress,
    /// Not known.
    #[default]
    Unknown,
}

/// One observation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Each counts for so many.
    pub sampling_rate: u32,
    /// How many packets; 1 for a sample.
    pub packets: u64,
    /// Their length together on the wire, not scaled.
    pub frame_bytes: u64,
    /// In or out.
    pub direction: Direction,
    /// Came in here.
    pub input: Interface,
    /// Went out there.
    pub output: Interface,
    /// The VLAN, of the packet or by the switch's word; of two tags (QinQ) the outer one.
    pub vlan: Option<u16>,
    /// The VLAN within that one.
    pub inner_vlan: Option<u16>,
    /// The packet.
    pub packet: Packet,
    /// Origin of the source address.
    pub source_as: Option<u32>,
    /// Origin of the destination address.
    pub destination_as: Option<u32>,
    /// Length of the source's prefix.
    pub source_mask_bits: Option<u8>,
    /// Length of the destination's prefix.
    pub destination_mask_bits: Option<u8>,
    /// State of the agent's TCP connection.
    pub tcp: Option<ExtendedTcpInfo>,
    /// Why it was dropped.
    pub drop_reason: Option<u32>,
    /// How long it took; nothing for a sample.
    pub duration: Duration,
    /// How long ago it ended when it was exported.
    pub age: Duration,
    /// Records that could not be read.
    pub broken_records: u32,
}

impl Observation {
    /// The version of the innermost IP header.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.packet.ip().map(|ip| ip.version)
    }

    /// Of one packet of which nothing is known.
    #[must_use]
    #[inline]
    pub fn nothing(sampling_rate: u32, input: Interface, output: Interface) -> Self {
        Self {
            sampling_rate,
            packets: 1,
            frame_bytes: 0,
            direction: Direction::Unknown,
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
        }
    }

    /// Of a flow sample.
    #[must_use]
    #[inline(always)]
    pub fn of_sample(sample: &FlowSample<'_>) -> Self {
        let mut this = Self::nothing(sample.sampling_rate, sample.input, sample.output);
        this.direction = match sample.source.class {
            0 if sample.input == Interface::Index(sample.source.index) => Direction::Ingress,
            0 if sample.output == Interface::Index(sample.source.index) => Direction::Egress,
            _ => Direction::Unknown,
        };
        if let Interface::Discarded(reason) = sample.output {
            this.drop_reason = Some(reason);
        }
        this.records(sample.records);
        this
    }

    /// Takes what records say.
    #[inline]
    pub fn records(&mut self, records: Records<'_>) {
        // Lengths by their rank: header, Ethernet, IP.
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
                    if let Some(start) = Start::of_sflow(header.protocol) {
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
                        Direction::Egress => switch.destination_vlan,
                        _ => switch.source_vlan,
                    };
                    // 0xFFFFFFFF is unknown, and nothing beyond 4094 is a VLAN.
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
                    // A route without a path is one of the agent's own system.
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
        self.frame_bytes = lengths.into_iter().flatten().next().unwrap_or(0);
        self.set_vlans(self.packet.vlan, self.packet.inner_vlan);
        if self.vlan.is_none_or(|vlan| vlan == 0) {
            self.vlan = switch_vlan.or(self.vlan);
        }
    }

    /// Takes the tags of a packet. A tag of VLAN 0 has a priority and no VLAN (802.1Q 9.6): the one within it counts.
    pub(crate) fn set_vlans(&mut self, outer: Option<u16>, inner: Option<u16>) {
        let inner = inner.filter(|vlan| *vlan != 0);
        (self.vlan, self.inner_vlan) = match (outer, inner) {
            (None | Some(0), Some(inner)) => (Some(inner), None),
            _ => (outer, inner),
        };
    }

    /// The other direction of the same flow.
    pub(crate) fn reversed(mut self) -> Self {
        let swap = |ip: &mut Ip| {
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

fn of_ipv4(record: &SampledIpv4) -> Ip {
    Ip {
        version: Version::V4,
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

/// Without a flow label: the record does not have it.
fn of_ipv6(record: &SampledIpv6) -> Ip {
    Ip {
        version: Version::V6,
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
        Self::nothing(1, Interface::Unknown, Interface::Unknown)
    }
}
