//! A question answered: series with their total, from the live ring or from storage.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::live::{Counted, Namer, other as other_row};
use crate::query::{By, Fold, Names, Place, Query, Series, share};
use crate::row::{Cell, Direction, Kind, Row};
use crate::second::Second;
use crate::shared::Shared;
use crate::store::Stored;

/// Counters stand for a total where they cover so much of it.
const COVERED_MIN: f64 = 0.95;

/// When, and how fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Begin of the first bucket, in seconds since 1970.
    pub(crate) start_s: i64,
    /// Length of each.
    pub(crate) step_s: i64,
    /// How many.
    pub(crate) buckets: usize,
}

impl Span {
    pub(crate) fn end_s(&self) -> i64 {
        self.start_s + self.step_s * self.buckets as i64
    }

    pub(crate) fn bucket(&self, at_s: i64) -> Option<usize> {
        let after = usize::try_from(at_s - self.start_s).ok()?;
        Some(after / self.step_s as usize).filter(|bucket| *bucket < self.buckets)
    }
}

/// From where a total is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Counters,
    Samples,
    Both,
}

/// What came out; sums in bytes.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Seconds of each bucket that were measured.
    pub(crate) covered_s: Vec<f64>,
    pub(crate) series: Vec<Series>,
    pub(crate) total: Vec<Cell>,
    pub(crate) from: From,
}

/// Gathers rows for an answer.
pub(crate) struct Gather<'a> {
    query: &'a Query,
    series: Fold<'a>,
    total: Fold<'a>,
    counters: Fold<'a>,
    covered_s: Vec<f64>,
    counted_s: Vec<f64>,
    interfaces: HashSet<Row>,
}

/// Where a row belongs in series and total.
pub(crate) type Places = Option<(Place, Place)>;

/// The questions behind an answer.
pub(crate) struct Questions {
    series: Query,
    total: Query,
    counters: Query,
}

impl Questions {
    pub(crate) fn new(query: &Query) -> Self {
        let by = if query.by == By::Interface { By::Interface } else { By::Total };
        Self {
            series: query.clone(),
            total: query.total(),
            counters: Query { by, ..query.clone() },
        }
    }
}

impl<'a> Gather<'a> {
    pub(crate) fn new(questions: &'a Questions, names: Names<'a>, buckets: usize) -> Self {
        Self {
            query: &questions.series,
            series: Fold::new(&questions.series, names, buckets),
            total: Fold::new(&questions.total, names, buckets),
            counters: Fold::new(&questions.counters, names, buckets),
            covered_s: vec![0.0; buckets],
            counted_s: vec![0.0; buckets],
            interfaces: HashSet::new(),
        }
    }

    /// Seconds of a bucket that were measured.
    pub(crate) fn cover(&mut self, bucket: usize, seconds: f64) {
        self.covered_s[bucket] += seconds;
    }

    pub(crate) fn place(&mut self, row: &Row) -> Places {
        Some((self.series.place(row)?, self.total.place(row)?))
    }

    pub(crate) fn add(&mut self, bucket: usize, places: Places, cell: Cell) {
        let Some((series, total)) = places else { return };
        self.series.add(bucket, series, cell);
        self.total.add(bucket, total, cell);
    }

    /// Whether counters can say anything of the total that is asked for.
    pub(crate) fn wants_counters(&self) -> bool {
        let known = |by: By| matches!(by, By::Interface | By::Exporter | By::Total);
        self.query.kind() == Kind::Group && self.query.filters.iter().all(|(by, _)| known(*by))
    }

    /// Where a counter belongs.
    pub(crate) fn counter_place(&mut self, row: &Row) -> Option<Place> {
        let by_interface = self.query.by == By::Interface
            || self.query.filters.iter().any(|(by, _)| *by == By::Interface);
        let wanted = match (by_interface, self.query.direction) {
            (true, None) => Some(Direction::In),
            (true, some) => some,
            (false, _) if self.query.by == By::Site => None,
            (false, some) => some,
        };
        if wanted.is_some_and(|wanted| wanted != row.at().direction) {
            return None;
        }
        let place = self.counters.place(row)?;
        self.interfaces.insert(row.clone());
        Some(place)
    }

    pub(crate) fn count(&mut self, bucket: usize, place: Place, cell: Cell) {
        self.counted_s[bucket] += cell.seconds;
        self.counters.add(bucket, place, cell);
    }

    pub(crate) fn finish(self) -> Answer {
        let by_interface = self.query.by == By::Interface;
        let (covered_s, interfaces) = (self.covered_s, self.interfaces.len() as f64);
        let mut series = self.series.series();
        let first = |series: Vec<Series>| series.into_iter().next().map(|(_, cells)| cells);
        let mut total =
            first(self.total.series()).unwrap_or_else(|| vec![Cell::default(); covered_s.len()]);
        let counters = self.counters.series();
        let full = |bucket: usize| {
            let expected = interfaces * covered_s[bucket];
            expected > 0.0 && self.counted_s[bucket] >= COVERED_MIN * expected
        };
        if by_interface {
            // Each interface has counters of its own.
            for (key, cells) in counters {
                let Some((_, own)) = series.iter_mut().find(|(other, _)| *other == key) else {
                    continue;
                };
                for (bucket, cell) in cells.into_iter().enumerate() {
                    let covered_s = covered_s[bucket];
                    if covered_s > 0.0 && cell.seconds >= COVERED_MIN * covered_s {
                        let bytes = cell.bytes * covered_s / cell.seconds;
                        own[bucket] = Cell { bytes, ..cell };
                    }
                }
            }
            return Answer { covered_s, series, total, from: From::Samples };
        }
        let (mut exact, mut measured) = (0, 0);
        let counters = first(counters).unwrap_or_default();
        for bucket in 0..covered_s.len() {
            measured += usize::from(covered_s[bucket] > 0.0);
            if !full(bucket) || counters[bucket].bytes <= 0.0 {
                continue;
            }
            exact += 1;
            // Seconds that are measured and those that are counted need not begin and end together.
            let each_s = self.counted_s[bucket] / interfaces;
            let (all, counted) =
                (total[bucket], counters[bucket].bytes * covered_s[bucket] / each_s);
            for (_, cells) in &mut series {
                cells[bucket] = share(cells[bucket], all, counted);
            }
            total[bucket] = Cell { bytes: counted, error_squared: 0.0, seconds: 0.0 };
        }
        let from = match exact {
            0 => From::Samples,
            exact if exact == measured => From::Counters,
            _ => From::Both,
        };
        Answer { covered_s, series, total, from }
    }
}

