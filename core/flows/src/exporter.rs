//! State of each exporter, to detect loss, restarts and changed sampling rates.
//!
//! Anyone can send a datagram in any name, so the state is bounded. An exporter begins as a
//! newcomer, of which there are at most [`NEWCOMERS_MAX`]; a further newcomer evicts the oldest.
//! After [`ESTABLISHED_AFTER`] datagrams it is established and never evicted by newcomers while it
//! sends. With [`EXPORTERS_MAX`] established exporters that all send, a newcomer stays one: its
//! datagrams count, only its loss may be unknown.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bounded::{SeededMap, seeded};
use crate::export::Templates;
use crate::interface::InterfaceState;
use crate::packet::MappedAddress;
use crate::rates;
use crate::sequence::{Arrival, RecordSequence, Sequence};
use crate::sflow::{FlowSample, Source};
use crate::shard::ShardLimits;

/// Most established exporters at a time.
pub const EXPORTERS_MAX: usize = 4096;

/// Most newcomers at a time.
pub const NEWCOMERS_MAX: usize = 1024;

/// Count of datagrams after which a newcomer becomes established.
pub const ESTABLISHED_AFTER: u64 = 8;

/// Silence after which an established exporter may be evicted.
pub const EXPORTER_IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Most data sources, interfaces and templates of an established exporter.
pub const STATES_MAX: usize = 4096;

/// Most data sources, interfaces and templates of a newcomer.
pub const NEWCOMER_STATES_MAX: usize = 64;

/// Most data sources, interfaces and templates of all exporters together.
pub const STATES_TOTAL_MAX: usize = 131_072;

/// A reordered datagram shows an uptime lower by at most this many milliseconds.
pub(crate) const REORDERED_MS: u32 = 10_000;

/// An uptime of 32 bits this close to its end may wrap without a restart.
const WRAP_MS: u32 = 3_600_000;

/// Export protocol and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExportProtocol {
    /// sFlow version 5.
    Sflow,
    /// NetFlow version 5.
    NetflowV5,
    /// NetFlow version 9.
    NetflowV9,
    /// IPFIX.
    Ipfix,
}

/// Identity of an exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExporterKey {
    /// Protocol of its datagrams.
    pub protocol: ExportProtocol,
    /// Address that the agent claims (sFlow), or the source address.
    pub address: MappedAddress,
    /// UDP source port; 0 for sFlow. Several exporters may share an address (RFC 7011 8).
    pub port: u16,
    /// Sub-agent, source id or observation domain.
    pub domain: u32,
}

/// Kind of a sample; each kind has its own sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SampleKind {
    /// A sampled packet.
    Flow,
    /// Counters of a source.
    Counters,
    /// A dropped packet.
    Discarded,
}

/// State of one data source.
#[derive(Debug, Clone, Copy, Default)]
pub struct SourceState {
    /// Sequence numbers of its samples.
    pub sequence: Sequence,
    /// Sampling rate of the last sample, 1 of this many packets.
    pub sampling_rate: u32,
    /// Count of changes of the sampling rate.
    pub rate_changes: u64,
    /// Count of samples that the agent dropped.
    pub agent_drops: u64,
    last: Option<(u32, u32)>,
    run: SamplingRun,
}

/// Counts since the last change of the rate or restart of the agent.
#[derive(Debug, Clone, Copy, Default)]
struct SamplingRun {
    pool: u64,
    received: u64,
    lost: u64,
}

