//! The agent's HTTP API: what its transfers do, changing and cancelling them, and metrics.
//!
//! | path | method | what |
//! |---|---|---|
//! | `/api/v1/agent` | GET | version, addresses, fingerprint, exports, limits |
//! | `/api/v1/transfers` | GET | all transfers that run or ended lately |
//! | `/api/v1/transfers/{id}` | GET, PATCH, DELETE | one: look, change live, cancel |
//! | `/api/v1/openapi.json` | GET | this API as an OpenAPI document (committed as `docs/openapi.json`) |
//! | `/metrics` | GET | for Prometheus |
//! | `/healthz` | GET | 200 while the agent runs |
//!
//! Every request carries the agent's own token (`Authorization: Bearer ...`), loopback included; only
//! `/healthz` is open to all, and `/metrics` to those that the configuration says. Loopback addresses
//! speak plain HTTP, all others TLS with the agent's certificate.
//!
//! An error is `{"error": "one line: what, why, what to do"}`. What the status codes mean:
//!
//! | status | meaning |
//! |---|---|
//! | 200 | done; the body is the object as it is now |
//! | 400 | the request is wrong in itself: no JSON, an unknown key, a value that cannot be |
//! | 401 | no token, or not one of this agent's |
//! | 403 | a known client's token, which moves files but does not steer the agent |
//! | 404 | no such path or no such transfer |
//! | 405 | the path is right, the method is not |
//! | 408 | the request did not arrive within [`REQUEST_TIME`] |
//! | 409 | the transfer is there, but cannot be changed so: it is over, or cannot have that |
//! | 413 | a body of more than [`BODY_BYTES_MAX`] |
//! | 431 | headers of more than [`HEAD_BYTES_MAX`] |
//! | 500 | the agent failed: a bug |
//! | 503 | [`CONNECTIONS_MAX`] connections are open: come again later |
//!
//! Not for: moving files (the mover's port does), nor for many clients: it is the operator's window.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use penstock_mover::agent::{Agent, Counters, Limits, Transfer};
use penstock_mover::identity::Fingerprint;
use penstock_protocol::control::Settings;

use crate::config::MetricsAccess;
use crate::gate::Gate;
use crate::tokens::OWNER;

pub mod api;
mod error;
mod metrics;
pub mod server;

pub use error::ApiError;
pub(crate) use error::error_text;

/// Longest body of a request.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// Longest request line with headers.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Most connections at once.
pub const CONNECTIONS_MAX: usize = 256;

/// Time for a TLS handshake, and for the headers of a request; an idle connection ends after it too.
pub const HEAD_TIME: Duration = Duration::from_secs(10);

/// Time for a request with its body, and its answer.
pub const REQUEST_TIME: Duration = Duration::from_secs(30);

/// What the API needs of the mover.
pub trait Mover: Send + Sync + std::fmt::Debug + 'static {
    /// Transfers that run or ended lately.
    fn transfers(&self) -> Vec<Transfer>;
    /// Changes one that runs.
    ///
    /// # Errors
    /// When it cannot be changed so.
    fn set(&self, id: u64, settings: Settings) -> Result<(), String>;
    /// Ends one that runs.
    ///
    /// # Errors
    /// When it is over.
    fn cancel(&self, id: u64, reason: &str) -> Result<(), String>;
    /// Sums since the start.
    fn counters(&self) -> Counters;
}

impl Mover for Agent {
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

/// What the API shows and steers.
#[derive(Debug)]
pub struct Api {
    /// The transfers.
    pub mover: Arc<dyn Mover>,
    /// Tokens and exports.
    pub gate: Arc<Gate>,
    /// The state directory, which may hold the scitags registry.
    pub state: PathBuf,
    /// Who reads metrics without a token.
    pub metrics: MetricsAccess,
    /// Addresses of the mover.
    pub listen: Vec<std::net::SocketAddr>,
    /// Addresses of this API.
    pub http: Vec<std::net::SocketAddr>,
    /// Of the agent's certificate.
    pub fingerprint: Fingerprint,
    /// Bounds on all clients together, which may change.
    pub limits: Mutex<Limits>,
    /// When the agent started.
    pub started: SystemTime,
    /// Requests and connections.
    pub traffic: Arc<server::Traffic>,
}

/// All paths, with authentication and limits around them.
pub fn router(api: Arc<Api>) -> Router {
    penstock_dashboard::router()
        .route("/api/v1/agent", get(api::agent))
        .route("/api/v1/transfers", get(api::transfers))
        .route("/api/v1/transfers/{id}", get(api::transfer).patch(api::change).delete(api::cancel))
        .route("/api/v1/openapi.json", get(api::openapi))
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(|| async { "ok\n" }))
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
        .layer(middleware::from_fn_with_state(Arc::clone(&api), guard))
        .with_state(api)
}

/// Lets through who may, bounds the time it takes, and counts the answers.
async fn guard(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let response = match allowed(&api, &request) {
        Ok(()) => match tokio::time::timeout(REQUEST_TIME, next.run(request)).await {
            Ok(response) => response,
            Err(_) => {
                let text = format!("the request did not arrive within {}s", REQUEST_TIME.as_secs());
                ApiError::new(StatusCode::REQUEST_TIMEOUT, text).into_response()
            }
        },
        Err(refusal) => refusal.into_response(),
    };
    api.traffic.answered(response.status());
    response
}

fn allowed(api: &Api, request: &Request) -> Result<(), ApiError> {
    let local = request
        .extensions()
        .get::<server::Peer>()
        .is_some_and(|peer| peer.0.ip().to_canonical().is_loopback());
    match request.uri().path() {
        "/healthz" => return Ok(()),
        "/metrics" if api.metrics == MetricsAccess::Open => return Ok(()),
        "/metrics" if api.metrics == MetricsAccess::Loopback && local => return Ok(()),
        path if penstock_dashboard::is_ours(path) => return Ok(()),
        _ => {}
    }
    let token = bearer(request.headers()).ok_or_else(|| {
        ApiError::unauthorized("give the agent's token: Authorization: Bearer TOKEN (it is in the file 'token' of the agent's state directory)")
    })?;
    match api.gate.rules().tokens.name_of(token) {
        Some(name) if name == OWNER => Ok(()),
        Some(name) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            format!("the token of '{name}' moves files; this API takes the agent's own token"),
        )),
        None => Err(ApiError::unauthorized(
            "the token is not this agent's: it is in the file 'token' of the agent's state directory",
        )),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
