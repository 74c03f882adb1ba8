//! The sums of one second, packed for keeping ten minutes of them, with a bound on how many.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use penstock_flows::aggregate::{
    Aggregates, FlowGroup, HostKey, PackedGroup, ScitagLabel, TallyTable, Vantage,
};
use penstock_flows::observe::InterfaceDirection;
use penstock_flows::packet::FlowKey;
use penstock_flows::rates::SampleTally;
use penstock_flows::sflow::Interface;
use penstock_flows::talkers::FrequentItem;

use crate::row::Cell;
use crate::timeline::Span;

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

impl From<&SampleTally> for Packed {
    fn from(tally: &SampleTally) -> Self {
        let Cell { bytes, error_squared, .. } = Cell::of(tally);
        Self { bytes, error_squared }
    }
}

impl From<&Cell> for Packed {
    fn from(cell: &Cell) -> Self {
        Self { bytes: cell.bytes, error_squared: cell.error_squared }
    }
}

impl From<Packed> for Cell {
    fn from(packed: Packed) -> Self {
        Self { bytes: packed.bytes, error_squared: packed.error_squared, seconds: 0.0 }
    }
}

impl Packed {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.error_squared += other.error_squared;
    }
}

/// A direction of an interface of an exporter: what is sampled there is counted there.
pub(crate) type Stratum = (u32, u32, InterfaceDirection);

/// The stratum in which a group was sampled; `None` where it is not known.
pub(crate) fn stratum_of(packed: &PackedGroup) -> Option<Stratum> {
    let group = FlowGroup::from(packed);
    let Vantage { exporter, direction } = group.vantage;
    let interface = match direction {
        InterfaceDirection::Ingress => group.input,
        InterfaceDirection::Egress => group.output,
        InterfaceDirection::Unknown => return None,
    };
    Some((exporter, interface.index()?, direction))
}

/// The group that stands for all others of a stratum.
pub(crate) fn remainder_of((exporter, index, direction): Stratum) -> PackedGroup {
    let at = |here: bool| if here { Interface::Index(index) } else { Interface::Unknown };
    PackedGroup::from(&FlowGroup {
        vantage: Vantage { exporter, direction },
        input: at(direction == InterfaceDirection::Ingress),
        output: at(direction == InterfaceDirection::Egress),
        vlan: None,
        inner_vlan: None,
        version: None,
        label: ScitagLabel::Unlabelled,
        source_site: None,
        destination_site: None,
    })
}

/// Sums by key, and of those that found no place.
#[derive(Debug)]
pub(crate) struct Sums<K> {
    /// Those that did.
    pub(crate) rows: Box<[(K, Packed)]>,
    /// All others.
    pub(crate) other: Cell,
}

/// Autonomous systems of source and destination, where they were seen.
pub(crate) type Systems = (Vantage, Option<u32>, Option<u32>);

/// Sums by stratum.
pub(crate) type Strata = HashMap<Stratum, Packed, RandomState>;

/// All of each stratum, by which counters of a time are divided.
#[must_use]
pub(crate) fn strata(sums: &Aggregates) -> Strata {
    let mut strata = Strata::default();
    for (key, tally) in sums.groups.iter() {
        if let Some(stratum) = stratum_of(key) {
            strata.entry(stratum).or_default().add(Packed::from(tally));
        }
    }
    strata
}

/// One second.
#[derive(Debug)]
pub(crate) struct Second {
    /// Counts the seconds since the start.
    pub(crate) number: u64,
    /// When it began, in seconds since 1970.
    pub(crate) at_s: i64,
    /// How long it was; less than a second where the wall clock was set.
    pub(crate) span_s: f64,
    /// How much of it was measured; 0 where nothing is known of it.
    pub(crate) length_s: f64,
    /// Samples, or flows, in it.
    pub(crate) samples: u64,
    /// What has few values.
    pub(crate) groups: Sums<PackedGroup>,
    /// What of each stratum found no place among these.
    pub(crate) remainders: Box<[(PackedGroup, Packed)]>,
    /// Hosts.
    pub(crate) hosts: Sums<HostKey>,
    /// Networks of hosts that found no place among these.
    pub(crate) prefixes: Sums<HostKey>,
    /// Autonomous systems.
    pub(crate) systems: Sums<Systems>,
    /// Greatest flows, greatest first.
    pub(crate) talkers: Box<[FrequentItem<(FlowKey, ScitagLabel)>]>,
    /// By how much their bytes may be understated.
    pub(crate) talkers_error: u64,
}

