//! Pool of workers that simulate the regions in parallel on threads of the caller.
//!
//! Each worker runs its share of the regions up to the end of the window, then waits at a barrier; the last worker to
//! arrive exchanges packets between regions and sets the next window. Windows take microseconds to milliseconds of
//! wall time, so waiting workers spin before they sleep. Shares are rebalanced when they turn out uneven; results do
//! not depend on them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::coordinator::{Coordinator, NextStep, RunControl};
use super::model::RunModel;
use super::region::Region;
use super::{RunProgress, Simulation};

/// Spins at the barrier before a worker sleeps: some tens of microseconds.
const SPINS_BEFORE_SLEEP: u32 = 2000;
/// Windows between checks of the balance of shares.
const WINDOWS_PER_REBALANCE: u32 = 128;

/// Worker of a parallel run; each has to run on a thread of its own.
#[derive(Debug)]
pub struct Worker<'a> {
    pool: Arc<RegionWorkerPool<'a>>,
    number: u32,
    is_done: bool,
}

#[derive(Debug)]
struct RegionWorkerPool<'a> {
    model: Arc<RunModel>,
    regions: Vec<Mutex<&'a mut Region>>,
    /// For each region: the worker that runs it.
    shares: Vec<AtomicU32>,
    state: Mutex<WindowState<'a>>,
    /// Event limit, applied within a window if there is a single region.
    left: AtomicU64,
    has_ended: AtomicBool,
    barrier: Barrier,
}

#[derive(Debug)]
struct WindowState<'a> {
    control: &'a mut RunControl,
    until_ps: u64,
    /// Total of the regions' events from which on no new window starts.
    last_event: u64,
    windows: u32,
    /// Events of each region at the last check of the balance.
    handled: Vec<u64>,
    progress: RunProgress,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulation {
    /// Creates at most `count` workers, no more than regions, that together do what [`Self::run`] does. Each has to
    /// be run on a thread of its own; all return the same progress.
    pub fn workers(&mut self, count: usize, until_ps: u64, events: u64) -> Vec<Worker<'_>> {
        let count = count.clamp(1, self.regions.len()) as u32;
        let before: Vec<u64> = self.regions.iter().map(|region| region.counts.events).collect();
        let state = WindowState {
            control: &mut self.control,
            until_ps,
            last_event: before.iter().sum::<u64>().saturating_add(events),
            windows: 0,
            handled: before,
            progress: RunProgress::Running,
        };
        let pool = Arc::new(RegionWorkerPool {
            model: Arc::clone(&self.model),
            shares: (0..self.regions.len() as u32)
                .map(|region| AtomicU32::new(region * count / self.regions.len() as u32))
                .collect(),
            regions: self.regions.iter_mut().map(Mutex::new).collect(),
            state: Mutex::new(state),
            left: AtomicU64::new(events),
            has_ended: AtomicBool::new(false),
            barrier: Barrier::new(count),
        });
        pool.coordinate();
        (0..count)
            .map(|number| Worker { pool: Arc::clone(&pool), number, is_done: false })
            .collect()
    }
}

impl Worker<'_> {
    /// Runs with the other workers until the run ends or a limit is reached.
    ///
    /// # Panics
    /// Panics if another worker panicked or was dropped without running.
    #[must_use]
    pub fn run(mut self) -> RunProgress {
        let pool = Arc::clone(&self.pool);
        let limit =
            if pool.regions.len() == 1 { pool.left.load(Ordering::Relaxed) } else { u64::MAX };
        while !pool.has_ended.load(Ordering::Acquire) {
            for (region, share) in pool.regions.iter().zip(&pool.shares) {
                if share.load(Ordering::Relaxed) == self.number {
                    let mut region = lock(region);
                    region.receive_mail();
                    region.run_window(limit);
                }
            }
            pool.barrier.wait(|| pool.coordinate());
        }
        self.is_done = true;
        lock(&pool.state).progress
    }
}

