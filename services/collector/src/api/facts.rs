//! Exporters and their interfaces, and the state of the collector itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use penstock_flows::exporter::{ExportProtocol, Exporter};
use penstock_flows::intake::IntakeCounts;
use penstock_flows::rates::SamplingCalibration;
use penstock_flows::sflow::counters::STATUS_OPER_UP;
use penstock_http::{ProblemDetails, Refused};
use serde::Serialize;
use utoipa::ToSchema;

use super::{RawQuery, TelemetryParams};
use crate::directory::exporter_key;
use crate::live::{LIVE_SECONDS, ROWS_MAX};
use crate::shared::{Shared, unix_now};

/// Most exporters or interfaces in an answer.
const LIST_MAX: usize = 10_000;

/// An exporter with its losses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryExporter)]
pub(crate) struct ExporterFacts {
    /// Key, as in filters.
    key: String,
    /// Name by the configuration, or as the exporter reports it.
    name: String,
    /// Source address of its datagrams.
    #[schema(value_type = String)]
    from: IpAddr,
    /// sflow, netflow5, netflow9 or ipfix.
    dialect: &'static str,
    /// True for a host that exports its own traffic.
    host: bool,
    /// Time of its first datagram, in seconds since 1970.
    first_heard_s: f64,
    /// Time of its last datagram, in seconds since 1970.
    last_heard_s: f64,
    /// Count of received datagrams.
    datagrams: u64,
    /// Datagrams missing by their sequence numbers.
    datagrams_lost: u64,
    /// Share of its datagrams that is missing, 0 to 1.
    loss_share: f64,
    /// Datagrams received twice.
    duplicates: u64,
    /// Count of restarts, by sequence numbers or uptime.
    restarts: u64,
    /// Records that cannot be parsed, and samples whose fields contradict each other.
    broken: u64,
    /// Samples and records of more traffic than any line carries, which are not counted.
    implausible: u64,
    /// Samples and sets of unknown format or template.
    unknown: u64,
    /// Records of IPFIX and NetFlow missing by their sequence numbers.
    records_lost: u64,
    /// Samples that the exporter dropped.
    agent_drops: u64,
    /// Samples missing by their sequence numbers.
    samples_lost: u64,
}

/// All exporters with their count.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryExporters)]
pub(crate) struct ExporterList {
    /// Exporters by key.
    exporters: Vec<ExporterFacts>,
    /// Total count; the list ends at 10,000.
    count: usize,
}

fn dialect(dialect: ExportProtocol) -> &'static str {
    match dialect {
        ExportProtocol::Sflow => "sflow",
        ExportProtocol::NetflowV5 => "netflow5",
        ExportProtocol::NetflowV9 => "netflow9",
        ExportProtocol::Ipfix => "ipfix",
    }
}

/// Lists exporters with their losses.
#[utoipa::path(get, path = "/api/v1/telemetry/exporters", security((), ("token" = [])),
    responses((status = 200, body = ExporterList, description = "Exporters with their losses"), Refused))]