impl Second {
    /// Of what was summed; `measured` is the part of the second that was measured, 0 to 1.
    #[must_use]
    pub(crate) fn new(span: Span, measured: f64, sums: &Aggregates) -> Self {
        let (groups, dropped) = greatest(&sums.groups, GROUPS_MAX);
        let (groups, remainders) = remainders(groups, dropped);
        let span_s = (span.end - span.start).as_secs_f64();
        Self {
            number: span.number,
            at_s: span.at_s,
            span_s,
            length_s: span_s * measured,
            samples: sums.all.samples,
            groups,
            remainders,
            hosts: folded(greatest(&sums.hosts, GROUPS_MAX)),
            prefixes: folded(greatest(&sums.prefixes, GROUPS_MAX)),
            systems: folded(greatest(&sums.as_pairs, SYSTEMS_MAX)),
            talkers: sums.talkers(TALKERS_MAX).into(),
            talkers_error: sums.talkers_error(),
        }
    }

    /// The same second without anything, measured or not.
    pub(crate) fn silent(&self, measured: bool) -> Self {
        Self {
            number: self.number,
            at_s: self.at_s,
            span_s: self.span_s,
            length_s: if measured { self.span_s } else { 0.0 },
            samples: 0,
            groups: Sums::default(),
            remainders: Box::default(),
            hosts: Sums::default(),
            prefixes: Sums::default(),
            systems: Sums::default(),
            talkers: Box::default(),
            talkers_error: 0,
        }
    }

    /// How many sums it holds.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.groups.rows.len()
            + self.remainders.len()
            + self.hosts.rows.len()
            + self.prefixes.rows.len()
            + self.systems.rows.len()
    }
}

impl<K> Default for Sums<K> {
    fn default() -> Self {
        Self { rows: Box::default(), other: Cell::default() }
    }
}

type Rows<K> = Vec<(K, Packed)>;

/// The greatest, and those that are not among them.
fn greatest<K: Copy + Eq + std::hash::Hash>(
    table: &TallyTable<K>,
    most: usize,
) -> (Sums<K>, Rows<K>) {
    let mut rows: Rows<K> = table.iter().map(|(key, tally)| (*key, Packed::from(tally))).collect();
    let mut dropped = Vec::new();
    if rows.len() > most {
        rows.select_nth_unstable_by(most, |a, b| b.1.bytes.total_cmp(&a.1.bytes));
        dropped = rows.split_off(most);
    }
    (Sums { rows: rows.into(), other: Cell::of(&table.other) }, dropped)
}

fn folded<K>((mut sums, dropped): (Sums<K>, Rows<K>)) -> Sums<K> {
    dropped.into_iter().for_each(|(_, packed)| sums.other.add(packed.into()));
    sums
}

/// Of groups that found no place each stratum keeps the sum, so that its counter is not divided among the others.
fn remainders(
    mut groups: Sums<PackedGroup>,
    dropped: Rows<PackedGroup>,
) -> (Sums<PackedGroup>, Box<[(PackedGroup, Packed)]>) {
    let mut strata = Strata::default();
    for (key, packed) in dropped {
        match stratum_of(&key) {
            Some(stratum) if strata.len() < GROUPS_MAX || strata.contains_key(&stratum) => {
                strata.entry(stratum).or_default().add(packed);
            }
            _ => groups.other.add(packed.into()),
        }
    }
    let rows = strata.into_iter().map(|(stratum, packed)| (remainder_of(stratum), packed));
    (groups, rows.collect())
}
