//! The agent as a role of a daemon: the mover, its HTTP API and the connection to a controller.
//!
//! [`AgentRole::start`] starts everything, or fails with one line and stops what it started. At shutdown transfers
//! journal what is durable, so that the same copy resumes. A node that does not play the role agent has the API
//! without a mover.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use penstock_daemon::RoleContext;
use penstock_daemon::api::Bearers;
use penstock_daemon::config::ConfigError;
use penstock_daemon::state::StateError;
use penstock_host::placement::{self, NumaPlacement, PlacementPolicy};
use penstock_http::access::ReadPolicy;
use penstock_http::issued_tokens::{ISSUED_TOKENS, IssuedTokens};
use penstock_http::{MetricWriter, RoleReloadError, ServiceRole};
use penstock_mover::{Agent, AgentConfig, AgentLimits, Gatekeeper};
use penstock_sys::machine::host_name;
use penstock_tokens::key_cache::KeyCacheTimes;
use penstock_tokens::{IssuerConfig, IssuerFileError, IssuerRegistry, MacaroonKey, TokenMinter};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use utoipa::openapi::OpenApi;

use crate::authorizer::{AccessRules, Authorizer};
use crate::config::{Config, MetricsAccess, RoleName};
use crate::controller::{self, ControllerLink, LimitsSource};
use crate::disks::ExportedDisks;
use crate::history::HistoryWriter;
use crate::http::{AgentApi, NoMover};
use crate::orders::{LocalEngine, OrderExecutor};
use crate::registry;
use crate::running_forecast::RateForecaster;
use crate::submitted::SubmittedTransfers;
use crate::tokens::{TokenError, Tokens};

/// Time for transfers to journal what is durable at shutdown. TimeoutStopSec in the unit file is longer.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// An error that keeps an agent from starting.
#[derive(Debug, thiserror::Error)]
pub enum AgentStartError {
    /// The tokens cannot be read.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// A file of an issuer cannot be used.
    #[error(transparent)]
    IssuerFile(#[from] IssuerFileError),
    /// The key for derived tokens cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// An address or a resource of the process is not available.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Loads the configuration again at SIGHUP.
pub type LoadConfig = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// A started agent: mover, API of transfers, and connection to a controller.
pub struct AgentRole {
    /// `None` where this node does not play the role.
    mover: Option<Agent>,
    api: AgentApi,
    started: StartedConfig,
    load: LoadConfig,
    controller_tasks: Mutex<Option<ControllerTasks>>,
    /// Thread of the submitted transfers.
    submitted_runner: Mutex<Option<std::thread::JoinHandle<()>>>,
    history: Mutex<Option<HistoryWriter>>,
    stop: watch::Sender<bool>,
    runtime: Handle,
}

impl fmt::Debug for AgentRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentRole").field("api", &self.api).finish_non_exhaustive()
    }
}

/// Tasks of the connection to a controller.
#[derive(Debug)]
struct ControllerTasks {
    executor: std::thread::JoinHandle<()>,
    reporter: JoinHandle<()>,
}

/// Limits that SIGHUP may replace.
#[derive(Debug)]
struct SharedLimits(Arc<Mutex<AgentLimits>>);

