//! Hand-over of buffers from thread to thread, under many schedules: pool, readers and streams of a sending end;
//! pool, streams, writers and committer of a receiving end; pools of worker threads.
//!
//! The structures are compiled here a second time, with the primitives of `shuttle` in place of those of the
//! standard library. Its scheduler is seeded and chooses the next thread at each lock, wait and wake-up. Time
//! does not pass in it: a wait with a time-out ends by a wake-up alone, so a lost wake-up is a deadlock, which
//! fails the test.

// Each structure has functions that only the crate calls.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool as PlainBool, Ordering::SeqCst};
use std::time::Duration;

use penstock_protocol::digest::Algorithm;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::AtomicBool;
use shuttle::{Config, Runner};

use crate::free_list::FreeList;
use crate::lock::lock;
use crate::ready_queue::ReadyQueue;
use crate::shared_machine::{HasWork, SharedMachine};
use crate::sync::{Mutex, thread};
use crate::task_queues::TaskQueues;
use crate::worker_pool::{ThreadCount, WorkerPool};

#[path = "../../sys/src/buffer/free_list.rs"]
mod free_list;
#[path = "../src/base/limits.rs"]
mod limits;
#[path = "../src/base/lock.rs"]
mod lock;
#[path = "../src/source/ready_queue.rs"]
mod ready_queue;
#[path = "../src/sink/shared_machine.rs"]
mod shared_machine;
#[path = "../src/base/spawn.rs"]
mod spawn;
#[path = "../src/sink/task_queues.rs"]
mod task_queues;
#[path = "../src/session/worker_pool.rs"]
mod worker_pool;

/// The folder `base` as the structures name it.
mod base {
    pub(crate) use crate::{limits, lock, spawn, sync};
}

/// Primitives of the scheduler, under the names of the standard library.
mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};

    /// Threads of the scheduler, with `is_finished`.
    pub(crate) mod thread {
        use std::io;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

        pub(crate) use shuttle::thread::yield_now;

        #[derive(Debug)]
        pub(crate) struct JoinHandle<T> {
            thread: shuttle::thread::JoinHandle<T>,
            finished: Arc<AtomicBool>,
        }

        impl<T> JoinHandle<T> {
            pub(crate) fn is_finished(&self) -> bool {
                self.finished.load(SeqCst)
            }

            pub(crate) fn join(self) -> std::thread::Result<T> {
                self.thread.join()
            }
        }

        pub(crate) struct Builder(shuttle::thread::Builder);

        impl Builder {
            pub(crate) fn new() -> Self {
                Self(shuttle::thread::Builder::new())
            }

            pub(crate) fn name(self, name: String) -> Self {
                Self(self.0.name(name))
            }

            pub(crate) fn spawn<T: Send + 'static>(
                self,
                run: impl FnOnce() -> T + Send + 'static,
            ) -> io::Result<JoinHandle<T>> {
                let finished = Arc::new(AtomicBool::new(false));
                let mark = Arc::clone(&finished);
                let thread = self.0.spawn(move || {
                    let result = run();
                    // A thread may end long after its last statement.
                    yield_now();
                    mark.store(true, SeqCst);
                    result
                })?;
                Ok(JoinHandle { thread, finished })
            }
        }
    }
}

/// Schedules of each kind per test.
const SCHEDULE_COUNT: usize = 400;

/// Number of blocks that a test hands over.
const BLOCK_COUNT: usize = 5;

/// Time-out of waits, which the scheduler ignores.
const NO_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs `test` under random schedules and under those with few preemptions at adverse places.
fn explore(test: fn()) {
    let seed = penstock_testkit::seeded(16).next_bits();
    Runner::new(RandomScheduler::new_from_seed(seed, SCHEDULE_COUNT), Config::new()).run(test);
    Runner::new(PctScheduler::new_from_seed(seed, 3, SCHEDULE_COUNT), Config::new()).run(test);
}

/// Item of the pool, which notices a second use.
struct TestBuffer {
    in_use: PlainBool,
}

/// Buffer taken from a pool; returns on drop.
struct TakenBuffer {
    buffer: Option<TestBuffer>,
    pool: Arc<FreeList<TestBuffer>>,
}

