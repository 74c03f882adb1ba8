//! Interface counters of sFlow, and the default sampling rate by interface speed.
//!
//! Octets are those of RFC 2863 and include the frame check sequence, as the lengths of samples do: four bytes per packet
//! more than in Linux's counters. Counters that Linux lacks are all ones, which means unknown.
//!
//! A virtual device (veth, virtio, bridge, ...) counts a super-packet (TSO, GRO, BIG TCP) as one packet with its headers
//! once; a network card counts the segments. The eBPF program always counts segments, so the difference is the number of
//! segments, and of their headers, that the device did not count ([`Uncounted`]).

use penstock_flows::sflow::counters::{
    CounterRecord, EthernetInterface, GenericInterface, PortName, STATUS_ADMIN_UP, STATUS_OPER_UP,
};
use penstock_flows::sflow::xdr::Opaque;
use penstock_sys::net::{CountedDevice, DeviceStatistics};

use crate::record::FCS_BYTES;

/// Highest sampling rate N, for 1 of N packets.
pub const RATE_MAX: u32 = 1 << 24;

/// Interface speed in bits per second per unit of the sampling rate N. A full link then gives 1,626 samples per second
/// with frames of 1,518 bytes (95 % error of one second: 4.9 %), and 277 with frames of 9,018 bytes (11.8 %).
const BPS_PER_RATE: u64 = 20_000_000;
const RATE_LEAST: u32 = 50;
const RATE_OF_UNKNOWN_SPEED: u32 = 1000;

/// Default sampling rate N (1 of N packets) for an interface of this speed.
#[must_use]
pub fn default_rate(speed_bps: Option<u64>) -> u32 {
    let Some(speed_bps) = speed_bps else { return RATE_OF_UNKNOWN_SPEED };
    let rate = u32::try_from(speed_bps / BPS_PER_RATE).unwrap_or(RATE_MAX);
    rate.clamp(RATE_LEAST, RATE_MAX)
}

const COUNTER_UNKNOWN: u32 = u32::MAX;

/// Interface types of IANAifType-MIB.
const IF_TYPE_ETHERNET_CSMACD: u32 = 6;
const IF_TYPE_SOFTWARE_LOOPBACK: u32 = 24;
const IF_TYPE_OTHER: u32 = 1;

/// Assumed headers of a segment until a super-packet was sampled: Ethernet, IPv4 and TCP with timestamps.
const HEADER_BYTES_USUAL: f64 = 66.0;

/// Ratio of packets counted by the program to those of the device, above which the device counts super-packets as one.
/// Smaller differences may be delays: some drivers read the counters of their card once a second.
const SEGMENTS_FACTOR: f64 = 1.1;

/// Segments that a device did not count because it counts super-packets as one packet, in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Uncounted {
    /// Packet counts of program and device at the last update.
    last: Option<(u64, u64)>,
    /// Sum of the header bytes of sampled super-packets, and their number.
    header_bytes: u64,
    headers: u64,
    /// Segments that the device did not count, and the bytes of their headers.
    packets: u64,
    octets: u64,
}

impl Uncounted {
    /// Records the header length of a sampled super-packet.
    pub(crate) fn sampled(&mut self, header_bytes: u32) {
        self.header_bytes = self.header_bytes.saturating_add(header_bytes.into());
        self.headers += 1;
    }

    /// Updates the estimate from the total packet counts of the program (`seen`) and of the device (`counted`).
    pub(crate) fn update(&mut self, seen: u64, counted: u64) {
        let Some((seen_last, counted_last)) = self.last.replace((seen, counted)) else { return };
        let seen = seen.saturating_sub(seen_last);
        let counted = counted.saturating_sub(counted_last);
        if seen as f64 <= counted as f64 * SEGMENTS_FACTOR {
            return;
        }
        let mean = match self.headers {
            0 => HEADER_BYTES_USUAL,
            headers => self.header_bytes as f64 / headers as f64,
        };
        self.packets += seen - counted;
        self.octets += ((seen - counted) as f64 * mean).round() as u64;
    }
}

