//! Ranges of a file with their digest parts.
//!
//! Adjacent ranges are merged where the digest allows it (any two with a checksum, two halves of a
//! subtree with BLAKE3), so that a file of any size needs few ranges.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::digest::{self, Algorithm, Digest, DigestPart};
use crate::wire::wire_struct;

wire_struct! {
    /// Range of a file with the digest part of its bytes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Extent {
        /// Offset of the first byte.
        pub offset: u64,
        /// Length in bytes, never zero.
        pub bytes: u64,
        /// Digest part of the bytes.
        pub part: [u8; 32],
    }
}

/// A range that partly overlaps a recorded one, or ends beyond the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block at offset {offset} of {bytes} bytes crosses a range that is already there")]
pub struct Crossing {
    /// Offset of the rejected range.
    pub offset: u64,
    /// Length of the rejected range in bytes.
    pub bytes: u64,
}

/// Smallest window within which [`coalesce`] merges ranges.
const RANGE_BYTES_MIN: u64 = 4 << 20;

/// Sorts the ranges of a file and merges adjacent ones to a few thousand. Drops ranges that overlap an
/// earlier one or exceed the file. Merged ranges stay short: one that fails verification costs about a
/// thousandth of the file.
#[must_use]
pub fn coalesce(algorithm: Algorithm, file_bytes: u64, extents: Vec<Extent>) -> Vec<Extent> {
    const RANGES_PER_FILE: u64 = 1_024;
    let window_bytes = (file_bytes / RANGES_PER_FILE).max(RANGE_BYTES_MIN).next_power_of_two();
    let mut all = Extents::new(Algorithm::None, file_bytes);
    let mut windows: BTreeMap<u64, Extents> = BTreeMap::new();
    for Extent { offset, bytes, part } in extents {
        // Journals may record a range twice; the first record counts.
        if all.insert(offset, bytes, DigestPart::default()) == Ok(true) {
            let window = windows.entry(offset / window_bytes);
            let window = window.or_insert_with(|| Extents::new(algorithm, file_bytes));
            let _ = window.insert(offset, bytes, DigestPart(part));
        }
    }
    windows.values().flat_map(Extents::to_extents).collect()
}

/// Recorded ranges of one file.
#[derive(Debug, Clone)]
pub struct Extents {
    algorithm: Algorithm,
    file_bytes: u64,
    ranges: BTreeMap<u64, (u64, DigestPart)>,
    covered: u64,
}

impl Extents {
    /// Creates an empty set for a file of `file_bytes`.
    #[must_use]
    pub fn new(algorithm: Algorithm, file_bytes: u64) -> Self {
        Self { algorithm, file_bytes, ranges: BTreeMap::new(), covered: 0 }
    }