impl LimitsSource for SharedLimits {
    fn limits(&self) -> AgentLimits {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AgentRole {
    /// Starts the agent with `config` in a daemon. `placement` is that of [`place_process`].
    ///
    /// # Errors
    /// When a file of tokens or an address cannot be used.
    pub fn start(
        config: Config,
        placement: Option<NumaPlacement>,
        context: &RoleContext<'_>,
        load: LoadConfig,
    ) -> Result<Self, AgentStartError> {
        let started = StartedConfig::of(&config, context.token);
        let tokens = Tokens::open(context.token, &config.tokens)?;
        let former = IssuerRegistry::default();
        let issuers = open_issuers(&config.issuers, context.runtime, &former)?;
        let rules = AccessRules {
            tokens,
            exports: config.exports.clone(),
            token_tags: config.token_tags.clone(),
            destinations: config.destinations.clone(),
            cleartext: config.cleartext.clone(),
            issuers,
            quotas: config.quotas.clone(),
        };
        let macaroons = MacaroonKey::new(context.state.macaroon_key()?.as_bytes());
        let issued = IssuedTokens::at(context.state.path().join(ISSUED_TOKENS));
        let authorizer = Authorizer::new(rules).with_macaroons(macaroons).with_issued(issued);
        let authorizer = Arc::new(authorizer);
        let plays_agent = config.plays(RoleName::Agent);
        let history = plays_agent.then(|| {
            let named = config.controller.as_ref().map(|controller| controller.host.clone());
            let host = named.unwrap_or_else(host_name);
            HistoryWriter::start(context.state.path(), host, context.runtime)
        });
        let mover = match &history {
            Some(history) => Some(start_mover(&config, placement, context, &authorizer, history)?),
            None => None,
        };
        let limits = Arc::new(Mutex::new(config.limits));
        let link = config.controller.zip(mover.clone()).map(|(controller, mover)| {
            let safe_rate = controller.safe_rate_bps;
            let authorizer = Arc::clone(&authorizer);
            let engine = LocalEngine::new(mover.clone(), authorizer, context.state.clone())
                .with_transport(controller.transport);
            let engine = match &history {
                Some(history) => engine.with_paths(history.paths()),
                None => engine,
            };
            let orders = OrderExecutor::new(Arc::new(engine), safe_rate, Instant::now());
            let limits = Box::new(SharedLimits(Arc::clone(&limits)));
            Arc::new(ControllerLink::new(controller, Arc::new(orders), mover, limits))
        });
        let submitted = match &mover {
            Some(mover) => {
                let authorizer = Arc::clone(&authorizer);
                let limits = Arc::clone(&limits);
                let opened =
                    SubmittedTransfers::open(mover.clone(), authorizer, context.state, limits)?;
                Some(Arc::new(opened))
            }
            None => None,
        };
        let submitted_runner =
            submitted.clone().map(|submitted| std::thread::spawn(move || submitted.run()));
        let disks = match plays_agent {
            true => ExportedDisks::start(context.state, config.disks, config.disk_exports),
            false => ExportedDisks::none(context.state),
        };
        let api = AgentApi {
            submitted,
            mover: match &mover {
                Some(mover) => Arc::new(mover.clone()),
                None => Arc::new(NoMover),
            },
            authorizer,
            forecaster: Arc::new(RateForecaster::new(&config.state)),
            state: config.state,
            listen: mover.as_ref().map(Agent::addresses).unwrap_or_default(),
            http: context.http.to_vec(),
            webdav: Vec::new(),
            disks: Arc::new(Mutex::new(disks)),
            identity: Arc::clone(context.identity),
            limits,
            controller: link.clone(),
            started: SystemTime::now(),
            traffic: Arc::clone(context.traffic),
        };
        let (stop, stopped) = watch::channel(false);
        let controller_tasks = link.map(|link| {
            let executor = {
                let (link, stopped) = (Arc::clone(&link), stopped.clone());
                std::thread::spawn(move || link.execute_orders(&stopped))
            };
            let reporter = context.runtime.spawn(async move { link.run(stopped).await });
            ControllerTasks { executor, reporter }
        });
        if let Some(url) = config.registry {
            context.runtime.spawn(registry::run_renewal(context.state.clone(), url));
        }
        Ok(Self {
            mover,
            api,
            started,
            load,
            controller_tasks: Mutex::new(controller_tasks),
            submitted_runner: Mutex::new(submitted_runner),
            history: Mutex::new(history),
            stop,
            runtime: context.runtime.clone(),
        })
    }

    /// Addresses on which the mover listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.api.listen
    }

    /// Sets the URLs of the gateway, which the API states. Before the daemon serves the role.
    pub fn set_gateway(&mut self, webdav: Vec<String>) {
        self.api.webdav = webdav;
    }

    /// Names of the bearers of this agent's tokens, which a reload may change.
    #[must_use]
    pub fn bearers(&self) -> Arc<dyn Bearers> {
        Arc::clone(&self.api.authorizer) as _
    }

    /// The mover, where this node plays the role.
    #[must_use]
    pub fn mover(&self) -> Option<&Agent> {
        self.mover.as_ref()
    }

    /// Policy that authenticates and authorises clients, which a reload may change.
    #[must_use]
    pub fn gatekeeper(&self) -> Arc<dyn Gatekeeper> {
        Arc::clone(&self.api.authorizer) as _
    }

    /// Derives tokens for clients of gateways.
    #[must_use]
    pub fn minter(&self) -> Arc<dyn TokenMinter> {
        Arc::clone(&self.api.authorizer) as _
    }

    /// Applies limits, exports, disks and tokens of the configuration as it is now.
    fn apply_config(&self) -> Result<(), ReloadError> {
        let config = (self.load)()?;
        let tokens = Tokens::open(&self.started.token, &config.tokens)?;
        self.started.warn_of_changes(&config);
        if let Some(mover) = &self.mover {
            mover.set_limits(config.limits.clone());
        }
        *self.api.limits.lock().unwrap_or_else(PoisonError::into_inner) = config.limits;
        let Config {
            exports,
            disks,
            disk_exports,
            token_tags,
            destinations,
            cleartext,
            issuers,
            quotas,
            ..
        } = config;
        let former = self.api.authorizer.rules();
        let issuers = open_issuers(&issuers, &self.runtime, &former.issuers)?;
        let rules =
            AccessRules { tokens, exports, token_tags, destinations, cleartext, issuers, quotas };
        self.api.authorizer.replace(rules);
        if self.mover.is_some() {
            self.api
                .disks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .apply(disks, disk_exports);
        }
        Ok(())
    }
}

impl ServiceRole for AgentRole {
    fn router(&self) -> Router {
        self.api.router()
    }

    fn admits_mover_tokens(&self, path: &str) -> bool {
        self.api.admits_mover_tokens(path)
    }

    fn document(&self) -> OpenApi {
        self.api.document()
    }

