//! Numbers for Prometheus. Labels are owners, activities, formats and causes: few, whatever is sent here. There is never
//! a label for an address.

use std::fmt;
use std::sync::atomic::Ordering;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use crate::shared::Shared;

pub(crate) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let counts = shared.intake().counts();
    for (name, help, value) in [
        ("penstock_collector_samples", "Samples of packets, or flows", counts.observations),
        (
            "penstock_collector_clock_steps",
            "Steps of the wall clock",
            shared.clock_steps.load(Ordering::Relaxed),
        ),
    ] {
        let metric = ConstCounter::new(value);
        metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
    }
    Ok(())
}
