//! Fields of a record, by IANA's IPFIX information elements; those below 128 are NetFlow version
//! 9's, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::ExportHeader;
use super::template::SamplingScope;
use super::totals::{FlowTotalKey, FlowTotals};
use crate::observe::{FRAME_BYTES, InterfaceDirection, Observation};
use crate::packet::{Extensions, FirstHeader, IpHeader, IpVersion, MappedAddress, Packet};
use crate::sflow::SflowInterface;
use crate::sflow::xdr::Mac;

/// Value of firewallEvent for a denied flow.
const FLOW_DENIED: u8 = 3;

/// Assumed packet length in bytes if a record has octets without packets.
const PACKET_BYTES: u64 = 1_500;

/// Source and destination of one IP version, with the lengths of their prefixes.
#[derive(Debug, Default)]
struct AddressFields {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    source_mask_bits: Option<u8>,
    destination_mask_bits: Option<u8>,
}

impl AddressFields {
    /// Count of addresses other than zero. Routers with one template for both versions write zeros
    /// into the fields of the other one.
    fn specified(&self) -> usize {
        let both = [self.source, self.destination];
        both.into_iter().flatten().filter(|address| !address.is_unspecified()).count()
    }

    fn pair(&self) -> Option<(IpAddr, IpAddr)> {
        self.source.zip(self.destination)
    }
}

/// Supported fields of a record.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    octets: Option<u64>,
    octets_total: Option<u64>,
    post_octets: Option<u64>,
    initiator_octets: Option<u64>,
    responder_octets: Option<u64>,
    layer2_octets: Option<u64>,
    packets: Option<u64>,
    packets_total: Option<u64>,
    post_packets: Option<u64>,
    initiator_packets: Option<u64>,
    responder_packets: Option<u64>,
    firewall_event: Option<u8>,
    ip_version: Option<u8>,
    ether_type: Option<u16>,
    protocol: u8,
    traffic_class: u8,
    hop_limit: u8,
    tcp_flags: u8,
    source_port: Option<u16>,
    destination_port: Option<u16>,
    v4: AddressFields,
    v6: AddressFields,
    input: Option<u32>,
    output: Option<u32>,
    physical_input: Option<u32>,
    physical_output: Option<u32>,
    source_as: Option<u32>,
    destination_as: Option<u32>,
    flow_label: u32,
    vlan: Option<u16>,
    dot1q_vlan: Option<u16>,
    customer_vlan: Option<u16>,
    post_vlan: Option<u16>,
    post_dot1q_vlan: Option<u16>,
    post_customer_vlan: Option<u16>,
    source_mac: Option<Mac>,
    destination_mac: Option<Mac>,
    direction: Option<u8>,
    mpls_label: Option<u32>,
    start_uptime_ms: Option<u32>,
    end_uptime_ms: Option<u32>,
    start_ms: Option<u64>,
    end_ms: Option<u64>,
    frame_bytes: Option<u64>,
    frame: Option<&'a [u8]>,
    ip_header: Option<&'a [u8]>,
    sampler_id: Option<u64>,
    interval: Option<u32>,
    packet_interval: Option<u32>,
    packet_space: Option<u32>,
    sample_size: Option<u32>,
    sample_population: Option<u32>,
    probability: Option<f64>,
}

/// Parses an unsigned number; exporters may send fewer bytes than its type has (RFC 7011 6.2).
fn number(bytes: &[u8]) -> Option<u64> {
    (1..=8)
        .contains(&bytes.len())
        .then(|| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

fn small<T: TryFrom<u64>>(bytes: &[u8]) -> Option<T> {
    T::try_from(number(bytes)?).ok()
}

fn ipv4(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into())
}

fn ipv6(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).into())
}

/// A float64, which may be sent as float32 (RFC 7011 6.2).
fn float(bytes: &[u8]) -> Option<f64> {
    let single = || <[u8; 4]>::try_from(bytes).ok().map(|bytes| f32::from_be_bytes(bytes).into());
    <[u8; 8]>::try_from(bytes).ok().map(f64::from_be_bytes).or_else(single)
}