pub(super) async fn exporters(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<ExporterList>, ProblemDetails> {
    TelemetryParams::new(given)?.none()?;
    let directory = shared.directory();
    let facts = |exporter: &Exporter| {
        let key = exporter_key(&exporter.key);
        let entry = directory.get(exporter.id);
        let name = entry.and_then(|entry| entry.name.as_deref()).unwrap_or(&key).to_owned();
        let (mut agent_drops, mut samples_lost) = (0, 0);
        for (_, _, source) in exporter.sources() {
            agent_drops += source.agent_drops;
            samples_lost += source.sequence.lost;
        }
        ExporterFacts {
            name,
            key,
            from: exporter.from,
            dialect: dialect(exporter.key.protocol),
            host: entry.is_some_and(|entry| entry.host),
            first_heard_s: shared.started_s + exporter.first_seen.as_secs_f64(),
            last_heard_s: shared.started_s + exporter.last_seen.as_secs_f64(),
            datagrams: exporter.sequence.received,
            datagrams_lost: exporter.sequence.lost,
            loss_share: exporter.loss(),
            duplicates: exporter.sequence.duplicates,
            restarts: exporter.sequence.restarts.max(exporter.reboots),
            broken: exporter.broken,
            implausible: exporter.implausible,
            unknown: exporter.unknown,
            records_lost: exporter.records_lost(),
            agent_drops,
            samples_lost,
        }
    };
    let (mut exporters, mut count) = (Vec::new(), 0);
    for state in shared.shard_states() {
        let of_shard = state.intake.exporters();
        count += of_shard.len();
        exporters.extend(of_shard.iter().take(LIST_MAX - exporters.len()).map(facts));
    }
    drop(directory);
    exporters.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(Json(ExporterList { exporters, count }))
}

/// One direction of an interface.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = TelemetryDirection)]
pub(crate) struct DirectionFacts {
    /// Counted bits per second over the last interval of its counters; null if not counted.
    counted_bps: Option<f64>,
    /// Counted packets per second; null if not counted.
    counted_pps: Option<f64>,
    /// Share of its speed in use, 0 to 1.
    use_share: Option<f64>,
    /// Packets dropped in that interval.
    discards: Option<u64>,
    /// Packets with errors in that interval.
    errors: Option<u64>,
    /// Counted octets divided by sampled octets, smoothed; 1 until calibrated.
    calibration: f64,
    /// The same ratio of the last interval with enough samples.
    calibration_last: Option<f64>,
    /// Half-width of its 95 % interval.
    calibration_error: Option<f64>,
    /// True after lasting disagreement of samples and counters, which an operator should check.
    disagrees: bool,
}

/// An interface of an exporter.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = TelemetryInterface)]
pub(crate) struct InterfaceReport {
    /// Key, as in filters.
    pub(super) key: String,
    /// Display name of the interface.
    pub(super) name: String,
    /// Key of the exporter.
    pub(super) exporter: String,
    /// Name of the exporter, which is the node's name in the topology.
    pub(super) host: String,
    /// Name of the interface, if the exporter reports it.
    pub(super) interface: Option<String>,
    /// Site of that node in the topology.
    site: Option<String>,
    /// ifIndex of the interface.
    pub(super) index: u32,
    /// Speed in bits per second, as reported.
    speed_bps: Option<u64>,
    /// True if it is up; null if its exporter does not report it.
    pub(super) up: Option<bool>,
    /// Time of its last counters, in seconds since 1970.
    #[serde(skip)]
    pub(super) told_s: Option<f64>,
    /// Sampling rate, 1 of this many packets; null without samples.
    sampling_rate: Option<u32>,
    /// Sampling rate corrected by lost samples.
    effective_sampling_rate: Option<f64>,
    /// Length of the last interval of its counters, in seconds.
    pub(super) interval_s: Option<f64>,
    /// Traffic that the interface receives.
    #[serde(rename = "in")]
    pub(super) input: DirectionFacts,
    /// Traffic that the interface sends.
    #[serde(rename = "out")]
    pub(super) output: DirectionFacts,
}

impl DirectionFacts {
    pub(super) fn counted_bps(&self) -> Option<f64> {
        self.counted_bps
    }
}

/// All interfaces with their count.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryInterfaces)]
pub(crate) struct Interfaces {
    /// Interfaces by key.
    interfaces: Vec<InterfaceReport>,
    /// Total count; the list ends at 10,000.
    count: usize,
}

fn calibrated(facts: &mut DirectionFacts, calibration: &SamplingCalibration) {
    facts.calibration = calibration.factor();
    facts.calibration_last = calibration.last().map(|last| last.value);
    facts.calibration_error = calibration.last().map(|last| last.error_95);
    facts.disagrees = calibration.disagrees();
}

/// All interfaces, unordered, and their count.
pub(super) fn all_interfaces(shared: &Shared) -> (Vec<InterfaceReport>, usize) {
    let directory = shared.directory();
    let (mut all, mut count) = (Vec::new(), 0);
    let mut add = |exporter: &Exporter| {
        let key = exporter_key(&exporter.key);
        let host = directory.get(exporter.id).and_then(|entry| entry.name.as_deref());
        let host = host.unwrap_or(&key);
        let topology = shared.config.topology.as_ref();
        let site = topology.and_then(|topology| {
            let node = &topology.nodes[topology.node(host)?.0];
            Some(topology.sites[node.site?.0].name.clone())
        });
        for (index, state) in exporter.interfaces() {
            count += 1;
            if all.len() >= LIST_MAX {
                continue;
            }
            let direction = |bps: Option<f64>,
                             counted: Option<penstock_flows::interface::CounterDelta>,
                             length: f64| DirectionFacts {
                counted_bps: bps.map(f64::round),
                counted_pps: counted.and_then(|c| c.packets).map(|p| (p as f64 / length).round()),
                use_share: bps.zip(state.speed_bps).map(|(bps, speed)| bps / speed as f64),
                discards: counted.and_then(|counted| counted.discards),
                errors: counted.and_then(|counted| counted.errors),
                ..DirectionFacts::default()
            };
            let interval = state.interval;
            let length = interval.map_or(1.0, |interval| interval.length.as_secs_f64());
            let mut input = direction(
                interval.and_then(|interval| interval.input_bps()),
                interval.map(|interval| interval.input),
                length,
            );
            let mut output = direction(
                interval.and_then(|interval| interval.output_bps()),
                interval.map(|interval| interval.output),
                length,
            );
            calibrated(&mut input, &state.calibration_in);
            calibrated(&mut output, &state.calibration_out);
            let source = exporter
                .sources()
                .filter(|(source, ..)| source.class == 0 && source.index == index)
                .map(|(_, _, state)| state)
                .find(|state| state.sampling_rate > 0);
            all.push(InterfaceReport {
                name: match &state.name {
                    Some(name) => format!("{host} {name}"),
                    None => format!("{host} #{index}"),
                },
                key: format!("{key}:{index}"),
                exporter: key.clone(),
                host: host.to_owned(),
                interface: state.name.clone(),
                site: site.clone(),
                index,
                speed_bps: state.speed_bps,
                up: state.status.map(|status| status & STATUS_OPER_UP != 0),
                told_s: state.counters_at.map(|time| shared.started_s + time.as_secs_f64()),
                sampling_rate: source.map(|source| source.sampling_rate),
                effective_sampling_rate: source.map(|source| source.effective_rate()),
                interval_s: interval.map(|interval| interval.length.as_secs_f64()),
                input,
                output,
            });
        }
    };
    for state in shared.shard_states() {
        state.intake.exporters().iter().for_each(&mut add);
    }
    (all, count)
}

/// Lists interfaces with their counters, compared with samples.
#[utoipa::path(get, path = "/api/v1/telemetry/interfaces", security((), ("token" = [])),
    responses((status = 200, body = Interfaces, description = "Interfaces with their counters and rates"), Refused))]
