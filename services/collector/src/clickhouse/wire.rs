//! Rows as lines of JSON (JSONEachRow), there and back: the columns of deploy/clickhouse/schema.sql.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_scitags::{Registry, Scitag};
use serde::{Deserialize, Serialize};

use crate::minute::Minute;
use crate::query::{By, Query};
use crate::row::{Cell, Direction, Kind, Label, Row, Vantage};

const UNLABELLED: i32 = -1;
const UNTRUSTED: i32 = -2;
const OTHER: i32 = -3;
const UNTAGGED: i32 = -1;

/// Column `vlan` of two tags: the outer VLAN and 4096 times the inner one plus 1.
const INNER_VLAN_UNIT: i32 = 4096;

fn vlans(outer: Option<u16>, inner: Option<u16>) -> i32 {
    let inner = inner.map_or(0, |inner| (i32::from(inner) + 1) * INNER_VLAN_UNIT);
    outer.map_or(UNTAGGED, |outer| i32::from(outer) + inner)
}

fn vlans_of(column: i32) -> (Option<u16>, Option<u16>) {
    let part = |number: i32| u16::try_from(number).ok();
    let inner = (column / INNER_VLAN_UNIT).checked_sub(1).and_then(part);
    if column < 0 { (None, None) } else { (part(column % INNER_VLAN_UNIT), inner) }
}

/// A line of table `minute`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    start: i64,
    collector: &'a str,
    batch: i64,
    kind: &'static str,
    exporter: &'a str,
    host: u8,
    direction: Direction,
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

/// The word of a kind in the tables.
pub(super) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Group => "group",
        Kind::Host => "host",
        Kind::System => "system",
        Kind::Counter => "counter",
    }
}

/// Lines of one day: an insertion into one partition is whole or not at all.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) bytes: Vec<u8>,
    pub(super) rows: u64,
    /// Begin of the first minute and of the last.
    pub(super) from_s: i64,
    pub(super) to_s: i64,
}

