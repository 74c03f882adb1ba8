//! Alerts: their state, and acknowledgements by operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penstock_http::{ProblemDetails, Refused};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{RawQuery, TelemetryParams};
use crate::alert::{Acknowledgement, Alert, AlertScope, AlertState};
use crate::event::{EventKind, TelemetryEvent};
use crate::shared::{Shared, unix_now};

/// Longest comment of an acknowledgement, in bytes.
const COMMENT_BYTES_MAX: usize = 400;

/// An operator's acknowledgement of a firing alert.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryAcknowledgement)]
pub(crate) struct AcknowledgementFacts {
    /// Time of the acknowledgement, in seconds since 1970.
    at_s: f64,
    /// Comment by the operator; may be empty.
    comment: String,
}

/// An alert with its rule and state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryAlert)]
pub(crate) struct AlertFacts {
    /// Name in the configuration.
    name: String,
    /// rate, share, loss, unlabelled or silence.
    kind: String,
    /// info, warning or critical.
    severity: &'static str,
    /// firing, pending (the condition holds, not for `for_s` yet), inactive, or no_data.
    state: &'static str,
    /// Dimension of `key`: as in series, or link; null for kinds without one.
    by: Option<&'static str>,
    /// The owner, exporter, link and so on that it watches; null for all.
    key: Option<String>,
    /// True while the alert fires.
    firing: bool,
    /// Start of the current state, in seconds since 1970; null before the first figure.
    since_s: Option<f64>,
    /// Start of the condition that has not fired yet, in seconds since 1970; null if it does not
    /// hold.
    pending_since_s: Option<f64>,
    /// Last figure; null if unknown.
    value: Option<f64>,
    /// Unit of the figure: bit/s, share or s.
    unit: &'static str,
    /// Figure beyond which it fires.
    threshold: f64,
    /// True if it fires above the threshold, false if below.
    above: bool,
    /// Figure beyond which it clears.
    clear: f64,
    /// Seconds that the condition must hold.
    for_s: f64,
    /// Count of times it began to fire.
    times: u64,
    /// Acknowledgement by an operator; null if none.
    acknowledged: Option<AcknowledgementFacts>,
}

/// All alerts with their counts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryAlerts)]
pub(crate) struct Alerts {
    /// Alerts in the order of the configuration.
    alerts: Vec<AlertFacts>,
    /// Count of firing alerts.
    firing: usize,
    /// Count of pending alerts.
    pending: usize,
    /// Count of firing alerts without an acknowledgement.
    unacknowledged: usize,
}

fn facts(alert: Alert) -> AlertFacts {
    let (state, pending_since_s) = (alert.state().as_str(), alert.pending_since_s());
    let by = match (alert.rule.of, &alert.rule.key) {
        (AlertScope::Link, _) => Some("link"),
        (AlertScope::By(by), Some(_)) => Some(by.as_str()).filter(|by| *by != "total"),
        _ => None,
    };
    // Loss and silence refer to an exporter, if they have a key.
    let by = by.or_else(|| alert.rule.key.as_ref().map(|_| "exporter"));
    AlertFacts {
        kind: format!("{:?}", alert.rule.watched).to_lowercase(),
        severity: alert.rule.severity.as_str(),
        state,
        unit: alert.rule.unit(),
        by,
        key: alert.rule.key,
        firing: alert.firing,
        since_s: alert.since_s,
        pending_since_s,
        value: alert.value,
        threshold: alert.rule.threshold,
        above: alert.rule.above,
        clear: alert.rule.clear,
        for_s: alert.rule.after.as_secs_f64(),
        times: alert.times,
        acknowledged: alert
            .acknowledged
            .map(|Acknowledgement { at_s, comment }| AcknowledgementFacts { at_s, comment }),
        name: alert.rule.name,
    }
}

/// Lists alerts with their state.
#[utoipa::path(get, path = "/api/v1/telemetry/alerts", security((), ("token" = [])),
    responses((status = 200, body = Alerts, description = "Rules of alerts with their states"), Refused))]
