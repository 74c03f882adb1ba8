//! Datagrams in, sums and notes out: the whole way of a sample through this crate.
//!
//! The caller brings bytes, where they came from and the time; it gets what was learned through a [`Sink`],
//! and the sums of each interval from [`Intake::take`]. Nothing here waits or fails: what cannot be read is
//! counted ([`Counts`]). Time is a monotonic clock's, so that a step of the wall clock changes nothing.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_scitags::firefly::{self, FireflyError, ReceivedFirefly};

use crate::aggregate::{Aggregates, Aggregator};
use crate::export::LastTotals;
use crate::exporter::{Dialect, Exporter, ExporterKey, Exporters, Heard, SampleKind};
use crate::interface::Interval;
use crate::observe::{Direction, Observation};
use crate::packet::Address;
use crate::prefixes::Prefixes;
use crate::rates::Amount;
use crate::scitag::{Disbelief, Trust, Verdict};
use crate::sequence::Arrival;
use crate::sflow::sample::{DiscardedPacket, Records};
use crate::sflow::{
    CounterRecord, CountersSample, Datagram, DatagramError, FlowSample, Sample, Source,
};

/// What is told as it comes. All of it may be left alone.
pub trait Sink {
    /// A datagram of an exporter has begun; duplicates are left out. `arrival` is what its number was: of a dialect that
    /// does not number datagrams it is always the next.
    fn datagram(&mut self, exporter: &Exporter, arrival: Arrival) {
        let _ = (exporter, arrival);
    }

    /// Traffic.
    fn observation(&mut self, exporter: &Exporter, seen: &Observation, verdict: Verdict) {
        let _ = (exporter, seen, verdict);
    }

    /// A packet that was dropped; its sampling rate is 1.
    fn discarded(&mut self, exporter: &Exporter, seen: &Observation, verdict: Verdict) {
        let _ = (exporter, seen, verdict);
    }

    /// Counters, as they came.
    fn counters(&mut self, exporter: &Exporter, source: Source, record: &CounterRecord<'_>) {
        let _ = (exporter, source, record);
    }

    /// Counters of an interface have gone on.
    fn interval(&mut self, exporter: &Exporter, index: u32, interval: &Interval) {
        let _ = (exporter, index, interval);
    }

    /// A firefly that is believed.
    fn firefly(&mut self, firefly: &ReceivedFirefly) {
        let _ = firefly;
    }
}

/// Takes nothing.
impl Sink for () {}

/// What came and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Datagrams whose header was read.
    pub datagrams: u64,
    /// Datagrams that were none.
    pub refused: u64,
    /// Datagrams that came twice and were not counted again.
    pub duplicates: u64,
    /// Packets that were sampled, or flows that were exported.
    pub observations: u64,
    /// Samples of counters.
    pub counter_samples: u64,
    /// Packets that were dropped and told.
    pub discarded: u64,
    /// Samples, sets or records that could not be read.
    pub broken: u64,
    /// Samples that are not known here, and sets whose template did not come.
    pub unknown: u64,
    /// Fireflies that are believed.
    pub fireflies: u64,
    /// Fireflies that are not, or are none.
    pub fireflies_refused: u64,
}

/// Why a firefly was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FireflyRefused {
    /// It is none.
    #[error(transparent)]
    Unreadable(#[from] FireflyError),
    /// It is not believed.
    #[error(transparent)]
    Disbelieved(#[from] Disbelief),
}

/// The way of a sample.
#[derive(Debug)]
pub struct Intake {
    /// Whom it believes.
    pub trust: Trust,
    /// What it sums.
    pub aggregator: Aggregator,
    pub(crate) exporters: Exporters,
    pub(crate) counts: Counts,
    pub(crate) sampling_rates: Prefixes<u32>,
    pub(crate) totals: LastTotals,
}

impl Intake {
    /// `seed` is for hashing: the same seed and the same input give the same output.
    #[must_use]
    pub fn new(trust: Trust, aggregator: Aggregator, seed: u64) -> Self {
        Self {
            trust,
            aggregator,
            exporters: Exporters::new(seed),
            counts: Counts::default(),
            sampling_rates: Prefixes::default(),
            totals: LastTotals::new(seed),
        }
    }

    /// Who sends.
    #[must_use]
    pub fn exporters(&self) -> &Exporters {
        &self.exporters
    }

    /// What came so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The sums since the last time.
    pub fn take(&mut self) -> Aggregates {
        self.aggregator.take()
    }

    /// Takes a datagram of sFlow.
    ///
    /// # Errors
    /// When it is none; samples that are broken are counted and left out.
    pub fn sflow(
        &mut self,
        now: Duration,
        from: SocketAddr,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), DatagramError> {
        let datagram = Datagram::read(bytes).inspect_err(|_| self.counts.refused += 1)?;
        let address = Address::from(datagram.agent.unwrap_or(from.ip()));
        let domain = datagram.sub_agent;
        let key = ExporterKey { dialect: Dialect::Sflow, address, port: 0, domain };
        let Self { exporters, trust, aggregator, counts, .. } = self;
        counts.datagrams += 1;
        let number = Some(datagram.sequence);
        let mut heard = exporters.hear(now, key, from.ip(), number, Some(datagram.uptime_ms));
        if heard.arrival == Arrival::Duplicate {
            counts.duplicates += 1;
            return Ok(());
        }
        sink.datagram(heard.exporter, heard.arrival);
        let mut way = Way { now, trust, aggregator, counts, sink };
        for sample in datagram.samples() {
            match sample {
                Ok(Sample::Flow(sample)) => way.flow(&mut heard, &sample),
                Ok(Sample::Counters(sample)) => {
                    way.counters(&mut heard, datagram.uptime_ms, &sample);
                }
                Ok(Sample::Discarded(sample)) => way.discarded(&mut heard, &sample),
                Ok(Sample::Unknown(..)) => {
                    way.counts.unknown += 1;
                    heard.exporter.unknown += 1;
                }
                Err(_) => {
                    way.counts.broken += 1;
                    heard.exporter.broken += 1;
                }
            }
        }
        Ok(())
    }

    /// Takes a firefly.
    ///
    /// # Errors
    /// When it is none, or not believed.
    pub fn firefly(
        &mut self,
        now: Duration,
        from: SocketAddr,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), FireflyRefused> {
        let mut hear = || -> Result<ReceivedFirefly, FireflyRefused> {
            let firefly = firefly::read(bytes)?;
            self.trust.hear(now, from.ip(), &firefly)?;
            Ok(firefly)
        };
        match hear() {
            Ok(firefly) => {
                self.counts.fireflies += 1;
                sink.firefly(&firefly);
                Ok(())
            }
            Err(refused) => {
                self.counts.fireflies_refused += 1;
                Err(refused)
            }
        }
    }
}

/// What a sample passes.
pub(crate) struct Way<'a, S> {
    pub(crate) now: Duration,
    pub(crate) trust: &'a mut Trust,
    pub(crate) aggregator: &'a mut Aggregator,
    pub(crate) counts: &'a mut Counts,
    pub(crate) sink: &'a mut S,
}

