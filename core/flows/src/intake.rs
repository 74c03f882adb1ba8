//! The pipeline from datagrams to sums and events.
//!
//! The caller passes bytes, their source address and the time; it receives events through a
//! [`Sink`] and the sums of each interval from [`Intake::take`]. Nothing here blocks or fails:
//! unreadable input is counted ([`IntakeCounts`]). Time is a monotonic clock's, so that a step of
//! the wall clock changes nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock_scitags::firefly::{self, FireflyError, ReceivedFirefly};

use crate::aggregate::{Aggregates, Aggregator};
use crate::export::{FLOW_TOTALS_MAX, LastTotals};
use crate::exporter::{
    DatagramContext, ExportProtocol, Exporter, ExporterKey, ExporterTable, SampleKind,
};
use crate::interface::CounterInterval;
use crate::observe::{InterfaceDirection, Observation};
use crate::packet::MappedAddress;
use crate::prefixes::Prefixes;
use crate::rates::Amount;
use crate::scitag::{ScitagVerdict, Trust, TrustError};
use crate::sequence::Arrival;
use crate::sflow::sample::{DiscardedPacket, SampleRecords};
use crate::sflow::{
    CounterRecord, CountersSample, DatagramError, FlowSample, Sample, SflowDatagram, Source,
};

/// Receiver of events. The default of each method ignores the event.
pub trait Sink {
    /// A datagram of an exporter begins; duplicates are skipped. `arrival` classifies its sequence
    /// number: always the next one for protocols that do not number datagrams.
    fn datagram(&mut self, exporter: &Exporter, arrival: Arrival) {
        let _ = (exporter, arrival);
    }

    /// Traffic of a flow sample or a flow record.
    fn observation(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        let _ = (exporter, seen, verdict);
    }

    /// A dropped packet; its sampling rate is 1.
    fn discarded(&mut self, exporter: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        let _ = (exporter, seen, verdict);
    }

    /// A counter record as received.
    fn counters(&mut self, exporter: &Exporter, source: Source, record: &CounterRecord<'_>) {
        let _ = (exporter, source, record);
    }

    /// A new interval between two counter samples of an interface.
    fn interval(&mut self, exporter: &Exporter, index: u32, interval: &CounterInterval) {
        let _ = (exporter, index, interval);
    }

    /// A firefly whose sender is trusted.
    fn firefly(&mut self, firefly: &ReceivedFirefly) {
        let _ = firefly;
    }
}

/// Ignores all events.
impl Sink for () {}

/// Counts of the input and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IntakeCounts {
    /// Datagrams with a valid header.
    pub datagrams: u64,
    /// Datagrams without a valid header.
    pub refused: u64,
    /// Duplicate datagrams, which are not counted again.
    pub duplicates: u64,
    /// Sampled packets and exported flows.
    pub observations: u64,
    /// Samples of interface and host counters.
    pub counter_samples: u64,
    /// Notifications of dropped packets.
    pub discarded: u64,
    /// Samples, sets or records that cannot be parsed, and samples whose fields contradict each other.
    pub broken: u64,
    /// Samples and records of more traffic than any line carries, which are not counted.
    pub implausible: u64,
    /// Samples of unknown formats, and sets without a template.
    pub unknown: u64,
    /// Fireflies that are trusted.
    pub fireflies: u64,
    /// Fireflies that are not trusted or cannot be parsed.
    pub fireflies_refused: u64,
}

impl IntakeCounts {
    /// Adds the counts of another shard.
    pub fn merge(&mut self, other: &Self) {
        self.datagrams += other.datagrams;
        self.refused += other.refused;
        self.duplicates += other.duplicates;
        self.observations += other.observations;
        self.counter_samples += other.counter_samples;
        self.discarded += other.discarded;
        self.broken += other.broken;
        self.implausible += other.implausible;
        self.unknown += other.unknown;
        self.fireflies += other.fireflies;
        self.fireflies_refused += other.fireflies_refused;
    }
}