pub(super) async fn alerts(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<Alerts>, ProblemDetails> {
    TelemetryParams::new(given)?.none()?;
    let alerts = shared.alert_states().clone();
    let count = |wanted: AlertState| alerts.iter().filter(|one| one.state() == wanted).count();
    let (firing, pending) = (count(AlertState::Firing), count(AlertState::Pending));
    let unacknowledged =
        alerts.iter().filter(|alert| alert.firing && alert.acknowledged.is_none()).count();
    let alerts = alerts.into_iter().map(facts).collect();
    Ok(Json(Alerts { alerts, firing, pending, unacknowledged }))
}

/// Body of an acknowledgement.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TelemetryAcknowledge)]
pub(crate) struct Acknowledge {
    /// For other operators: who works on it, in which ticket.
    #[serde(default)]
    comment: String,
}

/// Acknowledges a firing alert; the acknowledgement ends with the alert.
#[utoipa::path(put, path = "/api/v1/telemetry/alerts/{name}/acknowledgement", operation_id = "acknowledge_alert", security(("token" = [])),
    params(("name" = String, Path, description = "Name of the alert")), request_body = Acknowledge,
    responses((status = 200, body = AlertFacts, description = "The alert, acknowledged"), Refused))]
pub(super) async fn acknowledge(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    body: Result<Json<Acknowledge>, JsonRejection>,
) -> Result<Json<AlertFacts>, ProblemDetails> {
    let Json(Acknowledge { comment }) =
        body.map_err(|error| ProblemDetails::bad_request(error.body_text()))?;
    if comment.len() > COMMENT_BYTES_MAX {
        let text = format!("the comment is longer than {COMMENT_BYTES_MAX} bytes: shorten it");
        return Err(ProblemDetails::bad_request(text));
    }
    change(&shared, &name, |alert, at_s| {
        if !alert.firing {
            let text = format!("'{name}' does not fire: only firing alerts are acknowledged");
            return Err(ProblemDetails::new(StatusCode::CONFLICT, text));
        }
        alert.acknowledged = Some(Acknowledgement { at_s, comment: comment.clone() });
        Ok((EventKind::AlertAcknowledged, comment.clone()))
    })
}

/// Revokes the acknowledgement of a firing alert.
#[utoipa::path(delete, path = "/api/v1/telemetry/alerts/{name}/acknowledgement", operation_id = "unacknowledge_alert", security(("token" = [])),
    params(("name" = String, Path, description = "Name of the alert")),
    responses((status = 200, body = AlertFacts, description = "The alert, no longer acknowledged"), Refused))]
pub(super) async fn unacknowledge(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Result<Json<AlertFacts>, ProblemDetails> {
    change(&shared, &name, |alert, _| match alert.acknowledged.take() {
        Some(_) => Ok((EventKind::AlertUnacknowledged, String::new())),
        None => {
            let text = format!("'{name}' is not acknowledged");
            Err(ProblemDetails::new(StatusCode::CONFLICT, text))
        }
    })
}

fn change(
    shared: &Shared,
    name: &str,
    change: impl FnOnce(&mut Alert, f64) -> Result<(EventKind, String), ProblemDetails>,
) -> Result<Json<AlertFacts>, ProblemDetails> {
    let mut states = shared.alert_states();
    let alert = states.iter_mut().find(|alert| alert.rule.name == name).ok_or_else(|| {
        let text = format!("no alert is called '{name}': GET /api/v1/telemetry/alerts lists them");
        ProblemDetails::new(StatusCode::NOT_FOUND, text)
    })?;
    let at_s = unix_now();
    let (kind, text) = change(alert, at_s)?;
    let alert = alert.clone();
    // Still under the lock of the alerts, so that the log has the events of an alert in order.
    shared.events_log().push(TelemetryEvent::new(at_s, kind, alert.rule.severity, name).text(text));
    drop(states);
    Ok(Json(facts(alert)))
}
