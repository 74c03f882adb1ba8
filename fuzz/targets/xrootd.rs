//! Untrusted requests of `root://`: each is read within the limits of the server, or refused with a text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_xrootd::request::{READV_SEGMENT_BYTES_MAX, READV_SEGMENTS_MAX, REQUEST_HEAD_BYTES};
use penstock_xrootd::{RequestHead, XrdPath, XrdRequest, response};

fn check_path(path: &XrdPath<'_>) {
    let names = path.normalized();
    assert!(names.starts_with(b"/") && !names.contains(&0) && !names.contains(&b'?'));
    assert!(names.split(|byte| *byte == b'/').all(|name| name != b".."));
    let _ = (path.token(), path.value("cks.type"), path.value("scitag.flow"));
}

fuzz_target!(|bytes: &[u8]| {
    let Some((head, body)) = bytes.split_first_chunk::<REQUEST_HEAD_BYTES>() else { return };
    let head = RequestHead::parse(head);
    let _ = head.body_len();
    match XrdRequest::parse(&head, body) {
        Err(error) => {
            assert!(!error.text.is_empty());
            let _ = response::error(head.stream_id, &error);
        }
        Ok(XrdRequest::ReadVector(segments)) => {
            assert!(segments.len() <= READV_SEGMENTS_MAX);
            assert!(segments.iter().all(|one| one.bytes <= READV_SEGMENT_BYTES_MAX));
        }
        Ok(
            XrdRequest::Stat { path, .. }
            | XrdRequest::Dirlist { path, .. }
            | XrdRequest::Open { path, .. }
            | XrdRequest::Locate { path, .. }
            | XrdRequest::Checksum(path)
            | XrdRequest::Space(path),
        ) => check_path(&path),
        Ok(_) => {}
    }
});
