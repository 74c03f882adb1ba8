//! The fields of a record, by the numbers of IANA's registry of IPFIX information elements; those below 128
//! are NetFlow version 9's, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::Header;
use crate::observe::{Direction, FRAME_BYTES, Observation};
use crate::packet::{Address, Extensions, Ip, Packet, Start, Version};
use crate::sflow::Interface;
use crate::sflow::xdr::Mac;

/// What is kept of a record.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    octets: Option<u64>,
    layer2_octets: Option<u64>,
    packets: Option<u64>,
    protocol: u8,
    traffic_class: u8,
    hop_limit: u8,
    tcp_flags: u8,
    source_port: Option<u16>,
    destination_port: Option<u16>,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    source_mask_bits: Option<u8>,
    destination_mask_bits: Option<u8>,
    input: Option<u32>,
    output: Option<u32>,
    source_as: Option<u32>,
    destination_as: Option<u32>,
    flow_label: u32,
    vlan: Option<u16>,
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
}

/// Exporters may send fewer bytes than a number has (RFC 7011 6.2).
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
        // A value that came already is not wiped by one that cannot be read.
        fn set<T>(place: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *place = value;
            }
        }
        match field {
            1 | 85 => set(&mut self.octets, number(bytes)),
            2 | 86 => set(&mut self.packets, number(bytes)),
            4 => self.protocol = small(bytes).unwrap_or(0),
            5 => self.traffic_class = small(bytes).unwrap_or(0),
            6 => self.tcp_flags = number(bytes).unwrap_or(0) as u8,
            7 | 180 | 182 => set(&mut self.source_port, small(bytes).filter(|port| *port != 0)),
            8 => set(&mut self.source, ipv4(bytes)),
            9 | 29 => set(&mut self.source_mask_bits, small(bytes).filter(|bits| *bits <= 128)),
            10 => set(&mut self.input, small(bytes)),
            11 | 181 | 183 => {
                set(&mut self.destination_port, small(bytes).filter(|port| *port != 0));
            }
            12 => set(&mut self.destination, ipv4(bytes)),
            13 | 30 => {
                set(&mut self.destination_mask_bits, small(bytes).filter(|bits| *bits <= 128))
            }
            14 => set(&mut self.output, small(bytes)),
            16 => set(&mut self.source_as, small(bytes).filter(|number| *number != 0)),
            17 => set(&mut self.destination_as, small(bytes).filter(|number| *number != 0)),
            21 => set(&mut self.end_uptime_ms, small(bytes)),
            22 => set(&mut self.start_uptime_ms, small(bytes)),
            27 => set(&mut self.source, ipv6(bytes)),
            28 => set(&mut self.destination, ipv6(bytes)),
            31 => self.flow_label = number(bytes).unwrap_or(0) as u32 & 0xF_FFFF,
            34 | 50 => set(&mut self.interval, small(bytes)),
            48 | 302 => set(&mut self.sampler_id, number(bytes)),
            56 => set(&mut self.source_mac, mac(bytes)),
            58 | 243 => set(&mut self.vlan, small(bytes).filter(|vlan| (1..4095).contains(vlan))),
            61 => set(&mut self.direction, small(bytes)),
            70 if bytes.len() == 3 => {
                set(&mut self.mpls_label, small(bytes).map(|entry: u32| entry >> 4))
            }
            80 => set(&mut self.destination_mac, mac(bytes)),
            150 => set(&mut self.start_ms, number(bytes).and_then(|s| s.checked_mul(1000))),
            151 => set(&mut self.end_ms, number(bytes).and_then(|s| s.checked_mul(1000))),
            152 => set(&mut self.start_ms, number(bytes)),
            153 => set(&mut self.end_ms, number(bytes)),
            154 | 156 => set(&mut self.start_ms, ntp_ms(bytes)),
            155 | 157 => set(&mut self.end_ms, ntp_ms(bytes)),
            192 => self.hop_limit = small(bytes).unwrap_or(0),
            305 => set(&mut self.packet_interval, small(bytes)),
            306 => set(&mut self.packet_space, small(bytes)),
            312 => set(&mut self.frame_bytes, number(bytes)),
            313 => self.ip_header = Some(bytes),
            315 => self.frame = Some(bytes),
            352 => set(&mut self.layer2_octets, number(bytes)),
            _ => {}
        }
    }

    /// The sampling rate that the record itself has: 1 of so many.
    pub(super) fn rate(&self) -> Option<u32> {
        // RFC 5477 8.2.2: of interval + space packets interval are taken.
        let systematic = || {
            let (interval, space) = (self.packet_interval?, self.packet_space?);
            interval.saturating_add(space).checked_div(interval)
        };
        self.interval.or_else(systematic).filter(|rate| *rate > 0)
    }

    pub(super) fn sampler_id(&self) -> Option<u64> {
        self.sampler_id
    }

    /// Sampler and rate, where this is a record of options that tells them.
    pub(super) fn sampler(&self) -> Option<(u64, u32)> {
        Some((self.sampler_id.unwrap_or(0), self.rate()?))
    }

    /// What it says of traffic; `None` where it says nothing of the kind.
    pub(super) fn observation(&self, header: &Header) -> Option<Observation> {
        let direction = match self.direction {
            Some(0) => Direction::Ingress,
            Some(1) => Direction::Egress,
            _ => Direction::Unknown,
        };
        let interface = |number: Option<u32>| Interface::from_expanded(0, number.unwrap_or(0));
        let mut seen = Observation::nothing(1, interface(self.input), interface(self.output));
        seen.direction = direction;
        match (self.frame, self.ip_header) {
            (Some(frame), _) => seen.packet.walk(Start::Ethernet, frame),
            (None, Some(bytes)) => seen.packet.walk(Start::Ip, bytes),
            (None, None) => seen.packet = self.packet()?,
        }
        let octets = self.octets.unwrap_or(0);
        seen.packets = self.packets.unwrap_or(1);
        if seen.packets == 0 && octets == 0 {
            return None;
        }
        let wire = self.layer2_octets.or(self.frame_bytes);
        let length = seen.packet.outer.map_or(0, |ip| u64::from(ip.length_bytes));
        let ip_octets = self.octets.unwrap_or(length);
        let with_frames = || ip_octets.saturating_add(seen.packets.saturating_mul(FRAME_BYTES));
        seen.frame_bytes = wire.unwrap_or_else(with_frames);
        seen.vlan = self.vlan.or(seen.packet.vlan);
        (seen.source_as, seen.destination_as) = (self.source_as, self.destination_as);
        seen.source_mask_bits = self.source_mask_bits;
        seen.destination_mask_bits = self.destination_mask_bits;
        (seen.duration, seen.age) = self.times(header);
        Some(seen)
    }

    fn packet(&self) -> Option<Packet> {
        let (source, destination) = (self.source?, self.destination?);
        let version = if source.is_ipv4() { Version::V4 } else { Version::V6 };
        let ports = (self.source_port.unwrap_or(0), self.destination_port.unwrap_or(0));
        let ip = Ip {
            version,
            source: Address::from(source),
            destination: Address::from(destination),
            protocol: self.protocol,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
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
            vlan: self.vlan,
            mpls_label: self.mpls_label,
            outer: Some(ip),
            ..Packet::default()
        })
    }

    /// How long the flow was, and how long ago it ended when it was exported.
    fn times(&self, header: &Header) -> (Duration, Duration) {
        // Nothing that an exporter sums up lasts longer; beyond it a clock is wrong.
        let sane = |ms: u64| Duration::from_millis(ms.min(86_400_000));
        if let (Some(start), Some(end)) = (self.start_ms, self.end_ms) {
            let sent = u64::from(header.time_s) * 1000;
            return (sane(end.saturating_sub(start)), sane(sent.saturating_sub(end)));
        }
        if let (Some(start), Some(end), Some(now)) =
            (self.start_uptime_ms, self.end_uptime_ms, header.uptime_ms)
        {
            // 32 bits of milliseconds start over after 49 days.
            let between = |a: u32, b: u32| {
                let ms = b.wrapping_sub(a);
                if ms > u32::MAX / 2 { Duration::ZERO } else { sane(ms.into()) }
            };
            return (between(start, end), between(end, now));
        }
        (Duration::ZERO, Duration::ZERO)
    }
}
