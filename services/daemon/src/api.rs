//! The HTTP API of a daemon: the paths of its roles, access to them, and what is common.
//!
//! | path | method | result |
//! |---|---|---|
//! | `/api/v1/openapi.json` | GET | the APIs of all roles as one OpenAPI document (committed as `docs/openapi.json`) |
//! | `/metrics` | GET | for Prometheus |
//! | `/healthz` | GET | 200 while the daemon runs |
//! | `/readyz` | GET | 200 once every role is ready for clients, else 503 with the reason |
//! | `/`, `/ui/` | GET | the dashboard, static files open to all |
//!
//! Roles add their paths ([`penstock_http::ServiceRole`]). At the paths of transfers a client's token has the rights that
//! it has at the mover. Else, changes need the node's own token (`Authorization: Bearer ...`). The configuration sets read
//! access without a token, and separately that of `/metrics`; `/healthz` and `/readyz` are open to all. Loopback addresses
//! speak plain HTTP, others TLS with the node's certificate.
//!
//! An error is a problem document (RFC 9457): `detail` is one line with the failure, its reason and a remedy. Status
//! codes:
//!
//! | status | meaning |
//! |---|---|
//! | 200 | success; the body is the object after the request |
//! | 304 | the client has this document, by the entity tag in its `If-None-Match` |
//! | 400 | malformed request: no JSON, an unknown key, an invalid value |
//! | 401 | no token, or not one of this node's |
//! | 403 | the token of a client, which may move files but not control the agent |
//! | 404 | no such path or no such object |
//! | 405 | the path is right, the method is not |
//! | 408 | the request did not arrive within [`REQUEST_TIMEOUT`] |
//! | 409 | the object cannot change so: it has ended, or does not support the value |
//! | 413 | a body of more than [`BODY_BYTES_MAX`] |
//! | 431 | headers of more than [`penstock_http::HEAD_BYTES_MAX`] |
//! | 500 | the daemon failed: a bug |
//! | 503 | `[http] connections` (256 unless set) are open, none of them without valid credentials: retry later |

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use penstock_http::access::{ApiCaller, ReadAccess, ReadPolicy};
use penstock_http::metrics::{MetricsText, render};
use penstock_http::server::{ConnectionTracker, HttpConnection};
use penstock_http::tokens::{OWNER, bearer};
use penstock_http::{BODY_BYTES_MAX, ProblemDetails, REQUEST_TIMEOUT, ServiceRole, revocable};
use utoipa::openapi::OpenApi;

use crate::entity_tag::Precondition;

/// Names of the bearers of tokens.
pub trait Bearers: Send + Sync + fmt::Debug + 'static {
    /// Name of the bearer of `token`, if it is valid; [`OWNER`] for the node's own.
    fn name_of(&self, token: &str) -> Option<String>;

    /// Returns true for the node's own token.
    fn is_owner(&self, token: &str) -> bool;

    /// Returns true if `token` has the form of a token with claims, which [`Self::claims_access`] checks.
    fn has_claims(&self, token: &str) -> bool {
        let _ = token;
        false
    }

    /// Access of a token that this node issued to the API; `None` for any other.
    fn issued_access(&self, token: &str) -> Option<IssuedAccess> {
        let _ = token;
        None
    }

    /// Returns true if `token` may be that of a client who moves files; the role that it reaches checks it.
    fn moves_files(&self, token: &str) -> bool {
        let _ = token;
        false
    }

    /// Checks a token with claims. May block for some seconds while keys are fetched.
    fn claims_access(&self, token: &str) -> ClaimsAccess {
        let _ = token;
        ClaimsAccess::Refused("tokens with claims are not accepted".to_owned())
    }
}

/// Access of the bearer of a token with claims to the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimsAccess {
    /// Reading, as the configuration permits it.
    Read,
    /// None: the bearer of this name moves files only.
    NoRead(String),
    /// None: the token is not valid, with the reason.
    Refused(String),
}

/// Access of a token that this node issued to the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IssuedAccess {
    /// Reading and changing everything.
    Operate,
    /// Reading everything.
    Read,
    /// By the rules of each role alone.
    None,
}

/// State behind the API.
#[derive(Debug)]
pub struct DaemonApi {
    /// Roles with their paths; the first heads the API document.
    pub roles: Vec<Arc<dyn ServiceRole>>,
    /// Names of the bearers of valid tokens.
    pub bearers: Arc<dyn Bearers>,
    /// Read access without a token.
    pub reading: ReadPolicy,
    /// Access to metrics without a token.
    pub metrics: ReadAccess,
    /// Counts requests and open connections.
    pub traffic: Arc<ConnectionTracker>,
}

