//! The sums of one second, packed for keeping ten minutes of them, with a bound on how many.

use penstock_flows::aggregate::{Aggregates, PackedGroup, Seen, Table, Vantage};
use penstock_flows::packet::FlowKey;
use penstock_flows::rates::Tally;
use penstock_flows::talkers::Talker;

use crate::row::Cell;

/// Most groups kept of a second, and of hosts; the smallest are summed as other.
pub(crate) const GROUPS_MAX: usize = 10_000;

/// Most pairs of systems.
pub(crate) const SYSTEMS_MAX: usize = 2_000;

/// Greatest flows kept.
pub(crate) const TALKERS_MAX: usize = 100;

/// Estimated bytes with their error, in sixteen bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Packed {
    bytes: f64,
    error_squared: f64,
}

impl From<&Tally> for Packed {
    fn from(tally: &Tally) -> Self {
        let Cell { bytes, error_squared, .. } = Cell::of(tally);
        Self { bytes, error_squared }
    }
}

impl From<Packed> for Cell {
    fn from(packed: Packed) -> Self {
        Self { bytes: packed.bytes, error_squared: packed.error_squared, seconds: 0.0 }
    }
}

/// Sums by key, and of those that found no place.
#[derive(Debug, Default)]
pub(crate) struct Sums<K> {
    /// Those that did.
    pub(crate) rows: Box<[(K, Packed)]>,
    /// All others.
    pub(crate) other: Cell,
}

/// Autonomous systems of source and destination, where they were seen.
pub(crate) type Systems = (Vantage, Option<u32>, Option<u32>);

/// One second.
#[derive(Debug)]
pub(crate) struct Second {
    /// Counts the seconds since the start.
    pub(crate) number: u64,
    /// When it began, in seconds since 1970.
    pub(crate) at_s: i64,
    /// How long it was.
    pub(crate) length_s: f64,
    /// Samples, or flows, in it.
    pub(crate) samples: u64,
    /// What has few values.
    pub(crate) groups: Sums<PackedGroup>,
    /// Hosts.
    pub(crate) hosts: Sums<Seen>,
    /// Networks of hosts that found no place among these.
    pub(crate) prefixes: Sums<Seen>,
    /// Autonomous systems.
    pub(crate) systems: Sums<Systems>,
    /// Greatest flows, greatest first.
    pub(crate) talkers: Box<[Talker<FlowKey>]>,
    /// By how much their bytes may be understated.
    pub(crate) talkers_error: u64,
}

impl Second {
    /// Of what was summed.
    #[must_use]
    pub(crate) fn new(number: u64, at_s: i64, length_s: f64, sums: &Aggregates) -> Self {
        Self {
            number,
            at_s,
            length_s,
            samples: sums.all.samples,
            groups: greatest(&sums.groups, GROUPS_MAX),
            hosts: greatest(&sums.hosts, GROUPS_MAX),
            prefixes: greatest(&sums.prefixes, GROUPS_MAX),
            systems: greatest(&sums.systems, SYSTEMS_MAX),
            talkers: sums.talkers(TALKERS_MAX).into(),
            talkers_error: sums.talkers_error(),
        }
    }

    /// How many sums it holds.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.groups.rows.len()
            + self.hosts.rows.len()
            + self.prefixes.rows.len()
            + self.systems.rows.len()
    }
}

fn greatest<K: Copy + Eq + std::hash::Hash>(table: &Table<K>, most: usize) -> Sums<K> {
    let mut rows: Vec<(K, Packed)> =
        table.iter().map(|(key, tally)| (*key, Packed::from(tally))).collect();
    let mut other = Cell::of(&table.other);
    if rows.len() > most {
        rows.select_nth_unstable_by(most, |a, b| b.1.bytes.total_cmp(&a.1.bytes));
        rows.drain(most..).for_each(|(_, packed)| other.add(packed.into()));
    }
    Sums { rows: rows.into(), other }
}
