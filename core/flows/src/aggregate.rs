//! Sums of an interval: by site, host, interface, VLAN, owner, activity, IP version, AS and prefix.
//!
//! What has few values (sites, interfaces, VLANs, labels, versions) is counted together in one table of
//! [`Group`]s, and [`Aggregates::by`] draws any of them from it, alone or combined. Hosts and systems have a
//! table each; a host knows its prefix, and hosts that find no place are counted by prefix alone. Every
//! table has a limit; what finds no place is summed as `other`, so that nothing is missing from a total.
//!
//! A packet is sampled at every hop, so each table keeps apart where it was seen ([`Vantage`]). A view of one
//! interface or exporter needs no more; a view of the site takes for each key the vantage that saw
//! most of it ([`Combine::Max`], as sFlow-RT does), or the sum where vantages do not overlap, as those of
//! hosts that each sample their own traffic do.

mod group;
mod table;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use penstock_scitags::Scitag;

use crate::observe::{Direction, Observation};
use crate::packet::{Address, FlowKey, Ip, Version};
use crate::prefixes::Prefixes;
use crate::rates::{Amount, Tally};
use crate::scitag::Verdict;
use crate::sflow::Interface;
use crate::systems::Origin;
use crate::talkers::{Talker, Talkers};

pub use group::{Group, Label, PackedGroup, SiteNumber, Vantage, Way};
use table::together;
pub use table::{Combine, Table};

/// How much may be kept in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Groups.
    pub groups: usize,
    /// Hosts, each at each vantage.
    pub hosts: usize,
    /// Pairs of systems, each at each vantage.
    pub systems: usize,
    /// Prefixes of hosts that found no place, each at each vantage.
    pub prefixes: usize,
    /// Places for the greatest flows.
    pub talkers: usize,
    /// Bits of an IPv4 prefix where the exporter does not tell.
    pub ipv4_prefix_bits: u8,
    /// Bits of an IPv6 prefix where the exporter does not tell.
    pub ipv6_prefix_bits: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            groups: 65_536,
            hosts: 65_536,
            systems: 16_384,
            prefixes: 65_536,
            talkers: 8_192,
            ipv4_prefix_bits: 24,
            ipv6_prefix_bits: 64,
        }
    }
}

/// A host, or a prefix, where it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// The host; the first address of the prefix.
    pub address: Address,
    /// Where.
    pub vantage: Vantage,
    /// Length of the prefix.
    pub bits: u8,
    /// Sent or received.
    pub way: Way,
}

/// In two words: this is done for every sample.
impl Hash for Seen {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.address.0);
        let small =
            u64::from(self.bits) << 8 | (self.vantage.direction as u64) << 1 | self.way as u64;
        state.write_u64(u64::from(self.vantage.exporter) << 32 | small);
    }
}

impl Seen {
    fn prefix(&self) -> Prefix {
        Prefix { address: self.address.prefix(self.bits), bits: self.bits }
    }
}

/// A prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// Its first address.
    pub address: Address,
    /// Its length.
    pub bits: u8,
}

/// The sums of one interval.
#[derive(Debug)]
pub struct Aggregates {
    /// All that was counted.
    pub all: Tally,
    /// What has few values.
    pub groups: Table<PackedGroup>,
    /// By host.
    pub hosts: Table<Seen>,
    /// By AS of source and destination.
    pub systems: Table<(Vantage, Option<u32>, Option<u32>)>,
    /// By prefix, of hosts that found no place.
    pub prefixes: Table<Seen>,
    talkers: Talkers<TalkerKey>,
}

/// A flow where it was seen, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TalkerKey {
    flow: FlowKey,
    vantage: Vantage,
    label: Label,
}

/// A flow has one label but for the moment in which a firefly tells it.
impl Hash for TalkerKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.flow.hash(state);
        state.write_u64(u64::from(self.vantage.exporter) << 8 | self.vantage.direction as u64);
    }
}