/// Builds the router of all paths with authentication and limits.
pub fn router(api: Arc<DaemonApi>) -> Router {
    let mut all = penstock_dashboard::router();
    for role in &api.roles {
        all = all.merge(role.router());
    }
    let own = Router::new()
        .route("/api/v1/openapi.json", get(openapi))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(Arc::clone(&api));
    all.merge(own)
        .fallback(|request: Request| async move {
            let path = request.uri().path().to_owned();
            ProblemDetails::new(
                StatusCode::NOT_FOUND,
                format!("no such path: {path}: see /api/v1/openapi.json"),
            )
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let text = format!("{} does not take {}", request.uri().path(), request.method());
            ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, text)
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(api, guard))
}

/// Merges the API documents of roles into one, in JSON. The tag of an operation is its role.
///
/// # Panics
/// When there is no document.
#[must_use]
pub fn document(roles: impl IntoIterator<Item = OpenApi>) -> String {
    let mut roles = roles.into_iter();
    let mut document = roles.next().expect("a daemon has a role");
    roles.for_each(|role| document.merge(role));
    document.info.title = "Penstock".to_owned();
    document.info.description = Some("HTTP API of a node, by the roles that it plays.".to_owned());
    let mut text = document.to_pretty_json().expect("the document is plain data");
    text.push('\n');
    text
}

async fn openapi(State(api): State<Arc<DaemonApi>>) -> ([(HeaderName, &'static str); 1], String) {
    let roles = api.roles.iter().map(|role| role.document());
    ([(header::CONTENT_TYPE, "application/json")], document(roles))
}

async fn metrics(State(api): State<Arc<DaemonApi>>) -> MetricsText {
    render(move |writer| api.roles.iter().try_for_each(|role| role.metrics(writer)))
}

async fn readiness(State(api): State<Arc<DaemonApi>>) -> Result<&'static str, ProblemDetails> {
    match api.roles.iter().find_map(|role| role.unready_reason()) {
        None => Ok("ok\n"),
        Some(reason) => Err(ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, reason)),
    }
}

/// Refusal of credentials without a token, which are not those of an anonymous client.
const NO_TOKEN: &str = "the credentials have no token: Authorization: Bearer TOKEN";

/// Authenticates a request, bounds its time and counts the response.
async fn guard(State(api): State<Arc<DaemonApi>>, mut request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<HttpConnection>().cloned();
    let precondition = Precondition::of(request.method(), request.headers());
    let is_open = is_open(request.uri().path());
    let has_token = bearer(request.headers()).is_some();
    let has_body = !request.body().is_end_stream();
    let mut is_guarded = api.roles.iter().any(|role| role.guards(request.uri().path()));
    let allowed = match is_guarded {
        true => {
            let caller = caller(&api, &request);
            request.extensions_mut().insert(caller);
            Ok(())
        }
        false => match allowed(&api, &request) {
            Err(refusal) => {
                let token = bearer(request.headers()).map(str::to_owned);
                let access = claims_allowed(&api, token, reads(&request)).await;
                match access.unwrap_or(Err(refusal)) {
                    Err(_) if admits_mover_token(&api, &request) => {
                        let caller = caller(&api, &request);
                        request.extensions_mut().insert(caller);
                        is_guarded = true;
                        Ok(())
                    }
                    access => access,
                }
            }
            Ok(()) => {
                let is_owner = |token| api.bearers.is_owner(token);
                if bearer(request.headers()).is_some_and(is_owner) {
                    request.extensions_mut().insert(ApiCaller::Owner);
                }
                Ok(())
            }
        },
    };
    let is_allowed = allowed.is_ok();
    let head = (has_token && is_allowed && !is_guarded).then(|| head_of(&request));
    let response = match allowed {
        Ok(()) => match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
            Ok(response) => {
                let response = match head {
                    Some(head) => while_allowed(&api, head, response),
                    None => response,
                };
                precondition.apply(response).await
            }
            Err(_) => {
                let text =
                    format!("the request did not arrive within {}s", REQUEST_TIMEOUT.as_secs());
                ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, text).into_response()
            }
        },
        Err(refusal) => refusal.into_response(),
    };
    // A role that guards its paths has judged the token once it answers with success.
    let is_proven = is_allowed && (!is_guarded || response.status().is_success());
    if let Some(connection) = connection {
        // A client that still sends its body would miss the refusal.
        connection.set_lingering(has_body && !response.status().is_success());
        if has_token && !is_open && is_proven {
            connection.set_proven();
        }
    }
    api.traffic.count_answer(response.status());
    response
}

/// Method, path and headers of a request, without its body.
fn head_of(request: &Request) -> Request {
    let mut head = Request::new(Body::empty());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = request.uri().clone();
    *head.headers_mut() = request.headers().clone();
    head
}

