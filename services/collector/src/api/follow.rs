//! The live feed: each second as a server-sent event.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use penstock_http::{ProblemDetails, Refused};
use serde::Serialize;
use tokio::sync::broadcast::{self, error::RecvError};
use utoipa::ToSchema;

use super::series::{errors, first, rates};
use super::{RawQuery, TelemetryParams};
use crate::query::{By, KeyNames, Query, QueryWordError};
use crate::query_executor::{StoredRows, TimeBuckets, execute};
use crate::second::Second;
use crate::shared::Shared;

/// Default count of keys per dimension in an event.
const TOP_KEYS: usize = 32;

/// Most keys per dimension in an event.
const TOP_MAX: usize = 256;

/// Event of one second.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetrySecond)]
pub(crate) struct SecondEvent {
    /// Number of the second since the collector's start; also the id of the event.
    number: u64,
    /// Start of the second, in seconds since 1970.
    at_s: i64,
    /// Measured part in seconds; if it is 0, rates are null.
    length_s: f64,
    /// Unit of the rates: bit/s.
    unit: &'static str,
    /// Count of samples in the second.
    samples: u64,
    /// Rate of all traffic.
    total: Now,
    /// Rates by each requested dimension, in descending order.
    by: std::collections::BTreeMap<&'static str, Vec<KeyedRate>>,
}

/// A rate with its error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryNow)]
pub(crate) struct Now {
    /// Bits per second; null if the second was not measured.
    bps: Option<f64>,
    /// Half-width of the 95 % interval, whose lower end is at least 0.
    error_bps: Option<f64>,
}

/// Rate of one key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryKeyed)]
pub(crate) struct KeyedRate {
    /// Key, as in filters.
    key: String,
    /// Display name of the key.
    name: String,
    /// Bits per second; null if the second was not measured.
    bps: Option<f64>,
    /// Half-width of the 95 % interval, whose lower end is at least 0.
    error_bps: Option<f64>,
}

/// Streams each second as it ends: server-sent events named second, whose data is one object. With
/// Last-Event-ID the later seconds still in memory come first.
#[utoipa::path(get, path = "/api/v1/telemetry/live", operation_id = "follow_telemetry", security((), ("token" = [])),
    params(
        ("by" = Option<String>, Query, description = "Words of series' by, with commas between them; owner if not given"),
        ("top" = Option<usize>, Query, description = "Keys of each; 32 if not given"),
        ("direction" = Option<String>, Query, description = "As of series"),
        ("combine" = Option<String>, Query, description = "As of series"),
        ("owner" = Option<String>, Query, description = "Filters as of series"),
    ),
    responses((status = 200, body = SecondEvent, content_type = "text/event-stream", description = "One event for each second"), Refused))]
pub(super) async fn live(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    given: RawQuery,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    let by = params.take("by").unwrap_or_else(|| "owner".to_owned());
    let by = by.split(',').map(str::parse).collect::<Result<Vec<By>, QueryWordError>>();
    let by = by.map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
    let top = params.number("top")?.unwrap_or(TOP_KEYS).clamp(1, TOP_MAX);
    let base = params.question(By::Total, &shared)?;
    let mut queries: Vec<Query> = Vec::new();
    for by in by {
        let query = Query { by, ..base.clone() };
        query.check().map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
        if !queries.contains(&query) {
            queries.push(query);
        }
    }
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let seen: Option<u64> = seen.and_then(|id| id.parse().ok());
    let feed = shared.subscribe();
    let live = shared.live();
    let newest = live.newest().map_or(0, |second| second.number);
    // A number of another run cannot be resumed.
    let after = seen.filter(|seen| *seen <= newest).unwrap_or(newest.saturating_sub(1));
    let missed: Vec<_> = live.seconds().filter(|s| s.number > after).cloned().collect();
    drop(live);
    // The first query is the total.
    queries.insert(0, base);
    let question = (queries, top);
    let follower = Follower { shared, feed, missed: missed.into_iter(), last: after, question };
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

struct Follower {
    shared: Arc<Shared>,
    feed: Option<broadcast::Receiver<Arc<Second>>>,
    missed: std::vec::IntoIter<Arc<Second>>,
    last: u64,
    /// Queries: the total, then each dimension; and the count of keys.
    question: (Vec<Query>, usize),
}

impl Follower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            let second = match self.missed.next() {
                Some(second) => second,
                None => match self.feed.as_mut()?.recv().await {
                    Ok(second) => second,
                    Err(RecvError::Closed) => return None,
                    // The client may reconnect with Last-Event-ID.
                    Err(RecvError::Lagged(_)) => {
                        self.shared.slow_clients.fetch_add(1, Ordering::Relaxed);
                        return None;
                    }
                },
            };
            // The missed seconds may also come from the feed.
            if second.number > self.last {
                self.last = second.number;
                // Clients with the same query wait for this event and share it.
                let data = self
                    .shared
                    .event_cache
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .event(second.number, &self.question, || {
                    self.shared.events.fetch_add(1, Ordering::Relaxed);
                    serde_json::to_string(&self.build_event(&second)).ok()
                })?;
                let id = second.number.to_string();
                return Some(Event::default().event("second").id(id).data(data));
            }
        }
    }

    fn build_event(&self, second: &Second) -> SecondEvent {
        let span = TimeBuckets { start_s: second.at_s, step_s: 1, buckets: 1 };
        let answer = |query: &Query| {
            execute(&self.shared, query, span, &StoredRows::default(), std::iter::once(second), &[])
        };
        let (queries, top) = &self.question;
        let total = answer(&queries[0]);
        let mut by = std::collections::BTreeMap::new();
        for query in &queries[1..] {
            let answer = answer(query);
            let directory = self.shared.directory();
            let names = KeyNames { registry: &self.shared.registry, directory: &directory };
            let keyed = first(&answer, *top).into_iter().map(|(key, cells)| KeyedRate {
                name: names.shown(query.by, &key),
                key,
                bps: rates(&answer, &cells)[0],
                error_bps: errors(&answer, &cells)[0],
            });
            by.insert(query.by.as_str(), keyed.collect());
        }
        SecondEvent {
            number: second.number,
            at_s: second.at_s,
            length_s: second.length_s,
            unit: "bit/s",
            samples: second.samples,
            total: Now {
                bps: rates(&total, &total.total)[0],
                error_bps: errors(&total, &total.total)[0],
            },
            by,
        }
    }
}
