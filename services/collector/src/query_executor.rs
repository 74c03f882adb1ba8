//! Executes a query: series with their total, from memory and storage.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;
use penstock_flows::aggregate::{HostKey, PackedGroup};
use penstock_flows::estimate::{
    CounterEstimate, SEPARATE_SAMPLES_MIN, Stratum, Sum, UNIT_SAMPLES_MIN,
};
use penstock_flows::rates::Z_SCORE_95;

use crate::live::{CountedBucket as CountedOctets, Namer, other as other_row};
use crate::query::{By, Fold, KeyNames, LESS_SIGMA, Query, SeriesSlot, SeriesSums, View};
use crate::row::{RowDirection, RowKind, RowVantage, SumCell, SumRow};
use crate::second::{AsPairKey, CompactSum, Second};
use crate::shared::Shared;
use crate::store::Stored;

/// Share of a total that counters must cover to stand for all of it.
const COVERED_MIN: f64 = 0.95;

/// Covered share of the samples of a counter in whose time no packet was sampled.
const COVERED_LEAST: f64 = 1e-9;

/// Relative difference of equal sums.
const RELATIVE_ROUNDING: f64 = 1e-9;

/// A time range divided into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeBuckets {
    /// Start of the first bucket, in seconds since 1970.
    pub(crate) start_s: i64,
    /// Length of a bucket in seconds.
    pub(crate) step_s: i64,
    /// Count of buckets in the range.
    pub(crate) buckets: usize,
}

impl TimeBuckets {
    pub(crate) fn end_s(&self) -> i64 {
        self.start_s + self.step_s * self.buckets as i64
    }

    pub(crate) fn bucket(&self, at_s: i64) -> Option<usize> {
        let after = usize::try_from(at_s - self.start_s).ok()?;
        Some(after / self.step_s as usize).filter(|bucket| *bucket < self.buckets)
    }
}

/// Source of the figures of a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TotalSource {
    Counters,
    Samples,
    Both,
}

/// Result of a query; sums in bytes.
#[derive(Debug)]
pub(crate) struct QueryResult {
    /// Measured seconds of each bucket.
    pub(crate) covered_s: Vec<f64>,
    pub(crate) series: Vec<SeriesSums>,
    pub(crate) total: Vec<Sum>,
    pub(crate) from: TotalSource,
    /// Weight of one sample of all traffic, in bytes.
    pub(crate) unit: f64,
}

impl QueryResult {
    /// Half-widths of the 95 % intervals of a series.
    pub(crate) fn half_widths(&self, sums: &[Sum]) -> Vec<f64> {
        let mut all = Sum::default();
        sums.iter().for_each(|sum| all.add(*sum));
        // Weight of the series itself over the whole range, if known well enough.
        let unit = match all.unit() {
            unit if all.samples() >= UNIT_SAMPLES_MIN && unit > 0.0 => unit,
            unit if all.pooled > 0.0 => unit.max(all.pooled_unit()),
            unit => unit.max(self.unit),
        };
        sums.iter().map(|sum| sum.half_width(unit)).collect()
    }

    /// Mean bits per second of a series over the measured time, and the half-width of its 95 %
    /// interval; `None` if no time was measured.
    pub(crate) fn mean_bps(&self, sums: &[Sum]) -> Option<(f64, f64)> {
        let measured_s: f64 = self.covered_s.iter().sum();
        let mut all = Sum::default();
        sums.iter().for_each(|sum| all.add(*sum));
        let half_width = self.half_widths(&[all])[0];
        let rate = |bytes: f64| (bytes * 8.0 / measured_s).round();
        (measured_s > 0.0).then(|| (rate(all.bytes), rate(half_width)))
    }
}

/// One direction of an interface of an exporter, by name.
type StratumName = (Arc<str>, u32, RowDirection);

/// Sums of a bucket by series, total and stratum.
type BucketRows = HashMap<(SeriesSlot, SeriesSlot, Option<usize>), Sum, RandomState>;

