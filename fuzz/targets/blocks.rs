//! Block headers and the tables of packs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_protocol::block::{FrameKind, HEADER_BYTES, Header, pack_items};

fuzz_target!(|bytes: &[u8]| {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    // Few random inputs have a valid checksum, so a header is also built from the bytes.
    if let Ok(header) = Header::decode(head) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
    let header = Header {
        kind: FrameKind::Pack,
        payload_bytes: payload.len() as u32,
        bytes: u64::from(head[0]),
        ..Header::end()
    };
    if let Ok(items) = pack_items(&header, payload) {
        for (start, item) in items {
            assert!(start + item.bytes as usize <= payload.len());
        }
    }
});