/// Counter records of a device; `uncounted` is for received and sent packets.
pub(crate) fn records<'a>(
    device: &'a CountedDevice,
    speed: Option<(u64, bool)>,
    uncounted: [Uncounted; 2],
) -> [CounterRecord<'a>; 3] {
    let of = &device.statistics;
    let (speed_bps, full_duplex) = speed.unwrap_or((0, false));
    let mut status = 0;
    if device.up {
        status |= STATUS_ADMIN_UP;
    }
    if device.running {
        status |= STATUS_OPER_UP;
    }
    let kind = match (device.hardware, device.ethernet) {
        (Some(_), _) => IF_TYPE_ETHERNET_CSMACD,
        (None, true) => IF_TYPE_SOFTWARE_LOOPBACK,
        (None, false) => IF_TYPE_OTHER,
    };
    let direction = match speed {
        Some(_) if full_duplex => 1,
        Some(_) => 2,
        None => 0,
    };
    let [received, sent] = uncounted;
    let (rx_packets, tx_packets) =
        (of.rx_packets.wrapping_add(received.packets), of.tx_packets.wrapping_add(sent.packets));
    let octets = |bytes: u64, packets: u64| {
        let more = if device.ethernet { u64::from(FCS_BYTES) } else { 0 };
        bytes.wrapping_add(packets.wrapping_mul(more))
    };
    let interface = GenericInterface {
        index: device.index,
        kind,
        speed_bps,
        direction,
        status,
        in_octets: octets(of.rx_bytes.wrapping_add(received.octets), rx_packets),
        in_unicast: low(rx_packets.saturating_sub(of.multicast)),
        // Includes broadcasts, as Linux counts them.
        in_multicast: low(of.multicast),
        in_broadcast: COUNTER_UNKNOWN,
        in_discards: low(of.rx_dropped),
        in_errors: low(of.rx_errors),
        in_unknown_protocols: COUNTER_UNKNOWN,
        out_octets: octets(of.tx_bytes.wrapping_add(sent.octets), tx_packets),
        // Includes multicast and broadcast: Linux has no separate transmit counters.
        out_unicast: low(tx_packets),
        out_multicast: COUNTER_UNKNOWN,
        out_broadcast: COUNTER_UNKNOWN,
        out_discards: low(of.tx_dropped),
        out_errors: low(of.tx_errors),
        promiscuous: if device.promiscuous { 1 } else { 2 },
    };
    let name = PortName { name: Opaque(device.name.as_bytes()) };
    [
        CounterRecord::Interface(interface),
        CounterRecord::Ethernet(ethernet(of)),
        CounterRecord::PortName(name),
    ]
}

fn ethernet(of: &DeviceStatistics) -> EthernetInterface {
    EthernetInterface {
        alignment_errors: low(of.rx_frame_errors),
        fcs_errors: low(of.rx_crc_errors),
        single_collision_frames: COUNTER_UNKNOWN,
        multiple_collision_frames: COUNTER_UNKNOWN,
        sqe_test_errors: COUNTER_UNKNOWN,
        deferred_transmissions: COUNTER_UNKNOWN,
        late_collisions: COUNTER_UNKNOWN,
        excessive_collisions: COUNTER_UNKNOWN,
        internal_mac_transmit_errors: COUNTER_UNKNOWN,
        carrier_sense_errors: low(of.tx_carrier_errors),
        frames_too_long: COUNTER_UNKNOWN,
        internal_mac_receive_errors: COUNTER_UNKNOWN,
        symbol_errors: COUNTER_UNKNOWN,
    }
}

/// Truncates to 32 bits: sFlow's counters of that size wrap.
pub(crate) fn low(counter: u64) -> u32 {
    (counter & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncounted_segments_have_their_headers() {
        let mut of = Uncounted::default();
        of.update(1_000, 500);
        assert_eq!((of.packets, of.octets), (0, 0), "nothing to compare with");
        // A card that counts segments, with a delay.
        of.update(2_000, 1_450);
        of.update(3_000, 2_500);
        assert_eq!((of.packets, of.octets), (0, 0));
        // 100 super-packets of 40 segments.
        of.update(7_000, 2_600);
        assert_eq!((of.packets, of.octets), (3_900, 3_900 * 66));
        of.sampled(86);
        of.sampled(74);
        of.update(7_040, 2_601);
        assert_eq!((of.packets, of.octets), (3_939, 3_900 * 66 + 39 * 80));
        // The device was recreated.
        of.update(7_040, 0);
        assert_eq!(of.packets, 3_939);
    }

    #[test]
    fn default_rate_follows_speed() {
        let gbps = |speed: u64| default_rate(Some(speed * 1_000_000_000));
        assert_eq!([400, 100, 25, 10, 1].map(gbps), [20_000, 5_000, 1_250, 500, 50]);
        assert_eq!(default_rate(Some(10_000_000)), 50);
        assert_eq!(default_rate(Some(u64::MAX)), RATE_MAX);
        assert_eq!(default_rate(None), 1000);
    }
}
