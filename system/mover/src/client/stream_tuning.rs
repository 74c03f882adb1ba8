//! Tuning of the streams of a transfer: what its caller asks for, and what a reader may see of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use penstock_protocol::digest::Algorithm;
use penstock_tuner::{TunerSample, TuningMode};

use super::auto_tuner::{RatePoint, TuningRecord};
use super::host_searches::SearchMembership;
use crate::base::lock::lock;

/// Reason of a transfer that this end receives.
pub(crate) const RECEIVES: &str =
    "this end receives: only the sending end measures what its streams gain";

/// Smallest block that is chosen for slow streams: the overhead of smaller ones shows in a copy's processor time.
const BLOCK_BYTES_MIN: u32 = 256 << 10;

/// Reason of a transfer over another protocol.
pub(crate) const GATEWAY: &str = "it goes by HTTP or root://, over the connections of its client";

/// Tuning of the streams of a transfer, as its caller asks for it.
pub enum StreamTuning {
    /// The streams stay, for this reason.
    Kept(&'static str),
    /// A tuner measures the sending end, and changes the streams or lists what it would change.
    Tuned {
        /// Streams of the request, which are the default of the transfer.
        start: u16,
        /// Streams that earlier transfers ended with, with which it begins instead.
        known: Option<KnownStreams>,
        /// Mode and limits, which may change while it runs. Called without locks of the transfer.
        bounds: Box<TuningBoundsSource>,
        /// Search that it shares with other transfers.
        shared: SharedSearch,
        /// Reason why it begins switched off; none where it tunes from the start.
        off: Option<&'static str>,
    },
}

/// Streams that earlier transfers to a host ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownStreams {
    /// Streams that the best of the transfers had at their end.
    pub streams: u16,
    /// Rate of one of them, in bits per second.
    pub stream_bps: u64,
    /// Transfers that were compared.
    pub transfers: u32,
}

/// Search that a transfer shares with others of its agent to the same host; none where it searches alone.
#[derive(Debug, Default)]
pub struct SharedSearch(Mutex<Option<SearchMembership>>);

impl SharedSearch {
    pub(crate) fn of(membership: SearchMembership) -> Self {
        Self(Mutex::new(Some(membership)))
    }

    pub(super) fn take(&self) -> Option<SearchMembership> {
        lock(&self.0).take()
    }
}

/// Source of the bounds of a tuner.
pub type TuningBoundsSource = dyn Fn() -> TuningBounds + Send + Sync;

/// Mode and limits of a tuner at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TuningBounds {
    /// Use of the decisions.
    pub mode: TuningMode,
    /// Most streams that the transfer may have.
    pub streams_max: u16,
    /// Bounds where it shares its search; none where it has none to share.
    pub sharing: Option<SharingBounds>,
}

/// Bounds of a transfer that shares its search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingBounds {
    /// Most streams that the transfer may have, whatever others have.
    pub streams_max: u16,
    /// Most streams of all transfers of the agent that share searches.
    pub budget: u16,
}

impl StreamTuning {
    /// Tuning with bounds that stay.
    #[must_use]
    pub fn within(start: u16, bounds: TuningBounds) -> Self {
        let (bounds, shared) = (Box::new(move || bounds), SharedSearch::default());
        Self::Tuned { start, known: None, bounds, shared, off: None }
    }

    /// The same, switched off for this reason until a request switches it on.
    #[must_use]
    pub fn switched_off(mut self, reason: &'static str) -> Self {
        if let Self::Tuned { off, .. } = &mut self {
            *off = Some(reason);
        }
        self
    }

    /// Streams to begin with where they are others than those of the request.
    pub(crate) fn streams_to_begin(&self) -> Option<u16> {
        match self {
            Self::Tuned { known: Some(known), .. } => Some(known.streams),
            _ => None,
        }
    }

