//! Threads that work on devices: as many for each device as are wanted, and that may change at any time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;

use crate::sending::spawn;
use crate::session::{THREADS_PER_DEVICE_MAX, lock};

/// The readers or the writers of one end.
#[derive(Debug)]
pub struct Crew {
    name: &'static str,
    wanted: AtomicU16,
    threads: Mutex<BTreeMap<u64, Vec<JoinHandle<()>>>>,
}

impl Crew {
    /// Nobody works yet; threads will be called `name`.
    #[must_use]
    pub fn new(name: &'static str, wanted: u16) -> Self {
        let wanted = AtomicU16::new(wanted.clamp(1, THREADS_PER_DEVICE_MAX));
        Self { name, wanted, threads: Mutex::default() }
    }

    /// Changes how many work for each device.
    pub fn want(&self, wanted: u16) {
        self.wanted.store(wanted.clamp(1, THREADS_PER_DEVICE_MAX), Ordering::SeqCst);
    }

    /// How many are to work for each device.
    #[must_use]
    pub fn wanted(&self) -> u16 {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Whether thread `number` of a device should go on.
    #[must_use]
    pub fn wants(&self, number: u16) -> bool {
        number < self.wanted()
    }

    /// Devices that were ever worked for.
    #[must_use]
    pub fn devices(&self) -> Vec<u64> {
        lock(&self.threads).keys().copied().collect()
    }

    /// Starts what is missing for a device; `work` makes what a thread of that number runs.
    pub fn ensure<W: FnOnce() + Send + 'static>(&self, device: u64, work: impl Fn(u16) -> W) {
        let mut threads = lock(&self.threads);
        let running = threads.entry(device).or_default();
        running.retain(|thread| !thread.is_finished());
        for number in running.len()..usize::from(self.wanted()) {
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            running.push(spawn(self.name, work(number)));
        }
    }
}