impl<S: Sink> Way<'_, S> {
    #[inline]
    fn flow(&mut self, heard: &mut Heard<'_>, sample: &FlowSample<'_>) {
        heard.flow_sample(sample);
        let seen = Observation::of_sample(sample);
        self.observation(heard, &seen);
    }

    #[inline]
    pub(crate) fn observation(&mut self, heard: &mut Heard<'_>, seen: &Observation) {
        self.counts.observations += 1;
        if seen.broken_records > 0 {
            self.counts.broken += u64::from(seen.broken_records);
            heard.exporter.broken += u64::from(seen.broken_records);
        }
        let amount = Amount::new(seen.sampling_rate, seen.packets, seen.frame_bytes);
        let (received, at) = match seen.direction {
            Direction::Ingress => (true, seen.input),
            Direction::Egress => (false, seen.output),
            Direction::Unknown => (true, crate::sflow::Interface::Unknown),
        };
        if let Some(interface) = at.index().and_then(|index| heard.interface(index)) {
            interface.sample(received, seen.sampling_rate, &amount);
        }
        let verdict = self.trust.judge(self.now, &seen.packet);
        self.aggregator.add(heard.exporter.id, seen, &amount, verdict);
        self.sink.observation(heard.exporter, seen, verdict);
    }

    fn discarded(&mut self, heard: &mut Heard<'_>, sample: &DiscardedPacket<'_>) {
        self.counts.discarded += 1;
        heard.sample(sample.source, SampleKind::Discarded, sample.sequence);
        let mut seen = Observation::nothing(1, sample.input, sample.output);
        seen.drop_reason = Some(sample.reason);
        seen.records(sample.records);
        let verdict = self.trust.judge(self.now, &seen.packet);
        // Not traffic: a packet that was dropped arrived nowhere.
        self.sink.discarded(heard.exporter, &seen, verdict);
    }

    fn counters(&mut self, heard: &mut Heard<'_>, uptime_ms: u32, sample: &CountersSample<'_>) {
        self.counts.counter_samples += 1;
        heard.sample(sample.source, SampleKind::Counters, sample.sequence);
        let index = interface_of(sample.records);
        for record in sample.records.counters() {
            let Ok(record) = record else {
                self.counts.broken += 1;
                heard.exporter.broken += 1;
                continue;
            };
            match (&record, index) {
                (CounterRecord::Interface(counters), _) => {
                    let read = heard
                        .interface(counters.index)
                        .and_then(|state| state.read(self.now, uptime_ms, *counters).ok());
                    if let Some(interval) = read {
                        self.sink.interval(heard.exporter, counters.index, &interval);
                    }
                }
                (CounterRecord::PortName(port), Some(index)) => {
                    if let Some(state) = heard.interface(index) {
                        state.set_name(&port.name.to_string());
                    }
                }
                _ => {}
            }
            self.sink.counters(heard.exporter, sample.source, &record);
        }
    }
}

/// The interface that a sample's counters are of; the port's name does not say it.
fn interface_of(records: Records<'_>) -> Option<u32> {
    records.counters().find_map(|record| match record {
        Ok(CounterRecord::Interface(counters)) => Some(counters.index),
        _ => None,
    })
}
