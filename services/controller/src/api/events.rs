//! Server-sent events with a cursor, so that a returning client misses none, and a list of network events.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream::{self, StreamExt};
use penstock_http::{ApiCaller, QueryParams, RawQuery, Refused, Unavailable, revocable};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::objects::EventFacts;
use super::{ApiClient, PARAMETERS_PAGE};
use crate::access::AuthorizedClient;
use crate::issuers::identify;
use crate::problem::{ProblemDetails, unavailable};
use crate::repository::{events, now_ms};
use crate::shared::ControllerState;

/// Most events read at once.
const EVENTS_PER_READ: i64 = 500;

/// Interval of polls for events of other controllers.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

struct Following {
    shared: Arc<ControllerState>,
    who: AuthorizedClient,
    request: Option<i64>,
    after: i64,
    ready: std::collections::VecDeque<EventFacts>,
}

/// Streams events, from `Last-Event-ID` or `after` on; by default only new ones.
#[utoipa::path(get, path = "/api/v1/events", operation_id = "follow_events", security((), ("token" = [])),
    params(("after" = Option<i64>, Query, description = "Events with greater numbers than this"),
        ("request" = Option<i64>, Query, description = "Of this request")), responses(
    (status = 200, content_type = "text/event-stream", body = EventFacts, description = "Each event has its number as id and the object as data"),
    Refused,
    Unavailable))]
pub(super) async fn follow(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    caller: Option<Extension<ApiCaller>>,
    headers: HeaderMap,
    given: RawQuery,
) -> Result<Response, ProblemDetails> {
    if !asking.who.is_client() {
        return Err(ProblemDetails::forbidden("the token needs the scope read or submit"));
    }
    let mut params = QueryParams::new(given)?;
    let after = params.parsed::<i64>("after")?;
    let request = params.parsed::<i64>("request")?;
    params.none(PARAMETERS_PAGE)?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let after = match last.or(after) {
        Some(after) => after,
        None => events::last_id(&shared.database.pool).await.map_err(unavailable)?,
    };
    let known = Identified {
        shared: Arc::clone(&shared),
        caller: caller.map(|Extension(caller)| caller),
        who: asking.who.clone(),
    };
    let following =
        Following { shared, who: asking.who, request, after, ready: Default::default() };
    // The number alone is no event: a client whose connection is lost before the first one misses none.
    let begin = Event::default().id(after.to_string());
    let begin = stream::once(async { Ok::<_, Infallible>(begin) });
    let events = stream::unfold(following, |mut following| async {
        let event = following.next().await?;
        let data = serde_json::to_string(&event).expect("plain data");
        let event = Event::default().id(event.id.to_string()).event(event.kind).data(data);
        Some((Ok(event), following))
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(10));
    let response = Sse::new(begin.chain(events)).keep_alive(keep_alive).into_response();
    Ok(revocable(response, move || {
        let known = known.clone();
        Box::pin(async move { known.is_same().await })
    }))
}

/// A client as its request was identified.
#[derive(Clone)]
struct Identified {
    shared: Arc<ControllerState>,
    caller: Option<ApiCaller>,
    who: AuthorizedClient,
}

impl Identified {
    /// True while the client has the rights with which it began. Keys of an issuer that cannot be fetched now end none.
    async fn is_same(&self) -> bool {
        match identify(&self.shared, &self.shared.settings(), self.caller.as_ref()).await {
            Ok(who) => who == self.who,
            Err(problem) => problem.status == StatusCode::SERVICE_UNAVAILABLE.as_u16(),
        }
    }
}

impl Following {
    /// Returns the next event that the client may see; none when the controller stops.
    async fn next(&mut self) -> Option<EventFacts> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.shared.stopping.load(Ordering::Relaxed) {
                return None;
            }
            let shared = Arc::clone(&self.shared);
            let change = shared.followers.notified();
            let found =
                events::list(&shared.database.pool, self.request, self.after, EVENTS_PER_READ)
                    .await;
            let found = found.unwrap_or_default();
            if let Some(last) = found.last() {
                self.after = last.id;
            }
            let empty = found.is_empty();
            let seen = found.into_iter().filter(|event| match &event.class {
                Some(class) => self.who.may_see(class),
                None => self.who.may_read(),
            });
            self.ready.extend(seen.map(EventFacts::from));
            if empty {
                let _ = tokio::time::timeout(POLL_INTERVAL, change).await;
            }
        }
    }
}

/// Default and largest limit of a list.
const NETWORK_EVENTS_DEFAULT: i64 = 500;
const NETWORK_EVENTS_MAX: i64 = 1000;

/// List of network events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NetworkEvents {
    /// Events of the period, newest first.
    pub(crate) events: Vec<EventFacts>,
}

/// Network events of a period, newest first: drains, links going down or up, lost hosts.
#[utoipa::path(get, path = "/api/v1/events/network", operation_id = "network_events", security((), ("token" = [])),
    params(("from" = Option<i64>, Query, description = "Seconds since 1970, or before now where it is not above 0; -86400 if not given"),
        ("to" = Option<i64>, Query, description = "Likewise; now if not given"),
        ("limit" = Option<i64>, Query, description = "Largest number of items; 500 if not given", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = NetworkEvents, description = "Events of the network, the newest first"),
    Refused,
    Unavailable))]
pub(super) async fn network(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<NetworkEvents>, ProblemDetails> {
    if !asking.who.is_client() {
        return Err(ProblemDetails::forbidden("the token needs the scope read or submit"));
    }
    let mut params = QueryParams::new(given)?;
    let absolute = |time: i64| match time > 0 {
        true => time.saturating_mul(1000),
        false => now_ms().saturating_add(time.saturating_mul(1000)),
    };
    let from = absolute(params.parsed::<i64>("from")?.unwrap_or(-86_400));
    let to = absolute(params.parsed::<i64>("to")?.unwrap_or(0));
    let limit = params.limit(NETWORK_EVENTS_DEFAULT, NETWORK_EVENTS_MAX)?;
    params.none(PARAMETERS_PAGE)?;
    if from >= to {
        return Err(ProblemDetails::field("from", "it is not before to: give an earlier from"));
    }
    let events =
        events::of_network(&shared.database.pool, (from, to), limit).await.map_err(unavailable)?;
    let seen = events.into_iter().filter(|event| match &event.class {
        Some(class) => asking.who.may_see(class),
        None => asking.who.may_read(),
    });
    Ok(Json(NetworkEvents { events: seen.map(EventFacts::from).collect() }))
}
