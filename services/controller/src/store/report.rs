//! What nodes report, and what they are told.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use penstock_operations::orders::{
    Acknowledged, ActiveOrder, Instructions, InterfaceCounters, LISTED_PATH, OrderFault,
    OrderPhase, OrderReport, OrderSettings, Report,
};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::rows::{self, Value};
use super::settle::{self, Deltas, End, Happened};
use super::submit::{self, NewFile, Policy};
use super::writer::Context;
use super::{BatchKind, BatchState, RunState, dispatch};

/// Runs whose content is remembered.
const CONTENTS_MAX: usize = 20_000;

/// A report of a run counts as absent so often before the node counts as done with it: the first answer may have
/// crossed with the report.
const ABSENT: i64 = 2;

/// Files of a batch in a run.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) batch: i64,
    pub(crate) request: i64,
    /// Place of its first file in the order's list.
    pub(crate) place: i64,
    /// Numbers of its first and its last file in the request.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Numbers of its files where they are not one after the other.
    pub(crate) seqs: Option<Vec<i64>>,
    pub(crate) files: i64,
    /// How often a file may be tried.
    pub(crate) attempts: u32,
}

impl Part {
    /// The number of the file at this place of the order's list.
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

/// What runs consist of, remembered.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    runs: HashMap<i64, Arc<Vec<Part>>>,
    /// Counters of interfaces in the last report of a host, and when that was.
    counters: HashMap<String, (i64, Vec<InterfaceCounters>)>,
}

