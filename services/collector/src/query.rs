//! Queries: group rows into series, filter them, combine vantages. Pure; the rows come from memory
//! or from storage.
//!
//! A packet is sampled at each hop. So the sums of each vantage (an exporter and a direction) stay
//! separate until the end, and [`View`] states how to combine them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use penstock_flows::estimate::Sum;
use penstock_scitags::{Registry, Scitag};
use serde::{Deserialize, Deserializer};

use crate::directory::NameDirectory;
use crate::row::{RowDirection, RowKind, RowLabel, RowVantage, SumRow};

/// Property by which traffic is grouped into series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// Owner by the registry.
    Owner,
    /// Owner and activity by the registry.
    Activity,
    /// Owner and activity as scitag number.
    Scitag,
    /// VLAN id, or `outer.inner` for two tags.
    Vlan,
    /// Site of the source or destination, by direction.
    Site,
    /// Site of the source and site of the destination.
    SitePair,
    /// Address of a host.
    Host,
    /// Interface of an exporter.
    Interface,
    /// IP version of the packets.
    IpVersion,
    /// Autonomous system of the source or destination.
    As,
    /// Prefix of the source or destination.
    Prefix,
    /// Exporter that sampled the traffic.
    Exporter,
    /// A single series of all traffic.
    Total,
}

const WORDS: [(&str, By); 13] = [
    ("owner", By::Owner),
    ("activity", By::Activity),
    ("scitag", By::Scitag),
    ("vlan", By::Vlan),
    ("site", By::Site),
    ("site_pair", By::SitePair),
    ("host", By::Host),
    ("interface", By::Interface),
    ("ip_version", By::IpVersion),
    ("as", By::As),
    ("prefix", By::Prefix),
    ("exporter", By::Exporter),
    ("total", By::Total),
];

/// Key of addresses outside all configured networks.
pub(crate) const ELSEWHERE: &str = "elsewhere";

/// Separator of source and destination in the key of a pair of sites.
pub(crate) const PAIR: char = '>';

/// A word that names nothing to group by, or no way to combine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryWordError {
    /// The word is no [`By`].
    #[error(
        "'{0}' is nothing to group by: write one of {words}",
        words = WORDS.map(|(word, _)| word).join(", ")
    )]
    By(String),
    /// The word is no [`View`].
    #[error("'{0}' does not combine: write auto, max or sum")]
    View(String),
}

impl FromStr for By {
    type Err = QueryWordError;

    fn from_str(text: &str) -> Result<Self, QueryWordError> {
        let found = WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, by)| *by).ok_or_else(|| QueryWordError::By(text.to_owned()))
    }
}

impl By {
    /// Name in the API and the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        WORDS.iter().find(|(_, by)| *by == self).map_or("", |(word, _)| word)
    }

    /// Returns true if no packet is in two series, whichever exporters see it. A VLAN may change
    /// from hop to hop.
    pub(crate) fn is_disjoint(self) -> bool {
        !matches!(self, Self::Exporter | Self::Interface | Self::Vlan)
    }

    /// Checks that traffic can have this key.
    ///
    /// # Errors
    /// When none can.
    pub(crate) fn check_key(self, key: &str) -> Result<(), QueryError> {
        let (is_known, form) = match self {
            Self::IpVersion => (["4", "6", "none", "other"].contains(&key), "4, 6, none or other"),
            Self::Host => {
                (key == "other" || key.parse::<IpAddr>().is_ok(), "the address of a host, or other")
            }
            _ => (true, ""),
        };
        match is_known {
            true => Ok(()),
            false => Err(QueryError::Key(self.as_str(), key.to_owned(), form)),
        }
    }

    /// Kind of the rows that have this property.
    #[must_use]
    pub fn kind(self) -> RowKind {
        match self {
            Self::Host | Self::Prefix => RowKind::Host,
            Self::As => RowKind::System,
            _ => RowKind::Group,
        }
    }
}

/// Way to combine the sums of several vantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum View {
    /// Sum of all sending hosts, sum of all receiving hosts, or any other vantage: the largest of
    /// these.
    #[default]
    Auto,
    /// The vantage with the largest sum.
    Max,
    /// The sum of all vantages, correct if no packet is sampled twice.
    Sum,
}

impl FromStr for View {
    type Err = QueryWordError;