/// Writes minutes as lines, apart by day and by `rows_max` rows; `batch` gives each part a number of its own.
pub(super) fn lines(
    minutes: &[Arc<Minute>],
    collector: &str,
    registry: &Registry,
    rows_max: u64,
    batch: &mut dyn FnMut() -> i64,
) -> Vec<(i64, Lines)> {
    let (mut full, mut open) = (Vec::new(), HashMap::<i64, (i64, Lines)>::new());
    let mut names = HashMap::new();
    let mut put = |start_s: i64, row: Option<&Row>, cell: Cell| {
        let day = start_s.div_euclid(86_400);
        let (number, lines) = open.entry(day).or_insert_with(|| {
            (batch(), Lines { from_s: start_s, to_s: start_s, ..Lines::default() })
        });
        let (owner, activity) = match row {
            Some(Row::Group { label: Label::Trusted(tag), .. }) => {
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
        let covered = Cell { seconds: minute.seconds, ..Cell::default() };
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
    row: Option<&'a Row>,
    cell: Cell,
    owner: &'a str,
    activity: &'a str,
) -> Line<'a> {
    let at = row.map(Row::at);
    let mut line = Line {
        start,
        collector,
        batch,
        kind: row.map_or("covered", |row| word(row.kind())),
        exporter: at.map_or("", |at| &at.exporter),
        host: at.is_some_and(|at| at.host).into(),
        direction: at.map_or(Direction::Unknown, |at| at.direction),
        label: UNLABELLED,
        owner,
        activity,
        input: 0,
        output: 0,
        vlan: UNTAGGED,
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
        Some(Row::Group {
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
                Label::Unlabelled => UNLABELLED,
                Label::Untrusted => UNTRUSTED,
                Label::Other => OTHER,
                Label::Trusted(tag) => (*tag).into(),
            };
            line.source_site = source.as_deref().unwrap_or("");
            line.destination_site = destination.as_deref().unwrap_or("");
        }
        Some(Row::Host { address, prefix, sent, .. }) => {
            line.address = address.as_deref().unwrap_or("");
            line.prefix = prefix.as_deref().unwrap_or("");
            line.sent = (*sent).into();
        }
        Some(Row::System { source, destination, .. }) => {
            line.source_as = source.unwrap_or(0);
            line.destination_as = destination.unwrap_or(0);
        }
        // Not sampled is noted where a host's row has its direction.
        Some(Row::Counter { index, unsampled, .. }) => {
            (line.interface, line.sent) = (*index, (*unsampled).into());
        }
        Some(Row::CounterError { index, .. }) => line.interface = *index,
    }
    line
}

/// A line of an answer: what of the columns was asked for.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Told {
    bucket: i64,
    exporter: Arc<str>,
    host: u8,
    direction: Direction,
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

impl Default for Told {
    fn default() -> Self {
        let none = || Arc::from("");
        Self {
            bucket: 0,
            exporter: none(),
            host: 0,
            direction: Direction::Unknown,
            label: UNLABELLED,
            input: 0,
            output: 0,
            vlan: UNTAGGED,
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

/// The columns that a question needs, besides those of the vantage. What it does not need is summed up by the server.
pub(super) fn columns(kind: Kind, query: &Query) -> Vec<&'static str> {
    let mut columns = vec!["exporter", "host", "direction"];
    if kind == Kind::Counter {
        columns.extend(["interface", "sent"]);
        return columns;
    }
    match kind {
        Kind::Host => columns.push("sent"),
        // Where it was sampled is where it is counted.
        Kind::Group => columns.extend(["input", "output"]),
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

/// Reads sums of `kind`; rows that are alike are one.
pub(super) fn read(kind: Kind, text: &[u8]) -> Result<Vec<(i64, Arc<Row>, Cell)>, String> {
    let mut known: HashMap<Row, Arc<Row>> = HashMap::new();
    let mut all = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let told: Told = serde_json::from_slice(line)
            .map_err(|_| super::server::excerpt(&String::from_utf8_lossy(line)))?;
        let cell = Cell {
            bytes: told.sum_bytes,
            error_squared: told.sum_errors,
            seconds: told.sum_seconds,
        };
        let bucket = told.bucket;
        let row = row(kind, told);
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

fn row(kind: Kind, told: Told) -> Row {
    let text = |text: Arc<str>| Some(text).filter(|text| !text.is_empty());
    let number = |number: u32| Some(number).filter(|number| *number != 0);
    // Only the row of those that found no place has no exporter.
    let other = told.exporter.is_empty();
    let at = Vantage { exporter: told.exporter, host: told.host != 0, direction: told.direction };
    match kind {
        Kind::Group => Row::Group {
            at,
            input: number(told.input),
            output: number(told.output),
            vlan: vlans_of(told.vlan).0,
            inner_vlan: vlans_of(told.vlan).1,
            version: Some(told.ip_version).filter(|version| *version != 0),
            label: match told.label {
                _ if other => Label::Other,
                UNTRUSTED => Label::Untrusted,
                OTHER => Label::Other,
                label => u16::try_from(label).map_or(Label::Unlabelled, Label::Trusted),
            },
            source: text(told.source_site),
            destination: text(told.destination_site),
        },
        Kind::Host => Row::Host {
            at,
            address: text(told.address),
            prefix: text(told.prefix),
            sent: told.sent != 0,
        },
        Kind::System => Row::System {
            at,
            source: number(told.source_as),
            destination: number(told.destination_as),
        },
        Kind::Counter => Row::Counter { at, index: told.interface, unsampled: told.sent != 0 },
    }
}

/// Seconds by bucket.
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

    fn rows() -> impl Strategy<Value = Row> {
        let at = ("[0-9.:/]{1,9}", any::<bool>(), 0..3).prop_map(|(exporter, host, direction)| {
            let direction = [Direction::In, Direction::Out, Direction::Unknown][direction as usize];
            Vantage { exporter: exporter.as_str().into(), host, direction }
        });
        let number = || prop::option::of(1_u32..);
        let label = prop_oneof![
            Just(Label::Unlabelled),
            Just(Label::Untrusted),
            Just(Label::Other),
            any::<u16>().prop_map(Label::Trusted)
        ];
        let sites = (name(), name());
        let version = prop::option::of(prop_oneof![Just(4_u8), Just(6)]);
        let vlan = prop::option::of((0_u16..4095, prop::option::of(0_u16..4095)));
        (at, 0..4, number(), number(), vlan, version, label, sites, any::<bool>()).prop_map(
            |(at, kind, a, b, vlan, version, label, (source, destination), sent)| match kind {
                0 => Row::Group {
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
                1 => Row::Host { at, address: source, prefix: destination, sent },
                2 => Row::System { at, source: a, destination: b },
                _ => Row::Counter { at, index: a.unwrap_or(0), unsampled: sent },
            },
        )
    }

    proptest! {
        #[test]
        fn a_row_comes_back_as_it_went(row in rows(), bytes: u32) {
            let cell = Cell { bytes: bytes.into(), error_squared: 0.1, seconds: 60.0 };
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
            let told = read(row.kind(), sums.as_bytes()).unwrap();
            prop_assert_eq!((&*told[0].1, told[0].2), (&row, cell));
        }
    }

    #[test]
    fn parts_have_one_day_and_no_more_rows_than_they_may() {
        let at = Vantage { exporter: "e".into(), host: true, direction: Direction::In };
        let counter = |index| Row::Counter { at: at.clone(), index, unsampled: false };
        let minute = Minute {
            id: 1,
            start_s: 86_400,
            seconds: 60.0,
            rows: (0..10).map(|index| (counter(index), Cell::default())).collect(),
            counters: vec![(86_340, counter(1), Cell::default())],
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
