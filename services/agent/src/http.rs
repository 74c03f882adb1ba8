//! The agent's HTTP API: its transfers, their control, and metrics.
//!
//! | path | method | result |
//! |---|---|---|
//! | `/api/v1/agent` | GET | version, addresses, fingerprint, exports, limits |
//! | `/api/v1/transfers` | GET | transfers that run or ended recently |
//! | `/api/v1/transfers/{id}` | GET, PATCH, DELETE | one transfer: read, change while running, cancel |
//! | `/api/v1/openapi.json` | GET | this API as an OpenAPI document (committed as `docs/openapi.json`) |
//! | `/metrics` | GET | for Prometheus |
//! | `/healthz` | GET | 200 while the agent runs |
//! | `/`, `/ui/` | GET | the dashboard, static files open to all |
//!
//! Other roles add their paths ([`penstock_http::Role`]). Changes need the agent's own token (`Authorization: Bearer
//! ...`). The configuration sets read access without a token, and separately that of `/metrics`; `/healthz` is open to
//! all. Loopback addresses speak plain HTTP, others TLS with the agent's certificate.
//!
//! An error is a problem document (RFC 9457): `detail` is one line with the failure, its reason and a
//! remedy. Status codes:
//!
//! | status | meaning |
//! |---|---|
//! | 200 | success; the body is the object after the request |
//! | 400 | malformed request: no JSON, an unknown key, an invalid value |
//! | 401 | no token, or not one of this agent's |
//! | 403 | the token of a client, which may move files but not control the agent |
//! | 404 | no such path or no such transfer |
//! | 405 | the path is right, the method is not |
//! | 408 | the request did not arrive within [`REQUEST_TIMEOUT`] |
//! | 409 | the transfer cannot change so: it has ended, or does not support the value |
//! | 413 | a body of more than [`BODY_BYTES_MAX`] |
//! | 431 | headers of more than [`HEAD_BYTES_MAX`] |
//! | 500 | the agent failed: a bug |
//! | 503 | `[http] connections` (256 unless set) are open: retry later |
//!
//! Not for: moving files, which use the mover's port, nor for many clients.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use penstock_http::access::{ApiCaller, ReadPolicy};
use penstock_mover::agent::{Agent, Counters, Limits, Transfer};
use penstock_mover::identity::Fingerprint;
use penstock_protocol::control::Settings;

use crate::authorizer::Authorizer;
use crate::config::MetricsAccess;
use crate::controller::ControllerLink;
use crate::tokens::OWNER;

pub mod api;
mod metrics;

pub use penstock_http::{
    ApiError, BODY_BYTES_MAX, CONNECTIONS_MAX, HEAD_BYTES_MAX, HEADER_TIMEOUT, REQUEST_TIMEOUT,
    Role, as_problem, server,
};

/// The operations of the mover that the API uses.
pub trait MoverControl: Send + Sync + std::fmt::Debug + 'static {
    /// Transfers that run or ended recently.
    fn transfers(&self) -> Vec<Transfer>;
    /// Changes a running transfer.
    ///
    /// # Errors
    /// When it has ended, or does not support the change.
    fn set(&self, id: u64, settings: Settings) -> Result<(), String>;
    /// Cancels a running transfer.
    ///
    /// # Errors
    /// When it has ended.
    fn cancel(&self, id: u64, reason: &str) -> Result<(), String>;
    /// Counters since the start.
    fn counters(&self) -> Counters;
}

impl MoverControl for Agent {
    fn transfers(&self) -> Vec<Transfer> {
        self.transfers()
    }
    fn set(&self, id: u64, settings: Settings) -> Result<(), String> {
        self.set(id, settings)
    }
    fn cancel(&self, id: u64, reason: &str) -> Result<(), String> {
        self.cancel(id, reason)
    }
    fn counters(&self) -> Counters {
        self.counters()
    }
}

/// Stands in on a node that does not play the role agent.
#[derive(Debug)]
pub struct NoMover;

