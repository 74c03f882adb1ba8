//! The last ten minutes, second by second, in memory.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use penstock_flows::aggregate::{Group, PackedGroup, Seen, Vantage as Numbered, Way};
use penstock_flows::packet::Version;

use crate::directory::Directory;
use crate::minute::start_of;
use crate::row::{Cell, Direction, Kind, Label, Row, Vantage};
use crate::second::Second;

/// Seconds kept.
pub(crate) const SECONDS: usize = 600;

/// Sums kept in all seconds together; beyond it the oldest seconds leave early.
pub(crate) const ROWS_MAX: usize = 6_000_000;

/// Counted octets of interfaces kept, one for each second, interface and direction.
const COUNTERS_MAX: usize = 2_000_000;

/// Names of sites by their numbers.
pub(crate) type Sites = Arc<[Arc<str>]>;

/// Counted octets by minute, exporter, ifIndex and direction.
pub(crate) type CountedMinutes = HashMap<(i64, u32, u32, Direction), Cell>;

/// Most of them that wait to be stored.
const COUNTED_MINUTES_MAX: usize = 100_000;

/// The last seconds.
#[derive(Debug, Default)]
pub(crate) struct Live {
    seconds: VecDeque<Arc<Second>>,
    rows: usize,
    /// By second: exporter, ifIndex, received and sent octets.
    counters: BTreeMap<i64, Vec<(u32, u32, f64, f64)>>,
    counted: usize,
    /// What of it is not stored yet.
    minutes: CountedMinutes,
    /// Until when counters of an interface are known.
    until: HashMap<(u32, u32), i64>,
}

impl Live {
    /// Takes a second.
    pub(crate) fn push(&mut self, second: Arc<Second>) {
        self.rows += second.rows();
        self.seconds.push_back(second);
        while self.seconds.len() > SECONDS || (self.rows > ROWS_MAX && self.seconds.len() > 1) {
            let Some(gone) = self.seconds.pop_front() else { break };
            self.rows -= gone.rows();
        }
        let Some(oldest) = self.seconds.iter().map(|second| second.at_s).min() else { return };
        while self.counters.first_key_value().is_some_and(|(at, _)| *at < oldest)
            || self.counted > COUNTERS_MAX
        {
            let Some((_, gone)) = self.counters.pop_first() else { break };
            self.counted -= gone.len();
        }
        self.until.retain(|_, until| *until >= oldest);
    }

    /// Spreads octets that an interface counted until `now_s` over the seconds of the interval.
    pub(crate) fn count(
        &mut self,
        now_s: i64,
        length_s: f64,
        exporter: u32,
        index: u32,
        octets: (Option<u64>, Option<u64>),
    ) {
        let reckoned = now_s - (length_s.round() as i64).max(1);
        let before = self.until.get(&(exporter, index)).copied();
        // Intervals follow each other without a gap, however their ends are rounded.
        let start = before.filter(|before| (before - reckoned).abs() <= 2).unwrap_or(reckoned);
        let start = start.min(now_s - 1);
        let seconds = now_s - start;
        self.until.insert((exporter, index), now_s);
        let each = |octets: Option<u64>| octets.map_or(f64::NAN, |o| o as f64 / seconds as f64);
        let oldest = self.seconds.front().map_or(now_s, |second| second.at_s);
        for at in start.max(oldest)..now_s {
            let cells = self.counters.entry(at).or_default();
            cells.push((exporter, index, each(octets.0), each(octets.1)));
            self.counted += 1;
        }
        for at in start..now_s {
            for (direction, octets) in [(Direction::In, octets.0), (Direction::Out, octets.1)] {
                let key = (start_of(at), exporter, index, direction);
                let room = self.minutes.len() < COUNTED_MINUTES_MAX;
                if octets.is_some() && (room || self.minutes.contains_key(&key)) {
                    let cell = Cell { bytes: each(octets), error_squared: 0.0, seconds: 1.0 };
                    self.minutes.entry(key).or_default().add(cell);
                }
            }
        }
    }

    /// What interfaces counted since the last time, by minute.
    pub(crate) fn take_minutes(&mut self) -> CountedMinutes {
        std::mem::take(&mut self.minutes)
    }

