//! Who sends: one state for each agent, so that loss, new starts and changes of rate are noticed.
//!
//! Anyone can send a datagram in any name, so all of it is bounded. An exporter begins as a newcomer: there
//! are [`NEWCOMERS_MAX`] places, and the next newcomer takes that of the oldest. After [`ESTABLISHED_AFTER`]
//! datagrams it has a place of its own, which it keeps as long as it speaks: newcomers never push it
//! out, however many they are. When all [`EXPORTERS_MAX`] places are taken by exporters that speak, a
//! newcomer stays one. Its datagrams count all the same; only its loss may not be known.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::time::Duration;

use crate::bounded::{SeededMap, seeded};
use crate::export::Templates;
use crate::interface::InterfaceState;
use crate::packet::Address;
use crate::rates;
use crate::sequence::{Arrival, JUMP_MAX, Sequence};
use crate::sflow::{FlowSample, Source};

/// Most exporters with a place of their own.
pub const EXPORTERS_MAX: usize = 4096;

/// Most newcomers.
pub const NEWCOMERS_MAX: usize = 1024;

/// Datagrams that make a newcomer an exporter with a place of its own.
pub const ESTABLISHED_AFTER: u64 = 8;

/// An exporter that is silent for so long gives up its place, if another one needs it.
pub const IDLE: Duration = Duration::from_secs(600);

/// Most data sources, interfaces and templates of an exporter.
pub const STATES_MAX: usize = 4096;

/// Most of them of a newcomer.
pub const NEWCOMER_STATES_MAX: usize = 64;

/// Most of them of all exporters together.
pub const STATES_TOTAL_MAX: usize = 131_072;

/// Datagrams that come late show an uptime that is lower by at most this.
const REORDERED_MS: u32 = 10_000;

/// Around the end of its 32 bits an uptime may start over without a new start.
const WRAP_MS: u32 = 3_600_000;

/// How an exporter speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// sFlow version 5.
    Sflow,
    /// NetFlow version 5.
    NetflowV5,
    /// NetFlow version 9.
    NetflowV9,
    /// IPFIX.
    Ipfix,
}

/// What tells exporters apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExporterKey {
    /// How it speaks.
    pub dialect: Dialect,
    /// The agent by its own word (sFlow), or where it sends from.
    pub address: Address,
    /// The port that it sends from; 0 for sFlow. Several exporters may share an address (RFC 7011 8).
    pub port: u16,
    /// Sub-agent, source id or observation domain.
    pub domain: u32,
}

/// A kind of sample: each counts its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SampleKind {
    /// Of packets.
    Flow,
    /// Of counters.
    Counters,
    /// Of drops.
    Discarded,
}

/// One data source.
#[derive(Debug, Clone, Copy, Default)]
pub struct SourceState {
    /// Its samples.
    pub sequence: Sequence,
    /// The sampling rate of its last sample.
    pub sampling_rate: u32,
    /// Times that the rate changed.
    pub rate_changes: u64,
    /// Samples that the agent itself lost.
    pub agent_drops: u64,
    last: Option<(u32, u32)>,
    run: Run,
}

/// Since the rate changed last or the agent started over.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    pool: u64,
    received: u64,
    lost: u64,
}

impl SourceState {
    /// Takes a sample's numbers.
    #[inline]
    fn flow(&mut self, sample: &FlowSample<'_>) -> Arrival {
        let lost_before = self.sequence.lost;
        let arrival = self.sequence.arrive(sample.sequence);
        if self.sampling_rate != sample.sampling_rate {
            self.rate_changes += u64::from(self.sampling_rate != 0);
            self.sampling_rate = sample.sampling_rate;
            (self.run, self.last) = (Run::default(), None);
        }
        match arrival {
            Arrival::Start => (self.run, self.last) = (Run::default(), None),
            Arrival::Next { .. } => {
                let lost = self.sequence.lost.saturating_sub(lost_before);
                self.run.received += 1;
                self.run.lost += lost;
                if let Some((pool, drops)) = self.last {
                    self.run.pool += u64::from(sample.sample_pool.wrapping_sub(pool));
                    let dropped = sample.drops.wrapping_sub(drops);
                    // It only ever grows; a fall is an agent that has started over.
                    self.agent_drops += if dropped <= u32::MAX / 2 { dropped.into() } else { 0 };
                } else {
                    self.run.pool += u64::from(sample.sampling_rate);
                }
            }
            Arrival::Late | Arrival::Duplicate => return arrival,
        }
        self.last = Some((sample.sample_pool, sample.drops));
        arrival
    }

