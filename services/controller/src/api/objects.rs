//! The objects of the API. Field names carry their units and stay.

use penstock_operations::forecast;
use penstock_operations::orders::{Overwrite, Verify};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::store::read::{StoredEvent, StoredFile, StoredRequest, StoredRun};

/// A file that is to be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileBody {
    /// Below both directories, without `.` and `..`.
    pub path: String,
    /// Its size, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// What it must be: `algorithm:hexadecimal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What is asked for. Exactly one of `files`, `directory` and `open` says what is to be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitBody {
    /// The client's own name for it: the same request with the same key is one request, however often it comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Class of work, by its name or by its owner and activity (`cms/data-consolidation`). May be left out where there is
    /// one class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The site where the files are.
    pub source: String,
    /// The site where they go.
    pub destination: String,
    /// The directory there, as the hosts' exports name it.
    pub from: String,
    /// The directory where they go.
    pub to: String,
    /// Up to 10,000 files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileBody>,
    /// Everything below `from`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
    /// More files will be appended until it is sealed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// 1 to 5; 5 is the most urgent. 3 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// When it should be done, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_unix_seconds: Option<i64>,
    /// Bytes of all files, where their sizes are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_estimate_bytes: Option<u64>,
    /// transfer (bytes on their way, and the digest that was given) or readback (what the device gives back, too).
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub verify: Verify,
    /// changed (files that differ are replaced) or never.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub overwrite: Overwrite,
    /// Whether data is encrypted on its way. True unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    /// How often a file is tried. 5 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The 16-bit scitag of its packets; that of its class unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scitag: Option<u16>,
}

/// More files of a request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendBody {
    /// How many files the request has before: a call that comes twice adds nothing the second time.
    pub at: u64,
    /// Up to 10,000 files.
    #[serde(default)]
    pub files: Vec<FileBody>,
    /// These were the last.
    #[serde(default)]
    pub seal: bool,
}

/// A change of a request; what is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeBody {
    /// 1 to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// When it should be done, in seconds since 1970; 0 for no deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_unix_seconds: Option<i64>,
    /// Whether it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Request)]
pub struct RequestFacts {
    /// Its number.
    pub id: i64,
    /// submitted, staged, active, done, failed, partial or cancelled.
    pub state: String,
    /// It is paused.
    pub paused: bool,
    /// It was cancelled; its files are on their way to be.
    pub cancelling: bool,
    /// More files may come.
    pub open: bool,
    /// Name of the token that it came with.
    pub client: String,
    /// The client's own name for it.
    pub key: Option<String>,
    /// Its class.
    pub class: String,
    /// The site where the files are.
    pub source: String,
    /// The site where they go.
    pub destination: String,
    /// The directory there.
    pub from: String,
    /// The directory where they go.
    pub to: String,
    /// 1 to 5.
    pub priority: i64,
    /// When it should be done, in seconds since 1970.
    pub deadline_unix_seconds: Option<i64>,
    /// Files that are known.
    pub files: u64,
    /// Those in orders.
    pub files_active: u64,
    /// Those in place.
    pub files_done: u64,
    /// Those that failed.
    pub files_failed: u64,
    /// Those that were cancelled.
    pub files_cancelled: u64,
    /// Bytes of the files whose size is known.
    pub bytes: i64,
    /// Bytes of files in place.
    pub bytes_done: i64,
    /// When it came, in seconds since 1970.
    pub submitted_unix_seconds: f64,
    /// When it changed last.
    pub changed_unix_seconds: f64,
    /// When it ended.
    pub ended_unix_seconds: Option<f64>,
    /// What went wrong last.
    pub trouble: Option<String>,
    /// Its rate now, by the hosts that report, where it was asked for alone.
    #[serde(default)]
    pub bits_per_second: Option<u64>,
    /// Seconds until it is done; null where that cannot be told, and where it was not asked for alone.
    #[serde(default)]
    pub forecast_seconds: Option<u64>,
    /// Why nothing of it moves; null where something does, and where it is over.
    #[serde(default)]
    pub waiting: Option<String>,
    /// Why its deadline cannot be met, as far as that is known; null otherwise. Where it was asked for alone.
    #[serde(default)]
    pub deadline_problem: Option<String>,
}

