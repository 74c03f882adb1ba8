//! A running agent: the mover, the HTTP API, signals, systemd and the shutdown.
//!
//! [`AgentServer::start`] starts everything, or fails with one line and stops what it started.
//! [`AgentServer::run`] waits for SIGTERM or SIGINT, lets transfers journal what is durable so that the same
//! copy resumes, and returns; a second signal ends the process at once. Under systemd (`Type=notify`) it
//! reports readiness and shutdown, and feeds the watchdog while the mover answers.
//!
//! Not for: printing, which the command does.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use penstock_host::placement::{self, NumaPlacement, PlacementPolicy};
use penstock_http::access::ReadPolicy;
use penstock_mover::agent::{self, Agent, Limits};
use penstock_mover::identity::Fingerprint;
use penstock_sys::lock::FileLock;
use penstock_sys::machine;
use sd_notify::NotifyState;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::authorizer::{AccessRules, Authorizer};
use crate::config::{Config, ConfigError, MetricsAccess, RoleName};
use crate::controller::{self, ControllerLink, LimitsSource};
use crate::http::server::{self, ConnectionTracker};
use crate::http::{self, AgentApi, NoMover, Role};
use crate::orders::{LocalEngine, OrderExecutor};
use crate::registry;
use crate::state::{self, StateDir, StateError};
use crate::tokens::{TokenError, Tokens};

/// Time for transfers to journal what is durable at shutdown. TimeoutStopSec in the unit file is longer.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Threads of the control plane; the data plane has its own.
const CONTROL_THREADS: usize = 2;

/// An error that keeps an agent from starting.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateError),
    /// The tokens cannot be read.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// Another role failed to start.
    #[error("{0}")]
    Role(String),
    /// An address or a resource of the process is not available.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Resources for starting another role.
#[derive(Debug)]
pub struct RoleContext<'a> {
    /// State directory, locked by this process.
    pub state: &'a Path,
    /// Runtime on which the role spawns its tasks.
    pub runtime: &'a tokio::runtime::Handle,
}

/// Starts a role, or returns one line with the reason why it cannot.
pub type StartRole<'a> = Box<dyn FnOnce(&RoleContext<'_>) -> Result<Arc<dyn Role>, String> + 'a>;

/// A started agent with its HTTP API.
#[derive(Debug)]
pub struct AgentServer {
    runtime: Runtime,
    /// `None` where this node does not play the role.
    agent: Option<Agent>,
    api: Arc<AgentApi>,
    running: StartedConfig,
    http: Vec<SocketAddr>,
    serving: JoinHandle<()>,
    controller_tasks: Option<ControllerTasks>,
    stop: watch::Sender<bool>,
    signals: AgentSignals,
    /// Lock that keeps other agents off the state directory.
    hold: FileLock,
    fingerprint: Fingerprint,
    token: String,
}

/// Tasks of the connection to a controller.
#[derive(Debug)]
struct ControllerTasks {
    executor: std::thread::JoinHandle<()>,
    reporter: JoinHandle<()>,
}

/// Limits that SIGHUP may replace.
#[derive(Debug)]
struct SharedLimits(Arc<Mutex<Limits>>);