    /// The rate at which packets were really sampled, lost samples included.
    #[must_use]
    pub fn effective_rate(&self) -> f64 {
        let Run { pool, received, lost } = self.run;
        rates::effective_rate(self.sampling_rate, received, lost, Some(pool))
    }
}

/// An exporter.
#[derive(Debug)]
pub struct Exporter {
    /// Its number here, small and its own as long as it is known.
    pub id: u32,
    /// What it is known by.
    pub key: ExporterKey,
    /// Where its last datagram came from; need not be its own address (NAT, VRF).
    pub from: IpAddr,
    /// When it was heard first.
    pub first_heard: Duration,
    /// When it was heard last.
    pub last_heard: Duration,
    /// Its datagrams.
    pub sequence: Sequence,
    /// Samples or sets that could not be read.
    pub broken: u64,
    /// Samples, records or fields that are not known here.
    pub unknown: u64,
    /// Times that it started over, by its uptime.
    pub reboots: u64,
    /// Data sources, interfaces and templates that found no place.
    pub untracked: u64,
    /// Records that did not come, where the dialect counts those.
    pub records_lost: u64,
    /// The sampling rate of its last sample; 0 before it.
    pub sampling_rate: u32,
    uptime_ms: Option<u32>,
    /// What it has of [`STATES_TOTAL_MAX`].
    states: usize,
    established: bool,
    sources: SeededMap<(Source, SampleKind), SourceState>,
    interfaces: SeededMap<u32, InterfaceState>,
    pub(crate) templates: Templates,
    next_record: Option<u32>,
}

/// How many states there may be, and are.
#[derive(Debug, Clone, Copy)]
struct Budget {
    used: usize,
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
        if *states + count <= own && self.used + count <= STATES_TOTAL_MAX {
            *states += count;
            self.used += count;
            return true;
        }
        *untracked += 1;
        false
    }
}

impl Exporter {
    /// Its data sources.
    pub fn sources(&self) -> impl Iterator<Item = (Source, SampleKind, &SourceState)> {
        self.sources.iter().map(|((source, kind), state)| (*source, *kind, state))
    }

    /// Its interfaces, by ifIndex.
    pub fn interfaces(&self) -> impl Iterator<Item = (u32, &InterfaceState)> {
        self.interfaces.iter().map(|(index, state)| (*index, state))
    }

    /// The interface with this ifIndex.
    #[must_use]
    pub fn interface(&self, index: u32) -> Option<&InterfaceState> {
        self.interfaces.get(&index)
    }