impl SourceState {
    /// Updates the state from a flow sample.
    #[inline]
    fn flow(&mut self, sample: &FlowSample<'_>) -> Arrival {
        let lost_before = self.sequence.lost;
        let arrival = self.sequence.arrive(sample.sequence);
        if arrival == Arrival::Duplicate {
            return arrival;
        }
        if arrival == Arrival::Late {
            // Counted as lost since the run began: its packets are in the pool.
            if self.sequence.lost < lost_before && self.run.lost > 0 {
                self.run.received += 1;
                self.run.lost -= 1;
            }
            return arrival;
        }
        if self.sampling_rate != sample.sampling_rate {
            self.rate_changes += u64::from(self.sampling_rate != 0);
            self.sampling_rate = sample.sampling_rate;
            (self.run, self.last) = (SamplingRun::default(), None);
        }
        match arrival {
            Arrival::Start => (self.run, self.last) = (SamplingRun::default(), None),
            _ => {
                let lost = self.sequence.lost.saturating_sub(lost_before);
                self.run.received += 1;
                self.run.lost += lost;
                if let Some((pool, drops)) = self.last {
                    self.run.pool += u64::from(sample.sample_pool.wrapping_sub(pool));
                    let dropped = sample.drops.wrapping_sub(drops);
                    // The counter never falls, except by a restart of the agent.
                    self.agent_drops += if dropped <= u32::MAX / 2 { dropped.into() } else { 0 };
                } else {
                    self.run.pool += u64::from(sample.sampling_rate);
                }
            }
        }
        self.last = Some((sample.sample_pool, sample.drops));
        arrival
    }

    /// Sampling rate corrected by lost samples.
    #[must_use]
    pub fn effective_rate(&self) -> f64 {
        let SamplingRun { pool, received, lost } = self.run;
        rates::effective_rate(self.sampling_rate, received, lost, Some(pool))
    }
}

/// An exporter and its state.
#[derive(Debug)]
pub struct Exporter {
    /// Small number, unique while the exporter is known.
    pub id: u32,
    /// Identity of the exporter.
    pub key: ExporterKey,
    /// Source address of the last datagram; may differ from the agent's own (NAT, VRF).
    pub from: IpAddr,
    /// Time of the first datagram.
    pub first_seen: Duration,
    /// Time of the last datagram.
    pub last_seen: Duration,
    /// Sequence numbers of its datagrams.
    pub sequence: Sequence,
    /// Samples or sets that cannot be parsed, and samples whose fields contradict each other.
    pub broken: u64,
    /// Samples, records or fields of unknown formats.
    pub unknown: u64,
    /// Samples and records of more traffic than any line carries, which are not counted.
    pub implausible: u64,
    /// Count of restarts, by its uptime.
    pub reboots: u64,
    /// Data sources, interfaces and templates beyond the limits.
    pub untracked: u64,
    /// Sampling rate of the last sample; 0 before the first.
    pub sampling_rate: u32,
    uptime_ms: Option<u32>,
    /// Share of [`STATES_TOTAL_MAX`] in use.
    states: usize,
    established: bool,
    sources: SeededMap<(Source, SampleKind), SourceState>,
    interfaces: SeededMap<u32, InterfaceState>,
    pub(crate) templates: Templates,
    /// Numbers of its records, for protocols that number them instead of datagrams.
    pub(crate) records: RecordSequence,
}

/// States in use by the exporters of a table.
#[derive(Debug)]
struct Budget {
    used: usize,
    shared: Arc<ShardLimits>,
}

impl Budget {
    fn charge(
        &mut self,
        established: bool,
        states: &mut usize,
        untracked: &mut u64,
        count: usize,
    ) -> bool {
        let own = if established { STATES_MAX } else { NEWCOMER_STATES_MAX };
        if *states + count <= own && self.shared.add_states(count, STATES_TOTAL_MAX) {
            *states += count;
            self.used += count;
            return true;
        }
        *untracked += 1;
        false
    }

    fn release(&mut self, count: usize) {
        self.used -= count;
        self.shared.remove_states(count);
    }
}

impl Exporter {
    /// Iterates over the data sources.
    pub fn sources(&self) -> impl Iterator<Item = (Source, SampleKind, &SourceState)> {
        self.sources.iter().map(|((source, kind), state)| (*source, *kind, state))
    }