    /// Block size to begin with where a block of the request takes a known stream more than a second: the last blocks of a
    /// copy, and one of a stream that is given back, take that long. None where parts of a digest depend on the size, since
    /// an earlier transfer is continued only at its own.
    pub(crate) fn block_to_begin(&self, asked_bytes: u32, algorithm: Algorithm) -> Option<u32> {
        let Self::Tuned { known: Some(known), .. } = self else { return None };
        let bytes = u32::try_from(known.stream_bps / 8).unwrap_or(u32::MAX).max(BLOCK_BYTES_MIN);
        let block_bytes = 1 << bytes.ilog2();
        (block_bytes < asked_bytes && !algorithm.needs_grid()).then_some(block_bytes)
    }

    /// Reason why the streams stay; empty where they are tuned.
    pub(super) const fn reason_to_keep(&self) -> &'static str {
        match self {
            Self::Kept(reason) => reason,
            Self::Tuned { .. } => "",
        }
    }
}

impl std::fmt::Debug for StreamTuning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kept(reason) => f.debug_tuple("Kept").field(reason).finish(),
            Self::Tuned { start, .. } => {
                f.debug_struct("Tuned").field("start", start).finish_non_exhaustive()
            }
        }
    }
}

/// Decisions about the streams of a transfer, and its rate over time.
#[derive(Debug, Clone)]
pub struct TuningReport {
    /// Use of the decisions; `Off` where none are made.
    pub mode: TuningMode,
    /// Reason why no more decisions follow; none while they may.
    pub ended: Option<&'static str>,
    /// Reason of the latest decision in one sentence, one that keeps the streams included.
    pub latest: Option<String>,
    /// Decisions that changed something or began a search, in order.
    pub records: Vec<TuningRecord>,
    /// Number of earlier decisions that are no longer kept.
    pub left_out: u64,
    /// Rate and streams over the whole transfer, at equal distances.
    pub series: Vec<RatePoint>,
    /// Latest samples of half a second; empty once no more are taken.
    pub samples: Arc<VecDeque<TunerSample>>,
}

impl TuningReport {
    /// Report of a transfer whose streams stay.
    #[must_use]
    pub fn kept(reason: &'static str) -> Self {
        Self {
            mode: TuningMode::Off,
            ended: Some(reason),
            latest: None,
            records: Vec::new(),
            left_out: 0,
            series: Vec::new(),
            samples: Arc::default(),
        }
    }

    /// Number of streams that the transfer had for most of its second half, the fewest of equal ones; `None` where no rate
    /// was measured.
    pub(crate) fn settled_streams(&self) -> Option<u16> {
        let mut counts = BTreeMap::new();
        for point in &self.series[self.series.len() / 2..] {
            *counts.entry(point.streams).or_insert(0_u32) += 1;
        }
        counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(streams, _)| streams)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn slow_streams_begin_with_small_blocks() {
        const ASKED_BYTES: u32 = 4 << 20;
        let block = |stream_bps, algorithm| {
            let bounds = TuningBounds { mode: TuningMode::Auto, streams_max: 64, sharing: None };
            let mut tuning = StreamTuning::within(2, bounds);
            if let StreamTuning::Tuned { known, .. } = &mut tuning {
                *known = Some(KnownStreams { streams: 16, stream_bps, transfers: 5 });
            }
            tuning.block_to_begin(ASKED_BYTES, algorithm)
        };
        assert_eq!(block(6_000_000, Algorithm::Crc32c), Some(512 << 10));
        assert_eq!(block(0, Algorithm::Adler32), Some(BLOCK_BYTES_MIN));
        assert_eq!(block(u64::MAX, Algorithm::Crc32c), None);
        assert_eq!(block(8 * u64::from(ASKED_BYTES), Algorithm::Crc32c), None, "a second");
        assert_eq!(block(8 * u64::from(ASKED_BYTES) - 8, Algorithm::Crc32c), Some(2 << 20));
        assert_eq!(block(6_000_000, Algorithm::Blake3), None, "a partial file keeps its size");
    }

    #[test]
    fn settled_streams_ignore_search() {
        let mut report = TuningReport::kept("");
        assert_eq!(report.settled_streams(), None);
        let streams = [2, 4, 8, 16, 32, 16, 16, 17, 16, 16];
        report.series =
            streams.map(|streams| RatePoint { at: Duration::ZERO, rate_bps: 0, streams }).to_vec();
        assert_eq!(report.settled_streams(), Some(16));
    }
}