    /// Whether it has a place of its own.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Share of its datagrams that were lost on the way here.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let sent = self.sequence.received + self.sequence.lost;
        if sent == 0 { 0.0 } else { self.sequence.lost as f64 / sent as f64 }
    }

    /// Notes that the record with this number was the first of `count`; `None` where that is not known.
    /// IPFIX and NetFlow version 5 count records (RFC 7011 3.1).
    pub(crate) fn records(&mut self, number: u32, count: Option<u32>) {
        if let Some(next) = self.next_record {
            let missing = number.wrapping_sub(next);
            // What comes late, twice or after a new start is no loss.
            if missing <= JUMP_MAX {
                self.records_lost += u64::from(missing);
            }
        }
        self.next_record = count.map(|count| number.wrapping_add(count));
    }

    /// Notes the uptime; when it went back everything starts over.
    fn uptime(&mut self, uptime_ms: u32) {
        let last = self.uptime_ms.replace(uptime_ms);
        let Some(last) = last else { return };
        let wrapped = last > u32::MAX - WRAP_MS && uptime_ms < WRAP_MS;
        if uptime_ms.saturating_add(REORDERED_MS) < last && !wrapped {
            self.reboots += 1;
            self.sequence.restart();
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

/// An exporter with what it may use.
#[derive(Debug)]
pub struct Heard<'a> {
    /// The exporter.
    pub exporter: &'a mut Exporter,
    /// What its datagram's number was.
    pub arrival: Arrival,
    budget: &'a mut Budget,
}

impl Heard<'_> {
    /// Takes `count` more states of the exporter's share, if there are as many.
    pub(crate) fn charge(&mut self, count: usize) -> bool {
        let exporter = &mut *self.exporter;
        let (established, untracked) = (exporter.established, &mut exporter.untracked);
        self.budget.charge(established, &mut exporter.states, untracked, count)
    }

    /// Gives states back.
    pub(crate) fn release(&mut self, count: usize) {
        self.exporter.states -= count;
        self.budget.used -= count;
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

    /// Takes the numbers of a flow sample.
    pub fn flow_sample(&mut self, sample: &FlowSample<'_>) -> Option<Arrival> {
        self.exporter.sampling_rate = sample.sampling_rate;
        self.source(sample.source, SampleKind::Flow).map(|source| source.flow(sample))
    }

    /// Takes the number of another sample.
    pub fn sample(&mut self, source: Source, kind: SampleKind, number: u32) -> Option<Arrival> {
        self.source(source, kind).map(|source| source.sequence.arrive(number))
    }

    /// The interface with this ifIndex.
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

/// All exporters.
#[derive(Debug)]
pub struct Exporters {
    established: SeededMap<ExporterKey, Exporter>,
    newcomers: SeededMap<ExporterKey, Exporter>,
    order: VecDeque<ExporterKey>,
    budget: Budget,
    next_id: u32,
    seed: u64,
    /// No place came free before this.
    full_until: Duration,
    /// Newcomers that gave up their place to another one.
    pub forgotten: u64,
    /// Exporters that gave up their place because they were silent.
    pub retired: u64,
}

impl Exporters {
    /// None yet. `seed` is for hashing.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            established: seeded(seed),
            newcomers: seeded(seed),
            order: VecDeque::new(),
            budget: Budget { used: 0 },
            next_id: 0,
            seed,
            full_until: Duration::ZERO,
            forgotten: 0,
            retired: 0,
        }
    }

    /// All that are known, newcomers too.
    pub fn iter(&self) -> impl Iterator<Item = &Exporter> {
        self.established.values().chain(self.newcomers.values())
    }

    /// How many are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.established.len() + self.newcomers.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Data sources and interfaces that have a place.
    #[must_use]
    pub fn states(&self) -> usize {
        self.budget.used
    }

    /// Takes the numbers of a datagram. `number` is `None` where the dialect does not count datagrams.
    pub fn hear(
        &mut self,
        now: Duration,
        key: ExporterKey,
        from: IpAddr,
        number: Option<u32>,
        uptime_ms: Option<u32>,
    ) -> Heard<'_> {
        if !self.established.contains_key(&key) {
            self.admit(now, key, from);
        }
        let Self { established, newcomers, budget, .. } = self;
        let exporter = established.get_mut(&key).or_else(|| newcomers.get_mut(&key));
        let exporter = exporter.expect("it was admitted");
        exporter.from = from;
        exporter.last_heard = exporter.last_heard.max(now);
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
        Heard { exporter, arrival, budget }
    }

    fn admit(&mut self, now: Duration, key: ExporterKey, from: IpAddr) {
        if let Some(newcomer) = self.newcomers.get(&key) {
            let ready = newcomer.sequence.received + 1 >= ESTABLISHED_AFTER;
            if ready && self.has_place(now) {
                self.establish(key);
            }
            return;
        }
        while self.newcomers.len() >= NEWCOMERS_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(gone) = self.newcomers.remove(&oldest) {
                self.budget.used -= gone.states;
                self.forgotten += 1;
            }
        }
        // Keys that were established stay behind in the order; they are few and leave with it.
        self.order.push_back(key);
        if self.order.len() > 2 * NEWCOMERS_MAX {
            let newcomers = &self.newcomers;
            self.order.retain(|other| newcomers.contains_key(other) || *other == key);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let exporter = Exporter {
            id,
            key,
            from,
            first_heard: now,
            last_heard: now,
            sequence: Sequence::default(),
            broken: 0,
            unknown: 0,
            reboots: 0,
            untracked: 0,
            records_lost: 0,
            sampling_rate: 0,
            uptime_ms: None,
            states: 0,
            established: false,
            sources: seeded(self.seed),
            interfaces: seeded(self.seed),
            templates: Templates::new(self.seed),
            next_record: None,
        };
        self.newcomers.insert(key, exporter);
    }

    fn establish(&mut self, key: ExporterKey) {
        if let Some(mut exporter) = self.newcomers.remove(&key) {
            exporter.established = true;
            self.established.insert(key, exporter);
        }
    }

    /// Whether a place is free, or can be made free.
    fn has_place(&mut self, now: Duration) -> bool {
        if self.established.len() < EXPORTERS_MAX {
            return true;
        }
        // Looking through all of them for each datagram of a newcomer would be a way to slow us down.
        if now < self.full_until {
            return false;
        }
        let longest = self.established.values().min_by_key(|exporter| exporter.last_heard);
        let Some((key, heard)) = longest.map(|longest| (longest.key, longest.last_heard)) else {
            return true;
        };
        if now.saturating_sub(heard) < IDLE {
            self.full_until = heard + IDLE;
            return false;
        }
        if let Some(gone) = self.established.remove(&key) {
            self.budget.used -= gone.states;
            self.retired += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(agent: u128) -> ExporterKey {
        ExporterKey { dialect: Dialect::Sflow, address: Address(agent), port: 0, domain: 0 }
    }

    fn from() -> IpAddr {
        IpAddr::from([192, 0, 2, 1])
    }

    #[test]
    fn a_hundred_thousand_forged_exporters_push_nobody_out() {
        let mut exporters = Exporters::new(1);
        for number in 0..20 {
            exporters.hear(Duration::ZERO, key(1 << 100), from(), Some(number), Some(number));
        }
        let before = exporters.iter().next().unwrap().id;
        for forged in 0..100_000_u128 {
            for number in 0..2 {
                let now = Duration::from_millis(forged as u64 / 10);
                let mut heard = exporters.hear(now, key(forged), from(), Some(number), None);
                for index in 0..100 {
                    heard.interface(index);
                    heard.sample(Source::interface(index), SampleKind::Counters, 1);
                }
            }
        }
        assert!(exporters.len() <= EXPORTERS_MAX + NEWCOMERS_MAX);
        assert!(exporters.states() <= NEWCOMERS_MAX * NEWCOMER_STATES_MAX);
        assert!(exporters.order.len() <= 2 * NEWCOMERS_MAX + 1);
        let now = Duration::from_secs(100);
        let heard = exporters.hear(now, key(1 << 100), from(), Some(20), Some(20));
        assert_eq!((heard.exporter.id, heard.arrival), (before, Arrival::Next { missing: 0 }));
    }

    #[test]
    fn even_when_every_place_is_taken_by_them() {
        let mut exporters = Exporters::new(1);
        for forged in 0..10_000_u128 {
            for number in 0..10 {
                let mut heard =
                    exporters.hear(Duration::ZERO, key(forged), from(), Some(number), None);
                for index in 0..100 {
                    heard.interface(index);
                }
            }
        }
        assert_eq!(exporters.established.len(), EXPORTERS_MAX);
        assert!(exporters.states() <= STATES_TOTAL_MAX);
        // A newcomer stays one, and counts.
        let newcomer = key(1 << 100);
        for number in 0..100 {
            let heard =
                exporters.hear(Duration::from_secs(1), newcomer, from(), Some(number), None);
            assert!(!heard.exporter.is_established());
        }
        // When they have been silent for long enough it gets a place.
        let later = IDLE + Duration::from_secs(2);
        let heard = exporters.hear(later, newcomer, from(), Some(100), None);
        assert!(heard.exporter.is_established());
        assert_eq!((heard.exporter.sequence.received, exporters.retired), (101, 1));
    }

    #[test]
    fn memory_has_a_bound() {
        let name = crate::interface::NAME_BYTES_MAX;
        let interface = size_of::<(u32, InterfaceState)>() + name;
        let source = size_of::<((Source, SampleKind), SourceState)>();
        let exporters = (EXPORTERS_MAX + NEWCOMERS_MAX) * size_of::<(ExporterKey, Exporter)>();
        // A hash table just grown has 16 places for 7 entries.
        let bytes = (STATES_TOTAL_MAX * interface.max(source) + exporters) * 16 / 7;
        assert!(bytes < 256 << 20, "{} MiB", bytes >> 20);
    }

    #[test]
    fn reboots_show_in_the_uptime() {
        let mut exporters = Exporters::new(1);
        let mut hear = |number, uptime_ms| {
            let heard =
                exporters.hear(Duration::ZERO, key(1), from(), Some(number), Some(uptime_ms));
            (heard.exporter.reboots, heard.exporter.sequence.lost)
        };
        assert_eq!(hear(100, 3_000_000_000), (0, 0));
        // Late, not rebooted; a wrap, not rebooted.
        assert_eq!(hear(101, 2_999_999_000), (0, 0));
        assert_eq!(hear(102, u32::MAX), (0, 0));
        assert_eq!(hear(103, 500), (0, 0));
        assert_eq!(hear(104, 90_000), (0, 0));
        assert_eq!(hear(90, 100), (1, 0));
        assert_eq!(hear(92, 200), (1, 1));
    }
}
