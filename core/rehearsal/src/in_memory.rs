//! A controller without a database: its state is in memory, every decision is that of `penstock-control`.
//!
//! Simulations need no pause, cancellation, listing, reservation, deadline or drain, and give all requests one priority
//! and one policy; all else happens as in `penstock-controller`, in the same order.

use std::collections::{BTreeMap, HashSet};

use penstock_control::backoff::ATTEMPTS_DEFAULT;
use penstock_control::batch::{self, BatchLimits, BatchState};
use penstock_control::interface_rates::{InterfaceRates, ReportedCounters};
use penstock_control::live_run::{self, ReportEffect, ReportedChange, ReportedEnds};
use penstock_control::lost_hosts::{HostContact, LostHostAction, SilenceLimits};
use penstock_control::orders::{Acknowledged, Instructions, OrderId, OrderReport, Report, RunSide};
use penstock_control::outcomes::{self, PartTerms, RunEnd};
use penstock_control::request::RequestDelta;
use penstock_control::run::RunState;
use penstock_control::run_contents::{FileSpan, RunPart};
use penstock_control::scheduler::{HostView, PlannedStart, RoundDecision, Snapshot};

use crate::controller_api::{ControllerApi, ControllerFailure, NewRequest, OrderContent};
use batches::{BatchTable, FileBatch};
use requests::RequestTable;
use runs::ActiveRun;

mod batches;
mod requests;
mod runs;

pub use requests::ClassOutcome;

/// Configuration of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InMemoryConfig {
    /// Largest size of a batch and of an order.
    pub batch: BatchLimits,
    /// Silence after which hosts are down and lost.
    pub silence: SilenceLimits,
    /// Seconds for which rates hold without another response.
    pub lease_seconds: u32,
}

/// A controller that keeps its state in memory.
#[derive(Debug)]
pub struct InMemoryController {
    config: InMemoryConfig,
    /// Hosts that reported, by name.
    hosts: BTreeMap<String, HostRecord>,
    requests: RequestTable,
    batches: BatchTable,
    runs: BTreeMap<i64, ActiveRun>,
    /// Names of links that are down.
    down: HashSet<String>,
    ids: IdSequence,
}

/// Ids of requests, batches, queues and runs, ascending from 1.
#[derive(Debug, Default)]
struct IdSequence(i64);

impl IdSequence {
    fn next(&mut self) -> i64 {
        self.0 += 1;
        self.0
    }
}

#[derive(Debug)]
struct HostRecord {
    contact: HostContact,
    view: HostView,
    /// Counters in its last report.
    counters: ReportedCounters,
}

/// Changes of requests' counts, by request.
type DeltasByRequest = BTreeMap<i64, RequestDelta>;

impl InMemoryController {
    /// Creates a controller without requests.
    #[must_use]
    pub fn new(config: InMemoryConfig) -> Self {
        Self {
            config,
            hosts: BTreeMap::new(),
            requests: RequestTable::default(),
            batches: BatchTable::default(),
            runs: BTreeMap::new(),
            down: HashSet::new(),
            ids: IdSequence::default(),
        }
    }

    /// Returns the outcomes of requests by class.
    #[must_use]
    pub fn ended(&self) -> &BTreeMap<String, ClassOutcome> {
        self.requests.ended()
    }

    fn snapshot(&self, now_ms: i64) -> Snapshot {
        let view = |host: &HostRecord| HostView {
            alive: !host.contact.is_down(now_ms, self.config.silence),
            ..host.view.clone()
        };
        let active = self.runs.values().filter(|run| run.live.state == RunState::Active);
        Snapshot {
            now_ms,
            hosts: self.hosts.values().map(view).collect(),
            runs: active.map(|run| run.view(now_ms)).collect(),
            queues: self.batches.busy_queues(),
            down: self.down.clone(),
            ..Snapshot::default()
        }
    }

    /// Starts a run with batches of a queue.
    fn start_run(&mut self, now_ms: i64, start: &PlannedStart) {
        let chosen = self.batches.start(start.queue, self.config.batch);
        let Some(class) = self.batches.class_of(start.queue).filter(|_| !chosen.is_empty()) else {
            return;
        };
        let class = class.to_owned();
        let id = self.ids.next();
        let mut deltas = DeltasByRequest::new();
        let part = |(batch, place): (i64, i64)| {
            let FileBatch { request, span, files, .. } = self.batches.get(batch);
            // Files count as active while their batch runs.
            deltas.entry(*request).or_default().active += files;
            RunPart {
                batch,
                request: *request,
                place,
                span: span.clone(),
                files: *files,
                attempts: ATTEMPTS_DEFAULT,
            }
        };
        let parts: Vec<RunPart> = chosen.into_iter().map(part).collect();
        self.requests.apply(now_ms, deltas);
        self.runs.insert(id, ActiveRun::new(id, now_ms, class, start, parts));
    }

