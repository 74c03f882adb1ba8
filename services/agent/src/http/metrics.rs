//! Metrics of the agent, read from the mover at each scrape.
//!
//! Names are `penstock_<component>_<quantity>_<unit>`; counters end in `_total`. No label identifies a
//! transfer: their number is unbounded, and `/api/v1/transfers` lists them.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use penstock_mover::firefly::STATES;

use super::AgentApi;
use crate::registry::ActiveRegistry;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn metrics(
    State(api): State<Arc<AgentApi>>,
) -> ([(HeaderName, &'static str); 1], String) {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(api)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes everything");
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text)
}

#[derive(Debug)]
struct Scrape(Arc<AgentApi>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let api = &self.0;
        let counters = api.mover.counters();
        let transfers = api.mover.transfers();
        let running = || transfers.iter().filter(|t| matches!(t.state, "running" | "waiting"));
        let rate = |direction| -> u64 {
            running().filter(|t| t.direction == direction).map(|t| t.bits_per_second).sum()
        };

        let mut counter = |name: &str, unit: Option<&Unit>, help: &str, value: u64| {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
        };
        let bytes = Some(&Unit::Bytes);
        counter(
            "penstock_mover_connections",
            None,
            "Connections to the mover's port",
            counters.connections,
        )?;
        counter(
            "penstock_mover_refused",
            None,
            "Connections and sessions refused",
            counters.refused,
        )?;
        counter(
            "penstock_mover_received",
            bytes,
            "Bytes of files received",
            counters.received_bytes,
        )?;
        counter("penstock_mover_sent", bytes, "Bytes of files sent", counters.sent_bytes)?;
        counter(
            "penstock_mover_transfers_started",
            None,
            "Transfers started",
            counters.transfers_started,
        )?;
        counter(
            "penstock_mover_transfers_failed",
            None,
            "Transfers failed",
            counters.transfers_failed,
        )?;
        counter(
            "penstock_mover_blocks_repeated",
            None,
            "Blocks sent or received again",
            counters.blocks_repeated,
        )?;
        counter(
            "penstock_mover_streams_lost",
            None,
            "Data streams that broke",
            counters.streams_lost,
        )?;
        let refused = api.traffic.refused();
        counter(
            "penstock_agent_http_connections_refused",
            None,
            "HTTP connections over the limit",
            refused,
        )?;
        for (class, answers) in ["2xx", "4xx", "5xx"].into_iter().zip(api.traffic.answers()) {
            let name = format!("penstock_agent_http_answers_{class}");
            counter(&name, None, "HTTP requests answered with this class of status", answers)?;
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
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (state, count) in STATES.into_iter().zip(counts) {
                ConstCounter::new(count).encode(family.encode_family(&[("state", state)])?)?;
            }
        }

        let mut gauge = |name: &str, unit: Option<&Unit>, help: &str, value: f64| {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
        };
        let bits = Unit::Other("bits_per_second".to_owned());
        let streams: u64 = running().map(|t| u64::from(t.streams)).sum();
        gauge(
            "penstock_mover_transfers_running",
            None,
            "Transfers now running",
            running().count() as f64,
        )?;
        gauge(
            "penstock_mover_streams_running",
            None,
            "Data streams now connected",
            streams as f64,
        )?;
        gauge(
            "penstock_mover_receive_rate",
            Some(&bits),
            "Rate of all transfers received now",
            rate("receive") as f64,
        )?;
        gauge(
            "penstock_mover_send_rate",
            Some(&bits),
            "Rate of all transfers sent now",
            rate("send") as f64,
        )?;
        let connections = api.traffic.open();
        gauge(
            "penstock_agent_http_connections",
            None,
            "HTTP connections now open",
            connections as f64,
        )?;
        let cpu = penstock_sys::machine::process_cpu().as_secs_f64();
        gauge("penstock_agent_cpu", Some(&Unit::Seconds), "CPU time used since the start", cpu)?;
        let memory = penstock_sys::machine::peak_resident_bytes() as f64;
        gauge(
            "penstock_agent_resident_peak",
            bytes,
            "Most memory resident since the start",
            memory,
        )?;
        let started =
            api.started.duration_since(std::time::UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
        gauge(
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
                gauge(name, Some(&Unit::Seconds), help, time.seconds() as f64)?;
            }
        }

        if let Some(status) = api.controller.as_ref().map(|link| link.status()) {
            let orders = status.orders;
            for (name, help, value) in [
                ("connected", "Whether the controller answered last", u64::from(status.connected)),
                ("lapsed", "Whether its lease is over", u64::from(status.lapsed)),
                ("orders_listed", "Orders that it wants to stand", orders.listed as u64),
                ("orders_waiting", "Orders that wait", orders.waiting as u64),
                ("orders_running", "Orders that run", orders.running as u64),
                ("untold", "Outcomes that it has not acknowledged", orders.untold as u64),
            ] {
                let name = format!("penstock_agent_controller_{name}");
                gauge(&name, None, help, value as f64)?;
            }
            for (name, help, value) in [
                ("reports", "Reports that the controller answered", status.reports),
                ("failures", "Attempts to report that failed", status.failures),
            ] {
                let metric = ConstCounter::new(value);
                let name = format!("penstock_agent_controller_{name}");
                metric.encode(encoder.encode_descriptor(
                    &name,
                    help,
                    None,
                    metric.metric_type(),
                )?)?;
            }
        }

        let mut info = |name: &str, help: &str, labels: &[(&str, &str)]| {
            let info = ConstGauge::new(1_u64);
            let mut family = encoder.encode_descriptor(name, help, None, info.metric_type())?;
            info.encode(family.encode_family(&labels)?)
        };
        let builtin = if tags.is_builtin() { "true" } else { "false" };
        info(
            "penstock_agent_scitags_info",
            "Where the scitags registry is from",
            &[("source", &tags.source), ("builtin", builtin)],
        )?;
        info("penstock_agent_info", "Version", &[("version", env!("CARGO_PKG_VERSION"))])?;
        api.roles.iter().try_for_each(|role| role.metrics(&mut encoder))
    }
}
