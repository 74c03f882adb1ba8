//! Endpoints of nodes. The objects are documented in `penstock_control::orders`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penstock_control::orders::{ENTRIES_MAX, Instructions, OUTCOMES_MAX, Order, Report};

use super::{ApiClient, body};
use crate::problem::{ProblemDetails, unavailable};
use crate::shared::ControllerState;
use penstock_http::{Refused, Unavailable};

/// Most orders in one report.
const ORDERS_MAX: usize = 10_000;

/// Most addresses and most interfaces of a node.
const FEW_MAX: usize = 256;

fn allowed(shared: &ControllerState, asking: &ApiClient, host: &str) -> Result<(), ProblemDetails> {
    if !asking.who.is_host(host) {
        shared.counters.refused();
        return Err(ProblemDetails::forbidden(format!(
            "the token of '{}' is not that of host '{host}': give it the scope agent:{host}",
            asking.who.name
        )));
    }
    if !shared.settings().config.is_host(host) {
        return Err(ProblemDetails::not_found(format!(
            "the controller's topology has no host '{host}': name the node as it is there"
        )));
    }
    Ok(())
}

/// Stores a node's report; responds with its instructions.
#[utoipa::path(post, path = "/api/v1/agents/{host}/report", operation_id = "report_to_controller", security(("token" = [])),
    params(("host" = String, Path, description = "Name of the host in the topology")),
    request_body(content = serde_json::Value, description = "A report"), responses(
    (status = 200, body = serde_json::Value, description = "Instructions"), Refused,
    Unavailable))]
pub(super) async fn report(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(host): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<Instructions>, ProblemDetails> {
    allowed(&shared, &asking, &host)?;
    let report: Report = body(given)?;
    check(&report)?;
    shared.counters.reported();
    Ok(Json(shared.writer.report(host, report).await?))
}

fn check(report: &Report) -> Result<(), ProblemDetails> {
    let too_many = |pointer: String, most: usize| {
        Err(ProblemDetails::at(
            StatusCode::UNPROCESSABLE_ENTITY,
            pointer,
            format!("more than {most}: report the rest the next time"),
        ))
    };
    for (name, count, most) in [
        ("/orders", report.orders.len(), ORDERS_MAX),
        ("/addresses", report.addresses.len(), FEW_MAX),
        ("/interfaces", report.interfaces.len(), FEW_MAX),
    ] {
        if count > most {
            return too_many(name.to_owned(), most);
        }
    }
    for (at, order) in report.orders.iter().enumerate() {
        if order.outcomes.len() > OUTCOMES_MAX {
            return too_many(format!("/orders/{at}/outcomes"), OUTCOMES_MAX);
        }
        if order.entries.len() > ENTRIES_MAX {
            return too_many(format!("/orders/{at}/entries"), ENTRIES_MAX);
        }
    }
    Ok(())
}

/// An order in full, while it is active.
#[utoipa::path(get, path = "/api/v1/agents/{host}/orders/{id}", operation_id = "order_of_agent", security(("token" = [])),
    params(("host" = String, Path, description = "Name of the host in the topology"),
        ("id" = u64, Path, description = "Number of the order")), responses(
    (status = 200, body = serde_json::Value, description = "The order"), Refused,
    Unavailable))]
pub(super) async fn order(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path((host, id)): Path<(String, String)>,
) -> Result<Json<Order>, ProblemDetails> {
    allowed(&shared, &asking, &host)?;
    let gone = || ProblemDetails::not_found(format!("order {id} is not active at {host}"));
    let number = id.parse().map_err(|_| gone())?;
    let order = crate::repository::runs::order(&shared.database.pool, &host, number)
        .await
        .map_err(unavailable)?;
    order.map(Json).ok_or_else(gone)
}