    fn from_str(text: &str) -> Result<Self, QueryWordError> {
        match text {
            "auto" => Ok(Self::Auto),
            "max" => Ok(Self::Max),
            "sum" => Ok(Self::Sum),
            _ => Err(QueryWordError::View(text.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for View {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A query of traffic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Query {
    /// Property of the series.
    pub by: By,
    /// Direction of the traffic, by the rules of [`Query::key`].
    pub direction: Option<RowDirection>,
    /// Only rows with these keys.
    pub filters: Vec<(By, String)>,
    /// Way to combine vantages.
    pub view: View,
    /// True if the direction is that of a site, host or interface, although the series are not by
    /// one.
    pub sided: bool,
}

/// Reason to reject a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The rows of the series lack the filter's property.
    #[error("series by {0} cannot be filtered by {1}: those sums are kept apart")]
    Filter(&'static str, &'static str),
    /// No traffic has this key.
    #[error("{0}={1}: write {2}")]
    Key(&'static str, String, &'static str),
}

impl Query {
    /// Queries all traffic, grouped by this property.
    #[must_use]
    pub fn of(by: By) -> Self {
        Self { by, direction: None, filters: Vec::new(), view: View::Auto, sided: false }
    }

    /// Checks that rows of one kind have all properties of filters and series, and may have the keys of filters.
    ///
    /// # Errors
    /// When a filter needs another kind, or a key that no row has.
    pub fn check(&self) -> Result<(), QueryError> {
        let kind = self.kind();
        for (by, _) in &self.filters {
            if !matches!(by, By::Exporter | By::Total) && by.kind() != kind {
                return Err(QueryError::Filter(self.by.as_str(), by.as_str()));
            }
        }
        self.filters.iter().try_for_each(|(by, key)| by.check_key(key))
    }

    /// Kind of the rows that answer the query.
    #[must_use]
    pub fn kind(&self) -> RowKind {
        // Rows of any kind add up to a total; those with the properties of the filters are taken.
        let of_filter =
            self.filters.iter().map(|(by, _)| by.kind()).find(|kind| *kind != RowKind::Group);
        match (self.by, of_filter) {
            (By::Total | By::Exporter, Some(kind)) => kind,
            (by, _) => by.kind(),
        }
    }

    /// The same query for the total of all series.
    #[must_use]
    pub fn total(&self) -> Self {
        Self { by: By::Total, sided: self.is_sided(), ..self.clone() }
    }

    /// Key of the row's series; `None` if the query excludes the row.
    ///
    /// `In` is traffic that a site, host, network or AS receives, or that enters an interface;
    /// `out` is traffic that they send, or that leaves an interface. The default is sent traffic
    /// for sites and their like, and entering traffic for interfaces. For other properties it
    /// selects the samples: taken at ingress or at egress of exporters.
    #[must_use]
    pub fn key(&self, row: &SumRow, names: &KeyNames<'_>) -> Option<String> {
        if let Some(direction) = self.direction
            && !self.is_sided()
            && row.at().direction != direction
        {
            return None;
        }
        // Each packet has a row for its source and one for its destination.
        if let SumRow::Host { sent, .. } = row
            && *sent == (self.direction == Some(RowDirection::In))
        {
            return None;
        }
        for (by, wanted) in &self.filters {
            let key = self.key_by(*by, row, names)?;
            // A filter by an outer VLAN includes all inner ones.
            let outer = key.split_once('.').filter(|_| *by == By::Vlan).map(|(outer, _)| outer);
            if !key.eq_ignore_ascii_case(wanted) && outer != Some(wanted) {
                return None;
            }
        }
        self.key_by(self.by, row, names)
    }

    /// Returns true if the direction is relative to the queried property instead of the sampling
    /// interface.
    fn is_sided(&self) -> bool {
        let sided = |by| matches!(by, By::Site | By::Host | By::Prefix | By::As | By::Interface);
        self.sided || sided(self.by) || self.filters.iter().any(|(by, _)| sided(*by))
    }

    fn key_by(&self, by: By, row: &SumRow, names: &KeyNames<'_>) -> Option<String> {
        let received = self.direction == Some(RowDirection::In);
        match (by, row) {
            (By::Total, _) => Some("total".to_owned()),
            (By::Exporter, row) => Some(row.at().exporter.to_string()),
            (By::Interface, SumRow::Group { at, input, output, .. }) => {
                let index = match self.direction {
                    Some(RowDirection::Out) => output,
                    _ => input,
                };
                index.map(|index| format!("{}:{index}", at.exporter))
            }
            (
                By::Interface,
                SumRow::Counter { at, index, .. } | SumRow::CounterSamples { at, index },
            ) => Some(format!("{}:{index}", at.exporter)),
            (_, SumRow::Group { label: RowLabel::Other, .. }) => Some("other".to_owned()),
            (By::Owner, SumRow::Group { label, .. }) => Some(match label {
                RowLabel::Trusted(number) => names.owner(*number),
                label => word(*label).to_owned(),
            }),
            (By::Activity, SumRow::Group { label, .. }) => Some(match label {
                RowLabel::Trusted(number) => names.activity(*number),
                label => word(*label).to_owned(),
            }),
            (By::Scitag, SumRow::Group { label, .. }) => Some(match label {
                RowLabel::Trusted(number) => number.to_string(),
                label => word(*label).to_owned(),
            }),
            (By::Vlan, SumRow::Group { vlan, inner_vlan, .. }) => Some(match (vlan, inner_vlan) {
                (None, _) => "untagged".to_owned(),
                (Some(vlan), None) => vlan.to_string(),
                (Some(outer), Some(inner)) => format!("{outer}.{inner}"),
            }),
            (By::IpVersion, SumRow::Group { version, .. }) => {
                Some(version.map_or_else(|| "none".to_owned(), |version| version.to_string()))
            }
            (By::Site, SumRow::Group { source, destination, .. }) => {
                let site = if received { destination } else { source };
                Some(site.as_deref().unwrap_or(ELSEWHERE).to_owned())
            }
            (By::SitePair, SumRow::Group { source, destination, .. }) => {
                let name =
                    |site: &Option<Arc<str>>| site.clone().unwrap_or_else(|| ELSEWHERE.into());
                Some(format!("{}{PAIR}{}", name(source), name(destination)))
            }
            (By::Host, SumRow::Host { address, .. }) => {
                Some(address.as_deref().unwrap_or("other").to_owned())
            }
            (By::Prefix, SumRow::Host { prefix, .. }) => {
                Some(prefix.as_deref().unwrap_or("other").to_owned())
            }
            (By::As, SumRow::System { source, destination, .. }) => {
                let number = if received { destination } else { source };
                Some(number.map_or_else(|| "unknown".to_owned(), |number| number.to_string()))
            }
            _ => None,
        }
    }
}

fn word(label: RowLabel) -> &'static str {
    match label {
        RowLabel::Unlabelled => "unlabelled",
        RowLabel::Untrusted => "untrusted",
        RowLabel::Trusted(_) | RowLabel::Other => "other",
    }
}

/// Display names of keys.
#[derive(Debug, Clone, Copy)]
pub struct KeyNames<'a> {
    /// Names of owners and activities.
    pub registry: &'a Registry,
    /// Names of exporters and interfaces.
    pub directory: &'a NameDirectory,
}

impl KeyNames<'_> {
    fn owner(&self, number: u16) -> String {
        let activity = self.activity(number);
        activity.split('/').next().unwrap_or(&activity).to_owned()
    }

    fn activity(&self, number: u16) -> String {
        let tag = Scitag::from_number(number.into());
        tag.map_or_else(|_| number.to_string(), |tag| self.registry.name(tag))
    }

    /// Display name of a key.
    #[must_use]
    pub fn shown(&self, by: By, key: &str) -> String {
        match (by, key) {
            (_, "unlabelled") => "Unlabelled".to_owned(),
            (_, "untrusted") => "Untrusted".to_owned(),
            (_, "other") => "Other".to_owned(),
            (By::Owner, key) => {
                let owners = self.registry.owners();
                let found = owners.iter().find(|(number, owner)| {
                    owner.name.eq_ignore_ascii_case(key) || number.to_string() == key
                });
                found.map_or_else(|| key.to_owned(), |(_, owner)| owner.name.clone())
            }
            (By::Activity, key) => self.activity_shown(key),
            (By::Scitag, key) => match key.parse() {
                Ok(number) => self.activity_shown(&self.activity(number)),
                Err(_) => key.to_owned(),
            },
            (By::Vlan, "untagged") => "Untagged".to_owned(),
            (By::Vlan, key) => format!("VLAN {key}"),
            (By::Site, ELSEWHERE) => "Elsewhere".to_owned(),
            (By::SitePair, key) => key.replacen(PAIR, " to ", 1),
            (By::Host, key) => match key.parse() {
                Ok(address) => self.directory.host_name(address).unwrap_or(key).to_owned(),
                Err(_) => key.to_owned(),
            },
            (By::IpVersion, "none") => "Not IP".to_owned(),
            (By::IpVersion, key) => format!("IPv{key}"),
            (By::As, key) => match key.parse() {
                Ok(number) => self.directory.system_name(number),
                Err(_) => key.to_owned(),
            },
            (By::Exporter, key) => self.directory.name(key).to_string(),
            (By::Interface, key) => match key.rsplit_once(':') {
                Some((exporter, index)) => match index.parse() {
                    Ok(index) => self.directory.interface_name(exporter, index),
                    Err(_) => key.to_owned(),
                },
                None => key.to_owned(),
            },
            (By::Total, _) => "Total".to_owned(),
            (_, key) => key.to_owned(),
        }
    }

    fn activity_shown(&self, key: &str) -> String {
        let Ok(tag) = self.registry.find(key) else { return key.to_owned() };
        let owner = self.registry.owners().get(&tag.owner());
        let activity = owner.and_then(|owner| owner.activities.get(&tag.activity()));
        match (owner, activity) {
            (Some(owner), Some(activity)) => format!("{} {activity}", owner.name),
            _ => key.to_owned(),
        }
    }
}

/// Vantages that are added before the largest sum is taken. Of several with the same traffic the
/// first one counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum VantageClass {
    All,
    HostsOut,
    HostsIn,
    One(Arc<str>, RowDirection),
}

impl View {
    fn class(self, at: &RowVantage) -> VantageClass {
        match (self, at.host, at.direction) {
            (Self::Sum, ..) => VantageClass::All,
            (Self::Auto, true, RowDirection::Out) => VantageClass::HostsOut,
            (Self::Auto, true, RowDirection::In) => VantageClass::HostsIn,
            _ => VantageClass::One(Arc::clone(&at.exporter), at.direction),
        }
    }
}

/// Standard deviations beyond which a class of vantages has a smaller sum than another.
pub(crate) const LESS_SIGMA: f64 = 2.0;

/// Standard deviations beyond which another class is taken in a single bucket; higher, because
/// there are many buckets.
const MORE_SIGMA: f64 = 3.0;

/// Sums of a query, bucket by bucket.
#[derive(Debug)]
pub struct Fold<'a> {
    query: &'a Query,
    names: KeyNames<'a>,
    buckets: usize,
    keys: Vec<String>,
    known: HashMap<String, usize>,
    classes: HashMap<VantageClass, usize>,
    /// By key, class and bucket. A plot of a year adds millions of entries.
    sums: HashMap<(usize, usize, usize), Sum, foldhash::fast::RandomState>,
}