/// Reason to refuse a firefly.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FireflyRefused {
    /// The datagram cannot be parsed.
    #[error(transparent)]
    Unreadable(#[from] FireflyError),
    /// The sender or the pair is not trusted.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
}

/// Decoder, trust and sums of one collector.
#[derive(Debug)]
pub struct Intake {
    /// Hosts, relays and fireflies that are trusted.
    pub trust: Trust,
    /// Sums of the current interval.
    pub aggregator: Aggregator,
    pub(crate) exporters: ExporterTable,
    pub(crate) counts: IntakeCounts,
    pub(crate) sampling_rates: Prefixes<u32>,
    pub(crate) totals: LastTotals,
}

impl Intake {
    /// Evicts a silent exporter if a newcomer of another shard waits for its place. To be called
    /// once a second.
    pub fn make_place(&mut self, now: Duration) {
        self.exporters.make_place(now);
    }

    /// Starts without state. `seed` is for hashing: the same seed and the same input give the same
    /// output. It shares the limits of the aggregator ([`Aggregator::sharing`]).
    #[must_use]
    pub fn new(trust: Trust, aggregator: Aggregator, seed: u64) -> Self {
        let shared = Arc::clone(aggregator.shared());
        let totals = LastTotals::new(shared.share(FLOW_TOTALS_MAX), seed);
        Self {
            trust,
            aggregator,
            exporters: ExporterTable::sharing(shared, seed),
            counts: IntakeCounts::default(),
            sampling_rates: Prefixes::default(),
            totals,
        }
    }

