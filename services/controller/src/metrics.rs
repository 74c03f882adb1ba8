//! Metrics of the controller for `/metrics`.

use std::fmt;
use std::sync::atomic::Ordering;

use penstock_http::MetricWriter;

use crate::shared::ControllerState;

pub(crate) fn write(shared: &ControllerState, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    for (name, help, value) in shared.counters.all() {
        writer.counter(&format!("penstock_controller_{name}"), None, help, value)?;
    }
    let leads = i64::from(shared.leads.load(Ordering::Relaxed));
    let help = "1 where this controller makes the rounds";
    writer.gauge("penstock_controller_leads", None, help, leads)
}