impl MoverControl for NoMover {
    fn transfers(&self) -> Vec<Transfer> {
        Vec::new()
    }
    fn set(&self, id: u64, _: Settings) -> Result<(), String> {
        Err(format!("there is no transfer {id}: this node does not play the role agent"))
    }
    fn cancel(&self, id: u64, _: &str) -> Result<(), String> {
        self.set(id, Settings::default())
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// State behind the API.
#[derive(Debug)]
pub struct AgentApi {
    /// Source and control of the transfers.
    pub mover: Arc<dyn MoverControl>,
    /// Authenticates tokens; holds the exports.
    pub authorizer: Arc<Authorizer>,
    /// The state directory, which may hold the scitags registry.
    pub state: PathBuf,
    /// Access to metrics without a token.
    pub metrics: MetricsAccess,
    /// Read access to the other paths without a token.
    pub reading: ReadPolicy,
    /// Other roles with their paths.
    pub roles: Vec<Arc<dyn Role>>,
    /// Addresses on which the mover listens.
    pub listen: Vec<std::net::SocketAddr>,
    /// Addresses on which this API listens.
    pub http: Vec<std::net::SocketAddr>,
    /// Fingerprint of the agent's certificate.
    pub fingerprint: Fingerprint,
    /// Limits on all clients together, which a reload may change.
    pub limits: Arc<Mutex<Limits>>,
    /// Connection to the controller, if configured.
    pub controller: Option<Arc<ControllerLink>>,
    /// Start time of the agent.
    pub started: SystemTime,
    /// Counts requests and open connections.
    pub traffic: Arc<server::ConnectionTracker>,
}

/// Builds the router of all paths with authentication and limits.
pub fn router(api: Arc<AgentApi>) -> Router {
    let mut all = penstock_dashboard::router();
    for role in &api.roles {
        all = all.merge(role.router());
    }
    let own = Router::new()
        .route("/api/v1/agent", get(api::agent))
        .route("/api/v1/transfers", get(api::transfers))
        .route("/api/v1/transfers/{id}", get(api::transfer).patch(api::change).delete(api::cancel))
        .route("/api/v1/openapi.json", get(api::openapi))
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(Arc::clone(&api));
    all.merge(own)
        .fallback(|request: Request| async move {
            let path = request.uri().path().to_owned();
            ApiError::new(
                StatusCode::NOT_FOUND,
                format!("no such path: {path}: see /api/v1/openapi.json"),
            )
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let text = format!("{} does not take {}", request.uri().path(), request.method());
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, text)
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(api, guard))
}

/// Authenticates a request, bounds its time and counts the response.
async fn guard(State(api): State<Arc<AgentApi>>, mut request: Request, next: Next) -> Response {
    let allowed = match api.roles.iter().any(|role| role.guards(request.uri().path())) {
        true => {
            let caller = caller(&api, &request);
            request.extensions_mut().insert(caller);
            Ok(())
        }
        false => allowed(&api, &request),
    };
    let response = match allowed {
        Ok(()) => match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
            Ok(response) => response,
            Err(_) => {
                let text =
                    format!("the request did not arrive within {}s", REQUEST_TIMEOUT.as_secs());
                ApiError::new(StatusCode::REQUEST_TIMEOUT, text).into_response()
            }
        },
        Err(refusal) => refusal.into_response(),
    };
    let response = as_problem(response).await;
    api.traffic.count_answer(response.status());
    response
}

fn allowed(api: &AgentApi, request: &Request) -> Result<(), ApiError> {
    let reading = match request.uri().path() {
        "/metrics" => ReadPolicy { read: api.metrics.into(), ..api.reading.clone() },
        _ => api.reading.clone(),
    };
    match request.uri().path() {
        "/healthz" => return Ok(()),
        path if penstock_dashboard::is_dashboard_path(path) => return Ok(()),
        _ => {}
    }
    let Some(token) = bearer(request.headers()) else {
        return match reading.allows(request) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ApiError::unauthorized(
                "give the agent's token: Authorization: Bearer TOKEN (it is in the file 'token' of the agent's state directory)",
            )),
            Err(why) => Err(ApiError::unauthorized(&why)),
        };
    };
    match api.authorizer.rules().tokens.name_of(token) {
        Some(name) if name == OWNER => Ok(()),
        Some(name) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            format!("the token of '{name}' moves files; this API takes the agent's own token"),
        )),
        None => match api.roles.iter().find_map(|role| role.may_read(token)) {
            Some(true) if reads(request) => Ok(()),
            Some(true) => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "the token may only read here: changes take the agent's own token".to_owned(),
            )),
            Some(false) => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "the token lacks the scope read: its entry [[controller.token]] lists its scopes"
                    .to_owned(),
            )),
            None => Err(ApiError::unauthorized(
                "the token is not this agent's: it is in the file 'token' of the agent's state directory",
            )),
        },
    }
}

fn reads(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// The caller of a role that does its own authorisation.
fn caller(api: &AgentApi, request: &Request) -> ApiCaller {
    match bearer(request.headers()) {
        Some(token) if api.authorizer.rules().tokens.is_owner(token) => ApiCaller::Owner,
        Some(token) => ApiCaller::Bearer(token.to_owned()),
        None => match api.reading.allows(request) {
            Ok(true) => ApiCaller::Reader,
            Ok(false) => {
                ApiCaller::Unauthorized("give a token: Authorization: Bearer TOKEN".to_owned())
            }
            Err(why) => ApiCaller::Unauthorized(why),
        },
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
