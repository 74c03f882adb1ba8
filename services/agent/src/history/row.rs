//! A transfer in the history.

// Units in brackets, which docs/json.md shows, are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::time::UNIX_EPOCH;

use penstock_forecast::{PastTransfer, TransferFeatures};
use penstock_mover::EndedTransfer;
use penstock_protocol::open::Protection;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// End of a transfer in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransferVerdict {
    /// Every file is in place.
    Done,
    /// Some files are in place, others failed.
    Partial,
    /// It failed, or every file did.
    Failed,
    /// A client or the operator cancelled it.
    Cancelled,
}

impl TransferVerdict {
    /// All, with their names in the file.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Done, "done"),
        (Self::Partial, "partial"),
        (Self::Failed, "failed"),
        (Self::Cancelled, "cancelled"),
    ];

    /// True if the transfer was not ended early, so that its rate is that of its path.
    #[must_use]
    pub const fn has_whole_run(self) -> bool {
        matches!(self, Self::Done | Self::Partial)
    }

    /// Name in files and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(verdict, _)| *verdict == self).map_or("failed", |(_, name)| name)
    }

    /// The verdict with this name; an unknown one counts as failed, so that no forecast uses the transfer.
    pub(super) fn of_name(name: &str) -> Self {
        let known = Self::ALL.iter().find(|(_, known)| *known == name);
        known.map_or(Self::Failed, |(verdict, _)| *verdict)
    }
}

/// Protection of a transfer's data streams in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtectionName {
    /// Encrypted and authenticated (TLS 1.3).
    Tls,
    /// Authenticated, not encrypted.
    Integrity,
}

impl From<Protection> for ProtectionName {
    fn from(protection: Protection) -> Self {
        match protection {
            Protection::Full => Self::Tls,
            Protection::Integrity => Self::Integrity,
        }
    }
}

impl ProtectionName {
    /// Name in files and tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Integrity => "integrity",
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        [Self::Tls, Self::Integrity].into_iter().find(|known| known.as_str() == name)
    }
}

/// An ended transfer: what was known when it began, and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryRow {
    /// Number in the history, in the order in which transfers ended.
    pub id: i64,
    /// Start of the transfer.
    pub started_unix_seconds: f64,
    /// Host that sent: name of this host; of the other the name to which this one connected, else its address.
    pub source: String,
    /// Host that received: as for `source`.
    pub destination: String,
    /// `send` or `receive`, as the agent that recorded it sees it.
    pub direction: String,
    /// `penstock`, or the protocol of a gateway.
    pub protocol: String,
    /// Protection of the data streams; null where it is not known.
    pub protection: Option<ProtectionName>,
    /// Storage engine of the agent that recorded it.
    pub engine: String,
    /// Bytes of all files that the sender announced.
    pub announced_bytes: u64,
    /// Bytes that the destination had before.
    pub resumed_bytes: u64,
    /// Number of files, failed ones included.
    pub files: u64,
    /// Block size; null for protocols of gateways.
    pub block_bytes: Option<u32>,
    /// Most streams that were connected at once.
    pub streams: u16,
    /// Streams that it had for most of its second half; null where its client chose them [count].
    pub streams_settled: Option<u16>,
    /// Reader threads per device of this end; 0 where it received.
    pub readers: u16,
    /// Writer threads per device of this end; 0 where it sent.
    pub writers: u16,
    /// Limit on the rate at its end; null for none.
    pub rate_limit_bps: Option<u64>,
    /// Smallest round-trip time of the streams; null where it was not measured.
    pub rtt_us: Option<u32>,
    /// Other transfers of the agent at its start [count].
    pub other_transfers: u32,
    /// Streams of the other transfers at its start [count].
    pub other_streams: u32,
    /// Load average of the host over the minute before its start; null where it was not known [count].
    pub load_1min: Option<f64>,
    /// Processors of the host [count].
    pub processors: u32,
    /// Share of time in which tasks waited for a processor before its start; null where the kernel does not say.
    pub cpu_pressure_percent: Option<f64>,
    /// Share of time in which tasks waited for storage before its start; null where the kernel does not say.
    pub io_pressure_percent: Option<f64>,
    /// Bytes that waited to be written to storage at its start; null where it was not known.
    pub dirty_bytes: Option<u64>,
    /// Duration of the transfer.
    pub seconds: f64,
    /// Bytes of file contents that were sent.
    pub moved_bytes: u64,
    /// Number of files that failed [count].
    pub failed: u64,
    /// Limit that bound the rate for most of the time; `-` where nothing moved.
    pub bound_by: String,
    /// End of the transfer.
    pub verdict: TransferVerdict,
    /// TCP segments that were retransmitted [count].
    pub retransmits: u64,
    /// True for a row of a simulator or generator.
    pub synthetic: bool,
}

