//! Reports of nodes, and the instructions in response.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use penstock_operations::orders::{
    Acknowledged, ActiveOrder, Instructions, InterfaceCounters, LISTED_PATH, OrderFault, OrderId,
    OrderPhase, OrderReport, OrderSettings, Report, RunSide,
};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::outcomes::{self, FileOutcome, RequestDeltas, RunEnd};
use super::rows::{self, SqlValue};
use super::submit::{self, NewFile, TransferPolicy};
use super::writer::TxContext;
use super::{BatchKind, BatchState, RunState, dispatch};

/// Most runs with cached contents.
const CACHED_RUNS_MAX: usize = 20_000;

/// Consecutive reports without a withdrawn order after which its node has stopped it. The first may have crossed with
/// the instructions.
const MISSED_REPORTS_MAX: i64 = 2;

/// Files of one batch in a run.
#[derive(Debug, Clone)]
pub(crate) struct RunPart {
    pub(crate) batch: i64,
    pub(crate) request: i64,
    /// Index of its first file in the order's list.
    pub(crate) place: i64,
    /// Sequence numbers of its first and last file in the request.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Sequence numbers of its files, if not contiguous.
    pub(crate) seqs: Option<Vec<i64>>,
    pub(crate) files: i64,
    /// Most attempts per file.
    pub(crate) attempts: u32,
}

impl RunPart {
    /// Returns the sequence number of the file at an index of the order's list.
    pub(crate) fn seq(&self, place: i64) -> Option<i64> {
        let at = place - self.place;
        if at < 0 || at >= self.files {
            return None;
        }
        match &self.seqs {
            Some(seqs) => seqs.get(at as usize).copied(),
            None => Some(self.first + at),
        }
    }
}

/// Cache of the contents of runs and the counters of hosts.
#[derive(Debug, Default)]
pub(crate) struct RunCache {
    runs: HashMap<i64, Arc<Vec<RunPart>>>,
    /// Interface counters in each host's last report, with its time in Unix milliseconds.
    counters: HashMap<String, (i64, Vec<InterfaceCounters>)>,
}

impl RunCache {
    pub(crate) fn remove(&mut self, run: i64) {
        self.runs.remove(&run);
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

/// Returns the parts of a run, in the order of its file list.
pub(crate) async fn run_parts(
    cx: &mut TxContext,
    run: i64,
) -> Result<Arc<Vec<RunPart>>, sqlx::Error> {
    if let Some(parts) = cx.run_cache.runs.get(&run) {
        return Ok(Arc::clone(parts));
    }
    let found = sqlx::query(
        "SELECT b.id, b.request, b.place, b.first, b.seqs, b.files, r.policy, b.last
         FROM batch b JOIN request r ON r.id = b.request WHERE b.run = $1 ORDER BY b.place",
    )
    .bind(run)
    .fetch_all(&mut cx.tx)
    .await?;
    let part = |row: &AnyRow| {
        let seqs: Option<String> = row.get(4);
        let policy: Option<TransferPolicy> = serde_json::from_str(&row.get::<String, _>(6)).ok();
        RunPart {
            batch: row.get(0),
            request: row.get(1),
            place: row.get::<Option<i64>, _>(2).unwrap_or(0),
            first: row.get(3),
            last: row.get(7),
            seqs: seqs.and_then(|seqs| serde_json::from_str(&seqs).ok()),
            files: row.get(5),
            attempts: policy.map_or(1, |policy| policy.attempts),
        }
    };
    let parts: Arc<Vec<RunPart>> = Arc::new(found.iter().map(part).collect());
    if cx.run_cache.runs.len() >= CACHED_RUNS_MAX {
        cx.run_cache.runs.clear();
    }
    cx.run_cache.runs.insert(run, Arc::clone(&parts));
    Ok(parts)
}

/// An interface as stored, with its rates since the previous report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InterfaceRates {
    pub(crate) name: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) sent_bps: u64,
    pub(crate) received_bps: u64,
}

/// Columns of a run that reports read and change.
struct RunRow {
    id: i64,
    kind: i64,
    state: i64,
    from: String,
    to: String,
    request: i64,
    receiver_notified: i64,
    stop_acks: [i64; 2],
    agent_run: Option<i64>,
    outcomes: i64,
    entries: i64,
    settled: (i64, i64),
    settings: OrderSettings,
    why: Option<String>,
    /// Set if the sender reports that it is transferring.
    moves: bool,
}

const RUN_COLUMNS: &str = "id, kind, state, from_host, to_host, request, told, from_gone, to_gone, agent_run, outcomes, entries,
    settled_bytes, settled_files, rate_bps, streams, path, why, phase";

