//! Facts about exporters and their interfaces, and the state of the collector itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use penstock_flows::exporter::ExportProtocol;
use penstock_flows::rates::SamplingCalibration;
use penstock_flows::sflow::counters::STATUS_OPER_UP;
use penstock_http::{ApiError, ErrorBody};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Given, Params};
use crate::directory::exporter_key;
use crate::live::{ROWS_MAX, SECONDS};
use crate::shared::{Shared, unix_now};

/// Most exporters or interfaces told at once.
const LIST_MAX: usize = 10_000;

/// An exporter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryExporter)]
pub(crate) struct ExporterFacts {
    /// As filters take it.
    key: String,
    /// By its own word or the configuration's.
    name: String,
    /// Where its datagrams come from.
    #[schema(value_type = String)]
    from: IpAddr,
    /// sflow, netflow5, netflow9 or ipfix.
    dialect: &'static str,
    /// Whether it is a host that tells of itself.
    host: bool,
    /// When it was first heard, in seconds since 1970.
    first_heard_s: f64,
    /// When it was last heard.
    last_heard_s: f64,
    /// Datagrams that came.
    datagrams: u64,
    /// Datagrams that are missing by their numbers.
    datagrams_lost: u64,
    /// Of those it sent, 0 to 1.
    loss_share: f64,
    /// Datagrams that came twice.
    duplicates: u64,
    /// Times that its numbers or its uptime started over.
    restarts: u64,
    /// Records that could not be read.
    broken: u64,
    /// Samples and sets that are not known.
    unknown: u64,
    /// Records of IPFIX and NetFlow that are missing by their numbers.
    records_lost: u64,
    /// Samples that it lost itself.
    agent_drops: u64,
    /// Samples that are missing by their numbers.
    samples_lost: u64,
}

/// All exporters.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryExporters)]
pub(crate) struct Exporters {
    /// By key.
    exporters: Vec<ExporterFacts>,
    /// How many there are; the list ends at 10,000.
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

/// Who sends telemetry, and what of it is missing.
#[utoipa::path(get, path = "/api/v1/telemetry/exporters", security((), ("token" = [])),
    responses((status = 200, body = Exporters), (status = "4XX", body = ErrorBody, content_type = "application/problem+json")))]
pub(super) async fn exporters(
    State(shared): State<Arc<Shared>>,
    given: Given,
) -> Result<Json<Exporters>, ApiError> {
    Params::new(given)?.none()?;
    let intake = shared.intake();
    let directory = shared.directory();
    let count = intake.exporters().len();
    let facts = intake.exporters().iter().take(LIST_MAX).map(|exporter| {
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
            unknown: exporter.unknown,
            records_lost: exporter.records_lost,
            agent_drops,
            samples_lost,
        }
    });
    let mut exporters: Vec<_> = facts.collect();
    drop((intake, directory));
    exporters.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(Json(Exporters { exporters, count }))
}

/// A direction of an interface.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = TelemetryDirection)]
pub(crate) struct DirectionFacts {
    /// Counted bits per second over the last interval of its counters; null where they are not counted.
    counted_bps: Option<f64>,
    /// Counted packets per second.
    counted_pps: Option<f64>,
    /// Of its speed, 0 to 1.
    use_share: Option<f64>,
    /// Packets dropped in that interval.
    discards: Option<u64>,
    /// Broken packets in that interval.
    errors: Option<u64>,
    /// Counted octets by sampled octets, smoothed; 1 until something is known.
    calibration: f64,
    /// The same of the last interval that had samples enough.
    calibration_last: Option<f64>,
    /// Half-width of its 95 % interval.
    calibration_error: Option<f64>,
    /// Samples and counters have disagreed for so long that someone should look.
    disagrees: bool,
}

/// An interface of an exporter.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = TelemetryInterface)]
pub(crate) struct InterfaceFacts {
    /// As filters take it.
    pub(super) key: String,
    /// For people.
    pub(super) name: String,
    /// The exporter's key.
    pub(super) exporter: String,
    /// The exporter's name, which is the node's in the topology.
    pub(super) host: String,
    /// Its own name, where the exporter tells it.
    pub(super) interface: Option<String>,
    /// Site of that node in the topology.
    site: Option<String>,
    /// Its number.
    pub(super) index: u32,
    /// By the exporter's word.
    speed_bps: Option<u64>,
    /// Whether it is up; null where its exporter does not tell.
    pub(super) up: Option<bool>,
    /// When its counters came last, in seconds since 1970.
    #[serde(skip)]
    pub(super) told_s: Option<f64>,
    /// One of so many packets is sampled; null where nothing was sampled.
    sampling_rate: Option<u32>,
    /// The same with all that was lost.
    effective_sampling_rate: Option<f64>,
    /// How long the last interval of its counters was.
    pub(super) interval_s: Option<f64>,
    /// What comes in.
    #[serde(rename = "in")]
    pub(super) input: DirectionFacts,
    /// What goes out.
    #[serde(rename = "out")]
    pub(super) output: DirectionFacts,
}

