//! Rows as lines of JSON (JSONEachRow): the columns of deploy/clickhouse/schema.sql.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_scitags::{Registry, Scitag};
use serde::{Deserialize, Serialize};

use super::server::ClickHouseError;
use crate::minute::Minute;
use crate::query::{By, Query};
use crate::row::{RowDirection, RowKind, RowLabel, RowVantage, SumCell, SumRow};

const LABEL_UNLABELLED: i32 = -1;
const LABEL_UNTRUSTED: i32 = -2;
const LABEL_OTHER: i32 = -3;
const VLAN_UNTAGGED: i32 = -1;

/// Unit of the inner VLAN in column `vlan`: outer VLAN + 4096 × (inner VLAN + 1).
const INNER_VLAN_UNIT: i32 = 4096;

fn vlans(outer: Option<u16>, inner: Option<u16>) -> i32 {
    let inner = inner.map_or(0, |inner| (i32::from(inner) + 1) * INNER_VLAN_UNIT);
    outer.map_or(VLAN_UNTAGGED, |outer| i32::from(outer) + inner)
}

fn vlans_of(column: i32) -> (Option<u16>, Option<u16>) {
    let part = |number: i32| u16::try_from(number).ok();
    let inner = (column / INNER_VLAN_UNIT).checked_sub(1).and_then(part);
    if column < 0 { (None, None) } else { (part(column % INNER_VLAN_UNIT), inner) }
}

/// A line of the table `minute`.
#[derive(Debug, Serialize)]
struct MinuteLine<'a> {
    start: i64,
    collector: &'a str,
    batch: i64,
    kind: &'static str,
    exporter: &'a str,
    host: u8,
    direction: RowDirection,
    label: i32,
    owner: &'a str,
    activity: &'a str,
    input: u32,
    output: u32,
    vlan: i32,
    ip_version: u8,
    source_site: &'a str,
    destination_site: &'a str,
    address: &'a str,
    prefix: &'a str,
    sent: u8,
    source_as: u32,
    destination_as: u32,
    interface: u32,
    bytes: f64,
    error_squared: f64,
    seconds: f64,
}

/// Name of a kind in the tables.
pub(super) fn word(kind: RowKind) -> &'static str {
    match kind {
        RowKind::Group => "group",
        RowKind::Host => "host",
        RowKind::System => "system",
        RowKind::Counter => "counter",
    }
}

/// Lines of one day: an insert into one partition is atomic.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) bytes: Vec<u8>,
    pub(super) rows: u64,
    /// Start of the first and of the last minute.
    pub(super) from_s: i64,
    pub(super) to_s: i64,
}

/// Encodes minutes as lines, split by day and by `rows_max` rows; `batch` draws the id of each
/// part.
pub(super) fn lines(
    minutes: &[Arc<Minute>],
    collector: &str,
    registry: &Registry,
    rows_max: u64,
    batch: &mut dyn FnMut() -> i64,
) -> Vec<(i64, Lines)> {
    let (mut full, mut open) = (Vec::new(), HashMap::<i64, (i64, Lines)>::new());
    let mut names = HashMap::new();
    let mut put = |start_s: i64, row: Option<&SumRow>, cell: SumCell| {
        let day = start_s.div_euclid(86_400);
        let (number, lines) = open.entry(day).or_insert_with(|| {
            (batch(), Lines { from_s: start_s, to_s: start_s, ..Lines::default() })
        });
        let (owner, activity) = match row {
            Some(SumRow::Group { label: RowLabel::Trusted(tag), .. }) => {
                let name: &String = names.entry(*tag).or_insert_with(|| {
                    let tag = Scitag::from_number((*tag).into());
                    tag.map_or_else(|_| String::new(), |tag| registry.name(tag))
                });
                name.split_once('/').unwrap_or((name, ""))
            }
            _ => ("", ""),
        };
        let line = line(start_s, collector, *number, row, cell, owner, activity);
        serde_json::to_writer(&mut lines.bytes, &line).expect("a line is plain data");
        lines.bytes.push(b'\n');
        lines.rows += 1;
        (lines.from_s, lines.to_s) = (lines.from_s.min(start_s), lines.to_s.max(start_s));
        if lines.rows >= rows_max {
            full.extend(open.remove(&day));
        }
    };
    for minute in minutes {
        let covered = SumCell { seconds: minute.seconds, ..SumCell::default() };
        put(minute.start_s, None, covered);
        minute.rows.iter().for_each(|(row, cell)| put(minute.start_s, Some(row), *cell));
        minute.counters.iter().for_each(|(start_s, row, cell)| put(*start_s, Some(row), *cell));
    }
    full.extend(open.into_values());
    full.sort_by_key(|(_, lines)| lines.from_s);
    full
}