/// Keys are put into words once, not for each second.
struct Known<K>(HashMap<K, Places>);

impl<K: Copy + Eq + Hash> Known<K> {
    fn place(&mut self, gather: &mut Gather<'_>, key: K, row: impl FnOnce() -> Row) -> Places {
        *self.0.entry(key).or_insert_with(|| gather.place(&row()))
    }
}

/// What storage says of the time before.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) rows: Stored,
    pub(crate) counters: Stored,
    pub(crate) covered: Vec<(i64, f64)>,
}

/// Answers from storage and live seconds.
pub(crate) fn answer<'s>(
    shared: &Shared,
    query: &Query,
    span: Span,
    past: &Past,
    seconds: impl Iterator<Item = &'s Second>,
    counters: &[Counted],
) -> Answer {
    let directory = shared.directory();
    let names = Names { registry: &shared.registry, directory: &directory };
    let namer = Namer::new(&directory, &shared.sites);
    let questions = Questions::new(query);
    let mut gather = Gather::new(&questions, names, span.buckets);
    of_past(&mut gather, span, past);
    of_seconds(&mut gather, &namer, query, span, seconds);
    if gather.wants_counters() {
        of_counters(&mut gather, &namer, span, counters);
    }
    gather.finish()
}

fn of_past(gather: &mut Gather<'_>, span: Span, past: &Past) {
    let inside = |bucket: i64| usize::try_from(bucket).ok().filter(|b| *b < span.buckets);
    for (bucket, seconds) in &past.covered {
        if let Some(bucket) = inside(*bucket) {
            gather.cover(bucket, *seconds);
        }
    }
    let mut known: HashMap<*const Row, Places, RandomState> = HashMap::default();
    for (bucket, row, cell) in &past.rows {
        let Some(bucket) = inside(*bucket) else { continue };
        let places = *known.entry(Arc::as_ptr(row)).or_insert_with(|| gather.place(row));
        gather.add(bucket, places, *cell);
    }
    if !gather.wants_counters() {
        return;
    }
    let mut known: HashMap<*const Row, Option<Place>, RandomState> = HashMap::default();
    for (bucket, row, cell) in &past.counters {
        let Some(bucket) = inside(*bucket) else { continue };
        let place = known.entry(Arc::as_ptr(row)).or_insert_with(|| gather.counter_place(row));
        if let Some(place) = *place {
            gather.count(bucket, place, *cell);
        }
    }
}

fn of_seconds<'s>(
    gather: &mut Gather<'_>,
    namer: &Namer<'_>,
    query: &Query,
    span: Span,
    seconds: impl Iterator<Item = &'s Second>,
) {
    let (mut groups, mut systems) = (Known(HashMap::new()), Known(HashMap::new()));
    let (mut hosts, mut prefixes) = (Known(HashMap::new()), Known(HashMap::new()));
    for second in seconds {
        let Some(bucket) = span.bucket(second.at_s) else { continue };
        gather.cover(bucket, second.length_s);
        let other = match query.kind() {
            Kind::Group => {
                for (key, cell) in &second.groups.rows {
                    let places = groups.place(gather, *key, || namer.group(key));
                    gather.add(bucket, places, (*cell).into());
                }
                second.groups.other
            }
            Kind::Host => {
                for (key, cell) in &second.hosts.rows {
                    let places = hosts.place(gather, *key, || namer.host(key, true));
                    gather.add(bucket, places, (*cell).into());
                }
                for (key, cell) in &second.prefixes.rows {
                    let places = prefixes.place(gather, *key, || namer.host(key, false));
                    gather.add(bucket, places, (*cell).into());
                }
                second.prefixes.other
            }
            _ => {
                for (key, cell) in &second.systems.rows {
                    let places = systems.place(gather, *key, || namer.system(key));
                    gather.add(bucket, places, (*cell).into());
                }
                second.systems.other
            }
        };
        if other.bytes > 0.0
            && let Some(row) = other_row(query.kind())
        {
            let places = gather.place(&row);
            gather.add(bucket, places, other);
        }
    }
}

fn of_counters(gather: &mut Gather<'_>, namer: &Namer<'_>, span: Span, counters: &[Counted]) {
    let mut known: HashMap<(u32, u32, Direction), Option<Place>> = HashMap::new();
    for (at_s, (exporter, index), slice) in counters {
        let Some(bucket) = span.bucket(*at_s) else { continue };
        for (direction, bytes) in [(Direction::In, slice.received), (Direction::Out, slice.sent)] {
            if bytes.is_nan() {
                continue;
            }
            let place = known.entry((*exporter, *index, direction)).or_insert_with(|| {
                gather.counter_place(&namer.counter(*exporter, *index, direction))
            });
            if let Some(place) = *place {
                let cell = Cell { bytes, error_squared: 0.0, seconds: slice.seconds };
                gather.count(bucket, place, cell);
            }
        }
    }
}
