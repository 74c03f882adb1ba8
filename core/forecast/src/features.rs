//! Features of a transfer that are known before it begins, with names and units as in exports and model files.

/// Values known before a transfer begins; `None` where a value is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TransferFeatures {
    /// Bytes that are to be sent.
    pub bytes: Option<f64>,
    /// Number of files to send.
    pub files: Option<f64>,
    /// Most data streams at once.
    pub streams: Option<f64>,
    /// Block size in bytes.
    pub block_bytes: Option<f64>,
    /// 1 for encrypted data streams, 0 for others.
    pub encrypted: Option<f64>,
    /// Smallest round-trip time in microseconds.
    pub rtt_us: Option<f64>,
    /// Other transfers of the agent.
    pub other_transfers: Option<f64>,
    /// Data streams of the other transfers.
    pub other_streams: Option<f64>,
    /// Rate of the last transfer of the pair, in bits per second.
    pub pair_last_bps: Option<f64>,
    /// Median rate of the last eight transfers of the pair, in bits per second.
    pub pair_median_bps: Option<f64>,
    /// Start, in seconds since 1970.
    pub started_s: Option<f64>,
    /// Load average over a minute by the number of processors.
    pub load_per_processor: Option<f64>,
    /// Share of time in which tasks waited for a processor, in percent.
    pub cpu_pressure_percent: Option<f64>,
    /// Share of time in which tasks waited for storage, in percent.
    pub io_pressure_percent: Option<f64>,
    /// Bytes that wait to be written to storage.
    pub dirty_bytes: Option<f64>,
    /// Reader threads per device.
    pub readers: Option<f64>,
    /// Writer threads per device.
    pub writers: Option<f64>,
}

/// Part of the system that a feature describes, for ablations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureGroup {
    /// The request, its settings and its path.
    Network,
    /// Processors of the host.
    Host,
    /// Storage of the host.
    Storage,
}

/// A column of the features.
#[derive(Debug)]
pub struct FeatureColumn {
    /// Name in exports and model files.
    pub name: &'static str,
    /// Unit in model files.
    pub unit: &'static str,
    /// Part of the system that it describes.
    pub group: FeatureGroup,
    value: fn(&TransferFeatures) -> Option<f64>,
}

impl FeatureColumn {
    /// Its value, which is finite; `None` where it is not known.
    #[must_use]
    pub fn value(&self, features: &TransferFeatures) -> Option<f64> {
        (self.value)(features).filter(|value| value.is_finite())
    }

    /// The column with a name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        FEATURES.iter().find(|column| column.name == name)
    }
}

const fn column(
    name: &'static str,
    unit: &'static str,
    group: FeatureGroup,
    value: fn(&TransferFeatures) -> Option<f64>,
) -> FeatureColumn {
    FeatureColumn { name, unit, group, value }
}

use FeatureGroup::{Host, Network, Storage};

const DAY_S: f64 = 86_400.0;

/// All columns. `python/training/features.py` computes the same.
pub const FEATURES: [FeatureColumn; 19] = [
    column("bytes", "B", Network, |f| f.bytes),
    column("files", "count", Network, |f| f.files),
    column("mean_file_bytes", "B", Network, |f| Some(f.bytes? / f.files.filter(|n| *n > 0.0)?)),
    column("streams", "count", Network, |f| f.streams),
    column("block_bytes", "B", Network, |f| f.block_bytes),
    column("encrypted", "0 or 1", Network, |f| f.encrypted),
    column("rtt_us", "us", Network, |f| f.rtt_us),
    column("other_transfers", "count", Network, |f| f.other_transfers),
    column("other_streams", "count", Network, |f| f.other_streams),
    column("pair_last_bps", "bit/s", Network, |f| f.pair_last_bps),
    column("pair_median_bps", "bit/s", Network, |f| f.pair_median_bps),
    column("hour_utc", "h", Network, |f| Some(f.started_s?.rem_euclid(DAY_S) / 3600.0)),
    // 1970-01-01 was a Thursday; Monday is 0.
    column("weekday_utc", "number", Network, |f| {
        Some(((f.started_s? / DAY_S).floor() + 3.0).rem_euclid(7.0))
    }),
    column("load_per_processor", "tasks", Host, |f| f.load_per_processor),
    column("cpu_pressure_percent", "%", Host, |f| f.cpu_pressure_percent),
    column("io_pressure_percent", "%", Storage, |f| f.io_pressure_percent),
    column("dirty_bytes", "B", Storage, |f| f.dirty_bytes),
    column("readers", "count", Storage, |f| f.readers),
    column("writers", "count", Storage, |f| f.writers),
];
