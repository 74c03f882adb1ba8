//! Tuning of the streams of a transfer: what its caller asks for, and what a reader may see of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use penstock_tuner::{TunerSample, TuningMode};

use super::auto_tuner::{RatePoint, TuningRecord};
use super::host_searches::SearchMembership;
use crate::base::lock::lock;

/// Reason of a transfer that this end receives.
pub(crate) const RECEIVES: &str =
    "this end receives: only the sending end measures what its streams gain";

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
    },
}

/// Streams that earlier transfers to a host ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownStreams {
    /// Streams that the best of the transfers had at their end.
    pub streams: u16,
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
        Self::Tuned { start, known: None, bounds, shared }
    }

    /// Streams to begin with where they are others than those of the request.
    pub(crate) fn streams_to_begin(&self) -> Option<u16> {
        match self {
            Self::Tuned { known: Some(known), .. } => Some(known.streams),
            _ => None,
        }
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
    fn settled_streams_ignore_search() {
        let mut report = TuningReport::kept("");
        assert_eq!(report.settled_streams(), None);
        let streams = [2, 4, 8, 16, 32, 16, 16, 17, 16, 16];
        report.series =
            streams.map(|streams| RatePoint { at: Duration::ZERO, rate_bps: 0, streams }).to_vec();
        assert_eq!(report.settled_streams(), Some(16));
    }
}
