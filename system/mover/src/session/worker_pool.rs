//! Pools of worker threads per device, resizable at any time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::base::limits::THREADS_PER_DEVICE_MAX;
use crate::base::lock::lock;
use crate::base::spawn::spawn;
use crate::base::sync::Mutex;
use crate::base::sync::thread::JoinHandle;

/// Reader or writer threads of one end.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    name: &'static str,
    size: AtomicU16,
    /// Threads by device and number.
    threads: Mutex<BTreeMap<u64, BTreeMap<u16, JoinHandle<()>>>>,
}

impl WorkerPool {
    /// Creates a pool without threads; `name` is the thread name.
    #[must_use]
    pub(crate) fn new(name: &'static str, threads: u16) -> Self {
        let size = AtomicU16::new(threads.clamp(1, THREADS_PER_DEVICE_MAX));
        Self { name, size, threads: Mutex::default() }
    }

    /// Sets the number of threads per device, clamped to 1..=[`THREADS_PER_DEVICE_MAX`].
    pub(crate) fn resize(&self, threads: u16) {
        self.size.store(threads.clamp(1, THREADS_PER_DEVICE_MAX), Ordering::SeqCst);
    }

    /// Number of threads per device.
    #[must_use]
    pub(crate) fn size(&self) -> u16 {
        self.size.load(Ordering::SeqCst)
    }

    /// True while thread `number` of a device should continue.
    #[must_use]
    pub(crate) fn keeps(&self, number: u16) -> bool {
        number < self.size()
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
        for number in 0..self.size() {
            running.entry(number).or_insert_with(|| spawn(self.name, work(number)));
        }
    }
}