fn take(pool: &Arc<FreeList<TestBuffer>>) -> Option<TakenBuffer> {
    let allocate = |_| Some(TestBuffer { in_use: PlainBool::new(false) });
    let buffer = pool.take(usize::MAX, None, allocate)?;
    assert!(!buffer.in_use.swap(true, SeqCst), "a buffer is used twice");
    Some(TakenBuffer { buffer: Some(buffer), pool: Arc::clone(pool) })
}

impl Drop for TakenBuffer {
    fn drop(&mut self) {
        let buffer = self.buffer.take().expect("set until here");
        assert!(buffer.in_use.swap(false, SeqCst), "a buffer is returned twice");
        self.pool.give_back(buffer);
    }
}

/// Pool of two buffers, and the end of the session.
struct TestSession {
    pool: Arc<FreeList<TestBuffer>>,
    over: AtomicBool,
    passed: Mutex<Vec<usize>>,
}

impl TestSession {
    fn new() -> Arc<Self> {
        let (over, passed) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        Arc::new(Self { pool: Arc::new(FreeList::new(2)), over, passed })
    }

    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// Ends abruptly, in the order of the mover's session.
    fn end(&self, close: impl Fn()) {
        self.over.store(true, SeqCst);
        self.pool.close();
        close();
    }

    /// Counts a block; true for the last one.
    fn pass(&self, number: usize) -> bool {
        let mut passed = lock(&self.passed);
        passed.push(number);
        passed.len() == BLOCK_COUNT
    }

    /// Checks that no block passed twice and that no buffer is left outside of the pool.
    fn check(&self, all: bool) {
        let mut passed = lock(&self.passed).clone();
        passed.sort_unstable();
        let before = passed.len();
        passed.dedup();
        assert_eq!(passed.len(), before, "a block passed twice");
        assert!(!all || passed.len() == BLOCK_COUNT, "a block is lost");
        let state = self.pool.lock();
        assert_eq!(state.allocated, state.free.len(), "a buffer is lost");
        assert!(state.allocated <= 2);
    }
}

/// A buffer with the number of its block.
type NumberedBuffer = (usize, TakenBuffer);

/// Starts two readers and two streams; returns their threads and the queue between them.
fn sending_end(
    session: &Arc<TestSession>,
    last: fn(&TestSession, &ReadyQueue<(usize, TakenBuffer)>),
) -> (Vec<thread::JoinHandle<()>>, Arc<ReadyQueue<NumberedBuffer>>) {
    let ready = Arc::new(ReadyQueue::new(1));
    let work = Arc::new(Mutex::new(0..BLOCK_COUNT));
    let mut threads = Vec::new();
    for _ in 0..2 {
        let (session, ready, work) = (Arc::clone(session), Arc::clone(&ready), Arc::clone(&work));
        threads.push(spawn::spawn("read", move || {
            while let Some(buffer) = take(&session.pool) {
                let Some(number) = lock(&work).next() else { return };
                ready.push((number, buffer));
            }
        }));
    }
    for _ in 0..2 {
        let (session, ready) = (Arc::clone(session), Arc::clone(&ready));
        threads.push(spawn::spawn("stream", move || {
            while !session.is_over() {
                let Some((number, buffer)) = ready.pop(NO_TIMEOUT) else { continue };
                let is_last = session.pass(number);
                drop(buffer);
                if is_last {
                    session.over.store(true, SeqCst);
                    last(&session, &ready);
                }
            }
        }));
    }
    (threads, ready)
}

#[test]
fn sent_blocks_pass_once() {
    explore(|| {
        let session = TestSession::new();
        let (threads, _) = sending_end(&session, |_, ready| ready.close());
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        session.check(true);
    });
}

#[test]
fn sending_end_stops_with_blocks_queued() {
    explore(|| {
        let session = TestSession::new();
        let (threads, ready) =
            sending_end(&session, |session, ready| session.end(|| ready.close()));
        session.end(|| ready.close());
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        session.check(false);
        assert_eq!(session.pool.lock().allocated, 0);
    });
}

/// Files of one block each, as the receiving state machine counts them.
#[derive(Default)]
struct TestFiles {
    finished: usize,
    committed: usize,
}

impl HasWork for TestFiles {
    fn has_plan_work(&self) -> bool {
        false
    }

    fn has_commit_work(&self) -> bool {
        self.finished > 0
    }
}

