//! Sums of an interval: by site, host, interface, VLAN, owner, activity, IP version, AS and prefix.
//!
//! Keys with few values (sites, interfaces, VLANs, labels, versions) are counted together in one
//! table of [`FlowGroup`]s, from which [`Aggregates::by`] extracts any of them, alone or combined.
//! Hosts and AS pairs have a table each; hosts beyond the limit are counted by prefix only. Every
//! table has a limit; further keys are summed as `other`, so that no total is incomplete.
//!
//! A packet is sampled at every hop, so each table keeps vantages apart ([`Vantage`]). A view of
//! one interface or exporter needs no more; a view of the site takes for each key the vantage with
//! the largest sum ([`Combine::Max`], as sFlow-RT does), or the sum of all if vantages do not
//! overlap, as those of hosts that each sample their own traffic.

mod group;
mod table;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use penstock_scitags::Scitag;

use crate::asn::PrefixOrigin;
use crate::observe::{InterfaceDirection, Observation};
use crate::packet::{FlowKey, IpHeader, IpVersion, MappedAddress};
use crate::prefixes::Prefixes;
use crate::rates::{Amount, SampleTally};
use crate::scitag::ScitagVerdict;
use crate::sflow::SflowInterface;
use crate::shard::ShardLimits;
use crate::talkers::{FrequentItem, FrequentItems};

pub use group::{FlowGroup, HostDirection, PackedGroup, ScitagLabel, SiteNumber, Vantage};
use table::together;
pub use table::{Combine, TallyTable};

/// Limits of the tables of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateLimits {
    /// Most groups of traffic.
    pub groups: usize,
    /// Most hosts, counted at each vantage.
    pub hosts: usize,
    /// Most pairs of autonomous systems, counted at each vantage.
    pub as_pairs: usize,
    /// Most prefixes of hosts beyond the limit, counted at each vantage.
    pub prefixes: usize,
    /// Counters for the largest flows.
    pub talkers: usize,
    /// Length of an IPv4 prefix that the exporter does not report.
    pub ipv4_prefix_bits: u8,
    /// Length of an IPv6 prefix that the exporter does not report.
    pub ipv6_prefix_bits: u8,
}

impl Default for AggregateLimits {
    fn default() -> Self {
        Self {
            groups: 65_536,
            hosts: 65_536,
            as_pairs: 16_384,
            prefixes: 65_536,
            talkers: 8_192,
            ipv4_prefix_bits: 24,
            ipv6_prefix_bits: 64,
        }
    }
}

/// A host or prefix with its vantage and its role in the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostKey {
    /// Address of the host; the first one of a prefix.
    pub address: MappedAddress,
    /// Exporter and direction of the sample.
    pub vantage: Vantage,
    /// Length of the prefix.
    pub bits: u8,
    /// Sender or receiver of the traffic.
    pub direction: HostDirection,
}

/// Hashes two words for speed, because every sample is hashed.
impl Hash for HostKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.address.0);
        let small = u64::from(self.bits) << 8
            | (self.vantage.direction as u64) << 1
            | self.direction as u64;
        state.write_u64(u64::from(self.vantage.exporter) << 32 | small);
    }
}

impl HostKey {
    fn prefix(&self) -> AddressPrefix {
        AddressPrefix { address: self.address.prefix(self.bits), bits: self.bits }
    }
}

/// An IPv4 or IPv6 address prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressPrefix {
    /// First address of the prefix.
    pub address: MappedAddress,
    /// Length in bits, up to 32 for IPv4 and 128 for IPv6.
    pub bits: u8,
}

/// Sums of one interval.
#[derive(Debug)]
pub struct Aggregates {
    /// Sum of all traffic.
    pub all: SampleTally,
    /// Sums of keys with few values.
    pub groups: TallyTable<PackedGroup>,
    /// Sums of each host.
    pub hosts: TallyTable<HostKey>,
    /// Sums of each pair of source and destination AS.
    pub as_pairs: TallyTable<(Vantage, Option<u32>, Option<u32>)>,
    /// Sums by prefix, of hosts beyond the limit.
    pub prefixes: TallyTable<HostKey>,
    talkers: FrequentItems<TalkerKey>,
}

