//! Disks that the agent exports: their list, and what a host needs to connect to one.
//!
//! The list is open to those who may read the API. Address and secret of a disk take the agent's own token, or an issued one
//! with the scope `operate`, `disk:*` or `disk:NAME`; the agent gives them only for a host that the disk's configuration names.

use std::fmt;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, header};
use penstock_daemon::api::{Bearers, IssuedAccess};
use penstock_http::tokens::bearer;
use penstock_http::{ApiCaller, ProblemDetails, QueryParams, RawQuery, Refused};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::AgentApi;
use super::api::API_PAGE;
use crate::disks::{DiskConnectionError, ExportedDisks};

/// Disks of the agent's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disks {
    /// Disks in the order of the configuration.
    pub disks: Vec<DiskFacts>,
}

/// A disk of the agent's configuration.
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
pub(super) enum DiskClient {
    /// May use all disks.
    All,
    /// May use the disks of these names.
    Named(Vec<String>),
}

impl DiskClient {
    fn may_use(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|one| one == name),
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
            Some(ApiCaller::Owner) => return Ok(Self::All),
            Some(ApiCaller::Bearer(token)) => token,
            // The daemon has admitted the request: one that reads, or that of a token with the scope operate.
            _ if matches!(parts.method, Method::GET | Method::HEAD) => return Ok(Self::All),
            _ => bearer(&parts.headers).unwrap_or_default().to_owned(),
        };
        if api.authorizer.issued_access(&token) == Some(IssuedAccess::Operate) {
            return Ok(Self::All);
        }
        match api.authorizer.disks_of(&token) {
            None => Ok(Self::All),
            Some(names) if !names.is_empty() => Ok(Self::Named(names)),
            Some(_) => Err(ProblemDetails::forbidden(
                "the token has no scope for disks: the agent's operator issues one with penstock token create --scope disk:NAME",
            )),
        }
    }
}

/// Runs `work` with the disks; exports of a reload may hold them for seconds.
async fn with_disks<T: Send + 'static>(
    api: &AgentApi,
    work: impl FnOnce(&ExportedDisks) -> T + Send + 'static,
) -> Result<T, ProblemDetails> {
    let disks = Arc::clone(&api.disks);
    let done = tokio::task::spawn_blocking(move || {
        work(&disks.lock().unwrap_or_else(PoisonError::into_inner))
    });
    done.await.map_err(|_| {
        ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the disks could not be read")
    })
}

/// Returns the disks of the configuration, also those that could not be exported.
#[utoipa::path(get, path = "/api/v1/disks", operation_id = "disks", security((), ("token" = [])), responses(
    (status = 200, body = Disks, description = "The disks of the configuration"),
    Refused,
))]
pub(super) async fn list(
    State(api): State<Arc<AgentApi>>,
    client: DiskClient,
    given: RawQuery,
) -> Result<Json<Disks>, ProblemDetails> {
    QueryParams::new(given)?.none(API_PAGE)?;
    let mut disks = with_disks(&api, ExportedDisks::list).await?;
    disks.retain(|disk| client.may_use(&disk.name));
    Ok(Json(Disks { disks }))
}

/// Returns what a host needs to connect to a disk: address, transport and its secret.
///
/// The configuration of the disk must name the host.
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
    let Path(name) = name.map_err(|error| ProblemDetails::bad_request(error.body_text()))?;
    let body =
        body.map_err(|rejection| ProblemDetails::new(rejection.status(), rejection.body_text()))?;
    let DiskConnectionBody { host_nqn } = serde_json::from_slice(&body).map_err(|error| {
        ProblemDetails::bad_request(format!("cannot read the request: {error}"))
    })?;
    let disks = with_disks(&api, ExportedDisks::list).await?;
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
    let (name, host) = (disk.name.clone(), host_nqn.clone());
    let found = with_disks(&api, move |disks| disks.connection(&name, &host)).await?;
    let found = found.map_err(|error| refused(&error))?;
    tracing::info!("disk {}: address and secret given to the host {host_nqn}", disk.name);
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(found)))
}
