//! The controller's part of the HTTP API.
//!
//! | path | method | what |
//! |---|---|---|
//! | `/api/v1/requests` | POST, GET | submit; list, newest first |
//! | `/api/v1/requests/{id}` | GET, PATCH, DELETE | one: look, change, cancel |
//! | `/api/v1/requests/{id}/files` | GET, POST | its files; more of them, until it is sealed |
//! | `/api/v1/requests/{id}/history` | GET | what happened to it |
//! | `/api/v1/requests/{id}/why` | GET | its orders, with the reason of each rate |
//! | `/api/v1/classes`, `/hosts`, `/links`, `/rounds`, `/orders`, `/audit` | GET | how things stand |
//! | `/api/v1/hosts/{name}/drain`, `/api/v1/sites/{name}/drain` | PUT, DELETE | nothing new begins there; again |
//! | `/api/v1/links/{name}` | PUT | a link is down, or up again |
//! | `/api/v1/reservations` | POST, GET | a rate between two sites for a time; all of them |
//! | `/api/v1/reservations/{id}` | DELETE | give one back |
//! | `/api/v1/alto/directory`, `networkmap`, `costmap` | GET | ALTO (RFC 7285) |
//! | `/api/v1/events` | GET | what happens, as server-sent events |
//! | `/api/v1/agents/{host}/report` | POST | what a node tells, and what it is told |
//! | `/api/v1/agents/{host}/orders/{id}` | GET | an order in full |
//!
//! Errors are problem documents ([`crate::problem`]). What the status codes mean beside those of the whole server:
//! 200 there before or done; 201 a new request; 403 the token's scopes do not allow it; 409 another request with the
//! same key, a destination that is being written, or a state that does not allow it; 413 a body of more than
//! [`BODY_BYTES_MAX`]; 422 a field that cannot be, named by a JSON pointer; 429 too many requests in a second; 503 the
//! database is away.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use penstock_http::ApiCaller;
use penstock_http::server::PeerAddress;
use serde::de::DeserializeOwned;
use utoipa::OpenApi;

use crate::access::Who;
use crate::problem::Problem;
use crate::shared::Shared;

mod agents;
mod alto;
mod events;
pub mod network;
pub mod objects;
mod requests;
pub mod reservations;

/// Longest body: 10,000 files with long names.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// What the paths of this role begin with.
const OURS: [&str; 12] = [
    "alto",
    "requests",
    "classes",
    "hosts",
    "sites",
    "links",
    "rounds",
    "orders",
    "audit",
    "events",
    "agents",
    "reservations",
];

/// Whether this role answers at `path`.
pub(crate) fn is_ours(path: &str) -> bool {
    let rest = path.strip_prefix("/api/v1/").unwrap_or_default();
    let first = rest.split('/').next().unwrap_or_default();
    OURS.contains(&first)
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/api/v1/requests", post(requests::submit).get(requests::list))
        .route(
            "/api/v1/requests/{id}",
            get(requests::one).patch(requests::change).delete(requests::cancel),
        )
        .route("/api/v1/requests/{id}/files", get(requests::files).post(requests::append))
        .route("/api/v1/requests/{id}/history", get(requests::history))
        .route("/api/v1/requests/{id}/why", get(requests::why))
        .route("/api/v1/classes", get(network::classes))
        .route("/api/v1/hosts", get(network::hosts))
        .route("/api/v1/hosts/{name}/drain", put(network::drain_host).delete(network::undrain_host))
        .route("/api/v1/sites/{name}/drain", put(network::drain_site).delete(network::undrain_site))
        .route("/api/v1/links", get(network::links))
        .route("/api/v1/links/{name}", put(network::set_link))
        .route("/api/v1/rounds", get(network::rounds))
        .route("/api/v1/orders", get(network::orders))
        .route("/api/v1/audit", get(network::audit))
        .route("/api/v1/reservations", post(reservations::make).get(reservations::list))
        .route("/api/v1/reservations/{id}", axum::routing::delete(reservations::cancel))
        .route("/api/v1/alto/directory", get(alto::resources))
        .route("/api/v1/alto/networkmap", get(alto::network))
        .route("/api/v1/alto/costmap", get(alto::costs))
        .route("/api/v1/events", get(events::follow))
        .route("/api/v1/events/network", get(events::network))
        .route("/api/v1/agents/{host}/report", post(agents::report))
        .route("/api/v1/agents/{host}/orders/{id}", get(agents::order))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

/// Finds out who asks, and whether that one asks too often.
async fn guard(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<ApiCaller>();
    let settings = shared.settings();
    match Who::of(caller, &settings.tokens, &settings.config.scopes) {
        Ok(who) => {
            if !settings.limiter.admits(&who.name) {
                let text = format!(
                    "more than {} requests in a second: ask for many files in one, and wait a second",
                    settings.config.rate_limit
                );
                return Problem::new(StatusCode::TOO_MANY_REQUESTS, text).into_response();
            }
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Err(problem) => {
            shared.counters.refused();
            problem.into_response()
        }
    }
}

#[derive(OpenApi)]
#[openapi(paths(
    requests::submit,
    requests::list,
    requests::one,
    requests::change,
    requests::cancel,
    requests::files,
    requests::append,
    requests::history,
    requests::why,
    network::classes,
    network::hosts,
    network::drain_host,
    network::undrain_host,
    network::drain_site,
    network::undrain_site,
    network::links,
    network::set_link,
    network::rounds,
    network::orders,
    network::audit,
    alto::resources,
    alto::network,
    alto::costs,
    reservations::make,
    reservations::list,
    reservations::cancel,
    events::follow,
    events::network,
    agents::report,
    agents::order,
))]
struct Document;