/// Starts two streams, two writers of one device and one of another; returns their threads and the queues.
fn receiving_end(
    session: &Arc<TestSession>,
    machine: &Arc<SharedMachine<TestFiles>>,
) -> (Vec<thread::JoinHandle<()>>, Arc<TaskQueues<NumberedBuffer>>) {
    let tasks = Arc::new(TaskQueues::default());
    let frames = Arc::new(Mutex::new(0..BLOCK_COUNT));
    let mut threads = Vec::new();
    for _ in 0..2 {
        let (session, tasks, frames) =
            (Arc::clone(session), Arc::clone(&tasks), Arc::clone(&frames));
        threads.push(spawn::spawn("stream", move || {
            while let Some(buffer) = take(&session.pool) {
                let Some(number) = lock(&frames).next() else { return };
                tasks.push(number as u64 % 2, (number, buffer));
            }
        }));
    }
    for device in [0, 0, 1] {
        let (session, tasks, machine) =
            (Arc::clone(session), Arc::clone(&tasks), Arc::clone(machine));
        threads.push(spawn::spawn("write", move || {
            while !session.is_over() {
                let Some((number, buffer)) = tasks.pop(device, NO_TIMEOUT) else { continue };
                drop(buffer);
                session.pass(number);
                machine.update(|files| files.finished += 1);
            }
        }));
    }
    (threads, tasks)
}

#[test]
fn received_blocks_are_committed_once() {
    explore(|| {
        let session = TestSession::new();
        let machine = Arc::new(SharedMachine::new(TestFiles::default()));
        let (threads, tasks) = receiving_end(&session, &machine);
        loop {
            machine.wait_to_commit(|files| (files.finished == 0).then_some(NO_TIMEOUT));
            let mut files = machine.lock();
            files.committed += std::mem::take(&mut files.finished);
            if files.committed == BLOCK_COUNT {
                break;
            }
        }
        session.over.store(true, SeqCst);
        tasks.close();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        session.check(true);
    });
}

#[test]
fn receiving_end_stops_with_tasks_queued() {
    explore(|| {
        let session = TestSession::new();
        let machine = Arc::new(SharedMachine::new(TestFiles::default()));
        let (threads, tasks) = receiving_end(&session, &machine);
        session.end(|| tasks.close());
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        session.check(false);
        assert_eq!(session.pool.lock().allocated, 0);
    });
}

#[test]
fn resized_pool_wakes_all_waiting() {
    explore(|| {
        let pool = Arc::new(FreeList::new(1));
        let held = take(&pool);
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                spawn::spawn("take", move || take(&pool).expect("the pool is open"))
            })
            .collect();
        pool.resize(3);
        // Each taker keeps its buffer, so that only the change of size can wake both.
        let taken: Vec<_> =
            takers.into_iter().map(|taker| taker.join().expect("no panic")).collect();
        drop((held, taken));
        let state = pool.lock();
        assert_eq!((state.free.len(), state.allocated), (3, 3));
    });
}

#[test]
fn worker_pool_reaches_new_size() {
    explore(|| {
        let size = ThreadCount::new(Some(3), 1, Algorithm::Crc32c);
        let pool = Arc::new(WorkerPool::new("work", size));
        let stop = Arc::new(AtomicBool::new(false));
        let running = Arc::new(Mutex::new(BTreeMap::<u16, usize>::new()));
        let spawn_missing = || {
            pool.spawn_missing(7, |number| {
                let (pool, stop, running) =
                    (Arc::clone(&pool), Arc::clone(&stop), Arc::clone(&running));
                move || {
                    let earlier = lock(&running).insert(number, 1);
                    assert_eq!(earlier, None, "two threads have one number");
                    while pool.keeps(number) && !stop.load(SeqCst) {
                        thread::yield_now();
                    }
                    lock(&running).remove(&number);
                }
            });
        };
        spawn_missing();
        let resizer = {
            let pool = Arc::clone(&pool);
            spawn::spawn("resize", move || {
                pool.size.set(1);
                thread::yield_now();
                pool.size.set(2);
            })
        };
        spawn_missing();
        resizer.join().expect("no panic");
        let is_settled = || lock(&running).keys().copied().eq([0, 1]);
        while !is_settled() {
            spawn_missing();
            thread::yield_now();
        }
        stop.store(true, SeqCst);
        while !lock(&running).is_empty() {
            thread::yield_now();
        }
    });
}
