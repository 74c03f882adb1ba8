//! Objects of the API. Field names contain their units and are stable.

use penstock_control::batch::BatchKind;
use penstock_control::forecast::{self, OrderRates};
use penstock_control::orders::{
    OrderId, OrderPhase, OrderTransport, Overwrite, RunSide, TuningMode, Verify,
};
use penstock_control::run::RunState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::repository::events::StoredEvent;
use crate::repository::files::StoredRequestFile;
use crate::repository::requests::StoredRequest;
use crate::repository::runs::StoredRun;

/// A file to transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileBody {
    /// Relative to both directories, without `.` and `..`.
    pub path: String,
    /// Size of the file, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Expected digest of the content, `algorithm:hexadecimal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// A request to submit. Exactly one of `files`, `directory` and `open` selects the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitBody {
    /// Idempotency key of the client: submissions of the same body with the same key are one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Class of work, by its name or by its owner and activity (`cms/data-consolidation`). May be left out where there
    /// is one class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Site of the files.
    pub source: String,
    /// Site to transfer them to.
    pub destination: String,
    /// Source directory, as the hosts' exports name it.
    pub from: String,
    /// Directory at the destination.
    pub to: String,
    /// Files to transfer, up to 10,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileBody>,
    /// Set to transfer everything below `from`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
    /// Set if more files will be appended until the request is sealed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// 1 to 5; 5 is the most urgent. 3 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Deadline in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_unix_seconds: Option<i64>,
    /// Estimated bytes of all files, if their sizes are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_estimate_bytes: Option<u64>,
    /// Verification: transfer (bytes in transit and the given digest) or readback (also what the device returns).
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub verify: Verify,
    /// Treatment of existing files: changed (files that differ are replaced) or never.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub overwrite: Overwrite,
    /// Set to encrypt the data in transit. True unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    /// Most attempts per file. 5 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// 16-bit scitag of the packets; that of the class unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scitag: Option<u16>,
    /// Use of the tuner at the sending hosts, at most that of their operators: auto, history (begin with the streams of
    /// earlier transfers and keep them), observe (list what it would change) or off. auto unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tune: Option<TuningMode>,
    /// Transport of the data: tcp, rdma (files fail where RDMA is not possible) or auto (RDMA where both hosts can, else
    /// TCP). RDMA needs `encrypt` false. That of the sending host's operator unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub transport: Option<OrderTransport>,
}

/// Files to append to a request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendBody {
    /// Number of files that the request has before; a repeated call then appends nothing.
    pub at: u64,
    /// Files to append, up to 10,000.
    #[serde(default)]
    pub files: Vec<FileBody>,
    /// Set to seal the request: no more files follow.
    #[serde(default)]
    pub seal: bool,
}

/// Changes of a request; absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub struct ChangeBody {
    /// New priority, 1 to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 5)]
    pub priority: Option<u8>,
    /// New deadline in Unix seconds; 0 for no deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_unix_seconds: Option<i64>,
    /// Set to pause, clear to resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A request with its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Request)]
