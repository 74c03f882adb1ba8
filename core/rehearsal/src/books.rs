//! A controller without a database: the same batches, orders and rounds, in memory.
//!
//! It does what the store of `penstock-controller` does as far as rehearsals need it: nothing is paused, cancelled, listed,
//! reserved or drained, all requests have one priority, and attempts are counted for batches.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use penstock_operations::batch::{self, Limits};
use penstock_operations::orders::{Instructions, OrderId, OrderReport, Phase, Report, Standing};
use penstock_operations::retry;
use penstock_operations::round::{
    Decision, HostView, InterfaceView, QueueView, RunView, Setting, Snapshot, Start,
};

use crate::desk::{Asked, Desk, File, Work};
use run::{Batch, Run};

mod run;

/// Small batches that share an order, at most; as in the store.
const BATCHES_MAX: usize = 512;

/// Reports without a withdrawn order before its node counts as done with it.
const ABSENT: u8 = 2;

/// How the books are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How large batches are.
    pub batch: Limits,
    /// How long a node may be silent before its work is given to others.
    pub lost_ms: i64,
    /// How long a node counts as up after a report.
    pub alive_ms: i64,
    /// How long rates hold.
    pub lease_seconds: u32,
}

/// What is known of the whole.
#[derive(Debug)]
pub struct Books {
    rules: Rules,
    hosts: BTreeMap<String, Host>,
    /// By class, source and destination.
    queues: BTreeMap<(String, String, String), Queue>,
    /// Keys of queues by number.
    named: HashMap<i64, (String, String, String)>,
    /// Batches that are tried again at a time.
    later: BTreeMap<(i64, i64), Batch>,
    runs: BTreeMap<i64, Run>,
    requests: HashMap<i64, Request>,
    down: HashSet<String>,
    next: i64,
    /// Files so far.
    files: u64,
    /// Of each class: files in place, files that failed, and how long its requests took, in seconds.
    pub ended: BTreeMap<String, Ended>,
}

/// What became of the requests of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Files in place.
    pub done: u64,
    /// Files that failed for good.
    pub failed: u64,
    /// From submission to the last file, in seconds, of each request that is over.
    pub seconds: Vec<u32>,
}

#[derive(Debug)]
struct Host {
    seen_ms: i64,
    view: HostView,
    sent: (i64, u64),
}

#[derive(Debug)]
struct Queue {
    id: i64,
    waiting: VecDeque<Batch>,
    bytes: u64,
}

#[derive(Debug)]
struct Request {
    class: String,
    submitted_ms: i64,
    left: u64,
}

impl Books {
    /// Empty ones.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            hosts: BTreeMap::new(),
            queues: BTreeMap::new(),
            named: HashMap::new(),
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

    fn queue(&mut self, key: (String, String, String)) -> &mut Queue {
        if !self.queues.contains_key(&key) {
            let id = self.number();
            self.named.insert(id, key.clone());
            let queue = Queue { id, waiting: VecDeque::new(), bytes: 0 };
            self.queues.insert(key.clone(), queue);
        }
        self.queues.get_mut(&key).expect("it was made")
    }

    fn enqueue(&mut self, batch: Batch) {
        let key = self.named[&batch.queue].clone();
        let queue = self.queue(key);
        queue.bytes += batch.bytes();
        queue.waiting.push_back(batch);
    }

    /// Files of a request are settled.
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
        let alive = |host: &Host| now_ms - host.seen_ms <= self.rules.alive_ms;
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
                .filter(|run| !run.ending)
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

    /// Takes batches from a queue and makes a run of them.
    fn begin(&mut self, now_ms: i64, start: &Start) {
        let Some(key) = self.named.get(&start.queue).cloned() else { return };
        let limits = self.rules.batch;
        let Some(queue) = self.queues.get_mut(&key) else { return };
        let (mut files, mut bytes) = (0, 0_u64);
        let mut batches: Vec<Batch> = Vec::new();
        while batches.len() < BATCHES_MAX
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
        let setting =
            Setting { run: id, reason: "it has just begun".to_owned(), ..Setting::default() };
        let view = RunView {
            queue: start.queue,
            class: key.0,
            request,
            from: start.from.clone(),
            to: start.to.clone(),
            priority: 3,
            setting,
            set_ms: now_ms,
            ..RunView::default()
        };
        self.runs.insert(id, Run::new(view, batches));
    }

    fn apply(&mut self, now_ms: i64, decision: &Decision) {
        for start in &decision.starts {
            self.begin(now_ms, start);
        }
        for setting in &decision.settings {
            if let Some(run) = self.runs.get_mut(&setting.run) {
                let before = &run.view.setting;
                if before.rate_bps != setting.rate_bps || before.path != setting.path {
                    run.view.set_ms = now_ms;
                }
                run.view.setting = setting.clone();
            }
        }
        for (run, _) in &decision.withdraw {
            if let Some(run) = self.runs.get_mut(run) {
                (run.ending, run.gone) = (true, [0, 0]);
            }
        }
    }

    fn due(&mut self, now_ms: i64) {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now_ms
        {
            let batch = entry.remove();
            self.enqueue(batch);
        }
    }

    /// Takes back orders of nodes that are lost, once the other end has stopped.
    fn lose(&mut self, now_ms: i64) {
        let since = now_ms - self.rules.lost_ms;
        let hosts = &self.hosts;
        let silent = |name: &str| hosts.get(name).is_none_or(|host| host.seen_ms < since);
        let mut over = Vec::new();
        for (id, run) in &mut self.runs {
            let silent = [silent(&run.view.from), silent(&run.view.to)];
            if silent == [false, false] || silent == [true, true] {
                continue;
            }
            if !run.ending {
                (run.ending, run.gone) = (true, [0, 0]);
            } else if (0..2).all(|end| silent[end] || run.gone[end] >= ABSENT) {
                over.push(*id);
            }
        }
        for id in over {
            self.end(now_ms, id, false);
        }
    }