/// A flow with its vantage and label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TalkerKey {
    flow: FlowKey,
    vantage: Vantage,
    label: ScitagLabel,
}

/// Omits the label: a flow has one, except in the moment in which a firefly labels it.
impl Hash for TalkerKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.flow.hash(state);
        state.write_u64(u64::from(self.vantage.exporter) << 8 | self.vantage.direction as u64);
    }
}

impl Aggregates {
    fn new(limits: &AggregateLimits, seed: u64) -> Self {
        Self {
            all: SampleTally::default(),
            groups: TallyTable::new(limits.groups, seed),
            hosts: TallyTable::new(limits.hosts, seed),
            as_pairs: TallyTable::new(limits.as_pairs, seed),
            prefixes: TallyTable::new(limits.prefixes, seed),
            talkers: FrequentItems::new(limits.talkers, seed),
        }
    }

    /// Adds the sums of another shard, whose exporters are others. Groups, hosts, AS pairs and
    /// prefixes are as if one aggregator had summed all of them. Beyond the limit of talkers the
    /// largest of all shards remain.
    pub fn merge(&mut self, other: Self) {
        let Self { all, groups, hosts, as_pairs, prefixes, talkers } = other;
        self.all.merge(&all);
        self.groups.merge(groups);
        self.hosts.merge(hosts);
        self.as_pairs.merge(as_pairs);
        self.prefixes.merge(prefixes);
        self.talkers.merge_disjoint(talkers);
    }

    /// Sums by any property of a group.
    pub fn by<T: Ord + Copy>(
        &self,
        combine: Combine,
        of: impl Fn(&FlowGroup) -> Option<T>,
    ) -> BTreeMap<T, SampleTally> {
        self.groups.by(combine, |packed| {
            let group = FlowGroup::from(packed);
            (group.vantage, [of(&group), None])
        })
    }

    /// Sums by label; unlabelled and untrusted traffic have separate keys.
    #[must_use]
    pub fn labels(&self, combine: Combine) -> BTreeMap<ScitagLabel, SampleTally> {
        self.by(combine, |group| Some(group.label))
    }

    /// Sums of trusted traffic by owner.
    #[must_use]
    pub fn owners(&self, combine: Combine) -> BTreeMap<u16, SampleTally> {
        self.by(combine, |group| match group.label {
            ScitagLabel::Trusted(tag) => Some(tag.owner()),
            _ => None,
        })
    }

    /// Sums of trusted traffic by owner and activity.
    #[must_use]
    pub fn activities(&self, combine: Combine) -> BTreeMap<Scitag, SampleTally> {
        self.by(combine, |group| match group.label {
            ScitagLabel::Trusted(tag) => Some(tag),
            _ => None,
        })
    }

    /// Sums of tagged traffic by VLAN.
    #[must_use]
    pub fn vlans(&self, combine: Combine) -> BTreeMap<u16, SampleTally> {
        self.by(combine, |group| group.vlan)
    }

    /// Sums of IP traffic by version.
    #[must_use]
    pub fn versions(&self, combine: Combine) -> BTreeMap<IpVersion, SampleTally> {
        self.by(combine, |group| group.version)
    }

    /// Sums by site, sent and received.
    #[must_use]
    pub fn sites(&self, combine: Combine) -> BTreeMap<(SiteNumber, HostDirection), SampleTally> {
        self.groups.by(combine, |packed| {
            let group = FlowGroup::from(packed);
            let sent = group.source_site.map(|site| (site, HostDirection::Sent));
            let received = group.destination_site.map(|site| (site, HostDirection::Received));
            (group.vantage, [sent, received])
        })
    }

    /// Sums by exporter and ifIndex, in and out. Ingress and egress samples count the same traffic;
    /// the larger sum is taken.
    #[must_use]
    pub fn interfaces(&self) -> BTreeMap<(u32, u32, InterfaceDirection), SampleTally> {
        self.groups.by(Combine::Max, |packed| {
            let group = FlowGroup::from(packed);
            let at = |interface: SflowInterface, direction| {
                interface.index().map(|index| (group.vantage.exporter, index, direction))
            };
            let keys = [
                at(group.input, InterfaceDirection::Ingress),
                at(group.output, InterfaceDirection::Egress),
            ];
            (group.vantage, keys)
        })
    }

