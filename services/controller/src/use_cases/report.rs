//! Reports of nodes, and the instructions in response.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use penstock_control::batch::BatchKind;
use penstock_control::lost_hosts::MISSED_REPORTS_MAX;
use penstock_control::orders::{
    Acknowledged, ActiveOrder, Instructions, InterfaceCounters, OrderFault, OrderId, OrderPhase,
    OrderReport, OrderSettings, Report, RunSide,
};
use penstock_control::outcomes::RunEnd;
use penstock_control::run::RunState;

use super::append;
use super::outcomes::{self, FileOutcome};
use crate::repository::hosts::{InterfaceRates, ReportedHostRow};
use crate::repository::requests::RequestDeltas;
use crate::repository::rows::JsonColumn;
use crate::repository::run_cache::ReportedCounters;
use crate::repository::runs::{MissedReports, ReportedProgress, ReportedRun, RunSelection};
use crate::repository::writer::TxContext;
use crate::repository::{DatabaseError, batches, hosts, runs};

/// Longest text of a node that is stored.
const TEXT_CHARS_MAX: usize = 400;

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
        batch.count_missed_reports(host, report, &mut runs);
        answers.push(Instructions {
            lease_seconds: cx.settings.config.lease_seconds,
            orders: Vec::new(),
            acknowledged,
        });
    }
    batch.store(cx, &mut runs).await?;
    let notified = list_orders(&names, &runs, &mut answers);
    runs::set_receiver_notified(cx, &notified).await?;
    Ok(answers)
}

/// Adds the active orders to the instructions of their hosts. Returns the runs whose receivers get their tickets.
fn list_orders(names: &[&str], runs: &ReportedRuns, answers: &mut [Instructions]) -> Vec<i64> {
    let at: HashMap<&str, usize> = names.iter().enumerate().map(|(at, host)| (*host, at)).collect();
    let mut notified = Vec::new();
    for run in runs.values().filter(|run| run.state == RunState::Active) {
        // Its receiver has the ticket, and a round has given it a rate.
        let is_ready = run.receiver_notified && run.rate_bps.is_some();
        let sender_may = is_ready || run.kind == BatchKind::List;
        if let Some(at) = at.get(run.from_host.as_str()).filter(|_| sender_may) {
            let order = OrderId::of(run.id, RunSide::Source);
            answers[*at].orders.push(ActiveOrder { order, settings: run.settings() });
        }
        if let Some(at) = at.get(run.to_host.as_str()).filter(|_| run.kind == BatchKind::Copy) {
            let order = OrderId::of(run.id, RunSide::Destination);
            answers[*at].orders.push(ActiveOrder { order, settings: OrderSettings::default() });
            if !run.receiver_notified {
                notified.push(run.id);
            }
        }
    }
    notified
}

