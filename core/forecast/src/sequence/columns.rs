//! Intervals of a running transfer, with names and units as in model files.

/// Means over one second of a running transfer; `None` where a value is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SequenceSample {
    /// Payload rate in bits per second.
    pub rate_bps: f64,
    /// Data streams at the end of the second.
    pub streams: Option<f64>,
    /// Retransmitted by sent segments, 0 to 1.
    pub retransmit_share: Option<f64>,
    /// Smallest round-trip time of the transfer so far, in microseconds.
    pub rtt_min_us: Option<f64>,
    /// Smoothed round-trip time at the end of the second, in microseconds.
    pub rtt_us: Option<f64>,
    /// Share of the streams' time in which they waited for the source, 0 to 1.
    pub source_empty: Option<f64>,
    /// Share in which they waited for the destination.
    pub destination_full: Option<f64>,
    /// Share in which they waited for the rate limit.
    pub rate_limit: Option<f64>,
}

/// A column of the samples.
#[derive(Debug)]
pub struct SequenceColumn {
    /// Name in model files.
    pub name: &'static str,
    /// Unit in model files.
    pub unit: &'static str,
    value: fn(&SequenceSample) -> Option<f64>,
}

impl SequenceColumn {
    /// Its value, which is finite; `None` where it is not known.
    #[must_use]
    pub fn value(&self, sample: &SequenceSample) -> Option<f64> {
        (self.value)(sample).filter(|value| value.is_finite())
    }

    pub(super) fn find(name: &str) -> Option<&'static Self> {
        SEQUENCE_COLUMNS.iter().find(|column| column.name == name)
    }
}

const fn column(
    name: &'static str,
    unit: &'static str,
    value: fn(&SequenceSample) -> Option<f64>,
) -> SequenceColumn {
    SequenceColumn { name, unit, value }
}

/// Column that every model has first.
pub(super) const RATE_COLUMN: &str = "rate_bps";

/// All columns. `python/training/traces.py` computes the same.
pub const SEQUENCE_COLUMNS: [SequenceColumn; 8] = [
    column(RATE_COLUMN, "bit/s", |s| Some(s.rate_bps)),
    column("streams", "count", |s| s.streams),
    column("retransmit_share", "fraction", |s| s.retransmit_share),
    column("rtt_min_us", "us", |s| s.rtt_min_us),
    column("rtt_ratio", "ratio", |s| Some(s.rtt_us? / s.rtt_min_us.filter(|rtt| *rtt > 0.0)?)),
    column("source_empty", "fraction", |s| s.source_empty),
    column("destination_full", "fraction", |s| s.destination_full),
    column("rate_limit", "fraction", |s| s.rate_limit),
];