fn run_row(row: &AnyRow) -> RunRow {
    let path: String = row.get(16);
    RunRow {
        id: row.get(0),
        kind: row.get(1),
        state: row.get(2),
        from: row.get(3),
        to: row.get(4),
        request: row.get(5),
        receiver_notified: row.get(6),
        stop_acks: [row.get(7), row.get(8)],
        agent_run: row.get(9),
        outcomes: row.get(10),
        entries: row.get(11),
        settled: (row.get(12), row.get(13)),
        settings: OrderSettings {
            rate_bps: row.get::<Option<i64>, _>(14).map(|rate| rate as u64),
            streams: row.get::<Option<i64>, _>(15).map(|streams| streams as u16),
            path: serde_json::from_str(&path).unwrap_or_default(),
        },
        why: row.get(17),
        moves: row.get::<i64, _>(18) == OrderPhase::Running as i64,
    }
}

/// Processes at most one report per host. Responses are in the order of the reports.
pub(crate) async fn process_reports(
    cx: &mut TxContext,
    reports: &[(&str, &Report)],
) -> Result<Vec<Instructions>, sqlx::Error> {
    if reports.is_empty() {
        return Ok(Vec::new());
    }
    store_hosts(cx, reports).await?;
    let mut runs = open_runs(cx, reports).await?;
    let mut batch = ReportBatch::default();
    let mut answers = Vec::with_capacity(reports.len());
    for (host, report) in reports {
        let mut acknowledged = Vec::new();
        for order in &report.orders {
            acknowledged.push(batch.order(cx, host, order, &mut runs).await?);
        }
        batch.count_missed_reports(host, report, &mut runs);
        answers.push(Instructions {
            lease_seconds: cx.settings.config.lease_seconds,
            orders: Vec::new(),
            acknowledged,
        });
    }
    batch.store(cx, &mut runs).await?;
    let hosts: HashMap<&str, usize> =
        reports.iter().enumerate().map(|(at, (host, _))| (*host, at)).collect();
    let mut notified: Vec<[SqlValue; 1]> = Vec::new();
    for run in runs.values().filter(|run| run.state == RunState::Active as i64) {
        // Its receiver has the ticket, and a round has given it a rate.
        let ready = run.receiver_notified > 0 && run.settings.rate_bps.is_some();
        let sender_may = ready || run.kind == BatchKind::List as i64;
        if let Some(at) = hosts.get(run.from.as_str()).filter(|_| sender_may) {
            let order = OrderId::of(run.id, RunSide::Source);
            answers[*at].orders.push(ActiveOrder { order, settings: run.settings.clone() });
        }
        if let Some(at) = hosts.get(run.to.as_str()).filter(|_| run.kind == BatchKind::Copy as i64)
        {
            let order = OrderId::of(run.id, RunSide::Destination);
            answers[*at].orders.push(ActiveOrder { order, settings: OrderSettings::default() });
            if run.receiver_notified == 0 {
                notified.push([run.id.into()]);
            }
        }
    }
    let set = "UPDATE run SET told = 1 FROM v WHERE run.id = v.i";
    rows::query_values(&mut cx.tx, "i", notified, set).await?;
    Ok(answers)
}

async fn store_hosts(cx: &mut TxContext, reports: &[(&str, &Report)]) -> Result<(), sqlx::Error> {
    let now = cx.now;
    let mut rows: Vec<[SqlValue; 8]> = Vec::with_capacity(reports.len());
    for (host, report) in reports {
        let before = cx.run_cache.counters.get(*host);
        let facts: Vec<_> =
            report.interfaces.iter().map(|one| interface(one, before, now)).collect();
        rows.push([
            (*host).into(),
            report.start.as_str().into(),
            report.version.as_str().into(),
            serde_json::to_string(&report.addresses).expect("plain data").into(),
            report.fingerprint.as_str().into(),
            serde_json::to_string(&report.capacity).expect("plain data").into(),
            serde_json::to_string(&facts).expect("plain data").into(),
            now.into(),
        ]);
        cx.run_cache.counters.insert((*host).to_owned(), (now, report.interfaces.clone()));
    }
    rows::insert(
        &mut cx.tx,
        "INSERT INTO host (name, start, version, addresses, fingerprint, capacity, interfaces, seen)",
        rows,
        "ON CONFLICT (name) DO UPDATE SET start = excluded.start, version = excluded.version,
            addresses = excluded.addresses, fingerprint = excluded.fingerprint, capacity = excluded.capacity,
            interfaces = excluded.interfaces, seen = excluded.seen",
    )
    .await?;
    Ok(())
}

