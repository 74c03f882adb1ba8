//! Reports of nodes, and the instructions in response.

use std::collections::BTreeMap;

use penstock_control::batch::BatchKind;
use penstock_control::file::FILE_BYTES_MAX;
use penstock_control::interface_rates::InterfaceRates;
use penstock_control::live_run::{
    self, NewProgress, ReportEffect, ReportedChange, ReportedEnds, truncated,
};
use penstock_control::orders::{Acknowledged, Instructions, OrderReport, Report};
use penstock_control::run_contents::RunPart;

use super::append;
use super::outcomes::{self, FileOutcome};
use crate::repository::hosts::ReportedHostRow;
use crate::repository::requests::{self, ReportedTransport, RequestDeltas};
use crate::repository::rows::JsonColumn;
use crate::repository::runs::{MissedReports, ReportedProgress, ReportedRun, RunSelection};
use crate::repository::writer::TxContext;
use crate::repository::{DatabaseError, batches, hosts, runs};

/// Live runs at the reporting hosts, by id.
type ReportedRuns = BTreeMap<i64, ReportedRun>;

/// Processes at most one report per host. Responses are in the order of the reports.
pub(crate) async fn process_reports(
    cx: &mut TxContext,
    reports: &[(&str, &Report)],
) -> Result<Vec<Instructions>, DatabaseError> {
    if reports.is_empty() {
        return Ok(Vec::new());
    }
    store_hosts(cx, reports).await?;
    let names: Vec<&str> = reports.iter().map(|(host, _)| *host).collect();
    let mut runs = runs::at_hosts(cx, &names).await?;
    let mut batch = ReportBatch::default();
    let mut answers = Vec::with_capacity(reports.len());
    for (host, report) in reports {
        let mut acknowledged = Vec::new();
        for order in &report.orders {
            acknowledged.push(batch.order(cx, host, order, &mut runs).await?);
        }
        let live = runs.values_mut().map(|run| &mut run.live);
        batch.ends.count_missed_reports(host, report, live);
        answers.push(Instructions {
            lease_seconds: cx.settings.config.lease_seconds,
            orders: Vec::new(),
            acknowledged,
        });
    }
    batch.store(cx, &mut runs).await?;
    let live = runs.values().map(|run| &run.live);
    let notified = live_run::list_orders(&names, live, &mut answers);
    runs::set_receiver_notified(cx, &notified).await?;
    Ok(answers)
}

async fn store_hosts(cx: &mut TxContext, reports: &[(&str, &Report)]) -> Result<(), DatabaseError> {
    let now = cx.now;
    let mut rows = Vec::with_capacity(reports.len());
    for (host, report) in reports {
        let before = cx.run_cache.counters(host);
        let rates: Vec<_> =
            report.interfaces.iter().map(|one| InterfaceRates::between(before, one, now)).collect();
        rows.push(ReportedHostRow {
            name: (*host).to_owned(),
            start: report.start.clone(),
            version: report.version.clone(),
            addresses: JsonColumn(report.addresses.clone()),
            fingerprint: report.fingerprint.clone(),
            capacity: JsonColumn(report.capacity.clone()),
            interfaces: JsonColumn(rates),
            seen: now,
        });
        cx.run_cache.set_counters(host, (now, report.interfaces.clone()));
    }
    hosts::store(cx, rows).await
}

/// Changes of several reports, stored together.
#[derive(Default)]
struct ReportBatch {
    outcomes: Vec<FileOutcome>,
    /// Run of each element of `outcomes`.
    outcome_runs: Vec<i64>,
    progress: Vec<ReportedProgress>,
    transports: Vec<ReportedTransport>,
    ends: ReportedEnds,
    deltas: RequestDeltas,
}

impl ReportBatch {
    async fn order(
        &mut self,
        cx: &mut TxContext,
        host: &str,
        report: &OrderReport,
        runs: &mut ReportedRuns,
    ) -> Result<Acknowledged, DatabaseError> {
        let run = runs.get_mut(&report.order.run());
        let run = run.filter(|run| run.live.is_at(host, report.order.side()));
        let answer = live_run::acknowledge(report, run.is_some());
        let Some(run) = run else { return Ok(answer) };
        let new = match run.live.apply_report(host, report) {
            ReportEffect::Received => return Ok(answer),
            ReportEffect::Refused(fault) => {
                self.ends.add_refusal(run.live.id, fault);
                return Ok(answer);
            }
            ReportEffect::Progress(new) => new,
        };
        self.add_outcomes(cx, run.live.id, report, new).await?;
        if run.live.kind == BatchKind::List {
            let fresh: Vec<_> = report.entries.iter().skip(new.first_entry).collect();
            if !fresh.is_empty() {
                append::add_listed_files(cx, run.request, &fresh, new.may_repeat_entries).await?;
            }
        }
        let progress = progress(run, report);
        if let Some(transport) =
            progress.transport.clone().filter(|new| run.transport.as_ref() != Some(new))
        {
            let reason = progress.transport_reason.clone().unwrap_or_default();
            self.transports.push(ReportedTransport { run: progress.id, transport, reason });
        }
        self.progress.push(progress);
        if new.has_ended {
            self.ends.add_end(run.live.id, report.fault.clone());
        }
        Ok(answer)
    }

