//! Contents of a run: the batches that one order takes from a queue, and the place of their files in its list.

use crate::batch::{BatchKind, BatchLimits};
use crate::orders::FILES_MAX;

/// Most batches in one order.
pub const BATCHES_PER_ORDER_MAX: usize = 512;

/// Sequence numbers of the files of a batch in its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpan {
    /// Number of the first file.
    pub first: i64,
    /// Number of the last file.
    pub last: i64,
    /// Sorted numbers, if not contiguous.
    pub seqs: Option<Vec<i64>>,
}

impl FileSpan {
    /// True if the file with this number is in the batch.
    #[must_use]
    pub fn contains(&self, seq: i64) -> bool {
        (self.first..=self.last).contains(&seq)
            && self.seqs.as_ref().is_none_or(|seqs| seqs.binary_search(&seq).is_ok())
    }

    /// Returns the numbers, ascending.
    pub fn seqs(&self) -> impl Iterator<Item = i64> {
        let whole = self.seqs.is_none().then_some(self.first..=self.last);
        whole.into_iter().flatten().chain(self.seqs.iter().flatten().copied())
    }
}

/// Files of one batch in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPart {
    /// Id of the batch.
    pub batch: i64,
    /// Id of its request.
    pub request: i64,
    /// Index of its first file in the order's list.
    pub place: i64,
    /// Sequence numbers of its files.
    pub span: FileSpan,
    /// Number of its files.
    pub files: i64,
    /// Most attempts per file.
    pub attempts: u32,
}

impl RunPart {
    /// Returns the sequence number of the file at an index of the order's list.
    #[must_use]
    pub fn seq(&self, place: i64) -> Option<i64> {
        let at = place - self.place;
        if at < 0 || at >= self.files {
            return None;
        }
        match &self.span.seqs {
            Some(seqs) => seqs.get(at as usize).copied(),
            None => Some(self.span.first + at),
        }
    }

    /// Returns the part with the file at an index of the order's list, and the file's sequence number. `parts` ascend
    /// by place.
    #[must_use]
    pub fn find(parts: &[Self], place: i64) -> Option<(&Self, i64)> {
        let at = parts.partition_point(|part| part.place <= place).checked_sub(1)?;
        let part = parts.get(at)?;
        Some((part, part.seq(place)?))
    }
}

/// A batch in a queue.
#[derive(Debug, Clone, Copy)]
pub struct BatchSummary<'a> {
    /// Kind of the batch.
    pub kind: BatchKind,
    /// Number of its files.
    pub files: i64,
    /// Bytes of the files with a known size.
    pub bytes: i64,
    /// Batches of the same lane may share an order.
    pub lane: &'a str,
}

/// Batches of an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunContents {
    /// Index of each batch in its queue, with that of its first file in the order's list.
    pub batches: Vec<(usize, i64)>,
    /// Number of all files.
    pub files: i64,
    /// Bytes of the files with a known size.
    pub bytes: i64,
}

impl RunContents {
    /// Chooses the batches of an order, of the first [`BATCHES_PER_ORDER_MAX`] of a queue: those of the same lane and
    /// kind as the first one that fit. A listing is an order of its own.
    #[must_use]
    pub fn choose<'a>(
        queued: impl IntoIterator<Item = BatchSummary<'a>>,
        limits: BatchLimits,
    ) -> Self {
        let mut chosen = Self::default();
        let mut head: Option<BatchSummary<'a>> = None;
        for (at, batch) in queued.into_iter().take(BATCHES_PER_ORDER_MAX).enumerate() {
            let head = *head.get_or_insert(batch);
            let is_alike = batch.lane == head.lane && batch.kind == head.kind;
            let fits = chosen.files + batch.files <= limits.files.min(FILES_MAX) as i64
                && chosen.bytes.saturating_add(batch.bytes) <= limits.bytes as i64;
            let is_listing = batch.kind == BatchKind::List;
            if at > 0 && (!is_alike || !fits || is_listing) {
                continue;
            }
            chosen.batches.push((at, chosen.files));
            chosen.files += batch.files;
            chosen.bytes = chosen.bytes.saturating_add(batch.bytes);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(kind: BatchKind, files: i64, lane: &str) -> BatchSummary<'_> {
        BatchSummary { kind, files, bytes: 100 * files, lane }
    }

    fn places(queued: &[BatchSummary<'_>], limits: BatchLimits) -> Vec<(usize, i64)> {
        RunContents::choose(queued.iter().copied(), limits).batches
    }

    #[test]
    fn order_takes_batches_of_lane() {
        let queued = [
            batch(BatchKind::Copy, 2, "a"),
            batch(BatchKind::Copy, 2, "b"),
            batch(BatchKind::Copy, 9, "a"),
            batch(BatchKind::Copy, 1, "a"),
        ];
        let limits = BatchLimits { files: 5, bytes: 10_000 };
        assert_eq!(places(&queued, limits), [(0, 0), (3, 2)]);
        let limits = BatchLimits { files: 5, bytes: 1 };
        assert_eq!(places(&queued, limits), [(0, 0)], "the first always fits");
        assert_eq!(places(&[], limits), []);
    }

    #[test]
    fn listing_is_alone_in_order() {
        let queued = [batch(BatchKind::List, 0, "a"), batch(BatchKind::List, 0, "a")];
        assert_eq!(places(&queued, BatchLimits::default()), [(0, 0)]);
    }

    #[test]
    fn order_has_bounded_batches() {
        let queued = vec![batch(BatchKind::Copy, 1, "a"); BATCHES_PER_ORDER_MAX + 5];
        assert_eq!(places(&queued, BatchLimits::default()).len(), BATCHES_PER_ORDER_MAX);
    }

    #[test]
    fn place_maps_to_sequence_number() {
        let part = |batch, place, files, span| RunPart {
            batch,
            request: 1,
            place,
            span,
            files,
            attempts: 3,
        };
        let whole = FileSpan { first: 4, last: 5, seqs: None };
        let sparse = FileSpan { first: 1, last: 9, seqs: Some(vec![1, 3, 9]) };
        let parts = [part(7, 0, 2, whole.clone()), part(8, 2, 3, sparse.clone())];
        let found = |place| RunPart::find(&parts, place).map(|(part, seq)| (part.batch, seq));
        assert_eq!([0, 1, 2, 4].map(found), [(7, 4), (7, 5), (8, 1), (8, 9)].map(Some));
        assert_eq!([-1, 5].map(found), [None, None]);
        assert!(sparse.contains(3) && !sparse.contains(4) && whole.contains(5));
        assert_eq!(whole.seqs().chain(sparse.seqs()).collect::<Vec<_>>(), [4, 5, 1, 3, 9]);
    }
}
