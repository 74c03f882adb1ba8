//! Ranges of a file that wait for a connection.

use penstock_mover::FileUpload;

use crate::range::ByteRange;

/// Least bytes of a range, which hide a round trip.
pub(crate) const RANGE_BYTES_MIN: u64 = 16 << 20;

/// Most bytes of a range, so that connections end together.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Ranges for each connection.
const RANGES_PER_STREAM: u64 = 4;

/// Ranges not yet taken, as one interval to cut from and the rests of ranges whose connection broke.
#[derive(Debug)]
pub(crate) struct RangeQueue {
    next: u64,
    end: u64,
    range_bytes: u64,
    returned: Vec<ByteRange>,
}

impl RangeQueue {
    /// Creates a queue for a file of `bytes` over `streams` connections.
    pub(crate) fn new(bytes: u64, streams: usize) -> Self {
        let share = bytes / (RANGES_PER_STREAM * streams.max(1) as u64);
        let share = share.next_multiple_of(FileUpload::RANGE_ALIGNMENT);
        let range_bytes = share.clamp(RANGE_BYTES_MIN, RANGE_BYTES_MAX);
        Self { next: 0, end: bytes, range_bytes, returned: Vec::new() }
    }

    /// Takes the next range; `None` if all are taken.
    pub(crate) fn take(&mut self) -> Option<ByteRange> {
        if let Some(range) = self.returned.pop() {
            return Some(range);
        }
        let bytes = self.range_bytes.min(self.end - self.next);
        let range = ByteRange { start: self.next, bytes };
        self.next += bytes;
        Some(range).filter(|range| range.bytes > 0)
    }

    /// Returns the rest of a range of which `done` bytes are written.
    pub(crate) fn put_back(&mut self, range: ByteRange, done: u64) {
        if done < range.bytes {
            self.returned.push(ByteRange { start: range.start + done, bytes: range.bytes - done });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn each_byte_is_taken_once(
            bytes in 0_u64..1 << 36,
            streams in 0_usize..20,
            done in prop::collection::vec(0.0..1.0_f64, 0..20),
        ) {
            let mut queue = RangeQueue::new(bytes, streams);
            let (mut written, mut done) = (Vec::new(), done.into_iter());
            while let Some(range) = queue.take() {
                prop_assert!(range.bytes > 0);
                let part = done.next().map_or(range.bytes, |part| (range.bytes as f64 * part) as u64);
                written.push((range.start, part));
                queue.put_back(range, part);
            }
            written.sort_unstable();
            let mut end = 0;
            for (start, part) in written.into_iter().filter(|(_, part)| *part > 0) {
                prop_assert_eq!(start, end);
                end += part;
            }
            prop_assert_eq!(end, bytes);
        }
    }
}
