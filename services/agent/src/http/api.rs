//! Objects and handlers of the API. Field names carry their units and are stable.

use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use penstock_mover::{ListedTransfer, STREAMS_MAX, THREADS_PER_DEVICE_MAX, TuningMode};
use penstock_protocol::control::Settings;
use penstock_scitags::Scitag;
use serde::{Deserialize, Serialize};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use penstock_http::documented_values::{list_values, tag_role};
use penstock_http::tokens::bearer;
use penstock_http::{ProblemDetails, QueryParams, RawQuery, Refused};

use super::client::TransferClient;
use super::{AgentApi, TransferControlError};
use crate::registry::ActiveRegistry;
use crate::submitted::{FailedFile, TransferStatus};

/// A transfer that runs or ended recently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Transfer)]
pub struct TransferFacts {
    /// Number of the transfer at this agent.
    pub id: u64,
    /// Requester: name of a token, or `cert:` and the fingerprint of a certificate.
    pub caller: String,
    /// Address of the other end.
    pub peer: String,
    /// `receive` or `send`, as this agent sees it.
    pub direction: String,
    /// Path at this agent that is read or written.
    pub path: String,
    /// State; the last four are ends.
    pub state: TransferStatus,
    /// Start of the transfer, or of the last attempt of a submitted one.
    pub started_unix_seconds: f64,
    /// Duration so far, or in all once it has ended.
    pub seconds: f64,
    /// Bytes of files in place.
    pub bytes: u64,
    /// Bytes of file contents on the network, of unfinished files too, without the holes of sparse files.
    pub moved_bytes: u64,
    /// Bytes that the destination had before and that were not sent again.
    pub resumed_bytes: u64,
    /// Bytes of all files that the sender has announced so far.
    pub announced_bytes: u64,
    /// Number of files in place.
    pub files: u64,
    /// Number of files that failed.
    pub failed: u64,
    /// Number of data streams; once it has ended, the most at one time.
    pub streams: u16,
    /// Reader threads per device.
    pub readers: u16,
    /// Writer threads per device.
    pub writers: u16,
    /// Limit on the rate; null for none.
    pub rate_bps: Option<u64>,
    /// Present rate; the mean rate once it has ended.
    pub bits_per_second: u64,
    /// Resource that limits the rate, as measured, or for most of the time once it has ended: `rate limit`, `sender
    /// CPU`, `receiver CPU`, `source storage`, `destination storage`, `receiver` (its window), `send buffer` or
    /// `network`; `starting` before it is measured, `-` where nothing moved.
    pub bound_by: String,
    /// Storage engine of this end.
    pub engine: String,
    /// TCP segments that were retransmitted.
    pub retransmits: u64,
    /// Transport of the data streams so far: `tcp`, `rdma`, or `mixed` where streams of both carried data; null before the
    /// first, and for a copy within one process.
    #[serde(default)]
    pub transport: Option<String>,
    /// Reason for this transport where it was left to this agent or RDMA was asked for: the device, or what RDMA lacks; else
    /// null.
    #[serde(default)]
    pub transport_reason: Option<String>,
    /// Scitag of the packets: owner and activity as one number; null where none was given.
    #[serde(default)]
    pub scitag: Option<u16>,
    /// Owner of the scitag: name in the registry, or the number where the registry has none.
    #[serde(default)]
    pub owner: Option<String>,
    /// Activity of the scitag: name in the registry, or the number where the registry has none.
    #[serde(default)]
    pub activity: Option<String>,
    /// Submission of a transfer that the agent carries out by itself; null for others.
    #[serde(default)]
    pub submitted: Option<SubmittedFacts>,
}

/// Submission of a transfer, and its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Submission)]
pub struct SubmittedFacts {
    /// Path or address of the source, as submitted.
    pub source: String,
    /// Path or address of the destination, as submitted.
    pub destination: String,
    /// Idempotency key; null where none was given.
    pub key: Option<String>,
    /// Time of the submission.
    pub submitted_unix_seconds: f64,
    /// Time of the end; null before it.
    pub ended_unix_seconds: Option<f64>,
    /// Number of attempts, those before a restart of the agent included.
    pub attempts: u32,
    /// Reason why it waits, was cancelled or failed, or the failure of the first file; null where there is none.
    pub error: Option<String>,
    /// The first 20 files that failed.
    pub failures: Vec<FailedFile>,
}