/// Collects rows bucket by bucket and estimates the result (`penstock_flows::estimate`).
pub(crate) struct Estimation<'a> {
    query: &'a Query,
    series: Fold<'a>,
    total: Fold<'a>,
    covered_s: Vec<f64>,
    strata: HashMap<StratumName, usize>,
    /// Slots of each stratum in series and total; `None` if the query excludes it.
    places: Vec<Option<(SeriesSlot, SeriesSlot)>>,
    rows: BucketRows,
    sampled: HashMap<usize, Sum, RandomState>,
    counted: HashMap<usize, Octets, RandomState>,
    /// By interface and bucket, its own counter in the direction of the query, and the samples
    /// there.
    own: BTreeMap<(usize, usize), (Octets, Sum)>,
    all: Sum,
}

/// Counted octets of a bucket.
#[derive(Debug, Clone, Copy, Default)]
struct Octets {
    cell: SumCell,
    /// Bytes of the samples in the covered time.
    sampled: f64,
}

impl Octets {
    fn add(&mut self, other: Self) {
        self.cell.add(other.cell);
        self.sampled += other.sampled;
    }

    /// Combines the counter with samples of `covered_s` measured seconds. A counter that covers
    /// nearly all of the time stands for all of it: measured seconds and counter intervals need not
    /// have the same bounds. If samples and counter disagree beyond chance in the covered time, the
    /// samples of the rest may be as wrong.
    fn counted(&self, sampled: Sum, covered_s: f64) -> CounterEstimate {
        if covered_s <= 0.0 || self.cell.seconds <= 0.0 {
            return CounterEstimate::default();
        }
        let time = self.cell.seconds / covered_s;
        let SumCell { bytes, error_squared, .. } = self.cell;
        let variance = error_squared / (Z_SCORE_95 * Z_SCORE_95);
        if time >= COVERED_MIN {
            let scale = 1.0 / time;
            return CounterEstimate {
                bytes: bytes * scale,
                variance: variance * scale * scale,
                covered: 1.0,
            };
        }
        let covered = if sampled.bytes > 0.0 { self.sampled / sampled.bytes } else { time };
        let covered = covered.clamp(COVERED_LEAST, 1.0);
        let chance = Z_SCORE_95 * (variance + covered * sampled.variance).sqrt();
        let beyond = ((bytes - self.sampled).abs() - chance).max(0.0);
        let relative = if self.sampled > 0.0 { beyond / self.sampled } else { 0.0 };
        let doubt = (1.0 - covered) * sampled.bytes * relative;
        CounterEstimate { bytes, variance: variance + doubt * doubt, covered }
    }
}

/// Slots of a row in series and total.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSlots {
    asked: Option<(SeriesSlot, SeriesSlot)>,
    stratum: Option<usize>,
}

/// Slots of a counter.
#[derive(Debug, Clone, Copy)]
struct CounterSlots {
    stratum: Option<usize>,
    /// Slot of the interface itself, for series or filters by interface.
    own: Option<usize>,
}

/// The query for the series and that for their total.
pub(crate) struct Questions {
    series: Query,
    total: Query,
}

impl Questions {
    pub(crate) fn new(query: &Query) -> Self {
        Self { series: query.clone(), total: query.total() }
    }
}

impl<'a> Estimation<'a> {
    pub(crate) fn new(questions: &'a Questions, names: KeyNames<'a>, buckets: usize) -> Self {
        Self {
            query: &questions.series,
            series: Fold::new(&questions.series, names, buckets),
            total: Fold::new(&questions.total, names, buckets),
            covered_s: vec![0.0; buckets],
            strata: HashMap::new(),
            places: Vec::new(),
            rows: HashMap::default(),
            sampled: HashMap::default(),
            counted: HashMap::default(),
            own: BTreeMap::new(),
            all: Sum::default(),
        }
    }

    /// Adds measured seconds of a bucket.
    fn cover(&mut self, bucket: usize, seconds: f64) {
        self.covered_s[bucket] += seconds;
    }

    fn place(&mut self, row: &SumRow) -> RowSlots {
        let stratum = row.stratum().map(|(at, index)| self.stratum(at, index));
        let asked = self.series.place(row).zip(self.total.place(row));
        RowSlots { asked, stratum }
    }

