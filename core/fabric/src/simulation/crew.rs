//! Several threads of a caller that carry a run out together.
//!
//! Each worker handles the regions of its share up to the end of the window, then waits for the others; the last to come
//! exchanges mail and says how far the next window goes. Windows are short, some microseconds to milliseconds, so that waiting
//! is first done awake. Which worker has which region changes no result: shares are dealt again when they turn out uneven.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::control::{Control, Coordinator, Next};
use super::model::Model;
use super::region::Region;
use super::{Progress, Simulation};

/// Looks at the gate before a worker sleeps: some tens of microseconds.
const SPINS_BEFORE_SLEEP: u32 = 2000;
/// Windows from one look at the shares to the next.
const WINDOWS_PER_REBALANCE: u32 = 128;

/// One of those that carry a run out together: give each to a thread.
#[derive(Debug)]
pub struct Worker<'a> {
    crew: Arc<Crew<'a>>,
    number: u32,
    is_done: bool,
}

#[derive(Debug)]
struct Crew<'a> {
    model: Arc<Model>,
    regions: Vec<Mutex<&'a mut Region>>,
    /// Of each region: the worker that handles it.
    shares: Vec<AtomicU32>,
    state: Mutex<State<'a>>,
    /// More events than these are not handled in one region that is alone.
    left: AtomicU64,
    is_over: AtomicBool,
    gate: Gate,
}

#[derive(Debug)]
struct State<'a> {
    control: &'a mut Control,
    until_ps: u64,
    /// After so many events of regions in all there is no new window.
    last_event: u64,
    windows: u32,
    /// Events of each region when shares were looked at last.
    handled: Vec<u64>,
    progress: Progress,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulation {
    /// Workers that do together what [`Self::run`] does: at most so many, and no more than there are regions. Every one has
    /// to be run, on a thread of its own; all give the same.
    pub fn workers(&mut self, count: usize, until_ps: u64, events: u64) -> Vec<Worker<'_>> {
        let count = count.clamp(1, self.regions.len()) as u32;
        let before: Vec<u64> = self.regions.iter().map(|region| region.counts.events).collect();
        let state = State {
            control: &mut self.control,
            until_ps,
            last_event: before.iter().sum::<u64>().saturating_add(events),
            windows: 0,
            handled: before,
            progress: Progress::Running,
        };
        let crew = Arc::new(Crew {
            model: Arc::clone(&self.model),
            shares: (0..self.regions.len() as u32)
                .map(|region| AtomicU32::new(region * count / self.regions.len() as u32))
                .collect(),
            regions: self.regions.iter_mut().map(Mutex::new).collect(),
            state: Mutex::new(state),
            left: AtomicU64::new(events),
            is_over: AtomicBool::new(false),
            gate: Gate::new(count),
        });
        crew.lead();
        (0..count)
            .map(|number| Worker { crew: Arc::clone(&crew), number, is_done: false })
            .collect()
    }
}

impl Worker<'_> {
    /// Goes on with the others until the run is over or the limit is reached.
    ///
    /// # Panics
    /// When another worker panicked or was never run.
    #[must_use]
    pub fn run(mut self) -> Progress {
        let crew = Arc::clone(&self.crew);
        let limit =
            if crew.regions.len() == 1 { crew.left.load(Ordering::Relaxed) } else { u64::MAX };
        while !crew.is_over.load(Ordering::Acquire) {
            for (region, share) in crew.regions.iter().zip(&crew.shares) {
                if share.load(Ordering::Relaxed) == self.number {
                    let mut region = lock(region);
                    region.take_in();
                    region.run_window(limit);
                }
            }
            crew.gate.pass(|| crew.lead());
        }
        self.is_done = true;
        lock(&crew.state).progress
    }
}

impl Drop for Worker<'_> {
    /// The others do not wait for one that never comes.
    fn drop(&mut self) {
        if !self.is_done {
            self.crew.gate.break_down();
        }
    }
}

impl Crew<'_> {
    /// Between windows: what happens to all regions, and how far the next window goes. All others wait.
    fn lead(&self) {
        let mut guards: Vec<_> = self.regions.iter().map(lock).collect();
        let mut regions: Vec<&mut Region> = guards.iter_mut().map(|guard| &mut ***guard).collect();
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.windows += 1;
        if state.windows.is_multiple_of(WINDOWS_PER_REBALANCE) {
            self.deal(&regions, &mut state.handled);
        }
        let model = &*self.model;
        let mut coordinator =
            Coordinator { model, control: &mut *state.control, regions: &mut regions };
        loop {
            let handled: u64 = coordinator.regions.iter().map(|region| region.counts.events).sum();
            if handled >= state.last_event {
                coordinator.rest();
                state.progress = Progress::Running;
                break;
            }
            match coordinator.next(state.until_ps) {
                Next::Again => {}
                Next::Window => return,
                Next::End(progress) => {
                    state.progress = progress;
                    break;
                }
            }
        }
        self.is_over.store(true, Ordering::Release);
    }

    /// Gives regions to workers anew where one has much more to do than others: the heaviest first, each to who has least
    /// (Graham 1969).
    fn deal(&self, regions: &[&mut Region], handled: &mut [u64]) {
        let workers = self.gate.count as usize;
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
        // A region that moves has to come into another cache.
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

/// Where workers wait for each other. The last to come does something before all go on.
#[derive(Debug)]
struct Gate {
    count: u32,
    came: AtomicU32,
    /// How often it opened.
    opened: AtomicU32,
    is_broken: AtomicBool,
    asleep: AtomicU32,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    const fn new(count: u32) -> Self {
        Self {
            count,
            came: AtomicU32::new(0),
            opened: AtomicU32::new(0),
            is_broken: AtomicBool::new(false),
            asleep: AtomicU32::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    fn pass(&self, last: impl FnOnce()) {
        let opened = self.opened.load(Ordering::Acquire);
        if self.came.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            last();
            self.came.store(0, Ordering::Relaxed);
            self.opened.store(opened.wrapping_add(1), Ordering::SeqCst);
            self.rouse();
            return;
        }
        let is_open = || {
            assert!(!self.is_broken.load(Ordering::SeqCst), "another worker ended before its time");
            self.opened.load(Ordering::SeqCst) != opened
        };
        for _ in 0..SPINS_BEFORE_SLEEP {
            if is_open() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        while !is_open() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes who sleeps.
    fn rouse(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            // Who counted itself asleep waits by now, or will see that the gate is open.
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }

    fn break_down(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
        self.rouse();
    }
}
