//! HTTP API of the collector: paths below `/api/v1/telemetry`, and `/api/v1/topology`.
//!
//! All requests only read, except acknowledgements of alerts, which need the agent's token. Rates
//! are bits per second with the half-width of their 95 % interval; unmeasured values are null.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, put};
use penstock_http::documented_values::{list_parameter_values, list_values, tag_role};
use penstock_http::{ProblemDetails, RawQuery};
use utoipa::OpenApi;

use crate::query::{By, Query, QueryWordError};
use crate::row::RowDirection;
use crate::shared::Shared;

mod alerts;
mod events;
mod facts;
mod flow_filter;
mod follow;
mod link_series;
mod matrix;
mod network;
mod series;
mod talkers;
mod unknown;

pub(crate) use network::{interface_states, link_share};
pub(crate) use series::first;
#[cfg(test)]
pub(crate) use series::{live, past};

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/api/v1/telemetry/series", get(series::series))
        .route("/api/v1/telemetry/live", get(follow::live))
        .route("/api/v1/telemetry/interfaces", get(facts::interfaces))
        .route("/api/v1/telemetry/exporters", get(facts::exporters))
        .route("/api/v1/telemetry/talkers", get(talkers::talkers))
        .route("/api/v1/telemetry/labels", get(series::labels))
        .route("/api/v1/telemetry/alerts", get(alerts::alerts))
        .route(
            "/api/v1/telemetry/alerts/{name}/acknowledgement",
            put(alerts::acknowledge).delete(alerts::unacknowledge),
        )
        .route("/api/v1/telemetry/events", get(events::events))
        .route("/api/v1/telemetry/matrix", get(matrix::matrix))
        .route("/api/v1/telemetry/status", get(facts::status))
        .route("/api/v1/telemetry/links", get(network::links))
        .route("/api/v1/telemetry/links/{name}/series", get(link_series::series))
        .route("/api/v1/topology", get(network::topology))
        .with_state(shared)
}

#[derive(OpenApi)]
#[openapi(
    paths(
        series::series,
        follow::live,
        facts::interfaces,
        facts::exporters,
        talkers::talkers,
        series::labels,
        alerts::alerts,
        alerts::acknowledge,
        alerts::unacknowledge,
        events::events,
        matrix::matrix,
        facts::status,
        network::links,
        link_series::series,
        network::topology,
    ),
    components(schemas(ProblemDetails))
)]
struct CollectorApi;

/// Builds the OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = CollectorApi::openapi();
    list_values(
        &mut document,
        &[
            ("TelemetryAlert", "state", &["firing", "pending", "inactive", "no_data"]),
            ("TelemetryAlert", "kind", &["rate", "share", "loss", "unlabelled", "silence"]),
            ("TopologyNode", "kind", &["host", "switch"]),
            ("TelemetryAlert", "severity", &["info", "warning", "critical"]),
            ("TelemetryTalker", "label", &["labelled", "untrusted", "unlabelled"]),
        ],
    );
    list_parameter_values(&mut document, "direction", &["in", "out"]);
    list_parameter_values(&mut document, "combine", &["auto", "max", "sum"]);
    tag_role(&mut document, "collector", "Traffic by owner, activity, site and link; alerts.");
    document
}

/// Query parameters, each of which must be consumed.
struct TelemetryParams(HashMap<String, String>);

impl TelemetryParams {
    fn new(given: RawQuery) -> Result<Self, ProblemDetails> {
        let axum::extract::Query(pairs) =
            given.map_err(|rejection| ProblemDetails::bad_request(rejection.body_text()))?;
        let mut params = HashMap::new();
        for (name, value) in pairs {
            if params.insert(name.clone(), value).is_some() {
                return Err(ProblemDetails::bad_request(format!(
                    "{name} is given twice: give it once"
                )));
            }
        }
        Ok(Self(params))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>, ProblemDetails> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let bad = |_| ProblemDetails::bad_request(format!("{name}={text}: give a whole number"));
        text.parse().map(Some).map_err(bad)
    }

    fn direction(&mut self) -> Result<Option<RowDirection>, ProblemDetails> {
        match self.take("direction").as_deref() {
            None => Ok(None),
            Some("in") => Ok(Some(RowDirection::In)),
            Some("out") => Ok(Some(RowDirection::Out)),
            Some(other) => {
                Err(ProblemDetails::bad_request(format!("direction={other}: write in or out")))
            }
        }
    }

    /// Parses direction, view and filters of a query; remaining parameters are unknown.
    fn question(mut self, by: By, shared: &Shared) -> Result<Query, ProblemDetails> {
        let direction = self.direction()?;
        let view = match self.take("combine") {
            None => shared.config.combine,
            Some(text) => text
                .parse()
                .map_err(|error: QueryWordError| ProblemDetails::bad_request(error.to_string()))?,
        };
        let mut filters = Vec::new();
        for (name, value) in std::mem::take(&mut self.0) {
            match name.parse() {
                Ok(by) if by != By::Total => filters.push((by, value)),
                _ => {
                    return Err(ProblemDetails::bad_request(format!(
                        "'{name}' is no parameter here: see docs/telemetry.md"
                    )));
                }
            }
        }
        let query = Query { by, direction, filters, view, sided: false };
        query.check().map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
        Ok(query)
    }

    fn none(self) -> Result<(), ProblemDetails> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(ProblemDetails::bad_request(format!(
                "'{name}' is no parameter here: see docs/telemetry.md"
            ))),
        }
    }
}
