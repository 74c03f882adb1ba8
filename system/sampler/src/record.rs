//! Record of the ring buffer: a sampled packet, and its lengths on the wire.
//!
//! A super-packet is segmented by the device, or was merged from segments, so its own length does not occur on a link.
//! Each segment repeats its headers, whose length comes from parsing them.

use penstock_flows::packet::{Extensions, FirstHeader, Packet};
use penstock_flows::sflow::record::{HEADER_ETHERNET, HEADER_IPV4, HEADER_IPV6};

use crate::program::PacketDirection;

/// Sampled bytes of a packet, and fixed bytes of a record: `struct sample` of bpf/sampler.bpf.c.
pub(crate) const HEADER_BYTES: usize = 160;
const FIXED_BYTES: usize = 56;

/// Encoded record (`struct sample`).
pub(crate) type RingRecord = [u8; FIXED_BYTES + HEADER_BYTES];

const VLAN_BYTES: usize = 4;
/// Offset of the VLAN tag in a frame, behind both addresses.
const VLAN_AT: usize = 12;

/// Ethernet frame check sequence, which the kernel does not see.
pub(crate) const FCS_BYTES: u32 = 4;

/// Jumbo payload header of BIG TCP over IPv6 (RFC 2675), which the driver removes.
const JUMBO_BYTES: u32 = 8;

/// A sampled packet, or the sampled segments of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledSegments<'a> {
    pub(crate) index: u32,
    pub(crate) direction: PacketDirection,
    /// Packets counted by this CPU in this direction, this one included.
    pub(crate) packets: u64,
    pub(crate) cpu: u32,
    length: u32,
    segments: u32,
    segment_bytes: u32,
    /// Number of sampled segments.
    pub(crate) count: u32,
    /// True if the last segment is among them.
    last: bool,
    /// VLAN tag that the device stripped or will insert.
    vlan: Option<[u8; VLAN_BYTES]>,
    header: &'a [u8],
}

impl Frame<'_> {
    /// Returns the sampled bytes, and the lengths on the wire of a full segment and of the last one.
    #[must_use]
    pub fn sampled(&self) -> (&[u8], u32, u32) {
        (self.header, self.length, self.last_length)
    }
}

/// Sampled packet in its form on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Header protocol number of sFlow version 5.
    pub(crate) protocol: u32,
    /// Length on the wire with frame check sequence, of all segments but the last.
    pub(crate) length: u32,
    /// Length on the wire of the last segment.
    pub(crate) last_length: u32,
    /// 1 if the last segment was sampled, else 0.
    pub(crate) last: u32,
    /// Bytes of `length` that cannot be sampled: the frame check sequence.
    pub(crate) stripped: u32,
    pub(crate) header: &'a [u8],
}

impl Frame<'_> {
    /// Sampled bytes of a segment of `length`, which may have fewer than its packet.
    pub(crate) fn header_of(&self, length: u32) -> &[u8] {
        let bytes = length.saturating_sub(self.stripped) as usize;
        &self.header[..self.header.len().min(bytes)]
    }
}

