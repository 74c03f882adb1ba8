//! Metrics of the kernel's counters: `penstock_marker_*`.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use penstock_marker::status::{self, Count, REASONS};

use super::api::MarkerApi;
use super::locked;
use crate::http::ApiError;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn metrics(
    State(api): State<Arc<MarkerApi>>,
) -> Result<([(HeaderName, &'static str); 1], String), ApiError> {
    let (labelled, passed) = status::counters(&api.pin)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let engine = locked(&api.engine);
    let mut text = String::new();
    for (unit, words) in [("packets", "Packets"), ("bytes", "Bytes on the wire")] {
        let value = |count: &Count| if unit == "packets" { count.packets } else { count.bytes };
        let name = format!("penstock_marker_labelled_{unit}");
        family(&mut text, &name, "counter", &format!("{words} with a tag"));
        for ((tag, method), count) in &labelled {
            let labels = format!(
                "scitag=\"{}\",name=\"{}\",label=\"{}\"",
                tag.number(),
                engine.registry().name(*tag),
                method.as_str()
            );
            sample(&mut text, &format!("{name}_total{{{labels}}}"), value(count));
        }
        let name = format!("penstock_marker_passed_{unit}");
        family(&mut text, &name, "counter", &format!("{words} without a tag, by the reason"));
        for ((reason, _), count) in REASONS.iter().zip(&passed) {
            sample(&mut text, &format!("{name}_total{{reason=\"{reason}\"}}"), value(count));
        }
    }
    family(&mut text, "penstock_marker_rules", "gauge", "Rules in force");
    sample(&mut text, "penstock_marker_rules", engine.count() as u64);
    family(
        &mut text,
        "penstock_marker_bad_lines",
        "counter",
        "Lines on the pipe that were not obeyed",
    );
    sample(&mut text, "penstock_marker_bad_lines_total", engine.bad_lines());
    text.push_str("# EOF\n");
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text))
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n");
}

fn sample(text: &mut String, name: &str, value: u64) {
    let _ = writeln!(text, "{name} {value}");
}
