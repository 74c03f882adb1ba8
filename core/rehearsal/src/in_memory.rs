//! A controller without a database: the same batches, orders and rounds, in memory.
//!
//! It equals the store of `penstock-controller` as far as simulations need it: no pause, cancellation, listing,
//! reservation or drain, one priority, and attempts counted per batch.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use penstock_control::backoff;
use penstock_control::batch::{self, BatchLimits};
use penstock_control::lost_hosts::MISSED_REPORTS_MAX;
use penstock_control::orders::{
    ActiveOrder, Instructions, OrderId, OrderPhase, OrderReport, Report, RunSide,
};
use penstock_control::scheduler::{
    HostView, InterfaceView, PlannedStart, QueueView, RoundDecision, RunPlan, RunView, Snapshot,
};

use crate::controller_api::{
    ControllerApi, ControllerFailure, NewRequest, OrderContent, OrderFile,
};
use run::{ActiveRun, FileBatch};

mod run;

/// Most small batches in one order, as in the store.
const BATCHES_PER_ORDER_MAX: usize = 512;

/// Configuration of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InMemoryConfig {
    /// Largest size of a batch.
    pub batch: BatchLimits,
    /// Silence after which a node's work is requeued, in milliseconds.
    pub lost_ms: i64,
    /// Time for which a node counts as up after a report, in milliseconds.
    pub alive_ms: i64,
    /// Seconds for which rates hold without another response.
    pub lease_seconds: u32,
}

/// A controller that keeps its state in memory.
#[derive(Debug)]
pub struct InMemoryController {
    config: InMemoryConfig,
    hosts: BTreeMap<String, RehearsalHost>,
    /// Queues by class, source and destination.
    queues: BTreeMap<(String, String, String), BatchQueue>,
    /// Keys of `queues` by queue id.
    queue_keys: HashMap<i64, (String, String, String)>,
    /// Batches to retry, by due time in milliseconds and a unique number.
    later: BTreeMap<(i64, i64), FileBatch>,
    runs: BTreeMap<i64, ActiveRun>,
    requests: HashMap<i64, RequestProgress>,
    down: HashSet<String>,
    next: i64,
    /// Number of files submitted.
    files: u64,
    /// Outcomes of requests by class.
    pub ended: BTreeMap<String, ClassOutcome>,
}

/// Outcome of the requests of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassOutcome {
    /// Number of files transferred.
    pub done: u64,
    /// Files that failed permanently.
    pub failed: u64,
    /// Time from submission to the last file, in seconds, of each finished request.
    pub seconds: Vec<u32>,
}

#[derive(Debug)]
struct RehearsalHost {
    seen_ms: i64,
    view: HostView,
    sent: (i64, u64),
}

#[derive(Debug)]
struct BatchQueue {
    id: i64,
    waiting: VecDeque<FileBatch>,
    bytes: u64,
}

#[derive(Debug)]
struct RequestProgress {
    class: String,
    submitted_ms: i64,
    left: u64,
}

impl InMemoryController {
    /// Creates a controller without requests.
    #[must_use]
    pub fn new(config: InMemoryConfig) -> Self {
        Self {
            config,
            hosts: BTreeMap::new(),
            queues: BTreeMap::new(),
            queue_keys: HashMap::new(),
            later: BTreeMap::new(),
            runs: BTreeMap::new(),
            requests: HashMap::new(),
            down: HashSet::new(),
            next: 1,
            files: 0,
            ended: BTreeMap::new(),
        }
    }