    fn stratum(&mut self, at: &RowVantage, index: u32) -> usize {
        let name = (Arc::clone(&at.exporter), index, at.direction);
        if let Some(known) = self.strata.get(&name) {
            return *known;
        }
        let row = SumRow::Counter { at: at.clone(), index, unsampled: false };
        let places = self.series.place(&row).zip(self.total.place(&row));
        // Only totals of everything have a key for all that a stratum counts.
        let total = || Some((SeriesSlot { key: usize::MAX, class: 0 }, self.total.place(&row)?));
        let places = places.or_else(total);
        self.places.push(places);
        self.strata.insert(name, self.places.len() - 1);
        self.places.len() - 1
    }

    fn add(&mut self, places: RowSlots, sum: Sum) {
        if let Some(stratum) = places.stratum {
            self.sampled.entry(stratum).or_default().add(sum);
        }
        let Some((series, total)) = places.asked else { return };
        self.all.add(sum);
        self.rows.entry((series, total, places.stratum)).or_default().add(sum);
    }

    /// Returns true if counters are of use to the query: hosts and AS pairs share an interface.
    fn wants_counters(&self) -> bool {
        self.query.kind() == RowKind::Group
    }

    /// Returns true if the query includes all traffic of a stratum.
    fn is_of_everything(&self) -> bool {
        let whole = |by: By| matches!(by, By::Exporter | By::Total);
        self.query.filters.iter().all(|(by, _)| whole(*by))
    }

    /// Finds the slots of a counter.
    fn counter(&mut self, row: &SumRow) -> CounterSlots {
        let (at, index, unsampled) = match row {
            SumRow::Counter { at, index, unsampled } => (at, index, *unsampled),
            SumRow::CounterSamples { at, index } => (at, index, false),
            _ => {
                // The error of a counter that has its slots.
                let stratum = row.stratum().map(|(at, index)| self.stratum(at, index));
                return CounterSlots { stratum, own: None };
            }
        };
        let stratum = (!unsampled).then(|| self.stratum(at, *index));
        let by_interface = self.query.by == By::Interface;
        let filtered = self.query.filters.iter().any(|(by, _)| *by == By::Interface);
        let wanted = self.query.direction.unwrap_or(RowDirection::In);
        let is_own = (by_interface || filtered) && at.direction == wanted;
        let of_labels = |by: By| !matches!(by, By::Exporter | By::Total | By::Interface);
        let labelled = self.query.filters.iter().any(|(by, _)| of_labels(*by));
        let fold = if by_interface { &mut self.series } else { &mut self.total };
        let own = if is_own && !labelled { fold.place(row).map(|place| place.key) } else { None };
        CounterSlots { stratum, own }
    }

    fn count(&mut self, bucket: usize, counter: CounterSlots, octets: Octets) {
        if let Some(stratum) = counter.stratum {
            self.counted.entry(stratum).or_default().add(octets);
        }
        if let Some(own) = counter.own {
            let sampled = counter.stratum.and_then(|stratum| self.sampled.get(&stratum));
            let entry = self.own.entry((own, bucket)).or_default();
            entry.0.add(octets);
            entry.1 = sampled.copied().unwrap_or(entry.1);
        }
    }