    /// Iterates over the interfaces, by ifIndex.
    pub fn interfaces(&self) -> impl Iterator<Item = (u32, &InterfaceState)> {
        self.interfaces.iter().map(|(index, state)| (*index, state))
    }

    /// Returns the interface with this ifIndex.
    #[must_use]
    pub fn interface(&self, index: u32) -> Option<&InterfaceState> {
        self.interfaces.get(&index)
    }

    /// Returns true after [`ESTABLISHED_AFTER`] datagrams, if the table was not full.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Share of its datagrams lost in the network, 0 to 1.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let sent = self.sequence.received + self.sequence.lost;
        if sent == 0 { 0.0 } else { self.sequence.lost as f64 / sent as f64 }
    }

    /// Records lost, if the protocol numbers records.
    #[must_use]
    pub fn records_lost(&self) -> u64 {
        self.records.lost
    }

    /// Detects a restart by a fall of the uptime, and resets the sequences.
    fn uptime(&mut self, uptime_ms: u32) {
        let last = self.uptime_ms.replace(uptime_ms);
        let Some(last) = last else { return };
        let wrapped = last > u32::MAX - WRAP_MS && uptime_ms < WRAP_MS;
        if uptime_ms.saturating_add(REORDERED_MS) < last && !wrapped {
            self.reboots += 1;
            self.sequence.restart();
            self.records.restart();
            self.sources.values_mut().for_each(|source| {
                source.sequence.restart();
                source.last = None;
            });
            self.interfaces.values_mut().for_each(InterfaceState::restart);
        } else if uptime_ms < last && !wrapped {
            self.uptime_ms = Some(last);
        }
    }
}

/// The exporter of a datagram, with the budget for its states.
#[derive(Debug)]
pub struct DatagramContext<'a> {
    /// Exporter that sent the datagram.
    pub exporter: &'a mut Exporter,
    /// Classification of the datagram's sequence number.
    pub arrival: Arrival,
    budget: &'a mut Budget,
}

impl DatagramContext<'_> {
    /// Detects a duplicate by its bytes, for protocols that number records: datagrams without
    /// records have the number of the next one.
    pub(crate) fn find_duplicate(&mut self, datagram: &[u8]) {
        let exporter = &mut *self.exporter;
        if exporter.records.is_duplicate(exporter.sources.hasher().hash_one(datagram)) {
            exporter.sequence.received -= 1;
            exporter.sequence.duplicates += 1;
            self.arrival = Arrival::Duplicate;
        }
    }

    /// Reserves `count` more states, if the limits allow.
    pub(crate) fn charge(&mut self, count: usize) -> bool {
        let exporter = &mut *self.exporter;
        let (established, untracked) = (exporter.established, &mut exporter.untracked);
        self.budget.charge(established, &mut exporter.states, untracked, count)
    }

    /// Returns `count` states to the budget.
    pub(crate) fn release(&mut self, count: usize) {
        self.exporter.states -= count;
        self.budget.release(count);
    }

    fn source(&mut self, source: Source, kind: SampleKind) -> Option<&mut SourceState> {
        let Exporter { sources, states, untracked, established, .. } = &mut *self.exporter;
        match sources.entry((source, kind)) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                let room = self.budget.charge(*established, states, untracked, 1);
                room.then(|| place.insert(SourceState::default()))
            }
        }
    }

    /// Updates the source of a flow sample.
    pub fn flow_sample(&mut self, sample: &FlowSample<'_>) -> Option<Arrival> {
        self.exporter.sampling_rate = sample.sampling_rate;
        self.source(sample.source, SampleKind::Flow).map(|source| source.flow(sample))
    }

    /// Updates the source of a sample of another kind.
    pub fn sample(&mut self, source: Source, kind: SampleKind, number: u32) -> Option<Arrival> {
        self.source(source, kind).map(|source| source.sequence.arrive(number))
    }

    /// Returns the interface with this ifIndex, created if the limits allow.
    pub fn interface(&mut self, index: u32) -> Option<&mut InterfaceState> {
        let Exporter { interfaces, states, untracked, established, .. } = &mut *self.exporter;
        match interfaces.entry(index) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                let room = self.budget.charge(*established, states, untracked, 1);
                room.then(|| place.insert(InterfaceState::default()))
            }
        }
    }
}

