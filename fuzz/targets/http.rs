//! Requests of HTTP and WebDAV to the gateway: paths, ranges, digests, third-party copies, bodies of PROPFIND.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_gateway::fuzzing::{property_body, request_head};

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => property_body(data),
        _ => {
            let Some((size, head)) = data.split_first_chunk::<8>() else { return };
            // Small files and large ones.
            request_head(head, u64::from_le_bytes(*size) >> (kind / 4 % 64));
        }
    }
});