fn line<'a>(
    start: i64,
    collector: &'a str,
    batch: i64,
    row: Option<&'a SumRow>,
    cell: SumCell,
    owner: &'a str,
    activity: &'a str,
) -> MinuteLine<'a> {
    let at = row.map(SumRow::at);
    let mut line = MinuteLine {
        start,
        collector,
        batch,
        kind: row.map_or("covered", |row| word(row.kind())),
        exporter: at.map_or("", |at| &at.exporter),
        host: at.is_some_and(|at| at.host).into(),
        direction: at.map_or(RowDirection::Unknown, |at| at.direction),
        label: LABEL_UNLABELLED,
        owner,
        activity,
        input: 0,
        output: 0,
        vlan: VLAN_UNTAGGED,
        ip_version: 0,
        source_site: "",
        destination_site: "",
        address: "",
        prefix: "",
        sent: 0,
        source_as: 0,
        destination_as: 0,
        interface: 0,
        bytes: cell.bytes,
        error_squared: cell.error_squared,
        seconds: cell.seconds,
    };
    match row {
        None => {}
        Some(SumRow::Group {
            input,
            output,
            vlan,
            inner_vlan,
            version,
            label,
            source,
            destination,
            ..
        }) => {
            (line.input, line.output) = (input.unwrap_or(0), output.unwrap_or(0));
            line.vlan = vlans(*vlan, *inner_vlan);
            line.ip_version = version.unwrap_or(0);
            line.label = match label {
                RowLabel::Unlabelled => LABEL_UNLABELLED,
                RowLabel::Untrusted => LABEL_UNTRUSTED,
                RowLabel::Other => LABEL_OTHER,
                RowLabel::Trusted(tag) => (*tag).into(),
            };
            line.source_site = source.as_deref().unwrap_or("");
            line.destination_site = destination.as_deref().unwrap_or("");
        }
        Some(SumRow::Host { address, prefix, sent, .. }) => {
            line.address = address.as_deref().unwrap_or("");
            line.prefix = prefix.as_deref().unwrap_or("");
            line.sent = (*sent).into();
        }
        Some(SumRow::System { source, destination, .. }) => {
            line.source_as = source.unwrap_or(0);
            line.destination_as = destination.unwrap_or(0);
        }
        // Column `sent` of counter rows: 1 of an unsampled interface, 2 of samples.
        Some(SumRow::Counter { index, unsampled, .. }) => {
            (line.interface, line.sent) = (*index, (*unsampled).into());
        }
        Some(SumRow::CounterSamples { index, .. }) => (line.interface, line.sent) = (*index, 2),
        Some(SumRow::CounterError { index, .. }) => line.interface = *index,
    }
    line
}

/// A line of an answer; columns that were not selected have defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct AnswerLine {
    bucket: i64,
    exporter: Arc<str>,
    host: u8,
    direction: RowDirection,
    label: i32,
    input: u32,
    output: u32,
    vlan: i32,
    ip_version: u8,
    source_site: Arc<str>,
    destination_site: Arc<str>,
    address: Arc<str>,
    prefix: Arc<str>,
    sent: u8,
    source_as: u32,
    destination_as: u32,
    interface: u32,
    sum_bytes: f64,
    sum_errors: f64,
    sum_seconds: f64,
}

impl Default for AnswerLine {
    fn default() -> Self {
        let none = || Arc::from("");
        Self {
            bucket: 0,
            exporter: none(),
            host: 0,
            direction: RowDirection::Unknown,
            label: LABEL_UNLABELLED,
            input: 0,
            output: 0,
            vlan: VLAN_UNTAGGED,
            ip_version: 0,
            source_site: none(),
            destination_site: none(),
            address: none(),
            prefix: none(),
            sent: 0,
            source_as: 0,
            destination_as: 0,
            interface: 0,
            sum_bytes: 0.0,
            sum_errors: 0.0,
            sum_seconds: 0.0,
        }
    }
}