    /// Sums by host, sent and received.
    #[must_use]
    pub fn hosts(&self, combine: Combine) -> BTreeMap<(MappedAddress, HostDirection), SampleTally> {
        self.hosts.by(combine, |seen| (seen.vantage, [Some((seen.address, seen.direction)), None]))
    }

    /// Sums by prefix, sent and received.
    #[must_use]
    pub fn prefixes(
        &self,
        combine: Combine,
    ) -> BTreeMap<(AddressPrefix, HostDirection), SampleTally> {
        let of = |seen: &HostKey| (seen.vantage, [Some((seen.prefix(), seen.direction)), None]);
        let mut apart = BTreeMap::new();
        self.hosts.apart(&mut apart, of);
        self.prefixes.apart(&mut apart, of);
        together(combine, apart)
    }

    /// Sums by AS, sent and received.
    #[must_use]
    pub fn as_numbers(&self, combine: Combine) -> BTreeMap<(u32, HostDirection), SampleTally> {
        self.as_pairs.by(combine, |(vantage, source, destination)| {
            let sent = source.map(|number| (number, HostDirection::Sent));
            (*vantage, [sent, destination.map(|number| (number, HostDirection::Received))])
        })
    }

    /// Largest flows by estimated bytes with their labels, each at the vantage with the largest
    /// sum.
    #[must_use]
    pub fn talkers(&self, count: usize) -> Vec<FrequentItem<(FlowKey, ScitagLabel)>> {
        let mut seen: BTreeMap<(FlowKey, Vantage), FrequentItem<(FlowKey, ScitagLabel)>> =
            BTreeMap::new();
        for talker in self.talkers.top(usize::MAX) {
            let TalkerKey { flow, label, vantage } = talker.key;
            let FrequentItem { least, most, variance, .. } = talker;
            // In descending order, so a flow with several labels gets that of its most bytes.
            let nothing = FrequentItem { key: (flow, label), least: 0, most: 0, variance: 0.0 };
            let flow = seen.entry((flow, vantage)).or_insert(nothing);
            flow.least = flow.least.saturating_add(least);
            flow.most = flow.most.saturating_add(most);
            flow.variance += variance;
        }
        let mut best: BTreeMap<FlowKey, FrequentItem<(FlowKey, ScitagLabel)>> = BTreeMap::new();
        for ((flow, _), talker) in seen {
            let greatest = best.entry(flow).or_insert(talker);
            if talker.least > greatest.least {
                *greatest = talker;
            }
        }
        let mut best: Vec<_> = best.into_values().collect();
        best.sort_by(|a, b| b.least.cmp(&a.least).then_with(|| a.key.cmp(&b.key)));
        best.truncate(count);
        best
    }

    /// Upper bound of the bytes missing from a talker's weight.
    #[must_use]
    pub fn talkers_error(&self) -> u64 {
        self.talkers.error()
    }
}

/// An observation prepared for the tables.
#[derive(Debug, Clone, Copy)]
struct PendingObservation {
    group: PackedGroup,
    as_pairs: Option<(Vantage, Option<u32>, Option<u32>)>,
    ip: Option<([HostKey; 2], TalkerKey)>,
    amount: Amount,
}

/// Observations that are added to the tables together.
///
/// The tables are larger than the CPU caches, and each lookup waits for memory. Table by table, the
/// lookups of many observations overlap.
const BATCH_OBSERVATIONS: usize = 64;

/// Adds observations to the sums of their interval.
#[derive(Debug)]
pub struct Aggregator {
    limits: AggregateLimits,
    seed: u64,
    sites: Prefixes<SiteNumber>,
    origins: Arc<Prefixes<PrefixOrigin>>,
    shared: Arc<ShardLimits>,
    /// Interval of current observations.
    interval: u64,
    current: Aggregates,
    /// Sums of other intervals that were not taken yet.
    others: BTreeMap<u64, Aggregates>,
    pending: Vec<PendingObservation>,
}

