//! The last ten minutes in memory, second by second.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::RandomState;
use penstock_flows::aggregate::{
    FlowGroup, HostDirection, HostKey, PackedGroup, Vantage as Numbered,
};
use penstock_flows::estimate::{IntervalShare, Sum, between, spread};
use penstock_flows::observe::InterfaceDirection as Sampled;
use penstock_flows::packet::IpVersion;
use penstock_flows::rates::Z_SCORE_95;

use crate::directory::NameDirectory;
use crate::minute::start_of;
use crate::query_executor::TimeBuckets;
use crate::row::{RowDirection, RowKind, RowLabel, RowVantage, SumCell, SumRow};
use crate::second::{Second, Strata};

/// Count of seconds in memory.
pub(crate) const LIVE_SECONDS: usize = 600;

/// Most sums in all seconds together; beyond it the oldest seconds are dropped.
pub(crate) const ROWS_MAX: usize = 6_000_000;

/// Most parts of counter intervals, one for each second and interface.
const PARTS_MAX: usize = 2_000_000;

/// Most sums of strata by which intervals are divided; beyond it the oldest seconds are dropped,
/// and their part of an interval is divided evenly.
const STRATA_MAX: usize = 1_000_000;

/// Most intervals that wait for the end of their last second.
const PENDING_MAX: usize = 200_000;

/// Names of sites by their numbers.
pub(crate) type Sites = Arc<[Arc<str>]>;

/// Key of a counter's minute: start, exporter, ifIndex, direction, and true if packets are sampled
/// there.
pub(crate) type CountedMinute = (i64, u32, u32, RowDirection, bool);

/// Counted octets by minute, with the bytes of the samples in the time that they cover.
pub(crate) type CountedMinutes = HashMap<CountedMinute, (SumCell, f64)>;

/// Most counter minutes that wait to be stored.
const COUNTED_MINUTES_MAX: usize = 100_000;

/// Largest drift between the wall clock and an exporter's clock from one interval to the next.
const DRIFT_S_MAX: f64 = 2.0;

/// Shortest interval, for any reading of the clocks.
const LENGTH_S_MIN: f64 = 1e-3;

/// Both directions of an interface, in the order of the arrays here.
const DIRECTIONS: [(RowDirection, Sampled); 2] =
    [(RowDirection::In, Sampled::Ingress), (RowDirection::Out, Sampled::Egress)];

/// Counted octets of an interface in an interval.
#[derive(Debug, Clone)]
pub(crate) struct CountedInterval {
    interface: (u32, u32),
    start_s: f64,
    end_s: f64,
    /// Received and sent; `None` if not counted.
    octets: [Option<u64>; 2],
    sampled: [bool; 2],
    /// Division among seconds, once they are over.
    parts: Box<[IntervalPart]>,
    /// Sum of the variances of the parts.
    variance: [f64; 2],
}

/// Part of an interval in one second, received and sent.
#[derive(Debug, Clone, Copy)]
struct IntervalPart {
    at_s: i64,
    seconds: f64,
    of: [IntervalShare; 2],
    /// Bytes of the samples in it.
    sampled: [f64; 2],
}

/// Counted octets of a bucket, exporter and ifIndex.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedBucket {
    pub(crate) bucket: usize,
    pub(crate) interface: (u32, u32),
    pub(crate) direction: RowDirection,
    pub(crate) sampled: bool,
    pub(crate) cell: SumCell,
    /// Bytes of the samples in the time that it covers.
    pub(crate) sampled_bytes: f64,
}

impl CountedInterval {
    /// Creates an interval of `length_s` that ends at `end_s`.
    pub(crate) fn new(
        interface: (u32, u32),
        end_s: f64,
        length_s: f64,
        octets: [Option<u64>; 2],
        sampled: [bool; 2],
    ) -> Self {
        let start_s = end_s - length_s;
        Self {
            interface,
            start_s,
            end_s,
            octets,
            sampled,
            parts: Box::default(),
            variance: [0.0; 2],
        }
    }

