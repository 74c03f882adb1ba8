//! Division of a request's files into batches, the unit of one order.

use std::ops::Range;

use crate::orders::FILES_MAX;

/// Largest size of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Number of files, at most [`FILES_MAX`].
    pub files: usize,
    /// Total bytes of files with a known size; a larger file is a batch of its own.
    pub bytes: u64,
}

impl Default for BatchLimits {
    /// 1 TiB takes 88 s at 100 Gb/s, so a lost host delays other work only briefly.
    fn default() -> Self {
        Self { files: FILES_MAX, bytes: 1 << 40 }
    }
}

/// Splits files with these sizes into batches, in their order.
#[must_use]
pub fn split(sizes: &[Option<u64>], limits: BatchLimits) -> Vec<Range<usize>> {
    let files = limits.files.clamp(1, FILES_MAX);
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (at, size) in sizes.iter().enumerate() {
        let more = bytes.saturating_add(size.unwrap_or(0));
        if at > start && (at - start >= files || more > limits.bytes) {
            batches.push(start..at);
            (start, bytes) = (at, size.unwrap_or(0));
        } else {
            bytes = more;
        }
    }
    if start < sizes.len() {
        batches.push(start..sizes.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batches_end_at_limits() {
        let limits = BatchLimits { files: 3, bytes: 100 };
        let sizes = [Some(60), Some(40), Some(1), None, None, None, None, Some(500), Some(1)];
        assert_eq!(split(&sizes, limits), [0..2, 2..5, 5..7, 7..8, 8..9]);
        assert_eq!(split(&[], limits), []);
    }

    proptest! {
        #[test]
        fn every_file_is_in_one_batch(
            sizes in prop::collection::vec(prop::option::of(0..200_u64), 0..300),
            files in 1..50_usize,
            bytes in 1..1_000_u64,
        ) {
            let batches = split(&sizes, BatchLimits { files, bytes });
            let mut next = 0;
            for batch in &batches {
                prop_assert_eq!(batch.start, next);
                prop_assert!(!batch.is_empty() && batch.len() <= files);
                let sum: u64 = sizes[batch.clone()].iter().flatten().sum();
                prop_assert!(sum <= bytes || batch.len() == 1);
                next = batch.end;
            }
            prop_assert_eq!(next, sizes.len());
        }
    }
}
