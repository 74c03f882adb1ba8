//! Metrics of the kernel's counters: `penstock_marker_*`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use penstock_http::metrics::{MetricsText, render};
use penstock_marker::status::{self, Count, REASONS};

use super::api::MarkerApi;
use super::locked;
use penstock_http::ProblemDetails;

pub(super) async fn metrics(
    State(api): State<Arc<MarkerApi>>,
) -> Result<MetricsText, ProblemDetails> {
    let (labelled, passed) = status::counters(&api.pin).map_err(|error| {
        ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    })?;
    let engine = locked(&api.engine);
    let labelled: Vec<_> = labelled
        .iter()
        .map(|((tag, method), count)| {
            let (number, name) = (tag.number().to_string(), engine.registry().name(*tag));
            ([("scitag", number), ("name", name), ("label", method.as_str().to_owned())], *count)
        })
        .collect();
    let (rules, bad_lines) = (engine.count() as u64, engine.bad_lines());
    drop(engine);
    Ok(render(move |writer| {
        for (unit, words) in [("packets", "Packets"), ("bytes", "Bytes on the wire")] {
            let value = |count: &Count| if unit == "packets" { count.packets } else { count.bytes };
            let name = format!("penstock_marker_labelled_{unit}");
            let values = labelled.iter().map(|(labels, count)| (labels.clone(), value(count)));
            writer.counters(&name, None, &format!("{words} with a tag"), values)?;
            let name = format!("penstock_marker_passed_{unit}");
            let help = format!("{words} without a tag, by the reason");
            let values = REASONS.iter().zip(&passed);
            let values = values.map(|((reason, _), count)| ([("reason", *reason)], value(count)));
            writer.counters(&name, None, &help, values)?;
        }
        writer.gauge("penstock_marker_rules", None, "Rules in force", rules)?;
        let help = "Lines on the pipe that were not obeyed";
        writer.counter("penstock_marker_bad_lines", None, help, bad_lines)
    }))
}
