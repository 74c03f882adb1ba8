//! Ethernet frames with a virtio network header: segment count, splitting, ECN marking.
//!
//! `struct virtio_net_hdr` of virtio 1.2 section 5.1.6, in native byte order.

use std::ops::Range;

use penstock_sys::net::TAP_HEADER_BYTES;

const GSO_TYPE_OFFSET: usize = 1;
const GSO_SIZE_OFFSET: usize = 4;
const CSUM_START_OFFSET: usize = 6;
const CSUM_OFFSET_OFFSET: usize = 8;
const VIRTIO_NET_HDR_GSO_NONE: u8 = 0;
const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
/// Only the first segment keeps TCP's CWR flag.
const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

const ETHERTYPE_OFFSET: usize = TAP_HEADER_BYTES + 12;
const ETHERTYPE_BYTES: usize = 2;
/// IEEE 802.1Q tag: TPID and TCI before the EtherType.
const VLAN_TAG_BYTES: usize = 4;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86DD;
/// TCP flags, RFC 9293 section 3.1.
const TCP_FLAG_FIN: u8 = 0x01;
const TCP_FLAG_PSH: u8 = 0x08;
const TCP_FLAG_CWR: u8 = 0x80;

/// A frame of a TAP device with the offsets of its headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct TapFrame<'a> {
    bytes: &'a [u8],
    network: FrameProtocol,
    /// Offset of the IP header, behind the Ethernet header and a tag.
    ip: usize,
    /// For super-packets: offset of TCP's payload, and payload bytes per segment.
    gso: Option<(usize, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameProtocol {
    V4,
    V6,
    Other,
}

impl<'a> TapFrame<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let tag =
            if be16(bytes, ETHERTYPE_OFFSET) == Some(ETH_P_8021Q) { VLAN_TAG_BYTES } else { 0 };
        let network = match be16(bytes, ETHERTYPE_OFFSET + tag) {
            Some(ETH_P_IP) => FrameProtocol::V4,
            Some(ETH_P_IPV6) => FrameProtocol::V6,
            _ => FrameProtocol::Other,
        };
        let ip = ETHERTYPE_OFFSET + tag + ETHERTYPE_BYTES;
        Self { bytes, network, ip, gso: gso(bytes, network, ip) }
    }

    /// Bytes of the VLAN tag.
    pub(super) const fn tag_bytes(&self) -> u64 {
        (self.ip - ETHERTYPE_OFFSET - ETHERTYPE_BYTES) as u64
    }

    /// True for IP packets other than link-local multicast.
    pub(super) fn is_traffic(&self) -> bool {
        let to_link = self.bytes.get(self.ip + 24..self.ip + 26) == Some(&[0xFF, 0x02]);
        match self.network {
            FrameProtocol::V4 => true,
            FrameProtocol::V6 => !to_link,
            FrameProtocol::Other => false,
        }
    }

    pub(super) fn segments(&self) -> usize {
        self.gso.map_or(1, |(payload, size)| (self.bytes.len() - payload).div_ceil(size).max(1))
    }

    /// Total bytes of the IP packets, with repeated headers.
    pub(super) fn ip_bytes(&self) -> u64 {
        let headers = self.gso.map_or(0, |(payload, _)| payload - self.ip);
        (self.bytes.len().saturating_sub(self.ip) + (self.segments() - 1) * headers) as u64
    }

    /// True if it is ECN-capable (ECT).
    pub(super) fn is_markable(&self) -> bool {
        let byte = self.bytes.get(self.ip + 1).copied().unwrap_or(0);
        match self.network {
            FrameProtocol::V4 => byte & 0x03 != 0,
            FrameProtocol::V6 => byte & 0x30 != 0,
            FrameProtocol::Other => false,
        }
    }

    /// Extracts consecutive segments as a frame.
    pub(super) fn part(&self, segments: Range<usize>) -> Vec<u8> {
        let Some((payload, size)) = self.gso else { return self.bytes.to_vec() };
        let begin = payload + segments.start * size;
        let end = (payload + segments.end * size).min(self.bytes.len());
        let mut part = self.bytes[..payload].to_vec();
        part.extend_from_slice(&self.bytes[begin..end]);
        let tcp = le16(&part, CSUM_START_OFFSET).map_or(payload, |start| start + TAP_HEADER_BYTES);
        let is_last = end == self.bytes.len();
        let flags = &mut part[tcp + 13];
        if !is_last {
            *flags &= !(TCP_FLAG_FIN | TCP_FLAG_PSH);
        }
        if segments.start > 0 {
            *flags &= !TCP_FLAG_CWR;
        }
        let sequence = &mut part[tcp + 4..tcp + 8];
        let number = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
        let number = number.wrapping_add((segments.start * size) as u32);
        sequence.copy_from_slice(&number.to_be_bytes());
        self.shorten(&mut part, tcp, segments.start);
        if segments.len() == 1 {
            part[GSO_TYPE_OFFSET] = VIRTIO_NET_HDR_GSO_NONE;
            part[GSO_SIZE_OFFSET..GSO_SIZE_OFFSET + 2].fill(0);
        }
        part
    }

    /// Adjusts lengths and checksums of an extracted frame.
    fn shorten(&self, part: &mut [u8], tcp: usize, first: usize) {
        let length = |bytes: &[u8]| u16::try_from(bytes.len() - tcp).unwrap_or(u16::MAX);
        let (before, now) = (length(self.bytes), length(part));
        // The field holds the pseudo header's sum, which includes the length.
        let at = tcp + le16(part, CSUM_OFFSET_OFFSET).unwrap_or(0);
        if let Some(field) = part.get_mut(at..at + 2) {
            let sum = u32::from(u16::from_be_bytes([field[0], field[1]]));
            let sum = folded(sum + u32::from(!before) + u32::from(now));
            field.copy_from_slice(&sum.to_be_bytes());
        }
        let ip = self.ip;
        match self.network {
            FrameProtocol::V4 => {
                let total = u16::try_from(part.len() - ip).unwrap_or(u16::MAX);
                part[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
                let id = be16(part, ip + 4).unwrap_or(0).wrapping_add(first as u16);
                part[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
                refresh(part, ip);
            }
            FrameProtocol::V6 => {
                let payload = u16::try_from(part.len() - ip - 40).unwrap_or(u16::MAX);
                part[ip + 4..ip + 6].copy_from_slice(&payload.to_be_bytes());
            }
            FrameProtocol::Other => {}
        }
    }
}

/// Sets ECN CE on a frame.
pub(super) fn mark(bytes: &mut [u8]) {
    let TapFrame { network, ip, .. } = TapFrame::of(bytes);
    let Some(class) = bytes.get_mut(ip + 1) else { return };
    match network {
        FrameProtocol::V4 => {
            *class |= 0x03;
            refresh(bytes, ip);
        }
        FrameProtocol::V6 => *class |= 0x30,
        FrameProtocol::Other => {}
    }
}

/// Payload offset and payload bytes per segment of a super-packet; `None` for a single or malformed packet.
fn gso(bytes: &[u8], network: FrameProtocol, ip: usize) -> Option<(usize, usize)> {
    let ip_header = match network {
        FrameProtocol::V4 => 20,
        FrameProtocol::V6 => 40,
        FrameProtocol::Other => return None,
    };
    let kind = bytes.get(GSO_TYPE_OFFSET)? & !VIRTIO_NET_HDR_GSO_ECN;
    if kind != VIRTIO_NET_HDR_GSO_TCPV4 && kind != VIRTIO_NET_HDR_GSO_TCPV6 {
        return None;
    }
    let size = le16(bytes, GSO_SIZE_OFFSET).filter(|size| *size > 0)?;
    let tcp = le16(bytes, CSUM_START_OFFSET)? + TAP_HEADER_BYTES;
    let header = usize::from(bytes.get(tcp + 12)? >> 4) * 4;
    let payload = tcp + header;
    (tcp >= ip + ip_header && header >= 20 && payload < bytes.len()).then_some((payload, size))
}

/// Recomputes the checksum of an IPv4 header.
fn refresh(bytes: &mut [u8], ip: usize) {
    let length = usize::from(bytes[ip] & 15) * 4;
    let Some(header) = bytes.get_mut(ip..ip + length) else { return };
    if header.len() < 20 {
        return;
    }
    header[10..12].fill(0);
    let words =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = !folded(words.sum());
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Folds a sum into a checksum (RFC 1071).
const fn folded(mut sum: u32) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A field of the virtio header.
fn le16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 or IPv6 super-packet as read from a TAP device.
    fn frame(v6: bool, tagged: bool, size: u16, payload: usize) -> Vec<u8> {
        let tag: &[u8] = if tagged { &[0x81, 0x00, 0x07, 0xEA] } else { &[] };
        let network = if v6 { 40 } else { 20 };
        let mut bytes = vec![0; TAP_HEADER_BYTES];
        bytes[0] = 1;
        bytes[GSO_TYPE_OFFSET] =
            if v6 { VIRTIO_NET_HDR_GSO_TCPV6 } else { VIRTIO_NET_HDR_GSO_TCPV4 };
        bytes[GSO_SIZE_OFFSET..GSO_SIZE_OFFSET + 2].copy_from_slice(&size.to_ne_bytes());
        let start = (14 + tag.len() + network) as u16;
        bytes[CSUM_START_OFFSET..CSUM_START_OFFSET + 2].copy_from_slice(&start.to_ne_bytes());
        bytes[CSUM_OFFSET_OFFSET..CSUM_OFFSET_OFFSET + 2].copy_from_slice(&16_u16.to_ne_bytes());
        bytes.extend([2; 12]);
        bytes.extend(tag);
        bytes.extend(if v6 { ETH_P_IPV6 } else { ETH_P_IP }.to_be_bytes());
        let mut ip = vec![0; network];
        let length = (32 + payload) as u16;
        if v6 {
            ip[0] = 0x60;
            ip[4..6].copy_from_slice(&length.to_be_bytes());
            ip[6] = 6;
        } else {
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(length + 20).to_be_bytes());
            ip[9] = 6;
        }
        let at = bytes.len();
        bytes.extend(ip);
        let mut tcp = vec![0; 32];
        tcp[4..8].copy_from_slice(&1000_u32.to_be_bytes());
        tcp[12] = 8 << 4;
        tcp[13] = TCP_FLAG_PSH | TCP_FLAG_FIN | TCP_FLAG_CWR;
        tcp[16..18].copy_from_slice(&folded(6 + u32::from(length)).to_be_bytes());
        bytes.extend(tcp);
        bytes.extend((0..payload).map(|byte| byte as u8));
        if !v6 {
            refresh(&mut bytes, at);
        }
        bytes
    }

    #[test]
    fn split_matches_original_segments() {
        for (v6, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
            let bytes = frame(v6, tagged, 1000, 3500);
            let whole = TapFrame::of(&bytes);
            assert_eq!(whole.segments(), 4);
            assert_eq!(whole.tag_bytes(), if tagged { 4 } else { 0 });
            assert_eq!(whole.ip_bytes(), 3500 + 4 * if v6 { 72 } else { 52 });
            let (payload, _) = whole.gso.unwrap();
            let part = whole.part(1..3);
            let tcp = payload - 32;
            assert_eq!(&part[tcp + 4..tcp + 8], &2000_u32.to_be_bytes());
            assert_eq!(part[tcp + 13], 0);
            assert_eq!(&part[payload..], &bytes[payload + 1000..payload + 3000]);
            // The sum of the pseudo header: protocol and length.
            assert_eq!(be16(&part, tcp + 16), Some(folded(6 + 2032)));
            let last = whole.part(3..4);
            assert_eq!(
                (last[GSO_TYPE_OFFSET], last[tcp + 13]),
                (VIRTIO_NET_HDR_GSO_NONE, TCP_FLAG_PSH | TCP_FLAG_FIN)
            );
            assert_eq!(TapFrame::of(&last).segments(), 1);
            assert_eq!(whole.part(0..1)[tcp + 13], TCP_FLAG_CWR);
            let ip: u64 =
                (0..4).map(|one| TapFrame::of(&whole.part(one..one + 1)).ip_bytes()).sum();
            assert_eq!(ip, whole.ip_bytes());
        }
    }

    #[test]
    fn ce_mark_keeps_header_valid() {
        for tagged in [false, true] {
            let mut bytes = frame(false, tagged, 1000, 100);
            assert!(!TapFrame::of(&bytes).is_markable());
            mark(&mut bytes);
            let marked = TapFrame::of(&bytes);
            assert!(marked.is_markable());
            let header = &bytes[marked.ip..marked.ip + 20];
            let words = header
                .chunks_exact(2)
                .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
            assert_eq!(folded(words.sum()), 0xFFFF);
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn no_frame_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300), v6: bool, tagged: bool, kind: u8) {
            let at = ETHERTYPE_OFFSET + if tagged { VLAN_TAG_BYTES } else { 0 };
            if bytes.len() >= at + ETHERTYPE_BYTES {
                bytes[GSO_TYPE_OFFSET] = kind;
                bytes[ETHERTYPE_OFFSET..ETHERTYPE_OFFSET + 2].copy_from_slice(&ETH_P_8021Q.to_be_bytes());
                let kind = if v6 { ETH_P_IPV6 } else { ETH_P_IP };
                bytes[at..at + ETHERTYPE_BYTES].copy_from_slice(&kind.to_be_bytes());
            }
            let frame = TapFrame::of(&bytes);
            let _ = (frame.is_traffic(), frame.ip_bytes(), frame.is_markable());
            let lost = frame.segments() / 2;
            let _ = frame.part(lost..frame.segments());
            mark(&mut bytes);
        }

        /// The remaining payload appears once and in order, for any losses.
        #[test]
        fn payload_is_kept(v6: bool, tagged: bool, size in 100_u16..2000, payload in 1_usize..20_000, cut in 0_usize..200) {
            let bytes = frame(v6, tagged, size, payload);
            let whole = TapFrame::of(&bytes);
            let (begin, _) = whole.gso.unwrap();
            let cut = cut % whole.segments().max(1);
            let mut together = Vec::new();
            for range in [0..cut, cut..whole.segments()] {
                if !range.is_empty() {
                    together.extend_from_slice(&whole.part(range)[begin..]);
                }
            }
            prop_assert_eq!(&together[..], &bytes[begin..]);
        }
    }
}
