//! What the parts of a controller share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};

use penstock_http::tokens::Tokens;
use penstock_operations::round::Planner;
use tokio::sync::Notify;

use crate::circuits::CircuitProvider;
use crate::config::Config;
use crate::counters::Counters;
use crate::limiter::Limiter;
use crate::store::{Database, Writer};

/// What the operator says, and what follows from it alone.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) planner: Planner,
    pub(crate) tokens: Tokens,
    pub(crate) limiter: Limiter,
}

impl Settings {
    /// Of a configuration; `owner` is a token that nobody has.
    pub(crate) fn of(config: Config, owner: &str) -> Result<Self, String> {
        let tokens = Tokens::open(owner, &config.tokens).map_err(|error| error.to_string())?;
        let (topology, classes) = (config.topology.clone(), config.classes.clone());
        let planner = Planner::new(topology, classes, config.rules);
        Ok(Self { planner, tokens, limiter: Limiter::new(config.rate_limit), config })
    }
}

/// Settings that may be replaced while others go by those that they have.
#[derive(Debug)]
pub(crate) struct Current(RwLock<Arc<Settings>>);

impl Current {
    pub(crate) fn new(settings: Settings) -> Self {
        Self(RwLock::new(Arc::new(settings)))
    }

    pub(crate) fn get(&self) -> Arc<Settings> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace(&self, settings: Settings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

/// Everything that a running controller has.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) current: Arc<Current>,
    /// Who makes circuits, if anybody does.
    pub(crate) provider: Option<Box<dyn CircuitProvider>>,
    /// Told when a round was made.
    pub(crate) rounds: Notify,
    pub(crate) database: Database,
    pub(crate) writer: Writer,
    /// Told when a round should look.
    pub(crate) wake: Arc<Notify>,
    /// Told when something happened that others follow.
    pub(crate) followers: Arc<Notify>,
    pub(crate) counters: Arc<Counters>,
    /// This process among controllers.
    pub(crate) owner: String,
    pub(crate) stopping: AtomicBool,
    /// Whether this controller makes the rounds.
    pub(crate) leads: AtomicBool,
}

impl Shared {
    /// What the operator says now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.current.get()
    }

    /// A node that was heard within so many milliseconds is up.
    pub(crate) fn alive_ms(&self) -> i64 {
        alive_ms(&self.settings().config)
    }
}

/// A node that was heard within so many milliseconds is up.
pub(crate) fn alive_ms(config: &Config) -> i64 {
    (config.lost_after.as_millis() as i64 / 4).max(3000)
}
