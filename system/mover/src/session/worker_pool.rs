//! Pools of worker threads per device, resizable at any time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};

use penstock_protocol::digest::Algorithm;

use crate::base::limits::THREADS_PER_DEVICE_MAX;
use crate::base::lock::lock;
use crate::base::spawn::spawn;
use crate::base::sync::Mutex;
use crate::base::sync::thread::JoinHandle;

/// Number of readers or of writers for each device, at this end or at the other one.
#[derive(Debug)]
pub(crate) struct ThreadCount {
    count: AtomicU16,
    /// Set where a digest in file order needs blocks in file order: one thread stays.
    is_serial: bool,
    /// Set where the request names the number.
    is_named: bool,
}

impl ThreadCount {
    /// Creates the number of a request, else the default.
    #[must_use]
    pub(crate) fn new(named: Option<u16>, default: u16, algorithm: Algorithm) -> Self {
        let is_serial = !algorithm.combines();
        let one = Self { count: AtomicU16::new(1), is_serial, is_named: named.is_some() };
        one.set(named.unwrap_or(default));
        one
    }

    /// Sets the number, clamped to 1..=[`THREADS_PER_DEVICE_MAX`].
    pub(crate) fn set(&self, threads: u16) {
        if !self.is_serial {
            self.count.store(threads.clamp(1, THREADS_PER_DEVICE_MAX), Ordering::SeqCst);
        }
    }

    /// Number of threads for each device.
    #[must_use]
    pub(crate) fn get(&self) -> u16 {
        self.count.load(Ordering::SeqCst)
    }

    /// True where neither the request nor a digest in file order sets the number.
    #[must_use]
    pub(crate) fn may_tune(&self) -> bool {
        !self.is_serial && !self.is_named
    }
}

/// Reader or writer threads of one end.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    name: &'static str,
    /// Number of threads for each device; missing ones start with [`Self::spawn_missing`].
    pub(crate) size: ThreadCount,
    /// Threads by device and number.
    threads: Mutex<BTreeMap<u64, BTreeMap<u16, JoinHandle<()>>>>,
}

impl WorkerPool {
    /// Creates a pool without threads; `name` is the thread name.
    #[must_use]
    pub(crate) fn new(name: &'static str, size: ThreadCount) -> Self {
        Self { name, size, threads: Mutex::default() }
    }

    /// True while thread `number` of a device should continue.
    #[must_use]
    pub(crate) fn keeps(&self, number: u16) -> bool {
        number < self.size.get()
    }

    /// Threads of all devices: those that should run, and surplus ones that still finish their work.
    #[must_use]
    pub(crate) fn thread_count(&self) -> usize {
        let size = usize::from(self.size.get());
        let threads = lock(&self.threads);
        let of_device = |running: &BTreeMap<u16, JoinHandle<()>>| {
            running.values().filter(|thread| !thread.is_finished()).count().max(size)
        };
        threads.values().map(of_device).sum::<usize>().max(size)
    }

    /// Devices for which threads were ever spawned.
    #[must_use]
    pub(crate) fn devices(&self) -> Vec<u64> {
        lock(&self.threads).keys().copied().collect()
    }

    /// Spawns the missing threads of a device; `work` returns the body of thread `number`.
    pub(crate) fn spawn_missing<W: FnOnce() + Send + 'static>(
        &self,
        device: u64,
        work: impl Fn(u16) -> W,
    ) {
        let mut threads = lock(&self.threads);
        let running = threads.entry(device).or_default();
        running.retain(|_, thread| !thread.is_finished());
        for number in 0..self.size.get() {
            running.entry(number).or_insert_with(|| spawn(self.name, work(number)));
        }
    }
}
