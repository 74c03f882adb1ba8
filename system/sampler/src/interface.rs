//! Counters of a network device as sFlow writes them, and how many of its packets are sampled.
//!
//! Octets are those of RFC 2863, with the check sequence, as lengths of samples are: four bytes more for each packet
//! than Linux counts. What Linux does not count is all ones, which means unknown.
//!
//! A virtual device (veth, virtio, bridge, ...) counts a super-packet (TSO, GRO, BIG TCP) as one packet with its headers
//! once; a network card counts the segments. The eBPF program counts segments on both, so the difference is what the
//! device leaves out, and each segment of it has headers that the device did not count ([`Uncounted`]).

use penstock_flows::sflow::counters::{
    CounterRecord, EthernetInterface, GenericInterface, PortName, STATUS_ADMIN_UP, STATUS_OPER_UP,
};
use penstock_flows::sflow::xdr::Opaque;
use penstock_sys::net::{CountedDevice, DeviceStatistics};

use crate::record::FCS_BYTES;

/// One of at most so many packets.
pub const RATE_MAX: u32 = 1 << 24;

/// Bits per second for each 1 of N. A full link of frames of 1,518 bytes gives 1,626 samples a second whatever its
/// speed, an error of 4.9 % in each; of 9,018 bytes 277 and 11.8 %.
const BPS_PER_RATE: u64 = 20_000_000;
const RATE_LEAST: u32 = 50;
const RATE_OF_UNKNOWN_SPEED: u32 = 1000;

/// One of how many packets of an interface of this speed.
#[must_use]
pub fn default_rate(speed_bps: Option<u64>) -> u32 {
    let Some(speed_bps) = speed_bps else { return RATE_OF_UNKNOWN_SPEED };
    let rate = u32::try_from(speed_bps / BPS_PER_RATE).unwrap_or(RATE_MAX);
    rate.clamp(RATE_LEAST, RATE_MAX)
}

const COUNTER_UNKNOWN: u32 = u32::MAX;

/// IANAifType.
const IF_TYPE_ETHERNET_CSMACD: u32 = 6;
const IF_TYPE_SOFTWARE_LOOPBACK: u32 = 24;
const IF_TYPE_OTHER: u32 = 1;

/// Ethernet, IPv4 and TCP with timestamps: headers of a segment before a super-packet was sampled.
const HEADER_BYTES_USUAL: f64 = 66.0;

/// A device counts super-packets as one where the program counts more by this factor. Below it the difference may be one
/// of time: some drivers read their card's counters once a second.
const SEGMENTS_FACTOR: f64 = 1.1;

/// Segments of super-packets that a device counts as one packet, of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Uncounted {
    /// Packets by the program and by the device when counters were sent last.
    last: Option<(u64, u64)>,
    /// Headers of the super-packets that were sampled, and how many were.
    header_bytes: u64,
    headers: u64,
    /// Segments that the device did not count, and their headers' bytes.
    packets: u64,
    octets: u64,
}

impl Uncounted {
    /// A super-packet was sampled whose headers have so many bytes.
    pub(crate) fn sampled(&mut self, header_bytes: u32) {
        self.header_bytes = self.header_bytes.saturating_add(header_bytes.into());
        self.headers += 1;
    }

    /// The program has seen `seen` packets and the device has counted `counted`, both since their start.
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

/// The records of a device; `uncounted` is of what it receives and of what it sends.
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
        // Linux counts broadcasts among them.
        in_multicast: low(of.multicast),
        in_broadcast: COUNTER_UNKNOWN,
        in_discards: low(of.rx_dropped),
        in_errors: low(of.rx_errors),
        in_unknown_protocols: COUNTER_UNKNOWN,
        out_octets: octets(of.tx_bytes.wrapping_add(sent.octets), tx_packets),
        // Linux does not tell them apart.
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

/// Counters of 32 bits start over.
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
        // A card that counts segments, a little late.
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
        // The device was made anew.
        of.update(7_040, 0);
        assert_eq!(of.packets, 3_939);
    }

    #[test]
    fn the_rate_follows_the_speed() {
        let gbps = |speed: u64| default_rate(Some(speed * 1_000_000_000));
        assert_eq!([400, 100, 25, 10, 1].map(gbps), [20_000, 5_000, 1_250, 500, 50]);
        assert_eq!(default_rate(Some(10_000_000)), 50);
        assert_eq!(default_rate(Some(u64::MAX)), RATE_MAX);
        assert_eq!(default_rate(None), 1000);
    }
}