    /// Estimates a bucket, when all its rows and counters are added.
    fn close(&mut self, bucket: usize) {
        let rows = std::mem::take(&mut self.rows);
        let sampled = std::mem::take(&mut self.sampled);
        let octets = std::mem::take(&mut self.counted);
        let covered_s = self.covered_s[bucket];
        let mut strata: BTreeMap<usize, Stratum> = BTreeMap::new();
        for (stratum, sum) in &sampled {
            strata.entry(*stratum).or_default().sampled = *sum;
        }
        for (stratum, octets) in &octets {
            let stratum = strata.entry(*stratum).or_default();
            stratum.counted = octets.counted(stratum.sampled, covered_s);
        }
        // Strata with few samples share a ratio with those of their class of vantages.
        let mut shared: BTreeMap<usize, Stratum> = BTreeMap::new();
        let class_of = |places: &[Option<(SeriesSlot, SeriesSlot)>], stratum: usize| {
            places[stratum].map(|p| p.1.class)
        };
        for (number, stratum) in &mut strata {
            if !stratum.is_counted() {
                stratum.counted = Default::default();
            } else if stratum.sampled.samples() < SEPARATE_SAMPLES_MIN
                && let Some(class) = class_of(&self.places, *number)
            {
                shared.entry(class).or_default().merge(stratum);
            }
        }
        let ratio = |number: Option<usize>| {
            let stratum = strata.get(&number?).filter(|stratum| stratum.counted.covered > 0.0)?;
            match class_of(&self.places, number?) {
                Some(class) if stratum.sampled.samples() < SEPARATE_SAMPLES_MIN => {
                    Some((Err(class), shared.get(&class)?))
                }
                _ => Some((Ok(number?), stratum)),
            }
        };
        let (everything, direct) = (self.is_of_everything(), self.is_direct());
        let mut of_series: HashMap<_, (Sum, &Stratum), RandomState> = HashMap::default();
        let mut of_total: HashMap<_, (Sum, &Stratum), RandomState> = HashMap::default();
        for ((series, total, number), sum) in rows {
            let stratum = number.and_then(|number| strata.get(&number));
            let sum = stratum.map_or(sum, |stratum| sum.within(stratum.sampled.unit()));
            match ratio(number) {
                Some((group, stratum)) => {
                    let of = of_series.entry((series, group)).or_insert((Sum::default(), stratum));
                    of.0.add(sum);
                    if !everything {
                        let of =
                            of_total.entry((total, group)).or_insert((Sum::default(), stratum));
                        of.0.add(sum);
                    }
                }
                None => {
                    if !(direct && number.is_some()) {
                        self.series.add(bucket, series, sum);
                    }
                    if !(everything && number.is_some()) {
                        self.total.add(bucket, total, sum);
                    }
                }
            }
        }
        if !direct {
            for ((place, _), (sum, stratum)) in &of_series {
                self.series.add(bucket, *place, stratum.class(*sum));
            }
        }
        for ((place, _), (sum, stratum)) in &of_total {
            self.total.add(bucket, *place, stratum.class(*sum));
        }
        if everything {
            for (number, stratum) in &strata {
                let Some((series, total)) = self.places[*number] else { continue };
                self.total.add(bucket, total, stratum.total());
                if direct {
                    self.series.add(bucket, series, stratum.total());
                }
            }
        }
    }

    /// Returns true if a series consists of whole strata.
    fn is_direct(&self) -> bool {
        self.is_of_everything()
            && self.query.kind() == RowKind::Group
            && matches!(self.query.by, By::Exporter | By::Total)
    }

    pub(crate) fn finish(self, unit: f64) -> QueryResult {
        let Self { query, series, total, covered_s, own, all, .. } = self;
        let mut series = series.series();
        let mut total = total.series().into_iter().next().map_or_else(Vec::new, |(_, sums)| sums);
        total.resize(covered_s.len(), Sum::default());
        let by_interface = query.by == By::Interface;
        for ((key, bucket), (octets, own_sampled)) in own {
            // The interface has its own counter.
            let sampled = if by_interface { series[key].1[bucket] } else { total[bucket] };
            let mut counted = octets.counted(own_sampled, covered_s[bucket]);
            // The sums are scaled to counters already: the rest is that of the samples.
            if own_sampled.bytes > 0.0 {
                counted.bytes += (1.0 - counted.covered) * (own_sampled.bytes - sampled.bytes);
            }
            if covered_s[bucket] <= 0.0 || octets.cell.seconds <= 0.0 {
                continue;
            }
            if by_interface {
                series[key].1[bucket] = Stratum { sampled, counted }.total();
            } else {
                let stratum = Stratum { sampled, counted };
                for (_, sums) in &mut series {
                    sums[bucket] = stratum.class(sums[bucket]);
                }
                total[bucket] = stratum.total();
            }
        }
        if query.view != View::Sum && query.by.is_disjoint() {
            // An exporter may see traffic that those of the total do not.
            for (bucket, total) in total.iter_mut().enumerate() {
                let mut parts = Sum::default();
                series.iter().for_each(|(_, sums)| parts.add(sums[bucket]));
                let chance = LESS_SIGMA * (parts.variance + total.variance).sqrt();
                if parts.bytes - total.bytes > chance.max(total.bytes * RELATIVE_ROUNDING) {
                    *total = parts;
                }
            }
        }
        let measured = || (0..covered_s.len()).filter(|bucket| covered_s[*bucket] > 0.0);
        let exact = |bucket: &usize| total[*bucket].certain >= COVERED_MIN;
        let from = if measured().all(|bucket| total[bucket].counted <= 0.0 && !exact(&bucket)) {
            TotalSource::Samples
        } else if measured().all(|bucket| exact(&bucket)) {
            TotalSource::Counters
        } else {
            TotalSource::Both
        };
        let unit = if all.bytes > 0.0 { all.unit() } else { unit };
        QueryResult { covered_s, series, total, from, unit }
    }
}

