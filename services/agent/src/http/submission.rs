//! Submission of copies, and their events as a stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use penstock_http::server::PeerAddress;
use penstock_http::{ProblemDetails, QueryParams, RawQuery, Refused, Unavailable, revocable};
use penstock_mover::Gatekeeper;
use penstock_sys::net::is_own_address;
use tokio::sync::watch;

use super::AgentApi;
use super::api::{API_PAGE, TransferFacts, with_owner};
use super::client::TransferClient;
use crate::submitted::{SubmissionResult, SubmittedEvent, SubmittedTransfers, TransferBody};

/// Interval of comments that keep a stream open.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Submits a copy, which the agent carries out by itself.
///
/// The token needs the same rights as for a copy with the mover. The agent goes on after the client has left, and after a
/// restart. The same body with the same key is the same transfer.
#[utoipa::path(post, path = "/api/v1/transfers", operation_id = "submit_transfer", security(("token" = [])), request_body = TransferBody, responses(
    (status = 201, body = TransferFacts, description = "The new transfer", headers(("Location" = String, description = "Path of the transfer"))),
    (status = 200, body = TransferFacts, description = "The transfer that the same body and key made before"),
    Refused,
    Unavailable))]
pub(super) async fn submit(
    State(api): State<Arc<AgentApi>>,
    client: TransferClient,
    OwnHost(from_here): OwnHost,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<TransferFacts>), ProblemDetails> {
    let body =
        body.map_err(|rejection| ProblemDetails::new(rejection.status(), rejection.body_text()))?;
    let body: TransferBody = serde_json::from_slice(&body).map_err(|error| {
        ProblemDetails::bad_request(format!("cannot read the submission: {error}"))
    })?;
    let Some(submitted) = api.submitted.clone() else {
        return Err(ProblemDetails::conflict(
            "this node does not play the role agent: submit to one that does",
        ));
    };
    let caller = match client {
        TransferClient::Owner => api.authorizer.owner(),
        TransferClient::Admitted => {
            return Err(ProblemDetails::forbidden("give a token with rights on files"));
        }
        TransferClient::Bearer(caller) => caller,
    };
    let result = tokio::task::spawn_blocking(move || submitted.submit(caller, body, from_here));
    let result = result.await.map_err(|_| {
        ProblemDetails::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the submission could not be checked",
        )
    })??;
    let (status, facts) = match result {
        SubmissionResult::New(facts) => (StatusCode::CREATED, facts),
        SubmissionResult::Same(facts) => (StatusCode::OK, facts),
    };
    let location = format!("/api/v1/transfers/{}", facts.id);
    Ok((status, [(header::LOCATION, location)], Json(with_owner(&api, *facts))))
}

/// True for a client on this host that no proxy passes on.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnHost(bool);

impl<S: Sync> axum::extract::FromRequestParts<S> for OwnHost {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        _: &S,
    ) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<PeerAddress>();
        let is_own = peer.is_some_and(|peer| is_own_address(peer.0.ip().to_canonical()));
        let is_passed_on = ["forwarded", "x-forwarded-for", "via"]
            .iter()
            .any(|name| parts.headers.contains_key(*name));
        Ok(Self(is_own && !is_passed_on))
    }
}

/// A client that follows events.
struct TransferFollower {
    api: Arc<AgentApi>,
    submitted: Arc<SubmittedTransfers>,
    changes: watch::Receiver<u64>,
    client: TransferClient,
    transfer: Option<u64>,
    after: u64,
    ready: VecDeque<SubmittedEvent>,
}

/// Streams events of transfers, those of gateways excepted, from `Last-Event-ID` or `after` on; by default the present state first.
///
/// The present state of each transfer comes first if events after that number are not kept any more.
#[utoipa::path(get, path = "/api/v1/transfers/events", operation_id = "follow_transfers", security((), ("token" = [])),
    params(("after" = Option<u64>, Query, description = "Events with greater numbers than this"),
        ("transfer" = Option<u64>, Query, description = "Of this transfer only"),
        ("Last-Event-ID" = Option<u64>, Header, description = "Number of the last event received; takes precedence over after")), responses(
    (status = 200, content_type = "text/event-stream", body = TransferFacts, description = "Events state and progress; each has its number as id and the transfer as data"),
    Refused))]
pub(super) async fn follow(
    State(api): State<Arc<AgentApi>>,
    client: TransferClient,
    headers: HeaderMap,
    given: RawQuery,
) -> Result<Response, ProblemDetails> {
    let mut params = QueryParams::new(given)?;
    let after: Option<u64> = params.parsed("after")?;
    let transfer: Option<u64> = params.parsed("transfer")?;
    params.none(API_PAGE)?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let Some(submitted) = api.submitted.clone() else {
        return Err(ProblemDetails::conflict("this node does not play the role agent"));
    };
    if let Some(id) = transfer {
        super::api::find(&api, &client, id)?;
    }
    let changes = submitted.follow();
    let after = last.or(after).unwrap_or(0);
    let ready = VecDeque::new();
    // The daemon checks the other clients.
    let caller = match &client {
        TransferClient::Bearer(caller) => Some(caller.clone()),
        TransferClient::Owner | TransferClient::Admitted => None,
    };
    let authorizer = Arc::clone(&api.authorizer);
    let follower = TransferFollower { api, submitted, changes, client, transfer, after, ready };
    let events = stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        let kind = if event.is_change { "state" } else { "progress" };
        let transfer = with_owner(&follower.api, TransferFacts::clone(&event.transfer));
        let data = serde_json::to_string(&transfer).expect("plain data");
        let event = Event::default().id(event.number.to_string()).event(kind).data(data);
        Some((Ok::<_, Infallible>(event), follower))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let response = Sse::new(events).keep_alive(keep_alive).into_response();
    let Some(caller) = caller else { return Ok(response) };
    Ok(revocable(response, move || {
        let is_valid = authorizer.still_admits(&caller);
        Box::pin(async move { is_valid })
    }))
}

impl TransferFollower {
    /// Returns the next event that the client may see; none when the agent stops.
    async fn next(&mut self) -> Option<SubmittedEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let now = *self.changes.borrow_and_update();
            let found = self.submitted.events_after(self.after).unwrap_or_else(|| {
                let state = |transfer| SubmittedEvent {
                    number: now,
                    is_change: true,
                    transfer: Arc::new(transfer),
                };
                self.submitted.list_followed().into_iter().map(state).collect()
            });
            self.after = found.last().map_or(self.after, |event| event.number).max(now);
            let is_meant = |event: &SubmittedEvent| {
                self.transfer.is_none_or(|id| event.transfer.id == id)
                    && self.client.may_see(&event.transfer)
            };
            self.ready.extend(found.into_iter().filter(is_meant));
            if self.ready.is_empty() {
                if self.submitted.is_stopping() {
                    return None;
                }
                self.changes.changed().await.ok()?;
            }
        }
    }
}
