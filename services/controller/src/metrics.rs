//! Metrics of the controller for `/metrics`.

use std::fmt;
use std::sync::atomic::Ordering;

use penstock_http::MetricWriter;
use penstock_http::metrics::Unit;

use crate::shared::ControllerState;

pub(crate) fn write(shared: &ControllerState, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    for (name, help, value) in shared.counters.all() {
        writer.counter(&format!("penstock_controller_{name}"), None, help, value)?;
    }
    let leads = shared.leads.load(Ordering::Relaxed);
    let help = "1 where this controller makes the rounds";
    writer.gauge("penstock_controller_leads", None, help, i64::from(leads))?;
    if !leads {
        return Ok(());
    }
    let [up, down] = shared.latest_round.hosts();
    let help = "Hosts that ever reported: those that do, and those that fell silent";
    let values = [([("state", "up")], up), ([("state", "down")], down)];
    writer.gauges("penstock_controller_hosts", None, help, values)?;
    let runs = shared.latest_round.runs();
    writer.gauge("penstock_controller_runs", None, "Transfers ordered or running", runs)?;
    let help = "Bytes of files that wait for a transfer, where their sizes are known";
    let queued = shared.latest_round.queued_bytes();
    writer.gauge("penstock_controller_queued", Some(&Unit::Bytes), help, queued)
}