pub(crate) fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

impl From<StoredRequest> for RequestFacts {
    fn from(stored: StoredRequest) -> Self {
        Self {
            id: stored.id,
            state: stored.state.as_str().to_owned(),
            paused: stored.paused,
            cancelling: stored.tally.cancel && !stored.state.is_final(),
            open: stored.tally.open,
            client: stored.client,
            key: stored.key,
            class: stored.class,
            source: stored.source,
            destination: stored.destination,
            from: stored.from,
            to: stored.to,
            priority: stored.priority,
            deadline_unix_seconds: stored.deadline.map(|ms| ms / 1000),
            files: stored.tally.files,
            files_active: stored.tally.active,
            files_done: stored.tally.done,
            files_failed: stored.tally.failed,
            files_cancelled: stored.tally.cancelled,
            bytes: stored.bytes,
            bytes_done: stored.bytes_done,
            submitted_unix_seconds: seconds(stored.submitted),
            changed_unix_seconds: seconds(stored.changed),
            ended_unix_seconds: stored.ended.map(seconds),
            trouble: stored.trouble,
            bits_per_second: None,
            forecast_seconds: None,
            waiting: None,
            deadline_problem: None,
        }
    }
}

impl RequestFacts {
    /// With its rate and forecast, from those of its orders whose sending host `reports`.
    pub(crate) fn with_runs(
        stored: StoredRequest,
        runs: &[StoredRun],
        reports: impl Fn(&StoredRun) -> bool,
    ) -> Self {
        let live: Vec<&StoredRun> =
            runs.iter().filter(|run| run.state == 0 && reports(run)).collect();
        let rate = live.iter().map(|run| run.measured_bps.max(0) as u64).sum::<u64>();
        let promised = live.iter().filter_map(|run| run.rate_bps).sum::<i64>() as u64;
        let estimate = stored.size_estimate.unwrap_or(0).max(stored.bytes);
        let left = forecast::Left {
            bytes: u64::try_from(estimate - stored.bytes_done).unwrap_or(0),
            unknown: match stored.size_estimate {
                Some(_) => 0,
                None => stored.tally.files.saturating_sub(stored.sized.max(0) as u64),
            },
            mean_bytes: stored.bytes.max(0) as u64 / stored.sized.max(1) as u64,
            ahead_bytes: 0,
        };
        let ended = stored.state.is_final();
        // Of a directory that is being listed, or of files to come, nobody knows how much there is.
        let is_known = !stored.tally.open && !stored.tally.cancel && !stored.paused;
        let mut facts = Self::from(stored);
        if !ended {
            let rate_or_share = if rate > 0 { rate } else { promised };
            facts.bits_per_second = Some(rate);
            facts.forecast_seconds = Some(rate_or_share)
                .filter(|rate| is_known && *rate > 0)
                .and_then(|rate| forecast::seconds_left(&left, rate));
        }
        facts
    }
}

/// A part of a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Requests {
    /// The newest first.
    pub requests: Vec<RequestFacts>,
    /// Give this as `before` for the next part; null where there is none.
    pub next: Option<i64>,
}

/// A file of a request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = RequestFile)]
pub struct FileFacts {
    /// Its number in the request, from 0.
    pub file: i64,
    /// Below both directories.
    pub path: String,
    /// Its size, where it is known.
    pub size: Option<i64>,
    /// Its digest, where one was given or made.
    pub digest: Option<String>,
    /// queued, active, done, failed or cancelled.
    pub state: String,
    /// How often it was tried.
    pub attempts: i64,
    /// Why it is not in place, or was not at first.
    pub fault: Option<String>,
    /// When that changed last, in seconds since 1970.
    pub changed_unix_seconds: f64,
}

impl From<StoredFile> for FileFacts {
    fn from(stored: StoredFile) -> Self {
        Self {
            file: stored.seq,
            path: stored.path,
            size: stored.size,
            digest: stored.digest,
            state: stored.state.as_str().to_owned(),
            attempts: stored.attempt,
            fault: stored.fault,
            changed_unix_seconds: seconds(stored.changed),
        }
    }
}

/// A part of a request's files.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Files {
    /// By number.
    pub files: Vec<FileFacts>,
    /// Give this as `after` for the next part; null where there is none.
    pub next: Option<i64>,
}