fn interface(
    now: &InterfaceCounters,
    before: Option<&(i64, Vec<InterfaceCounters>)>,
    at: i64,
) -> InterfaceRates {
    let mut facts = InterfaceRates {
        name: now.name.clone(),
        addresses: now.addresses.clone(),
        ..InterfaceRates::default()
    };
    let Some((then, list)) = before else { return facts };
    let (Some(before), Ok(elapsed @ 1..)) =
        (list.iter().find(|one| one.name == now.name), u64::try_from(at - then))
    else {
        return facts;
    };
    // A counter that was reset gives no rate this time.
    let rate = |now: u64, before: u64| {
        let bits = u128::from(now.saturating_sub(before)) * 8000 / u128::from(elapsed);
        u64::try_from(bits).unwrap_or(0)
    };
    facts.sent_bps = rate(now.sent_bytes, before.sent_bytes);
    facts.received_bps = rate(now.received_bytes, before.received_bytes);
    facts
}

/// Returns the active and withdrawn runs at these hosts.
async fn open_runs(
    cx: &mut TxContext,
    reports: &[(&str, &Report)],
) -> Result<BTreeMap<i64, RunRow>, sqlx::Error> {
    let mut runs = BTreeMap::new();
    for column in ["from_host", "to_host"] {
        let hosts = reports.iter().map(|(host, _)| -> [SqlValue; 1] { [(*host).into()] }).collect();
        let text = format!(
            "SELECT {RUN_COLUMNS} FROM run WHERE state < 2 AND {column} IN (SELECT h FROM v)"
        );
        let found = rows::query_values(&mut cx.tx, "h", hosts, &text).await?;
        runs.extend(found.iter().map(|row| (row.get::<i64, _>(0), run_row(row))));
    }
    Ok(runs)
}

/// Changes of several reports, stored together.
#[derive(Default)]
struct ReportBatch {
    outcomes: Vec<FileOutcome>,
    /// Run of each element of `outcomes`.
    outcome_runs: Vec<i64>,
    progress: Vec<[SqlValue; 15]>,
    ended: Vec<(i64, Option<OrderFault>)>,
    /// Runs that their receiving node refuses, with the fault.
    refused: Vec<(i64, OrderFault)>,
    acks_changed: BTreeSet<i64>,
    deltas: RequestDeltas,
}

impl ReportBatch {
    async fn order(
        &mut self,
        cx: &mut TxContext,
        host: &str,
        report: &OrderReport,
        runs: &mut BTreeMap<i64, RunRow>,
    ) -> Result<Acknowledged, sqlx::Error> {
        let outcomes = report.outcomes_from.saturating_add(report.outcomes.len() as u64);
        let entries = report.entries_from.saturating_add(report.entries.len() as u64);
        let ended = report.phase == OrderPhase::Ended;
        let mut answer =
            Acknowledged { order: report.order, run: report.run, outcomes, entries, end: ended };
        let sends = report.order.side() == RunSide::Source;
        let run = runs.get_mut(&report.order.run());
        let run = run.filter(|run| if sends { run.from == host } else { run.to == host });
        // An order that is over, or not this host's: acknowledge everything, change nothing.
        let Some(run) = run else {
            answer.end = true;
            return Ok(answer);
        };
        if !sends {
            // A receiving node ends an order itself if it cannot admit the sender.
            if let Some(fault) = report.fault.as_ref().filter(|_| ended) {
                let text = truncated(&format!("{host}: {}", fault.text));
                self.refused.push((run.id, OrderFault { kind: fault.kind, text }));
            }
            return Ok(answer);
        }
        let agent_run = report.run as i64;
        if run.agent_run != Some(agent_run) {
            (run.agent_run, run.outcomes, run.entries) = (Some(agent_run), 0, 0);
        }
        let known = u64::try_from(run.outcomes).unwrap_or(0);
        let fresh = known.saturating_sub(report.outcomes_from) as usize;
        let parts = run_parts(cx, run.id).await?;
        for outcome in report.outcomes.iter().skip(fresh) {
            let place = i64::from(outcome.file);
            let part = parts.partition_point(|part| part.place <= place).checked_sub(1);
            let part = part.and_then(|at| parts.get(at));
            let Some((part, seq)) = part.and_then(|part| Some((part, part.seq(place)?))) else {
                continue;
            };
            self.outcome_runs.push(run.id);
            self.outcomes.push(FileOutcome {
                request: part.request,
                seq,
                bytes: i64::try_from(outcome.bytes).ok(),
                digest: outcome.digest.clone(),
                fault: outcome.fault.clone(),
                attempts: part.attempts,
            });
        }
        run.outcomes = run.outcomes.max(outcomes as i64);
        if run.kind == BatchKind::List as i64 {
            let known = u64::try_from(run.entries).unwrap_or(0);
            let skip = known.saturating_sub(report.entries_from) as usize;
            let again = report.entries_from == 0 && known == 0;
            let fresh: Vec<_> = report.entries.iter().skip(skip).collect();
            if !fresh.is_empty() {
                add_listed_files(cx, run.request, &fresh, again).await?;
            }
            run.entries = run.entries.max(entries as i64);
        }
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.progress.push([
            run.id.into(),
            agent_run.into(),
            run.outcomes.into(),
            run.entries.into(),
            (report.phase as i64).into(),
            number(report.moved_bytes).into(),
            number(report.bits_per_second).into(),
            report.rate_bps.map(number).into(),
            i64::from(report.streams).into(),
            number(report.retransmits).into(),
            truncated(&report.bound_by).into(),
            truncated(&report.label).into(),
            report.waiting.as_deref().map(truncated).into(),
            cx.now.into(),
            0.into(),
        ]);
        if ended {
            self.ended.push((run.id, report.fault.clone()));
        }
        Ok(answer)
    }

