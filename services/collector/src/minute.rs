//! Seconds aggregated into minutes, with names in place of numbers, ready for storage.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use penstock_flows::aggregate::{HostKey, PackedGroup};

use crate::live::{CountedMinutes, Namer, other as row_of_others};
use crate::row::{RowKind, SumCell, SumRow};
use crate::second::{AsPairKey, Second, SecondSums, StratumKey, remainder_of, stratum_of};

/// Most rows of each kind stored per minute; the smallest are summed as other.
pub(crate) const ROWS_MAX: usize = 1_000;

/// Most keys of each kind collected within a minute.
const KEYS_MAX: usize = 50_000;

/// Draws a random id of 63 bits, unique among all runs.
pub(crate) fn draw_id() -> i64 {
    (RandomState::new().hash_one(Instant::now()) >> 1) as i64
}

/// Sums of one minute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Minute {
    /// Id that is unique among all runs, so that a minute is never stored twice.
    pub(crate) id: i64,
    /// Start in seconds since 1970.
    pub(crate) start_s: i64,
    /// Seconds that were measured.
    pub(crate) seconds: f64,
    /// Sums of samples by row.
    pub(crate) rows: Vec<(SumRow, SumCell)>,
    /// Counted octets of this minute and of earlier ones.
    pub(crate) counters: Vec<(i64, SumRow, SumCell)>,
}

/// The minute that is being collected.
#[derive(Debug, Default)]
pub(crate) struct MinuteBuilder {
    start_s: Option<i64>,
    seconds: f64,
    groups: KeyedSums<PackedGroup>,
    /// Sum of the further groups of each stratum.
    remainders: HashMap<StratumKey, SumCell>,
    hosts: KeyedSums<HostKey>,
    prefixes: KeyedSums<HostKey>,
    systems: KeyedSums<AsPairKey>,
}

#[derive(Debug)]
struct KeyedSums<K> {
    cells: HashMap<K, SumCell>,
    other: SumCell,
}

impl<K> Default for KeyedSums<K> {
    fn default() -> Self {
        Self { cells: HashMap::new(), other: SumCell::default() }
    }
}

impl<K: Copy + Eq + std::hash::Hash> KeyedSums<K> {
    fn add(&mut self, sums: &SecondSums<K>) {
        for (key, packed) in &sums.rows {
            let cell = SumCell::from(*packed);
            if self.cells.len() < KEYS_MAX || self.cells.contains_key(key) {
                self.cells.entry(*key).or_default().add(cell);
            } else {
                self.other.add(cell);
            }
        }
        self.other.add(sums.other);
    }
}

/// Start of the minute that contains a second.
pub(crate) fn start_of(at_s: i64) -> i64 {
    at_s.div_euclid(60) * 60
}

impl MinuteBuilder {
    /// Returns true if this second belongs to a later minute.
    pub(crate) fn is_over(&self, second: &Second) -> bool {
        self.start_s.is_some_and(|start| start != start_of(second.at_s))
    }

    pub(crate) fn add(&mut self, second: &Second) {
        self.start_s = Some(start_of(second.at_s));
        self.seconds += second.length_s;
        self.groups.add(&second.groups);
        for (key, packed) in &second.remainders {
            self.remain(key, SumCell::from(*packed));
        }
        self.hosts.add(&second.hosts);
        self.prefixes.add(&second.prefixes);
        self.systems.add(&second.systems);
    }

    /// Corrects the measured seconds of the current minute.
    pub(crate) fn correct_measured(&mut self, at_s: i64, seconds: f64) {
        if self.start_s == Some(start_of(at_s)) {
            self.seconds = (self.seconds + seconds).max(0.0);
        }
    }

    fn remain(&mut self, key: &PackedGroup, cell: SumCell) {
        match stratum_of(key) {
            Some(stratum)
                if self.remainders.len() < KEYS_MAX || self.remainders.contains_key(&stratum) =>
            {
                self.remainders.entry(stratum).or_default().add(cell);
            }
            _ => self.groups.other.add(cell),
        }
    }

    /// Keeps the largest groups; the others are summed by stratum, so that its counter is not
    /// divided among the largest only.
    fn truncate_groups(&mut self) {
        if self.groups.cells.len() <= ROWS_MAX {
            return;
        }
        let mut cells: Vec<_> = std::mem::take(&mut self.groups.cells).into_iter().collect();
        cells.select_nth_unstable_by(ROWS_MAX, |a, b| b.1.bytes.total_cmp(&a.1.bytes));
        for (key, cell) in cells.drain(ROWS_MAX..) {
            self.remain(&key, cell);
        }
        self.groups.cells = cells.into_iter().collect();
    }

    /// Returns the collected minute, if any, and starts another.
    pub(crate) fn finish(
        &mut self,
        id: i64,
        namer: &Namer<'_>,
        counted: CountedMinutes,
    ) -> Option<Minute> {
        let mut this = std::mem::take(self);
        let start_s = this.start_s?;
        this.truncate_groups();
        let mut rows = Vec::new();
        let remainders = this.remainders.iter();
        let remainders =
            remainders.map(|(stratum, cell)| (namer.remainder(&remainder_of(*stratum)), *cell));
        greatest(&mut rows, RowKind::Group, this.groups.other, remainders.collect());
        rows.extend(named(&this.groups, |key| namer.group(key)));
        // Hosts beyond the limit are known by their network only.
        let mut hosts = named(&this.hosts, |key| namer.host(key, true));
        let mut other = this.hosts.other;
        hosts.extend(named(&this.prefixes, |key| namer.host(key, false)));
        other.add(this.prefixes.other);
        greatest(&mut rows, RowKind::Host, other, hosts);
        greatest(
            &mut rows,
            RowKind::System,
            this.systems.other,
            named(&this.systems, |key| namer.system(key)),
        );
        let mut counters = Vec::new();
        for (key, (cell, sampled_bytes)) in counted {
            let (minute, exporter, index, direction, sampled) = key;
            counters.push((minute, namer.counter(exporter, index, direction, sampled), cell));
            if sampled_bytes > 0.0 {
                let samples = SumCell { bytes: sampled_bytes, ..SumCell::default() };
                let row = namer.counter_samples(exporter, index, direction);
                counters.push((minute, row, samples));
            }
        }
        Some(Minute { id, start_s, seconds: this.seconds, rows, counters })
    }
}

fn named<K>(keyed: &KeyedSums<K>, name: impl Fn(&K) -> SumRow) -> Vec<(SumRow, SumCell)> {
    keyed.cells.iter().map(|(key, cell)| (name(key), *cell)).collect()
}

fn greatest(
    to: &mut Vec<(SumRow, SumCell)>,
    kind: RowKind,
    mut other: SumCell,
    mut rows: Vec<(SumRow, SumCell)>,
) {
    if rows.len() > ROWS_MAX {
        rows.select_nth_unstable_by(ROWS_MAX, |a, b| b.1.bytes.total_cmp(&a.1.bytes));
        rows.drain(ROWS_MAX..).for_each(|(_, cell)| other.add(cell));
    }
    to.extend(rows);
    if other.bytes > 0.0
        && let Some(row) = row_of_others(kind)
    {
        to.push((row, other));
    }
}
