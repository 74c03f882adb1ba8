//! The marker's HTTP API: rules and numbers, for whoever has the token of the state directory.
//!
//! | path | method | what |
//! |---|---|---|
//! | `/api/v1/marker` | GET | what `penstock tag status --json` prints, without the rules |
//! | `/api/v1/marker/rules` | GET | address rules in force |
//! | `/api/v1/marker/rules` | POST | puts one in force: the keys of a `[[rule]]` by addresses, and `lifetime_s` |
//! | `/api/v1/marker/rules` | DELETE | takes one out of force: `source`, `destination`, ports, `protocol` in the query |
//! | `/metrics` | GET | for Prometheus |
//!
//! Statuses and errors are those of [`crate::http`]; 409 for a rule that cannot be now.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use penstock_marker::status;
use penstock_marker::table::{Entry, Origin};
use penstock_marker::{AddressMatch, MarkerError, Protocol};
use serde::Deserialize;
use serde_json::{Value, json};

use super::file::RuleTable;
use super::{Engine, locked, metrics};
use crate::http::{ApiError, BODY_BYTES_MAX, REQUEST_TIME};

#[derive(Debug)]
pub(super) struct Api {
    pub(super) engine: Arc<Mutex<Engine>>,
    token: String,
    pub(super) pin: PathBuf,
}

pub(super) fn router(engine: Arc<Mutex<Engine>>, token: String, pin: PathBuf) -> Router {
    let api = Arc::new(Api { engine, token, pin });
    Router::new()
        .route("/api/v1/marker", get(show))
        .route("/api/v1/marker/rules", get(rules).post(put).delete(take))
        .route("/metrics", get(metrics::metrics))
        .fallback(|| async {
            ApiError::new(StatusCode::NOT_FOUND, "no such path: see the paths in docs/scitags.md")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), guard))
        .with_state(api)
}

async fn guard(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let good = token.is_some_and(|token| {
        aws_lc_rs::constant_time::verify_slices_are_equal(token.as_bytes(), api.token.as_bytes())
            .is_ok()
    });
    if !good {
        return ApiError::unauthorized("give the token: Authorization: Bearer TOKEN (it is in the file 'token' of the state directory)").into_response();
    }
    match tokio::time::timeout(REQUEST_TIME, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time")
            .into_response(),
    }
}

fn failed(error: &MarkerError) -> ApiError {
    let status = match error {
        MarkerError::Rules(_) | MarkerError::BigTcp { .. } => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, error.to_string())
}

async fn show(State(api): State<Arc<Api>>) -> Result<Json<Value>, ApiError> {
    let facts = status::read(&api.pin).map_err(|error| failed(&error))?;
    let engine = locked(&api.engine);
    Ok(Json(describe(&facts, engine.registry())))
}

/// A marker's state as JSON.
pub fn describe(facts: &status::Status, registry: &penstock_scitags::Registry) -> Value {
    let attached: Vec<Value> = facts
        .attached
        .iter()
        .map(|one| json!({"interface": one.interface, "direction": one.direction, "by": one.by}))
        .collect();
    let labelled: Vec<Value> = facts
        .labelled
        .iter()
        .map(|((tag, method), count)| {
            json!({
                "name": registry.name(*tag), "scitag": tag.number(), "label": method.as_str(),
                "packets": count.packets, "bytes": count.bytes,
            })
        })
        .collect();
    let passed: serde_json::Map<String, Value> = status::REASONS
        .iter()
        .zip(&facts.passed)
        .map(|((name, _), count)| {
            ((*name).to_owned(), json!({"packets": count.packets, "bytes": count.bytes}))
        })
        .collect();
    json!({
        "attached": attached,
        "rules": {
            "addresses": facts.rules.len(), "shapes": facts.shapes,
            "cgroups": facts.cgroups.len(), "processes": facts.programs.len(),
        },
        "labelled": labelled,
        "not_labelled": passed,
    })
}

/// An address rule as JSON.
pub fn describe_rule(
    rule: &AddressMatch,
    entry: &Entry,
    name: Option<&str>,
    registry: &penstock_scitags::Registry,
) -> Value {
    json!({
        "name": name,
        "scitag": registry.name(entry.action.tag()),
        "label": entry.action.method().as_str(),
        "source": rule.source.to_string(),
        "destination": rule.destination.to_string(),
        "source_port": rule.source_port,
        "destination_port": rule.destination_port,
        "protocol": rule.protocol.map(Protocol::as_str),
        "origin": entry.origin.as_str(),
    })
}

async fn rules(State(api): State<Arc<Api>>) -> Json<Value> {
    let engine = locked(&api.engine);
    let rules: Vec<Value> = engine
        .rules()
        .iter()
        .map(|(rule, entry)| describe_rule(rule, entry, engine.name(rule), engine.registry()))
        .collect();
    Json(json!({ "rules": rules }))
}

/// A rule to be put in force.
#[derive(Debug, Deserialize)]
struct Wanted {
    lifetime_s: Option<u64>,
    #[serde(flatten)]
    rule: serde_json::Map<String, Value>,
}

async fn put(State(api): State<Arc<Api>>, body: String) -> Result<Json<Value>, ApiError> {
    let bad = |error: &dyn std::fmt::Display| ApiError::bad_request(format!("no rule: {error}"));
    let wanted: Wanted = serde_json::from_str(&body).map_err(|error| bad(&error))?;
    let rule: RuleTable =
        serde_json::from_value(Value::Object(wanted.rule)).map_err(|error| bad(&error))?;
    if rule.cgroup.is_some() || rule.process.is_some() || !rule.by_address() {
        return Err(ApiError::bad_request(
            "a rule over HTTP is by addresses; cgroup and process are for the file",
        ));
    }
    let mut engine = locked(&api.engine);
    let action = rule.action(engine.registry()).map_err(|error| bad(&error))?;
    let address = rule.address().map_err(|error| bad(&error))?;
    let lifetime = wanted.lifetime_s.map(Duration::from_secs);
    engine.put(address, action, Origin::Api, lifetime).map_err(|error| failed(&error))?;
    let entry = Entry { action, origin: Origin::Api, until_s: 0 };
    Ok(Json(describe_rule(&address, &entry, None, engine.registry())))
}

async fn take(
    State(api): State<Arc<Api>>,
    Query(rule): Query<RuleTable>,
) -> Result<Json<Value>, ApiError> {
    let address = rule.address().map_err(ApiError::bad_request)?;
    let was = locked(&api.engine).take(&address).map_err(|error| failed(&error))?;
    if !was {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("no such rule: {address}")));
    }
    Ok(Json(json!({"removed": address.to_string()})))
}