impl DirectionFacts {
    pub(super) fn counted_bps(&self) -> Option<f64> {
        self.counted_bps
    }
}

/// All interfaces.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryInterfaces)]
pub(crate) struct Interfaces {
    /// By key.
    interfaces: Vec<InterfaceFacts>,
    /// How many there are; the list ends at 10,000.
    count: usize,
}

fn calibrated(facts: &mut DirectionFacts, calibration: &SamplingCalibration) {
    facts.calibration = calibration.factor();
    facts.calibration_last = calibration.last().map(|last| last.value);
    facts.calibration_error = calibration.last().map(|last| last.error_95);
    facts.disagrees = calibration.disagrees();
}

/// All of them, unordered, and how many there are.
pub(super) fn all_interfaces(shared: &Shared) -> (Vec<InterfaceFacts>, usize) {
    let intake = shared.intake();
    let directory = shared.directory();
    let (mut all, mut count) = (Vec::new(), 0);
    for exporter in intake.exporters().iter() {
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
            all.push(InterfaceFacts {
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
                told_s: state.counters_at.map(|told| shared.started_s + told.as_secs_f64()),
                sampling_rate: source.map(|source| source.sampling_rate),
                effective_sampling_rate: source.map(|source| source.effective_rate()),
                interval_s: interval.map(|interval| interval.length.as_secs_f64()),
                input,
                output,
            });
        }
    }
    (all, count)
}

/// Interfaces with what they count, and how samples compare.
#[utoipa::path(get, path = "/api/v1/telemetry/interfaces", security((), ("token" = [])),
    responses((status = 200, body = Interfaces), (status = "4XX", body = ErrorBody, content_type = "application/problem+json")))]
pub(super) async fn interfaces(
    State(shared): State<Arc<Shared>>,
    given: Given,
) -> Result<Json<Interfaces>, ApiError> {
    Params::new(given)?.none()?;
    let (mut interfaces, count) = all_interfaces(&shared);
    interfaces.sort_by(|a, b| (&a.exporter, a.index).cmp(&(&b.exporter, b.index)));
    Ok(Json(Interfaces { interfaces, count }))
}

/// A socket.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryInput)]
pub(crate) struct InputFacts {
    /// sflow, ipfix or fireflies.
    format: &'static str,
    /// Where it listens.
    address: String,
    /// What the kernel keeps for it.
    buffer_bytes: usize,
    /// Datagrams taken.
    datagrams: u64,
    /// Their bytes.
    bytes: u64,
    /// Datagrams that the kernel dropped because nobody took them in time.
    kernel_drops: u64,
    /// Datagrams that could not be read or are not believed.
    refused: u64,
    /// Errors of the socket.
    errors: u64,
}

/// What came and what became of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryReceived)]
pub(crate) struct Received {
    /// Datagrams whose header was read.
    datagrams: u64,
    /// Datagrams that were none.
    refused: u64,
    /// Datagrams that came twice.
    duplicates: u64,
    /// Samples of packets, or flows.
    samples: u64,
    /// Samples of counters.
    counter_samples: u64,
    /// Packets that were dropped and told.
    discarded: u64,
    /// Samples, sets or records that could not be read.
    broken: u64,
    /// Samples that are not known here, and sets without a template.
    unknown: u64,
    /// Fireflies that are believed.
    fireflies: u64,
    /// Fireflies that are not.
    fireflies_refused: u64,
}

/// Places in use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryUse)]
pub(crate) struct Use {
    /// How many.
    used: usize,
    /// How many there are.
    limit: usize,
}

/// Minutes and hours on disk.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryStorage)]
pub(crate) struct Storage {
    /// The database.
    path: String,
    /// Its size.
    bytes: u64,
    /// Its size is no more.
    limit_bytes: u64,
    /// Minutes stored since the start.
    minutes: u64,
    /// Rows stored since the start.
    rows: u64,
    /// Times that something could not be stored.
    errors: u64,
    /// Minutes that could not be stored at all.
    minutes_lost: u64,
    /// Minutes that wait to be stored.
    minutes_waiting: u64,
    /// Files that were damaged and put aside.
    damaged: u64,
    /// Begin of the newest minute that is stored, in seconds since 1970.
    newest_s: Option<i64>,
    /// What is wrong now; null for nothing.
    trouble: Option<String>,
}

