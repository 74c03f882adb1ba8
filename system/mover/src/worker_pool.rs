//! Pools of worker threads per device, resizable at any time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;

use crate::sender::spawn;
use crate::session::{THREADS_PER_DEVICE_MAX, lock};

/// Reader or writer threads of one end.
#[derive(Debug)]
pub struct WorkerPool {
    name: &'static str,
    size: AtomicU16,
    threads: Mutex<BTreeMap<u64, Vec<JoinHandle<()>>>>,
}

impl WorkerPool {
    /// Creates a pool without threads; `name` is the thread name.
    #[must_use]
    pub fn new(name: &'static str, threads: u16) -> Self {
        let size = AtomicU16::new(threads.clamp(1, THREADS_PER_DEVICE_MAX));
        Self { name, size, threads: Mutex::default() }
    }

    /// Sets the number of threads per device, clamped to 1..=[`THREADS_PER_DEVICE_MAX`].
    pub fn resize(&self, threads: u16) {
        self.size.store(threads.clamp(1, THREADS_PER_DEVICE_MAX), Ordering::SeqCst);
    }

    /// Number of threads per device.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size.load(Ordering::SeqCst)
    }

    /// True while thread `number` of a device should continue.
    #[must_use]
    pub fn keeps(&self, number: u16) -> bool {
        number < self.size()
    }

    /// Devices for which threads were ever spawned.
    #[must_use]
    pub fn devices(&self) -> Vec<u64> {
        lock(&self.threads).keys().copied().collect()
    }

    /// Spawns the missing threads of a device; `work` returns the body of thread `number`.
    pub fn spawn_missing<W: FnOnce() + Send + 'static>(
        &self,
        device: u64,
        work: impl Fn(u16) -> W,
    ) {
        let mut threads = lock(&self.threads);
        let running = threads.entry(device).or_default();
        running.retain(|thread| !thread.is_finished());
        for number in running.len()..usize::from(self.size()) {
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            running.push(spawn(self.name, work(number)));
        }
    }
}
