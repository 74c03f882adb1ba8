//! The role: its tasks, and what it brings to the HTTP server.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use penstock_http::Role;
use penstock_http::tokens::Tokens;
use penstock_operations::round::Planner;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::counters::Counters;
use crate::limiter::Limiter;
use crate::shared::Shared;
use crate::store::{Clock, Database, Writer};
use crate::{api, metrics, round};

/// In the state directory.
const FILE: &str = "controller.db";

/// A round that is being made may take so long to end.
const STOP_TIME: Duration = Duration::from_secs(5);

/// A controller that runs; it ends with [`Role::stop`].
#[derive(Debug)]
pub struct Controller {
    shared: Arc<Shared>,
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
        let tokens = Tokens::open(&random(), &config.tokens).map_err(|error| error.to_string())?;
        let config = Arc::new(config);
        let shared = runtime.block_on(async {
            let database = Database::open(&url).await?;
            let (wake, followers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let counters = Arc::new(Counters::default());
            let writer = Writer::start(
                database.clone(),
                Arc::clone(&config),
                Arc::clone(&wake),
                Arc::clone(&followers),
                Arc::clone(&counters),
                Clock::System,
            );
            Ok::<_, String>(Arc::new(Shared {
                limiter: Limiter::new(config.rate_limit),
                planner: Arc::new(Planner::new(
                    config.topology.clone(),
                    config.classes.clone(),
                    config.rules,
                )),
                config,
                tokens,
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
        Ok(Self { shared, rounds: Mutex::new(Some((runtime.clone(), rounds))) })
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