/// Columns that a query needs, besides those of the vantage. The server sums over the others.
pub(super) fn columns(kind: RowKind, query: &Query) -> Vec<&'static str> {
    let mut columns = vec!["exporter", "host", "direction"];
    if kind == RowKind::Counter {
        columns.extend(["interface", "sent"]);
        return columns;
    }
    match kind {
        RowKind::Host => columns.push("sent"),
        // The counter of the sampling interface is needed, too.
        RowKind::Group => columns.extend(["input", "output"]),
        _ => {}
    }
    let asked = query.filters.iter().map(|(by, _)| *by).chain([query.by]);
    for by in asked {
        let needed: &[&'static str] = match by {
            By::Owner | By::Activity | By::Scitag => &["label"],
            By::Vlan => &["vlan"],
            By::Site | By::SitePair => &["source_site", "destination_site"],
            By::Interface => &["input", "output"],
            By::IpVersion => &["ip_version"],
            By::Host => &["address"],
            By::Prefix => &["prefix"],
            By::As => &["source_as", "destination_as"],
            By::Exporter | By::Total => &[],
        };
        for column in needed {
            if !columns.contains(column) {
                columns.push(column);
            }
        }
    }
    columns
}

/// Parses sums of `kind`, with shared rows.
pub(super) fn read(
    kind: RowKind,
    text: &[u8],
) -> Result<Vec<(i64, Arc<SumRow>, SumCell)>, ClickHouseError> {
    let mut known: HashMap<SumRow, Arc<SumRow>> = HashMap::new();
    let mut all = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: AnswerLine =
            serde_json::from_slice(line).map_err(|_| ClickHouseError::answer(line))?;
        let cell = SumCell {
            bytes: line.sum_bytes,
            error_squared: line.sum_errors,
            seconds: line.sum_seconds,
        };
        let bucket = line.bucket;
        let row = row(kind, line);
        let row = match known.get(&row) {
            Some(row) => Arc::clone(row),
            None => {
                let shared = Arc::new(row.clone());
                known.insert(row, Arc::clone(&shared));
                shared
            }
        };
        all.push((bucket, row, cell));
    }
    Ok(all)
}

fn row(kind: RowKind, line: AnswerLine) -> SumRow {
    let text = |text: Arc<str>| Some(text).filter(|text| !text.is_empty());
    let number = |number: u32| Some(number).filter(|number| *number != 0);
    // Only the row of other sums has no exporter.
    let other = line.exporter.is_empty();
    let at =
        RowVantage { exporter: line.exporter, host: line.host != 0, direction: line.direction };
    match kind {
        RowKind::Group => SumRow::Group {
            at,
            input: number(line.input),
            output: number(line.output),
            vlan: vlans_of(line.vlan).0,
            inner_vlan: vlans_of(line.vlan).1,
            version: Some(line.ip_version).filter(|version| *version != 0),
            label: match line.label {
                _ if other => RowLabel::Other,
                LABEL_UNTRUSTED => RowLabel::Untrusted,
                LABEL_OTHER => RowLabel::Other,
                label => u16::try_from(label).map_or(RowLabel::Unlabelled, RowLabel::Trusted),
            },
            source: text(line.source_site),
            destination: text(line.destination_site),
        },
        RowKind::Host => SumRow::Host {
            at,
            address: text(line.address),
            prefix: text(line.prefix),
            sent: line.sent != 0,
        },
        RowKind::System => SumRow::System {
            at,
            source: number(line.source_as),
            destination: number(line.destination_as),
        },
        RowKind::Counter if line.sent == 2 => SumRow::CounterSamples { at, index: line.interface },
        RowKind::Counter => {
            SumRow::Counter { at, index: line.interface, unsampled: line.sent != 0 }
        }
    }
}

/// Measured seconds of a bucket.
#[derive(Debug, Deserialize)]
pub(super) struct Covered {
    pub(super) bucket: i64,
    pub(super) sum_seconds: f64,
}