/// The API as an OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// Who asks, and from where.
pub(crate) struct Asking {
    pub(crate) who: Who,
    pub(crate) peer: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Asking {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let who = parts.extensions.get::<Who>().cloned();
        let who = who.ok_or_else(|| Problem::unauthorized("give a token"))?;
        let peer = parts.extensions.get::<PeerAddress>().map(|peer| peer.0.ip().to_string());
        Ok(Self { who, peer: peer.unwrap_or_default() })
    }
}

/// The body of a request, read; what is wrong with it is named by a JSON pointer.
fn body<T: DeserializeOwned>(given: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    let bytes = given.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the body is longer than {BODY_BYTES_MAX} bytes: append files in several calls"
            ),
        ),
        status => Problem::new(status, rejection.body_text()),
    })?;
    // Where a fault stands costs as much again to keep track of, so it is looked for where there is one.
    if let Ok(value) = serde_json::from_slice(&bytes) {
        return Ok(value);
    }
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().clone();
        let cause = error.into_inner();
        let text = cause.to_string();
        // serde_json tells line and column after the words.
        let words = text.split(" at line ").next().unwrap_or(&text).to_owned();
        match cause.classify() {
            serde_json::error::Category::Data => Problem::field(pointer(&path), words),
            _ => Problem::bad_request(format!("the body is no JSON: {text}")),
        }
    })?;
    reader.end().map_err(|_| Problem::bad_request("the body has more than one JSON value"))?;
    Ok(value)
}

/// RFC 6901.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut text = String::new();
    for segment in path.iter() {
        let part = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.clone(),
            Segment::Enum { variant } => variant.clone(),
            Segment::Unknown => continue,
        };
        text.push('/');
        text += &part.replace('~', "~0").replace('/', "~1");
    }
    text
}

type Given = Result<axum::extract::Query<Vec<(String, String)>>, QueryRejection>;

/// Parameters of a request, each of which must be taken.
struct Params(HashMap<String, String>);

impl Params {
    fn new(given: Given) -> Result<Self, Problem> {
        let axum::extract::Query(pairs) =
            given.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
        let mut params = HashMap::new();
        for (name, value) in pairs {
            if params.insert(name.clone(), value).is_some() {
                return Err(Problem::field(name, "it is given twice: give it once"));
            }
        }
        Ok(Self(params))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn parsed<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let Some(text) = self.take(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|error: T::Err| Problem::field(name, error.to_string()))
    }

    /// A number from 0 on, or from 1 to `most`.
    fn limit(&mut self, usual: i64, most: i64) -> Result<i64, Problem> {
        match self.parsed::<i64>("limit")? {
            None => Ok(usual),
            Some(limit) if (1..=most).contains(&limit) => Ok(limit),
            Some(_) => Err(Problem::field("limit", format!("give a number from 1 to {most}"))),
        }
    }

    fn none(self) -> Result<(), Problem> {
        match self.0.keys().min() {
            None => Ok(()),
            Some(name) => {
                Err(Problem::field(name, "it is no parameter here: see docs/controller.md"))
            }
        }
    }
}

/// The number in a path.
fn number(text: &str) -> Result<i64, Problem> {
    text.parse::<i64>().ok().filter(|id| *id >= 0).ok_or_else(|| {
        Problem::not_found("requests have whole numbers as names: see GET /api/v1/requests")
    })
}
