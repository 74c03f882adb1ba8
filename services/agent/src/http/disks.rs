//! Disks that the agent exports: their list, what a host needs to connect to one, and exports by clients of the API.
//!
//! The list is open to those who may read the API. Address and secret of a disk take the agent's own token, or an issued one
//! with the scope `operate`, `disk:*` or `disk:NAME`; the agent gives them only for a host that the disk admits, and to a token
//! with `disk:NAME@NQN` for this host alone. To export a
//! disk, change its hosts and end the export takes the agent's own token, or the scope `operate` or `disk.export`.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, header};
use penstock_daemon::api::{Bearers, IssuedAccess};
use penstock_disk::FabricsTransport;
use penstock_disk::nvme::nqn;
use penstock_http::tokens::bearer;
use penstock_http::{ApiCaller, ProblemDetails, QueryParams, RawQuery, Refused};
use penstock_scopes::DiskScope;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::AgentApi;
use super::api::API_PAGE;
use crate::disks::{
    DISK_HOSTS_MAX, DiskChangeError, DiskConnectionError, DiskExportError, ExportedDisks,
    RequestedDisk,
};

/// Disks that the agent exports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disks {
    /// Disks of the configuration in its order, then those that clients of the API export.
    pub disks: Vec<DiskFacts>,
}

/// A disk that the agent exports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Disk)]
pub struct DiskFacts {
    /// Name of the disk.
    pub name: String,
    /// Qualified name of its subsystem.
    pub nqn: String,
    /// Transport of the connections of hosts.
    pub transport: String,
    /// Addresses and ports on which the target listens; `0.0.0.0` is every IPv4 address of the agent's host.
    pub listens: Vec<String>,
    /// Size of the disk; null where the file cannot be opened.
    pub bytes: Option<u64>,
    /// Qualified names of the hosts that may connect.
    pub hosts: Vec<String>,
    /// True where the hosts need a secret.
    pub has_secret: bool,
    /// `configuration` of the agent, or `api` for a disk that a client of the API exports.
    #[serde(default)]
    pub origin: String,
    /// `exported`, or `failed` for a disk that cannot be exported.
    pub state: String,
    /// Reason of a failure, with a remedy; null for an exported disk.
    pub error: Option<String>,
}

/// Request of a host that wants to connect to a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DiskConnectionRequest)]
#[serde(deny_unknown_fields)]
pub struct DiskConnectionBody {
    /// Qualified name of the host, one of the `hosts` of the disk.
    pub host_nqn: String,
}

/// A disk to export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DiskExport)]
#[serde(deny_unknown_fields)]
pub struct DiskExportBody {
    /// File or block device at the agent, below a path that its operator allows (`[disks] allow`).
    pub path: String,
    /// Qualified names of the hosts that may connect, and write.
    #[schema(min_items = 1, max_items = 256)]
    pub hosts: Vec<String>,
    /// Transport of the connections of hosts; tcp unless given.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub transport: FabricsTransport,
}

/// All that a host needs to connect to a disk.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DiskConnection)]
pub struct DiskConnectionFacts {
    /// Qualified name of the disk's subsystem.
    pub nqn: String,
    /// Transport of the connection.
    pub transport: String,
    /// Addresses and ports on which the target listens, each a path to the disk; `0.0.0.0` is every IPv4 address of the
    /// agent's host.
    pub listens: Vec<String>,
    /// Secret of the host (DH-HMAC-CHAP); null for a disk without one.
    #[schema(format = Password)]
    pub secret: Option<String>,
}

impl fmt::Debug for DiskConnectionFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskConnectionFacts")
            .field("nqn", &self.nqn)
            .field("listens", &self.listens)
            .finish_non_exhaustive()
    }
}

/// Client of the paths of disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiskClient {
    /// Name for log lines.
    name: String,
    /// Disks whose address, and hosts whose secrets, the client may learn; `None` for all.
    disks: Option<Vec<DiskScope>>,
    /// True if the client may export disks.
    exports: bool,
}