impl LimitsSource for SharedLimits {
    fn limits(&self) -> Limits {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct AgentSignals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl AgentSignals {
    /// Waits for a signal to terminate; returns its name.
    async fn end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for a signal; returns its name, or `None` for SIGHUP.
    async fn end_or_reload(&mut self) -> Option<&'static str> {
        tokio::select! {
            _ = self.terminate.recv() => Some("SIGTERM"),
            _ = self.interrupt.recv() => Some("SIGINT"),
            _ = self.reload.recv() => None,
        }
    }
}

impl AgentServer {
    /// Starts the agent with `config`, and the other roles.
    ///
    /// # Errors
    /// When the state directory, a file of tokens or an address cannot be used.
    pub fn start(config: Config, others: Vec<StartRole<'_>>) -> Result<Self, ServeError> {
        let plays_agent = config.plays(RoleName::Agent);
        // Each stream and each open file takes a descriptor.
        if let Err(error) = machine::raise_open_files() {
            tracing::warn!("the limit on open files is not raised: {error}");
        }
        let homes = homes(config.cpu.as_ref(), plays_agent)?;
        let state = StateDir::open(&config.state)?;
        let hold = state.hold()?;
        let credentials = state.credentials()?;
        let running = StartedConfig::of(&config, &credentials.token);
        let tokens = Tokens::open(&credentials.token, &config.tokens)?;
        let authorizer = Arc::new(Authorizer::new(AccessRules {
            tokens,
            exports: config.exports,
            token_tags: config.token_tags,
            destinations: config.destinations,
        }));
        let identity = Arc::new(credentials.identity);
        let runtime =
            Builder::new_multi_thread().worker_threads(CONTROL_THREADS).enable_all().build()?;
        let signals = runtime.block_on(async {
            // Registered early, so that no signal is lost while the rest starts.
            let terminate = signal(SignalKind::terminate())?;
            let interrupt = signal(SignalKind::interrupt())?;
            Ok::<_, io::Error>(AgentSignals {
                terminate,
                interrupt,
                reload: signal(SignalKind::hangup())?,
            })
        })?;
        let listeners = runtime.block_on(server::bind(&config.http))?;
        let http = listeners
            .iter()
            .map(|one| one.local_addr())
            .collect::<io::Result<Vec<SocketAddr>>>()?;

        let context = RoleContext { state: &config.state, runtime: runtime.handle() };
        let roles = others.into_iter().map(|start| start(&context));
        let roles: Vec<_> = roles.collect::<Result<_, _>>().map_err(ServeError::Role)?;
        let mover = |authorizer: &Arc<Authorizer>| {
            Agent::start(agent::Config {
                listen: config.listen.clone(),
                identity: Arc::clone(&identity),
                gatekeeper: Arc::clone(authorizer) as _,
                state: config.state.clone(),
                limits: config.limits.clone(),
                collectors: config.collectors.clone(),
                marker: config.marker.clone(),
                homes: homes.clone(),
            })
            .map_err(|error| start_error(&error))
        };
        let agent = plays_agent.then(|| mover(&authorizer)).transpose()?;

        let limits = Arc::new(Mutex::new(config.limits));
        let link = config.controller.zip(agent.clone()).map(|(controller, mover)| {
            let safe_rate = controller.safe_rate_bps;
            let authorizer = Arc::clone(&authorizer);
            let engine = LocalEngine::new(mover.clone(), authorizer, state.clone());
            let orders = OrderExecutor::new(Arc::new(engine), safe_rate);
            let limits = Box::new(SharedLimits(Arc::clone(&limits)));
            let fingerprint = identity.fingerprint();
            Arc::new(ControllerLink::new(controller, Arc::new(orders), mover, fingerprint, limits))
        });
        let traffic = Arc::new(ConnectionTracker::new(config.connections));
        let api = Arc::new(AgentApi {
            mover: match &agent {
                Some(agent) => Arc::new(agent.clone()),
                None => Arc::new(NoMover),
            },
            authorizer,
            state: config.state.clone(),
            metrics: config.metrics,
            reading: config.reading,
            roles,
            listen: agent.as_ref().map(Agent::addresses).unwrap_or_default(),
            http: http.clone(),
            fingerprint: identity.fingerprint(),
            limits,
            controller: link.clone(),
            started: SystemTime::now(),
            traffic: Arc::clone(&traffic),
        });
        let router = http::router(Arc::clone(&api));
        let (stop, stopped) = watch::channel(false);
        let controller_tasks = link.map(|link| {
            let executor = {
                let (link, stopped) = (Arc::clone(&link), stopped.clone());
                std::thread::spawn(move || link.execute_orders(&stopped))
            };
            let stopped = stopped.clone();
            ControllerTasks {
                executor,
                reporter: runtime.spawn(async move { link.run(stopped).await }),
            }
        });
        let fingerprint = identity.fingerprint();
        let serving = runtime.spawn(async move {
            let tls = identity.tls_server_config();
            server::serve(listeners, router, &tls, traffic, stopped).await;
        });
        if let Some(url) = config.registry {
            runtime.spawn(registry::run_renewal(state, url));
        }
        let token = credentials.token;
        Ok(Self {
            runtime,
            agent,
            api,
            running,
            http,
            serving,
            controller_tasks,
            stop,
            signals,
            hold,
            fingerprint,
            token,
        })
    }

    /// Addresses on which the mover listens.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.agent.as_ref().map(Agent::addresses).unwrap_or_default()
    }