/// Slots by key, so that keys are named once and not for each second.
struct SlotCache<K>(HashMap<K, RowSlots, RandomState>);

impl<K: Copy + Eq + Hash> SlotCache<K> {
    fn place(
        &mut self,
        estimation: &mut Estimation<'_>,
        key: K,
        row: impl FnOnce() -> SumRow,
    ) -> RowSlots {
        *self.0.entry(key).or_insert_with(|| estimation.place(&row()))
    }
}

/// Result of a storage query.
#[derive(Debug, Default)]
pub(crate) struct StoredRows {
    pub(crate) rows: Stored,
    pub(crate) counters: Stored,
    pub(crate) covered: Vec<(i64, f64)>,
}

/// Items by bucket, in the order of buckets.
struct Buckets<T> {
    all: std::iter::Peekable<std::vec::IntoIter<(usize, T)>>,
}

impl<T> Buckets<T> {
    fn new(mut all: Vec<(usize, T)>) -> Self {
        all.sort_by_key(|(bucket, _)| *bucket);
        Self { all: all.into_iter().peekable() }
    }

    /// Returns the next item of this bucket.
    fn next(&mut self, bucket: usize) -> Option<T> {
        self.all.next_if(|(of, _)| *of == bucket).map(|(_, thing)| thing)
    }
}

/// Executes a query on stored rows and live seconds.
pub(crate) fn execute<'s>(
    shared: &Shared,
    query: &Query,
    span: TimeBuckets,
    past: &StoredRows,
    seconds: impl Iterator<Item = &'s Second>,
    counters: &[CountedOctets],
) -> QueryResult {
    let directory = shared.directory();
    let names = KeyNames { registry: &shared.registry, directory: &directory };
    let namer = Namer::new(&directory, &shared.sites);
    let questions = Questions::new(query);
    let mut estimation = Estimation::new(&questions, names, span.buckets);
    let inside = |bucket: i64| usize::try_from(bucket).ok().filter(|b| *b < span.buckets);
    for (bucket, seconds) in &past.covered {
        if let Some(bucket) = inside(*bucket) {
            estimation.cover(bucket, *seconds);
        }
    }
    let seconds: Vec<(usize, &Second)> =
        seconds.filter_map(|second| Some((span.bucket(second.at_s)?, second))).collect();
    for (bucket, second) in &seconds {
        estimation.cover(*bucket, second.length_s);
    }
    let counters = if estimation.wants_counters() {
        placed(&mut estimation, &namer, span, past, counters)
    } else {
        Vec::new()
    };
    let mut counters = Buckets::new(counters);
    let rows = past.rows.iter().filter_map(|(b, row, cell)| Some((inside(*b)?, (row, *cell))));
    let mut rows = Buckets::new(rows.collect());
    let mut seconds = Buckets::new(seconds);
    let mut stored: HashMap<*const SumRow, RowSlots, RandomState> = HashMap::default();
    let mut live = LiveRows::new(query.kind());
    for bucket in 0..span.buckets {
        while let Some((row, cell)) = rows.next(bucket) {
            let places = *stored.entry(Arc::as_ptr(row)).or_insert_with(|| estimation.place(row));
            estimation.add(places, cell.sum());
        }
        while let Some(second) = seconds.next(bucket) {
            live.add(&mut estimation, &namer, second);
        }
        while let Some((counter, octets)) = counters.next(bucket) {
            estimation.count(bucket, counter, octets);
        }
        estimation.close(bucket);
    }
    estimation.finish(shared.live().unit())
}

