//! Events: alerts, exporters, interfaces and the collector itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use penstock_http::{ProblemDetails, Refused};
use serde::Serialize;
use utoipa::ToSchema;

use super::series::RangeRequest;
use super::{RawQuery, TelemetryParams};
use crate::event::{EventKind, TelemetryEvent};
use crate::shared::Shared;

/// Default count of events in an answer.
const EVENTS_DEFAULT: usize = 500;

/// Most events in an answer.
const LIMIT_MAX: usize = 10_000;

/// Events of a time range.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryEvents)]
pub(crate) struct Events {
    /// Events, the newest first.
    events: Vec<TelemetryEvent>,
    /// Count of matching events, including those beyond the limit.
    count: usize,
}

/// Events of a time range, the newest first: alerts that fire, are resolved or acknowledged,
/// exporters and interfaces that change their state, starts and gaps of the collector. The newest
/// 10,000 are kept, across restarts if there is a store.
#[utoipa::path(get, path = "/api/v1/telemetry/events", operation_id = "telemetry_events", security((), ("token" = [])),
    params(
        ("from" = Option<i64>, Query, description = "As of series; -86400 if not given"),
        ("to" = Option<i64>, Query, description = "As of series"),
        ("kind" = Option<String>, Query, description = "Kinds that begin so, such as alert or exporter_silent"),
        ("subject" = Option<String>, Query, description = "Name of an alert, key of an exporter or interface"),
        ("link" = Option<String>, Query, description = "Of this link of the topology"),
        ("limit" = Option<usize>, Query, description = "Most events in the answer; 500 if not given"),
    ),
    responses((status = 200, body = Events, description = "Events, the newest first"), Refused))]
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<Events>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    if !params.has("from") {
        params.0.insert("from".to_owned(), "-86400".to_owned());
    }
    let until_now = !params.has("to");
    let RangeRequest { from_s, to_s, .. } = RangeRequest::new(&mut params)?;
    let [kind, subject, link] = ["kind", "subject", "link"].map(|name| params.take(name));
    let limit = params.number("limit")?.unwrap_or(EVENTS_DEFAULT).clamp(1, LIMIT_MAX);
    params.none()?;
    if let Some(kind) = &kind {
        let known = EventKind::ALL.map(EventKind::as_str);
        if !known.iter().any(|known| known.starts_with(kind.as_str())) {
            let text = format!("kind={kind}: write one of {}, or how some begin", known.join(", "));
            return Err(ProblemDetails::bad_request(text));
        }
    }
    // Includes the current second.
    let end_s = if until_now { f64::INFINITY } else { to_s as f64 };
    let wanted = |event: &&TelemetryEvent| {
        event.at_s >= from_s as f64
            && event.at_s <= end_s
            && kind.as_deref().is_none_or(|kind| event.kind.as_str().starts_with(kind))
            && subject.as_deref().is_none_or(|subject| event.subject == subject)
            && link.as_deref().is_none_or(|link| event.link.as_deref() == Some(link))
    };
    let log = shared.events_log();
    let mut count = 0;
    let mut events = Vec::new();
    for event in log.iter().rev().filter(wanted) {
        count += 1;
        if events.len() < limit {
            events.push(event.clone());
        }
    }
    Ok(Json(Events { events, count }))
}
