//! HTTP API of the marker: rules and counters, for bearers of the token in the state directory.
//!
//! | path | method | result |
//! |---|---|---|
//! | `/api/v1/marker` | GET | the output of `penstock tag status --json`, without the rules |
//! | `/api/v1/marker/rules` | GET | address rules in force |
//! | `/api/v1/marker/rules` | POST | adds a rule: the keys of a `[[rule]]` by addresses, and `lifetime_s` |
//! | `/api/v1/marker/rules` | DELETE | removes a rule: `source`, `destination`, ports, `protocol` in the query |
//! | `/metrics` | GET | for Prometheus |
//!
//! Statuses and errors are those of [`penstock_daemon::api`]; 409 for a rule that is not possible now.

use std::collections::BTreeMap;
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
use penstock_marker::table::{Origin, RuleEntry};
use penstock_marker::{AddressMatch, MarkerError, Protocol};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::file::RuleTable;
use super::{RuleEngine, locked, metrics};
use penstock_http::{BODY_BYTES_MAX, ProblemDetails, REQUEST_TIMEOUT};

#[derive(Debug)]
pub(super) struct MarkerApi {
    pub(super) engine: Arc<Mutex<RuleEngine>>,
    token: String,
    pub(super) pin: PathBuf,
}

pub(super) fn router(engine: Arc<Mutex<RuleEngine>>, token: String, pin: PathBuf) -> Router {
    let api = Arc::new(MarkerApi { engine, token, pin });
    Router::new()
        .route("/api/v1/marker", get(show))
        .route("/api/v1/marker/rules", get(rules).post(put).delete(take))
        .route("/metrics", get(metrics::metrics))
        .fallback(|| async {
            ProblemDetails::new(
                StatusCode::NOT_FOUND,
                "no such path: see the paths in docs/scitags.md",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), guard))
        .with_state(api)
}

async fn guard(State(api): State<Arc<MarkerApi>>, request: Request, next: Next) -> Response {
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
        return ProblemDetails::unauthorized("give the token: Authorization: Bearer TOKEN (it is in the file 'token' of the state directory)").into_response();
    }
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time")
                .into_response()
        }
    }
}

fn api_error(error: &MarkerError) -> ProblemDetails {
    let status = match error {
        MarkerError::Rules(_) | MarkerError::BigTcp { .. } => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ProblemDetails::new(status, error.to_string())
}

async fn show(State(api): State<Arc<MarkerApi>>) -> Result<Json<MarkerFacts>, ProblemDetails> {
    let facts = status::read(&api.pin).map_err(|error| api_error(&error))?;
    let engine = locked(&api.engine);
    Ok(Json(describe(&facts, engine.registry())))
}

/// State and counters of a marker.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct MarkerFacts {
    /// Programs that are attached.
    pub attached: Vec<AttachedProgram>,
    /// Numbers of the rules in force.
    pub rules: RuleCounts,
    /// Packets that were labelled, by scitag and label.
    pub labelled: Vec<LabelledPackets>,
    /// Packets that were not labelled, by the reason.
    pub not_labelled: BTreeMap<String, PacketCount>,
}

/// A program at an interface.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AttachedProgram {
    /// Name of the interface.
    pub interface: String,
    /// Direction of the packets: `ingress` or `egress`.
    pub direction: &'static str,
    /// Hook: `tcx` or `clsact`.
    pub by: &'static str,
}

impl From<&penstock_marker::AttachedMarker> for AttachedProgram {
    fn from(one: &penstock_marker::AttachedMarker) -> Self {
        Self { interface: one.interface.clone(), direction: one.direction, by: one.by }
    }
}

/// Number of rules by kind.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RuleCounts {
    /// Number of rules by addresses.
    pub addresses: usize,
    /// Combinations of prefix lengths, ports and protocol among them.
    pub shapes: usize,
    /// Number of rules by cgroup.
    pub cgroups: usize,
    /// Number of rules by process.
    pub processes: usize,
}

/// Packets of a scitag with a label.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Labelled)]
pub struct LabelledPackets {
    /// Owner and activity, as `cms/default`.
    pub name: String,
    /// Owner and activity as one number.
    pub scitag: u32,
    /// Place of the scitag in the packets: `flow`, `destination` or `both`.
    pub label: &'static str,
    /// Packets on the wire, each segment of a super-packet counted.
    pub packets: u64,
    /// Bytes of the packets, Ethernet headers included.
    pub bytes: u64,
}

/// Packets and their bytes.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = MarkerCount)]
pub struct PacketCount {
    /// Packets on the wire, each segment of a super-packet counted.
    pub packets: u64,
    /// Bytes of the packets, Ethernet headers included.
    pub bytes: u64,
}

