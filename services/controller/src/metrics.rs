//! Metrics of the controller for `/metrics`.

use std::fmt;
use std::sync::atomic::Ordering;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::shared::ControllerState;

pub(crate) fn encode(shared: &ControllerState, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for (name, help, value) in shared.counters.all() {
        let name = format!("penstock_controller_{name}");
        let unit: Option<&Unit> = None;
        let metric = ConstCounter::new(value);
        metric.encode(encoder.encode_descriptor(&name, help, unit, metric.metric_type())?)?;
    }
    let leads = ConstGauge::new(i64::from(shared.leads.load(Ordering::Relaxed)));
    let help = "1 where this controller makes the rounds";
    let unit: Option<&Unit> = None;
    leads.encode(encoder.encode_descriptor(
        "penstock_controller_leads",
        help,
        unit,
        leads.metric_type(),
    )?)
}