pub struct RequestFacts {
    /// Number of the request.
    pub id: i64,
    /// `submitted`, `staged`, `active`, `done`, `failed`, `partial` or `cancelled`.
    pub state: String,
    /// True where the request is paused.
    pub paused: bool,
    /// True where the request was cancelled and files of it are still being stopped.
    pub cancelling: bool,
    /// True where more files may be appended.
    pub open: bool,
    /// Name of the token that submitted the request.
    pub client: String,
    /// The client's own name for the request; null where it gave none.
    pub key: Option<String>,
    /// Name of the class of work.
    pub class: String,
    /// Site that sends the files.
    pub source: String,
    /// Site that receives the files.
    pub destination: String,
    /// Directory at the sending site.
    pub from: String,
    /// Directory at the receiving site.
    pub to: String,
    /// Priority, 1 to 5; 5 is the most urgent.
    pub priority: i64,
    /// Time by which the request should be done; null for no deadline.
    pub deadline_unix_seconds: Option<i64>,
    /// Files that are known so far.
    pub files: u64,
    /// Files in active orders.
    pub files_active: u64,
    /// Files at the destination.
    pub files_done: u64,
    /// Files that failed for good.
    pub files_failed: u64,
    /// Files that were cancelled.
    pub files_cancelled: u64,
    /// Bytes of the files whose size is known.
    pub bytes: i64,
    /// Bytes of files in place.
    pub bytes_done: i64,
    /// Time at which the request was submitted.
    pub submitted_unix_seconds: f64,
    /// Time of the last change.
    pub changed_unix_seconds: f64,
    /// End of the request; null where it has not ended.
    pub ended_unix_seconds: Option<f64>,
    /// Description of the last failure; null where there was none.
    pub trouble: Option<String>,
    /// Transport of the data so far: `tcp`, `rdma`, or `mixed` where both carried data; null before the first, and where the
    /// sending hosts run a release that does not report it.
    #[serde(default)]
    pub transport: Option<String>,
    /// Reason for the transport of the latest order, where it was left to its host or RDMA was asked for; else null.
    #[serde(default)]
    pub transport_reason: Option<String>,
    /// Present rate, as reported by the hosts that are up; null in lists, after a submission or change, and once the
    /// request has ended.
    #[serde(default)]
    pub bits_per_second: Option<u64>,
    /// Time left until the request is done; null where it is unknown, in lists, and after a submission or change.
    #[serde(default)]
    pub forecast_seconds: Option<u64>,
    /// A tenth of earlier transfers on the paths of the request would do the rest in less time; null as
    /// `forecast_seconds`, and where an agent has seen too few transfers.
    #[serde(default)]
    pub forecast_p10_seconds: Option<u64>,
    /// A tenth of earlier transfers on the paths of the request would need more time for the rest; null as
    /// `forecast_p10_seconds`.
    #[serde(default)]
    pub forecast_p90_seconds: Option<u64>,
    /// Number of earlier transfers from which the range was computed; null as `forecast_p10_seconds`.
    #[serde(default)]
    pub forecast_transfers: Option<u32>,
    /// Reason why nothing of the request moves; null where something moves, after a submission or change, and once it
    /// has ended.
    #[serde(default)]
    pub waiting: Option<String>,
    /// Reason why the deadline cannot be met; null where none is known, and in lists.
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
            cancelling: stored.cancel && !stored.state.is_final(),
            open: stored.open,
            client: stored.client,
            key: stored.client_key,
            class: stored.class,
            source: stored.source,
            destination: stored.destination,
            from: stored.from_path,
            to: stored.to_path,
            priority: stored.priority,
            deadline_unix_seconds: stored.deadline.map(|ms| ms / 1000),
            files: stored.files,
            files_active: stored.active,
            files_done: stored.done,
            files_failed: stored.failed,
            files_cancelled: stored.cancelled,
            bytes: stored.bytes,
            bytes_done: stored.bytes_done,
            submitted_unix_seconds: seconds(stored.submitted),
            changed_unix_seconds: seconds(stored.changed),
            ended_unix_seconds: stored.ended.map(seconds),
            trouble: stored.trouble,
            transport: stored.transport,
            transport_reason: stored.transport_reason.filter(|reason| !reason.is_empty()),
            bits_per_second: None,
            forecast_seconds: None,
            forecast_p10_seconds: None,
            forecast_p90_seconds: None,
            forecast_transfers: None,
            waiting: None,
            deadline_problem: None,
        }
    }
}