impl DiskClient {
    fn operator() -> Self {
        Self { name: "the operator".to_owned(), disks: None, exports: true }
    }

    fn may_use(&self, name: &str) -> bool {
        self.disks.as_ref().is_none_or(|scopes| scopes.iter().any(|scope| scope.covers(name)))
    }

    fn check_host(&self, name: &str, host: &str) -> Result<(), ProblemDetails> {
        let covers = |scope: &DiskScope| scope.covers_host(name, host);
        match self.disks.as_ref().is_none_or(|scopes| scopes.iter().any(covers)) {
            true => Ok(()),
            false => Err(ProblemDetails::forbidden(format!(
                "the token is of another host of disk {name}: penstock token create --scope disk:{name}@NQN names its host"
            ))),
        }
    }

    fn may_see(&self, name: &str) -> bool {
        self.exports || self.may_use(name)
    }

    fn check_exports(&self) -> Result<(), ProblemDetails> {
        match self.exports {
            true => Ok(()),
            false => Err(ProblemDetails::forbidden(
                "the token may not export disks: the agent's operator issues one with penstock token create --scope disk.export",
            )),
        }
    }
}

impl FromRequestParts<Arc<AgentApi>> for DiskClient {
    type Rejection = ProblemDetails;

    async fn from_request_parts(
        parts: &mut Parts,
        api: &Arc<AgentApi>,
    ) -> Result<Self, ProblemDetails> {
        let token = match parts.extensions.get::<ApiCaller>().cloned() {
            Some(ApiCaller::Owner) => return Ok(Self::operator()),
            Some(ApiCaller::Bearer(token)) => token,
            // The daemon has admitted the request: one that reads, or that of a token with the scope operate.
            _ if matches!(parts.method, Method::GET | Method::HEAD) => return Ok(Self::operator()),
            _ => bearer(&parts.headers).unwrap_or_default().to_owned(),
        };
        let authorizer = &api.authorizer;
        let name = authorizer.api_client(&token).map(|client| client.name).unwrap_or_default();
        if authorizer.issued_access(&token) == Some(IssuedAccess::Operate) {
            return Ok(Self { name, ..Self::operator() });
        }
        let (disks, exports) = (authorizer.disks_of(&token), authorizer.may_export_disks(&token));
        if !exports && disks.is_empty() {
            return Err(ProblemDetails::forbidden(
                "the token has no scope for disks: the agent's operator issues one with penstock token create --scope disk:NAME",
            ));
        }
        Ok(Self { name, disks: Some(disks), exports })
    }
}

/// Runs `work` with the disks; exports of a reload may hold them for seconds.
async fn with_disks<T: Send + 'static>(
    api: &AgentApi,
    work: impl FnOnce(&mut ExportedDisks) -> T + Send + 'static,
) -> Result<T, ProblemDetails> {
    let disks = Arc::clone(&api.disks);
    let done = tokio::task::spawn_blocking(move || {
        work(&mut disks.lock().unwrap_or_else(PoisonError::into_inner))
    });
    done.await.map_err(|_| {
        ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the disks could not be read")
    })
}

/// Runs `work`, which changes the disks.
async fn change<T: Send + 'static>(
    api: &AgentApi,
    work: impl FnOnce(&mut ExportedDisks) -> Result<T, DiskChangeError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    with_disks(api, work).await?.map_err(|error| {
        let status = match &error {
            DiskChangeError::Unknown(_) | DiskChangeError::UnknownHost(..) => StatusCode::NOT_FOUND,
            DiskChangeError::Export(DiskExportError::Path(_)) => StatusCode::FORBIDDEN,
            DiskChangeError::List(_) => StatusCode::INTERNAL_SERVER_ERROR,
            DiskChangeError::Configured(_)
            | DiskChangeError::Other(_)
            | DiskChangeError::LastHost(_)
            | DiskChangeError::Stopped
            | DiskChangeError::Limit(..)
            | DiskChangeError::Export(_) => StatusCode::CONFLICT,
        };
        ProblemDetails::new(status, error.to_string())
    })
}

