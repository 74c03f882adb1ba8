//! The controller role: its tasks, and its part of the HTTP server.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::access::issued_may_read;
use axum::Router;
use penstock_http::issued_tokens::{ISSUED_TOKENS, IssuedTokens};
use penstock_http::{MetricWriter, RoleReloadError, ServiceRole};
use penstock_tokens::IssuerRegistry;
use penstock_tokens::key_cache::KeyCacheTimes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::{Config, Provider};
use crate::counters::{ControllerCounters, LatestRound};
use crate::error::ControllerError;
use crate::repository::{Clock, Database, StoreWriter};
use crate::shared::{ControllerState, LiveSettings, SettingsCell};
use crate::{api, circuits, fts, metrics, round, telemetry};

/// Name of the SQLite database in the state directory.
const DATABASE_FILE: &str = "controller.db";

/// Time that a round in progress has to finish at shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Reloads the configuration.
type ConfigLoader = Box<dyn Fn() -> Result<Config, RoleReloadError> + Send + Sync>;

/// A running controller; [`ServiceRole::stop`] stops it.
pub struct Controller {
    shared: Arc<ControllerState>,
    runtime: Handle,
    load: Option<ConfigLoader>,
    rounds: Mutex<Option<(Handle, JoinHandle<()>)>>,
}

/// Returns a random hexadecimal token for this process.
fn random() -> String {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers are there");
    penstock_http::tokens::hex(&bytes)
}

/// Derives settings; issuers that `former` has keep their keys.
fn settings_of(
    config: Config,
    runtime: &Handle,
    former: &IssuerRegistry,
) -> Result<LiveSettings, ControllerError> {
    let configs: Vec<_> = config.issuers.iter().map(|one| one.issuer.clone()).collect();
    let issuers = IssuerRegistry::open(&configs, runtime, KeyCacheTimes::default(), former)?;
    Ok(LiveSettings::of(config, &random(), issuers)?)
}

impl Controller {
    /// Opens the database, by default SQLite in the directory `state`, and starts the controller.
    ///
    /// # Errors
    /// With one line, if the database or a file of tokens cannot be used.
    pub fn start(config: Config, state: &Path, runtime: &Handle) -> Result<Self, ControllerError> {
        let url = config.database.clone().unwrap_or_else(|| {
            format!("sqlite://{}?mode=rwc", state.join(DATABASE_FILE).display())
        });
        let provider = config.circuits.clone().map(Provider::start);
        let current =
            Arc::new(SettingsCell::new(settings_of(config, runtime, &IssuerRegistry::default())?));
        let shared = runtime.block_on(async {
            let database = Database::open(&url).await.map_err(ControllerError::database)?;
            let (scheduler_notify, followers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let counters = Arc::new(ControllerCounters::default());
            let writer = StoreWriter::start(
                database.clone(),
                Arc::clone(&current),
                Arc::clone(&scheduler_notify),
                Arc::clone(&followers),
                Arc::clone(&counters),
                Clock::System,
            );
            Ok::<_, ControllerError>(Arc::new(ControllerState {
                current,
                provider,
                rounds: Notify::new(),
                database,
                directory: state.to_owned(),
                issued: IssuedTokens::at(state.join(ISSUED_TOKENS)),
                writer,
                scheduler_notify,
                followers,
                counters,
                latest_round: LatestRound::default(),
                fts_notify: Notify::new(),
                owner: random(),
                stopping: AtomicBool::new(false),
                leads: AtomicBool::new(false),
            }))
        })?;
        let rounds = runtime.spawn(round::run(Arc::clone(&shared)));
        runtime.spawn(circuits::run(Arc::clone(&shared)));
        runtime.spawn(telemetry::run(Arc::clone(&shared)));
        runtime.spawn(fts::driver::run(Arc::clone(&shared)));
        let (runtime, rounds) = (runtime.clone(), Mutex::new(Some((runtime.clone(), rounds))));
        Ok(Self { shared, runtime, load: None, rounds })
    }

    /// Reloads the configuration with `load` on SIGHUP.
    #[must_use]
    pub fn reloading(
        mut self,
        load: impl Fn() -> Result<Config, RoleReloadError> + Send + Sync + 'static,
    ) -> Self {
        self.load = Some(Box::new(load));
        self
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl ServiceRole for Controller {
    fn router(&self) -> Router {
        api::router(Arc::clone(&self.shared))
    }

    fn document(&self) -> utoipa::openapi::OpenApi {
        api::document()
    }

    fn metrics(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        metrics::write(&self.shared, writer)
    }

    fn guards(&self, path: &str) -> bool {
        api::is_ours(path)
    }

    fn may_read(&self, token: &str) -> Option<bool> {
        let settings = self.shared.settings();
        let configured = settings.tokens.name_of(token);
        configured
            .map(|name| settings.config.scopes.may_read(&name))
            .or_else(|| issued_may_read(&self.shared.issued, token))
    }

    /// Applies classes, tokens, topology and intervals of the reloaded configuration; nothing in progress is lost.
    fn reload(&self) -> Result<(), RoleReloadError> {
        let Some(load) = &self.load else { return Ok(()) };
        let before = self.shared.settings();
        let config = load()?;
        for (what, same) in [
            ("controller.database", before.config.database == config.database),
            ("controller.circuits", before.config.circuits == config.circuits),
        ] {
            if !same {
                tracing::warn!("{what} has changed: restart the controller to apply it");
            }
        }
        for class in before.config.classes.iter().filter(|one| config.class(&one.name).is_none()) {
            tracing::warn!(
                "class {} was removed: its queued work waits until the class is back",
                class.name
            );
        }
        self.shared.current.replace(settings_of(config, &self.runtime, &before.issuers)?);
        // Each of several controllers reads its own file.
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            let recorded = shared.writer.apply(|cx| {
                cx.event(None, None, "settings", "classes, tokens and topology were reloaded");
                cx.request_round();
                Box::pin(async { Ok(()) })
            });
            if let Err(error) = recorded.await {
                tracing::warn!("cannot record the reload: {error}");
            }
        });
        tracing::info!("classes, tokens and topology were reloaded");
        Ok(())
    }

    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.scheduler_notify.notify_one();
        self.shared.fts_notify.notify_one();
        self.shared.followers.notify_waiters();
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((runtime, rounds)) = rounds {
            let end = async { tokio::time::timeout(STOP_TIMEOUT, rounds).await };
            tokio::task::block_in_place(|| {
                let _ = runtime.block_on(end);
            });
        }
    }
}