impl Aggregator {
    /// Starts without sums. `sites` maps prefixes to sites; `seed` is for hashing.
    #[must_use]
    pub fn new(limits: AggregateLimits, sites: Prefixes<SiteNumber>, seed: u64) -> Self {
        Self::sharing(Arc::new(ShardLimits::new(1)), limits, sites, seed)
    }

    /// Starts without sums, as one of several shards whose keys count together toward the limits.
    #[must_use]
    pub fn sharing(
        shared: Arc<ShardLimits>,
        limits: AggregateLimits,
        sites: Prefixes<SiteNumber>,
        seed: u64,
    ) -> Self {
        let (current, pending) =
            (Aggregates::new(&limits, seed), Vec::with_capacity(BATCH_OBSERVATIONS));
        let others = BTreeMap::new();
        let origins = Arc::default();
        Self { limits, seed, sites, origins, shared, interval: 0, current, others, pending }
    }

    /// Limits that hold for all shards together.
    pub(crate) fn shared(&self) -> &Arc<ShardLimits> {
        &self.shared
    }

    /// Replaces the prefixes of sites.
    pub fn set_sites(&mut self, sites: Prefixes<SiteNumber>) {
        self.sites = sites;
    }

    /// Replaces the AS table used for addresses without an AS from the exporter; returns the old
    /// one. Shards have one in common.
    pub fn set_origins(
        &mut self,
        origins: Arc<Prefixes<PrefixOrigin>>,
    ) -> Arc<Prefixes<PrefixOrigin>> {
        std::mem::replace(&mut self.origins, origins)
    }

    /// Adds an observation of `exporter` with its increment `amount`.
    #[inline]
    pub fn add(
        &mut self,
        exporter: u32,
        seen: &Observation,
        amount: &Amount,
        verdict: ScitagVerdict,
    ) {
        let vantage = Vantage { exporter, direction: seen.direction };
        let ip = seen.packet.ip();
        let flow = ip.map(|ip| ip.flow());
        let site = |address: fn(&FlowKey) -> MappedAddress| self.sites.find(address(&flow?));
        let group = FlowGroup {
            vantage,
            input: seen.input,
            output: seen.output,
            vlan: seen.vlan,
            inner_vlan: seen.inner_vlan,
            version: seen.version(),
            label: verdict.into(),
            source_site: site(|flow| flow.source),
            destination_site: site(|flow| flow.destination),
        };
        let origin = |address: fn(&FlowKey) -> MappedAddress| self.origins.find(address(&flow?));
        let origins = [origin(|flow| flow.source), origin(|flow| flow.destination)];
        let asn =
            |reported: Option<u32>, origin: Option<PrefixOrigin>| reported.or(Some(origin?.asn));
        let source_as = asn(seen.source_as, origins[0]);
        let destination_as = asn(seen.destination_as, origins[1]);
        let as_pairs = (vantage, source_as, destination_as);
        let reported = source_as.is_some() || destination_as.is_some();
        self.pending.push(PendingObservation {
            group: PackedGroup::from(&group),
            as_pairs: reported.then_some(as_pairs),
            ip: ip.map(|ip| {
                let flow = TalkerKey { flow: ip.flow(), vantage, label: group.label };
                (self.hosts(seen, vantage, ip, origins), flow)
            }),
            amount: *amount,
        });
        if self.pending.len() >= BATCH_OBSERVATIONS {
            self.settle();
        }
    }

