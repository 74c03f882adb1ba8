//! Datagrams of NetFlow and IPFIX, several from one exporter: templates, options and records in any order.

#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use penstock_flows::aggregate::{Aggregator, AggregateLimits};
use penstock_flows::exporter::STATES_MAX;
use penstock_flows::intake::Intake;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::Trust;
use penstock_scitags::Registry;

fuzz_target!(|bytes: &[u8]| {
    let none = Prefixes::default;
    let trust = Trust::new(Registry::builtin().clone(), none(), none(), 1);
    let mut intake = Intake::new(trust, Aggregator::new(AggregateLimits::default(), Prefixes::default(), 1), 1);
    let from = SocketAddr::from(([192, 0, 2, 1], 2055));
    let mut rest = bytes;
    while let Some((&[high, low], behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes([high & 0x0F, low])).min(behind.len());
        let (datagram, behind) = behind.split_at(length);
        let _ = intake.export(Duration::ZERO, from, datagram, &mut ());
        rest = behind;
    }
    assert!(intake.exporters().iter().all(|exporter| exporter.interfaces().count() <= STATES_MAX));
    let counts = intake.counts();
    assert_eq!(intake.take().all.samples, counts.observations);
});