    /// Addresses on which the HTTP API listens.
    #[must_use]
    pub fn http(&self) -> &[SocketAddr] {
        &self.http
    }

    /// Fingerprint of the agent's certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The agent's own token, a secret.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Path of the file with the token.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.api.state.join(state::TOKEN)
    }

    /// Runs until SIGTERM or SIGINT, then shuts down; a second signal meanwhile ends the process with exit
    /// code 1. SIGHUP applies limits, exports and tokens of the configuration that `load` returns, or nothing
    /// on an error, and reloads the other roles.
    pub fn run(self, load: &dyn Fn() -> Result<Config, ConfigError>) {
        let Self {
            runtime,
            agent,
            api,
            running,
            serving,
            controller_tasks,
            stop,
            mut signals,
            hold,
            ..
        } = self;
        runtime.block_on(async {
            notify_systemd(&[NotifyState::Ready]);
            let watchdog = tokio::spawn(feed_watchdog(Arc::clone(&api)));
            let name = loop {
                match signals.end_or_reload().await {
                    Some(name) => break name,
                    None => {
                        match running.reload(load, agent.as_ref(), &api) {
                            Ok(()) => {
                                tracing::info!("SIGHUP: limits, exports and tokens are applied")
                            }
                            Err(error) => {
                                tracing::error!("SIGHUP: the configuration stays: {error}")
                            }
                        }
                        for role in &api.roles {
                            if let Err(error) = role.reload() {
                                tracing::error!("SIGHUP: {error}");
                            }
                        }
                    }
                }
            };
            tracing::info!("{name}: shutting down; transfers stay resumable");
            notify_systemd(&[NotifyState::Stopping]);
            // A successor may start: transfers that still end here lock their own journals.
            drop(hold);
            watchdog.abort();
            let _ = stop.send(true);
            api.roles.iter().for_each(|role| role.stop());
            let down = async {
                // Orders stop first, so that the final report is accurate.
                if let Some(ControllerTasks { executor, reporter }) = controller_tasks {
                    let _ = tokio::task::spawn_blocking(move || executor.join()).await;
                    let _ = reporter.await;
                }
                if let Some(agent) = agent {
                    let _ =
                        tokio::task::spawn_blocking(move || agent.shut_down(SHUTDOWN_GRACE)).await;
                }
                let _ = serving.await;
            };
            tokio::select! {
                () = down => {}
                name = signals.end() => {
                    tracing::warn!("{name} again: ending at once");
                    std::process::exit(1);
                }
            }
        });
        runtime.shutdown_background();
    }
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

    fn reload(
        &self,
        load: &dyn Fn() -> Result<Config, ConfigError>,
        agent: Option<&Agent>,
        api: &AgentApi,
    ) -> Result<(), ReloadError> {
        let config = load()?;
        let tokens = Tokens::open(&self.token, &config.tokens)?;
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
        if let Some(agent) = agent {
            agent.set_limits(config.limits.clone());
        }
        *api.limits.lock().unwrap_or_else(PoisonError::into_inner) = config.limits;
        let Config { exports, token_tags, destinations, .. } = config;
        api.authorizer.replace(AccessRules { tokens, exports, token_tags, destinations });
        Ok(())
    }
}

/// Pins this process to configured processors, or returns the NUMA placement for transfer threads.
fn homes(wish: Option<&PlacementPolicy>, plays_agent: bool) -> io::Result<Option<NumaPlacement>> {
    match wish {
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

/// Feeds systemd's watchdog, if enabled, while the mover answers.
async fn feed_watchdog(api: Arc<AgentApi>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    // sd_watchdog_enabled(3) recommends half of the limit.
    let mut ticks = tokio::time::interval(limit / 2);
    loop {
        ticks.tick().await;
        let mover = Arc::clone(&api.mover);
        let running_count = tokio::task::spawn_blocking(move || {
            mover.transfers().iter().filter(|transfer| transfer.state == "running").count()
        });
        match tokio::time::timeout(limit / 4, running_count).await {
            Ok(Ok(running)) => {
                let status = format!("{running} transfers running");
                notify_systemd(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
            }
            _ => tracing::error!("the mover does not answer; the watchdog is not fed"),
        }
    }
}

/// Sends a state to systemd, if it supervises this process.
fn notify_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