fn vlan(bytes: &[u8]) -> Option<u16> {
    small(bytes).filter(|vlan| (1..4095).contains(vlan))
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

/// An NTP time of 64 bits in milliseconds since 1970 (RFC 7011 6.1.9).
fn ntp_ms(bytes: &[u8]) -> Option<u64> {
    let value = number(bytes).filter(|_| bytes.len() == 8)?;
    let seconds = (value >> 32).checked_sub(2_208_988_800)?;
    Some(seconds * 1000 + (((value & 0xFFFF_FFFF) * 1000) >> 32))
}

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, field: u16, bytes: &'a [u8]) {
        // A malformed value does not overwrite an earlier one.
        fn set<T>(place: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *place = value;
            }
        }
        // An address of zeros is absent from the record.
        fn set_address(place: &mut Option<IpAddr>, value: Option<IpAddr>) {
            let known = place.is_some_and(|address| !address.is_unspecified());
            if !known || value.is_some_and(|address| !address.is_unspecified()) {
                set(place, value);
            }
        }
        let mask = |bytes| small(bytes).filter(|bits| *bits <= 128);
        let port = |bytes| small(bytes).filter(|port| *port != 0);
        let asn = |bytes| small(bytes).filter(|number| *number != 0);
        let interface = |bytes| small(bytes).filter(|index| *index != 0);
        match field {
            1 => set(&mut self.octets, number(bytes)),
            2 => set(&mut self.packets, number(bytes)),
            4 => self.protocol = small(bytes).unwrap_or(0),
            5 => self.traffic_class = small(bytes).unwrap_or(0),
            6 => self.tcp_flags = number(bytes).unwrap_or(0) as u8,
            7 | 180 | 182 => set(&mut self.source_port, port(bytes)),
            8 => set_address(&mut self.v4.source, ipv4(bytes)),
            9 => set(&mut self.v4.source_mask_bits, mask(bytes)),
            10 => set(&mut self.input, interface(bytes)),
            11 | 181 | 183 => set(&mut self.destination_port, port(bytes)),
            12 => set_address(&mut self.v4.destination, ipv4(bytes)),
            13 => set(&mut self.v4.destination_mask_bits, mask(bytes)),
            14 => set(&mut self.output, interface(bytes)),
            16 => set(&mut self.source_as, asn(bytes)),
            17 => set(&mut self.destination_as, asn(bytes)),
            21 => set(&mut self.end_uptime_ms, small(bytes)),
            22 => set(&mut self.start_uptime_ms, small(bytes)),
            23 => set(&mut self.post_octets, number(bytes)),
            24 => set(&mut self.post_packets, number(bytes)),
            27 => set_address(&mut self.v6.source, ipv6(bytes)),
            28 => set_address(&mut self.v6.destination, ipv6(bytes)),
            29 => set(&mut self.v6.source_mask_bits, mask(bytes)),
            30 => set(&mut self.v6.destination_mask_bits, mask(bytes)),
            31 => self.flow_label = number(bytes).unwrap_or(0) as u32 & 0xF_FFFF,
            34 | 50 => set(&mut self.interval, small(bytes)),
            48 | 302 => set(&mut self.sampler_id, number(bytes)),
            56 => set(&mut self.source_mac, mac(bytes)),
            58 => set(&mut self.vlan, vlan(bytes)),
            59 => set(&mut self.post_vlan, vlan(bytes)),
            60 => set(&mut self.ip_version, small(bytes)),
            61 => set(&mut self.direction, small(bytes)),
            70 if bytes.len() == 3 => {
                set(&mut self.mpls_label, small(bytes).map(|entry: u32| entry >> 4))
            }
            80 => set(&mut self.destination_mac, mac(bytes)),
            85 => set(&mut self.octets_total, number(bytes)),
            86 => set(&mut self.packets_total, number(bytes)),
            150 => set(&mut self.start_ms, number(bytes).and_then(|s| s.checked_mul(1000))),
            151 => set(&mut self.end_ms, number(bytes).and_then(|s| s.checked_mul(1000))),
            152 => set(&mut self.start_ms, number(bytes)),
            153 => set(&mut self.end_ms, number(bytes)),
            154 | 156 => set(&mut self.start_ms, ntp_ms(bytes)),
            155 | 157 => set(&mut self.end_ms, ntp_ms(bytes)),
            192 => self.hop_limit = small(bytes).unwrap_or(0),
            231 => set(&mut self.initiator_octets, number(bytes)),
            232 => set(&mut self.responder_octets, number(bytes)),
            233 => set(&mut self.firewall_event, small(bytes)),
            243 => set(&mut self.dot1q_vlan, vlan(bytes)),
            245 => set(&mut self.customer_vlan, vlan(bytes)),
            252 => set(&mut self.physical_input, interface(bytes)),
            253 => set(&mut self.physical_output, interface(bytes)),
            254 => set(&mut self.post_dot1q_vlan, vlan(bytes)),
            255 => set(&mut self.post_customer_vlan, vlan(bytes)),
            256 => set(&mut self.ether_type, small(bytes)),
            298 => set(&mut self.initiator_packets, number(bytes)),
            299 => set(&mut self.responder_packets, number(bytes)),
            305 => set(&mut self.packet_interval, small(bytes)),
            306 => set(&mut self.packet_space, small(bytes)),
            309 => set(&mut self.sample_size, small(bytes)),
            310 => set(&mut self.sample_population, small(bytes)),
            311 => set(&mut self.probability, float(bytes)),
            312 => set(&mut self.frame_bytes, number(bytes)),
            313 => self.ip_header = Some(bytes),
            315 => self.frame = Some(bytes),
            352 => set(&mut self.layer2_octets, number(bytes)),
            _ => {}
        }
    }

    /// Sampling rate in the record itself, 1 of this many packets.
    pub(super) fn rate(&self) -> Option<u32> {
        // RFC 5477 8.2: `interval` of `interval + space` packets, `size` of a `population`, or each
        // with a probability.
        let systematic = || {
            let (interval, space) = (self.packet_interval?, self.packet_space?);
            Some(f64::from(interval.saturating_add(space)) / f64::from(interval))
        };
        let of_population =
            || Some(f64::from(self.sample_population?) / f64::from(self.sample_size?));
        let by_probability = || self.probability.map(f64::recip);
        let valid = |rate: &f64| (1.0..=f64::from(u32::MAX)).contains(rate);
        let by_selector = || {
            let rate = systematic().or_else(of_population).or_else(by_probability);
            rate.filter(valid).map(|rate| rate.round() as u32)
        };
        self.interval.or_else(by_selector).filter(|rate| *rate > 0)
    }

    /// Scopes whose sampling rate applies to the record, in order of precedence.
    pub(super) fn sampling_scopes(&self) -> [Option<SamplingScope>; 3] {
        let interfaces = match self.direction {
            Some(1) => [self.output, self.input],
            _ => [self.input, self.output],
        };
        let [first, second] = interfaces.map(|index| index.map(SamplingScope::Interface));
        [self.sampler_id.map(SamplingScope::Sampler), first, second]
    }

    /// Scope and sampling rate of an options record, if it has a rate.
    pub(super) fn reported_rate(&self) -> Option<(SamplingScope, u32)> {
        let scope = self.sampling_scopes().into_iter().flatten().next();
        Some((scope.unwrap_or(SamplingScope::Exporter), self.rate()?))
    }

    /// Observations of the record: that of its flow, and that of the reverse direction if the
    /// record counts both. A record without counts and without a packet (an event of NAT or of a
    /// firewall, RFC 8158) has none.
    pub(super) fn observations(
        &self,
        header: &ExportHeader,
        now: Duration,
        totals: &mut FlowTotals<'_>,
    ) -> [Option<Observation>; 2] {
        if self.firewall_event == Some(FLOW_DENIED) {
            return [None, None];
        }
        let interface = |logical: Option<u32>, physical: Option<u32>| {
            SflowInterface::from_expanded(0, logical.or(physical).unwrap_or(0))
        };
        let input = interface(self.input, self.physical_input);
        let output = interface(self.output, self.physical_output);
        let mut seen = Observation::nothing(1, input, output);
        seen.direction = match self.direction {
            Some(0) => InterfaceDirection::Ingress,
            Some(1) => InterfaceDirection::Egress,
            _ => InterfaceDirection::Unknown,
        };
        match (self.frame, self.ip_header) {
            (Some(frame), _) => seen.packet.walk(FirstHeader::Ethernet, frame),
            (None, Some(bytes)) => seen.packet.walk(FirstHeader::Ip, bytes),
            (None, None) => match self.packet() {
                Some(packet) => seen.packet = packet,
                None => return [None, None],
            },
        }
        let own = self.addresses();
        seen.set_vlans(seen.packet.vlan, seen.packet.inner_vlan);
        let (vlan, inner) = self.vlans(seen.direction);
        if vlan.is_some() {
            (seen.vlan, seen.inner_vlan) = (vlan, inner);
        }
        (seen.source_as, seen.destination_as) = (self.source_as, self.destination_as);
        seen.source_mask_bits = own.source_mask_bits;
        seen.destination_mask_bits = own.destination_mask_bits;
        (seen.duration, seen.age) = self.times(header);

        let (mut octets, mut packets) = self.counts();
        if octets.is_none()
            && packets.is_none()
            && (self.octets_total.is_some() || self.packets_total.is_some())
            && let Some(ip) = seen.packet.ip()
        {
            // A total grows from record to record of a flow.
            let flow = FlowTotalKey { flow: ip.flow(), input, output };
            let total = (self.octets_total.unwrap_or(0), self.packets_total.unwrap_or(0));
            let more = totals.since_last(flow, total, now, self.since_start(header));
            octets = self.octets_total.map(|_| more.0);
            packets = self.packets_total.map(|_| more.1);
        }
        let reverse = match (self.responder_octets, self.responder_packets) {
            (None, None) => None,
            (octets, packets) => self.sized(seen.reversed(), octets, packets),
        };
        [self.sized(seen, octets, packets), reverse]
    }

    /// Octets and packets since the previous record. Counts after a middlebox (23, 24) are of the
    /// same packets: they are used only without other counts.
    fn counts(&self) -> (Option<u64>, Option<u64>) {
        let pairs = [
            (self.octets, self.packets),
            (self.initiator_octets, self.initiator_packets),
            (self.post_octets, self.post_packets),
        ];
        let has_count =
            |(octets, packets): &(Option<u64>, Option<u64>)| octets.is_some() || packets.is_some();
        pairs.into_iter().find(has_count).unwrap_or_default()
    }

    /// An observation of this many IP octets and packets; `None` without traffic.
    fn sized(
        &self,
        mut seen: Observation,
        octets: Option<u64>,
        packets: Option<u64>,
    ) -> Option<Observation> {
        let is_packet = self.frame.is_some() || self.ip_header.is_some();
        let wire = self.layer2_octets.or(self.frame_bytes);
        if octets.or(packets).or(wire).is_none() && !is_packet {
            return None;
        }
        if octets.unwrap_or(0) == 0
            && packets.unwrap_or(0) == 0
            && (!is_packet || packets.is_some())
            && wire.unwrap_or(0) == 0
        {
            return None;
        }
        seen.packets = match (packets, octets) {
            (Some(packets), _) => packets,
            (None, Some(octets)) if !is_packet => octets.div_ceil(PACKET_BYTES).max(1),
            _ => 1,
        };
        let length = seen.packet.outer.map_or(0, |ip| u64::from(ip.length_bytes));
        let ip_octets = octets.unwrap_or(length);
        let with_frames = || ip_octets.saturating_add(seen.packets.saturating_mul(FRAME_BYTES));
        seen.frame_bytes = wire.unwrap_or_else(with_frames);
        Some(seen)
    }

    /// Outer and inner VLAN by direction.
    fn vlans(&self, direction: InterfaceDirection) -> (Option<u16>, Option<u16>) {
        let before = (self.dot1q_vlan.or(self.vlan), self.customer_vlan);
        let after = (self.post_dot1q_vlan.or(self.post_vlan), self.post_customer_vlan);
        let (first, second) =
            if direction == InterfaceDirection::Egress { (after, before) } else { (before, after) };
        let (outer, inner) = if first == (None, None) { second } else { first };
        // A single inner tag is the only one.
        outer.map_or((inner, None), |outer| (Some(outer), inner))
    }

    /// Addresses to use if a template has fields of both versions: by ipVersion, else by the
    /// ethertype, else those that are not zero.
    fn addresses(&self) -> &AddressFields {
        let by_type = match self.ether_type {
            Some(0x0800) => Some(4),
            Some(0x86DD) => Some(6),
            _ => None,
        };
        match self.ip_version.or(by_type) {
            Some(4) if self.v4.pair().is_some() => &self.v4,
            Some(6) if self.v6.pair().is_some() => &self.v6,
            _ if self.v4.pair().is_none() => &self.v6,
            _ if self.v6.pair().is_none() => &self.v4,
            _ if self.v4.specified() >= self.v6.specified() => &self.v4,
            _ => &self.v6,
        }
    }

    fn packet(&self) -> Option<Packet> {
        let (source, destination) = self.addresses().pair()?;
        let version = if source.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
        let ports = (self.source_port.unwrap_or(0), self.destination_port.unwrap_or(0));
        let ip = IpHeader {
            version,
            source: MappedAddress::from(source),
            destination: MappedAddress::from(destination),
            protocol: self.protocol,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: if version == IpVersion::V6 { self.flow_label } else { 0 },
            length_bytes: 0,
            fragment: false,
            extensions: Extensions::default(),
            hop_by_hop_mark: None,
            destination_mark: None,
            ports: (ports != (0, 0)).then_some(ports),
            tcp_flags: self.tcp_flags,
        };
        Some(Packet {
            macs: self.source_mac.zip(self.destination_mac),
            mpls_label: self.mpls_label,
            outer: Some(ip),
            ..Packet::default()
        })
    }

    /// Time from the flow's start to its export, if the record has the start.
    fn since_start(&self, header: &ExportHeader) -> Option<Duration> {
        let by_clock = self.start_ms.map(|start| {
            Duration::from_millis((u64::from(header.time_s) * 1000).saturating_sub(start))
        });
        let by_uptime = || {
            // Milliseconds in 32 bits wrap after 49 days.
            let ms = header.uptime_ms?.wrapping_sub(self.start_uptime_ms?);
            Some(Duration::from_millis(if ms > u32::MAX / 2 { 0 } else { ms.into() }))
        };
        by_clock.or_else(by_uptime)
    }

    /// Duration of the flow, and time from its end to its export.
    fn times(&self, header: &ExportHeader) -> (Duration, Duration) {
        // No exported flow lasts longer; otherwise a clock is wrong.
        let sane = |ms: u64| Duration::from_millis(ms.min(86_400_000));
        if let (Some(start), Some(end)) = (self.start_ms, self.end_ms) {
            let sent = u64::from(header.time_s) * 1000;
            return (sane(end.saturating_sub(start)), sane(sent.saturating_sub(end)));
        }
        if let (Some(start), Some(end), Some(now)) =
            (self.start_uptime_ms, self.end_uptime_ms, header.uptime_ms)
        {
            // Milliseconds in 32 bits wrap after 49 days.
            let between = |a: u32, b: u32| {
                let ms = b.wrapping_sub(a);
                if ms > u32::MAX / 2 { Duration::ZERO } else { sane(ms.into()) }
            };
            return (between(start, end), between(end, now));
        }
        (Duration::ZERO, Duration::ZERO)
    }
}
