//! Shards of the intake: each thread decodes and sums the datagrams of its exporters.
//!
//! A thread locks its own shard for the datagrams of one system call. Others lock it for moments:
//! the thread that closes a second takes the sums, the API reads exporters. No two receiving
//! threads lock the same shard.
//!
//! Datagrams that the kernel did not steer and fireflies, which every shard needs, wait in the
//! inboxes of the shards that take them. The owner empties its inbox before the
//! datagrams of each system call, and the thread that closes a second before it takes the sums.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_flows::exporter::Exporter;
use penstock_flows::intake::{Intake, Sink};
use penstock_flows::interface::CounterInterval;
use penstock_flows::observe::Observation;
use penstock_flows::scitag::ScitagVerdict;
use penstock_flows::sequence::Arrival;
use penstock_flows::sflow::{CounterRecord, Source};
use penstock_flows::shard::{exporter_address, shard_of};
use penstock_scitags::firefly::ReceivedFirefly;

use crate::archive::{Recorder, SampleRecord};
use crate::arrivals::ShardArrivals;
use crate::directory::ReportedName;
use crate::live::CountedInterval;
use crate::receive::InputFormat;
use crate::shared::Shared;
use crate::timeline::ClockTimeline;

/// Most datagrams and fireflies in an inbox, and most bytes of the datagrams.
const INBOX_ENTRIES_MAX: usize = 16_384;
const INBOX_BYTES_MAX: usize = 32 << 20;

/// Most counter intervals of a shard that wait for the end of the second; then they are passed on
/// at once.
const INTERVALS_MAX: usize = 65_536;

/// Most names of a shard that wait for the end of the second; exporters repeat them.
const NAMES_MAX: usize = 65_536;

/// A datagram with the time in which the kernel received it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedDatagram<'a> {
    pub(crate) format: InputFormat,
    pub(crate) at: Duration,
    pub(crate) from: SocketAddr,
    pub(crate) bytes: &'a [u8],
}

/// Input for another shard.
#[derive(Debug)]
enum InboxEntry {
    Datagram { format: InputFormat, at: Duration, from: SocketAddr, bytes: Box<[u8]> },
    Firefly { at: Duration, sender: IpAddr, firefly: Arc<ReceivedFirefly> },
}

/// Queue of input from other threads.
#[derive(Debug, Default)]
struct ShardInbox {
    entries: Vec<InboxEntry>,
    /// Bytes of the datagrams.
    bytes: usize,
}

/// Outcome of a datagram at the shard that received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatagramOutcome {
    /// Counted, or handed over.
    Accepted,
    /// Malformed or not trusted.
    Refused,
    /// For another shard, whose inbox is full.
    Dropped,
}

/// Intake of one thread. Aligned, so that no two threads write to the same cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shard {
    number: usize,
    state: Mutex<ShardState>,
    inbox: Mutex<ShardInbox>,
    /// True if the inbox has entries.
    is_waiting: AtomicBool,
    /// Datagrams that other threads handed over.
    pub(crate) handed_over: AtomicU64,
    /// Datagrams and fireflies that found the inbox full.
    pub(crate) inbox_drops: AtomicU64,
}

/// State of a shard.
#[derive(Debug)]
pub(crate) struct ShardState {
    /// Decoder and sums of the current second.
    pub(crate) intake: Intake,
    /// The oldest second that is open.
    pub(crate) open_from: u64,
    /// Copy of the seconds of the wall clock, and its version.
    line: (u64, ClockTimeline),
    /// Results besides the sums.
    pub(crate) output: ShardOutput,
}

/// Results of a shard besides the sums.
#[derive(Debug, Default)]
pub(crate) struct ShardOutput {
    /// Datagrams by second, since they were last collected.
    pub(crate) arrivals: ShardArrivals,
    /// Counter intervals that ended in open seconds.
    pub(crate) intervals: Vec<CountedInterval>,
    /// Recorder of raw samples, while the thread runs.
    pub(crate) recorder: Option<Recorder>,
    /// Names that exporters reported in open seconds.
    pub(crate) names: Vec<ReportedName>,
}

