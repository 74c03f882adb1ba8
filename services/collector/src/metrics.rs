//! Prometheus metrics. Label values are formats, owners, activities and causes: few, for any input.
//! No label has an address.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_flows::intake::IntakeCounts;
use penstock_http::metrics::{MetricWriter, Unit, bits_per_second};

use crate::query::{By, Query};
use crate::query_executor::{StoredRows, TimeBuckets, execute};
use crate::receive::SocketCounters;
use crate::shard::Shard;
use crate::shared::Shared;

/// Most owners, and activities, with a series of their own; the smallest are summed as other.
const TOP_LABELS: usize = 20;

/// Seconds over which rates are averaged.
const MEAN_S: i64 = 10;

pub(crate) fn write(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    inputs(shared, writer)?;
    intake(shared, writer)?;
    storage(shared, writer)?;
    clickhouse(shared, writer)?;
    archive(shared, writer)?;
    rates(shared, writer)?;
    alerts(shared, writer)
}

fn load(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn inputs(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let by_format = |of: fn(&SocketCounters) -> &AtomicU64| {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for input in &shared.inputs {
            *sums.entry(input.format.as_str()).or_default() += input.sum(of);
        }
        sums.into_iter().map(|(format, sum)| ([("format", format)], sum)).collect::<Vec<_>>()
    };
    for (name, help, of) in [
        (
            "penstock_collector_datagrams",
            "Datagrams taken from the kernel",
            (|socket| &socket.datagrams) as fn(&SocketCounters) -> &AtomicU64,
        ),
        ("penstock_collector_datagram_bytes", "Their bytes", |socket| &socket.bytes),
        (
            "penstock_collector_kernel_drops",
            "Datagrams that the kernel dropped because its buffer was full",
            |socket| &socket.kernel_drops,
        ),
        ("penstock_collector_refused", "Datagrams that are malformed or not trusted", |socket| {
            &socket.refused
        }),
        ("penstock_collector_socket_errors", "Errors of the sockets", |socket| &socket.errors),
    ] {
        writer.counters(name, None, help, by_format(of))?;
    }
    by_thread(shared, writer)?;
    writer.gauge(
        "penstock_collector_inputs_missing",
        None,
        "Sockets that could not be opened at the start",
        shared.missing.len() as f64,
    )
}

/// Counters of each receiving thread.
fn by_thread(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let sum = |thread: usize, of: fn(&SocketCounters) -> &AtomicU64| -> u64 {
        let sockets = shared.inputs.iter().filter_map(|input| input.sockets.get(thread));
        sockets.map(|socket| load(of(socket))).sum()
    };
    let threads = 0..shared.shards.len();
    let labelled = |of: &dyn Fn(usize) -> u64| {
        let values = threads.clone().map(|thread| ([("thread", thread.to_string())], of(thread)));
        values.collect::<Vec<_>>()
    };
    let of_shard = |of: fn(&Shard) -> &AtomicU64| labelled(&|at| load(of(&shared.shards[at])));
    for (name, help, values) in [
        (
            "penstock_collector_thread_datagrams",
            "Datagrams that a thread took from the kernel",
            labelled(&|thread| sum(thread, |socket| &socket.datagrams)),
        ),
        (
            "penstock_collector_thread_kernel_drops",
            "Datagrams of a thread that the kernel dropped because its buffer was full",
            labelled(&|thread| sum(thread, |socket| &socket.kernel_drops)),
        ),
        (
            "penstock_collector_thread_handed_over",
            "Datagrams and fireflies that a thread took from other threads",
            of_shard(|shard| &shard.handed_over),
        ),
        (
            "penstock_collector_thread_handover_drops",
            "Datagrams and fireflies for a thread that were dropped because its queue was full",
            of_shard(|shard| &shard.inbox_drops),
        ),
    ] {
        writer.counters(name, None, help, values)?;
    }
    Ok(())
}

fn intake(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let mut counts = IntakeCounts::default();
    let (mut exporters, mut states, mut flows, mut lost, mut gone) = (0, 0, 0, [0; 3], 0);
    for state in shared.shard_states() {
        let of_shard = state.intake.exporters();
        for exporter in of_shard.iter() {
            lost[0] += exporter.sequence.lost;
            lost[1] += exporter.records_lost();
            lost[2] += exporter.untracked;
        }
        counts.merge(&state.intake.counts());
        gone += of_shard.forgotten + of_shard.retired;
        exporters += of_shard.len();
        states += of_shard.states();
        // Each shard has a copy.
        flows = flows.max(state.intake.trust.firefly_flows());
    }
    for (name, help, value) in [
        ("penstock_collector_samples", "Samples of packets, or flows", counts.observations),
        ("penstock_collector_counter_samples", "Samples of counters", counts.counter_samples),
        ("penstock_collector_discarded", "Notifications of dropped packets", counts.discarded),
        ("penstock_collector_duplicates", "Datagrams received twice", counts.duplicates),
        (
            "penstock_collector_broken",
            "Samples or records that could not be read or contradict themselves",
            counts.broken,
        ),
        (
            "penstock_collector_implausible",
            "Samples and records of more traffic than any line carries",
            counts.implausible,
        ),
        ("penstock_collector_unknown", "Samples and sets that are not known", counts.unknown),
        ("penstock_collector_fireflies", "Fireflies that are trusted", counts.fireflies),
        ("penstock_collector_exporters_forgotten", "Exporters that were evicted", gone),
        ("penstock_collector_clock_steps", "Steps of the wall clock", load(&shared.clock_steps)),
        (
            "penstock_collector_live_events",
            "Events of the live feed that were computed: once for all clients with the same query",
            load(&shared.events),
        ),
        (
            "penstock_collector_slow_clients",
            "Clients of the live feed that did not keep up",
            load(&shared.slow_clients),
        ),
    ] {
        writer.counter(name, None, help, value)?;
    }
    let live = shared.live();
    let newest = live.newest();
    let groups = newest.map_or(0, |second| second.groups.rows.len());
    let hosts = newest.map_or(0, |second| second.hosts.rows.len());
    for (name, help, value) in [
        ("penstock_collector_exporters", "Exporters that are known", exporters),
        ("penstock_collector_states", "Data sources, interfaces and templates known", states),
        ("penstock_collector_firefly_flows", "Flows known from fireflies", flows),
        ("penstock_collector_groups", "Groups in the last second", groups),
        ("penstock_collector_hosts", "Hosts in the last second", hosts),
        ("penstock_collector_live_rows", "Sums kept in memory", live.rows()),
    ] {
        writer.gauge(name, None, help, value as f64)?;
    }
    drop(live);
    // Gauges instead of counters: an evicted exporter takes its losses along.
    for (name, help, value) in [
        (
            "penstock_collector_datagrams_missing",
            "Datagrams missing by the sequence numbers of exporters",
            lost[0],
        ),
        (
            "penstock_collector_records_missing",
            "Records missing by the sequence numbers of exporters",
            lost[1],
        ),
        ("penstock_collector_untracked", "States of exporters beyond the limits", lost[2]),
    ] {
        writer.gauge(name, None, help, value as f64)?;
    }
    Ok(())
}

fn storage(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let Some(store) = &shared.store else { return Ok(()) };
    let health = &store.health;
    for (name, help, value) in [
        ("penstock_collector_minutes_stored", "Minutes stored", &health.minutes),
        ("penstock_collector_rows_stored", "Rows stored", &health.rows),
        ("penstock_collector_store_errors", "Times that storing failed", &health.errors),
        ("penstock_collector_minutes_lost", "Minutes that could not be stored", &health.lost),
        ("penstock_collector_store_damaged", "Damaged files put aside", &health.damaged),
    ] {
        writer.counter(name, None, help, load(value))?;
    }
    let (waiting, bytes) = (load(&health.waiting) as f64, store.bytes() as f64);
    let help = "Minutes that wait to be stored";
    writer.gauge("penstock_collector_minutes_waiting", None, help, waiting)?;
    writer.gauge("penstock_collector_store", Some(&Unit::Bytes), "Size of the database", bytes)
}

fn clickhouse(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let Some(database) = &shared.clickhouse else { return Ok(()) };
    let health = &database.health;
    for (name, help, value) in [
        ("penstock_collector_clickhouse_rows", "Rows that ClickHouse has confirmed", &health.rows),
        ("penstock_collector_clickhouse_errors", "Times that ClickHouse failed", &health.errors),
        (
            "penstock_collector_clickhouse_rows_dropped",
            "Rows for ClickHouse that were dropped from the full spool",
            &health.rows_dropped,
        ),
    ] {
        writer.counter(name, None, help, load(value))?;
    }
    let help = "Batches that wait for ClickHouse";
    let waiting = load(&health.waiting) as f64;
    writer.gauge("penstock_collector_clickhouse_batches_waiting", None, help, waiting)?;
    let waiting = load(&health.waiting_bytes) as f64;
    writer.gauge("penstock_collector_clickhouse_spool", Some(&Unit::Bytes), "Their size", waiting)
}

fn archive(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let Some(archive) = &shared.archive else { return Ok(()) };
    let health = &archive.health;
    for (name, help, value) in [
        ("penstock_collector_parquet_records", "Samples in whole files", &health.records),
        ("penstock_collector_parquet_dropped", "Samples that were dropped", &health.dropped),
    ] {
        writer.counter(name, None, help, load(value))?;
    }
    let bytes = load(&health.bytes) as f64;
    writer.gauge("penstock_collector_parquet", Some(&Unit::Bytes), "Size of the files", bytes)
}

fn rates(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let seconds: Vec<_> = shared.live().seconds().rev().take(MEAN_S as usize).cloned().collect();
    let Some(start_s) = seconds.iter().map(|second| second.at_s).min() else { return Ok(()) };
    let end_s = seconds.iter().map(|second| second.at_s).max().unwrap_or(start_s) + 1;
    let span = TimeBuckets { start_s, step_s: end_s - start_s, buckets: 1 };
    let mean = |by| {
        let query = Query { view: shared.config.combine, ..Query::of(by) };
        let seconds = seconds.iter().map(|second| &**second);
        execute(shared, &query, span, &StoredRows::default(), seconds, &[])
    };
    let bits = bits_per_second();
    let activities = mean(By::Activity);
    let covered = activities.covered_s[0].max(f64::MIN_POSITIVE);
    let rate = |bytes: f64| bytes * 8.0 / covered;
    let total = rate(activities.total[0].bytes);
    let help = "Rate of all traffic, mean of ten seconds";
    writer.gauge("penstock_collector_rate", Some(&bits), help, total)?;
    let error = rate(activities.half_widths(&activities.total)[0]);
    let help = "Half-width of its 95 % interval";
    writer.gauge("penstock_collector_rate_error", Some(&bits), help, error)?;

    let first = crate::api::first(&activities, TOP_LABELS);
    let values: Vec<_> = first
        .iter()
        .map(|(key, cells)| {
            let (owner, activity) = key.split_once('/').unwrap_or((key, ""));
            (vec![("owner", owner), ("activity", activity)], rate(cells[0].bytes))
        })
        .collect();
    let help = "Rate by owner and activity, mean of ten seconds, the greatest twenty";
    writer.gauges("penstock_collector_activity_rate", Some(&bits), help, values)?;

    let owners = mean(By::Owner);
    let first = crate::api::first(&owners, TOP_LABELS);
    let values: Vec<_> = first
        .iter()
        .map(|(key, cells)| (vec![("owner", key.as_str())], rate(cells[0].bytes)))
        .collect();
    let help = "Rate by owner, mean of ten seconds, the greatest twenty";
    writer.gauges("penstock_collector_owner_rate", Some(&bits), help, values)?;
    let all: f64 = owners.series.iter().map(|(_, cells)| cells[0].bytes).sum();
    let part = |name: &str| {
        let found = owners.series.iter().find(|(key, _)| key == name);
        found.map_or(0.0, |(_, cells)| cells[0].bytes)
    };
    let (unlabelled, untrusted) = (part("unlabelled"), part("untrusted"));
    let labelled = all - unlabelled - untrusted;
    let share = |bytes: f64| if all > 0.0 { bytes / all } else { 0.0 };
    let values = [("labelled", labelled), ("unlabelled", unlabelled), ("untrusted", untrusted)]
        .map(|(label, bytes)| (vec![("label", label)], share(bytes)));
    writer.gauges(
        "penstock_collector_label_share",
        Some(&Unit::Ratios),
        "Share of the traffic that is labelled, unlabelled and untrusted",
        values,
    )
}

fn alerts(shared: &Shared, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
    let alerts = shared.alert_states().clone();
    let values: Vec<_> = alerts
        .iter()
        .map(|alert| {
            let firing = if alert.firing { 1.0 } else { 0.0 };
            (vec![("alert", alert.rule.name.as_str())], firing)
        })
        .collect();
    writer.gauges("penstock_collector_alert_firing", None, "1 while the alert fires", values)?;
    let help = "Alerts that no webhook accepted";
    writer.counter("penstock_collector_webhooks_failed", None, help, load(&shared.webhooks_failed))
}
