//! HTML report of a rehearsal: rates of classes and waiting work over time, and published figures for comparison.

use std::fmt::Write as _;

use serde_json::Value;

use super::RehearsalOutcome;
use crate::chart::{self, Axis, PlotLine, Quantity, escaped};

/// Published figures of production systems: quantity, figure, source, JSON field of the rehearsal, and its divisor.
const PUBLISHED_FIGURES: [(&str, f64, &str, &str, f64); 4] = [
    (
        "files in a day, millions",
        2.84,
        "FTS, 5 July 2022 to 31 August 2023: 1.2 billion files (EPJ Web Conf. 295, 01031)",
        "/files_submitted_per_second",
        1e6 / 86_400.0,
    ),
    ("GB/s", 50.0, "FTS, the same time: 1.83 EB", "/bits_per_second", 8e9),
    (
        "GB/s at most",
        116.0,
        "WLCG, up to 10 PB in a day (EPJ Web Conf. 337, 01327)",
        "/bits_per_second",
        8e9,
    ),
    (
        "seconds between decisions",
        2.0,
        "FTS, period of its scheduler (cern-fts/fts3 3.14); ours is the longest round",
        "/round/max_seconds",
        1.0,
    ),
];

/// Renders the report as HTML.
pub(super) fn page(object: &Value, outcome: &mut RehearsalOutcome) -> String {
    let name = escaped(&outcome.name);
    let points = outcome.figures.points().to_vec();
    let hour = |second: u32| f64::from(second) / 3600.0;
    let mut classes: Vec<&String> = points.iter().flat_map(|point| point.classes.keys()).collect();
    classes.sort();
    classes.dedup();
    type ClassField = fn(&penstock_rehearsal::metrics::ClassPoint) -> f64;
    let lines = |pick: ClassField| -> Vec<PlotLine> {
        let line = |class: &String| {
            let values = points.iter().map(|point| {
                let value = point.classes.get(class).map_or(0.0, pick);
                (hour(point.second), value)
            });
            PlotLine::new(class.as_str(), values.collect())
        };
        classes.iter().map(|class| line(class)).collect()
    };
    let hours = Axis::new("time of the day", Quantity::Hours);
    let mut body = format!("<h1>{name}</h1>\n<pre>{}</pre>\n", escaped(&super::shown(object)));
    body += "<table><tr><th></th><th>published</th><th>ours</th><th>difference</th><th>source</th></tr>\n";
    for (what, published, source, pointer, unit) in PUBLISHED_FIGURES {
        let Some(ours) = object.pointer(pointer).and_then(Value::as_f64) else { continue };
        let ours = ours / unit;
        let _ = writeln!(
            body,
            "<tr><td>{what}</td><td>{published}</td><td>{ours:.3}</td><td>{:+.3}</td><td>{source}</td></tr>",
            ours - published
        );
    }
    body += "</table>\n<p>Published figures are of systems in service, ours of a rehearsal on one machine: the files and \
             bytes that are asked for are the demand's, not a result.</p>\n";
    body += &chart::lines(
        "Rates allotted to classes",
        hours,
        Axis::new("rate", Quantity::BitsPerSecond),
        &lines(|class| class.allotted_bps),
    );
    body += &chart::lines(
        "Bytes that waited",
        hours,
        Axis::new("waiting", Quantity::Bytes),
        &lines(|class| class.waiting_bytes as f64),
    );
    let runs = points.iter().map(|point| (hour(point.second), point.runs as f64)).collect();
    body += &chart::lines(
        "Transfers at once",
        hours,
        Axis::new("transfers", Quantity::Number),
        &[PlotLine::new("", runs)],
    );
    let jain: Vec<(f64, f64)> =
        points.iter().filter_map(|point| Some((hour(point.second), point.jain?))).collect();
    if jain.len() > 1 {
        body += &chart::lines(
            "Fairness while two classes or more waited",
            hours,
            Axis::new("Jain's index", Quantity::Number),
            &[PlotLine::new("", jain)],
        );
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{name}</title>\n<style>{}</style>\n{body}</html>\n",
        chart::STYLE
    )
}