impl Aggregates {
    fn new(limits: &Limits, seed: u64) -> Self {
        Self {
            all: Tally::default(),
            groups: Table::new(limits.groups, seed),
            hosts: Table::new(limits.hosts, seed),
            systems: Table::new(limits.systems, seed),
            prefixes: Table::new(limits.prefixes, seed),
            talkers: Talkers::new(limits.talkers, seed),
        }
    }

    /// By whatever a group has.
    pub fn by<T: Ord + Copy>(
        &self,
        combine: Combine,
        of: impl Fn(&Group) -> Option<T>,
    ) -> BTreeMap<T, Tally> {
        self.groups.by(combine, |packed| {
            let group = Group::from(packed);
            (group.vantage, [of(&group), None])
        })
    }

    /// By label; unlabelled and untrusted have keys of their own.
    #[must_use]
    pub fn labels(&self, combine: Combine) -> BTreeMap<Label, Tally> {
        self.by(combine, |group| Some(group.label))
    }

    /// By owner, of what is believed.
    #[must_use]
    pub fn owners(&self, combine: Combine) -> BTreeMap<u16, Tally> {
        self.by(combine, |group| match group.label {
            Label::Trusted(tag) => Some(tag.owner()),
            _ => None,
        })
    }

    /// By owner and activity, of what is believed.
    #[must_use]
    pub fn activities(&self, combine: Combine) -> BTreeMap<Scitag, Tally> {
        self.by(combine, |group| match group.label {
            Label::Trusted(tag) => Some(tag),
            _ => None,
        })
    }

    /// By VLAN.
    #[must_use]
    pub fn vlans(&self, combine: Combine) -> BTreeMap<u16, Tally> {
        self.by(combine, |group| group.vlan)
    }

    /// By IP version.
    #[must_use]
    pub fn versions(&self, combine: Combine) -> BTreeMap<Version, Tally> {
        self.by(combine, |group| group.version)
    }

    /// By site, what it sent and what it received.
    #[must_use]
    pub fn sites(&self, combine: Combine) -> BTreeMap<(SiteNumber, Way), Tally> {
        self.groups.by(combine, |packed| {
            let group = Group::from(packed);
            let sent = group.source_site.map(|site| (site, Way::Sent));
            let received = group.destination_site.map(|site| (site, Way::Received));
            (group.vantage, [sent, received])
        })
    }

    /// By exporter and ifIndex, what came in there and what went out. Samples of packets that came in
    /// and of those that went out tell of the same traffic; the more of both counts.
    #[must_use]
    pub fn interfaces(&self) -> BTreeMap<(u32, u32, Direction), Tally> {
        self.groups.by(Combine::Max, |packed| {
            let group = Group::from(packed);
            let at = |interface: Interface, direction| {
                interface.index().map(|index| (group.vantage.exporter, index, direction))
            };
            let keys = [at(group.input, Direction::Ingress), at(group.output, Direction::Egress)];
            (group.vantage, keys)
        })
    }

    /// By host, what it sent and what it received.
    #[must_use]
    pub fn hosts(&self, combine: Combine) -> BTreeMap<(Address, Way), Tally> {
        self.hosts.by(combine, |seen| (seen.vantage, [Some((seen.address, seen.way)), None]))
    }

    /// By prefix, what it sent and what it received.
    #[must_use]
    pub fn prefixes(&self, combine: Combine) -> BTreeMap<(Prefix, Way), Tally> {
        let of = |seen: &Seen| (seen.vantage, [Some((seen.prefix(), seen.way)), None]);
        let mut apart = BTreeMap::new();
        self.hosts.apart(&mut apart, of);
        self.prefixes.apart(&mut apart, of);
        together(combine, apart)
    }

