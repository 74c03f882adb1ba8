//! What the parts of a controller share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use penstock_http::tokens::Tokens;
use penstock_operations::round::Planner;
use tokio::sync::Notify;

use crate::config::Config;
use crate::counters::Counters;
use crate::limiter::Limiter;
use crate::store::{Database, Writer};

/// Everything that a running controller has.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) planner: Arc<Planner>,
    pub(crate) tokens: Tokens,
    pub(crate) database: Database,
    pub(crate) writer: Writer,
    /// Told when a round should look.
    pub(crate) wake: Arc<Notify>,
    /// Told when something happened that others follow.
    pub(crate) followers: Arc<Notify>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) limiter: Limiter,
    /// This process among controllers.
    pub(crate) owner: String,
    pub(crate) stopping: AtomicBool,
    /// Whether this controller makes the rounds.
    pub(crate) leads: AtomicBool,
}

impl Shared {
    /// A node that was heard within so many milliseconds is up.
    pub(crate) fn alive_ms(&self) -> i64 {
        alive_ms(&self.config)
    }
}

/// A node that was heard within so many milliseconds is up.
pub(crate) fn alive_ms(config: &Config) -> i64 {
    (config.lost_after.as_millis() as i64 / 4).max(3000)
}