    fn metrics(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        self.api.metrics(writer)
    }

    fn reload(&self) -> Result<(), RoleReloadError> {
        self.apply_config().map_err(|error| format!("the configuration stays: {error}"))?;
        tracing::info!("SIGHUP: limits, exports, disks, quotas and tokens are applied");
        Ok(())
    }

    fn status(&self) -> Option<String> {
        let transfers = self.api.mover.transfers();
        let running = transfers.iter().filter(|transfer| transfer.state == "running").count();
        Some(format!("{running} transfers running"))
    }

    fn unready_reason(&self) -> Option<String> {
        self.api.unready_reason()
    }

    fn stop(&self) {
        let _ = self.stop.send(true);
        if let Some(submitted) = &self.api.submitted {
            submitted.stop();
        }
    }

    fn shut_down(&self) {
        self.api.disks.lock().unwrap_or_else(PoisonError::into_inner).stop();
        let tasks = self.controller_tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Orders stop first, so that the final report is accurate.
        if let Some(ControllerTasks { executor, reporter }) = tasks {
            let _ = executor.join();
            let _ = self.runtime.block_on(reporter);
        }
        let runner = self.submitted_runner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runner) = runner {
            let _ = runner.join();
        }
        if let Some(mover) = &self.mover {
            mover.shut_down(SHUTDOWN_GRACE);
        }
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(history) = history {
            history.close(&self.runtime);
        }
    }
}

fn start_mover(
    config: &Config,
    placement: Option<NumaPlacement>,
    context: &RoleContext<'_>,
    authorizer: &Arc<Authorizer>,
    history: &HistoryWriter,
) -> io::Result<Agent> {
    let started = Agent::start(AgentConfig {
        listen: config.listen.clone(),
        identity: Arc::clone(context.identity),
        gatekeeper: Arc::clone(authorizer) as _,
        state: config.state.clone(),
        limits: config.limits.clone(),
        collectors: config.collectors.clone(),
        marker: config.marker.clone(),
        homes: placement,
        ended_log: Some(history.log()),
        decline_nettest: penstock_nettest::decline,
    });
    started.map_err(|error| start_error(&error))
}

/// Settings that stay as they were at the start.
#[derive(Debug)]
struct StartedConfig {
    listen: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    state: PathBuf,
    metrics: MetricsAccess,
    reading: ReadPolicy,
    connections: usize,
    roles: Option<Vec<RoleName>>,
    controller: Option<controller::Config>,
    cpu: Option<PlacementPolicy>,
    token: String,
}

/// An error that keeps a changed configuration from being applied.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tokens(#[from] TokenError),
    #[error(transparent)]
    IssuerFile(#[from] IssuerFileError),
}

fn open_issuers(
    configs: &[IssuerConfig],
    runtime: &Handle,
    former: &IssuerRegistry,
) -> Result<IssuerRegistry, IssuerFileError> {
    IssuerRegistry::open(configs, runtime, KeyCacheTimes::default(), former)
}

impl StartedConfig {
    fn of(config: &Config, token: &str) -> Self {
        Self {
            listen: config.listen.clone(),
            http: config.http.clone(),
            state: config.state.clone(),
            metrics: config.metrics,
            reading: config.reading.clone(),
            connections: config.connections,
            roles: config.roles.clone(),
            controller: config.controller.clone(),
            cpu: config.cpu.clone(),
            token: token.to_owned(),
        }
    }

    /// Logs each changed setting that needs a restart.
    fn warn_of_changes(&self, config: &Config) {
        for (key, same) in [
            ("roles", self.roles == config.roles),
            ("http.read", self.reading == config.reading),
            ("http.connections", self.connections == config.connections),
            ("agent.listen", self.listen == config.listen),
            ("agent.http", self.http == config.http),
            ("agent.state", self.state == config.state),
            ("agent.metrics", self.metrics == config.metrics),
            ("agent.controller", self.controller == config.controller),
            ("agent.cpu", self.cpu == config.cpu),
        ] {
            if !same {
                tracing::warn!("{key} has changed: restart the agent to apply it");
            }
        }
    }
}

/// Pins this process to the configured processors, or returns the NUMA placement for transfer threads. Must be called
/// before the process has other threads, which inherit the processors.
///
/// # Errors
/// When the kernel refuses the processors.
pub fn place_process(config: &Config) -> io::Result<Option<NumaPlacement>> {
    let plays_agent = config.plays(RoleName::Agent);
    match &config.cpu {
        Some(PlacementPolicy::Cpus(cpus)) => placement::pin(cpus).map(|()| None),
        Some(PlacementPolicy::Auto) if plays_agent => Ok(Some(NumaPlacement::detect())),
        Some(PlacementPolicy::Auto) | None => Ok(None),
    }
}

/// Adds the remedy to an error of the mover, which names the address.
fn start_error(error: &io::Error) -> io::Error {
    let remedy = "give another with --listen ADDR:PORT";
    io::Error::new(error.kind(), format!("{error}: {remedy}"))
}
