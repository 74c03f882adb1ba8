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
//! | `/`, `/ui/` | GET | the dashboard, which holds no figures itself: open to all |
//!
//! Other roles bring their paths ([`penstock_http::Role`]). Whatever changes something carries the agent's own token
//! (`Authorization: Bearer ...`). Who reads without one the configuration says, apart for `/metrics`; `/healthz` is
//! open to all. Loopback addresses speak plain HTTP, all others TLS with the agent's certificate.
//!
//! An error is a problem document (RFC 9457): `detail` is one line with what failed, why, and what to do. What the status codes mean:
//!
//! | status | meaning |
//! |---|---|
//! | 200 | done; the body is the object as it is now |
//! | 400 | the request is wrong in itself: no JSON, an unknown key, a value that cannot be |
//! | 401 | no token, or not one of this agent's |
//! | 403 | a known client's token, which moves files but does not steer the agent |
//! | 404 | no such path or no such transfer |
//! | 405 | the path is right, the method is not |
//! | 408 | the request did not arrive within [`REQUEST_TIMEOUT`] |
//! | 409 | the transfer is there, but cannot be changed so: it is over, or cannot have that |
//! | 413 | a body of more than [`BODY_BYTES_MAX`] |
//! | 431 | headers of more than [`HEAD_BYTES_MAX`] |
//! | 500 | the agent failed: a bug |
//! | 503 | `[http] connections` (256 unless set) are open: come again later |
//!
//! Not for: moving files (the mover's port does), nor for many clients: it is the operator's window.

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

use crate::config::MetricsAccess;
use crate::controller::Link;
use crate::gate::Gate;
use crate::tokens::OWNER;

pub mod api;
mod metrics;

pub use penstock_http::{
    ApiError, BODY_BYTES_MAX, CONNECTIONS_MAX, HEAD_BYTES_MAX, HEADER_TIMEOUT, REQUEST_TIMEOUT,
    Role, as_problem, server,
};

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

/// Of a node that moves no files.
#[derive(Debug)]
pub struct NoMover;

impl Mover for NoMover {
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
    /// Who reads the rest without a token.
    pub reading: ReadPolicy,
    /// What other roles bring.
    pub roles: Vec<Arc<dyn Role>>,
    /// Addresses of the mover.
    pub listen: Vec<std::net::SocketAddr>,
    /// Addresses of this API.
    pub http: Vec<std::net::SocketAddr>,
    /// Of the agent's certificate.
    pub fingerprint: Fingerprint,
    /// Bounds on all clients together, which may change.
    pub limits: Arc<Mutex<Limits>>,
    /// Who gives it orders.
    pub controller: Option<Arc<Link>>,
    /// When the agent started.
    pub started: SystemTime,
    /// Requests and connections.
    pub traffic: Arc<server::ConnectionTracker>,
}

/// All paths, with authentication and limits around them.
pub fn router(api: Arc<Api>) -> Router {
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

/// Lets through who may, bounds the time it takes, and counts the answers.
async fn guard(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
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

fn allowed(api: &Api, request: &Request) -> Result<(), ApiError> {
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
    match api.gate.rules().tokens.name_of(token) {
        Some(name) if name == OWNER => Ok(()),
        Some(name) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            format!("the token of '{name}' moves files; this API takes the agent's own token"),
        )),
        None if reads(request) && api.roles.iter().any(|role| role.may_read(token)) => Ok(()),
        None => Err(ApiError::unauthorized(
            "the token is not this agent's: it is in the file 'token' of the agent's state directory",
        )),
    }
}

fn reads(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Who asks a role that checks it itself.
fn caller(api: &Api, request: &Request) -> ApiCaller {
    match bearer(request.headers()) {
        Some(token) if api.gate.rules().tokens.is_owner(token) => ApiCaller::Owner,
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