impl Contents {
    pub(crate) fn forget(&mut self, run: i64) {
        self.runs.remove(&run);
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

/// What a run consists of, in the order of its list.
pub(crate) async fn content(cx: &mut Context, run: i64) -> Result<Arc<Vec<Part>>, sqlx::Error> {
    if let Some(parts) = cx.contents.runs.get(&run) {
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
        let policy: Option<Policy> = serde_json::from_str(&row.get::<String, _>(6)).ok();
        Part {
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
    let parts: Arc<Vec<Part>> = Arc::new(found.iter().map(part).collect());
    if cx.contents.runs.len() >= CONTENTS_MAX {
        cx.contents.runs.clear();
    }
    cx.contents.runs.insert(run, Arc::clone(&parts));
    Ok(parts)
}

/// An interface as it is kept: with rates since the last report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InterfaceFacts {
    pub(crate) name: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) sent_bps: u64,
    pub(crate) received_bps: u64,
}

/// A run as reports need it.
struct Live {
    id: i64,
    kind: i64,
    state: i64,
    from: String,
    to: String,
    request: i64,
    told: i64,
    gone: [i64; 2],
    agent_run: Option<i64>,
    outcomes: i64,
    entries: i64,
    settled: (i64, i64),
    settings: OrderSettings,
    why: Option<String>,
    /// The sender says that it moves.
    moves: bool,
}

const LIVE: &str = "id, kind, state, from_host, to_host, request, told, from_gone, to_gone, agent_run, outcomes, entries,
    settled_bytes, settled_files, rate_bps, streams, path, why, phase";

fn live(row: &AnyRow) -> Live {
    let path: String = row.get(16);
    Live {
        id: row.get(0),
        kind: row.get(1),
        state: row.get(2),
        from: row.get(3),
        to: row.get(4),
        request: row.get(5),
        told: row.get(6),
        gone: [row.get(7), row.get(8)],
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

/// Takes reports, of each host at most one; the answers are in their order.
pub(crate) async fn take(
    cx: &mut Context,
    reports: &[(&str, &Report)],
) -> Result<Vec<Instructions>, sqlx::Error> {
    if reports.is_empty() {
        return Ok(Vec::new());
    }
    note_hosts(cx, reports).await?;
    let mut runs = live_runs(cx, reports).await?;
    let mut taking = Taking::default();
    let mut answers = Vec::with_capacity(reports.len());
    for (host, report) in reports {
        let mut acknowledged = Vec::new();
        for order in &report.orders {
            acknowledged.push(taking.order(cx, host, order, &mut runs).await?);
        }
        taking.absent(host, report, &mut runs);
        answers.push(Instructions {
            lease_seconds: cx.settings.config.lease_seconds,
            orders: Vec::new(),
            acknowledged,
        });
    }
    taking.store(cx, &mut runs).await?;
    let hosts: HashMap<&str, usize> =
        reports.iter().enumerate().map(|(at, (host, _))| (*host, at)).collect();
    let mut told: Vec<[Value; 1]> = Vec::new();
    for run in runs.values().filter(|run| run.state == RunState::Standing as i64) {
        // The other node knows of it, and a round has given it a rate.
        let ready = run.told > 0 && run.settings.rate_bps.is_some();
        let sender_may = ready || run.kind == BatchKind::List as i64;
        if let Some(at) = hosts.get(run.from.as_str()).filter(|_| sender_may) {
            let order = run.id as u64 * 2;
            answers[*at].orders.push(ActiveOrder { order, settings: run.settings.clone() });
        }
        if let Some(at) = hosts.get(run.to.as_str()).filter(|_| run.kind == BatchKind::Copy as i64)
        {
            let order = run.id as u64 * 2 + 1;
            answers[*at].orders.push(ActiveOrder { order, settings: OrderSettings::default() });
            if run.told == 0 {
                told.push([run.id.into()]);
            }
        }
    }
    let set = "UPDATE run SET told = 1 FROM v WHERE run.id = v.i";
    rows::with(&mut cx.tx, "i", told, set).await?;
    Ok(answers)
}

async fn note_hosts(cx: &mut Context, reports: &[(&str, &Report)]) -> Result<(), sqlx::Error> {
    let now = cx.now;
    let mut rows: Vec<[Value; 8]> = Vec::with_capacity(reports.len());
    for (host, report) in reports {
        let before = cx.contents.counters.get(*host);
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
        cx.contents.counters.insert((*host).to_owned(), (now, report.interfaces.clone()));
    }
    rows::execute(
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
) -> InterfaceFacts {
    let mut facts = InterfaceFacts {
        name: now.name.clone(),
        addresses: now.addresses.clone(),
        ..InterfaceFacts::default()
    };
    let Some((then, list)) = before else { return facts };
    let (Some(before), Ok(elapsed @ 1..)) =
        (list.iter().find(|one| one.name == now.name), u64::try_from(at - then))
    else {
        return facts;
    };
    // A counter that begins anew tells nothing this time.
    let rate = |now: u64, before: u64| {
        let bits = u128::from(now.saturating_sub(before)) * 8000 / u128::from(elapsed);
        u64::try_from(bits).unwrap_or(0)
    };
    facts.sent_bps = rate(now.sent_bytes, before.sent_bytes);
    facts.received_bps = rate(now.received_bytes, before.received_bytes);
    facts
}

/// The runs that stand or end at these hosts.
async fn live_runs(
    cx: &mut Context,
    reports: &[(&str, &Report)],
) -> Result<BTreeMap<i64, Live>, sqlx::Error> {
    let mut runs = BTreeMap::new();
    for column in ["from_host", "to_host"] {
        let hosts = reports.iter().map(|(host, _)| -> [Value; 1] { [(*host).into()] }).collect();
        let text =
            format!("SELECT {LIVE} FROM run WHERE state < 2 AND {column} IN (SELECT h FROM v)");
        let found = rows::with(&mut cx.tx, "h", hosts, &text).await?;
        runs.extend(found.iter().map(|row| (row.get::<i64, _>(0), live(row))));
    }
    Ok(runs)
}

/// What several reports bring together.
#[derive(Default)]
struct Taking {
    happened: Vec<Happened>,
    /// The run of each that happened, in the same order.
    of: Vec<i64>,
    progress: Vec<[Value; 15]>,
    ended: Vec<(i64, Option<OrderFault>)>,
    /// Runs that their receiving node does not take, and why.
    refused: Vec<(i64, OrderFault)>,
    gone: HashSet<i64>,
    deltas: Deltas,
}

impl Taking {
    async fn order(
        &mut self,
        cx: &mut Context,
        host: &str,
        report: &OrderReport,
        runs: &mut BTreeMap<i64, Live>,
    ) -> Result<Acknowledged, sqlx::Error> {
        let outcomes = report.outcomes_from.saturating_add(report.outcomes.len() as u64);
        let entries = report.entries_from.saturating_add(report.entries.len() as u64);
        let ended = report.phase == OrderPhase::Ended;
        let mut answer =
            Acknowledged { order: report.order, run: report.run, outcomes, entries, end: ended };
        let sends = report.order.is_multiple_of(2);
        let run = i64::try_from(report.order / 2).ok().and_then(|id| runs.get_mut(&id));
        let run = run.filter(|run| if sends { run.from == host } else { run.to == host });
        // An order that is over, or another's: what is told of it changes nothing, and need not be told again.
        let Some(run) = run else {
            answer.end = true;
            return Ok(answer);
        };
        if !sends {
            // A receiving node ends an order by itself where it cannot let the sender in.
            if let Some(fault) = report.fault.as_ref().filter(|_| ended) {
                let text = clipped(&format!("{host}: {}", fault.text));
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
        let parts = content(cx, run.id).await?;
        for outcome in report.outcomes.iter().skip(fresh) {
            let place = i64::from(outcome.file);
            let part = parts.partition_point(|part| part.place <= place).checked_sub(1);
            let part = part.and_then(|at| parts.get(at));
            let Some((part, seq)) = part.and_then(|part| Some((part, part.seq(place)?))) else {
                continue;
            };
            self.of.push(run.id);
            self.happened.push(Happened {
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
                found(cx, run.request, &fresh, again).await?;
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
            clipped(&report.bound_by).into(),
            clipped(&report.label).into(),
            report.waiting.as_deref().map(clipped).into(),
            cx.now.into(),
            0.into(),
        ]);
        if ended {
            self.ended.push((run.id, report.fault.clone()));
        }
        Ok(answer)
    }

    /// Notes which withdrawn orders a host has done with.
    fn absent(&mut self, host: &str, report: &Report, runs: &mut BTreeMap<i64, Live>) {
        let running: HashSet<u64> = report
            .orders
            .iter()
            .filter(|order| order.phase != OrderPhase::Ended)
            .map(|order| order.order)
            .collect();
        for run in runs.values_mut().filter(|run| run.state == RunState::Ending as i64) {
            let ends = [(run.from.as_str(), 0), (run.to.as_str(), 1)];
            for (end, at) in ends {
                if end == host {
                    let there = running.contains(&(run.id as u64 * 2 + at as u64));
                    run.gone[at] = if there { 0 } else { (run.gone[at] + 1).min(ABSENT) };
                    self.gone.insert(run.id);
                }
            }
        }
    }

    async fn store(
        mut self,
        cx: &mut Context,
        runs: &mut BTreeMap<i64, Live>,
    ) -> Result<(), sqlx::Error> {
        let keys: Vec<_> = self.happened.iter().map(|one| (one.request, one.seq)).collect();
        let bytes: Vec<_> = self.happened.iter().map(|one| one.bytes.unwrap_or(0)).collect();
        let settled = settle::files(cx, self.happened, &mut self.deltas).await?;
        let mut done: HashMap<i64, (i64, i64)> = HashMap::new();
        for ((key, run), bytes) in keys.iter().zip(&self.of).zip(bytes) {
            if let Some(in_place) = settled.get(key) {
                let done = done.entry(*run).or_default();
                *done = (done.0 + if *in_place { bytes } else { 0 }, done.1 + 1);
            }
        }
        for row in &mut self.progress {
            let Value::Int(id) = row[0] else { continue };
            let Some(run) = runs.get(&id) else { continue };
            let (bytes, files) = done.get(&id).copied().unwrap_or_default();
            // Both sums travel in one row: bytes in the last column, files through the run.
            row[14] = (run.settled.0 + bytes).into();
            if let Some(run) = runs.get_mut(&id) {
                run.settled.1 += files;
            }
        }
        let rows: Vec<[Value; 16]> = self
            .progress
            .into_iter()
            .map(|row| {
                let files = match row[0] {
                    Value::Int(id) => runs.get(&id).map_or(0, |run| run.settled.1),
                    _ => 0,
                };
                let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = row;
                [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, files.into()]
            })
            .collect();
        rows::with(
            &mut cx.tx,
            "i, r, o, e, p, m, b, a, s, t, y, l, w, n, z, f",
            rows,
            "UPDATE run SET agent_run = v.r, outcomes = v.o, entries = v.e, phase = v.p, moved = v.m, measured_bps = v.b,
                applied_bps = v.a, live_streams = v.s, retransmits = v.t, bound_by = v.y, label = v.l, waiting = v.w,
                seen = v.n, settled_bytes = v.z, settled_files = v.f FROM v WHERE run.id = v.i",
        )
        .await?;
        settle::count(cx, self.deltas).await?;
        for (id, fault) in self.refused {
            let standing = |run: &&Live| run.state == RunState::Standing as i64;
            match runs.get(&id).filter(standing).map(|run| run.moves) {
                None => {}
                // What moves was let in before: it is stopped first.
                Some(true) => {
                    dispatch::withdraw(cx, "id = $4", Value::Int(id), &fault.text).await?;
                    runs.remove(&id);
                }
                Some(false) => {
                    self.ended.retain(|(ended, _)| *ended != id);
                    settle::end_run(cx, id, &End::Told(Some(fault))).await?;
                    runs.remove(&id);
                }
            }
        }
        for (id, fault) in self.ended {
            let withdrawn = runs.get(&id).filter(|run| run.state == RunState::Ending as i64);
            let end = match withdrawn {
                Some(run) => End::Withdrawn(run.why.clone().unwrap_or_default()),
                None => End::Told(fault),
            };
            settle::end_run(cx, id, &end).await?;
            runs.remove(&id);
        }
        let mut gone: Vec<[Value; 3]> = Vec::new();
        for id in self.gone {
            let Some(run) = runs.get(&id) else { continue };
            if run.gone.iter().all(|absent| *absent >= ABSENT) {
                let why = run.why.clone().unwrap_or_default();
                settle::end_run(cx, id, &End::Withdrawn(why)).await?;
                runs.remove(&id);
            } else {
                gone.push([id.into(), run.gone[0].into(), run.gone[1].into()]);
            }
        }
        let set = "UPDATE run SET from_gone = v.a, to_gone = v.b FROM v WHERE run.id = v.i";
        rows::with(&mut cx.tx, "i, a, b", gone, set).await?;
        Ok(())
    }
}

/// Longest text of a node that is kept.
const TEXT_CHARS_MAX: usize = 400;

/// Words of a node, as long as they may be.
fn clipped(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Files that a listing found become part of their request. `again` where the listing may have been made before.
async fn found(
    cx: &mut Context,
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
            // What was asked for is one file: it is that file of its directory.
            let from: String = row.get(12);
            let (directory, name) = from.rsplit_once('/').unwrap_or(("", &from));
            let directory = if directory.is_empty() { "/" } else { directory };
            lane = submit::lane_of(directory, &to, &row.get::<String, _>(11));
            // It is not listed again: the path that was listed is not that of the request any more.
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
        state: if row.get::<i64, _>(8) > 0 { BatchState::Held } else { BatchState::Queued },
        not_before: 0,
    };
    submit::append(cx, &base, first, (&site, &to), files).await
}