    /// Divides the interval among its seconds by their samples. A second that was not measured gets
    /// its share of the time.
    fn divide(&mut self, second: impl Fn(i64) -> Option<(f64, Arc<Strata>)>) {
        let (first, last) = (self.start_s.floor() as i64, self.end_s.ceil() as i64);
        let overlap = |at: i64| self.end_s.min(at as f64 + 1.0) - self.start_s.max(at as f64);
        let seconds: Vec<_> = (first..last).map(|at| (at, overlap(at), second(at))).collect();
        let mut divided = [Vec::new(), Vec::new()];
        let mut sampled_bytes = vec![[0.0; 2]; seconds.len()];
        for (direction, (_, sampled)) in DIRECTIONS.iter().enumerate() {
            let (exporter, index) = self.interface;
            let samples = |strata: &Strata| {
                let packed = strata.get(&(exporter, index, *sampled));
                packed.map_or_else(Sum::default, |packed| SumCell::from(*packed).sum())
            };
            let of = |(_, overlap, second): &(i64, f64, Option<(f64, Arc<Strata>)>)| {
                let (length_s, strata) = second.as_ref().filter(|(length_s, _)| *length_s > 0.0)?;
                let part = overlap / length_s;
                let Sum { bytes, variance, .. } = samples(strata);
                // As if all of the second had been measured.
                Some(Sum::sampled(bytes * part, variance * part * part.min(1.0)))
            };
            let known: Vec<Option<Sum>> = seconds.iter().map(of).collect();
            let (mut all, mut measured_s) = (0.0, 0.0);
            for (sum, (_, overlap, _)) in known.iter().zip(&seconds) {
                if let Some(sum) = sum {
                    (all, measured_s) = (all + sum.bytes, measured_s + overlap);
                }
            }
            let mean = if measured_s > 0.0 { all / measured_s } else { 0.0 };
            let parts: Vec<(f64, Sum)> = known
                .into_iter()
                .zip(&seconds)
                .map(|(sum, (_, overlap, _))| {
                    let unknown = || Sum::sampled(mean * overlap, 0.0);
                    (*overlap, sum.unwrap_or_else(unknown))
                })
                .collect();
            for (bytes, (_, sum)) in sampled_bytes.iter_mut().zip(&parts) {
                bytes[direction] = sum.bytes;
            }
            divided[direction] = spread(&parts);
            self.variance[direction] = divided[direction].iter().map(|part| part.variance).sum();
        }
        let [received, sent] = divided;
        let parts = seconds.iter().zip(sampled_bytes).zip(received.into_iter().zip(sent));
        self.parts = parts
            .map(|(((at_s, seconds, _), sampled), (received, sent))| IntervalPart {
                at_s: *at_s,
                seconds: *seconds,
                of: [received, sent],
                sampled,
            })
            .collect();
    }

    /// Divides the interval among buckets, each with all of its measured seconds; `measured` is the
    /// measured part of a second.
    fn within<T: PartialEq + Copy>(
        &self,
        bucket: impl Fn(i64) -> Option<T>,
        measured: impl Fn(i64) -> f64,
        mut found: impl FnMut(T, usize, SumCell, f64),
    ) {
        let mut at = 0;
        while at < self.parts.len() {
            let this = bucket(self.parts[at].at_s);
            let (mut share, mut variance, mut seconds) = ([0.0; 2], [0.0; 2], 0.0);
            let mut sampled = [0.0; 2];
            while let Some(part) = self.parts.get(at).filter(|part| bucket(part.at_s) == this) {
                let weight = measured(part.at_s);
                seconds += part.seconds * weight;
                for (direction, of) in part.of.iter().enumerate() {
                    share[direction] += of.share * weight;
                    variance[direction] += of.variance * weight;
                    sampled[direction] += part.sampled[direction] * weight;
                }
                at += 1;
            }
            let Some(this) = this.filter(|_| seconds > 0.0) else { continue };
            for direction in 0..2 {
                let Some(octets) = self.octets[direction] else { continue };
                let (share, variance) = (share[direction], variance[direction]);
                let (bytes, variance) =
                    between(octets as f64, share, variance, self.variance[direction]);
                let error_squared = Z_SCORE_95 * Z_SCORE_95 * variance;
                let cell = SumCell { bytes, error_squared, seconds };
                found(this, direction, cell, sampled[direction]);
            }
        }
    }
}