impl Shard {
    pub(crate) fn new(number: usize, intake: Intake, line: ClockTimeline) -> Self {
        let output = ShardOutput::default();
        Self {
            number,
            state: Mutex::new(ShardState { intake, open_from: 1, line: (0, line), output }),
            inbox: Mutex::default(),
            is_waiting: AtomicBool::new(false),
            handed_over: AtomicU64::new(0),
            inbox_drops: AtomicU64::new(0),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ShardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an entry into the inbox; returns false if it is full.
    fn hand_over(&self, entry: InboxEntry) -> bool {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match &entry {
            InboxEntry::Datagram { bytes, .. } => bytes.len(),
            InboxEntry::Firefly { .. } => 0,
        };
        if inbox.entries.len() >= INBOX_ENTRIES_MAX || inbox.bytes + bytes > INBOX_BYTES_MAX {
            self.inbox_drops.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        inbox.bytes += bytes;
        inbox.entries.push(entry);
        self.is_waiting.store(true, Ordering::Release);
        true
    }

    /// Processes the entries of the inbox.
    pub(crate) fn empty_inbox(&self, shared: &Shared, state: &mut ShardState) {
        if !self.is_waiting.load(Ordering::Acquire) {
            return;
        }
        let entries = {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            self.is_waiting.store(false, Ordering::Relaxed);
            std::mem::take(&mut *inbox).entries
        };
        state.update_timeline(shared);
        for entry in entries {
            match entry {
                InboxEntry::Datagram { format, at, from, bytes } => {
                    let datagram = TimedDatagram { format, at, from, bytes: &bytes };
                    // A datagram of the wrong format is counted by the intake.
                    state.process(shared, self.number, datagram);
                }
                InboxEntry::Firefly { at, sender, firefly } => {
                    // The shard that received it trusts it.
                    let _ = state.intake.trust.receive_firefly(at, sender, &firefly);
                }
            }
        }
    }

    /// Processes a datagram that this thread received, or hands it over to the shard of its
    /// exporter.
    #[inline]
    pub(crate) fn receive(
        &self,
        shared: &Shared,
        state: &mut ShardState,
        datagram: TimedDatagram<'_>,
    ) -> DatagramOutcome {
        let TimedDatagram { format, at, from, bytes } = datagram;
        let owner = format
            .steering()
            .and_then(|kind| exporter_address(kind, from.ip(), bytes))
            .map_or(self.number, |address| shard_of(address, shared.shards.len()));
        if owner != self.number {
            let bytes = bytes.into();
            let entry = InboxEntry::Datagram { format, at, from, bytes };
            return match shared.shards[owner].hand_over(entry) {
                true => DatagramOutcome::Accepted,
                false => DatagramOutcome::Dropped,
            };
        }
        match state.process(shared, self.number, datagram) {
            true => DatagramOutcome::Accepted,
            false => DatagramOutcome::Refused,
        }
    }
}

impl ShardState {
    /// Updates the copy of the seconds after a step of the wall clock.
    pub(crate) fn update_timeline(&mut self, shared: &Shared) {
        let version = shared.timeline_version.load(Ordering::Acquire);
        if version != self.line.0 {
            self.line = (version, shared.timeline());
        }
    }

    /// Records datagrams that were dropped between two times.
    pub(crate) fn note_drops(&mut self, from: Duration, to: Duration, dropped: u32) {
        self.output.arrivals.note_drops(&self.line.1, from, to, dropped);
    }

    /// Decodes and sums a datagram; returns false if it is refused.
    #[inline]
    fn process(&mut self, shared: &Shared, shard: usize, datagram: TimedDatagram<'_>) -> bool {
        let TimedDatagram { format, at, from, bytes } = datagram;
        let Self { intake, open_from, line: (_, line), output } = self;
        let mut number = line.number(at);
        if number < *open_from {
            shared.late_datagrams.fetch_add(1, Ordering::Relaxed);
            number = *open_from;
        }
        intake.aggregator.select(number);
        let wall_s = line.wall_s(at);
        let mut sink = IntakeSink { shared, shard, at, number, wall_s, from, output };
        match format {
            InputFormat::Sflow => intake.sflow(at, from, bytes, &mut sink).is_ok(),
            InputFormat::Ipfix => intake.export(at, from, bytes, &mut sink).is_ok(),
            InputFormat::Fireflies => intake.firefly(at, from, bytes, &mut sink).is_ok(),
        }
    }
}

/// Receives the events of the intake: names, counters and samples.
struct IntakeSink<'a> {
    shared: &'a Shared,
    shard: usize,
    /// Time in which the datagram was received, its second, and the same by the wall clock.
    at: Duration,
    number: u64,
    wall_s: f64,
    from: SocketAddr,
    output: &'a mut ShardOutput,
}

impl IntakeSink<'_> {
    fn record(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        let time_us = (self.wall_s * 1e6) as i64;
        if let Some(recorder) = &mut self.output.recorder {
            recorder.put(SampleRecord::new(time_us, exporter, seen, verdict));
        }
    }

    fn name(&mut self, exporter: &Exporter, interface: Option<u32>, name: String) {
        if self.output.names.len() < NAMES_MAX {
            let exporter = (exporter.id, exporter.key);
            self.output.names.push(ReportedName { exporter, interface, name });
        }
    }
}

impl Sink for IntakeSink<'_> {
    #[inline]
    fn datagram(&mut self, _: &Exporter, arrival: Arrival) {
        // A late datagram is not missing, and a restarted agent was away.
        let missing = match arrival {
            Arrival::Start => true,
            Arrival::Next { missing } => missing > 0,
            Arrival::Late | Arrival::Duplicate => false,
        };
        self.output.arrivals.record(self.at, self.number, missing);
    }