/// Counters of storage and memory with their slots.
fn placed(
    estimation: &mut Estimation<'_>,
    namer: &Namer<'_>,
    span: TimeBuckets,
    past: &StoredRows,
    counters: &[CountedOctets],
) -> Vec<(usize, (CounterSlots, Octets))> {
    let mut all = Vec::with_capacity(past.counters.len() + counters.len());
    let mut known: HashMap<*const SumRow, CounterSlots, RandomState> = HashMap::default();
    for (bucket, row, cell) in &past.counters {
        let Some(bucket) = usize::try_from(*bucket).ok().filter(|b| *b < span.buckets) else {
            continue;
        };
        let counter = *known.entry(Arc::as_ptr(row)).or_insert_with(|| estimation.counter(row));
        let octets = match **row {
            SumRow::CounterSamples { .. } => {
                Octets { cell: SumCell::default(), sampled: cell.bytes }
            }
            SumRow::CounterError { .. } => {
                let error = SumCell { error_squared: cell.bytes, ..SumCell::default() };
                Octets { cell: error, ..Octets::default() }
            }
            _ => Octets { cell: *cell, sampled: 0.0 },
        };
        all.push((bucket, (counter, octets)));
    }
    let mut known: HashMap<(u32, u32, RowDirection, bool), CounterSlots, RandomState> =
        HashMap::default();
    for counted in counters {
        let CountedOctets { bucket, interface, direction, sampled, cell, sampled_bytes } = counted;
        let (exporter, index) = *interface;
        let key = (exporter, index, *direction, *sampled);
        let counter = *known.entry(key).or_insert_with(|| {
            estimation.counter(&namer.counter(exporter, index, *direction, *sampled))
        });
        let octets = Octets { cell: *cell, sampled: *sampled_bytes };
        all.push((*bucket, (counter, octets)));
    }
    all
}

/// Rows of live seconds; keys are named once and not for each second.
struct LiveRows {
    kind: RowKind,
    groups: SlotCache<PackedGroup>,
    remainders: SlotCache<PackedGroup>,
    hosts: SlotCache<HostKey>,
    prefixes: SlotCache<HostKey>,
    systems: SlotCache<AsPairKey>,
}

impl LiveRows {
    fn new(kind: RowKind) -> Self {
        fn none<K>() -> SlotCache<K> {
            SlotCache(HashMap::default())
        }
        let (groups, remainders, hosts) = (none(), none(), none());
        Self { kind, groups, remainders, hosts, prefixes: none(), systems: none() }
    }