    /// By AS, what it sent and what it received.
    #[must_use]
    pub fn systems(&self, combine: Combine) -> BTreeMap<(u32, Way), Tally> {
        self.systems.by(combine, |(vantage, source, destination)| {
            let sent = source.map(|number| (number, Way::Sent));
            (*vantage, [sent, destination.map(|number| (number, Way::Received))])
        })
    }

    /// The greatest flows by estimated bytes with their labels, each at the vantage that saw most of it.
    #[must_use]
    pub fn talkers(&self, count: usize) -> Vec<Talker<(FlowKey, Label)>> {
        let mut seen: BTreeMap<(FlowKey, Vantage), Talker<(FlowKey, Label)>> = BTreeMap::new();
        for talker in self.talkers.top(usize::MAX) {
            let TalkerKey { flow, label, vantage } = talker.key;
            let Talker { least, most, variance, .. } = talker;
            // The greatest comes first: a flow that had several labels is told with that of its most bytes.
            let nothing = Talker { key: (flow, label), least: 0, most: 0, variance: 0.0 };
            let flow = seen.entry((flow, vantage)).or_insert(nothing);
            flow.least = flow.least.saturating_add(least);
            flow.most = flow.most.saturating_add(most);
            flow.variance += variance;
        }
        let mut best: BTreeMap<FlowKey, Talker<(FlowKey, Label)>> = BTreeMap::new();
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

    /// By how much the bytes of a talker may be understated.
    #[must_use]
    pub fn talkers_error(&self) -> u64 {
        self.talkers.error()
    }
}

/// An observation as the tables take it.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    group: PackedGroup,
    systems: Option<(Vantage, Option<u32>, Option<u32>)>,
    ip: Option<([Seen; 2], TalkerKey)>,
    amount: Amount,
}

/// So many observations are brought to the tables together.
///
/// The tables are larger than the caches near the processor, and each look-up waits for memory. One table
/// after the other, the look-ups of many observations wait at the same time.
const TOGETHER: usize = 64;

/// Takes observations and gives the sums of an interval.
#[derive(Debug)]
pub struct Aggregator {
    limits: Limits,
    seed: u64,
    sites: Prefixes<SiteNumber>,
    origins: Prefixes<Origin>,
    /// The interval that observations belong to now.
    interval: u64,
    current: Aggregates,
    /// Sums of other intervals that were not taken yet.
    others: BTreeMap<u64, Aggregates>,
    waiting: Vec<Waiting>,
}

impl Aggregator {
    /// `sites` are known by their prefixes. `seed` is for hashing.
    #[must_use]
    pub fn new(limits: Limits, sites: Prefixes<SiteNumber>, seed: u64) -> Self {
        let (current, waiting) = (Aggregates::new(&limits, seed), Vec::with_capacity(TOGETHER));
        let others = BTreeMap::new();
        let origins = Prefixes::default();
        Self { limits, seed, sites, origins, interval: 0, current, others, waiting }
    }

    /// Takes other sites.
    pub fn set_sites(&mut self, sites: Prefixes<SiteNumber>) {
        self.sites = sites;
    }

    /// Takes other systems, for addresses of which an exporter does not tell one; gives back those before.
    pub fn set_origins(&mut self, origins: Prefixes<Origin>) -> Prefixes<Origin> {
        std::mem::replace(&mut self.origins, origins)
    }