    /// Counts a host's reports without its withdrawn orders.
    fn count_missed_reports(
        &mut self,
        host: &str,
        report: &Report,
        runs: &mut BTreeMap<i64, RunRow>,
    ) {
        let running: HashSet<OrderId> = report
            .orders
            .iter()
            .filter(|order| order.phase != OrderPhase::Ended)
            .map(|order| order.order)
            .collect();
        for run in runs.values_mut().filter(|run| run.state == RunState::Revoking as i64) {
            for (side, name) in RunSide::ALL.into_iter().zip([&run.from, &run.to]) {
                if name == host {
                    let there = running.contains(&OrderId::of(run.id, side));
                    let missed = &mut run.stop_acks[side as usize];
                    *missed = if there { 0 } else { (*missed + 1).min(MISSED_REPORTS_MAX) };
                    self.acks_changed.insert(run.id);
                }
            }
        }
    }

    async fn store(
        mut self,
        cx: &mut TxContext,
        runs: &mut BTreeMap<i64, RunRow>,
    ) -> Result<(), sqlx::Error> {
        let keys: Vec<_> = self.outcomes.iter().map(|one| (one.request, one.seq)).collect();
        let bytes: Vec<_> = self.outcomes.iter().map(|one| one.bytes.unwrap_or(0)).collect();
        let settled = outcomes::store_file_outcomes(cx, self.outcomes, &mut self.deltas).await?;
        let mut done: HashMap<i64, (i64, i64)> = HashMap::new();
        for ((key, run), bytes) in keys.iter().zip(&self.outcome_runs).zip(bytes) {
            if let Some(in_place) = settled.get(key) {
                let done = done.entry(*run).or_default();
                *done = (done.0 + if *in_place { bytes } else { 0 }, done.1 + 1);
            }
        }
        for row in &mut self.progress {
            let SqlValue::Int(id) = row[0] else { continue };
            let Some(run) = runs.get(&id) else { continue };
            let (bytes, files) = done.get(&id).copied().unwrap_or_default();
            // One row carries both sums: bytes in the last column, files by way of the run.
            row[14] = (run.settled.0 + bytes).into();
            if let Some(run) = runs.get_mut(&id) {
                run.settled.1 += files;
            }
        }
        let rows: Vec<[SqlValue; 16]> = self
            .progress
            .into_iter()
            .map(|row| {
                let files = match row[0] {
                    SqlValue::Int(id) => runs.get(&id).map_or(0, |run| run.settled.1),
                    _ => 0,
                };
                let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = row;
                [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, files.into()]
            })
            .collect();
        rows::query_values(
            &mut cx.tx,
            "i, r, o, e, p, m, b, a, s, t, y, l, w, n, z, f",
            rows,
            "UPDATE run SET agent_run = v.r, outcomes = v.o, entries = v.e, phase = v.p, moved = v.m, measured_bps = v.b,
                applied_bps = v.a, live_streams = v.s, retransmits = v.t, bound_by = v.y, label = v.l, waiting = v.w,
                seen = v.n, settled_bytes = v.z, settled_files = v.f FROM v WHERE run.id = v.i",
        )
        .await?;
        outcomes::apply_deltas(cx, self.deltas).await?;
        for (id, fault) in self.refused {
            let standing = |run: &&RunRow| run.state == RunState::Active as i64;
            match runs.get(&id).filter(standing).map(|run| run.moves) {
                None => {}
                // A transferring run was admitted before: stop it first.
                Some(true) => {
                    dispatch::withdraw(cx, "id = $4", SqlValue::Int(id), &fault.text).await?;
                    runs.remove(&id);
                }
                Some(false) => {
                    self.ended.retain(|(ended, _)| *ended != id);
                    outcomes::end_run(cx, id, &RunEnd::Reported(Some(fault))).await?;
                    runs.remove(&id);
                }
            }
        }
        for (id, fault) in self.ended {
            let withdrawn = runs.get(&id).filter(|run| run.state == RunState::Revoking as i64);
            let end = match withdrawn {
                Some(run) => RunEnd::Withdrawn(run.why.clone().unwrap_or_default()),
                None => RunEnd::Reported(fault),
            };
            outcomes::end_run(cx, id, &end).await?;
            runs.remove(&id);
        }
        let mut gone: Vec<[SqlValue; 3]> = Vec::new();
        for id in self.acks_changed {
            let Some(run) = runs.get(&id) else { continue };
            if run.stop_acks.iter().all(|missed| *missed >= MISSED_REPORTS_MAX) {
                let why = run.why.clone().unwrap_or_default();
                outcomes::end_run(cx, id, &RunEnd::Withdrawn(why)).await?;
                runs.remove(&id);
            } else {
                gone.push([id.into(), run.stop_acks[0].into(), run.stop_acks[1].into()]);
            }
        }
        let set = "UPDATE run SET from_gone = v.a, to_gone = v.b FROM v WHERE run.id = v.i";
        rows::query_values(&mut cx.tx, "i, a, b", gone, set).await?;
        Ok(())
    }
}