/// The text; `None` for an empty one.
pub fn non_empty(text: impl Into<String>) -> Option<String> {
    Some(text.into()).filter(|text| !text.is_empty())
}

impl From<ListedTransfer> for TransferFacts {
    fn from(transfer: ListedTransfer) -> Self {
        Self {
            id: transfer.id,
            caller: transfer.caller,
            peer: transfer.peer,
            direction: transfer.direction.to_owned(),
            path: transfer.path,
            state: TransferStatus::of_listed(transfer.state),
            started_unix_seconds: unix_seconds(transfer.started),
            seconds: transfer.seconds,
            bytes: transfer.bytes,
            moved_bytes: transfer.moved_bytes,
            resumed_bytes: transfer.resumed_bytes,
            announced_bytes: transfer.announced_bytes,
            files: transfer.files,
            failed: transfer.failed,
            streams: transfer.streams,
            readers: transfer.readers,
            writers: transfer.writers,
            rate_bps: transfer.rate_bps,
            bits_per_second: transfer.bits_per_second,
            bound_by: transfer.bound_by,
            engine: transfer.engine,
            retransmits: transfer.retransmits,
            transport: non_empty(transfer.transport),
            transport_reason: non_empty(transfer.transport_reason),
            scitag: transfer.scitag,
            owner: None,
            activity: None,
            submitted: None,
        }
    }
}

/// Sets owner and activity of each transfer by the active registry.
pub(super) fn name_owners(api: &AgentApi, transfers: &mut [TransferFacts]) {
    if transfers.iter().all(|transfer| transfer.scitag.is_none()) {
        return;
    }
    let (current, _) = ActiveRegistry::load(&api.state);
    for transfer in transfers {
        let tag = transfer.scitag.and_then(|number| Scitag::from_number(number.into()).ok());
        let Some(name) = tag.map(|tag| current.registry.name(tag)) else { continue };
        let (owner, activity) = name.split_once('/').unwrap_or((&name, ""));
        (transfer.owner, transfer.activity) = (Some(owner.to_owned()), Some(activity.to_owned()));
    }
}

/// Names owner and activity of a transfer by the active registry.
pub(super) fn with_owner(api: &AgentApi, transfer: TransferFacts) -> TransferFacts {
    let mut named = [transfer];
    name_owners(api, &mut named);
    let [transfer] = named;
    transfer
}

/// Transfers that run or ended recently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Transfers {
    /// All transfers, sorted by number.
    pub transfers: Vec<TransferFacts>,
    /// Link to the controller; left out where the agent has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerFacts>,
}

/// The controller that an agent takes orders from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AgentController)]
pub struct ControllerFacts {
    /// URL of the controller.
    pub url: String,
    /// Name of this host at the controller.
    pub host: String,
    /// State of the connection: `connected` or `away`.
    pub state: String,
    /// Time of the last change of `state`.
    pub since_unix_seconds: f64,
    /// Reason why the controller is away; null while it is connected.
    pub error: Option<String>,
    /// True while the controller's lease is expired, so that transfers run at the safe rate.
    pub lease_expired: bool,
    /// Former name of `lease_expired`.
    #[schema(deprecated)]
    pub lapsed: bool,
    /// Reports that the controller answered.
    pub reports: u64,
    /// Attempts to report that failed.
    pub failures: u64,
    /// Orders in the controller's last instruction.
    pub orders: usize,
    /// Orders of this agent that wait.
    pub orders_waiting: usize,
    /// Orders that the agent executes now.
    pub orders_running: usize,
    /// Results of orders that the controller has not acknowledged.
    pub unacknowledged: usize,
    /// Former name of `unacknowledged`.
    #[schema(deprecated)]
    pub untold: usize,
}

impl ControllerFacts {
    fn of(api: &AgentApi) -> Option<Self> {
        let status = api.controller.as_ref()?.status();
        Some(Self {
            url: status.url,
            host: status.host,
            state: if status.connected { "connected" } else { "away" }.to_owned(),
            since_unix_seconds: unix_seconds(status.since),
            error: status.error,
            lease_expired: status.lease_expired,
            lapsed: status.lease_expired,
            reports: status.reports,
            failures: status.failures,
            orders: status.orders.listed,
            orders_waiting: status.orders.waiting,
            orders_running: status.orders.running,
            unacknowledged: status.orders.unacknowledged,
            untold: status.orders.unacknowledged,
        })
    }
}

