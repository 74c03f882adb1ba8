//! The role: its tasks, and what it brings to the HTTP server.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use penstock_http::Role;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::{Config, Provider};
use crate::counters::Counters;
use crate::shared::{Current, Settings, Shared};
use crate::store::{Clock, Database, Writer};
use crate::{api, circuits, metrics, round, telemetry};

/// In the state directory.
const FILE: &str = "controller.db";

/// A round that is being made may take so long to end.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Reads again what the operator says.
type Load = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// A controller that runs; it ends with [`Role::stop`].
pub struct Controller {
    shared: Arc<Shared>,
    runtime: Handle,
    load: Option<Load>,
    rounds: Mutex<Option<(Handle, JoinHandle<()>)>>,
}

/// Random words for one process.
fn random() -> String {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers are there");
    penstock_http::tokens::hex(&bytes)
}

impl Controller {
    /// Opens the database, which is SQLite in the directory `state` unless the configuration says otherwise, and starts.
    ///
    /// # Errors
    /// With one line, when the database or a file of tokens cannot be used.
    pub fn start(config: Config, state: &Path, runtime: &Handle) -> Result<Self, String> {
        let url = config
            .database
            .clone()
            .unwrap_or_else(|| format!("sqlite://{}?mode=rwc", state.join(FILE).display()));
        let provider = config.circuits.clone().map(Provider::start);
        let current = Arc::new(Current::new(Settings::of(config, &random())?));
        let shared = runtime.block_on(async {
            let database = Database::open(&url).await?;
            let (wake, followers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let counters = Arc::new(Counters::default());
            let writer = Writer::start(
                database.clone(),
                Arc::clone(&current),
                Arc::clone(&wake),
                Arc::clone(&followers),
                Arc::clone(&counters),
                Clock::System,
            );
            Ok::<_, String>(Arc::new(Shared {
                current,
                provider,
                rounds: Notify::new(),
                database,
                writer,
                wake,
                followers,
                counters,
                owner: random(),
                stopping: AtomicBool::new(false),
                leads: AtomicBool::new(false),
            }))
        })?;
        let rounds = runtime.spawn(round::run(Arc::clone(&shared)));
        runtime.spawn(circuits::run(Arc::clone(&shared)));
        runtime.spawn(telemetry::run(Arc::clone(&shared)));
        let (runtime, rounds) = (runtime.clone(), Mutex::new(Some((runtime.clone(), rounds))));
        Ok(Self { shared, runtime, load: None, rounds })
    }

    /// The same, which at SIGHUP goes on by what `load` gives.
    #[must_use]
    pub fn reloading(
        mut self,
        load: impl Fn() -> Result<Config, String> + Send + Sync + 'static,
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

impl Role for Controller {
    fn router(&self) -> Router {
        api::router(Arc::clone(&self.shared))
    }

    fn document(&self) -> utoipa::openapi::OpenApi {
        api::document()
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        metrics::encode(&self.shared, encoder)
    }

    fn guards(&self, path: &str) -> bool {
        api::is_ours(path)
    }

    fn may_read(&self, token: &str) -> bool {
        let settings = self.shared.settings();
        settings.tokens.name_of(token).is_some_and(|name| settings.config.scopes.may_read(&name))
    }

    /// Classes, tokens, topology and times become what the file says; nothing that runs is lost by it.
    fn reload(&self) -> Result<(), String> {
        let Some(load) = &self.load else { return Ok(()) };
        let before = self.shared.settings();
        let config = load()?;
        for (what, same) in [
            ("controller.database", before.config.database == config.database),
            ("controller.circuits", before.config.circuits == config.circuits),
        ] {
            if !same {
                tracing::warn!("{what} has changed: restart the controller for it");
            }
        }
        for class in before.config.classes.iter().filter(|one| config.class(&one.name).is_none()) {
            tracing::warn!("class {} is gone: what waits in it waits until it is back", class.name);
        }
        self.shared.current.replace(Settings::of(config, &random())?);
        // Of several controllers each reads its own file.
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            let told = shared.writer.apply(|cx| {
                cx.event(None, None, "settings", "classes, tokens and topology are read anew");
                cx.wake();
                Box::pin(async { Ok(()) })
            });
            if let Err(error) = told.await {
                tracing::warn!("that settings are read anew is not noted: {error}");
            }
        });
        tracing::info!("classes, tokens and topology are read anew");
        Ok(())
    }

    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
        self.shared.followers.notify_waiters();
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((runtime, rounds)) = rounds {
            let end = async { tokio::time::timeout(STOP_TIME, rounds).await };
            tokio::task::block_in_place(|| {
                let _ = runtime.block_on(end);
            });
        }
    }
}
