//! Metrics of the agent, read from the mover at each scrape.
//!
//! Names are `penstock_<component>_<quantity>_<unit>`; counters end in `_total`. No label identifies a
//! transfer: their number is unbounded, and `/api/v1/transfers` lists them.

use std::fmt;

use penstock_http::metrics::{MetricWriter, Unit, bits_per_second};
use penstock_mover::FIREFLY_STATES as STATES;

use super::AgentApi;
use crate::registry::ActiveRegistry;

/// Writes the metrics of the agent and of its process.
pub(super) fn write(api: &AgentApi, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let counters = api.mover.counters();
    let transfers = api.mover.transfers();
    let running = || transfers.iter().filter(|t| matches!(t.state, "running" | "waiting"));
    let rate = |direction| -> u64 {
        running().filter(|t| t.direction == direction).map(|t| t.bits_per_second).sum()
    };

    let bytes = Some(&Unit::Bytes);
    writer.counter(
        "penstock_mover_connections",
        None,
        "Connections to the mover's port",
        counters.connections,
    )?;
    writer.counter(
        "penstock_mover_refused",
        None,
        "Connections and sessions refused",
        counters.refused,
    )?;
    writer.counter(
        "penstock_mover_received",
        bytes,
        "Bytes of files received",
        counters.received_bytes,
    )?;
    writer.counter("penstock_mover_sent", bytes, "Bytes of files sent", counters.sent_bytes)?;
    writer.counter(
        "penstock_mover_transfers_started",
        None,
        "Transfers started",
        counters.transfers_started,
    )?;
    writer.counter(
        "penstock_mover_transfers_failed",
        None,
        "Transfers failed",
        counters.transfers_failed,
    )?;
    writer.counter(
        "penstock_mover_blocks_repeated",
        None,
        "Blocks sent or received again",
        counters.blocks_repeated,
    )?;
    writer.counter(
        "penstock_mover_streams_lost",
        None,
        "Data streams that broke",
        counters.streams_lost,
    )?;
    let refused = api.traffic.refused();
    writer.counter(
        "penstock_agent_http_connections_refused",
        None,
        "HTTP connections over the limit",
        refused,
    )?;
    for (class, answers) in ["2xx", "4xx", "5xx"].into_iter().zip(api.traffic.answers()) {
        let name = format!("penstock_agent_http_answers_{class}");
        writer.counter(&name, None, "HTTP requests answered with this class of status", answers)?;
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
        let values = STATES.into_iter().zip(counts);
        let values = values.map(|(state, count)| ([("state", state)], count));
        writer.counters(name, None, help, values)?;
    }

    let bits = bits_per_second();
    let streams: u64 = running().map(|t| u64::from(t.streams)).sum();
    writer.gauge(
        "penstock_mover_transfers_running",
        None,
        "Transfers now running",
        running().count() as f64,
    )?;
    writer.gauge(
        "penstock_mover_streams_running",
        None,
        "Data streams now connected",
        streams as f64,
    )?;
    writer.gauge(
        "penstock_mover_receive_rate",
        Some(&bits),
        "Rate of all transfers received now",
        rate("receive") as f64,
    )?;
    writer.gauge(
        "penstock_mover_send_rate",
        Some(&bits),
        "Rate of all transfers sent now",
        rate("send") as f64,
    )?;
    let connections = api.traffic.open();
    writer.gauge(
        "penstock_agent_http_connections",
        None,
        "HTTP connections now open",
        connections as f64,
    )?;
    let cpu = penstock_sys::machine::process_cpu().as_secs_f64();
    writer.counter(
        "penstock_agent_cpu",
        Some(&Unit::Seconds),
        "CPU time used since the start",
        cpu,
    )?;
    let memory = penstock_sys::machine::peak_resident_bytes() as f64;
    writer.gauge(
        "penstock_agent_resident_peak",
        bytes,
        "Most memory resident since the start",
        memory,
    )?;
    let started =
        api.started.duration_since(std::time::UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
    writer.gauge(
        "penstock_agent_start_time",
        Some(&Unit::Seconds),
        "When the agent started, since 1970",
        started,
    )?;

    // `penstock tag registry` reports an invalid copy; the built-in registry is active then.
    let (tags, _) = ActiveRegistry::load(&api.state);
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

    if let Some(status) = api.controller.as_ref().map(|link| link.status()) {
        let orders = status.orders;
        for (name, help, value) in [
            ("connected", "1 while the controller answers", u64::from(status.connected)),
            (
                "lease_expired",
                "1 while the lease of the rates is expired",
                u64::from(status.lease_expired),
            ),
            (
                "unacknowledged_outcomes",
                "Outcomes that the controller has not acknowledged",
                orders.unacknowledged as u64,
            ),
        ] {
            let name = format!("penstock_agent_controller_{name}");
            writer.gauge(&name, None, help, value as f64)?;
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
            ("reports", "Reports that the controller answered", status.reports),
            ("failures", "Attempts to report that failed", status.failures),
        ] {
            let name = format!("penstock_agent_controller_{name}");
            writer.counter(&name, None, help, value)?;
        }
    }

    let builtin = if tags.is_builtin() { "true" } else { "false" };
    writer.info(
        "penstock_agent_scitags_info",
        "Where the scitags registry is from",
        &[("source", &tags.source), ("builtin", builtin)],
    )?;
    writer.info("penstock_agent_info", "Version", &[("version", env!("CARGO_PKG_VERSION"))])
}