    fn apply_decision(&mut self, now_ms: i64, decision: &RoundDecision) {
        for start in &decision.starts {
            self.start_run(now_ms, start);
        }
        for plan in &decision.plans {
            if let Some(run) = self.runs.get_mut(&plan.run) {
                run.set_plan(now_ms, plan);
            }
        }
        for (id, why) in &decision.withdraw {
            if let Some(run) = self.runs.get_mut(id) {
                run.live.withdraw(why.clone());
            }
        }
    }

    /// Withdraws orders of lost hosts, and requeues their work once the other host has stopped.
    fn reclaim_from_lost_hosts(&mut self, now_ms: i64) {
        let limits = self.config.silence;
        let mut over = Vec::new();
        for (id, run) in &mut self.runs {
            let contact = |host: &String| self.hosts.get(host).map(|host| host.contact);
            let contacts = run.live.hosts.each_ref().map(|host| contact(host).unwrap_or_default());
            match run.live.suspect(contacts).decide(now_ms, limits) {
                LostHostAction::Keep => {}
                LostHostAction::Withdraw(why) => run.live.withdraw(why),
                LostHostAction::End(why) => {
                    let withdrawn = run.live.withdrawn_end();
                    over.push((*id, why.map_or(withdrawn, RunEnd::Withdrawn)));
                }
            }
        }
        for (id, end) in over {
            self.end_run(now_ms, id, &end);
        }
    }

    /// Ends a run: its unsettled files are requeued or fail.
    fn end_run(&mut self, now_ms: i64, id: i64, end: &RunEnd) {
        let Some(run) = self.runs.remove(&id) else { return };
        let mut deltas = DeltasByRequest::new();
        for part in run.parts {
            let batch = self.batches.remove(part.batch);
            let unsettled = self.requests.unsettled(part.request, &part.span);
            if unsettled.is_empty() {
                continue;
            }
            let terms = PartTerms {
                is_cancelled: false,
                is_paused: false,
                batch_attempt: end.attempts_after(batch.attempt),
                attempts_max: part.attempts,
                seed: id.cast_unsigned(),
            };
            let ended = outcomes::end_part(now_ms, end, terms, unsettled);
            deltas.entry(part.request).or_default().add(ended.delta);
            self.requests.change_files(part.request, &ended.files);
            if let Some(files) = ended.requeued {
                let requeued = FileBatch {
                    span: FileSpan { first: files.first, last: files.last, seqs: files.seqs },
                    files: files.files,
                    bytes: files.bytes,
                    state: files.state,
                    not_before_ms: files.not_before_ms,
                    attempt: terms.batch_attempt,
                    ..batch
                };
                self.batches.insert(self.ids.next(), requeued);
            }
        }
        self.requests.apply(now_ms, deltas);
    }

    fn record_host(&mut self, now_ms: i64, name: &str, report: &Report) {
        let before = self.hosts.get(name).map(|host| &host.counters);
        let rates = report
            .interfaces
            .iter()
            .map(|one| InterfaceRates::between(before, one, now_ms).view())
            .collect();
        let host = HostRecord {
            contact: HostContact { reported_ms: now_ms, declared_gone_ms: 0 },
            view: HostView {
                name: name.to_owned(),
                alive: true,
                draining: false,
                capacity: report.capacity.clone(),
                interfaces: rates,
            },
            counters: (now_ms, report.interfaces.clone()),
        };
        self.hosts.insert(name.to_owned(), host);
    }

    /// Applies the report of an order.
    fn record_order(
        &mut self,
        host: &str,
        report: &OrderReport,
        deltas: &mut DeltasByRequest,
        ends: &mut ReportedEnds,
    ) -> Acknowledged {
        let run = self.runs.get_mut(&report.order.run());
        let run = run.filter(|run| run.live.is_at(host, report.order.side()));
        let acknowledged = live_run::acknowledge(report, run.is_some());
        let Some(run) = run else { return acknowledged };
        let new = match run.live.apply_report(host, report) {
            ReportEffect::Received => return acknowledged,
            ReportEffect::Refused(fault) => {
                ends.add_refusal(run.live.id, fault);
                return acknowledged;
            }
            ReportEffect::Progress(new) => new,
        };
        for outcome in report.outcomes.iter().skip(new.first_outcome) {
            let Some((part, seq)) = RunPart::find(&run.parts, i64::from(outcome.file)) else {
                continue;
            };
            let delta = deltas.entry(part.request).or_default();
            self.requests.settle_file(part, seq, outcome, delta);
        }
        run.set_progress(report);
        if new.has_ended {
            ends.add_end(run.live.id, report.fault.clone());
        }
        acknowledged
    }