/// Minutes in a database that collectors share.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryClickHouse)]
pub(crate) struct ClickHouseFacts {
    /// Where it is.
    url: String,
    /// This collector's name in it.
    name: String,
    /// Batches stored since the start.
    batches: u64,
    /// Rows stored since the start.
    rows: u64,
    /// Times that something could not be sent or read.
    errors: u64,
    /// Where batches wait.
    spool: String,
    /// Batches that wait.
    batches_waiting: u64,
    /// Their bytes.
    bytes_waiting: u64,
    /// No more bytes wait.
    limit_bytes: u64,
    /// Batches that found no room, or were lost.
    batches_dropped: u64,
    /// Their rows.
    rows_dropped: u64,
    /// Begin of the newest minute that is stored, in seconds since 1970.
    newest_s: Option<i64>,
    /// What is wrong now; null for nothing.
    trouble: Option<String>,
}

/// Raw samples in files.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryArchive)]
pub(crate) struct ArchiveFacts {
    /// Where the files are.
    directory: String,
    /// Whole files written since the start.
    files: u64,
    /// Records in them.
    records: u64,
    /// Records that were dropped.
    dropped: u64,
    /// Bytes of all files that are there.
    bytes: u64,
    /// They are no more, the newest file apart.
    limit_bytes: u64,
    /// What is wrong now; null for nothing.
    trouble: Option<String>,
}

/// How the collector is doing.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryStatus)]
pub(crate) struct Status {
    /// Now, in seconds since 1970.
    now_s: f64,
    /// When it was started.
    started_s: f64,
    /// End of the newest second that was closed, in seconds since 1970; null before the first.
    closed_until_s: Option<i64>,
    /// End of the newest second that was measured; null before the first. `now_s` less this is the age of the data.
    measured_until_s: Option<i64>,
    /// How far the collector is behind: how long ago what it took last from its slowest socket was received.
    lag_s: f64,
    /// When the last datagram of any exporter was received, in seconds since 1970; null before the first.
    last_datagram_s: Option<f64>,
    /// Whether exporters have been silent for longer than is usual: seconds are unknown, not zero.
    silent: bool,
    /// Datagrams that were taken after their second was closed, and count in a later one.
    late_datagrams: u64,
    /// Sockets.
    inputs: Vec<InputFacts>,
    /// A line for each socket that could not be had.
    missing: Vec<String>,
    /// Since the start.
    received: Received,
    /// Exporters.
    exporters: Use,
    /// Data sources, interfaces and templates of exporters.
    states: Use,
    /// Flows known from fireflies.
    firefly_flows: Use,
    /// Groups in the last second.
    groups: Use,
    /// Hosts in the last second.
    hosts: Use,
    /// Seconds kept live.
    live_seconds: Use,
    /// Sums kept live.
    live_rows: Use,
    /// Minutes and hours on disk; null where nothing is stored.
    storage: Option<Storage>,
    /// The shared database; null where there is none.
    clickhouse: Option<ClickHouseFacts>,
    /// Raw samples in files; null where nobody asked for them.
    parquet: Option<ArchiveFacts>,
    /// Steps of the wall clock.
    clock_steps: u64,
    /// Clients of the live feed that were dropped because they did not keep up.
    slow_clients: u64,
}

/// What was received, refused and dropped, and what room is left.
#[utoipa::path(get, path = "/api/v1/telemetry/status", security((), ("token" = [])),
    responses((status = 200, body = Status), (status = "4XX", body = ErrorBody, content_type = "application/problem+json")))]
pub(super) async fn status(
    State(shared): State<Arc<Shared>>,
    given: Given,
) -> Result<Json<Status>, ApiError> {
    use penstock_flows::{exporter, scitag};
    Params::new(given)?.none()?;
    let (counts, exporters, states, flows) = {
        let intake = shared.intake();
        let exporters = intake.exporters();
        (intake.counts(), exporters.len(), exporters.states(), intake.trust.firefly_flows())
    };
    let now = shared.now();
    let line = shared.timeline();
    let (last_datagram, silent) = {
        let arrivals = shared.arrivals();
        (arrivals.newest().map(|at| line.wall_s(at)), arrivals.is_cut_off(now))
    };
    let live = shared.live();
    let newest = live.newest();
    let of = |used, limit| Use { used, limit };
    let get = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let inputs = shared.inputs.iter().map(|input| InputFacts {
        format: input.format.as_str(),
        address: input.address.to_string(),
        buffer_bytes: input.buffer_bytes,
        datagrams: get(&input.datagrams),
        bytes: get(&input.bytes),
        kernel_drops: get(&input.kernel_drops),
        refused: get(&input.refused),
        errors: get(&input.errors),
    });
    Ok(Json(Status {
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
        received: Received {
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
        live_seconds: of(live.seconds().count(), SECONDS),
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
