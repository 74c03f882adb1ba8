//! Tuning of the streams of a transfer: what its caller asks for, and what a reader may see of it.

use super::auto_tuner::{RatePoint, TuningMode, TuningRecord};

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
        /// Streams of the request, with which the transfer begins.
        start: u16,
        /// Mode and limits, which may change while it runs. Called without locks of the transfer.
        bounds: Box<TuningBoundsSource>,
    },
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
}

impl StreamTuning {
    /// Tuning with bounds that stay.
    #[must_use]
    pub fn within(start: u16, bounds: TuningBounds) -> Self {
        Self::Tuned { start, bounds: Box::new(move || bounds) }
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
        }
    }
}