impl RequestFacts {
    /// Adds rate and forecast, from the orders whose sending host `reports`.
    pub(crate) fn with_runs(
        stored: StoredRequest,
        runs: &[StoredRun],
        reports: impl Fn(&StoredRun) -> bool,
    ) -> Self {
        let live: Vec<&StoredRun> =
            runs.iter().filter(|run| run.state == RunState::Active && reports(run)).collect();
        let orders: Vec<OrderRates> = live.iter().map(|run| order_rates(run)).collect();
        let rate = orders.iter().map(|order| order.measured_bps).sum::<u64>();
        let estimate = stored.size_estimate.unwrap_or(0).max(stored.bytes);
        let left = forecast::RemainingWork {
            bytes: u64::try_from(estimate - stored.bytes_done).unwrap_or(0),
            unknown: match stored.size_estimate {
                Some(_) => 0,
                None => stored.files.saturating_sub(stored.sized.max(0) as u64),
            },
            mean_bytes: stored.bytes.max(0) as u64 / stored.sized.max(1) as u64,
            ahead_bytes: 0,
        };
        let ended = stored.state.is_final();
        // The size of a directory being listed, or of files to be appended, is unknown.
        let is_known = !stored.open && !stored.cancel && !stored.paused;
        let mut facts = Self::from(stored);
        if !ended {
            facts.bits_per_second = Some(rate);
            let forecast = is_known.then(|| forecast::completion(&left, &orders)).flatten();
            facts.forecast_seconds = forecast.map(|forecast| forecast.seconds);
            if let Some(range) = forecast.and_then(|forecast| forecast.range) {
                facts.forecast_p10_seconds = Some(range.p10_seconds);
                facts.forecast_p90_seconds = Some(range.p90_seconds);
                facts.forecast_transfers = Some(range.transfers);
            }
        }
        facts
    }
}

fn order_rates(run: &StoredRun) -> OrderRates {
    OrderRates {
        measured_bps: u64::try_from(run.measured_bps).unwrap_or(0),
        allotted_bps: run.rate_bps.and_then(|rate| u64::try_from(rate).ok()),
        path: run.path_forecast.0,
    }
}

/// A part of the list of requests.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Requests {
    /// Requests, the newest first.
    pub requests: Vec<RequestFacts>,
    /// Value of `before` that lists the next part; null where there is none.
    pub next: Option<i64>,
}

/// A file of a request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = RequestFile)]
pub struct FileFacts {
    /// Number of the file in the request, from 0.
    pub file: i64,
    /// Path below the directories of the request.
    pub path: String,
    /// Size of the file; null where it is not known.
    pub size: Option<i64>,
    /// Digest as `algorithm:hexadecimal`; null where none was given or computed.
    pub digest: Option<String>,
    /// `queued`, `active`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// Number of attempts so far.
    pub attempts: i64,
    /// Reason why the file is not in place, or was not after an earlier attempt; null where there was none.
    pub fault: Option<String>,
    /// Time of the last change.
    pub changed_unix_seconds: f64,
}