/// A change to a running transfer; what is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Change, min_properties = 1)]
pub struct TransferChange {
    /// Limit on the rate in bits per second; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Number of data streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 256)]
    pub streams: Option<NonZeroU16>,
    /// Reader threads per device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 64)]
    pub readers: Option<NonZeroU16>,
    /// Writer threads per device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 64)]
    pub writers: Option<NonZeroU16>,
    /// Use of the tuner from now on, at most that of the agent's operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = changed_tune_schema)]
    pub tune: Option<TuningMode>,
}

fn changed_tune_schema() -> utoipa::openapi::schema::Object {
    utoipa::openapi::schema::ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::Type::String)
        .enum_values(Some(TuningMode::ALL.map(TuningMode::name)))
        .description(Some(
            "Use of the tuner from now on, at most that of the agent's operator. All but off go on from the streams, readers and \
             writers in place, whoever set them",
        ))
        .build()
}

/// A value of a change that is above its limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} {count}: use a number from 1 to {limit}")]
pub struct TransferLimitError {
    name: &'static str,
    count: NonZeroU16,
    limit: u16,
}

impl TransferChange {
    /// Checks the limits, which are those of `penstock cp`.
    ///
    /// # Errors
    /// The first value that is above its limit, with the limit.
    pub fn check(&self) -> Result<(), TransferLimitError> {
        let counts = [
            ("streams", self.streams, STREAMS_MAX),
            ("readers", self.readers, THREADS_PER_DEVICE_MAX),
            ("writers", self.writers, THREADS_PER_DEVICE_MAX),
        ];
        for (name, count, limit) in counts {
            if let Some(count) = count.filter(|count| count.get() > limit) {
                return Err(TransferLimitError { name, count, limit });
            }
        }
        Ok(())
    }
}

/// Description of an agent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Agent)]
pub struct AgentFacts {
    /// Version of its software.
    pub version: String,
    /// Addresses of the mover.
    pub listen: Vec<String>,
    /// Addresses of this API.
    pub http: Vec<String>,
    /// URLs of the gateway: the exports over HTTP and WebDAV. Their host is the address on which it listens.
    #[serde(default)]
    pub webdav: Vec<String>,
    /// SHA-256 of its certificate.
    pub fingerprint: String,
    /// Start time of the agent, in seconds since 1970.
    pub started_unix_seconds: f64,
    /// Directory trees that clients may use.
    pub exports: Vec<ExportFacts>,
    /// Bounds on all clients together.
    pub limits: LimitFacts,
    /// Controller that gives this agent orders; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerFacts>,
    /// Client that asks; absent without a token of this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ApiClientFacts>,
}

/// Client of this API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ApiClient)]
pub struct ApiClientFacts {
    /// Name of its token, or `owner`.
    pub name: String,
    /// Scopes of an issued token; none of the owner, who may do everything.
    pub scopes: Vec<String>,
}

/// A directory tree that clients may use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Export)]
pub struct ExportFacts {
    /// Name of the export for clients.
    pub name: String,
    /// Directory on the agent's host.
    pub path: String,
    /// read, write or read-write.
    pub mode: String,
    /// Names of tokens, cert: with fingerprints, or * for everyone known.
    pub who: Vec<String>,
}

/// Bounds on all clients together.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Limits)]
pub struct LimitFacts {
    /// Rate of all transfers together; null for no limit.
    pub rate_bps: Option<u64>,
    /// Number of concurrent transfers.
    pub transfers: usize,
    /// Streams in each transfer.
    pub streams_per_transfer: u16,
    /// Streams of all transfers together.
    pub streams: usize,
    /// Memory for buffers of all transfers.
    pub memory_bytes: u64,
}

pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Returns version, addresses, exports and limits of the agent.
#[utoipa::path(get, path = "/api/v1/agent", security((), ("token" = [])), responses(
    (status = 200, body = AgentFacts, description = "The agent: name, version, limits and exports"),
    Refused,
))]
pub(super) async fn agent(
    State(api): State<Arc<AgentApi>>,
    headers: HeaderMap,
) -> Json<AgentFacts> {
    let text =
        |addresses: &[std::net::SocketAddr]| addresses.iter().map(ToString::to_string).collect();
    let rules = api.authorizer.rules();
    let limits = api.limits.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let exports = rules.exports.iter().map(|export| ExportFacts {
        name: export.name.to_string(),
        path: export.path.display().to_string(),
        mode: export.mode.as_str().to_owned(),
        who: export.principals.iter().map(ToString::to_string).collect(),
    });
    Json(AgentFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        listen: text(&api.listen),
        http: text(&api.http),
        webdav: api.webdav.clone(),
        fingerprint: api.identity.fingerprint().to_string(),
        started_unix_seconds: unix_seconds(api.started),
        exports: exports.collect(),
        limits: LimitFacts {
            rate_bps: limits.rate_bps,
            transfers: limits.transfers,
            streams_per_transfer: limits.streams_per_transfer,
            streams: limits.streams,
            memory_bytes: limits.memory_bytes,
        },
        controller: ControllerFacts::of(&api),
        client: bearer(&headers).and_then(|token| api.authorizer.api_client(token)),
    })
}

/// Largest `limit` of a list.
const LIMIT_MAX: i64 = 1000;

/// Page that lists the query parameters.
pub(super) const API_PAGE: &str = "docs/api.md";

/// Returns all transfers that run or ended recently, in the order of their numbers.
#[utoipa::path(get, path = "/api/v1/transfers", security((), ("token" = [])),
    params(("state" = Option<TransferStatus>, Query, description = "Transfers in this state"),
        ("caller" = Option<String>, Query, description = "Transfers of this client"),
        ("after" = Option<u64>, Query, description = "Transfers with greater numbers than this"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 1000, description = "Largest number of items; all if not given")), responses(
    (status = 200, body = Transfers, description = "Transfers by number"),
    Refused,
))]
pub(super) async fn transfers(
    State(api): State<Arc<AgentApi>>,
    client: TransferClient,
    given: RawQuery,
) -> Result<Json<Transfers>, ProblemDetails> {
    let mut params = QueryParams::new(given)?;
    let state: Option<TransferStatus> = params.parsed("state")?;
    let caller: Option<String> = params.parsed("caller")?;
    let after: u64 = params.parsed("after")?.unwrap_or(0);
    let limit = params.limit(i64::MAX, LIMIT_MAX)?;
    params.none(API_PAGE)?;
    let mut transfers = client.seen(&api);
    transfers.retain(|one| {
        one.id > after
            && state.is_none_or(|state| one.state == state)
            && caller.as_ref().is_none_or(|caller| one.caller == *caller)
    });
    transfers.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(Json(Transfers { transfers, controller: ControllerFacts::of(&api) }))
}