/// Longest text of a node that is stored.
const TEXT_CHARS_MAX: usize = 400;

/// Truncates a text of a node.
fn truncated(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Adds listed files to their request. `again` if an earlier run may have listed them.
async fn add_listed_files(
    cx: &mut TxContext,
    request: i64,
    entries: &[&penstock_operations::orders::ListedFile],
    again: bool,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query(
        "SELECT class, source, destination, to_path, files, priority, deadline, lane, paused, cancel, open, policy, from_path
         FROM request WHERE id = $1",
    )
    .bind(request)
    .fetch_one(&mut cx.tx)
    .await?;
    if row.get::<i64, _>(9) > 0 || row.get::<i64, _>(10) == 0 {
        return Ok(());
    }
    let (class, source, site, to): (String, String, String, String) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    let first: i64 = row.get(4);
    let mut known = HashSet::new();
    if again && first > 0 {
        let seen = sqlx::query("SELECT path FROM file WHERE request = $1").bind(request);
        let seen = seen.fetch_all(&mut cx.tx).await?;
        known.extend(seen.into_iter().map(|row| row.get::<String, _>(0)));
    }
    let mut lane: String = row.get(7);
    let mut files = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut path = entry.path.clone();
        if path == LISTED_PATH {
            // The requested path is a file: it becomes that file of its directory.
            let from: String = row.get(12);
            let (directory, name) = from.rsplit_once('/').unwrap_or(("", &from));
            let directory = if directory.is_empty() { "/" } else { directory };
            lane = submit::lane_of(directory, &to, &row.get::<String, _>(11));
            // The listing is complete: the request's path is now the directory.
            let set = "UPDATE request SET from_path = $1, lane = $2, open = 0 WHERE id = $3";
            let query = sqlx::query(set).bind(directory.to_owned()).bind(lane.clone());
            query.bind(request).execute(&mut cx.tx).await?;
            path = name.to_owned();
        }
        if crate::paths::relative(&path).is_ok() && known.insert(path.clone()) {
            files.push(NewFile { path, size: Some(entry.bytes), digest: None });
        }
    }
    let queue = (class.clone(), source, site.clone());
    submit::queues(cx, vec![queue.clone()]).await?;
    let base = submit::NewBatch {
        root: None,
        request,
        queue: cx.queues.get(&queue).copied().unwrap_or_default(),
        kind: BatchKind::Copy,
        first: 0,
        last: -1,
        seqs: None,
        files: 0,
        bytes: 0,
        priority: row.get(5),
        deadline: row.get(6),
        lane,
        attempt: 0,
        state: if row.get::<i64, _>(8) > 0 { BatchState::Paused } else { BatchState::Queued },
        not_before: 0,
    };
    submit::append(cx, &base, first, (&site, &to), files).await
}
