//! Batches that wait, retry or run, and their queues.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use penstock_control::batch::{BatchEvent, BatchKind, BatchLimits, BatchState};
use penstock_control::cancellation::QueueDelta;
use penstock_control::run_contents::{BatchSummary, FileSpan, RunContents};
use penstock_control::scheduler::QueueView;

use super::IdSequence;

/// Class, source and destination of a queue.
pub(super) type QueueName = (String, String, String);

/// Files of a request that are queued and sent together.
#[derive(Debug, Clone)]
pub(super) struct FileBatch {
    pub(super) request: i64,
    pub(super) queue: i64,
    pub(super) span: FileSpan,
    pub(super) files: i64,
    pub(super) bytes: i64,
    pub(super) attempt: i64,
    pub(super) state: BatchState,
    pub(super) not_before_ms: i64,
}

impl FileBatch {
    fn apply(&mut self, event: BatchEvent) {
        self.state = self.state.transition(event).expect("the event concerns this state");
    }
}

#[derive(Debug)]
struct BatchQueue {
    key: QueueName,
    /// Ids of the queued batches.
    queued: BTreeSet<i64>,
    counts: QueueDelta,
}

/// Batches by id.
#[derive(Debug, Default)]
pub(super) struct BatchTable {
    batches: HashMap<i64, FileBatch>,
    /// Batches to retry, by due time in milliseconds and id.
    waiting: BTreeSet<(i64, i64)>,
    /// Queues by id, and their ids.
    queues: BTreeMap<i64, BatchQueue>,
    queue_ids: HashMap<QueueName, i64>,
}

impl BatchTable {
    /// Returns the id of a queue; creates it if it is missing.
    pub(super) fn load_queue(&mut self, key: QueueName, ids: &mut IdSequence) -> i64 {
        if let Some(id) = self.queue_ids.get(&key) {
            return *id;
        }
        let id = ids.next();
        self.queue_ids.insert(key.clone(), id);
        let queue = BatchQueue { key, queued: BTreeSet::new(), counts: QueueDelta::default() };
        self.queues.insert(id, queue);
        id
    }

    pub(super) fn class_of(&self, queue: i64) -> Option<&str> {
        self.queues.get(&queue).map(|queue| queue.key.0.as_str())
    }

    pub(super) fn get(&self, id: i64) -> &FileBatch {
        &self.batches[&id]
    }

    /// Adds a batch, to its queue if it need not wait.
    pub(super) fn insert(&mut self, id: i64, batch: FileBatch) {
        match batch.state {
            BatchState::Waiting => {
                self.waiting.insert((batch.not_before_ms, id));
            }
            BatchState::Queued => self.enqueue(id, &batch),
            BatchState::Running | BatchState::Paused => {}
        }
        self.batches.insert(id, batch);
    }

    fn enqueue(&mut self, id: i64, batch: &FileBatch) {
        let queue = self.queues.get_mut(&batch.queue).expect("it was loaded");
        queue.queued.insert(id);
        queue.counts.add(batch.files, batch.bytes);
    }

    /// Removes a batch of a run that ends.
    pub(super) fn remove(&mut self, id: i64) -> FileBatch {
        self.batches.remove(&id).expect("a run has its batches until it ends")
    }

    /// Queues the batches whose retry is due.
    pub(super) fn requeue_due(&mut self, now_ms: i64) {
        while let Some((not_before_ms, id)) = self.waiting.first().copied()
            && not_before_ms <= now_ms
        {
            self.waiting.pop_first();
            let batch = self.batches.get_mut(&id).expect("it waits");
            batch.apply(BatchEvent::Due);
            let batch = batch.clone();
            self.enqueue(id, &batch);
        }
    }

    /// Takes the batches of an order from a queue. Returns each with the index of its first file in the order's list.
    pub(super) fn start(&mut self, queue: i64, limits: BatchLimits) -> Vec<(i64, i64)> {
        let Some(queue) = self.queues.get_mut(&queue) else { return Vec::new() };
        let summary = |id: &i64| {
            let batch = &self.batches[id];
            // All requests have the same paths and policy.
            BatchSummary { kind: BatchKind::Copy, files: batch.files, bytes: batch.bytes, lane: "" }
        };
        let contents = RunContents::choose(queue.queued.iter().map(summary), limits);
        let mut places = contents.batches.into_iter().peekable();
        let mut chosen = Vec::new();
        for (at, id) in queue.queued.iter().enumerate() {
            let Some((next, place)) = places.peek().copied() else { break };
            if at == next {
                chosen.push((*id, place));
                places.next();
            }
        }
        for (id, _) in &chosen {
            let batch = self.batches.get_mut(id).expect("it is queued");
            batch.apply(BatchEvent::Started);
            queue.queued.remove(id);
            queue.counts.remove(batch.files, batch.bytes);
        }
        chosen
    }

    /// Returns the queues with waiting work, by id.
    pub(super) fn busy_queues(&self) -> Vec<QueueView> {
        let view = |(id, queue): (&i64, &BatchQueue)| {
            let (class, source, destination) = queue.key.clone();
            let QueueDelta { batches, bytes, .. } = queue.counts;
            let (batches, bytes) = (batches.unsigned_abs(), bytes.unsigned_abs());
            (batches > 0).then_some(QueueView {
                id: *id,
                class,
                source,
                destination,
                batches,
                bytes,
            })
        };
        self.queues.iter().filter_map(view).collect()
    }
}