/// All known exporters, established and newcomers.
#[derive(Debug)]
pub struct ExporterTable {
    established: SeededMap<ExporterKey, Exporter>,
    newcomers: SeededMap<ExporterKey, Exporter>,
    order: VecDeque<ExporterKey>,
    newcomers_max: usize,
    budget: Budget,
    seed: u64,
    /// Before this time no established exporter can be evicted.
    full_until: Duration,
    /// Count of newcomers evicted by others.
    pub forgotten: u64,
    /// Count of established exporters evicted after silence.
    pub retired: u64,
}

impl ExporterTable {
    /// Starts without exporters. `seed` is for hashing.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::sharing(Arc::new(ShardLimits::new(1)), seed)
    }

    /// Starts without exporters, with limits that other tables share.
    #[must_use]
    pub fn sharing(shared: Arc<ShardLimits>, seed: u64) -> Self {
        Self {
            established: seeded(seed),
            newcomers: seeded(seed),
            order: VecDeque::new(),
            newcomers_max: shared.share(NEWCOMERS_MAX),
            budget: Budget { used: 0, shared },
            seed,
            full_until: Duration::ZERO,
            forgotten: 0,
            retired: 0,
        }
    }

    /// Iterates over all known exporters, newcomers included.
    pub fn iter(&self) -> impl Iterator<Item = &Exporter> {
        self.established.values().chain(self.newcomers.values())
    }

    /// Count of known exporters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.established.len() + self.newcomers.len()
    }

    /// Returns true if no exporter is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Count of data sources, interfaces and templates that its exporters use.
    #[must_use]
    pub fn states(&self) -> usize {
        self.budget.used
    }

    /// Updates the exporter of a datagram. `number` is `None` for protocols that do not number
    /// datagrams.
    pub fn receive(
        &mut self,
        now: Duration,
        key: ExporterKey,
        from: IpAddr,
        number: Option<u32>,
        uptime_ms: Option<u32>,
    ) -> DatagramContext<'_> {
        if !self.established.contains_key(&key) {
            self.admit(now, key, from);
        }
        let Self { established, newcomers, budget, .. } = self;
        let exporter = established.get_mut(&key).or_else(|| newcomers.get_mut(&key));
        let exporter = exporter.expect("it was admitted");
        exporter.from = from;
        exporter.last_seen = exporter.last_seen.max(now);
        if let Some(uptime_ms) = uptime_ms {
            exporter.uptime(uptime_ms);
        }
        let arrival = match number {
            Some(number) => exporter.sequence.arrive(number),
            None => {
                exporter.sequence.received += 1;
                Arrival::Next { missing: 0 }
            }
        };
        DatagramContext { exporter, arrival, budget }
    }

    fn admit(&mut self, now: Duration, key: ExporterKey, from: IpAddr) {
        if let Some(newcomer) = self.newcomers.get(&key) {
            let ready = newcomer.sequence.received + 1 >= ESTABLISHED_AFTER;
            if ready && self.take_place(now) {
                self.establish(key);
            }
            return;
        }
        while self.newcomers.len() >= self.newcomers_max {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(gone) = self.newcomers.remove(&oldest) {
                self.budget.release(gone.states);
                self.forgotten += 1;
            }
        }
        // Keys of established exporters stay in the order until they reach its front; they are few.
        self.order.push_back(key);
        if self.order.len() > 2 * self.newcomers_max {
            let newcomers = &self.newcomers;
            self.order.retain(|other| newcomers.contains_key(other) || *other == key);
        }
        let id = self.budget.shared.draw_exporter();
        let exporter = Exporter {
            id,
            key,
            from,
            first_seen: now,
            last_seen: now,
            sequence: Sequence::default(),
            broken: 0,
            unknown: 0,
            implausible: 0,
            reboots: 0,
            untracked: 0,
            sampling_rate: 0,
            uptime_ms: None,
            states: 0,
            established: false,
            sources: seeded(self.seed),
            interfaces: seeded(self.seed),
            templates: Templates::new(self.seed),
            records: RecordSequence::default(),
        };
        self.newcomers.insert(key, exporter);
    }

    fn establish(&mut self, key: ExporterKey) {
        if let Some(mut exporter) = self.newcomers.remove(&key) {
            exporter.established = true;
            self.established.insert(key, exporter);
        }
    }

    /// Reserves the place of another established exporter, evicting a silent one of this table if
    /// needed; returns false if there is none.
    fn take_place(&mut self, now: Duration) -> bool {
        if self.budget.shared.add_established(EXPORTERS_MAX) || self.evict_silent(now) {
            return true;
        }
        self.budget.shared.want_place();
        false
    }

    /// Evicts a silent exporter if a newcomer of another table waits for its place. To be called
    /// once a second.
    pub fn make_place(&mut self, now: Duration) {
        if self.budget.shared.is_place_wanted() && self.evict_silent(now) {
            self.budget.shared.return_place();
        }
    }

    /// Evicts the exporter that is silent for the longest time; returns false if all have sent
    /// within [`EXPORTER_IDLE_TIMEOUT`]. Its place stays reserved.
    fn evict_silent(&mut self, now: Duration) -> bool {
        // A search per datagram of a newcomer would allow a denial of service.
        if now < self.full_until {
            return false;
        }
        let longest = self.established.values().min_by_key(|exporter| exporter.last_seen);
        let Some((key, context)) = longest.map(|longest| (longest.key, longest.last_seen)) else {
            return false;
        };
        if now.saturating_sub(context) < EXPORTER_IDLE_TIMEOUT {
            self.full_until = context + EXPORTER_IDLE_TIMEOUT;
            return false;
        }
        if let Some(gone) = self.established.remove(&key) {
            self.budget.release(gone.states);
            self.retired += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(agent: u128) -> ExporterKey {
        ExporterKey {
            protocol: ExportProtocol::Sflow,
            address: MappedAddress(agent),
            port: 0,
            domain: 0,
        }
    }

    fn from() -> IpAddr {
        IpAddr::from([192, 0, 2, 1])
    }

    #[test]
    fn forged_exporters_evict_no_established_one() {
        let mut exporters = ExporterTable::new(1);
        for number in 0..20 {
            exporters.receive(Duration::ZERO, key(1 << 100), from(), Some(number), Some(number));
        }
        let before = exporters.iter().next().unwrap().id;
        for forged in 0..100_000_u128 {
            for number in 0..2 {
                let now = Duration::from_millis(forged as u64 / 10);
                let mut context = exporters.receive(now, key(forged), from(), Some(number), None);
                for index in 0..100 {
                    context.interface(index);
                    context.sample(Source::interface(index), SampleKind::Counters, 1);
                }
            }
        }
        assert!(exporters.len() <= EXPORTERS_MAX + NEWCOMERS_MAX);
        assert!(exporters.states() <= NEWCOMERS_MAX * NEWCOMER_STATES_MAX);
        assert!(exporters.order.len() <= 2 * NEWCOMERS_MAX + 1);
        let now = Duration::from_secs(100);
        let context = exporters.receive(now, key(1 << 100), from(), Some(20), Some(20));
        assert_eq!((context.exporter.id, context.arrival), (before, Arrival::Next { missing: 0 }));
    }

    #[test]
    fn silent_exporter_leaves_other_table() {
        let shared = Arc::new(ShardLimits::new(2));
        let tables = || ExporterTable::sharing(Arc::clone(&shared), 1);
        let (mut full, mut other) = (tables(), tables());
        let fill = |table: &mut ExporterTable, now: u64, agent: u128| {
            let now = Duration::from_secs(now);
            for number in 0..2 * ESTABLISHED_AFTER as u32 {
                table.receive(now, key(agent), from(), Some(number), None);
            }
            table.established.len()
        };
        for agent in 0..EXPORTERS_MAX as u128 {
            fill(&mut full, u64::from(agent > 0), agent);
        }
        assert_eq!((full.established.len(), fill(&mut other, 1, 1 << 100)), (EXPORTERS_MAX, 0));
        full.make_place(Duration::from_secs(599));
        assert_eq!(fill(&mut other, 599, 1 << 100), 0);
        full.make_place(Duration::from_secs(600));
        assert_eq!((full.established.len(), full.retired), (EXPORTERS_MAX - 1, 1));
        assert_eq!(fill(&mut other, 600, 1 << 100), 1);
        // No other newcomer waits.
        full.make_place(Duration::from_secs(700));
        assert_eq!((full.retired, fill(&mut other, 700, 2 << 100)), (1, 1));
    }

    #[test]
    fn newcomer_waits_while_table_is_full() {
        let mut exporters = ExporterTable::new(1);
        for forged in 0..10_000_u128 {
            for number in 0..10 {
                let mut context =
                    exporters.receive(Duration::ZERO, key(forged), from(), Some(number), None);
                for index in 0..100 {
                    context.interface(index);
                }
            }
        }
        assert_eq!(exporters.established.len(), EXPORTERS_MAX);
        assert!(exporters.states() <= STATES_TOTAL_MAX);
        // A newcomer stays one, but its datagrams count.
        let newcomer = key(1 << 100);
        for number in 0..100 {
            let context =
                exporters.receive(Duration::from_secs(1), newcomer, from(), Some(number), None);
            assert!(!context.exporter.is_established());
        }
        // After enough silence of the others it becomes established.
        let later = EXPORTER_IDLE_TIMEOUT + Duration::from_secs(2);
        let context = exporters.receive(later, newcomer, from(), Some(100), None);
        assert!(context.exporter.is_established());
        assert_eq!((context.exporter.sequence.received, exporters.retired), (101, 1));
    }

    #[test]
    fn memory_has_a_bound() {
        let name = crate::interface::NAME_BYTES_MAX;
        let interface = size_of::<(u32, InterfaceState)>() + name;
        let source = size_of::<((Source, SampleKind), SourceState)>();
        let exporters = (EXPORTERS_MAX + NEWCOMERS_MAX) * size_of::<(ExporterKey, Exporter)>();
        // A hash table that just grew has 16 slots for 7 entries.
        let bytes = (STATES_TOTAL_MAX * interface.max(source) + exporters) * 16 / 7;
        assert!(bytes < 256 << 20, "{} MiB", bytes >> 20);
    }

    #[test]
    fn reboots_show_in_the_uptime() {
        let mut exporters = ExporterTable::new(1);
        let mut receive = |number, uptime_ms| {
            let context =
                exporters.receive(Duration::ZERO, key(1), from(), Some(number), Some(uptime_ms));
            (context.exporter.reboots, context.exporter.sequence.lost)
        };
        assert_eq!(receive(100, 3_000_000_000), (0, 0));
        // Late, not rebooted; a wrap, not rebooted.
        assert_eq!(receive(101, 2_999_999_000), (0, 0));
        assert_eq!(receive(102, u32::MAX), (0, 0));
        assert_eq!(receive(103, 500), (0, 0));
        assert_eq!(receive(104, 90_000), (0, 0));
        assert_eq!(receive(90, 100), (1, 0));
        assert_eq!(receive(92, 200), (1, 1));
    }
}