impl From<StoredRequestFile> for FileFacts {
    fn from(stored: StoredRequestFile) -> Self {
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

/// A part of the list of a request's files.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Files {
    /// Files, ordered by number.
    pub files: Vec<FileFacts>,
    /// Value of `after` that lists the next part; null if there is none.
    pub next: Option<i64>,
}

/// An event of a request or of the network.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerEvent)]
pub struct EventFacts {
    /// Number of the event: later events have larger numbers.
    pub id: i64,
    /// Time of the event.
    pub unix_seconds: f64,
    /// Request that the event concerns; null for none.
    pub request: Option<i64>,
    /// Class of work that the event concerns; null for none.
    pub class: Option<String>,
    /// State that a request reached, or `order`, `order_ended`, `paused`, `resumed`, `changed`, `host_lost`, `link`
    /// or `drain`.
    pub kind: String,
    /// Description of the event.
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

/// A part of the list of events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// Events of the request, oldest first.
    pub events: Vec<EventFacts>,
    /// Value of `after` that lists the next part; null if there is none.
    pub next: Option<i64>,
}

/// An order to a pair of nodes, or to one that lists a directory.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerOrder)]
pub struct OrderFacts {
    /// Number of the order at the node that sends; the node that receives has the next number.
    pub order: i64,
    /// Kind of the order: `copy` or `list`.
    pub kind: String,
    /// `standing`, or `ending` where the controller withdraws it.
    pub state: String,
    /// `waiting`, `running` or `ended`, as reported by the node that sends.
    pub phase: String,
    /// Name of the class of work.
    pub class: String,
    /// Host that sends or lists.
    pub from: String,
    /// Host that receives; null for a list.
    pub to: Option<String>,
    /// Files of the order.
    pub files: i64,
    /// Files of the order that are done or have failed.
    pub files_settled: i64,
    /// Bytes of the files of the order whose size is known.
    pub bytes: i64,
    /// Bytes of file contents on the network.
    pub moved_bytes: i64,
    /// Rate that the controller allotted; null where it has not yet.
    pub rate_bps: Option<i64>,
    /// Limit that is in force at the node; null for none.
    pub applied_bps: Option<i64>,
    /// Measured rate; 0 where the node that sends is silent.
    pub bits_per_second: i64,
    /// Reason for the allotted rate.
    pub reason: String,
    /// Names of the links of the path.
    pub path: Vec<String>,
    /// True where the traffic does not appear at the interfaces of the path.
    pub off_path: bool,
    /// Resource that limits the rate, as measured: `rate` (the allotted one), `sender CPU`, `receiver CPU`,
    /// `source storage`, `destination storage`, `receiver` (its window), `send buffer` or `network`; `starting` before it is
    /// measured, empty before the node reports it.
    pub bound_by: String,
    /// Place of the scitag in the packets, with the reason where it is not the wanted one; empty where it is not
    /// known.
    pub label: String,
    /// Transport of the data streams so far: `tcp`, `rdma`, or `mixed` where streams of both carried data; null before the
    /// first.
    #[serde(default)]
    pub transport: Option<String>,
    /// Reason for this transport where it was left to the node or RDMA was asked for; else null.
    #[serde(default)]
    pub transport_reason: Option<String>,
    /// Number of data streams.
    pub streams: i64,
    /// Reason why the order waits or was withdrawn; null for none.
    pub waiting: Option<String>,
    /// Time at which the controller gave the order.
    pub started_unix_seconds: f64,
    /// Time of the last report on the order by the node that sends.
    pub seen_unix_seconds: f64,
}

impl OrderFacts {
    /// Converts a run; one whose sending node does not report has no measured rate.
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
        Self {
            order: OrderId::of(stored.id, RunSide::Source).number() as i64,
            kind: match stored.kind {
                BatchKind::Copy => "copy",
                BatchKind::List => "list",
            }
            .to_owned(),
            state: match stored.state {
                RunState::Active => "standing",
                RunState::Revoking | RunState::Ended => "ending",
            }
            .to_owned(),
            phase: match stored.phase {
                OrderPhase::Waiting => "waiting",
                OrderPhase::Running => "running",
                OrderPhase::Ended => "ended",
            }
            .to_owned(),
            class: stored.class,
            from: stored.from_host,
            to: Some(stored.to_host).filter(|to| !to.is_empty()),
            files: stored.files,
            files_settled: stored.settled_files,
            bytes: stored.bytes,
            moved_bytes: stored.moved,
            rate_bps: stored.rate_bps,
            applied_bps: stored.applied_bps,
            bits_per_second: stored.measured_bps,
            reason: stored.reason,
            path: stored.route.0,
            off_path: stored.off_path,
            bound_by: stored.bound_by,
            label: stored.label,
            transport: stored.transport,
            transport_reason: stored.transport_reason,
            streams: stored.live_streams,
            waiting: stored.end_reason.or(stored.waiting),
            started_unix_seconds: seconds(stored.started),
            seen_unix_seconds: seconds(stored.seen),
        }
    }
}

/// List of active orders.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Orders {
    /// Active orders, by number.
    pub orders: Vec<OrderFacts>,
}
