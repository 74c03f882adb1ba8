//! History of links: rates of both directions, from the interfaces at their ends.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penstock_flows::estimate::Sum;
use penstock_http::{ProblemDetails, Refused};
use serde::Serialize;
use utoipa::ToSchema;

use super::network::{InterfaceMeans, keys_at_ends};
use super::series::{Answered, RangeRequest, answer, errors, rates};
use super::{RawQuery, TelemetryParams};
use crate::query::{By, Query};
use crate::query_executor::QueryResult;
use crate::row::RowDirection;
use crate::shared::Shared;

/// One direction of a link over time.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = TelemetryLinkLine)]
pub(crate) struct LinkLine {
    /// Key of the interface that reports it; null if neither end does.
    interface: Option<String>,
    /// Bits per second at each point; null if not measured.
    bps: Vec<Option<f64>>,
    /// Half-width of the 95 % interval.
    error_bps: Vec<Option<f64>>,
}

/// Rates of a link over time.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLinkSeries)]
pub(crate) struct LinkSeries {
    /// Name of the link in the topology.
    name: String,
    /// End a: node, or node:interface.
    a: String,
    /// End b: node, or node:interface.
    b: String,
    /// Capacity of each direction in bits per second.
    capacity_bps: u64,
    /// Start of the first point, in seconds since 1970.
    start_s: i64,
    /// Seconds between two points.
    step_s: i64,
    /// live, minute or hour.
    resolution: &'static str,
    /// Traffic from a to b.
    a_to_b: LinkLine,
    /// Traffic from b to a.
    b_to_a: LinkLine,
}

fn of_interface(key: &str, direction: RowDirection) -> Query {
    let filters = vec![(By::Interface, key.to_owned())];
    Query { direction: Some(direction), filters, ..Query::of(By::Interface) }
}

/// One direction of an interface; `None` without samples and counters in the range.
fn line(key: &str, answer: &QueryResult) -> Option<LinkLine> {
    let (_, sums) = answer.series.iter().find(|(one, _)| one == key)?;
    let interface = Some(key.to_owned());
    Some(LinkLine { interface, bps: rates(answer, sums), error_bps: errors(answer, sums) })
}

/// Returns rates of a link over time, in both directions.
#[utoipa::path(get, path = "/api/v1/telemetry/links/{name}/series", operation_id = "link_series", security((), ("token" = [])),
    params(
        ("name" = String, Path, description = "Name of the link in the topology"),
        ("from" = Option<i64>, Query, description = "As of series"),
        ("to" = Option<i64>, Query, description = "As of series"),
        ("step" = Option<i64>, Query, description = "As of series", minimum = 1),
    ),
    responses((status = 200, body = LinkSeries, description = "Rates of the link over time"), Refused))]
pub(super) async fn series(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    given: RawQuery,
) -> Result<Json<LinkSeries>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    let asked = RangeRequest::new(&mut params)?;
    params.none()?;
    let topology = shared.config.topology.as_ref();
    let found = topology.and_then(|topology| {
        let at = topology.links.iter().position(|link| link.name == name)?;
        Some((topology, at))
    });
    let Some((topology, at)) = found else {
        let text = format!("the topology has no link '{name}': GET /api/v1/topology lists them");
        return Err(ProblemDetails::new(StatusCode::NOT_FOUND, text));
    };
    let [a, b] = keys_at_ends(&shared).swap_remove(at);
    let mut lines = Vec::new();
    let mut shape = None;
    // Traffic that leaves the near end arrives at the far end: either may report it.
    for (near, far) in [(&a, &b), (&b, &a)] {
        let ends = [(near, RowDirection::Out), (far, RowDirection::In)];
        let mut found = None;
        let mut none = None;
        for (key, direction) in ends.into_iter().filter_map(|(key, way)| Some((key.as_ref()?, way)))
        {
            let answered = answer(&shared, of_interface(key, direction), asked).await?;
            let Answered { answer, span, resolution, .. } = answered;
            shape = Some((span, resolution));
            found = line(key, &answer);
            if found.is_some() {
                break;
            }
            // An interface without a row in measured time carried nothing.
            let zero = vec![Sum::default(); span.buckets];
            let (bps, error_bps) = (rates(&answer, &zero), errors(&answer, &zero));
            none.get_or_insert(LinkLine { interface: Some(key.clone()), bps, error_bps });
        }
        lines.push(found.or(none).unwrap_or_default());
    }
    // Without data of either end: the points of the range, without figures.
    if shape.is_none() {
        let Answered { span, resolution, .. } =
            answer(&shared, Query::of(By::Total), asked).await?;
        shape = Some((span, resolution));
    }
    for line in lines.iter_mut().filter(|line| line.interface.is_none()) {
        let buckets = shape.map_or(0, |(span, _)| span.buckets);
        (line.bps, line.error_bps) = (vec![None; buckets], vec![None; buckets]);
    }
    let (Some((span, resolution)), Some(b_to_a), Some(a_to_b)) = (shape, lines.pop(), lines.pop())
    else {
        return Err(ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "no answer".to_owned()));
    };
    let link = &topology.links[at];
    Ok(Json(LinkSeries {
        name,
        a: topology.show_end(link.ends[0]),
        b: topology.show_end(link.ends[1]),
        capacity_bps: link.rate.0,
        start_s: span.start_s,
        step_s: span.step_s,
        resolution,
        a_to_b,
        b_to_a,
    }))
}

/// Mean rates of all interfaces over a time range.
pub(super) async fn means(
    shared: &Arc<Shared>,
    mut asked: RangeRequest,
) -> Result<InterfaceMeans, ProblemDetails> {
    asked.step_s = Some(asked.to_s - asked.from_s);
    let mut by_key = [HashMap::new(), HashMap::new()];
    let mut length_s = 0.0;
    for (means, direction) in by_key.iter_mut().zip([RowDirection::In, RowDirection::Out]) {
        let query = Query { direction: Some(direction), ..Query::of(By::Interface) };
        let Answered { answer, .. } = answer(shared, query, asked).await?;
        length_s = answer.covered_s.iter().sum();
        let known = answer.series.iter();
        means.extend(known.filter_map(|(key, sums)| Some((key.clone(), answer.mean_bps(sums)?))));
    }
    Ok(InterfaceMeans { by_key, length_s })
}