/// Ends a stream of events when the token of its request is no longer valid for it. A role that guards its paths does that
/// itself.
fn while_allowed(api: &Arc<DaemonApi>, head: Request, response: Response) -> Response {
    let api = Arc::clone(api);
    revocable(response, move || {
        let token = bearer(head.headers()).map(str::to_owned);
        let (is_allowed, is_reading) = (allowed(&api, &head).is_ok(), reads(&head));
        let api = Arc::clone(&api);
        Box::pin(async move {
            is_allowed || matches!(claims_allowed(&api, token, is_reading).await, Some(Ok(())))
        })
    })
}

/// True for the paths that need no credentials.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz") || penstock_dashboard::is_dashboard_path(path)
}

fn allowed(api: &DaemonApi, request: &Request) -> Result<(), ProblemDetails> {
    let reading = match request.uri().path() {
        "/metrics" => ReadPolicy { read: api.metrics, ..api.reading.clone() },
        _ => api.reading.clone(),
    };
    if is_open(request.uri().path()) {
        return Ok(());
    }
    let Some(token) = bearer(request.headers()) else {
        return match reading.allows(request) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ProblemDetails::unauthorized(
                "give the agent's token: Authorization: Bearer TOKEN (it is in the file 'token' of the agent's state directory)",
            )),
            Err(error) => Err(ProblemDetails::unauthorized(error.to_string())),
        };
    };
    if token.is_empty() {
        return Err(ProblemDetails::unauthorized(NO_TOKEN));
    }
    match api.bearers.issued_access(token) {
        Some(IssuedAccess::Operate) => return Ok(()),
        Some(IssuedAccess::Read) if reads(request) => return Ok(()),
        Some(_) => {
            return Err(ProblemDetails::forbidden(
                "the token lacks the scope: read lets it read here, operate lets it change (penstock token create --scope)",
            ));
        }
        None => {}
    }
    match api.bearers.name_of(token) {
        Some(name) if name == OWNER => Ok(()),
        Some(name) => Err(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            format!("the token of '{name}' moves files; this API takes the agent's own token"),
        )),
        None => match api.roles.iter().find_map(|role| role.may_read(token)) {
            Some(true) if reads(request) => Ok(()),
            Some(true) => Err(ProblemDetails::new(
                StatusCode::FORBIDDEN,
                "the token may only read here: changes take the agent's own token".to_owned(),
            )),
            Some(false) => Err(ProblemDetails::new(
                StatusCode::FORBIDDEN,
                "the token lacks the scope read: its entry [[controller.token]] lists its scopes"
                    .to_owned(),
            )),
            None => Err(ProblemDetails::unauthorized(
                "the token is not this agent's: it is in the file 'token' of the agent's state directory",
            )),
        },
    }
}

/// Returns true if a role checks the tokens of clients who move files at the path of the request.
fn admits_mover_token(api: &DaemonApi, request: &Request) -> bool {
    let admits = api.roles.iter().any(|role| role.admits_mover_tokens(request.uri().path()));
    admits && bearer(request.headers()).is_some_and(|token| api.bearers.moves_files(token))
}

/// Decides by the claims of the token; `None` for a token without any.
async fn claims_allowed(
    api: &DaemonApi,
    token: Option<String>,
    is_reading: bool,
) -> Option<Result<(), ProblemDetails>> {
    let token = token?;
    if api.bearers.name_of(&token).is_some() || !api.bearers.has_claims(&token) {
        return None;
    }
    let bearers = Arc::clone(&api.bearers);
    let access = tokio::task::spawn_blocking(move || bearers.claims_access(&token)).await.ok()?;
    let forbidden = |text: String| Some(Err(ProblemDetails::new(StatusCode::FORBIDDEN, text)));
    match access {
        ClaimsAccess::Read if is_reading => Some(Ok(())),
        ClaimsAccess::Read => {
            forbidden("the token may only read here: changes take the agent's own token".to_owned())
        }
        ClaimsAccess::NoRead(name) => forbidden(format!(
            "the token of '{name}' moves files: reads_api = true of its [[issuer]] lets it read here"
        )),
        ClaimsAccess::Refused(text) => Some(Err(ProblemDetails::unauthorized(text))),
    }
}

fn reads(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// The caller of a role that does its own authorisation.
fn caller(api: &DaemonApi, request: &Request) -> ApiCaller {
    match bearer(request.headers()) {
        Some("") => ApiCaller::Unauthorized(NO_TOKEN.to_owned()),
        Some(token) if api.bearers.is_owner(token) => ApiCaller::Owner,
        Some(token) => ApiCaller::Bearer(token.to_owned()),
        None => match api.reading.allows(request) {
            Ok(true) => ApiCaller::Reader,
            Ok(false) => {
                ApiCaller::Unauthorized("give a token: Authorization: Bearer TOKEN".to_owned())
            }
            Err(error) => ApiCaller::Unauthorized(error.to_string()),
        },
    }
}