/// Returns one transfer by its id.
#[utoipa::path(get, path = "/api/v1/transfers/{id}", security((), ("token" = [])),
    params(("id" = u64, Path, description = "Number of the transfer")), responses(
    (status = 200, body = TransferFacts, description = "The transfer"),
    Refused,
))]
pub(super) async fn transfer(
    State(api): State<Arc<AgentApi>>,
    client: TransferClient,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Json<TransferFacts>, ProblemDetails> {
    find(&api, &client, number(id)?).map(Json)
}

/// Changes a running transfer, without a restart.
#[utoipa::path(patch, path = "/api/v1/transfers/{id}", operation_id = "change_transfer", security(("token" = [])),
    params(("id" = u64, Path, description = "Number of the transfer")), request_body = TransferChange, responses(
    (status = 200, body = TransferFacts, description = "The transfer with its new settings"),
    Refused,
))]
pub(super) async fn change(
    State(api): State<Arc<AgentApi>>,
    client: TransferClient,
    id: Result<Path<u64>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TransferFacts>, ProblemDetails> {
    let id = number(id)?;
    let body =
        body.map_err(|rejection| ProblemDetails::new(rejection.status(), rejection.body_text()))?;
    let change: TransferChange = serde_json::from_slice(&body)
        .map_err(|error| ProblemDetails::bad_request(format!("cannot read the change: {error}")))?;
    if change == TransferChange::default() {
        return Err(ProblemDetails::bad_request(
            "nothing to change: give rate_bps, streams, readers, writers or tune",
        ));
    }
    change.check().map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
    find(&api, &client, id)?;
    let settings = Settings {
        rate_bps: change.rate_bps,
        streams: change.streams.map(u16::from),
        readers: change.readers.map(u16::from),
        writers: change.writers.map(u16::from),
    };
    tracing::info!(transfer = id, ?change, "changed by {}", client.name());
    let conflict =
        |error: TransferControlError| ProblemDetails::new(StatusCode::CONFLICT, error.to_string());
    if let Some(mode) = change.tune {
        api.mover.set_tuning(id, mode).map_err(conflict)?;
    }
    api.mover.set(id, settings).map_err(conflict)?;
    find(&api, &client, id).map(Json)
}

/// Cancels a transfer. What is durable stays, and the same copy resumes from it.
#[utoipa::path(delete, path = "/api/v1/transfers/{id}", operation_id = "cancel_transfer", security(("token" = [])),
    params(("id" = u64, Path, description = "Number of the transfer")), responses(
    (status = 200, body = TransferFacts, description = "The transfer, which ends soon"),
    Refused,
))]
pub(super) async fn cancel(
    State(api): State<Arc<AgentApi>>,
    client: TransferClient,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Json<TransferFacts>, ProblemDetails> {
    let id = number(id)?;
    let before = find(&api, &client, id)?;
    tracing::info!(transfer = id, "cancelled by {}", client.name());
    let reason = match &client {
        TransferClient::Bearer(caller) => format!("cancelled by {}", caller.name),
        _ => "cancelled by the agent's operator".to_owned(),
    };
    if let Some(submitted) = api.submitted.as_ref().filter(|_| before.submitted.is_some()) {
        return submitted
            .cancel(id, &reason)
            .map(|transfer| Json(with_owner(&api, transfer)))
            .map_err(|error| ProblemDetails::conflict(error.to_string()));
    }
    api.mover
        .cancel(id, &reason)
        .map_err(|error| ProblemDetails::new(StatusCode::CONFLICT, error.to_string()))?;
    // The transfer may have left the list by now.
    let cancelled = TransferFacts { state: TransferStatus::Cancelled, ..before };
    Ok(Json(find(&api, &client, id).unwrap_or(cancelled)))
}

pub(super) fn number(id: Result<Path<u64>, PathRejection>) -> Result<u64, ProblemDetails> {
    let not_a_number = |_| {
        ProblemDetails::bad_request(
            "the number of a transfer is a whole number, see /api/v1/transfers",
        )
    };
    id.map(|Path(id)| id).map_err(not_a_number)
}

/// The transfer with this number, if the client may see it.
pub(super) fn find(
    api: &AgentApi,
    client: &TransferClient,
    id: u64,
) -> Result<TransferFacts, ProblemDetails> {
    let submitted = api.submitted.as_ref().and_then(|submitted| submitted.get(id));
    let listed = || {
        let found = api.mover.transfers().into_iter().find(|transfer| transfer.id == id);
        found.map(TransferFacts::from)
    };
    let found = submitted.or_else(listed).filter(|found| client.may_see(found));
    let missing =
        || ProblemDetails::not_found(format!("no transfer {id}: penstock transfers lists them"));
    Ok(with_owner(api, found.ok_or_else(missing)?))
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Penstock agent", description = "Submitting, watching and steering the transfers of a data transfer node.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"), contact()),
    paths(agent, transfers, super::submission::submit, super::submission::follow, transfer, super::tuning::tuning, change, cancel, super::disks::list,
        super::disks::disk, super::disks::export, super::disks::delete, super::disks::admit_host, super::disks::remove_host, super::disks::connection),
    components(schemas(ProblemDetails)),
    modifiers(&BearerToken)
)]
struct ApiDocument;

struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", scheme);
    }
}

/// The API as an OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    const BOUND_BY: &[&str] = &[
        "rate limit",
        "sender CPU",
        "receiver CPU",
        "source storage",
        "destination storage",
        "receiver",
        "send buffer",
        "network",
        "starting",
        "-",
    ];
    let mut document = ApiDocument::openapi();
    list_values(
        &mut document,
        &[
            ("Transfer", "direction", &["receive", "send"]),
            ("Transfer", "bound_by", BOUND_BY),
            ("AgentController", "state", &["connected", "away"]),
            ("Tuning", "mode", &["auto", "observe", "off"]),
            ("Export", "mode", &["read", "write", "read-write"]),
            ("Disk", "transport", &["tcp", "rdma"]),
            ("Disk", "state", &["exported", "failed"]),
            ("Disk", "origin", &["configuration", "api"]),
            ("DiskExport", "transport", &["tcp", "rdma"]),
            ("DiskConnection", "transport", &["tcp", "rdma"]),
        ],
    );
    tag_role(&mut document, "agent", "Transfers of a data transfer node: submit, watch, steer.");
    document
}
