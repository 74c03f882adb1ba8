//! State shared by the tasks of a controller.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};

use penstock_control::scheduler::Planner;
use penstock_http::issued_tokens::IssuedTokens;
use penstock_http::tokens::{TokenError, Tokens};
use penstock_tokens::IssuerRegistry;
use tokio::sync::Notify;

use crate::circuits::CircuitProvider;
use crate::config::Config;
use crate::counters::{ControllerCounters, LatestRound};
use crate::limiter::Limiter;
use crate::repository::{Database, StoreWriter};

/// Configuration with derived objects.
#[derive(Debug)]
pub(crate) struct LiveSettings {
    pub(crate) config: Config,
    pub(crate) planner: Planner,
    pub(crate) tokens: Tokens,
    pub(crate) limiter: Limiter,
    /// Issuers of clients' tokens, with their keys.
    pub(crate) issuers: IssuerRegistry,
}

impl LiveSettings {
    /// Derives the settings of a configuration; `owner` is a token that no client has.
    pub(crate) fn of(
        config: Config,
        owner: &str,
        issuers: IssuerRegistry,
    ) -> Result<Self, TokenError> {
        let tokens = Tokens::open(owner, &config.tokens)?;
        let (topology, classes) = (config.topology.clone(), config.classes.clone());
        let planner = Planner::new(topology, classes, config.rules);
        Ok(Self { planner, tokens, limiter: Limiter::new(config.rate_limit), issuers, config })
    }
}

/// Holder of the settings, which a reload replaces while readers keep theirs.
#[derive(Debug)]
pub(crate) struct SettingsCell(RwLock<Arc<LiveSettings>>);

impl SettingsCell {
    pub(crate) fn new(settings: LiveSettings) -> Self {
        Self(RwLock::new(Arc::new(settings)))
    }

    pub(crate) fn get(&self) -> Arc<LiveSettings> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace(&self, settings: LiveSettings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

/// State of a running controller.
#[derive(Debug)]
pub(crate) struct ControllerState {
    pub(crate) current: Arc<SettingsCell>,
    /// Provider of circuits, if configured.
    pub(crate) provider: Option<Box<dyn CircuitProvider>>,
    /// Notified after each round.
    pub(crate) rounds: Notify,
    pub(crate) database: Database,
    /// State directory, with the key of stored tokens.
    pub(crate) directory: PathBuf,
    /// Tokens that this node issued.
    pub(crate) issued: IssuedTokens,
    pub(crate) writer: StoreWriter,
    /// Notified to request a round.
    pub(crate) scheduler_notify: Arc<Notify>,
    /// Notified when events were committed.
    pub(crate) followers: Arc<Notify>,
    /// Notified when there may be work for the driver of FTS3 jobs.
    pub(crate) fts_notify: Notify,
    pub(crate) counters: Arc<ControllerCounters>,
    pub(crate) latest_round: LatestRound,
    /// Random id of this process among controllers.
    pub(crate) owner: String,
    pub(crate) stopping: AtomicBool,
    /// Set while this controller is the leader.
    pub(crate) leads: AtomicBool,
}

impl ControllerState {
    /// Returns the present settings.
    pub(crate) fn settings(&self) -> Arc<LiveSettings> {
        self.current.get()
    }

    /// Returns the age of a report in milliseconds up to which its node counts as up.
    pub(crate) fn alive_ms(&self) -> i64 {
        self.settings().config.silence_limits().down_ms
    }
}