async fn store_hosts(cx: &mut TxContext, reports: &[(&str, &Report)]) -> Result<(), DatabaseError> {
    let now = cx.now;
    let mut rows = Vec::with_capacity(reports.len());
    for (host, report) in reports {
        let before = cx.run_cache.counters(host);
        let rates: Vec<_> =
            report.interfaces.iter().map(|one| interface_rates(one, before, now)).collect();
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

/// Returns the rates of an interface since the previous report.
fn interface_rates(
    now: &InterfaceCounters,
    before: Option<&ReportedCounters>,
    at: i64,
) -> InterfaceRates {
    let mut rates = InterfaceRates {
        name: now.name.clone(),
        addresses: now.addresses.clone(),
        ..InterfaceRates::default()
    };
    let Some((then, list)) = before else { return rates };
    let (Some(before), Ok(elapsed @ 1..)) =
        (list.iter().find(|one| one.name == now.name), u64::try_from(at - then))
    else {
        return rates;
    };
    // A counter that was reset gives no rate this time.
    let rate = |now: u64, before: u64| {
        let bits = u128::from(now.saturating_sub(before)) * 8000 / u128::from(elapsed);
        u64::try_from(bits).unwrap_or(0)
    };
    rates.sent_bps = rate(now.sent_bytes, before.sent_bytes);
    rates.received_bps = rate(now.received_bytes, before.received_bytes);
    rates
}

/// Changes of several reports, stored together.
#[derive(Default)]
struct ReportBatch {
    outcomes: Vec<FileOutcome>,
    /// Run of each element of `outcomes`.
    outcome_runs: Vec<i64>,
    progress: Vec<ReportedProgress>,
    ended: Vec<(i64, Option<OrderFault>)>,
    /// Runs that their receiving node refuses, with the fault.
    refused: Vec<(i64, OrderFault)>,
    /// Withdrawn runs whose missed reports changed.
    withdrawn: BTreeSet<i64>,
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
        let outcomes = report.outcomes_from.saturating_add(report.outcomes.len() as u64);
        let entries = report.entries_from.saturating_add(report.entries.len() as u64);
        let ended = report.phase == OrderPhase::Ended;
        let mut answer =
            Acknowledged { order: report.order, run: report.run, outcomes, entries, end: ended };
        let sends = report.order.side() == RunSide::Source;
        let run = runs.get_mut(&report.order.run());
        let run = run.filter(|run| if sends { run.from_host == host } else { run.to_host == host });
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
        self.add_outcomes(cx, run, report).await?;
        run.outcomes = run.outcomes.max(outcomes as i64);
        if run.kind == BatchKind::List {
            let known = u64::try_from(run.entries).unwrap_or(0);
            let skip = known.saturating_sub(report.entries_from) as usize;
            let again = report.entries_from == 0 && known == 0;
            let fresh: Vec<_> = report.entries.iter().skip(skip).collect();
            if !fresh.is_empty() {
                append::add_listed_files(cx, run.request, &fresh, again).await?;
            }
            run.entries = run.entries.max(entries as i64);
        }
        self.progress.push(progress(run, agent_run, report));
        if ended {
            self.ended.push((run.id, report.fault.clone()));
        }
        Ok(answer)
    }

    /// Adds the outcomes of a report that are not known.
    async fn add_outcomes(
        &mut self,
        cx: &mut TxContext,
        run: &ReportedRun,
        report: &OrderReport,
    ) -> Result<(), DatabaseError> {
        let known = u64::try_from(run.outcomes).unwrap_or(0);
        let skip = known.saturating_sub(report.outcomes_from) as usize;
        let parts = batches::run_parts(cx, run.id).await?;
        for outcome in report.outcomes.iter().skip(skip) {
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
        Ok(())
    }

    /// Counts a host's reports without its withdrawn orders.
    fn count_missed_reports(&mut self, host: &str, report: &Report, runs: &mut ReportedRuns) {
        let running: HashSet<OrderId> = report
            .orders
            .iter()
            .filter(|order| order.phase != OrderPhase::Ended)
            .map(|order| order.order)
            .collect();
        for run in runs.values_mut().filter(|run| run.state == RunState::Revoking) {
            for side in RunSide::ALL {
                let (name, missed) = match side {
                    RunSide::Source => (&run.from_host, &mut run.source_stop_acks),
                    RunSide::Destination => (&run.to_host, &mut run.destination_stop_acks),
                };
                if name == host {
                    let there = running.contains(&OrderId::of(run.id, side));
                    *missed = if there { 0 } else { (*missed + 1).min(MISSED_REPORTS_MAX) };
                    self.withdrawn.insert(run.id);
                }
            }
        }
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
                run.settled_bytes += if *is_done { bytes } else { 0 };
                run.settled_files += 1;
            }
        }
        for progress in &mut self.progress {
            let Some(run) = runs.get(&progress.id) else { continue };
            progress.settled_bytes = run.settled_bytes;
            progress.settled_files = run.settled_files;
        }
        runs::store_progress(cx, self.progress).await?;
        outcomes::apply_deltas(cx, self.deltas).await?;
        for (id, fault) in self.refused {
            let active = runs.get(&id).filter(|run| run.state == RunState::Active);
            match active.map(|run| run.phase == OrderPhase::Running) {
                None => continue,
                // A transferring run was admitted before: stop it first.
                Some(true) => runs::withdraw(cx, RunSelection::Id(id), &fault.text).await?,
                Some(false) => {
                    self.ended.retain(|(ended, _)| *ended != id);
                    outcomes::end_run(cx, id, &RunEnd::Reported(Some(fault))).await?;
                }
            }
            runs.remove(&id);
        }
        for (id, fault) in self.ended {
            let withdrawn = runs.get(&id).filter(|run| run.state == RunState::Revoking);
            let end = match withdrawn {
                Some(run) => RunEnd::Withdrawn(run.end_reason.clone().unwrap_or_default()),
                None => RunEnd::Reported(fault),
            };
            outcomes::end_run(cx, id, &end).await?;
            runs.remove(&id);
        }
        let mut missed = Vec::new();
        for id in self.withdrawn {
            let Some(run) = runs.get(&id) else { continue };
            let (source_stop_acks, destination_stop_acks) =
                (run.source_stop_acks, run.destination_stop_acks);
            if source_stop_acks.min(destination_stop_acks) >= MISSED_REPORTS_MAX {
                let why = run.end_reason.clone().unwrap_or_default();
                outcomes::end_run(cx, id, &RunEnd::Withdrawn(why)).await?;
                runs.remove(&id);
            } else {
                missed.push(MissedReports { id, source_stop_acks, destination_stop_acks });
            }
        }
        runs::set_missed_reports(cx, missed).await
    }
}

/// Returns the progress of a run, without what its files settle.
fn progress(run: &ReportedRun, agent_run: i64, report: &OrderReport) -> ReportedProgress {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    ReportedProgress {
        id: run.id,
        agent_run,
        outcomes: run.outcomes,
        entries: run.entries,
        phase: report.phase,
        moved: number(report.moved_bytes),
        measured_bps: number(report.bits_per_second),
        applied_bps: report.rate_bps.map(number),
        live_streams: i64::from(report.streams),
        retransmits: number(report.retransmits),
        bound_by: truncated(&report.bound_by),
        label: truncated(&report.label),
        waiting: report.waiting.as_deref().map(truncated),
        settled_bytes: run.settled_bytes,
        settled_files: run.settled_files,
    }
}

/// Truncates a text of a node.
fn truncated(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(sent_bytes: u64) -> InterfaceCounters {
        InterfaceCounters { name: "eth0".to_owned(), sent_bytes, ..InterfaceCounters::default() }
    }

    #[test]
    fn interface_rate_needs_two_reports() {
        let before = (1_000, vec![counters(1_000)]);
        assert_eq!(interface_rates(&counters(2_000), None, 2_000).sent_bps, 0);
        assert_eq!(interface_rates(&counters(2_000), Some(&before), 2_000).sent_bps, 8_000);
        assert_eq!(interface_rates(&counters(500), Some(&before), 2_000).sent_bps, 0, "reset");
        assert_eq!(interface_rates(&counters(2_000), Some(&before), 1_000).sent_bps, 0, "no time");
    }
}