fn segment<T>(path: Result<Path<T>, PathRejection>) -> Result<T, ProblemDetails> {
    path.map(|Path(text)| text).map_err(|error| ProblemDetails::bad_request(error.body_text()))
}

fn read_body<T: DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
) -> Result<T, ProblemDetails> {
    let body =
        body.map_err(|rejection| ProblemDetails::new(rejection.status(), rejection.body_text()))?;
    serde_json::from_slice(&body)
        .map_err(|error| ProblemDetails::bad_request(format!("cannot read the request: {error}")))
}

/// Returns the disks that the agent exports, also those that could not be exported.
#[utoipa::path(get, path = "/api/v1/disks", operation_id = "disks", security((), ("token" = [])), responses(
    (status = 200, body = Disks, description = "The disks"),
    Refused,
))]
pub(super) async fn list(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    given: RawQuery,
) -> Result<Json<Disks>, ProblemDetails> {
    QueryParams::new(given)?.none(API_PAGE)?;
    let mut disks = with_disks(&api, |disks| disks.list()).await?;
    disks.retain(|disk| client.may_see(&disk.name));
    Ok(Json(Disks { disks }))
}

/// Returns one disk by its name.
#[utoipa::path(get, path = "/api/v1/disks/{name}", operation_id = "disk", security((), ("token" = [])),
    params(("name" = String, Path, description = "Name of the disk, or its qualified name")), responses(
    (status = 200, body = DiskFacts, description = "The disk"),
    Refused,
))]
pub(super) async fn disk(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<DiskFacts>, ProblemDetails> {
    let name = segment(name)?;
    let disks = with_disks(&api, |disks| disks.list()).await?;
    let found = disks.into_iter().find(|disk| disk.name == name || disk.nqn == name);
    let unknown = || ProblemDetails::not_found(DiskChangeError::Unknown(name.clone()).to_string());
    found.filter(|disk| client.may_see(&disk.name)).map(Json).ok_or_else(unknown)
}

/// Exports a file or device as a disk, until it is deleted; also after a restart of the agent.
///
/// The operator must allow the path, and nothing else may use the file or device. The same body again changes nothing.
#[utoipa::path(put, path = "/api/v1/disks/{name}", operation_id = "export_disk", security(("token" = [])),
    params(("name" = String, Path, description = "Name of the disk, or a qualified name")), request_body = DiskExportBody, responses(
    (status = 201, body = DiskFacts, description = "The new disk"),
    (status = 200, body = DiskFacts, description = "The disk that the same body made before"),
    Refused,
))]
pub(super) async fn export(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<DiskFacts>), ProblemDetails> {
    client.check_exports()?;
    let name = segment(name)?;
    nqn::of_disk(&name).map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
    let DiskExportBody { path, hosts, transport } = read_body(body)?;
    if hosts.is_empty() || hosts.len() > DISK_HOSTS_MAX {
        let text = format!("name 1 to {DISK_HOSTS_MAX} hosts that may connect");
        return Err(ProblemDetails::field("/hosts", text));
    }
    for (at, host) in hosts.iter().enumerate() {
        nqn::checked(host)
            .map_err(|error| ProblemDetails::field(format!("/hosts/{at}"), error.to_string()))?;
    }
    let disk = RequestedDisk { name, path: PathBuf::from(path), hosts, transport };
    let (disk, is_new) = change(&api, move |disks| disks.create(disk)).await?;
    if is_new {
        tracing::info!("disk {}: exported to {:?} by {}", disk.name, disk.hosts, client.name);
    }
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(disk)))
}