pub(super) async fn interfaces(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<Interfaces>, ProblemDetails> {
    TelemetryParams::new(given)?.none()?;
    let (mut interfaces, count) = all_interfaces(&shared);
    interfaces.sort_by(|a, b| (&a.exporter, a.index).cmp(&(&b.exporter, b.index)));
    Ok(Json(Interfaces { interfaces, count }))
}

/// A socket with its counters.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryInput)]
pub(crate) struct InputFacts {
    /// sflow, ipfix or fireflies.
    format: &'static str,
    /// Local address and port.
    address: String,
    /// Receive buffer of the kernel in bytes.
    buffer_bytes: usize,
    /// Count of received datagrams.
    datagrams: u64,
    /// Bytes of the received datagrams.
    bytes: u64,
    /// Datagrams dropped by the kernel because its buffer was full.
    kernel_drops: u64,
    /// Datagrams that are malformed or not trusted.
    refused: u64,
    /// Errors of the socket.
    errors: u64,
}

/// Counts of the input and its outcome.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryReceived)]
pub(crate) struct InputCounts {
    /// Datagrams with a valid header.
    datagrams: u64,
    /// Datagrams without a valid header.
    refused: u64,
    /// Datagrams received twice.
    duplicates: u64,
    /// Sampled packets and exported flows.
    samples: u64,
    /// Samples of counters.
    counter_samples: u64,
    /// Notifications of dropped packets.
    discarded: u64,
    /// Samples, sets or records that cannot be parsed, and samples whose fields contradict each other.
    broken: u64,
    /// Samples of unknown format, and sets without a template.
    unknown: u64,
    /// Fireflies that are trusted.
    fireflies: u64,
    /// Fireflies that are not trusted.
    fireflies_refused: u64,
}

/// Use of a bounded resource.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryUse)]
pub(crate) struct Use {
    /// Count in use.
    used: usize,
    /// Upper limit of the count.
    limit: usize,
}

/// SQLite store of minutes and hours.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryStorage)]
pub(crate) struct Storage {
    /// Path of the database.
    path: String,
    /// Size of the database in bytes.
    bytes: u64,
    /// Limit of its size in bytes.
    limit_bytes: u64,
    /// Minutes stored since the start.
    minutes: u64,
    /// Rows stored since the start.
    rows: u64,
    /// Count of failed writes.
    errors: u64,
    /// Minutes lost because they could not be stored.
    minutes_lost: u64,
    /// Minutes that wait to be stored.
    minutes_waiting: u64,
    /// Damaged files that were set aside.
    damaged: u64,
    /// Start of the newest stored minute, in seconds since 1970.
    newest_s: Option<i64>,
    /// Current error; null if none.
    trouble: Option<String>,
}

/// ClickHouse database shared by collectors.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryClickHouse)]
pub(crate) struct ClickHouseFacts {
    /// URL of the server.
    url: String,
    /// Name of this collector in the database.
    name: String,
    /// Batches stored since the start.
    batches: u64,
    /// Rows stored since the start.
    rows: u64,
    /// Failed inserts and queries.
    errors: u64,
    /// Directory of waiting batches.
    spool: String,
    /// Count of waiting batches.
    batches_waiting: u64,
    /// Bytes of waiting batches.
    bytes_waiting: u64,
    /// Limit of waiting bytes.
    limit_bytes: u64,
    /// Batches dropped at the limit or lost.
    batches_dropped: u64,
    /// Rows of these batches.
    rows_dropped: u64,
    /// Start of the newest stored minute, in seconds since 1970.
    newest_s: Option<i64>,
    /// Current error; null if none.
    trouble: Option<String>,
}

/// Parquet archive of raw samples.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryArchive)]
pub(crate) struct ArchiveFacts {
    /// Directory of the files.
    directory: String,
    /// Complete files written since the start.
    files: u64,
    /// Records in these files.
    records: u64,
    /// Records that were dropped.
    dropped: u64,
    /// Bytes of all files in the directory.
    bytes: u64,
    /// Limit of these bytes, the newest file excepted.
    limit_bytes: u64,
    /// Current error; null if none.
    trouble: Option<String>,
}

/// State of the collector.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryStatus)]
pub(crate) struct TelemetryStatus {
    /// Time of the answer, in seconds since 1970.
    now_s: f64,
    /// Start of the collector, in seconds since 1970.
    started_s: f64,
    /// End of the newest second that was closed, in seconds since 1970; null before the first.
    closed_until_s: Option<i64>,
    /// End of the newest second that was measured; null before the first. `now_s` less this is the age of the data.
    measured_until_s: Option<i64>,
    /// Lag of the collector: age of the last datagram processed from its slowest socket, in
    /// seconds.
    lag_s: f64,
    /// Receive time of the last datagram of any exporter, in seconds since 1970; null before the first.
    last_datagram_s: Option<f64>,
    /// True if exporters are silent for unusually long: such seconds are unknown, not zero.
    silent: bool,
    /// Datagrams processed after their second was closed; they count in a later one.
    late_datagrams: u64,
    /// Sockets with their counters.
    inputs: Vec<InputFacts>,
    /// A line for each socket that could not be opened.
    missing: Vec<String>,
    /// Counts since the start.
    received: InputCounts,
    /// Known exporters.
    exporters: Use,
    /// Data sources, interfaces and templates of exporters.
    states: Use,
    /// Flows known from fireflies.
    firefly_flows: Use,
    /// Groups in the last second.
    groups: Use,
    /// Hosts in the last second.
    hosts: Use,
    /// Seconds in memory.
    live_seconds: Use,
    /// Sums in memory.
    live_rows: Use,
    /// SQLite store; null if storage is off.
    storage: Option<Storage>,
    /// ClickHouse database; null if not configured.
    clickhouse: Option<ClickHouseFacts>,
    /// Parquet archive; null if not configured.
    parquet: Option<ArchiveFacts>,
    /// Count of steps of the wall clock.
    clock_steps: u64,
    /// Clients of the live feed dropped because they were too slow.
    slow_clients: u64,
}

/// Reports the state of the collector: input, losses and room left.
#[utoipa::path(get, path = "/api/v1/telemetry/status", operation_id = "telemetry_status", security((), ("token" = [])),
    responses((status = 200, body = TelemetryStatus, description = "State of the collector"), Refused))]