    fn add(&mut self, estimation: &mut Estimation<'_>, namer: &Namer<'_>, second: &Second) {
        let sum = |packed: &CompactSum| SumCell::from(*packed).sum();
        let other = match self.kind {
            RowKind::Group => {
                for (key, packed) in &second.groups.rows {
                    let places = self.groups.place(estimation, *key, || namer.group(key));
                    estimation.add(places, sum(packed));
                }
                for (key, packed) in &second.remainders {
                    let places = self.remainders.place(estimation, *key, || namer.remainder(key));
                    estimation.add(places, sum(packed));
                }
                second.groups.other
            }
            RowKind::Host => {
                for (key, packed) in &second.hosts.rows {
                    let places = self.hosts.place(estimation, *key, || namer.host(key, true));
                    estimation.add(places, sum(packed));
                }
                for (key, packed) in &second.prefixes.rows {
                    let places = self.prefixes.place(estimation, *key, || namer.host(key, false));
                    estimation.add(places, sum(packed));
                }
                second.prefixes.other
            }
            _ => {
                for (key, packed) in &second.systems.rows {
                    let places = self.systems.place(estimation, *key, || namer.system(key));
                    estimation.add(places, sum(packed));
                }
                second.systems.other
            }
        };
        if other.bytes > 0.0
            && let Some(row) = other_row(self.kind)
        {
            let places = estimation.place(&row);
            estimation.add(places, other.sum());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_flows::aggregate::{AggregateLimits, Aggregator};
    use penstock_flows::intake::Intake;
    use penstock_flows::observe::InterfaceDirection as Sampled;
    use penstock_flows::prefixes::Prefixes;
    use penstock_flows::scitag::Trust;
    use penstock_scitags::Registry;

    use super::*;
    use crate::config::Config;
    use crate::live::CountedInterval;
    use crate::row::RowLabel;
    use crate::second::{Strata, remainder_of};
    use crate::shared::Stores;

    const HOST_COUNT: u32 = 500;
    const FIRST_S: i64 = 1_000;

    fn shared() -> Shared {
        let registry = Registry::builtin().clone();
        let none = Prefixes::default;
        let trust = Trust::new(registry.clone(), none(), none(), 1);
        let aggregator = Aggregator::new(AggregateLimits::default(), Prefixes::default(), 1);
        let intake = Intake::new(trust, aggregator, 1);
        let stores = Stores { store: None, clickhouse: None, archive: None };
        Shared::new(Config::default(), registry, vec![intake], (Vec::new(), Vec::new()), stores)
    }

    /// A second in which one host of ten has one sample, of weight 10 MB.
    fn second(at_s: i64) -> (Arc<Second>, Strata) {
        let (start, end) = (Duration::ZERO, Duration::from_secs(1));
        let span = crate::timeline::TimelineSecond { number: at_s as u64, at_s, start, end };
        let mut sums = Aggregator::new(AggregateLimits::default(), Prefixes::default(), 1);
        let mut second = Second::new(span, 1.0, &sums.take());
        let packed = CompactSum::from(&SumCell {
            bytes: 1e7,
            error_squared: 1e14 * Z_SCORE_95 * Z_SCORE_95,
            seconds: 0.0,
        });
        let sampled = (1..=HOST_COUNT).filter(|host| i64::from(*host) % 10 == at_s % 10);
        let strata: Vec<_> = sampled.map(|host| (1, host, Sampled::Ingress)).collect();
        second.groups.rows = strata.iter().map(|one| (remainder_of(*one), packed)).collect();
        (Arc::new(second), strata.into_iter().map(|one| (one, packed)).collect())
    }

    /// Each host has 1 MB a second by its counter, reported each 10 s at times of its own; most
    /// intervals have one sample.
    #[test]
    fn counters_count_without_samples() {
        let shared = shared();
        for at_s in FIRST_S..FIRST_S + 60 {
            for host in (1..=HOST_COUNT).filter(|host| i64::from(*host) % 10 == at_s % 10) {
                let end_s = at_s as f64 + 0.3;
                let octets = [Some(10_000_000), None];
                let counted = CountedInterval::new((1, host), end_s, 10.0, octets, [true; 2]);
                shared.live_mut().count(counted);
            }
            let (second, strata) = second(at_s);
            shared.live_mut().push(second, strata);
        }
        let ask = |by, start_s, step_s, buckets| {
            let span = TimeBuckets { start_s, step_s, buckets };
            crate::api::live(&shared, &Query::of(by), span)
        };
        // Every second with all its intervals is counted.
        let answer = ask(By::Total, FIRST_S + 10, 1, 35);
        assert_eq!(answer.from, TotalSource::Counters);
        let errors = answer.half_widths(&answer.total);
        for (sum, error) in answer.total.iter().zip(errors) {
            assert!((sum.bytes - 5e8).abs() < error && error > 0.0, "{sum:?} ± {error}");
            assert!(error < 2e8, "{error}");
        }
        // Half a minute has whole intervals, and parts of 100 MB at its ends.
        let answer = ask(By::Owner, FIRST_S + 15, 30, 1);
        let error = answer.half_widths(&answer.total)[0];
        assert!((answer.total[0].bytes / 1.5e10 - 1.0).abs() < 0.02, "{:?}", answer.total);
        assert!(error < 0.05 * 1.5e10, "{error}");
        let (key, sums) = &answer.series[0];
        assert_eq!((key.as_str(), answer.series.len()), ("unlabelled", 1));
        assert!((sums[0].bytes / answer.total[0].bytes - 1.0).abs() < 1e-6);
        // A host without counters does not affect the counters of others.
        shared.live_mut().count(CountedInterval::new((1, 3), 2_000.0, 1.0, [None; 2], [true; 2]));
        let answer = ask(By::Interface, FIRST_S + 15, 30, 1);
        assert_eq!(answer.series.len(), HOST_COUNT as usize);
        assert!(answer.series.iter().all(|(_, sums)| (sums[0].bytes / 3e7 - 1.0).abs() < 0.35));
    }

    #[test]
    fn partial_counter_leaves_rest_to_samples() {
        let total = |bytes, of_samples, seconds, sampled| {
            let octets = Octets {
                cell: SumCell { bytes, error_squared: 0.0, seconds },
                sampled: of_samples,
            };
            let stratum = Stratum { sampled, counted: octets.counted(sampled, 60.0) };
            assert!(stratum.is_counted());
            stratum.total()
        };
        // The counter says half of the samples, in 50 of 60 s; the truth is 60,000.
        let half = total(50_000.0, 100_000.0, 50.0, Sum::sampled(120_000.0, 1.0));
        assert!((half.bytes - 70_000.0).abs() < 1e-6, "{half:?}");
        assert!(half.half_width(0.0) > 10_000.0, "{half:?}");
        // Twice the samples: 110,000 and the truth is 120,000.
        let twice = total(100_000.0, 50_000.0, 50.0, Sum::sampled(60_000.0, 1.0));
        assert!((twice.bytes - 110_000.0).abs() < 1e-6 && twice.half_width(0.0) > 10_000.0);
        // The exporter stopped in the middle of the minute.
        let stopped = total(30_000.0, 30_000.0, 30.0, Sum::sampled(30_000.0, 1.0));
        assert!((stopped.bytes - 30_000.0).abs() < 1e-6 && stopped.half_width(0.0) < 1.0);
        // No packet was sampled in the time of the counter.
        let unsampled = total(50_000.0, 0.0, 50.0, Sum::sampled(1_000.0, 1.0));
        assert!((unsampled.bytes - 51_000.0).abs() < 1.0, "{unsampled:?}");
    }

    fn vantage(exporter: &str) -> RowVantage {
        RowVantage { exporter: exporter.into(), host: false, direction: RowDirection::In }
    }

    /// Answer from a stored minute.
    fn of_minute(
        query: &Query,
        rows: Vec<(SumRow, f64)>,
        counters: Vec<(SumRow, SumCell)>,
    ) -> QueryResult {
        let cell = |bytes| SumCell { bytes, error_squared: 1.0, seconds: 0.0 };
        let past = StoredRows {
            rows: rows.into_iter().map(|(row, bytes)| (0, Arc::new(row), cell(bytes))).collect(),
            counters: counters.into_iter().map(|(row, cell)| (0, Arc::new(row), cell)).collect(),
            covered: vec![(0, 60.0)],
        };
        let span = TimeBuckets { start_s: 0, step_s: 60, buckets: 1 };
        execute(&shared(), query, span, &past, std::iter::empty(), &[])
    }

    #[test]
    fn stored_counter_knows_its_samples() {
        let at = vantage("192.0.2.1");
        let counter = SumRow::Counter { at: at.clone(), index: 1, unsampled: false };
        let counted = SumCell { bytes: 50_000.0, error_squared: 0.0, seconds: 50.0 };
        let samples = SumRow::CounterSamples { at, index: 1 };
        let sampled = SumCell { bytes: 100_000.0, ..SumCell::default() };
        for by in [By::Total, By::Owner, By::Interface] {
            let rows = vec![(counter.remainder().unwrap(), 120_000.0)];
            let counters = vec![(counter.clone(), counted), (samples.clone(), sampled)];
            let answer = of_minute(&Query::of(by), rows, counters);
            let bytes = answer.series[0].1[0].bytes;
            assert!((bytes - 70_000.0).abs() < 1e-3, "{by:?}: {bytes}");
        }
    }

    #[test]
    fn parts_do_not_exceed_their_total() {
        let group = |exporter: &str, label| {
            let counter = SumRow::Counter { at: vantage(exporter), index: 1, unsampled: false };
            let mut row = counter.remainder().unwrap();
            if let SumRow::Group { label: place, .. } = &mut row {
                *place = label;
            }
            row
        };
        let (unlabelled, untrusted) = (RowLabel::Unlabelled, RowLabel::Untrusted);
        for (rows, expected) in [
            // Each exporter has other traffic.
            (vec![("a", unlabelled, 100.0), ("b", untrusted, 300.0)], 400.0),
            // Two exporters have the same traffic.
            (vec![("a", unlabelled, 100.0), ("b", unlabelled, 100.0)], 100.0),
        ] {
            let rows = rows.into_iter().map(|(at, label, bytes)| (group(at, label), bytes));
            let answer = of_minute(&Query::of(By::Owner), rows.collect(), Vec::new());
            let parts: f64 = answer.series.iter().map(|(_, sums)| sums[0].bytes).sum();
            assert_eq!((answer.total[0].bytes, parts), (expected, expected));
        }
    }
}