/// The last ten minutes, with the counters of interfaces.
#[derive(Debug, Default)]
pub(crate) struct LiveSeconds {
    seconds: VecDeque<Arc<Second>>,
    rows: usize,
    /// By exporter and ifIndex, oldest first.
    intervals: HashMap<(u32, u32), VecDeque<CountedInterval>>,
    parts: usize,
    /// Intervals whose last second is not over.
    pending: Vec<CountedInterval>,
    /// Counter minutes that are not stored yet.
    minutes: CountedMinutes,
    /// End of the last interval of each interface.
    until: HashMap<(u32, u32), f64>,
    /// Sums of the strata of the newest seconds, by number of the second.
    strata: VecDeque<(u64, Arc<Strata>)>,
    strata_rows: usize,
    /// Weight of one sample in the last second with samples, in bytes.
    unit: f64,
}

impl LiveSeconds {
    /// Appends a second and the sums of its strata.
    pub(crate) fn push(&mut self, second: Arc<Second>, strata: Strata) {
        self.rows += second.rows();
        let mut all = Sum::default();
        strata.values().for_each(|packed| all.add(SumCell::from(*packed).sum()));
        self.strata_rows += strata.len();
        self.strata.push_back((second.number, Arc::new(strata)));
        while self.strata.len() > LIVE_SECONDS || self.strata_rows > STRATA_MAX {
            let Some((_, gone)) = self.strata.pop_front() else { break };
            self.strata_rows -= gone.len();
        }
        if all.bytes > 0.0 {
            self.unit = all.unit();
        }
        self.seconds.push_back(second);
        while self.seconds.len() > LIVE_SECONDS || (self.rows > ROWS_MAX && self.seconds.len() > 1)
        {
            let Some(gone) = self.seconds.pop_front() else { break };
            self.rows -= gone.rows();
        }
        self.divide_pending();
        let Some(oldest) = self.seconds.iter().map(|second| second.at_s).min() else { return };
        self.drop_before(oldest as f64);
        // Beyond the limit the older half is dropped.
        if self.parts > PARTS_MAX {
            let newest = self.seconds.back().map_or(oldest, |second| second.at_s);
            self.drop_before((oldest + (newest - oldest) / 2) as f64);
        }
    }

    fn drop_before(&mut self, oldest_s: f64) {
        let parts = &mut self.parts;
        self.intervals.retain(|_, intervals| {
            while intervals.front().is_some_and(|first| first.end_s < oldest_s) {
                *parts -= intervals.pop_front().map_or(0, |gone| gone.parts.len());
            }
            !intervals.is_empty()
        });
        self.until.retain(|_, until| *until >= oldest_s);
    }

    /// The second with this wall-clock time; the last one of several.
    fn second_at(&self, at_s: i64) -> Option<Arc<Second>> {
        let newest = self.seconds.back()?.at_s;
        let near = usize::try_from(newest - at_s).ok()?;
        let guess = self.seconds.len().checked_sub(near + 1).and_then(|at| self.seconds.get(at));
        let found = match guess {
            Some(second) if second.at_s == at_s => Some(second),
            _ => self.seconds.iter().rev().find(|second| second.at_s == at_s),
        };
        found.cloned()
    }