    /// A prefix that the exporter does not report is that of the address's AS, or else of default
    /// length.
    fn hosts(
        &self,
        seen: &Observation,
        vantage: Vantage,
        ip: &IpHeader,
        origins: [Option<PrefixOrigin>; 2],
    ) -> [HostKey; 2] {
        let default_bits = match ip.version {
            IpVersion::V4 => self.limits.ipv4_prefix_bits,
            IpVersion::V6 => self.limits.ipv6_prefix_bits,
        };
        // A default route does not locate a host.
        let bits = |bits: Option<u8>, origin: Option<PrefixOrigin>| {
            let reported = bits.filter(|bits| *bits > 0);
            let of_origin = origin.map(|origin| origin.bits).filter(|bits| *bits > 0);
            reported.or(of_origin).unwrap_or(default_bits)
        };
        let source = bits(seen.source_mask_bits, origins[0]);
        let destination = bits(seen.destination_mask_bits, origins[1]);
        [
            HostKey { address: ip.source, vantage, bits: source, direction: HostDirection::Sent },
            HostKey {
                address: ip.destination,
                vantage,
                bits: destination,
                direction: HostDirection::Received,
            },
        ]
    }

    /// Adds the pending observations to the tables.
    fn settle(&mut self) {
        let Self { current, pending, shared, interval, .. } = self;
        let (keys, interval) = (&shared.keys, *interval);
        for one in pending.iter() {
            current.all.count(&one.amount);
            current.groups.add(one.group, &one.amount, |limit| keys.groups.add(interval, limit));
        }
        for one in pending.iter() {
            let Some((hosts, _)) = one.ip else { continue };
            for host in hosts {
                let room = |limit| keys.hosts.add(interval, limit);
                if !current.hosts.add(host, &one.amount, room) {
                    let prefix = HostKey { address: host.prefix().address, ..host };
                    let room = |limit| keys.prefixes.add(interval, limit);
                    current.prefixes.add(prefix, &one.amount, room);
                }
            }
        }
        for one in pending.iter() {
            if let Some((_, flow)) = one.ip {
                current.talkers.add(flow, one.amount.bytes(), one.amount.bytes_variance());
            }
            if let Some(as_pairs) = one.as_pairs {
                let room = |limit| keys.as_pairs.add(interval, limit);
                current.as_pairs.add(as_pairs, &one.amount, room);
            }
        }
        pending.clear();
    }

    /// Selects the interval of further observations. Intervals may come in any order, so that
    /// datagrams received at the end of one second count there although they are read in the next.
    pub fn select(&mut self, interval: u64) {
        if interval == self.interval {
            return;
        }
        self.settle();
        let next = self.others.remove(&interval);
        let next = next.unwrap_or_else(|| Aggregates::new(&self.limits, self.seed));
        let before = std::mem::replace(&mut self.current, next);
        let number = std::mem::replace(&mut self.interval, interval);
        if before.all.samples > 0 {
            self.others.insert(number, before);
        }
    }

    /// Returns the sums of an interval and clears it.
    pub fn take_interval(&mut self, interval: u64) -> Aggregates {
        if interval == self.interval {
            return self.take();
        }
        let taken = self.others.remove(&interval);
        let taken = taken.unwrap_or_else(|| Aggregates::new(&self.limits, self.seed));
        self.release(interval, &taken);
        taken
    }

    /// Returns the keys of taken sums to the limits.
    fn release(&self, interval: u64, taken: &Aggregates) {
        let keys = &self.shared.keys;
        keys.groups.remove(interval, taken.groups.len());
        keys.hosts.remove(interval, taken.hosts.len());
        keys.as_pairs.remove(interval, taken.as_pairs.len());
        keys.prefixes.remove(interval, taken.prefixes.len());
    }

    /// Returns the sums of the selected interval since the last call.
    pub fn take(&mut self) -> Aggregates {
        self.settle();
        let seed = self.seed;
        let Aggregates { groups, hosts, as_pairs, prefixes, .. } = &mut self.current;
        let mut taken = Aggregates {
            groups: groups.emptied(seed),
            hosts: hosts.emptied(seed),
            as_pairs: as_pairs.emptied(seed),
            prefixes: prefixes.emptied(seed),
            ..Aggregates::new(&self.limits, seed)
        };
        // The full tables were moved out and replaced by empty ones; swap the rest.
        std::mem::swap(&mut taken.all, &mut self.current.all);
        std::mem::swap(&mut taken.talkers, &mut self.current.talkers);
        self.release(self.interval, &taken);
        taken
    }
}