    /// Ends a run: what is not settled waits for another attempt; at once where the node never `told` of its end.
    fn end(&mut self, now_ms: i64, id: i64, told: bool) {
        let Some(run) = self.runs.remove(&id) else { return };
        for (batch, failed) in run.into_rest(told) {
            self.settle(now_ms, batch.request, 0, failed);
            if batch.files.is_empty() {
                continue;
            }
            if told {
                let wait = retry::wait(batch.attempt, id as u64).as_millis() as i64;
                let number = self.number();
                self.later.insert((now_ms + wait, number), batch);
            } else {
                self.enqueue(batch);
            }
        }
    }

    fn take_host(&mut self, now_ms: i64, name: &str, report: &Report) {
        let host = self.hosts.entry(name.to_owned()).or_insert_with(|| Host {
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

    fn take_order(&mut self, now_ms: i64, host: &str, order: &OrderReport) -> (u64, bool) {
        let outcomes = order.outcomes_from + order.outcomes.len() as u64;
        let over = order.phase == Phase::Ended;
        let id = (order.order / 2) as i64;
        let sends = order.order.is_multiple_of(2);
        let Some(run) = self.runs.get_mut(&id) else { return (outcomes, true) };
        if !sends || run.view.from != host {
            return (outcomes, over);
        }
        let settled = run.take(order);
        for (request, done) in settled {
            self.settle(now_ms, request, done, 0);
        }
        if over {
            self.end(now_ms, id, true);
        }
        (outcomes, over)
    }

    /// Notes which withdrawn orders a host has done with.
    fn absent(&mut self, now_ms: i64, host: &str, report: &Report) {
        let running: HashSet<OrderId> = report.orders.iter().map(|order| order.order).collect();
        let mut over = Vec::new();
        for (id, run) in self.runs.iter_mut().filter(|(_, run)| run.ending) {
            for (end, name) in [&run.view.from, &run.view.to].into_iter().enumerate() {
                if name == host {
                    let there = running.contains(&(*id as u64 * 2 + end as u64));
                    run.gone[end] = if there { 0 } else { run.gone[end].saturating_add(1) };
                }
            }
            if run.gone.iter().all(|absent| *absent >= ABSENT) {
                over.push(*id);
            }
        }
        for id in over {
            self.end(now_ms, id, false);
        }
    }

    fn standing(&mut self, host: &str) -> Vec<Standing> {
        let mut orders = Vec::new();
        for (id, run) in self.runs.iter_mut().filter(|(_, run)| !run.ending) {
            let order = *id as u64 * 2;
            if run.view.from == host && run.told && run.view.setting.rate_bps.is_some() {
                orders.push(Standing { order, settings: run.settings() });
            }
            if run.view.to == host {
                run.told = true;
                orders.push(Standing { order: order + 1, settings: Default::default() });
            }
        }
        orders
    }
}

impl Desk for Books {
    fn submit(&mut self, now_ms: i64, asked: Vec<Asked>) -> Result<(), String> {
        for one in asked {
            let request = self.number();
            let left = one.files.len() as u64;
            let class = one.class.clone();
            self.requests.insert(request, Request { class, submitted_ms: now_ms, left });
            let queue = self.queue((one.class, one.source, one.destination)).id;
            let sizes: Vec<Option<u64>> = one.files.iter().copied().map(Some).collect();
            for range in batch::split(&sizes, self.rules.batch) {
                let numbered = one.files[range].iter().map(|bytes| {
                    self.files += 1;
                    File { id: self.files, bytes: *bytes }
                });
                let files = numbered.collect();
                self.enqueue(Batch { request, queue, files, attempt: 0 });
            }
        }
        Ok(())
    }

    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, String> {
        let mut acknowledged = Vec::new();
        for (host, report) in &reports {
            self.take_host(now_ms, host, report);
            let mut known = Vec::new();
            for order in &report.orders {
                let (outcomes, end) = self.take_order(now_ms, host, order);
                known.push(run::acknowledged(order, outcomes, end));
            }
            self.absent(now_ms, host, report);
            acknowledged.push(known);
        }
        let answers = reports.iter().zip(acknowledged).map(|((host, _), acknowledged)| {
            let lease_seconds = self.rules.lease_seconds;
            Instructions { lease_seconds, orders: self.standing(host), acknowledged }
        });
        Ok(answers.collect())
    }

    fn order(&mut self, _: &str, order: OrderId) -> Result<Option<Work>, String> {
        let run = self.runs.get(&((order / 2) as i64));
        Ok(run.map(|run| match order.is_multiple_of(2) {
            true => Work::Send(run.files()),
            false => Work::Receive,
        }))
    }

    fn round(
        &mut self,
        now_ms: i64,
        decide: &mut dyn FnMut(&Snapshot) -> Decision,
    ) -> Result<(), String> {
        self.due(now_ms);
        self.lose(now_ms);
        let decision = decide(&self.snapshot(now_ms));
        self.apply(now_ms, &decision);
        Ok(())
    }

    fn link(&mut self, _: i64, name: &str, down: bool) -> Result<(), String> {
        match down {
            true => self.down.insert(name.to_owned()),
            false => self.down.remove(name),
        };
        Ok(())
    }

    fn open(&mut self) -> Result<u64, String> {
        Ok(self.requests.len() as u64)
    }
}
