//! Untrusted sFlow datagrams: each parsed record encodes to one that parses equally, and the pipeline through trust,
//! counters and sums stays within its limits.

#![no_main]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use penstock_flows::aggregate::{Aggregator, Combine, AggregateLimits};
use penstock_flows::exporter::{EXPORTERS_MAX, NEWCOMERS_MAX, STATES_TOTAL_MAX};
use penstock_flows::intake::Intake;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::Trust;
use penstock_flows::sflow::sample::SampleRecords;
use penstock_flows::sflow::{CounterRecord, SflowDatagram, FlowRecord, Sample};
use penstock_scitags::Registry;

thread_local! {
    // Shared by all inputs, so that state carries over.
    static INTAKE: RefCell<Intake> = RefCell::new({
        let none = Prefixes::default;
        let trust = Trust::new(Registry::builtin().clone(), none(), none(), 1);
        let limits = AggregateLimits { groups: 64, hosts: 64, as_pairs: 64, prefixes: 64, talkers: 64, ..AggregateLimits::default() };
        Intake::new(trust, Aggregator::new(limits, Prefixes::default(), 1), 1)
    });
}

fn flow(records: SampleRecords<'_>) {
    for record in records.flow().flatten() {
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        let again = FlowRecord::read(record.format(), &bytes[8..]).unwrap();
        assert_eq!(format!("{again:?}"), format!("{record:?}"));
    }
}

fn counters(records: SampleRecords<'_>) {
    for record in records.counters().flatten() {
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        let again = CounterRecord::read(record.format(), &bytes[8..]).unwrap();
        assert_eq!(format!("{again:?}"), format!("{record:?}"));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(datagram) = SflowDatagram::read(bytes) else { return };
    for sample in datagram.samples().flatten() {
        match sample {
            Sample::Flow(sample) => flow(sample.records),
            Sample::Discarded(sample) => flow(sample.records),
            Sample::Counters(sample) => counters(sample.records),
            Sample::Unknown(..) => {}
        }
    }
    INTAKE.with_borrow_mut(|intake| {
        let now = Duration::from_millis(datagram.uptime_ms.into());
        let from = SocketAddr::from(([192, 0, 2, 1], 6343));
        intake.sflow(now, from, bytes, &mut ()).unwrap();
        assert!(intake.exporters().len() <= EXPORTERS_MAX + NEWCOMERS_MAX);
        assert!(intake.exporters().states() <= STATES_TOTAL_MAX);
        if datagram.sequence.is_multiple_of(16) {
            let sums = intake.take();
            let kept: u64 = sums.groups.iter().map(|(_, tally)| tally.samples).sum();
            assert_eq!(kept + sums.groups.other.samples, sums.all.samples);
            let _ = (sums.labels(Combine::Max), sums.interfaces(), sums.hosts(Combine::Sum), sums.talkers(5));
        }
    });
});