    /// Sums of the strata of a second, if still in memory.
    fn strata_of(&self, number: u64) -> Option<Arc<Strata>> {
        let at = self.strata.partition_point(|(other, _)| *other < number);
        let found = self.strata.get(at).filter(|(other, _)| *other == number);
        found.map(|(_, strata)| Arc::clone(strata))
    }

    /// Drops pending intervals, because the wall clock was set and their seconds are ambiguous.
    pub(crate) fn clock_was_set(&mut self) {
        self.pending.clear();
        self.until.clear();
    }

    /// Queues a counter interval.
    pub(crate) fn count(&mut self, mut counted: CountedInterval) {
        let length_s = counted.end_s - counted.start_s;
        // Longer intervals than the memory cannot be divided.
        if !(0.0..=LIVE_SECONDS as f64).contains(&length_s) || self.pending.len() >= PENDING_MAX {
            return;
        }
        // Intervals of an interface are contiguous, despite drift of the clocks.
        let before = self.until.insert(counted.interface, counted.end_s);
        let start = before.filter(|before| (before - counted.start_s).abs() <= DRIFT_S_MAX);
        counted.start_s = start.unwrap_or(counted.start_s).min(counted.end_s - LENGTH_S_MIN);
        self.pending.push(counted);
    }

    /// Divides the intervals whose last second is over.
    fn divide_pending(&mut self) {
        let Some(newest) = self.seconds.back().map(|second| second.at_s) else { return };
        let over = |counted: &CountedInterval| counted.end_s <= newest as f64 + 1.0;
        let (over, pending) = std::mem::take(&mut self.pending).into_iter().partition(over);
        self.pending = pending;
        let over: Vec<CountedInterval> = over;
        for mut counted in over {
            counted.divide(|at_s| {
                let second = self.second_at(at_s)?;
                Some((second.length_s, self.strata_of(second.number)?))
            });
            let measured: HashMap<i64, f64> =
                counted.parts.iter().map(|part| (part.at_s, self.measured(part.at_s))).collect();
            let mut minutes = std::mem::take(&mut self.minutes);
            let of = |at_s: i64| measured.get(&at_s).copied().unwrap_or(0.0);
            counted.within(
                |at_s| Some(start_of(at_s)),
                of,
                |minute, direction, cell, sampled_bytes| {
                    let (exporter, index) = counted.interface;
                    let (word, _) = DIRECTIONS[direction];
                    let key = (minute, exporter, index, word, counted.sampled[direction]);
                    if minutes.len() < COUNTED_MINUTES_MAX || minutes.contains_key(&key) {
                        let entry = minutes.entry(key).or_default();
                        entry.0.add(cell);
                        entry.1 += sampled_bytes;
                    }
                },
            );
            self.minutes = minutes;
            self.parts += counted.parts.len();
            self.intervals.entry(counted.interface).or_default().push_back(counted);
        }
    }

    /// Measured part of a second, 0 to 1.
    fn measured(&self, at_s: i64) -> f64 {
        self.second_at(at_s).map_or(0.0, |second| second.length_s / second.span_s.max(1e-9))
    }

    /// Returns the counter minutes since the last call.
    pub(crate) fn take_minutes(&mut self) -> CountedMinutes {
        std::mem::take(&mut self.minutes)
    }

    /// Marks seconds without datagrams, by their numbers, as measured or not. Returns the start of
    /// each with the change of its measured seconds.
    pub(crate) fn correct_measured(
        &mut self,
        numbers: Range<u64>,
        measured: bool,
    ) -> Vec<(i64, f64)> {
        let mut settled = Vec::new();
        for second in self.seconds.iter_mut().rev() {
            if second.number < numbers.start {
                break;
            }
            let length_s = if measured { second.span_s } else { 0.0 };
            let silent = second.samples == 0 && second.rows() == 0 && second.length_s != length_s;
            if !numbers.contains(&second.number) || !silent {
                continue;
            }
            let after = Arc::new(second.silent(measured));
            settled.push((second.at_s, after.length_s - second.length_s));
            *second = after;
        }
        settled
    }

