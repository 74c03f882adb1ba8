//! Seconds gathered into minutes, with names in the place of numbers, ready to be stored.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use penstock_flows::aggregate::{HostKey, PackedGroup};

use crate::live::{CountedMinutes, Namer, other as row_of_others};
use crate::row::{Cell, Kind, Row};
use crate::second::{Second, Stratum, Sums, Systems, remainder_of, stratum_of};

/// Most rows of a minute that are stored, of each kind; the smallest are summed as other.
pub(crate) const ROWS_MAX: usize = 1_000;

/// Most keys gathered in a minute of each kind, before that.
const KEYS_MAX: usize = 50_000;

/// A number that no other of any run has: it is drawn from 63 bits.
pub(crate) fn draw_id() -> i64 {
    (RandomState::new().hash_one(Instant::now()) >> 1) as i64
}

/// A minute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Minute {
    /// Told apart from all others, in all runs: a minute is never stored twice.
    pub(crate) id: i64,
    /// When it began, in seconds since 1970.
    pub(crate) start_s: i64,
    /// How much of it was measured.
    pub(crate) seconds: f64,
    /// Its sums.
    pub(crate) rows: Vec<(Row, Cell)>,
    /// What counters say of this minute and of those before.
    pub(crate) counters: Vec<(i64, Row, Cell)>,
}

/// Gathers a minute.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    start_s: Option<i64>,
    seconds: f64,
    groups: Keyed<PackedGroup>,
    /// By stratum, what found no place among the groups.
    remainders: HashMap<Stratum, Cell>,
    hosts: Keyed<HostKey>,
    prefixes: Keyed<HostKey>,
    systems: Keyed<Systems>,
}

#[derive(Debug)]
struct Keyed<K> {
    cells: HashMap<K, Cell>,
    other: Cell,
}

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Self { cells: HashMap::new(), other: Cell::default() }
    }
}

impl<K: Copy + Eq + std::hash::Hash> Keyed<K> {
    fn add(&mut self, sums: &Sums<K>) {
        for (key, packed) in &sums.rows {
            let cell = Cell::from(*packed);
            if self.cells.len() < KEYS_MAX || self.cells.contains_key(key) {
                self.cells.entry(*key).or_default().add(cell);
            } else {
                self.other.add(cell);
            }
        }
        self.other.add(sums.other);
    }
}

/// The minute that a second belongs to.
pub(crate) fn start_of(at_s: i64) -> i64 {
    at_s.div_euclid(60) * 60
}

impl Gathering {
    /// Whether this second belongs to another minute than those before.
    pub(crate) fn is_over(&self, second: &Second) -> bool {
        self.start_s.is_some_and(|start| start != start_of(second.at_s))
    }

    pub(crate) fn add(&mut self, second: &Second) {
        self.start_s = Some(start_of(second.at_s));
        self.seconds += second.length_s;
        self.groups.add(&second.groups);
        for (key, packed) in &second.remainders {
            self.remain(key, Cell::from(*packed));
        }
        self.hosts.add(&second.hosts);
        self.prefixes.add(&second.prefixes);
        self.systems.add(&second.systems);
    }

    /// Notes that more or less of a second was measured than was thought.
    pub(crate) fn settle(&mut self, at_s: i64, seconds: f64) {
        if self.start_s == Some(start_of(at_s)) {
            self.seconds = (self.seconds + seconds).max(0.0);
        }
    }

    fn remain(&mut self, key: &PackedGroup, cell: Cell) {
        match stratum_of(key) {
            Some(stratum)
                if self.remainders.len() < KEYS_MAX || self.remainders.contains_key(&stratum) =>
            {
                self.remainders.entry(stratum).or_default().add(cell);
            }
            _ => self.groups.other.add(cell),
        }
    }

    /// Leaves the greatest groups; the others are summed by stratum, so that its counter is not divided among the
    /// greatest alone.
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

    /// The minute, if there is one; another begins.
    pub(crate) fn take(
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
        greatest(&mut rows, Kind::Group, this.groups.other, remainders.collect());
        rows.extend(named(&this.groups, |key| namer.group(key)));
        // Hosts without a place of their own are known by their network alone.
        let mut hosts = named(&this.hosts, |key| namer.host(key, true));
        let mut other = this.hosts.other;
        hosts.extend(named(&this.prefixes, |key| namer.host(key, false)));
        other.add(this.prefixes.other);
        greatest(&mut rows, Kind::Host, other, hosts);
        greatest(
            &mut rows,
            Kind::System,
            this.systems.other,
            named(&this.systems, |key| namer.system(key)),
        );
        let counters = counted.into_iter().map(|(key, cell)| {
            let (minute, exporter, index, direction, sampled) = key;
            (minute, namer.counter(exporter, index, direction, sampled), cell)
        });
        Some(Minute { id, start_s, seconds: this.seconds, rows, counters: counters.collect() })
    }
}

fn named<K>(keyed: &Keyed<K>, name: impl Fn(&K) -> Row) -> Vec<(Row, Cell)> {
    keyed.cells.iter().map(|(key, cell)| (name(key), *cell)).collect()
}

fn greatest(to: &mut Vec<(Row, Cell)>, kind: Kind, mut other: Cell, mut rows: Vec<(Row, Cell)>) {
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