pub(super) async fn status(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<TelemetryStatus>, ProblemDetails> {
    use penstock_flows::{exporter, scitag};
    TelemetryParams::new(given)?.none()?;
    let (mut counts, mut exporters, mut states) = (IntakeCounts::default(), 0, 0);
    let (mut flows, mut newest_datagram) = (0, None);
    for state in shared.shard_states() {
        counts.merge(&state.intake.counts());
        exporters += state.intake.exporters().len();
        states += state.intake.exporters().states();
        // Each shard has a copy.
        flows = flows.max(state.intake.trust.firefly_flows());
        newest_datagram = newest_datagram.max(state.output.arrivals.newest());
    }
    let now = shared.now();
    let line = shared.timeline();
    let silent = shared.arrivals().is_cut_off_since(newest_datagram, now);
    let last_datagram = newest_datagram.map(|at| line.wall_s(at));
    let live = shared.live();
    let newest = live.newest();
    let of = |used, limit| Use { used, limit };
    let get = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let inputs = shared.inputs.iter().map(|input| InputFacts {
        format: input.format.as_str(),
        address: input.address.to_string(),
        buffer_bytes: input.buffer_bytes,
        datagrams: input.sum(|socket| &socket.datagrams),
        bytes: input.sum(|socket| &socket.bytes),
        kernel_drops: input.sum(|socket| &socket.kernel_drops),
        refused: input.sum(|socket| &socket.refused),
        errors: input.sum(|socket| &socket.errors),
    });
    Ok(Json(TelemetryStatus {
        now_s: unix_now(),
        started_s: shared.started_s,
        closed_until_s: newest.map(|second| second.at_s + 1),
        measured_until_s: live.measured_until_s(),
        lag_s: now.saturating_sub(shared.drained()).as_secs_f64(),
        last_datagram_s: last_datagram,
        silent,
        late_datagrams: get(&shared.late_datagrams),
        inputs: inputs.collect(),
        missing: shared.missing.clone(),
        received: InputCounts {
            datagrams: counts.datagrams,
            refused: counts.refused,
            duplicates: counts.duplicates,
            samples: counts.observations,
            counter_samples: counts.counter_samples,
            discarded: counts.discarded,
            broken: counts.broken,
            unknown: counts.unknown,
            fireflies: counts.fireflies,
            fireflies_refused: counts.fireflies_refused,
        },
        exporters: of(exporters, exporter::EXPORTERS_MAX + exporter::NEWCOMERS_MAX),
        states: of(states, exporter::STATES_TOTAL_MAX),
        firefly_flows: of(flows, scitag::FIREFLY_FLOWS_MAX),
        groups: of(newest.map_or(0, |s| s.groups.rows.len()), crate::second::GROUPS_MAX),
        hosts: of(newest.map_or(0, |s| s.hosts.rows.len()), crate::second::GROUPS_MAX),
        live_seconds: of(live.seconds().count(), LIVE_SECONDS),
        live_rows: of(live.rows(), ROWS_MAX),
        storage: shared.store.as_ref().map(|store| Storage {
            path: store.path().display().to_string(),
            bytes: store.bytes(),
            limit_bytes: shared.config.store_bytes_max,
            minutes: get(&store.health.minutes),
            rows: get(&store.health.rows),
            errors: get(&store.health.errors),
            minutes_lost: get(&store.health.lost),
            minutes_waiting: get(&store.health.waiting),
            damaged: get(&store.health.damaged),
            newest_s: Some(store.health.newest_s.load(Ordering::Relaxed)).filter(|s| *s > 0),
            trouble: store.trouble(),
        }),
        clickhouse: shared.clickhouse.as_ref().map(|database| ClickHouseFacts {
            url: database.config.url.to_string(),
            name: database.config.name.clone(),
            batches: get(&database.health.batches),
            rows: get(&database.health.rows),
            errors: get(&database.health.errors),
            spool: database.spool.display().to_string(),
            batches_waiting: get(&database.health.waiting),
            bytes_waiting: get(&database.health.waiting_bytes),
            limit_bytes: database.config.spool_bytes_max,
            batches_dropped: get(&database.health.batches_dropped),
            rows_dropped: get(&database.health.rows_dropped),
            newest_s: Some(database.health.newest_s.load(Ordering::Relaxed)).filter(|s| *s > 0),
            trouble: database.trouble(),
        }),
        parquet: shared.archive.as_ref().map(|archive| ArchiveFacts {
            directory: archive.config.directory.display().to_string(),
            files: get(&archive.health.files),
            records: get(&archive.health.records),
            dropped: get(&archive.health.dropped),
            bytes: get(&archive.health.bytes),
            limit_bytes: archive.config.bytes_max,
            trouble: archive.health.trouble(),
        }),
        clock_steps: get(&shared.clock_steps),
        slow_clients: get(&shared.slow_clients),
    }))
}