    /// The seconds, oldest first.
    pub(crate) fn seconds(&self) -> impl DoubleEndedIterator<Item = &Arc<Second>> {
        self.seconds.iter()
    }

    /// The newest second.
    #[must_use]
    pub(crate) fn newest(&self) -> Option<&Arc<Second>> {
        self.seconds.back()
    }

    /// Sums that are kept.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// What interfaces counted from `from` until `to`, by second.
    pub(crate) fn counters(
        &self,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = (i64, &(u32, u32, f64, f64))> {
        self.counters
            .range(from..to.max(from))
            .flat_map(|(at, cells)| cells.iter().map(|cell| (*at, cell)))
    }
}

/// Puts names in the place of numbers.
#[derive(Debug)]
pub(crate) struct Namer<'a> {
    directory: &'a Directory,
    sites: &'a [Arc<str>],
    unknown: Arc<str>,
}

impl<'a> Namer<'a> {
    /// With these names.
    #[must_use]
    pub(crate) fn new(directory: &'a Directory, sites: &'a [Arc<str>]) -> Self {
        Self { directory, sites, unknown: "unknown".into() }
    }

    fn at(&self, numbered: Numbered) -> Vantage {
        self.vantage(numbered.exporter, numbered.direction.into())
    }

    fn vantage(&self, exporter: u32, direction: Direction) -> Vantage {
        match self.directory.get(exporter) {
            Some(entry) => {
                Vantage { exporter: Arc::clone(&entry.key), host: entry.host, direction }
            }
            None => Vantage { exporter: Arc::clone(&self.unknown), host: false, direction },
        }
    }

    /// Of a group.
    #[must_use]
    pub(crate) fn group(&self, packed: &PackedGroup) -> Row {
        let group = Group::from(packed);
        let site = |number: Option<u16>| self.sites.get(usize::from(number?)).map(Arc::clone);
        Row::Group {
            at: self.at(group.vantage),
            input: group.input.index(),
            output: group.output.index(),
            vlan: group.vlan,
            version: group.version.map(|version| match version {
                Version::V4 => 4,
                Version::V6 => 6,
            }),
            label: match group.label {
                penstock_flows::aggregate::Label::Unlabelled => Label::Unlabelled,
                penstock_flows::aggregate::Label::Untrusted(_) => Label::Untrusted,
                penstock_flows::aggregate::Label::Trusted(tag) => {
                    u16::try_from(tag.number()).map_or(Label::Untrusted, Label::Trusted)
                }
            },
            source: site(group.source_site),
            destination: site(group.destination_site),
        }
    }

    /// Of a host.
    #[must_use]
    pub(crate) fn host(&self, seen: &Seen, address: bool) -> Row {
        let prefix = seen.address.prefix(seen.bits);
        Row::Host {
            at: self.at(seen.vantage),
            address: address.then(|| seen.address.ip().to_string().into()),
            prefix: Some(format!("{}/{}", prefix.ip(), seen.bits).into()),
            sent: seen.way == Way::Sent,
        }
    }

    /// Of a pair of systems.
    #[must_use]
    pub(crate) fn system(&self, key: &crate::second::Systems) -> Row {
        Row::System { at: self.at(key.0), source: key.1, destination: key.2 }
    }

    /// Of an interface's counter.
    #[must_use]
    pub(crate) fn counter(&self, exporter: u32, index: u32, direction: Direction) -> Row {
        Row::Counter { at: self.vantage(exporter, direction), index }
    }
}

/// Of what found no place.
#[must_use]
pub(crate) fn other(kind: Kind) -> Option<Row> {
    let at = Vantage { exporter: "".into(), host: false, direction: Direction::Unknown };
    match kind {
        Kind::Group => Some(Row::Group {
            at,
            input: None,
            output: None,
            vlan: None,
            version: None,
            label: Label::Other,
            source: None,
            destination: None,
        }),
        Kind::Host => Some(Row::Host { at, address: None, prefix: None, sent: true }),
        Kind::System => Some(Row::System { at, source: None, destination: None }),
        Kind::Counter => None,
    }
}