    /// Iterates over the seconds, oldest first.
    pub(crate) fn seconds(&self) -> impl DoubleEndedIterator<Item = &Arc<Second>> {
        self.seconds.iter()
    }

    /// Newest second in memory.
    #[must_use]
    pub(crate) fn newest(&self) -> Option<&Arc<Second>> {
        self.seconds.back()
    }

    /// Count of sums in memory.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Weight of one sample in the last second with samples, in bytes; 0 before the first.
    pub(crate) fn unit(&self) -> f64 {
        self.unit
    }

    /// End of the newest second that was measured.
    pub(crate) fn measured_until_s(&self) -> Option<i64> {
        let newest = self.seconds.iter().rev().find(|second| second.length_s > 0.0);
        newest.map(|second| second.at_s + 1)
    }

    /// Counted octets by bucket.
    pub(crate) fn counted(&self, span: TimeBuckets) -> Vec<CountedBucket> {
        self.counted_from(span, span.start_s)
    }

    /// As [`Self::counted`], of seconds from `since_s` on.
    pub(crate) fn counted_from(&self, span: TimeBuckets, since_s: i64) -> Vec<CountedBucket> {
        let (from_s, to_s) = (span.start_s as f64, span.end_s() as f64);
        let measured: HashMap<i64, f64, RandomState> = self
            .seconds
            .iter()
            .filter(|second| second.at_s >= since_s && span.bucket(second.at_s).is_some())
            .map(|second| (second.at_s, second.length_s / second.span_s.max(1e-9)))
            .collect();
        let mut all = Vec::new();
        for intervals in self.intervals.values() {
            for counted in intervals {
                if counted.end_s <= from_s || counted.start_s >= to_s {
                    continue;
                }
                let of = |at_s: i64| measured.get(&at_s).copied().unwrap_or(0.0);
                counted.within(
                    |at_s| span.bucket(at_s),
                    of,
                    |bucket, direction, cell, sampled_bytes| {
                        let (word, _) = DIRECTIONS[direction];
                        all.push(CountedBucket {
                            bucket,
                            interface: counted.interface,
                            direction: word,
                            sampled: counted.sampled[direction],
                            cell,
                            sampled_bytes,
                        });
                    },
                );
            }
        }
        all
    }
}

/// Maps numbers of exporters and sites to names.
#[derive(Debug)]
pub(crate) struct Namer<'a> {
    directory: &'a NameDirectory,
    sites: &'a [Arc<str>],
    unknown: Arc<str>,
}

impl<'a> Namer<'a> {
    /// Creates a map with these names.
    #[must_use]
    pub(crate) fn new(directory: &'a NameDirectory, sites: &'a [Arc<str>]) -> Self {
        Self { directory, sites, unknown: "unknown".into() }
    }

    fn at(&self, numbered: Numbered) -> RowVantage {
        self.vantage(numbered.exporter, numbered.direction.into())
    }

    fn vantage(&self, exporter: u32, direction: RowDirection) -> RowVantage {
        match self.directory.get(exporter) {
            Some(entry) => {
                RowVantage { exporter: Arc::clone(&entry.key), host: entry.host, direction }
            }
            None => RowVantage { exporter: Arc::clone(&self.unknown), host: false, direction },
        }
    }

