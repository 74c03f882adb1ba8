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

/// The wall clock and that of an exporter may differ by so much from one interval to the next.
const DRIFT_S_MAX: f64 = 2.0;

/// No interval is shorter, whatever clocks say.
const LENGTH_S_MIN: f64 = 1e-3;

/// What an interface counted in a second, or in the part of it that its intervals have told of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Slice {
    /// How much of the second.
    pub(crate) seconds: f64,
    /// Octets; not a number where they are not counted.
    pub(crate) received: f64,
    /// Likewise.
    pub(crate) sent: f64,
}

impl Slice {
    fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.received += other.received;
        self.sent += other.sent;
    }
}

/// Of a second, exporter and ifIndex.
pub(crate) type Counted = (i64, (u32, u32), Slice);

/// The last seconds.
#[derive(Debug, Default)]
pub(crate) struct Live {
    seconds: VecDeque<Arc<Second>>,
    rows: usize,
    /// By second, exporter and ifIndex.
    counters: BTreeMap<i64, HashMap<(u32, u32), Slice>>,
    counted: usize,
    /// What of it is not stored yet.
    minutes: CountedMinutes,
    /// Until when counters of an interface are known.
    until: HashMap<(u32, u32), f64>,
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
        self.until.retain(|_, until| *until >= oldest as f64);
    }

    /// Spreads octets that an interface counted until `now_s` over the seconds of the interval, to each as much as it has
    /// of it.
    pub(crate) fn count(
        &mut self,
        now_s: f64,
        length_s: f64,
        exporter: u32,
        index: u32,
        octets: (Option<u64>, Option<u64>),
    ) {
        // Of an interval longer than what is kept here nothing could be said of a second.
        if !(0.0..=SECONDS as f64).contains(&length_s) {
            return;
        }
        let interface = (exporter, index);
        // Intervals follow each other without a gap, however clocks differ.
        let reckoned = now_s - length_s;
        let before = self.until.insert(interface, now_s);
        let start = before.filter(|before| (before - reckoned).abs() <= DRIFT_S_MAX);
        let start = start.unwrap_or(reckoned).min(now_s - LENGTH_S_MIN);
        let rate = |octets: Option<u64>| octets.map_or(f64::NAN, |o| o as f64 / (now_s - start));
        let (received, sent) = (rate(octets.0), rate(octets.1));
        let oldest = self.seconds.front().map_or(i64::MIN, |second| second.at_s);
        for at in start.floor() as i64..now_s.ceil() as i64 {
            let seconds = now_s.min(at as f64 + 1.0) - start.max(at as f64);
            let slice = Slice { seconds, received: received * seconds, sent: sent * seconds };
            if at >= oldest {
                let slices = self.counters.entry(at).or_default();
                self.counted -= slices.len();
                slices.entry(interface).or_default().add(slice);
                self.counted += slices.len();
            }
            for (direction, bytes) in
                [(Direction::In, slice.received), (Direction::Out, slice.sent)]
            {
                let key = (start_of(at), exporter, index, direction);
                let room = self.minutes.len() < COUNTED_MINUTES_MAX;
                if !bytes.is_nan() && (room || self.minutes.contains_key(&key)) {
                    let cell = Cell { bytes, error_squared: 0.0, seconds };
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

    /// What interfaces counted from `from` until `to`, by second, exporter and ifIndex.
    pub(crate) fn counters(&self, from: i64, to: i64) -> impl Iterator<Item = Counted> {
        let seconds = self.counters.range(from..to.max(from));
        seconds.flat_map(|(at, slices)| slices.iter().map(|(key, slice)| (*at, *key, *slice)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 octets a second, told in intervals of any length: each second that they cover has all of it.
    #[test]
    fn octets_are_spread_by_time_however_long_intervals_are() {
        for length_s in [0.1, 0.3, 1.0, 1.7, 2.0, 20.0] {
            let mut live = Live::default();
            let mut now_s = 1_000.4;
            while now_s < 1_060.0 {
                now_s += length_s;
                let octets = (Some((length_s * 100.0_f64).round() as u64), None);
                live.count(now_s, length_s, 1, 2, octets);
            }
            let told: Vec<Counted> = live.counters(1_001, 1_060).collect();
            assert_eq!(told.len(), 59, "{length_s}");
            for (at_s, key, slice) in told {
                assert_eq!(key, (1, 2));
                assert!((slice.seconds - 1.0).abs() < 1e-6, "{length_s} at {at_s}: {slice:?}");
                assert!((slice.received - 100.0).abs() < 1e-3, "{length_s} at {at_s}: {slice:?}");
                assert!(slice.sent.is_nan());
            }
            let minutes = live.take_minutes();
            let whole = minutes[&(1_020, 1, 2, Direction::In)];
            assert!(
                (whole.seconds - 60.0).abs() < 21.0
                    && (whole.bytes / whole.seconds - 100.0).abs() < 1e-3
            );
        }
    }
}