    #[inline]
    fn observation(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        if self.output.recorder.is_some() {
            self.record(exporter, seen, verdict);
        }
    }

    fn discarded(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        if self.output.recorder.is_some() {
            self.record(exporter, seen, verdict);
        }
    }

    fn counters(&mut self, exporter: &Exporter, source: Source, record: &CounterRecord<'_>) {
        match record {
            CounterRecord::HostId(host) => self.name(exporter, None, host.hostname.to_string()),
            CounterRecord::PortName(port) if source.class == 0 => {
                self.name(exporter, Some(source.index), port.name.to_string());
            }
            _ => {}
        }
    }

    fn interval(&mut self, exporter: &Exporter, index: u32, interval: &CounterInterval) {
        let Some(state) = exporter.interface(index) else { return };
        let octets = [interval.input.octets, interval.output.octets];
        let rate = exporter.sampling_rate;
        // Octets of a direction that is not sampled would add other traffic to the total than that
        // of the samples.
        let sampled = [state.is_sampled(true, rate), state.is_sampled(false, rate)];
        self.output.intervals.push(CountedInterval::new(
            (exporter.id, index),
            self.wall_s,
            interval.length.as_secs_f64(),
            octets,
            sampled,
        ));
        if self.output.intervals.len() >= INTERVALS_MAX {
            let mut live = self.shared.live_mut();
            self.output.intervals.drain(..).for_each(|interval| live.count(interval));
        }
    }

