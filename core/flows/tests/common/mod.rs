//! Reads captured datagrams and writes packets as a pcap file.

use std::fs;
use std::path::Path;

/// The datagrams of a file in `tests/data`.
#[allow(dead_code, reason = "not every test reads one")]
pub(crate) fn datagrams(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut rest, mut datagrams) = (&bytes[..], Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (datagram, behind) = behind.split_at(u16::from_be_bytes(*length).into());
        datagrams.push(datagram.to_vec());
        rest = behind;
    }
    datagrams
}

/// A capture file (libpcap, microseconds) of Ethernet frames, cut after `snap` bytes.
#[allow(dead_code, reason = "not every test writes one")]
pub(crate) fn capture(frames: &[Vec<u8>], snap: usize) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xA1B2_C3D4_u32, 2 << 16 | 4, 0, 0, 65_535, 1] {
        file.extend(word.to_be_bytes());
    }
    for (at, frame) in frames.iter().enumerate() {
        let kept = &frame[..frame.len().min(snap)];
        for word in [at as u32, 0, kept.len() as u32, frame.len() as u32] {
            file.extend(word.to_be_bytes());
        }
        file.extend(kept);
    }
    file
}