/// Something that happened.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerEvent)]
pub struct EventFacts {
    /// Its number: events come in this order.
    pub id: i64,
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
    /// To which request.
    pub request: Option<i64>,
    /// Of which class.
    pub class: Option<String>,
    /// A state of a request, order, order_ended, paused, resumed, changed, host_lost, link or drain.
    pub kind: String,
    /// In words.
    pub text: String,
}

impl From<StoredEvent> for EventFacts {
    fn from(stored: StoredEvent) -> Self {
        Self {
            id: stored.id,
            unix_seconds: seconds(stored.at),
            request: stored.request,
            class: stored.class,
            kind: stored.kind,
            text: stored.text,
        }
    }
}

/// Events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// In their order.
    pub events: Vec<EventFacts>,
    /// Give this as `after` for the next part; null where there is none.
    pub next: Option<i64>,
}

/// An order to a pair of nodes, or to one that lists a directory.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerOrder)]
pub struct OrderFacts {
    /// Its number at the node that sends; the next one is that at the node that receives.
    pub order: i64,
    /// copy or list.
    pub kind: String,
    /// standing, or ending where it is being taken back.
    pub state: String,
    /// waiting, running or ended, as the sending node says.
    pub phase: String,
    /// Its class.
    pub class: String,
    /// The host that sends.
    pub from: String,
    /// The host that receives; null for a list.
    pub to: Option<String>,
    /// Files in it.
    pub files: i64,
    /// Files of it that are settled.
    pub files_settled: i64,
    /// Their bytes, as far as they are known.
    pub bytes: i64,
    /// Bytes that crossed the network.
    pub moved_bytes: i64,
    /// The rate that it was allotted; null for none yet.
    pub rate_bps: Option<i64>,
    /// The limit that the node says is in force.
    pub applied_bps: Option<i64>,
    /// The rate as measured; 0 where its node does not report any more.
    pub bits_per_second: i64,
    /// Why it has this rate.
    pub reason: String,
    /// Links of its path.
    pub path: Vec<String>,
    /// What it moves does not show at the interface of its path.
    pub off_path: bool,
    /// What holds it back, as measured.
    pub bound_by: String,
    /// How its packets are labelled.
    pub label: String,
    /// Streams.
    pub streams: i64,
    /// Why it waits, or was taken back.
    pub waiting: Option<String>,
    /// When it was given, in seconds since 1970.
    pub started_unix_seconds: f64,
    /// When the sending node spoke of it last.
    pub seen_unix_seconds: f64,
}

impl OrderFacts {
    /// Of an order whose sending node does not report any more nothing is measured.
    pub(crate) fn at(stored: StoredRun, reports: impl Fn(&StoredRun) -> bool) -> Self {
        let reports = reports(&stored);
        let mut facts = Self::from(stored);
        if !reports {
            facts.bits_per_second = 0;
            facts.streams = 0;
        }
        facts
    }
}

impl From<StoredRun> for OrderFacts {
    fn from(stored: StoredRun) -> Self {
        let phase = ["waiting", "running", "ended"];
        Self {
            order: stored.id * 2,
            kind: if stored.kind == 1 { "list" } else { "copy" }.to_owned(),
            state: if stored.state == 0 { "standing" } else { "ending" }.to_owned(),
            phase: phase[stored.phase.clamp(0, 2) as usize].to_owned(),
            class: stored.class,
            from: stored.from,
            to: Some(stored.to).filter(|to| !to.is_empty()),
            files: stored.files,
            files_settled: stored.settled_files,
            bytes: stored.bytes,
            moved_bytes: stored.moved,
            rate_bps: stored.rate_bps,
            applied_bps: stored.applied_bps,
            bits_per_second: stored.measured_bps,
            reason: stored.reason,
            path: stored.route,
            off_path: stored.off_path,
            bound_by: stored.bound_by,
            label: stored.label,
            streams: stored.streams,
            waiting: stored.why.or(stored.waiting),
            started_unix_seconds: seconds(stored.started),
            seen_unix_seconds: seconds(stored.seen),
        }
    }
}

/// Orders that stand.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Orders {
    /// By number.
    pub orders: Vec<OrderFacts>,
}