    fn firefly(&mut self, firefly: &ReceivedFirefly) {
        let shared = Arc::new(firefly.clone());
        for other in self.shared.shards.iter().filter(|other| other.number != self.shard) {
            let (sender, firefly) = (self.from.ip(), Arc::clone(&shared));
            other.hand_over(InboxEntry::Firefly { at: self.at, sender, firefly });
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_flows::aggregate::{AggregateLimits, Aggregator};
    use penstock_flows::prefixes::Prefixes;
    use penstock_flows::scitag::Trust;
    use penstock_flows::sflow::Encoder;
    use penstock_flows::shard::ShardLimits;
    use penstock_scitags::firefly::{Firefly, FireflyFlow, FlowPhase, TransportProtocol};
    use penstock_scitags::time::UtcTime;
    use penstock_scitags::{Registry, Scitag};

    use super::*;
    use crate::config::Config;
    use crate::shared::Stores;

    const AGENT_COUNT: u8 = 8;

    fn from() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 6343))
    }

    /// A collector with two shards, which believes fireflies of [`from`].
    fn shared() -> Shared {
        let (registry, limits) = (Registry::builtin().clone(), Arc::new(ShardLimits::new(2)));
        let intake = |_| {
            let marking = Prefixes::new([(from().ip(), 32, ())]).unwrap();
            let trust = Trust::new(registry.clone(), marking, Prefixes::default(), 1);
            let (limits, sites) = (Arc::clone(&limits), Prefixes::default());
            let aggregator = Aggregator::sharing(limits, AggregateLimits::default(), sites, 1);
            Intake::new(trust, aggregator, 1)
        };
        let intakes = (0..2).map(intake).collect();
        let stores = Stores { store: None, clickhouse: None, archive: None };
        Shared::new(Config::default(), registry.clone(), intakes, Default::default(), stores)
    }

    fn receive(shared: &Shared, format: InputFormat, bytes: &[u8]) -> DatagramOutcome {
        let datagram = TimedDatagram { format, at: Duration::ZERO, from: from(), bytes };
        let first = &shared.shards[0];
        first.receive(shared, &mut first.state(), datagram)
    }

    fn counters(agent: u8) -> Vec<u8> {
        let mut encoder = Encoder::new([192, 0, 2, agent].into(), 0, 1400);
        let complete = encoder.counters(1, 1, Source::interface(1), &[]).unwrap();
        complete.or_else(|| encoder.take(1)).unwrap()
    }

    #[test]
    fn unsteered_datagrams_reach_their_shard() {
        let shared = shared();
        for agent in 0..AGENT_COUNT {
            let outcome = receive(&shared, InputFormat::Sflow, &counters(agent));
            assert_eq!(outcome, DatagramOutcome::Accepted);
        }
        assert_eq!(shared.shards[1].handed_over.load(Ordering::Relaxed), 4);
        for shard in &shared.shards {
            shard.empty_inbox(&shared, &mut shard.state());
            let state = shard.state();
            let exporters = state.intake.exporters().iter();
            let owners = exporters.map(|exporter| shard_of(exporter.key.address, 2));
            assert_eq!(owners.collect::<Vec<_>>(), [shard.number; 4]);
        }
        // Malformed ones stay with their receiver.
        assert_eq!(receive(&shared, InputFormat::Sflow, &[0; 9]), DatagramOutcome::Refused);
    }

    #[test]
    fn full_inbox_drops_are_counted() {
        let shared = shared();
        let other = (0..AGENT_COUNT).map(counters).find(|bytes| {
            let address =
                exporter_address(InputFormat::Sflow.steering().unwrap(), from().ip(), bytes);
            shard_of(address.unwrap(), 2) == 1
        });
        let other = other.unwrap();
        for _ in 0..INBOX_ENTRIES_MAX {
            let outcome = receive(&shared, InputFormat::Sflow, &other);
            assert_eq!(outcome, DatagramOutcome::Accepted);
        }
        assert_eq!(receive(&shared, InputFormat::Sflow, &other), DatagramOutcome::Dropped);
        assert_eq!(shared.shards[1].inbox_drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn fireflies_reach_every_shard() {
        let shared = shared();
        let ends = [40_000, 5201].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let time = UtcTime::new(1_700_000_000, 0);
        let firefly = Firefly {
            phase: FlowPhase::Start,
            started: time,
            now: time,
            flow: FireflyFlow::new(ends[0], ends[1], TransportProtocol::Tcp).unwrap(),
            tag: Scitag::new(3, 14).unwrap(),
            application: "test".to_owned(),
            bytes: None,
            packets: None,
            tcp: None,
        };
        let bytes = firefly.datagram("dtn1.example.org", "penstock");
        let outcome = receive(&shared, InputFormat::Fireflies, &bytes);
        assert_eq!(outcome, DatagramOutcome::Accepted);
        for shard in &shared.shards {
            shard.empty_inbox(&shared, &mut shard.state());
            assert_eq!(shard.state().intake.trust.firefly_flows(), 1);
        }
    }
}
