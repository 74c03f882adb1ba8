//! Sums of one second in compact form, bounded in number, for ten minutes in memory.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use penstock_flows::aggregate::{
    Aggregates, FlowGroup, HostKey, PackedGroup, ScitagLabel, TallyTable, Vantage,
};
use penstock_flows::observe::InterfaceDirection;
use penstock_flows::packet::FlowKey;
use penstock_flows::rates::SampleTally;
use penstock_flows::sflow::SflowInterface;
use penstock_flows::talkers::FrequentItem;

use crate::row::SumCell;
use crate::timeline::TimelineSecond;

/// Most groups, and most hosts, stored per second; the smallest are summed as other.
pub(crate) const GROUPS_MAX: usize = 10_000;

/// Most pairs of autonomous systems stored per second.
pub(crate) const SYSTEMS_MAX: usize = 2_000;

/// Largest flows stored per second.
pub(crate) const TALKERS_MAX: usize = 100;

/// Estimated bytes with their error, in sixteen bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct CompactSum {
    bytes: f64,
    error_squared: f64,
}

impl From<&SampleTally> for CompactSum {
    fn from(tally: &SampleTally) -> Self {
        let SumCell { bytes, error_squared, .. } = SumCell::of(tally);
        Self { bytes, error_squared }
    }
}

impl From<&SumCell> for CompactSum {
    fn from(cell: &SumCell) -> Self {
        Self { bytes: cell.bytes, error_squared: cell.error_squared }
    }
}

impl From<CompactSum> for SumCell {
    fn from(packed: CompactSum) -> Self {
        Self { bytes: packed.bytes, error_squared: packed.error_squared, seconds: 0.0 }
    }
}

impl CompactSum {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.error_squared += other.error_squared;
    }
}

/// A stratum of the estimator: one direction of one interface of an exporter.
pub(crate) type StratumKey = (u32, u32, InterfaceDirection);

/// Stratum in which a group was sampled; `None` if unknown.
pub(crate) fn stratum_of(packed: &PackedGroup) -> Option<StratumKey> {
    let group = FlowGroup::from(packed);
    let Vantage { exporter, direction } = group.vantage;
    let interface = match direction {
        InterfaceDirection::Ingress => group.input,
        InterfaceDirection::Egress => group.output,
        InterfaceDirection::Unknown => return None,
    };
    Some((exporter, interface.index()?, direction))
}

/// Group that represents the remaining groups of a stratum.
pub(crate) fn remainder_of((exporter, index, direction): StratumKey) -> PackedGroup {
    let at = |here: bool| if here { SflowInterface::Index(index) } else { SflowInterface::Unknown };
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

/// Sums by key, and the sum of the keys beyond the limit.
#[derive(Debug)]
pub(crate) struct SecondSums<K> {
    /// Sums of the largest keys.
    pub(crate) rows: Box<[(K, CompactSum)]>,
    /// Sum of all other keys.
    pub(crate) other: SumCell,
}

/// AS of source and destination, by vantage.
pub(crate) type AsPairKey = (Vantage, Option<u32>, Option<u32>);

/// Sum of each stratum of a second.
pub(crate) type Strata = HashMap<StratumKey, CompactSum, RandomState>;

/// Total of each stratum, by which counter intervals are divided.
#[must_use]
pub(crate) fn strata(sums: &Aggregates) -> Strata {
    let mut strata = Strata::default();
    for (key, tally) in sums.groups.iter() {
        if let Some(stratum) = stratum_of(key) {
            strata.entry(stratum).or_default().add(CompactSum::from(tally));
        }
    }
    strata
}

/// Sums of one second.
#[derive(Debug)]
pub(crate) struct Second {
    /// Number of the second since the start.
    pub(crate) number: u64,
    /// Start of the second, in seconds since 1970.
    pub(crate) at_s: i64,
    /// Length in seconds; less than 1 if the wall clock was set.
    pub(crate) span_s: f64,
    /// Measured part in seconds; 0 if unknown.
    pub(crate) length_s: f64,
    /// Count of samples and exported flows.
    pub(crate) samples: u64,
    /// Sums by group of traffic.
    pub(crate) groups: SecondSums<PackedGroup>,
    /// Sum of the further groups of each stratum.
    pub(crate) remainders: Box<[(PackedGroup, CompactSum)]>,
    /// Sums of each host.
    pub(crate) hosts: SecondSums<HostKey>,
    /// Sums by prefix, of hosts beyond the limit.
    pub(crate) prefixes: SecondSums<HostKey>,
    /// Sums by pair of autonomous systems.
    pub(crate) systems: SecondSums<AsPairKey>,
    /// Largest flows, in descending order.
    pub(crate) talkers: Box<[FrequentItem<(FlowKey, ScitagLabel)>]>,
    /// Upper bound of the bytes missing from their weights.
    pub(crate) talkers_error: u64,
}

impl Second {
    /// Packs the sums; `measured` is the measured part of the second, 0 to 1.
    #[must_use]
    pub(crate) fn new(span: TimelineSecond, measured: f64, sums: &Aggregates) -> Self {
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

    /// Returns the same second without traffic, measured or not.
    pub(crate) fn silent(&self, measured: bool) -> Self {
        Self {
            number: self.number,
            at_s: self.at_s,
            span_s: self.span_s,
            length_s: if measured { self.span_s } else { 0.0 },
            samples: 0,
            groups: SecondSums::default(),
            remainders: Box::default(),
            hosts: SecondSums::default(),
            prefixes: SecondSums::default(),
            systems: SecondSums::default(),
            talkers: Box::default(),
            talkers_error: 0,
        }
    }

    /// Count of the sums in it.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.groups.rows.len()
            + self.remainders.len()
            + self.hosts.rows.len()
            + self.prefixes.rows.len()
            + self.systems.rows.len()
    }
}

impl<K> Default for SecondSums<K> {
    fn default() -> Self {
        Self { rows: Box::default(), other: SumCell::default() }
    }
}

type KeyedRows<K> = Vec<(K, CompactSum)>;

/// Splits the rows into the `most` largest and the rest.
fn greatest<K: Copy + Ord + std::hash::Hash>(
    table: &TallyTable<K>,
    most: usize,
) -> (SecondSums<K>, KeyedRows<K>) {
    let mut rows: KeyedRows<K> =
        table.iter().map(|(key, tally)| (*key, CompactSum::from(tally))).collect();
    let mut dropped = Vec::new();
    if rows.len() > most {
        // The key decides among equal sums.
        let order = |a: &(K, CompactSum), b: &(K, CompactSum)| {
            b.1.bytes.total_cmp(&a.1.bytes).then_with(|| a.0.cmp(&b.0))
        };
        rows.select_nth_unstable_by(most, order);
        dropped = rows.split_off(most);
    }
    // The order of a table depends on the division of its keys among threads.
    for part in [&mut rows, &mut dropped] {
        part.sort_unstable_by_key(|row| row.0);
    }
    (SecondSums { rows: rows.into(), other: SumCell::of(&table.other) }, dropped)
}

fn folded<K>((mut sums, dropped): (SecondSums<K>, KeyedRows<K>)) -> SecondSums<K> {
    dropped.into_iter().for_each(|(_, packed)| sums.other.add(packed.into()));
    sums
}

/// Sums the further groups by stratum, so that its counter is not divided among the largest only.
fn remainders(
    mut groups: SecondSums<PackedGroup>,
    dropped: KeyedRows<PackedGroup>,
) -> (SecondSums<PackedGroup>, Box<[(PackedGroup, CompactSum)]>) {
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