    /// Names the parts of a group.
    #[must_use]
    pub(crate) fn group(&self, packed: &PackedGroup) -> SumRow {
        let group = FlowGroup::from(packed);
        let site = |number: Option<u16>| self.sites.get(usize::from(number?)).map(Arc::clone);
        SumRow::Group {
            at: self.at(group.vantage),
            input: group.input.index(),
            output: group.output.index(),
            vlan: group.vlan,
            inner_vlan: group.inner_vlan,
            version: group.version.map(|version| match version {
                IpVersion::V4 => 4,
                IpVersion::V6 => 6,
            }),
            label: match group.label {
                penstock_flows::aggregate::ScitagLabel::Unlabelled => RowLabel::Unlabelled,
                penstock_flows::aggregate::ScitagLabel::Untrusted(_) => RowLabel::Untrusted,
                penstock_flows::aggregate::ScitagLabel::Trusted(tag) => {
                    u16::try_from(tag.number()).map_or(RowLabel::Untrusted, RowLabel::Trusted)
                }
            },
            source: site(group.source_site),
            destination: site(group.destination_site),
        }
    }

    /// Names the remaining groups of a stratum.
    #[must_use]
    pub(crate) fn remainder(&self, packed: &PackedGroup) -> SumRow {
        let mut row = self.group(packed);
        if let SumRow::Group { label, .. } = &mut row {
            *label = RowLabel::Other;
        }
        row
    }

    /// Names the parts of a host key.
    #[must_use]
    pub(crate) fn host(&self, seen: &HostKey, address: bool) -> SumRow {
        let prefix = seen.address.prefix(seen.bits);
        SumRow::Host {
            at: self.at(seen.vantage),
            address: address.then(|| seen.address.ip().to_string().into()),
            prefix: Some(format!("{}/{}", prefix.ip(), seen.bits).into()),
            sent: seen.direction == HostDirection::Sent,
        }
    }

    /// Names the parts of a pair of autonomous systems.
    #[must_use]
    pub(crate) fn system(&self, key: &crate::second::AsPairKey) -> SumRow {
        SumRow::System { at: self.at(key.0), source: key.1, destination: key.2 }
    }

    /// Names the counter of an interface.
    #[must_use]
    pub(crate) fn counter(
        &self,
        exporter: u32,
        index: u32,
        direction: RowDirection,
        sampled: bool,
    ) -> SumRow {
        SumRow::Counter { at: self.vantage(exporter, direction), index, unsampled: !sampled }
    }

    /// Names the samples in the time that a counter covers.
    pub(crate) fn counter_samples(
        &self,
        exporter: u32,
        index: u32,
        direction: RowDirection,
    ) -> SumRow {
        SumRow::CounterSamples { at: self.vantage(exporter, direction), index }
    }
}

