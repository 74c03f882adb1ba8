//! Metrics of the agent, read from the mover at each scrape.
//!
//! Names are `penstock_<component>_<quantity>_<unit>`; counters end in `_total`. No label identifies a
//! transfer: their number is unbounded, and `/api/v1/transfers` lists them.

use std::fmt;
use std::time::UNIX_EPOCH;

use penstock_http::metrics::{MetricWriter, Unit, bits_per_second};
use penstock_mover::{AgentCounters, FIREFLY_STATES};

use super::AgentApi;
use crate::controller::ControllerLinkStatus;
use crate::registry::ActiveRegistry;

/// Writes the metrics of the agent and of its process.
pub(super) fn write(api: &AgentApi, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    write_mover_counters(&api.mover.counters(), writer)?;
    write_http_counters(api, writer)?;
    write_running_transfers(api, writer)?;
    write_process(api, writer)?;
    // `penstock tag registry` reports an invalid copy; the built-in registry is active then.
    let (tags, _) = ActiveRegistry::load(&api.state);
    write_scitags(&tags, writer)?;
    if let Some(link) = &api.controller {
        write_controller(&link.status(), writer)?;
    }
    let version = env!("CARGO_PKG_VERSION");
    writer.info("penstock_agent_info", "Version", &[("version", version)])
}

fn write_mover_counters(
    counters: &AgentCounters,
    writer: &mut MetricWriter<'_, '_>,
) -> fmt::Result {
    let bytes = Some(&Unit::Bytes);
    for (name, unit, help, value) in [
        (
            "penstock_mover_connections",
            None,
            "Connections to the mover's port",
            counters.connections,
        ),
        ("penstock_mover_refused", None, "Connections and sessions refused", counters.refused),
        ("penstock_mover_received", bytes, "Bytes of files received", counters.received_bytes),
        ("penstock_mover_sent", bytes, "Bytes of files sent", counters.sent_bytes),
        ("penstock_mover_transfers_started", None, "Transfers started", counters.transfers_started),
        ("penstock_mover_transfers_failed", None, "Transfers failed", counters.transfers_failed),
        (
            "penstock_mover_blocks_repeated",
            None,
            "Blocks sent or received again",
            counters.blocks_repeated,
        ),
        ("penstock_mover_streams_lost", None, "Data streams that broke", counters.streams_lost),
    ] {
        writer.counter(name, unit, help, value)?;
    }
    for (name, help, counts) in [
        (
            "penstock_mover_fireflies_sent",
            "Fireflies sent, by state of the flow",
            counters.fireflies_sent,
        ),
        (
            "penstock_mover_fireflies_failed",
            "Fireflies that could not be sent",
            counters.fireflies_failed,
        ),
    ] {
        let values = FIREFLY_STATES.into_iter().zip(counts);
        let values = values.map(|(state, count)| ([("state", state)], count));
        writer.counters(name, None, help, values)?;
    }
    Ok(())
}

fn write_http_counters(api: &AgentApi, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let name = "penstock_agent_http_connections_refused";
    writer.counter(name, None, "HTTP connections over the limit", api.traffic.refused())?;
    for (class, answers) in ["2xx", "4xx", "5xx"].into_iter().zip(api.traffic.answers()) {
        let name = format!("penstock_agent_http_answers_{class}");
        writer.counter(&name, None, "HTTP requests answered with this class of status", answers)?;
    }
    let (name, open) = ("penstock_agent_http_connections", api.traffic.open());
    writer.gauge(name, None, "HTTP connections now open", open as f64)
}

fn write_running_transfers(api: &AgentApi, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let transfers = api.mover.transfers();
    let running = || transfers.iter().filter(|t| matches!(t.state, "running" | "waiting"));
    let rate = |direction| -> u64 {
        running().filter(|t| t.direction == direction).map(|t| t.bits_per_second).sum()
    };
    let streams: u64 = running().map(|t| u64::from(t.streams)).sum();
    let bits = bits_per_second();
    for (name, unit, help, value) in [
        (
            "penstock_mover_transfers_running",
            None,
            "Transfers now running",
            running().count() as u64,
        ),
        ("penstock_mover_streams_running", None, "Data streams now connected", streams),
        (
            "penstock_mover_receive_rate",
            Some(&bits),
            "Rate of all transfers received now",
            rate("receive"),
        ),
        ("penstock_mover_send_rate", Some(&bits), "Rate of all transfers sent now", rate("send")),
    ] {
        writer.gauge(name, unit, help, value as f64)?;
    }
    Ok(())
}

fn write_process(api: &AgentApi, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let seconds = Some(&Unit::Seconds);
    let cpu = penstock_sys::machine::process_cpu().as_secs_f64();
    writer.counter("penstock_agent_cpu", seconds, "CPU time used since the start", cpu)?;
    let memory = penstock_sys::machine::peak_resident_bytes() as f64;
    let (name, help) = ("penstock_agent_resident_peak", "Most memory resident since the start");
    writer.gauge(name, Some(&Unit::Bytes), help, memory)?;
    let started = api.started.duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
    let (name, help) = ("penstock_agent_start_time", "When the agent started, since 1970");
    writer.gauge(name, seconds, help, started)
}

fn write_scitags(tags: &ActiveRegistry, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    for (name, help, time) in [
        (
            "penstock_agent_scitags_modified_time",
            "When the scitags registry that counts was last changed, since 1970",
            tags.registry.modified(),
        ),
        (
            "penstock_agent_scitags_checked_time",
            "When it was last compared with its source, since 1970",
            tags.checked,
        ),
    ] {
        if let Some(time) = time {
            writer.gauge(name, Some(&Unit::Seconds), help, time.seconds() as f64)?;
        }
    }
    let builtin = if tags.is_builtin() { "true" } else { "false" };
    writer.info(
        "penstock_agent_scitags_info",
        "Where the scitags registry is from",
        &[("source", &tags.source), ("builtin", builtin)],
    )
}

fn write_controller(
    status: &ControllerLinkStatus,
    writer: &mut MetricWriter<'_, '_>,
) -> fmt::Result {
    let orders = status.orders;
    for (name, help, value) in [
        (
            "penstock_agent_controller_connected",
            "1 while the controller answers",
            u64::from(status.connected),
        ),
        (
            "penstock_agent_controller_lease_expired",
            "1 while the lease of the rates is expired",
            u64::from(status.lease_expired),
        ),
        (
            "penstock_agent_controller_unacknowledged_outcomes",
            "Outcomes that the controller has not acknowledged",
            orders.unacknowledged as u64,
        ),
    ] {
        writer.gauge(name, None, help, value as f64)?;
    }
    writer.gauges(
        "penstock_agent_controller_orders",
        None,
        "Orders by state: in the last instructions, waiting, running, ended without acknowledgement",
        [
            ([("state", "listed")], orders.listed as u64),
            ([("state", "waiting")], orders.waiting as u64),
            ([("state", "running")], orders.running as u64),
            ([("state", "ended")], orders.ended as u64),
        ],
    )?;
    for (name, help, value) in [
        (
            "penstock_agent_controller_reports",
            "Reports that the controller answered",
            status.reports,
        ),
        ("penstock_agent_controller_failures", "Attempts to report that failed", status.failures),
    ] {
        writer.counter(name, None, help, value)?;
    }
    Ok(())
}