impl Drop for Worker<'_> {
    /// Releases the other workers from waiting for a worker that did not finish.
    fn drop(&mut self) {
        if !self.is_done {
            self.pool.barrier.poison();
        }
    }
}

impl RegionWorkerPool<'_> {
    /// Coordinates the regions between windows, while all other workers wait at the barrier.
    fn coordinate(&self) {
        let mut guards: Vec<_> = self.regions.iter().map(lock).collect();
        let mut regions: Vec<&mut Region> = guards.iter_mut().map(|guard| &mut ***guard).collect();
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.windows += 1;
        if state.windows.is_multiple_of(WINDOWS_PER_REBALANCE) {
            self.rebalance(&regions, &mut state.handled);
        }
        let model = &*self.model;
        let mut coordinator =
            Coordinator { model, control: &mut *state.control, regions: &mut regions };
        loop {
            let handled: u64 = coordinator.regions.iter().map(|region| region.counts.events).sum();
            if handled >= state.last_event {
                coordinator.synchronise();
                state.progress = RunProgress::Running;
                break;
            }
            match coordinator.next_step(state.until_ps) {
                NextStep::Repeat => {}
                NextStep::Window => return,
                NextStep::End(progress) => {
                    state.progress = progress;
                    break;
                }
            }
        }
        self.has_ended.store(true, Ordering::Release);
    }

    /// Reassigns regions if one worker has much more load than the mean: heaviest region first, each to the least
    /// loaded worker (Graham 1969).
    fn rebalance(&self, regions: &[&mut Region], handled: &mut [u64]) {
        let workers = self.barrier.count as usize;
        let mut costs: Vec<(u64, usize)> = Vec::with_capacity(regions.len());
        let mut loads = vec![0_u64; workers];
        for (number, region) in regions.iter().enumerate() {
            let cost = region.counts.events - handled[number];
            handled[number] = region.counts.events;
            costs.push((cost, number));
            loads[self.shares[number].load(Ordering::Relaxed) as usize] += cost;
        }
        let most = loads.iter().max().copied().unwrap_or(0);
        let mean = loads.iter().sum::<u64>() / workers as u64;
        // Moving a region costs cache misses, so slight imbalance is accepted.
        if regions.len() == workers || most <= mean + mean / 16 {
            return;
        }
        costs.sort_unstable_by(|a, b| b.cmp(a));
        loads.fill(0);
        for (cost, number) in costs {
            let lightest = (0..workers).min_by_key(|worker| loads[*worker]).unwrap_or(0);
            loads[lightest] += cost;
            self.shares[number].store(lightest as u32, Ordering::Relaxed);
        }
    }
}

/// Barrier of the workers; the last worker to arrive runs an action before all continue.
#[derive(Debug)]
struct Barrier {
    count: u32,
    arrived: AtomicU32,
    /// Generation: the number of completed waits.
    generation: AtomicU32,
    is_poisoned: AtomicBool,
    sleepers: AtomicU32,
    sleep: Mutex<()>,
    condvar: Condvar,
}

impl Barrier {
    const fn new(count: u32) -> Self {
        Self {
            count,
            arrived: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            is_poisoned: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            sleep: Mutex::new(()),
            condvar: Condvar::new(),
        }
    }

    fn wait(&self, last: impl FnOnce()) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            last();
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            self.wake_sleepers();
            return;
        }
        let is_released = || {
            assert!(
                !self.is_poisoned.load(Ordering::SeqCst),
                "another worker panicked or was dropped"
            );
            self.generation.load(Ordering::SeqCst) != generation
        };
        for _ in 0..SPINS_BEFORE_SLEEP {
            if is_released() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !is_released() {
            guard = self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes sleeping workers.
    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // With the lock, a worker counted as asleep either waits on the condition or sees the new generation.
            drop(lock(&self.sleep));
            self.condvar.notify_all();
        }
    }

    fn poison(&self) {
        self.is_poisoned.store(true, Ordering::SeqCst);
        self.wake_sleepers();
    }
}