/// Slot of a row: the index of its key and of its class of vantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeriesSlot {
    pub(crate) key: usize,
    pub(crate) class: usize,
}

/// Sums of a class of vantages: in all, and by bucket.
type OfClass = (Sum, Vec<(usize, Sum)>);

/// A series: its key and the sum of each bucket.
pub type SeriesSums = (String, Vec<Sum>);

impl<'a> Fold<'a> {
    /// Starts an empty result over `buckets` buckets.
    #[must_use]
    pub fn new(query: &'a Query, names: KeyNames<'a>, buckets: usize) -> Self {
        let (keys, known) = (Vec::new(), HashMap::new());
        let (classes, sums) = (HashMap::new(), HashMap::default());
        Self { query, names, buckets, keys, known, classes, sums }
    }

    /// Slot of a row; `None` if the query excludes it.
    pub fn place(&mut self, row: &SumRow) -> Option<SeriesSlot> {
        let key = self.query.key(row, &self.names)?;
        let key = match self.known.get(&key) {
            Some(at) => *at,
            None => {
                self.keys.push(key.clone());
                self.known.insert(key, self.keys.len() - 1);
                self.keys.len() - 1
            }
        };
        let next = self.classes.len();
        let class = *self.classes.entry(self.query.view.class(row.at())).or_insert(next);
        Some(SeriesSlot { key, class })
    }