    /// Number of bytes covered.
    #[must_use]
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// True if the whole file is covered.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.covered == self.file_bytes
    }

    /// Adds a range. Returns `Ok(false)` if it was already covered.
    ///
    /// # Errors
    /// If it is covered in part or exceeds the file; no correct peer sends that.
    pub fn insert(&mut self, offset: u64, bytes: u64, part: DigestPart) -> Result<bool, Crossing> {
        let crossing = Crossing { offset, bytes };
        let end = offset.checked_add(bytes).filter(|end| *end <= self.file_bytes);
        let end = end.ok_or_else(|| crossing.clone())?;
        if bytes == 0 || self.gaps(offset..end).is_empty() {
            return Ok(false);
        }
        if self.touches(offset, end) {
            return Err(crossing);
        }
        self.covered += bytes;
        self.ranges.insert(offset, (end, part));
        let mut start = offset;
        while let Some(merged) = self.merge_with_neighbour(start) {
            start = merged;
        }
        Ok(true)
    }

    fn touches(&self, offset: u64, end: u64) -> bool {
        self.ranges.range(..end).next_back().is_some_and(|(_, (last_end, _))| *last_end > offset)
    }

    /// Merges the range at `start` with a neighbour and returns the start of the result.
    fn merge_with_neighbour(&mut self, start: u64) -> Option<u64> {
        let before = self.ranges.range(..start).next_back().map(|(before, _)| *before);
        let left =
            [before, Some(start)].into_iter().flatten().find(|left| self.can_merge(*left))?;
        let (middle, left_part) = self.ranges[&left];
        let (end, right_part) = self.ranges.remove(&middle)?;
        let part = digest::merge(self.algorithm, left_part, right_part, end - middle);
        self.ranges.insert(left, (end, part));
        Some(left)
    }

    fn can_merge(&self, left: u64) -> bool {
        let Some(&(middle, _)) = self.ranges.get(&left) else { return false };
        let Some(&(end, _)) = self.ranges.get(&middle) else { return false };
        match self.algorithm {
            // Only the two halves of a subtree merge, and the root is hashed differently.
            Algorithm::Blake3 => {
                let half = middle - left;
                let whole = left == 0 && end == self.file_bytes;
                half == end - middle
                    && half.is_power_of_two()
                    && left.is_multiple_of(2 * half)
                    && !whole
            }
            _ => true,
        }
    }

    /// Missing ranges inside `within`, in order.
    #[must_use]
    pub fn gaps(&self, within: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        let before = self.ranges.range(..within.start).next_back();
        for (&start, &(end, _)) in before.into_iter().chain(self.ranges.range(within.clone())) {
            if start > at {
                gaps.push(at..start.min(within.end));
            }
            at = at.max(end);
            if at >= within.end {
                break;
            }
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// Recorded ranges, in order.
    #[must_use]
    pub fn to_extents(&self) -> Vec<Extent> {
        self.ranges
            .iter()
            .map(|(&offset, &(end, part))| Extent { offset, bytes: end - offset, part: part.0 })
            .collect()
    }

    /// Digest of the file, if it is complete and the algorithm combines.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        let parts: Vec<_> = self
            .ranges
            .iter()
            .map(|(&offset, &(end, part))| (offset, end - offset, part))
            .collect();
        digest::combine(self.algorithm, self.file_bytes, &parts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn overlapping_extent_is_rejected() {
        let mut extents = Extents::new(Algorithm::Crc32c, 40);
        assert_eq!(extents.insert(0, 10, DigestPart::default()), Ok(true));
        assert_eq!(extents.insert(20, 10, DigestPart::default()), Ok(true));
        assert_eq!(extents.insert(20, 10, DigestPart::default()), Ok(false));
        assert_eq!(extents.insert(2, 3, DigestPart::default()), Ok(false));
        assert!(extents.insert(5, 10, DigestPart::default()).is_err());
        assert!(extents.insert(15, 10, DigestPart::default()).is_err());
        assert!(extents.insert(u64::MAX, 2, DigestPart::default()).is_err());
        assert_eq!(extents.gaps(0..40), [10..20, 30..40]);
        assert_eq!(extents.gaps(5..25), vec![10..20]);
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// Blocks in any order give the digest of the whole and few ranges.
        #[test]
        fn order_does_not_matter(
            data in proptest::collection::vec(any::<u8>(), 1..20_000),
            order in any::<prop::sample::Index>(),
            blake in any::<bool>(),
        ) {
            let algorithm = if blake { Algorithm::Blake3 } else { Algorithm::Crc32c };
            let total = data.len() as u64;
            let mut blocks: Vec<_> = data.chunks(1024).enumerate().collect();
            let middle = order.index(blocks.len());
            blocks.rotate_left(middle);
            blocks.reverse();
            let mut extents = Extents::new(algorithm, total);
            for (index, block) in blocks {
                prop_assert!(extents.digest().is_none());
                let offset = index as u64 * 1024;
                let part = digest::part(algorithm, offset, total, block, digest::crc32c(block));
                prop_assert_eq!(extents.insert(offset, block.len() as u64, part), Ok(true));
            }
            let mut serial = digest::Serial::new(algorithm).expect("an algorithm");
            serial.update(&data);
            prop_assert_eq!(extents.digest(), Some(serial.finish()));
            prop_assert_eq!(extents.covered(), total);
            prop_assert!(extents.gaps(0..total).is_empty() && extents.is_whole());
            prop_assert!(extents.to_extents().len() <= 16);
        }
    }
}