    fn number(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    fn queue(&mut self, key: (String, String, String)) -> &mut BatchQueue {
        if !self.queues.contains_key(&key) {
            let id = self.number();
            self.queue_keys.insert(id, key.clone());
            let queue = BatchQueue { id, waiting: VecDeque::new(), bytes: 0 };
            self.queues.insert(key.clone(), queue);
        }
        self.queues.get_mut(&key).expect("it was made")
    }

    fn enqueue(&mut self, batch: FileBatch) {
        let key = self.queue_keys[&batch.queue].clone();
        let queue = self.queue(key);
        queue.bytes += batch.bytes();
        queue.waiting.push_back(batch);
    }

    /// Counts settled files of a request.
    fn settle(&mut self, now_ms: i64, request: i64, done: u64, failed: u64) {
        let Some(one) = self.requests.get_mut(&request) else { return };
        one.left -= done + failed;
        let ended = self.ended.entry(one.class.clone()).or_default();
        ended.done += done;
        ended.failed += failed;
        if one.left == 0 {
            ended.seconds.push(((now_ms - one.submitted_ms) / 1000) as u32);
            self.requests.remove(&request);
        }
    }

    fn snapshot(&self, now_ms: i64) -> Snapshot {
        let alive = |host: &RehearsalHost| now_ms - host.seen_ms <= self.config.alive_ms;
        Snapshot {
            now_ms,
            hosts: self
                .hosts
                .values()
                .map(|host| HostView { alive: alive(host), ..host.view.clone() })
                .collect(),
            runs: self
                .runs
                .values()
                .filter(|run| !run.withdrawn)
                .map(|run| run.view.clone())
                .collect(),
            queues: self
                .queues
                .iter()
                .filter(|(_, queue)| !queue.waiting.is_empty())
                .map(|((class, source, destination), queue)| QueueView {
                    id: queue.id,
                    class: class.clone(),
                    source: source.clone(),
                    destination: destination.clone(),
                    batches: queue.waiting.len() as u64,
                    bytes: queue.bytes,
                })
                .collect(),
            down: self.down.clone(),
            ..Snapshot::default()
        }
    }

    /// Starts a run with batches from a queue.
    fn begin(&mut self, now_ms: i64, start: &PlannedStart) {
        let Some(key) = self.queue_keys.get(&start.queue).cloned() else { return };
        let limits = self.config.batch;
        let Some(queue) = self.queues.get_mut(&key) else { return };
        let (mut files, mut bytes) = (0, 0_u64);
        let mut batches: Vec<FileBatch> = Vec::new();
        while batches.len() < BATCHES_PER_ORDER_MAX
            && let Some(batch) = queue.waiting.front()
        {
            let (more, size) = (batch.files.len(), batch.bytes());
            let fits = files + more <= limits.files && bytes.saturating_add(size) <= limits.bytes;
            if !batches.is_empty() && !fits {
                break;
            }
            (files, bytes) = (files + more, bytes + size);
            batches.extend(queue.waiting.pop_front());
        }
        queue.bytes -= bytes;
        let Some(first) = batches.first() else { return };
        let request = first.request;
        let id = self.number();
        let plan =
            RunPlan { run: id, reason: "it has just begun".to_owned(), ..RunPlan::default() };
        let view = RunView {
            queue: start.queue,
            class: key.0,
            request,
            from: start.from.clone(),
            to: start.to.clone(),
            priority: 3,
            plan,
            plan_changed_ms: now_ms,
            ..RunView::default()
        };
        self.runs.insert(id, ActiveRun::new(view, batches));
    }

    fn apply(&mut self, now_ms: i64, decision: &RoundDecision) {
        for start in &decision.starts {
            self.begin(now_ms, start);
        }
        for plan in &decision.plans {
            if let Some(run) = self.runs.get_mut(&plan.run) {
                let before = &run.view.plan;
                if before.rate_bps != plan.rate_bps || before.path != plan.path {
                    run.view.plan_changed_ms = now_ms;
                }
                run.view.plan = plan.clone();
            }
        }
        for (run, _) in &decision.withdraw {
            if let Some(run) = self.runs.get_mut(run) {
                (run.withdrawn, run.missed_reports) = (true, [0, 0]);
            }
        }
    }

    fn requeue_due_batches(&mut self, now_ms: i64) {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now_ms
        {
            let batch = entry.remove();
            self.enqueue(batch);
        }
    }

    /// Withdraws runs of lost nodes, and requeues their work once the other end has stopped.
    fn reclaim_from_lost_hosts(&mut self, now_ms: i64) {
        let since = now_ms - self.config.lost_ms;
        let hosts = &self.hosts;
        let silent = |name: &str| hosts.get(name).is_none_or(|host| host.seen_ms < since);
        let mut over = Vec::new();
        for (id, run) in &mut self.runs {
            let silent = [silent(&run.view.from), silent(&run.view.to)];
            if silent == [false, false] || silent == [true, true] {
                continue;
            }
            if !run.withdrawn {
                (run.withdrawn, run.missed_reports) = (true, [0, 0]);
            } else if (0..2).all(|end| silent[end] || run.missed_reports[end] >= MISSED_REPORTS_MAX)
            {
                over.push(*id);
            }
        }
        for id in over {
            self.end(now_ms, id, false);
        }
    }

    /// Ends a run: unfinished files are retried after a delay, or at once if the node did not report the end.
    fn end(&mut self, now_ms: i64, id: i64, is_reported: bool) {
        let Some(run) = self.runs.remove(&id) else { return };
        for (batch, failed) in run.into_unfinished(is_reported) {
            self.settle(now_ms, batch.request, 0, failed);
            if batch.files.is_empty() {
                continue;
            }
            if is_reported {
                let wait = backoff::backoff_delay(batch.attempt, id as u64).as_millis() as i64;
                let number = self.number();
                self.later.insert((now_ms + wait, number), batch);
            } else {
                self.enqueue(batch);
            }
        }
    }

    fn record_host(&mut self, now_ms: i64, name: &str, report: &Report) {
        let host = self.hosts.entry(name.to_owned()).or_insert_with(|| RehearsalHost {
            seen_ms: now_ms,
            view: HostView { name: name.to_owned(), ..HostView::default() },
            sent: (now_ms, 0),
        });
        host.seen_ms = now_ms;
        host.view.capacity = report.capacity.clone();
        let sent = report.interfaces.first().map_or(0, |one| one.sent_bytes);
        let elapsed = (now_ms - host.sent.0).max(1) as u64;
        let sent_bps = sent.saturating_sub(host.sent.1).saturating_mul(8000) / elapsed;
        host.sent = (now_ms, sent);
        let interface =
            |name: &String| InterfaceView { name: name.clone(), addresses: Vec::new(), sent_bps };
        host.view.interfaces = report.interfaces.iter().map(|one| interface(&one.name)).collect();
    }

    fn record_order(&mut self, now_ms: i64, host: &str, order: &OrderReport) -> (u64, bool) {
        let outcomes = order.outcomes_from + order.outcomes.len() as u64;
        let over = order.phase == OrderPhase::Ended;
        let id = order.order.run();
        let sends = order.order.side() == RunSide::Source;
        let Some(run) = self.runs.get_mut(&id) else { return (outcomes, true) };
        if !sends || run.view.from != host {
            return (outcomes, over);
        }
        let settled = run.apply_report(order);
        for (request, done) in settled {
            self.settle(now_ms, request, done, 0);
        }
        if over {
            self.end(now_ms, id, true);
        }
        (outcomes, over)
    }

    /// Counts reports without withdrawn orders, and ends the runs that both hosts have stopped.
    fn count_missed_reports(&mut self, now_ms: i64, host: &str, report: &Report) {
        let running: HashSet<OrderId> = report.orders.iter().map(|order| order.order).collect();
        let mut over = Vec::new();
        for (id, run) in self.runs.iter_mut().filter(|(_, run)| run.withdrawn) {
            for (side, name) in RunSide::ALL.into_iter().zip([&run.view.from, &run.view.to]) {
                if name == host {
                    let there = running.contains(&OrderId::of(*id, side));
                    let missed = &mut run.missed_reports[side as usize];
                    *missed = if there { 0 } else { missed.saturating_add(1) };
                }
            }
            if run.missed_reports.iter().all(|count| *count >= MISSED_REPORTS_MAX) {
                over.push(*id);
            }
        }
        for id in over {
            self.end(now_ms, id, false);
        }
    }

    fn active_orders(&mut self, host: &str) -> Vec<ActiveOrder> {
        let mut orders = Vec::new();
        for (id, run) in self.runs.iter_mut().filter(|(_, run)| !run.withdrawn) {
            let order = OrderId::of(*id, RunSide::Source);
            if run.view.from == host && run.receiver_notified && run.view.plan.rate_bps.is_some() {
                orders.push(ActiveOrder { order, settings: run.settings() });
            }
            if run.view.to == host {
                run.receiver_notified = true;
                orders.push(ActiveOrder { order: order.peer(), settings: Default::default() });
            }
        }
        orders
    }
}

impl ControllerApi for InMemoryController {
    fn submit(&mut self, now_ms: i64, asked: Vec<NewRequest>) -> Result<(), ControllerFailure> {
        for one in asked {
            let request = self.number();
            let left = one.files.len() as u64;
            let class = one.class.clone();
            self.requests.insert(request, RequestProgress { class, submitted_ms: now_ms, left });
            let queue = self.queue((one.class, one.source, one.destination)).id;
            let sizes: Vec<Option<u64>> = one.files.iter().copied().map(Some).collect();
            for range in batch::split(&sizes, self.config.batch) {
                let numbered = one.files[range].iter().map(|bytes| {
                    self.files += 1;
                    OrderFile { id: self.files, bytes: *bytes }
                });
                let files = numbered.collect();
                self.enqueue(FileBatch { request, queue, files, attempt: 0 });
            }
        }
        Ok(())
    }

    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, ControllerFailure> {
        let mut acknowledged = Vec::new();
        for (host, report) in &reports {
            self.record_host(now_ms, host, report);
            let mut known = Vec::new();
            for order in &report.orders {
                let (outcomes, end) = self.record_order(now_ms, host, order);
                known.push(run::acknowledged(order, outcomes, end));
            }
            self.count_missed_reports(now_ms, host, report);
            acknowledged.push(known);
        }
        let answers = reports.iter().zip(acknowledged).map(|((host, _), acknowledged)| {
            let lease_seconds = self.config.lease_seconds;
            Instructions { lease_seconds, orders: self.active_orders(host), acknowledged }
        });
        Ok(answers.collect())
    }

    fn order(
        &mut self,
        _: &str,
        order: OrderId,
    ) -> Result<Option<OrderContent>, ControllerFailure> {
        let run = self.runs.get(&order.run());
        Ok(run.map(|run| match order.side() {
            RunSide::Source => OrderContent::Send(run.files()),
            RunSide::Destination => OrderContent::Receive,
        }))
    }

    fn round(
        &mut self,
        now_ms: i64,
        decide: &mut dyn FnMut(&Snapshot) -> RoundDecision,
    ) -> Result<(), ControllerFailure> {
        self.requeue_due_batches(now_ms);
        self.reclaim_from_lost_hosts(now_ms);
        let decision = decide(&self.snapshot(now_ms));
        self.apply(now_ms, &decision);
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
        Ok(self.requests.len() as u64)
    }
}