/// Ends the export of a disk that a client of the API made, and the connections of its hosts. The file stays.
#[utoipa::path(delete, path = "/api/v1/disks/{name}", operation_id = "delete_disk", security(("token" = [])),
    params(("name" = String, Path, description = "Name of the disk, or its qualified name")), responses(
    (status = 200, body = DiskFacts, description = "The disk as it was"),
    Refused,
))]
pub(super) async fn delete(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<DiskFacts>, ProblemDetails> {
    client.check_exports()?;
    let name = segment(name)?;
    let disk = change(&api, move |disks| disks.delete(&name)).await?;
    tracing::info!("disk {}: export ended by {}", disk.name, client.name);
    Ok(Json(disk))
}

/// Admits a host to a disk that a client of the API exports. The connections of the other hosts go on.
#[utoipa::path(put, path = "/api/v1/disks/{name}/hosts/{host_nqn}", operation_id = "admit_disk_host", security(("token" = [])),
    params(("name" = String, Path, description = "Name of the disk, or its qualified name"),
        ("host_nqn" = String, Path, description = "Qualified name of the host")), responses(
    (status = 200, body = DiskFacts, description = "The disk, which admits the host"),
    Refused,
))]
pub(super) async fn admit_host(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<DiskFacts>, ProblemDetails> {
    client.check_exports()?;
    let (name, host) = segment(names)?;
    nqn::checked(&host).map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
    let admitted = host.clone();
    let disk = change(&api, move |disks| disks.admit(&name, &admitted)).await?;
    tracing::info!("disk {}: host {host} admitted by {}", disk.name, client.name);
    Ok(Json(disk))
}

/// Removes a host from a disk that a client of the API exports, and ends its connection. The other hosts connect again.
#[utoipa::path(delete, path = "/api/v1/disks/{name}/hosts/{host_nqn}", operation_id = "remove_disk_host", security(("token" = [])),
    params(("name" = String, Path, description = "Name of the disk, or its qualified name"),
        ("host_nqn" = String, Path, description = "Qualified name of the host")), responses(
    (status = 200, body = DiskFacts, description = "The disk without the host"),
    Refused,
))]
pub(super) async fn remove_host(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<DiskFacts>, ProblemDetails> {
    client.check_exports()?;
    let (name, host) = segment(names)?;
    let removed = host.clone();
    let disk = change(&api, move |disks| disks.dismiss(&name, &removed)).await?;
    tracing::info!("disk {}: host {} removed by {}", disk.name, host.escape_debug(), client.name);
    Ok(Json(disk))
}

/// Returns what a host needs to connect to a disk: address, transport and its secret.
///
/// The disk must admit the host.
#[utoipa::path(post, path = "/api/v1/disks/{name}/connection", operation_id = "disk_connection", security(("token" = [])),
    params(("name" = String, Path, description = "Name of the disk, or its qualified name")), request_body = DiskConnectionBody, responses(
    (status = 200, body = DiskConnectionFacts, description = "Address, transport and secret"),
    Refused,
))]
pub(super) async fn connection(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<([(HeaderName, &'static str); 1], Json<DiskConnectionFacts>), ProblemDetails> {
    let name = segment(name)?;
    let DiskConnectionBody { host_nqn } = read_body(body)?;
    let disks = with_disks(&api, |disks| disks.list()).await?;
    let known = disks.into_iter().find(|disk| disk.name == name || disk.nqn == name);
    let refused = |error: &DiskConnectionError| {
        let status = match error {
            DiskConnectionError::Unknown(_) => StatusCode::NOT_FOUND,
            DiskConnectionError::Host { .. } => StatusCode::FORBIDDEN,
            DiskConnectionError::NotExported { .. } => StatusCode::CONFLICT,
        };
        ProblemDetails::new(status, error.to_string())
    };
    // A client does not learn which other disks there are.
    let Some(disk) = known.filter(|disk| client.may_use(&disk.name)) else {
        return Err(refused(&DiskConnectionError::Unknown(name)));
    };
    client.check_host(&disk.name, &host_nqn)?;
    let (name, host) = (disk.name.clone(), host_nqn.clone());
    let found = with_disks(&api, move |disks| disks.connection(&name, &host)).await?;
    let found = found.map_err(|error| refused(&error))?;
    tracing::info!("disk {}: address and secret given to the host {host_nqn}", disk.name);
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(found)))
}
