//! Submissions of FTS3 clients, reports of third-party copies, and checksums.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_control::fts::checksum::FtsChecksum;
use penstock_control::fts::progress::CopyReport;
use penstock_control::fts::submission::{FTS_FILES_MAX, FtsSubmission};

fuzz_target!(|data: &[u8]| {
    if let Ok(job) = FtsSubmission::parse(data) {
        assert!((1..=FTS_FILES_MAX).contains(&job.transfers.len()));
        assert!((1..=5).contains(&job.params.priority));
    }
    let mut whole = CopyReport::default();
    whole.feed(data);
    let mut pieces = CopyReport::default();
    data.chunks(7).for_each(|piece| pieces.feed(piece));
    assert_eq!((whole.bytes(), whole.finish()), (pieces.bytes(), pieces.finish()));
    let text = String::from_utf8_lossy(data);
    let (checksum, header) = text.split_once('\n').unwrap_or((&text, ""));
    if let Some(checksum) = FtsChecksum::parse(checksum) {
        let _ = checksum.find_in(header);
    }
});