/// Row for the sum of keys beyond the limit; `None` for counters.
#[must_use]
pub(crate) fn other(kind: RowKind) -> Option<SumRow> {
    let at = RowVantage { exporter: "".into(), host: false, direction: RowDirection::Unknown };
    match kind {
        RowKind::Group => Some(SumRow::Group {
            at,
            input: None,
            output: None,
            vlan: None,
            inner_vlan: None,
            version: None,
            label: RowLabel::Other,
            source: None,
            destination: None,
        }),
        RowKind::Host => Some(SumRow::Host { at, address: None, prefix: None, sent: true }),
        RowKind::System => Some(SumRow::System { at, source: None, destination: None }),
        RowKind::Counter => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(at_s: i64, bytes: f64, variance: f64) -> (Arc<Second>, Strata) {
        let span = crate::timeline::TimelineSecond {
            number: at_s as u64,
            at_s,
            start: std::time::Duration::ZERO,
            end: std::time::Duration::from_secs(1),
        };
        let intake = penstock_flows::aggregate::AggregateLimits::default();
        let mut sums = penstock_flows::aggregate::Aggregator::new(intake, Default::default(), 1);
        let second = Second::new(span, 1.0, &sums.take());
        let cell =
            SumCell { bytes, error_squared: variance * Z_SCORE_95 * Z_SCORE_95, seconds: 0.0 };
        let strata = [((1, 2, Sampled::Ingress), (&cell).into())].into_iter().collect();
        (Arc::new(second), strata)
    }

    fn interval(end_s: f64, length_s: f64, octets: u64) -> CountedInterval {
        CountedInterval::new((1, 2), end_s, length_s, [Some(octets), None], [true; 2])
    }

    /// 100 octets a second, reported in intervals of any length: each covered second has all of it.
    #[test]
    fn octets_are_spread_over_seconds() {
        for length_s in [0.1, 0.3, 1.0, 1.7, 2.0, 20.0] {
            let mut live = LiveSeconds::default();
            let (mut now_s, mut pushed) = (1_000.4, 990);
            while now_s < 1_081.0 {
                now_s += length_s;
                live.count(interval(now_s, length_s, (length_s * 100.0_f64).round() as u64));
                while (pushed as f64) < now_s {
                    let (second, strata) = second(pushed, 0.0, 0.0);
                    live.push(second, strata);
                    pushed += 1;
                }
            }
            let counted = live.counted(TimeBuckets { start_s: 1_001, step_s: 1, buckets: 59 });
            let mut by_second = [(0.0, 0.0); 59];
            for CountedBucket { bucket, interface, direction, cell, .. } in counted {
                assert_eq!((interface, direction), ((1, 2), RowDirection::In));
                by_second[bucket].0 += cell.seconds;
                by_second[bucket].1 += cell.bytes;
            }
            for (seconds, bytes) in by_second {
                assert!((seconds - 1.0).abs() < 1e-6, "{length_s}: {seconds}");
                assert!((bytes - 100.0).abs() < 1e-3, "{length_s}: {bytes}");
            }
            let minutes = live.take_minutes();
            let (whole, _) = minutes[&(1_020, 1, 2, RowDirection::In, true)];
            assert!(
                (whole.seconds - 60.0).abs() < 21.0
                    && (whole.bytes / whole.seconds - 100.0).abs() < 1e-3
            );
        }
    }

    #[test]
    fn octets_within_interval_follow_samples() {
        let mut live = LiveSeconds::default();
        live.count(interval(1_010.0, 10.0, 1_000_000));
        // Ten times as much in the last second as in the others; one sample weighs 100 bytes.
        (1_000..1_010).for_each(|at_s| {
            let bytes = if at_s == 1_009 { 100_000.0 } else { 10_000.0 };
            let (second, strata) = second(at_s, bytes, 100.0 * bytes);
            live.push(second, strata);
        });
        let of = |start_s, step_s| {
            let counted = live.counted(TimeBuckets { start_s, step_s, buckets: 1 });
            assert_eq!(counted.len(), 1);
            counted[0].cell
        };
        let whole = of(1_000, 10);
        assert_eq!((whole.bytes, whole.error_squared, whole.seconds), (1e6, 0.0, 10.0));
        let (slow, fast) = (of(1_000, 1), of(1_009, 1));
        assert!((slow.bytes / 52_632.0 - 1.0).abs() < 0.02, "{slow:?}");
        assert!((fast.bytes / 526_316.0 - 1.0).abs() < 0.02, "{fast:?}");
        // A hundred samples: 20 %.
        let error = slow.error_squared.sqrt() / slow.bytes;
        assert!((0.15..0.22).contains(&error), "{error}");
    }

    #[test]
    fn unmeasured_seconds_are_left_out() {
        let mut live = LiveSeconds::default();
        live.count(interval(1_010.0, 10.0, 1_000));
        for at_s in 1_000..1_010 {
            let (second, strata) = second(at_s, 0.0, 0.0);
            live.push(second, strata);
        }
        assert_eq!(
            live.correct_measured(1_003..1_006, false),
            [(1_005, -1.0), (1_004, -1.0), (1_003, -1.0)]
        );
        let counted = live.counted(TimeBuckets { start_s: 1_000, step_s: 10, buckets: 1 });
        assert!(
            (counted[0].cell.seconds - 7.0).abs() < 1e-9
                && (counted[0].cell.bytes - 700.0).abs() < 1e-6
        );
        assert_eq!(live.correct_measured(1_003..1_004, true), [(1_003, 1.0)]);
    }
}