    /// Counts an observation of this exporter, which is this much.
    #[inline]
    pub fn add(&mut self, exporter: u32, seen: &Observation, amount: &Amount, verdict: Verdict) {
        let vantage = Vantage { exporter, direction: seen.direction };
        let ip = seen.packet.ip();
        let flow = ip.map(|ip| ip.flow());
        let site = |address: fn(&FlowKey) -> Address| self.sites.find(address(&flow?));
        let group = Group {
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
        let origin = |address: fn(&FlowKey) -> Address| self.origins.find(address(&flow?));
        let origins = [origin(|flow| flow.source), origin(|flow| flow.destination)];
        let asn = |told: Option<u32>, origin: Option<Origin>| told.or(Some(origin?.asn));
        let source_as = asn(seen.source_as, origins[0]);
        let destination_as = asn(seen.destination_as, origins[1]);
        let systems = (vantage, source_as, destination_as);
        let told = source_as.is_some() || destination_as.is_some();
        self.waiting.push(Waiting {
            group: PackedGroup::from(&group),
            systems: told.then_some(systems),
            ip: ip.map(|ip| {
                let flow = TalkerKey { flow: ip.flow(), vantage, label: group.label };
                (self.hosts(seen, vantage, ip, origins), flow)
            }),
            amount: *amount,
        });
        if self.waiting.len() >= TOGETHER {
            self.settle();
        }
    }

    /// Whose prefix no exporter tells has that of its system, or else one of the usual length.
    fn hosts(
        &self,
        seen: &Observation,
        vantage: Vantage,
        ip: &Ip,
        origins: [Option<Origin>; 2],
    ) -> [Seen; 2] {
        let default_bits = match ip.version {
            Version::V4 => self.limits.ipv4_prefix_bits,
            Version::V6 => self.limits.ipv6_prefix_bits,
        };
        // A default route says nothing of where a host is.
        let bits = |bits: Option<u8>, origin: Option<Origin>| {
            let told = bits.filter(|bits| *bits > 0);
            let of_origin = origin.map(|origin| origin.bits).filter(|bits| *bits > 0);
            told.or(of_origin).unwrap_or(default_bits)
        };
        let source = bits(seen.source_mask_bits, origins[0]);
        let destination = bits(seen.destination_mask_bits, origins[1]);
        [
            Seen { address: ip.source, vantage, bits: source, way: Way::Sent },
            Seen { address: ip.destination, vantage, bits: destination, way: Way::Received },
        ]
    }

    /// Brings what waits to the tables.
    fn settle(&mut self) {
        let Self { current, waiting, .. } = self;
        for one in waiting.iter() {
            current.all.count(&one.amount);
            current.groups.add(one.group, &one.amount);
        }
        for one in waiting.iter() {
            let Some((hosts, _)) = one.ip else { continue };
            for host in hosts {
                if !current.hosts.add(host, &one.amount) {
                    let address = host.prefix().address;
                    current.prefixes.add(Seen { address, ..host }, &one.amount);
                }
            }
        }
        for one in waiting.iter() {
            if let Some((_, flow)) = one.ip {
                current.talkers.add(flow, one.amount.bytes(), one.amount.bytes_variance());
            }
            if let Some(systems) = one.systems {
                current.systems.add(systems, &one.amount);
            }
        }
        waiting.clear();
    }

    /// Observations from now on belong to this interval. Intervals may come in any order, so that what was received
    /// at the end of one second counts there although it is read in the next.
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

    /// The sums of an interval; it is empty afterwards.
    pub fn take_interval(&mut self, interval: u64) -> Aggregates {
        if interval == self.interval {
            return self.take();
        }
        let taken = self.others.remove(&interval);
        taken.unwrap_or_else(|| Aggregates::new(&self.limits, self.seed))
    }

    /// The sums of the selected interval since the last time.
    pub fn take(&mut self) -> Aggregates {
        self.settle();
        let seed = self.seed;
        let Aggregates { groups, hosts, systems, prefixes, .. } = &mut self.current;
        let mut taken = Aggregates {
            groups: groups.emptied(seed),
            hosts: hosts.emptied(seed),
            systems: systems.emptied(seed),
            prefixes: prefixes.emptied(seed),
            ..Aggregates::new(&self.limits, seed)
        };
        // The full tables were taken, empty ones are in place; the rest changes sides.
        std::mem::swap(&mut taken.all, &mut self.current.all);
        std::mem::swap(&mut taken.talkers, &mut self.current.talkers);
        taken
    }
}