/// A rule by addresses.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AddressRule {
    /// Name of the rule in the configuration; null for rules of the pipe and of HTTP.
    pub name: Option<String>,
    /// Owner and activity, as `cms/default`.
    pub scitag: String,
    /// Place of the scitag in the packets: `flow`, `destination`, `both` or `none`.
    pub label: &'static str,
    /// Prefix of source addresses.
    pub source: String,
    /// Prefix of destination addresses.
    pub destination: String,
    /// Source port; null for any.
    pub source_port: Option<u16>,
    /// Destination port; null for any.
    pub destination_port: Option<u16>,
    /// `tcp`, `udp` or `sctp`; null for any.
    pub protocol: Option<&'static str>,
    /// Origin of the rule: `file`, `pipe` or `api`.
    pub origin: &'static str,
}

/// State and counters of a marker, by what its maps hold.
pub fn describe(
    facts: &status::MarkerStatus,
    registry: &penstock_scitags::Registry,
) -> MarkerFacts {
    let labelled = facts.labelled.iter().map(|((tag, method), count)| LabelledPackets {
        name: registry.name(*tag),
        scitag: tag.number(),
        label: method.as_str(),
        packets: count.packets,
        bytes: count.bytes,
    });
    let passed = status::REASONS.iter().zip(&facts.passed).map(|((name, _), count)| {
        ((*name).to_owned(), PacketCount { packets: count.packets, bytes: count.bytes })
    });
    MarkerFacts {
        attached: facts.attached.iter().map(Into::into).collect(),
        rules: RuleCounts {
            addresses: facts.rules.len(),
            shapes: facts.shapes,
            cgroups: facts.cgroups.len(),
            processes: facts.programs.len(),
        },
        labelled: labelled.collect(),
        not_labelled: passed.collect(),
    }
}

/// A rule by addresses, with the name that the configuration gives it.
pub fn describe_rule(
    rule: &AddressMatch,
    entry: &RuleEntry,
    name: Option<&str>,
    registry: &penstock_scitags::Registry,
) -> AddressRule {
    AddressRule {
        name: name.map(str::to_owned),
        scitag: registry.name(entry.action.tag()),
        label: entry.action.method().as_str(),
        source: rule.source.to_string(),
        destination: rule.destination.to_string(),
        source_port: rule.source_port,
        destination_port: rule.destination_port,
        protocol: rule.protocol.map(Protocol::as_str),
        origin: entry.origin.as_str(),
    }
}

async fn rules(State(api): State<Arc<MarkerApi>>) -> Json<Value> {
    let engine = locked(&api.engine);
    let rules: Vec<AddressRule> = engine
        .rules()
        .iter()
        .map(|(rule, entry)| describe_rule(rule, entry, engine.name(rule), engine.registry()))
        .collect();
    Json(json!({ "rules": rules }))
}

/// A rule to be put in force.
#[derive(Debug, Deserialize)]
struct RuleRequest {
    lifetime_s: Option<u64>,
    #[serde(flatten)]
    rule: serde_json::Map<String, Value>,
}

async fn put(
    State(api): State<Arc<MarkerApi>>,
    body: String,
) -> Result<Json<AddressRule>, ProblemDetails> {
    let bad =
        |error: &dyn std::fmt::Display| ProblemDetails::bad_request(format!("no rule: {error}"));
    let request: RuleRequest = serde_json::from_str(&body).map_err(|error| bad(&error))?;
    let rule: RuleTable =
        serde_json::from_value(Value::Object(request.rule)).map_err(|error| bad(&error))?;
    if rule.cgroup.is_some() || rule.process.is_some() || !rule.by_address() {
        return Err(ProblemDetails::bad_request(
            "a rule over HTTP is by addresses; cgroup and process are for the file",
        ));
    }
    let mut engine = locked(&api.engine);
    let action = rule.action(engine.registry()).map_err(|error| bad(&error))?;
    let address = rule.address().map_err(|error| bad(&error))?;
    let lifetime = request.lifetime_s.map(Duration::from_secs);
    engine.put(address, action, Origin::Api, lifetime).map_err(|error| api_error(&error))?;
    let entry = RuleEntry { action, origin: Origin::Api, until_s: 0 };
    Ok(Json(describe_rule(&address, &entry, None, engine.registry())))
}

async fn take(
    State(api): State<Arc<MarkerApi>>,
    Query(rule): Query<RuleTable>,
) -> Result<Json<Value>, ProblemDetails> {
    let address = rule.address().map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
    let was = locked(&api.engine).take(&address).map_err(|error| api_error(&error))?;
    if !was {
        return Err(ProblemDetails::new(StatusCode::NOT_FOUND, format!("no such rule: {address}")));
    }
    Ok(Json(json!({"removed": address.to_string()})))
}