impl HistoryRow {
    pub(super) fn of_ended(host: &str, ended: EndedTransfer) -> Self {
        let EndedTransfer {
            listed,
            protocol,
            other_host,
            streams_peak,
            streams_settled,
            rtt_us,
            start,
            samples: _,
        } = ended;
        let (source, destination) = match listed.direction {
            "send" => (host.to_owned(), other_host),
            _ => (other_host, host.to_owned()),
        };
        Self {
            id: 0,
            started_unix_seconds: listed
                .started
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            source,
            destination,
            direction: listed.direction.to_owned(),
            protocol: protocol.to_owned(),
            protection: start.protection.map(ProtectionName::from),
            engine: listed.engine,
            announced_bytes: listed.announced_bytes,
            resumed_bytes: listed.resumed_bytes,
            files: listed.files + listed.failed,
            block_bytes: start.block_bytes,
            streams: streams_peak,
            streams_settled,
            readers: listed.readers,
            writers: listed.writers,
            rate_limit_bps: listed.rate_bps,
            rtt_us,
            other_transfers: start.other_transfers,
            other_streams: start.other_streams,
            load_1min: start.load.load_1min,
            processors: start.load.processors,
            cpu_pressure_percent: start.load.cpu_pressure_percent,
            io_pressure_percent: start.load.io_pressure_percent,
            dirty_bytes: start.load.dirty_bytes,
            seconds: listed.seconds,
            moved_bytes: listed.moved_bytes,
            failed: listed.failed,
            bound_by: listed.bound_by,
            verdict: TransferVerdict::of_name(listed.state),
            retransmits: listed.retransmits,
            synthetic: false,
        }
    }

    /// The transfer as forecasts use it; none if it did not end well, a rate limit bound it, or it was no transfer of
    /// the mover.
    #[must_use]
    pub fn past_transfer(&self) -> Option<PastTransfer> {
        let is_usable = self.verdict.has_whole_run()
            && self.protocol == "penstock"
            && self.bound_by != "rate limit"
            && !self.synthetic;
        if !is_usable {
            return None;
        }
        let count = |count: u64| Some(count as f64);
        let processors = f64::from(self.processors.max(1));
        let past = PastTransfer {
            source: self.source.clone(),
            destination: self.destination.clone(),
            started_s: self.started_unix_seconds,
            seconds: self.seconds,
            bytes: self.moved_bytes as f64,
            features: TransferFeatures {
                bytes: count(self.moved_bytes),
                files: count(self.files),
                streams: count(self.streams.into()),
                block_bytes: self.block_bytes.map(f64::from),
                encrypted: self
                    .protection
                    .map(|one| f64::from(u8::from(one == ProtectionName::Tls))),
                rtt_us: self.rtt_us.map(f64::from),
                other_transfers: count(self.other_transfers.into()),
                other_streams: count(self.other_streams.into()),
                // Only where a model needs them.
                pair_last_bps: None,
                pair_median_bps: None,
                started_s: Some(self.started_unix_seconds),
                load_per_processor: self.load_1min.map(|load| load / processors),
                cpu_pressure_percent: self.cpu_pressure_percent,
                io_pressure_percent: self.io_pressure_percent,
                dirty_bytes: self.dirty_bytes.map(|bytes| bytes as f64),
                readers: count(self.readers.into()),
                writers: count(self.writers.into()),
            },
        };
        Some(past).filter(PastTransfer::is_usable)
    }

    /// Mean rate; 0 for a transfer without duration.
    #[must_use]
    pub fn bits_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.moved_bytes as f64 * 8.0 / self.seconds } else { 0.0 }
    }
}