    /// Exporters and their state.
    #[must_use]
    pub fn exporters(&self) -> &ExporterTable {
        &self.exporters
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> IntakeCounts {
        self.counts
    }

    /// Returns the sums since the last call.
    pub fn take(&mut self) -> Aggregates {
        self.aggregator.take()
    }

    /// Processes a datagram of sFlow.
    ///
    /// # Errors
    /// When the header is invalid; broken samples are counted and skipped.
    pub fn sflow(
        &mut self,
        now: Duration,
        from: SocketAddr,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), DatagramError> {
        let datagram = SflowDatagram::read(bytes).inspect_err(|_| self.counts.refused += 1)?;
        let address = MappedAddress::from(datagram.agent.unwrap_or(from.ip()));
        let domain = datagram.sub_agent;
        let key = ExporterKey { protocol: ExportProtocol::Sflow, address, port: 0, domain };
        let Self { exporters, trust, aggregator, counts, .. } = self;
        counts.datagrams += 1;
        let number = Some(datagram.sequence);
        let mut context = exporters.receive(now, key, from.ip(), number, Some(datagram.uptime_ms));
        if context.arrival == Arrival::Duplicate {
            counts.duplicates += 1;
            return Ok(());
        }
        sink.datagram(context.exporter, context.arrival);
        let mut pipeline = SamplePipeline { now, trust, aggregator, counts, sink };
        for sample in datagram.samples() {
            match sample {
                Ok(Sample::Flow(sample)) => pipeline.flow(&mut context, &sample),
                Ok(Sample::Counters(sample)) => {
                    pipeline.counters(&mut context, datagram.uptime_ms, &sample);
                }
                Ok(Sample::Discarded(sample)) => pipeline.discarded(&mut context, &sample),
                Ok(Sample::Unknown(..)) => {
                    pipeline.counts.unknown += 1;
                    context.exporter.unknown += 1;
                }
                Err(_) => {
                    pipeline.counts.broken += 1;
                    context.exporter.broken += 1;
                }
            }
        }
        Ok(())
    }

    /// Decodes a firefly and labels its flow.
    ///
    /// # Errors
    /// When it cannot be parsed or is not trusted.
    pub fn firefly(
        &mut self,
        now: Duration,
        from: SocketAddr,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), FireflyRefused> {
        let mut receive = || -> Result<ReceivedFirefly, FireflyRefused> {
            let firefly = firefly::read(bytes)?;
            self.trust.receive_firefly(now, from.ip(), &firefly)?;
            Ok(firefly)
        };
        match receive() {
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

/// The parts of an [`Intake`] that a sample passes through.
pub(crate) struct SamplePipeline<'a, S> {
    pub(crate) now: Duration,
    pub(crate) trust: &'a mut Trust,
    pub(crate) aggregator: &'a mut Aggregator,
    pub(crate) counts: &'a mut IntakeCounts,
    pub(crate) sink: &'a mut S,
}

impl<S: Sink> SamplePipeline<'_, S> {
    #[inline]
    fn flow(&mut self, context: &mut DatagramContext<'_>, sample: &FlowSample<'_>) {
        let seen = Observation::of_sample(sample);
        if sample.sampling_rate == 0 || seen.is_implausible {
            // It arrived, for the count of lost ones.
            context.sample(sample.source, SampleKind::Flow, sample.sequence);
            self.counts.broken += 1;
            context.exporter.broken += 1;
            return;
        }
        context.flow_sample(sample);
        self.observation(context, &seen);
    }

    #[inline]
    pub(crate) fn observation(&mut self, context: &mut DatagramContext<'_>, seen: &Observation) {
        self.counts.observations += 1;
        if seen.broken_records > 0 {
            self.counts.broken += u64::from(seen.broken_records);
            context.exporter.broken += u64::from(seen.broken_records);
        }
        let amount = Amount::new(seen.sampling_rate, seen.packets, seen.frame_bytes);
        if !amount.fits(seen.interval()) {
            self.counts.implausible += 1;
            context.exporter.implausible += 1;
            return;
        }
        let (received, at) = match seen.direction {
            InterfaceDirection::Ingress => (true, seen.input),
            InterfaceDirection::Egress => (false, seen.output),
            InterfaceDirection::Unknown => (true, crate::sflow::SflowInterface::Unknown),
        };
        if let Some(interface) = at.index().and_then(|index| context.interface(index)) {
            interface.sample(received, seen.sampling_rate, &amount);
        }
        let verdict = self.trust.judge(self.now, &seen.packet);
        self.aggregator.add(context.exporter.id, seen, &amount, verdict);
        self.sink.observation(context.exporter, seen, verdict);
    }

    fn discarded(&mut self, context: &mut DatagramContext<'_>, sample: &DiscardedPacket<'_>) {
        self.counts.discarded += 1;
        context.sample(sample.source, SampleKind::Discarded, sample.sequence);
        let mut seen = Observation::nothing(1, sample.input, sample.output);
        seen.drop_reason = Some(sample.reason);
        seen.records(sample.records);
        let verdict = self.trust.judge(self.now, &seen.packet);
        // Not counted as traffic: a dropped packet did not arrive.
        self.sink.discarded(context.exporter, &seen, verdict);
    }

    fn counters(
        &mut self,
        context: &mut DatagramContext<'_>,
        uptime_ms: u32,
        sample: &CountersSample<'_>,
    ) {
        self.counts.counter_samples += 1;
        context.sample(sample.source, SampleKind::Counters, sample.sequence);
        let index = interface_of(sample.records);
        for record in sample.records.counters() {
            let Ok(record) = record else {
                self.counts.broken += 1;
                context.exporter.broken += 1;
                continue;
            };
            match (&record, index) {
                (CounterRecord::Interface(counters), _) => {
                    let read = context
                        .interface(counters.index)
                        .and_then(|state| state.read(self.now, uptime_ms, *counters).ok());
                    if let Some(interval) = read {
                        self.sink.interval(context.exporter, counters.index, &interval);
                    }
                }
                (CounterRecord::PortName(port), Some(index)) => {
                    if let Some(state) = context.interface(index) {
                        state.set_name(&port.name.to_string());
                    }
                }
                _ => {}
            }
            self.sink.counters(context.exporter, sample.source, &record);
        }
    }
}

/// ifIndex of the interface in a counter sample; the record of a port's name has none.
fn interface_of(records: SampleRecords<'_>) -> Option<u32> {
    records.counters().find_map(|record| match record {
        Ok(CounterRecord::Interface(counters)) => Some(counters.index),
        _ => None,
    })
}
