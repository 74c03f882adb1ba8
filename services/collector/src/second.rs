//! The sums of one second, packed for keeping ten minutes of them, with a bound on how many.

use penstock_flows::aggregate::{Aggregates, Label, PackedGroup, Seen, Table, Vantage};
use penstock_flows::packet::FlowKey;
use penstock_flows::rates::Tally;
use penstock_flows::talkers::Talker;

use crate::live::SECONDS;
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
#[derive(Debug)]
pub(crate) struct Sums<K> {
    /// Those that did.
    pub(crate) rows: Box<[(K, Packed)]>,
    /// All others.
    pub(crate) other: Cell,
}

impl<K: Copy> Sums<K> {
    fn map(&self, of: impl Fn(Cell) -> Cell) -> Self {
        let part = |(key, packed): &(K, Packed)| {
            let Cell { bytes, error_squared, .. } = of((*packed).into());
            (*key, Packed { bytes, error_squared })
        };
        Self { rows: self.rows.iter().map(part).collect(), other: of(self.other) }
    }
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
    pub(crate) talkers: Box<[Talker<(FlowKey, Label)>]>,
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

    /// As the seconds that it covers. One takes longer where this program was stopped or the machine was too busy;
    /// nobody knows what was when in that time, so each part has the same, and parts add up to the whole.
    pub(crate) fn apart(self) -> Vec<Self> {
        let count = self.length_s.round();
        if !(2.0..=SECONDS as f64).contains(&count) {
            return vec![self];
        }
        let cell = |cell: Cell| Cell {
            bytes: cell.bytes / count,
            error_squared: cell.error_squared / count,
            seconds: cell.seconds / count,
        };
        let parts = count as u64;
        // Whole numbers: the first have what does not divide.
        let share = |sum: u64, part: u64| sum / parts + u64::from(part < sum % parts);
        let of = |part: u64| Self {
            number: self.number + part,
            at_s: self.at_s + part as i64,
            length_s: self.length_s / count,
            samples: share(self.samples, part),
            groups: self.groups.map(cell),
            hosts: self.hosts.map(cell),
            prefixes: self.prefixes.map(cell),
            systems: self.systems.map(cell),
            talkers: self
                .talkers
                .iter()
                .map(|one| Talker {
                    key: one.key,
                    least: share(one.least, part),
                    most: share(one.most, part),
                })
                .collect(),
            talkers_error: share(self.talkers_error, part),
        };
        (0..parts).map(of).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn second(length_s: f64) -> Second {
        let vantage =
            Vantage { exporter: 1, direction: penstock_flows::observe::Direction::Ingress };
        let packed = Packed { bytes: 700.0, error_squared: 7.0 };
        let other = Cell { bytes: 70.0, error_squared: 0.7, seconds: 0.0 };
        fn none<K>() -> Sums<K> {
            Sums { rows: Box::default(), other: Cell::default() }
        }
        Second {
            number: 5,
            at_s: 1_000,
            length_s,
            samples: 71,
            groups: none(),
            hosts: none(),
            prefixes: none(),
            systems: Sums { rows: [((vantage, Some(1), None), packed)].into(), other },
            talkers: Box::default(),
            talkers_error: 0,
        }
    }

    #[test]
    fn a_second_that_took_long_is_those_that_it_covers() {
        let parts = second(69.7).apart();
        assert_eq!(parts.len(), 70);
        let numbers: Vec<_> = parts.iter().map(|part| (part.number, part.at_s)).collect();
        assert_eq!((numbers[0], numbers[69]), ((5, 1_000), (74, 1_069)));
        let sum = |of: &dyn Fn(&Second) -> f64| parts.iter().map(of).sum::<f64>();
        for (got, wanted) in [
            (sum(&|part| part.length_s), 69.7),
            (sum(&|part| part.samples as f64), 71.0),
            (sum(&|part| part.systems.rows[0].1.bytes), 700.0),
            (sum(&|part| part.systems.rows[0].1.error_squared), 7.0),
            (sum(&|part| part.systems.other.bytes), 70.0),
        ] {
            assert!((got - wanted).abs() < 1e-9, "{got} and {wanted}");
        }
        // One that is as it should be stays whole, as does one of which nothing is left that it could be shown in.
        for length_s in [0.2, 1.0, 1.4, 700.0] {
            assert_eq!(second(length_s).apart().len(), 1);
        }
    }
}
