//! The controller's part of the HTTP API.
//!
//! | path | method | purpose |
//! |---|---|---|
//! | `/api/v1/requests` | POST, GET | submit; list, newest first |
//! | `/api/v1/requests/{id}` | GET, PATCH, DELETE | one request: read, change, cancel |
//! | `/api/v1/requests/{id}/files` | GET, POST | its files; append files until it is sealed |
//! | `/api/v1/requests/{id}/history` | GET | its events |
//! | `/api/v1/requests/{id}/why` | GET | its orders, with the reason of each rate |
//! | `/api/v1/classes`, `/hosts`, `/links`, `/rounds`, `/orders`, `/audit` | GET | current state and logs |
//! | `/api/v1/hosts/{name}/drain`, `/api/v1/sites/{name}/drain` | PUT, DELETE | stop or resume the start of work |
//! | `/api/v1/links/{name}` | PUT | set a link down or up |
//! | `/api/v1/reservations` | POST, GET | reserve a rate between two sites; list |
//! | `/api/v1/reservations/{id}` | DELETE | end a reservation |
//! | `/api/v1/alto/directory`, `networkmap`, `costmap` | GET | ALTO (RFC 7285) |
//! | `/api/v1/events` | GET | server-sent events |
//! | `/api/v1/agents/{host}/report` | POST | report of a node, instructions in response |
//! | `/api/v1/agents/{host}/orders/{id}` | GET | an order in full |
//! | `/fts/...` | all | the REST interface of FTS3 ([`crate::fts`]), not in the OpenAPI document |
//!
//! Errors are problem documents ([`crate::problem`]). Status codes beside those of the whole server: 200 existing
//! request or success; 201 new request; 403 missing scope; 409 another request with the same key, a destination in use,
//! or a state that forbids the change; 413 a body of more than [`BODY_BYTES_MAX`]; 422 an invalid field, named by a
//! JSON pointer; 429 too many requests in a second, or more than a quota; 503 database unavailable.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use penstock_control::orders::OrderTransport;
use penstock_http::ApiCaller;
use penstock_http::documented_values::{list_values, tag_role};
use penstock_http::server::PeerAddress;
use serde::de::DeserializeOwned;
use utoipa::OpenApi;

use crate::access::AuthorizedClient;
use crate::issuers::identify;
use crate::problem::ProblemDetails;
use crate::shared::ControllerState;

mod agents;
mod alto;
mod events;
pub mod network;
pub mod objects;
mod requests;
pub mod reservations;

/// Longest request body: 10,000 files with long names.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Prefixes of this role's paths.
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

/// True if this role serves `path`.
pub(crate) fn is_ours(path: &str) -> bool {
    if crate::fts::api::is_fts(path) {
        return true;
    }
    let rest = path.strip_prefix("/api/v1/").unwrap_or_default();
    let first = rest.split('/').next().unwrap_or_default();
    OURS.contains(&first)
}

pub(crate) fn router(shared: Arc<ControllerState>) -> Router {
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
        .with_state(Arc::clone(&shared))
        .merge(crate::fts::api::router(shared))
}

/// Identifies the client and enforces its rate limit.
async fn guard(
    State(shared): State<Arc<ControllerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = request.extensions().get::<ApiCaller>();
    let settings = shared.settings();
    match identify(&shared, &settings, caller).await {
        Ok(who) => {
            if !settings.limiter.admits(&who.name) {
                let text = format!(
                    "more than {} requests in a second: ask for many files in one, and wait a second",
                    settings.config.rate_limit
                );
                return ProblemDetails::new(StatusCode::TOO_MANY_REQUESTS, text).into_response();
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
#[openapi(
    paths(
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
    ),
    components(schemas(ProblemDetails))
)]
struct OpenApiDocument;

/// Returns the API as an OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    const OVERWRITE: &[&str] = &["changed", "never"];
    const VERIFY: &[&str] = &["transfer", "readback"];
    const TUNING_MODES: &[&str] = &["auto", "history", "observe", "off"];
    let mut document = OpenApiDocument::openapi();
    list_values(
        &mut document,
        &[
            (
                "Request",
                "state",
                &["submitted", "staged", "active", "done", "failed", "partial", "cancelled"],
            ),
            ("RequestFile", "state", &["queued", "active", "done", "failed", "cancelled"]),
            ("Circuit", "state", &["booked", "up", "broken", "released"]),
            ("ControllerHost", "state", &["up", "silent", "never"]),
            ("ControllerOrder", "kind", &["copy", "list"]),
            ("ControllerOrder", "state", &["standing", "ending"]),
            ("ControllerOrder", "phase", &["waiting", "running", "ended"]),
            ("SubmitBody", "verify", VERIFY),
            ("SubmitBody", "overwrite", OVERWRITE),
            ("SubmitBody", "tune", TUNING_MODES),
            ("SubmitBody", "transport", &OrderTransport::ALL.map(OrderTransport::name)),
        ],
    );
    let description = "Requests to transfer files between sites, and the network that they share.";
    tag_role(&mut document, "controller", description);
    document
}

/// Client and address of a request; the address has the id of a token that this node issued behind it.
pub(crate) struct ApiClient {
    pub(crate) who: AuthorizedClient,
    pub(crate) peer: String,
}

impl<S: Send + Sync> FromRequestParts<S> for ApiClient {
    type Rejection = ProblemDetails;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ProblemDetails> {
        let who = parts.extensions.get::<AuthorizedClient>().cloned();
        let who = who.ok_or_else(|| ProblemDetails::unauthorized("give a token"))?;
        let peer = parts.extensions.get::<PeerAddress>().map(|peer| peer.0.ip().to_string());
        let mut peer = peer.unwrap_or_default();
        if let Some(id) = &who.token_id {
            peer = format!("{peer} token {id}");
        }
        Ok(Self { who, peer })
    }
}

/// Parses a request body; errors carry a JSON pointer to the fault.
fn body<T: DeserializeOwned>(given: Result<Bytes, BytesRejection>) -> Result<T, ProblemDetails> {
    let bytes = given.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ProblemDetails::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the body is longer than {BODY_BYTES_MAX} bytes: append files in several calls"
            ),
        ),
        status => ProblemDetails::new(status, rejection.body_text()),
    })?;
    // Tracking the position doubles the cost, so only a body with a fault is parsed again.
    if let Ok(value) = serde_json::from_slice(&bytes) {
        return Ok(value);
    }
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().clone();
        let cause = error.into_inner();
        let text = cause.to_string();
        // serde_json appends line and column to the message.
        let words = text.split(" at line ").next().unwrap_or(&text).to_owned();
        match cause.classify() {
            serde_json::error::Category::Data => ProblemDetails::field(pointer(&path), words),
            _ => ProblemDetails::bad_request(format!("the body is no JSON: {text}")),
        }
    })?;
    reader
        .end()
        .map_err(|_| ProblemDetails::bad_request("the body has more than one JSON value"))?;
    Ok(value)
}

/// Formats a path as a JSON pointer (RFC 6901).
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

/// Page that lists the query parameters.
const PARAMETERS_PAGE: &str = "docs/controller.md";

/// Parses an id in a path.
fn number(text: &str) -> Result<i64, ProblemDetails> {
    text.parse::<i64>().ok().filter(|id| *id >= 0).ok_or_else(|| {
        ProblemDetails::not_found("requests have whole numbers as names: see GET /api/v1/requests")
    })
}