    /// Adds the outcomes of a report that are not known.
    async fn add_outcomes(
        &mut self,
        cx: &mut TxContext,
        run: i64,
        report: &OrderReport,
        new: NewProgress,
    ) -> Result<(), DatabaseError> {
        let parts = batches::run_parts(cx, run).await?;
        for outcome in report.outcomes.iter().skip(new.first_outcome) {
            let Some((part, seq)) = RunPart::find(&parts, i64::from(outcome.file)) else {
                continue;
            };
            self.outcome_runs.push(run);
            self.outcomes.push(FileOutcome {
                request: part.request,
                seq,
                bytes: i64::try_from(outcome.bytes.min(FILE_BYTES_MAX)).ok(),
                digest: outcome.digest.clone(),
                fault: outcome.fault.clone(),
                attempts: part.attempts,
            });
        }
        Ok(())
    }

    async fn store(
        mut self,
        cx: &mut TxContext,
        runs: &mut ReportedRuns,
    ) -> Result<(), DatabaseError> {
        let keys: Vec<_> = self.outcomes.iter().map(|one| (one.request, one.seq)).collect();
        let bytes: Vec<_> = self.outcomes.iter().map(|one| one.bytes.unwrap_or(0)).collect();
        let settled = outcomes::store_file_outcomes(cx, self.outcomes, &mut self.deltas).await?;
        for ((key, run), bytes) in keys.iter().zip(&self.outcome_runs).zip(bytes) {
            if let (Some(is_done), Some(run)) = (settled.get(key), runs.get_mut(run)) {
                let bytes = if *is_done { bytes } else { 0 };
                run.settled_bytes = run.settled_bytes.saturating_add(bytes);
                run.settled_files += 1;
            }
        }
        for progress in &mut self.progress {
            let Some(run) = runs.get(&progress.id) else { continue };
            progress.settled_bytes = run.settled_bytes;
            progress.settled_files = run.settled_files;
        }
        runs::store_progress(cx, self.progress).await?;
        requests::add_transports(cx, self.transports).await?;
        outcomes::apply_deltas(cx, self.deltas).await?;
        let mut missed = Vec::new();
        for (id, change) in self.ends.decide(|id| runs.get(&id).map(|run| &run.live)) {
            match change {
                ReportedChange::Withdraw(why) => {
                    runs::withdraw(cx, RunSelection::Id(id), &why).await?;
                }
                ReportedChange::End(end) => outcomes::end_run(cx, id, &end).await?,
                ReportedChange::MissedReports => {
                    missed.extend(runs.get(&id).map(|run| MissedReports {
                        id,
                        source_stop_acks: run.live.missed_reports[0],
                        destination_stop_acks: run.live.missed_reports[1],
                    }));
                    continue;
                }
            }
            runs.remove(&id);
        }
        runs::set_missed_reports(cx, missed).await
    }
}

/// Text of a report; none for an empty one.
fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| truncated(text))
}

/// Returns the progress of a run, without what its files settle.
fn progress(run: &ReportedRun, report: &OrderReport) -> ReportedProgress {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    ReportedProgress {
        id: run.live.id,
        agent_run: report.run.cast_signed(),
        outcomes: number(run.live.outcomes),
        entries: number(run.live.entries),
        phase: report.phase,
        moved: number(report.moved_bytes),
        measured_bps: number(report.bits_per_second),
        applied_bps: report.rate_bps.map(number),
        live_streams: i64::from(report.streams),
        path_forecast: JsonColumn(report.path_forecast),
        retransmits: number(report.retransmits),
        bound_by: truncated(&report.bound_by),
        label: truncated(&report.label),
        transport: non_empty(&report.transport),
        transport_reason: non_empty(&report.transport_reason),
        waiting: report.waiting.as_deref().map(truncated),
        settled_bytes: run.settled_bytes,
        settled_files: run.settled_files,
    }
}