#[cfg(test)]
mod tests {
    use penstock_scitags::Registry;
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = Option<Arc<str>>> {
        prop::option::of("[a-z\"\\\\\n\té]{1,5}".prop_map(|text| Arc::from(text.as_str())))
    }

    fn rows() -> impl Strategy<Value = SumRow> {
        let at = ("[0-9.:/]{1,9}", any::<bool>(), 0..3).prop_map(|(exporter, host, direction)| {
            let direction =
                [RowDirection::In, RowDirection::Out, RowDirection::Unknown][direction as usize];
            RowVantage { exporter: exporter.as_str().into(), host, direction }
        });
        let number = || prop::option::of(1_u32..);
        let label = prop_oneof![
            Just(RowLabel::Unlabelled),
            Just(RowLabel::Untrusted),
            Just(RowLabel::Other),
            any::<u16>().prop_map(RowLabel::Trusted)
        ];
        let sites = (name(), name());
        let version = prop::option::of(prop_oneof![Just(4_u8), Just(6)]);
        let vlan = prop::option::of((0_u16..4095, prop::option::of(0_u16..4095)));
        (at, 0..5, number(), number(), vlan, version, label, sites, any::<bool>()).prop_map(
            |(at, kind, a, b, vlan, version, label, (source, destination), sent)| match kind {
                0 => SumRow::Group {
                    at,
                    input: a,
                    output: b,
                    vlan: vlan.map(|(outer, _)| outer),
                    inner_vlan: vlan.and_then(|(_, inner)| inner),
                    version,
                    label,
                    source,
                    destination,
                },
                1 => SumRow::Host { at, address: source, prefix: destination, sent },
                2 => SumRow::System { at, source: a, destination: b },
                3 => SumRow::Counter { at, index: a.unwrap_or(0), unsampled: sent },
                _ => SumRow::CounterSamples { at, index: a.unwrap_or(0) },
            },
        )
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn rows_round_trip_as_lines(row in rows(), bytes: u32) {
            let cell = SumCell { bytes: bytes.into(), error_squared: 0.1, seconds: 60.0 };
            let minute = Minute {
                id: 1, start_s: 120, seconds: 60.0, rows: vec![(row.clone(), cell)], counters: vec![],
            };
            let mut number = 0;
            let mut draw = || { number += 1; number };
            let parts = lines(&[Arc::new(minute)], "c", Registry::builtin(), 1000, &mut draw);
            prop_assert_eq!(parts.len(), 1);
            let text = String::from_utf8(parts[0].1.bytes.clone()).unwrap();
            let line = text.lines().nth(1).unwrap();
            let sums = line.replace("\"bytes\"", "\"sum_bytes\"").replace("\"error_squared\"", "\"sum_errors\"")
                .replace("\"seconds\"", "\"sum_seconds\"");
            let line = read(row.kind(), sums.as_bytes()).unwrap();
            prop_assert_eq!((&*line[0].1, line[0].2), (&row, cell));
        }
    }

    #[test]
    fn parts_have_one_day_within_limit() {
        let at = RowVantage { exporter: "e".into(), host: true, direction: RowDirection::In };
        let counter = |index| SumRow::Counter { at: at.clone(), index, unsampled: false };
        let minute = Minute {
            id: 1,
            start_s: 86_400,
            seconds: 60.0,
            rows: (0..10).map(|index| (counter(index), SumCell::default())).collect(),
            counters: vec![(86_340, counter(1), SumCell::default())],
        };
        let mut number = 0;
        let mut draw = || {
            number += 1;
            number
        };
        let parts = lines(&[Arc::new(minute)], "c", Registry::builtin(), 4, &mut draw);
        let sizes: Vec<_> = parts.iter().map(|(_, part)| part.rows).collect();
        assert_eq!(sizes, [1, 4, 4, 3]);
        let numbers: std::collections::HashSet<_> =
            parts.iter().map(|(number, _)| number).collect();
        assert_eq!(numbers.len(), 4);
        assert!(parts.iter().all(|(_, part)| part.from_s / 86_400 == part.to_s / 86_400));
    }
}