    fn apply_changes(&mut self, now_ms: i64, changes: Vec<(i64, ReportedChange)>) {
        for (id, change) in changes {
            match change {
                ReportedChange::MissedReports => {}
                ReportedChange::End(end) => self.end_run(now_ms, id, &end),
                ReportedChange::Withdraw(why) => {
                    if let Some(run) = self.runs.get_mut(&id) {
                        run.live.withdraw(why);
                    }
                }
            }
        }
    }
}

impl ControllerApi for InMemoryController {
    fn submit(&mut self, now_ms: i64, asked: Vec<NewRequest>) -> Result<(), ControllerFailure> {
        let mut queues: Vec<_> = asked.iter().map(NewRequest::queue).collect();
        queues.sort();
        queues.dedup();
        for queue in queues {
            self.batches.load_queue(queue, &mut self.ids);
        }
        let ids: Vec<i64> = asked.iter().map(|_| self.ids.next()).collect();
        for (request, one) in ids.into_iter().zip(asked) {
            let queue = self.batches.load_queue(one.queue(), &mut self.ids);
            let sizes: Vec<Option<u64>> = one.files.iter().copied().map(Some).collect();
            for range in batch::split(&sizes, self.config.batch) {
                let bytes: u64 = one.files[range.clone()].iter().sum();
                let batch = FileBatch {
                    request,
                    queue,
                    files: range.len() as i64,
                    bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
                    span: FileSpan {
                        first: range.start as i64,
                        last: range.end as i64 - 1,
                        seqs: None,
                    },
                    attempt: 0,
                    state: BatchState::initial(false, false),
                    not_before_ms: 0,
                };
                self.batches.insert(self.ids.next(), batch);
            }
            self.requests.insert(request, now_ms, one.class, &one.files);
        }
        Ok(())
    }

    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, ControllerFailure> {
        let mut deltas = DeltasByRequest::new();
        let mut ends = ReportedEnds::default();
        let mut answers = Vec::with_capacity(reports.len());
        for (host, report) in &reports {
            self.record_host(now_ms, host, report);
        }
        for (host, report) in &reports {
            let orders = report.orders.iter();
            let acknowledged = orders
                .map(|order| self.record_order(host, order, &mut deltas, &mut ends))
                .collect();
            let live = self.runs.values_mut().map(|run| &mut run.live);
            ends.count_missed_reports(host, report, live);
            let lease_seconds = self.config.lease_seconds;
            answers.push(Instructions { lease_seconds, orders: Vec::new(), acknowledged });
        }
        self.requests.apply(now_ms, deltas);
        let changes = ends.decide(|id| self.runs.get(&id).map(|run| &run.live));
        self.apply_changes(now_ms, changes);
        for run in self.runs.values_mut() {
            run.live.phase = run.reported_phase();
        }
        let hosts: Vec<&str> = reports.iter().map(|(host, _)| host.as_str()).collect();
        let live = self.runs.values().map(|run| &run.live);
        for id in live_run::list_orders(&hosts, live, &mut answers) {
            if let Some(run) = self.runs.get_mut(&id) {
                run.live.receiver_notified = true;
            }
        }
        Ok(answers)
    }

    fn order(
        &mut self,
        host: &str,
        order: OrderId,
    ) -> Result<Option<OrderContent>, ControllerFailure> {
        let run = self
            .runs
            .get(&order.run())
            .filter(|run| run.live.state == RunState::Active && run.live.is_at(host, order.side()));
        Ok(run.map(|run| match order.side() {
            RunSide::Source => {
                let files = run.parts.iter().flat_map(|part| {
                    part.span.seqs().map(|seq| self.requests.order_file(part.request, seq))
                });
                OrderContent::Send(files.collect())
            }
            RunSide::Destination => OrderContent::Receive,
        }))
    }

    fn round(
        &mut self,
        now_ms: i64,
        decide: &mut dyn FnMut(&Snapshot) -> RoundDecision,
    ) -> Result<(), ControllerFailure> {
        self.batches.requeue_due(now_ms);
        self.reclaim_from_lost_hosts(now_ms);
        let decision = decide(&self.snapshot(now_ms));
        self.apply_decision(now_ms, &decision);
        Ok(())
    }

    fn link(&mut self, _: i64, name: &str, down: bool) -> Result<(), ControllerFailure> {
        match down {
            true => self.down.insert(name.to_owned()),
            false => self.down.remove(name),
        };
        Ok(())
    }

    fn open(&mut self) -> Result<u64, ControllerFailure> {
        Ok(self.requests.open_count())
    }
}
