//! Rate limit of one session or of all sessions of an agent.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use penstock_protocol::pace::{PaceTicket, Pacer};

use crate::base::lock::lock;

/// Rate limit that several sessions may share.
#[derive(Debug)]
pub struct SharedPacer {
    pacer: Mutex<Pacer>,
    clock: Instant,
}

impl SharedPacer {
    /// Creates a limit in bits per second, or none.
    #[must_use]
    pub fn new(rate_bps: Option<u64>) -> Self {
        Self { pacer: Mutex::new(Pacer::new(rate_bps, Duration::ZERO)), clock: Instant::now() }
    }

    /// Sets the limit in bits per second; `None` for unlimited.
    pub fn set(&self, rate_bps: Option<u64>) {
        lock(&self.pacer).set_rate(rate_bps, self.clock.elapsed());
    }

    /// Limit in bits per second; `None` if unlimited.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        lock(&self.pacer).rate_bps()
    }

    pub(crate) fn reserve(&self, bytes: usize) -> PaceTicket {
        lock(&self.pacer).reserve(bytes as u64, self.clock.elapsed())
    }

    pub(crate) fn refund(&self, bytes: usize) {
        lock(&self.pacer).refund(bytes as u64);
    }

    pub(crate) fn remaining(&self, ticket: PaceTicket) -> Duration {
        lock(&self.pacer).wait(ticket, self.clock.elapsed())
    }
}