impl<'a> SampledSegments<'a> {
    /// Parses a record; `None` if it is malformed.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let kept = (word(28)? as usize).min(HEADER_BYTES);
        let vlan = (half(32)? != 0).then_some(()).and_then(|()| {
            // The TPID is in network order already.
            let ([a, b], [c, d]) = (half(36)?.to_ne_bytes(), half(34)?.to_be_bytes());
            Some([a, b, c, d])
        });
        Some(Self {
            index: word(0)?,
            direction: PacketDirection::of(word(4)?)?,
            packets: u64::from_ne_bytes(bytes.get(40..48)?.try_into().ok()?),
            cpu: word(48)?,
            length: word(8)?,
            segments: word(12)?.max(1),
            segment_bytes: word(16)?,
            count: word(20)?,
            last: word(24)? != 0,
            vlan,
            header: bytes.get(FIXED_BYTES..FIXED_BYTES + kept)?,
        })
    }

    /// Returns the packet as on the wire. `ethernet` is true if it begins with an Ethernet header; `room` is the buffer for
    /// a header with its VLAN tag inserted.
    pub fn frame<'b>(&self, ethernet: bool, room: &'b mut Vec<u8>) -> Frame<'b>
    where
        'a: 'b,
    {
        let start = if ethernet { FirstHeader::Ethernet } else { FirstHeader::Ip };
        let is_v6 = self.header.first().is_some_and(|byte| byte >> 4 == 6);
        let protocol = match (ethernet, is_v6) {
            (true, _) => HEADER_ETHERNET,
            (false, true) => HEADER_IPV6,
            (false, false) => HEADER_IPV4,
        };
        let stripped = if ethernet { FCS_BYTES } else { 0 };
        let (mut length, mut last_length) = self.lengths(&Packet::read(start, self.header));
        let header = match self.vlan {
            Some(tag) if ethernet && self.header.len() >= VLAN_AT => {
                length = length.saturating_add(VLAN_BYTES as u32);
                last_length = last_length.saturating_add(VLAN_BYTES as u32);
                room.clear();
                room.extend_from_slice(&self.header[..VLAN_AT]);
                room.extend_from_slice(&tag);
                room.extend_from_slice(&self.header[VLAN_AT..]);
                room.as_slice()
            }
            _ => self.header,
        };
        let last = u32::from(self.last && self.segments > 1);
        let add = |length: u32| length.saturating_add(stripped);
        let (length, last_length) = (add(length), add(last_length));
        Frame { protocol, length, last_length, last, stripped, header }
    }

    /// Header bytes of each segment of a super-packet; `None` for a single packet, or if the headers cannot be parsed.
    pub(crate) fn segment_header_bytes(&self, ethernet: bool) -> Option<u32> {
        if self.segments == 1 || self.segment_bytes == 0 {
            return None;
        }
        let start = if ethernet { FirstHeader::Ethernet } else { FirstHeader::Ip };
        self.headers(&Packet::read(start, self.header))
    }

    fn headers(&self, packet: &Packet) -> Option<u32> {
        let at = packet.payload_at.map(u32::from).filter(|at| *at < self.length)?;
        let jumbo = packet
            .outer
            .is_some_and(|ip| ip.length_bytes == 0 && ip.extensions.has(Extensions::HOP_BY_HOP));
        Some(if jumbo { at.saturating_sub(JUMBO_BYTES) } else { at })
    }

    /// Lengths of a full segment and of the last one, without frame check sequence.
    fn lengths(&self, packet: &Packet) -> (u32, u32) {
        if self.segments == 1 || self.segment_bytes == 0 {
            return (self.length, self.length);
        }
        let at = packet.payload_at.map(u32::from);
        let (Some(at), Some(headers)) = (at, self.headers(packet)) else {
            // Unknown headers: the mean length, which lacks the repeated headers.
            return (self.length.div_ceil(self.segments), self.length.div_ceil(self.segments));
        };
        let before = self.segment_bytes.saturating_mul(self.segments - 1);
        let rest = (self.length - at).saturating_sub(before).min(self.segment_bytes);
        (headers.saturating_add(self.segment_bytes), headers.saturating_add(rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ethernet, IPv6 with a label and TCP with timestamps.
    fn header(next: u8, between: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        bytes.extend([0x86, 0xDD, 0x60, 3, 0, 0x38, 0, 0, next, 64]);
        bytes.extend([0xFD; 32]);
        bytes.extend(between);
        let mut tcp = [0; 32];
        tcp[12] = 8 << 4;
        bytes.extend(tcp);
        bytes
    }

    fn record(words: [u32; 8], halves: [u16; 4], header: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(halves.iter().flat_map(|half| half.to_ne_bytes()));
        bytes.extend([0; 16]);
        bytes.extend(header);
        bytes.resize(FIXED_BYTES + HEADER_BYTES, 0xEE);
        bytes
    }

    fn lengths(bytes: &[u8]) -> (u32, u32, u32) {
        let frame =
            SampledSegments::read(bytes).unwrap().frame(true, &mut Vec::new()).clone_lengths();
        (frame.0, frame.1, frame.2)
    }

    impl Frame<'_> {
        fn clone_lengths(&self) -> (u32, u32, u32) {
            (self.length, self.last_length, self.last)
        }
    }

    #[test]
    fn segments_repeat_the_headers() {
        // 14 + 40 + 32 bytes of headers, two segments of 1428 and one of 100.
        let plain = header(6, &[]);
        let length = 86 + 2 * 1428 + 100;
        let words = [7, 1, length, 3, 1428, 2, 1, plain.len() as u32];
        assert_eq!(lengths(&record(words, [0; 4], &plain)), (86 + 1428 + 4, 86 + 100 + 4, 1));
        // BIG TCP: a jumbo header of 8 bytes.
        let jumbo = header(0, &[6, 0, 0xC2, 4, 0, 1, 0, 0]);
        let words = [7, 1, length + 8, 3, 1428, 1, 0, jumbo.len() as u32];
        assert_eq!(lengths(&record(words, [0; 4], &jumbo)), (86 + 1428 + 4, 86 + 100 + 4, 0));
        // A single packet keeps its length.
        let words = [7, 0, 1000, 1, 0, 1, 1, plain.len() as u32];
        assert_eq!(lengths(&record(words, [0; 4], &plain)), (1004, 1004, 0));
    }

    #[test]
    fn short_segment_has_shorter_header() {
        let mut sampled = header(6, &[]);
        sampled.resize(HEADER_BYTES, 0xEE);
        // A segment of 1428 bytes and one of 10, after 86 bytes of headers.
        let words = [7, 1, 86 + 1428 + 10, 2, 1428, 2, 1, sampled.len() as u32];
        let record = record(words, [0; 4], &sampled);
        let mut room = Vec::new();
        let frame = SampledSegments::read(&record).unwrap().frame(true, &mut room);
        assert_eq!(frame.header_of(frame.length), &sampled[..]);
        assert_eq!(frame.header_of(frame.last_length), &sampled[..96]);
    }

    #[test]
    fn stripped_vlan_tag_is_restored() {
        let plain = header(6, &[]);
        let words = [7, 0, 1000, 1, 0, 1, 1, plain.len() as u32];
        let record = record(words, [1, 0x2064, 0x8100_u16.to_be(), 0], &plain);
        let mut room = Vec::new();
        let frame = SampledSegments::read(&record).unwrap().frame(true, &mut room);
        assert_eq!((frame.length, frame.stripped), (1008, 4));
        let packet = Packet::read(FirstHeader::Ethernet, frame.header);
        assert_eq!(packet.vlan, Some(0x64));
        assert_eq!(packet.outer.map(|ip| ip.flow_label), Some(0x30038));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn arbitrary_records_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..220), small: bool) {
            let mut bytes = bytes;
            if small {
                // Makes directions and lengths plausible.
                for at in [5, 6, 7, 10, 11, 14, 15, 30, 31] {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = 0;
                    }
                }
            }
            if let Some(taken) = SampledSegments::read(&bytes) {
                for ethernet in [false, true] {
                    let _ = taken.frame(ethernet, &mut Vec::new());
                }
            }
        }
    }
}