    /// Adds a sum to a bucket.
    pub fn add(&mut self, bucket: usize, place: SeriesSlot, sum: Sum) {
        self.sums.entry((place.key, place.class, bucket)).or_default().add(sum);
    }

    /// Returns the series, each with the class of vantages that has the largest sum. Of several
    /// classes with the same traffic, chance makes one the largest and its sum too high, so over
    /// the whole range the first class counts whose sum is not significantly smaller; in a bucket,
    /// another one whose sum is significantly larger.
    #[must_use]
    pub fn series(self) -> Vec<SeriesSums> {
        let mut ranks: Vec<(VantageClass, usize)> = self.classes.into_iter().collect();
        ranks.sort();
        let mut rank = vec![0; ranks.len()];
        ranks.iter().enumerate().for_each(|(at, (_, class))| rank[*class] = at);
        let mut by_key: Vec<BTreeMap<usize, OfClass>> = vec![BTreeMap::new(); self.keys.len()];
        for ((key, class, bucket), sum) in self.sums {
            let (all, buckets) = by_key[key].entry(rank[class]).or_default();
            all.add(sum);
            buckets.push((bucket, sum));
        }
        let beyond = |sigma: f64, more: &Sum, less: &Sum| {
            more.bytes - less.bytes > sigma * (more.variance + less.variance).sqrt()
        };
        let series = |(key, classes): (String, BTreeMap<usize, OfClass>)| {
            let most = classes.values().map(|(all, _)| *all);
            let most = most.reduce(|one, other| if other.bytes > one.bytes { other } else { one });
            let most = most.unwrap_or_default();
            let chosen = classes.iter().find(|(_, (all, _))| !beyond(LESS_SIGMA, &most, all));
            let chosen = chosen.map(|(class, _)| *class);
            let mut sums = vec![Sum::default(); self.buckets];
            if let Some((_, buckets)) = chosen.and_then(|chosen| classes.get(&chosen)) {
                buckets.iter().for_each(|(bucket, sum)| sums[*bucket] = *sum);
            }
            for (class, (_, buckets)) in &classes {
                for (bucket, sum) in buckets {
                    if Some(*class) != chosen && beyond(MORE_SIGMA, sum, &sums[*bucket]) {
                        sums[*bucket] = *sum;
                    }
                }
            }
            (key, sums)
        };
        self.keys.into_iter().zip(by_key).map(series).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(exporter: &str, host: bool, direction: RowDirection) -> RowVantage {
        RowVantage { exporter: exporter.into(), host, direction }
    }

    fn group(at: RowVantage, label: RowLabel) -> SumRow {
        SumRow::Group {
            at,
            input: Some(3),
            output: Some(4),
            vlan: Some(3001),
            inner_vlan: None,
            version: Some(6),
            label,
            source: Some("uvic".into()),
            destination: None,
        }
    }

    fn bytes(bytes: f64) -> Sum {
        Sum::sampled(bytes, 1.0)
    }

    /// Two hosts send 100 and 50, one receives all of it, a switch between them samples 140 and 10.
    fn answer(query: &Query) -> Vec<(String, f64)> {
        let directory = NameDirectory::default();
        let names = KeyNames { registry: Registry::builtin(), directory: &directory };
        let mut fold = Fold::new(query, names, 1);
        let cms = RowLabel::Trusted(3 << 6 | 14);
        for (row, amount) in [
            (group(at("h1", true, RowDirection::Out), cms), 100.0),
            (group(at("h2", true, RowDirection::Out), cms), 50.0),
            (group(at("h3", true, RowDirection::In), cms), 150.0),
            (group(at("s", false, RowDirection::In), cms), 140.0),
            (group(at("s", false, RowDirection::Out), RowLabel::Untrusted), 10.0),
        ] {
            if let Some(place) = fold.place(&row) {
                fold.add(0, place, bytes(amount));
            }
        }
        let mut series: Vec<_> = fold.series().into_iter().map(|s| (s.0, s.1[0].bytes)).collect();
        series.sort_by(|a, b| a.0.cmp(&b.0));
        series
    }

    fn pairs(expected: &[(&str, f64)]) -> Vec<(String, f64)> {
        expected.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    }

    #[test]
    fn traffic_of_several_vantages_counts_once() {
        let owners = |view| answer(&Query { view, ..Query::of(By::Owner) });
        let untrusted = ("untrusted", 10.0);
        let auto = owners(View::Auto);
        let cms = auto[0].0.clone();
        assert_eq!(auto, pairs(&[(&cms, 150.0), untrusted]));
        assert_eq!(owners(View::Max), pairs(&[(&cms, 150.0), untrusted]));
        assert_eq!(owners(View::Sum), pairs(&[(&cms, 440.0), untrusted]));
    }

    #[test]
    fn outer_vlan_filter_takes_inner_ones() {
        let directory = NameDirectory::default();
        let names = KeyNames { registry: Registry::builtin(), directory: &directory };
        let mut row = group(at("s", false, RowDirection::In), RowLabel::Unlabelled);
        let SumRow::Group { inner_vlan, .. } = &mut row else { panic!("a group") };
        *inner_vlan = Some(7);
        let key = |filter: &str| {
            let filters = vec![(By::Vlan, filter.to_owned())];
            Query { filters, ..Query::of(By::Vlan) }.key(&row, &names)
        };
        let found = Some("3001.7".to_owned());
        assert_eq!((key("3001.7"), key("3001")), (found.clone(), found));
        assert_eq!((key("3001.8"), key("7")), (None, None));
    }

    #[test]
    fn filters_and_directions_choose() {
        let filtered = |by: By, key: &str| Query {
            filters: vec![(by, key.to_owned())],
            ..Query::of(By::Vlan)
        };
        assert_eq!(answer(&filtered(By::Scitag, "206")), pairs(&[("3001", 150.0)]));
        assert_eq!(answer(&filtered(By::Exporter, "S")), pairs(&[("3001", 140.0)]));
        assert_eq!(answer(&filtered(By::Site, "elsewhere")), []);
        let out = Query { direction: Some(RowDirection::Out), ..Query::of(By::Interface) };
        assert_eq!(answer(&out)[0], ("h1:4".to_owned(), 100.0));
        let out = out.total();
        assert_eq!(answer(&out), pairs(&[("total", 150.0)]));
        let received = Query { direction: Some(RowDirection::In), ..Query::of(By::Site) };
        assert_eq!(answer(&received), pairs(&[("elsewhere", 150.0)]));
        let seen_in = Query { direction: Some(RowDirection::In), ..Query::of(By::Total) };
        assert_eq!(answer(&seen_in), pairs(&[("total", 150.0)]));
        let wrong = Query { filters: vec![(By::Host, "x".into())], ..Query::of(By::Owner) };
        assert_eq!(wrong.check(), Err(QueryError::Filter("owner", "host")));
    }

    #[test]
    fn equal_vantages_are_not_biased() {
        let directory = NameDirectory::default();
        let names = KeyNames { registry: Registry::builtin(), directory: &directory };
        let query = Query::of(By::Total);
        let mut fold = Fold::new(&query, names, 3);
        let mut add = |exporter: &str, buckets: [f64; 3]| {
            let row = group(at(exporter, false, RowDirection::In), RowLabel::Unlabelled);
            let place = fold.place(&row).unwrap();
            for (bucket, amount) in buckets.into_iter().enumerate() {
                fold.add(bucket, place, Sum::sampled(amount, 100.0));
            }
        };
        // A standard deviation of 10 each: the same traffic, except in the last bucket.
        add("b", [110.0, 95.0, 300.0]);
        add("a", [100.0, 105.0, 100.0]);
        let sums = fold.series().remove(0).1;
        let values: Vec<f64> = sums.iter().map(|sum| sum.bytes).collect();
        // "b" has more in all, and so it counts.
        assert_eq!(values, [110.0, 95.0, 300.0]);
        let mut fold = Fold::new(&query, names, 2);
        for (exporter, buckets) in [("b", [110.0, 95.0]), ("a", [100.0, 105.0])] {
            let row = group(at(exporter, false, RowDirection::In), RowLabel::Unlabelled);
            let place = fold.place(&row).unwrap();
            fold.add(0, place, Sum::sampled(buckets[0], 100.0));
            fold.add(1, place, Sum::sampled(buckets[1], 100.0));
        }
        let sums = fold.series().remove(0).1;
        let values: Vec<f64> = sums.iter().map(|sum| sum.bytes).collect();
        assert_eq!(values, [100.0, 105.0], "the first of two that saw the same");
    }
}
