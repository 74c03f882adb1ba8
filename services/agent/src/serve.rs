//! A running agent: the mover, the HTTP API, the service manager's wishes and the way down.
//!
//! [`Server::start`] brings everything up or fails with one line and leaves nothing behind.
//! [`Server::run`] then waits for SIGTERM or SIGINT, has transfers write down what is durable so that
//! the same copy resumes, and returns; a second signal ends the process at once. Under systemd
//! (`Type=notify`) it says when it is ready and when it stops, and feeds the watchdog as long as the
//! mover answers.
//!
//! Not for: printing; the verb does that.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use penstock_host::placement::{self, Homes, Wish};
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

use crate::config::{Config, ConfigError, MetricsAccess, RoleName};
use crate::controller::{self, LimitsNow, Link};
use crate::gate::{Gate, Rules};
use crate::http::server::{self, ConnectionTracker};
use crate::http::{self, Api, NoMover, Role};
use crate::orders::Orders;
use crate::registry;
use crate::state::{self, State, StateError};
use crate::tokens::{TokenError, Tokens};

/// Time for transfers to write down what is durable. The unit file's TimeoutStopSec is longer.
pub const GRACE: Duration = Duration::from_secs(10);

/// Threads of the control plane; the data plane has its own.
const CONTROL_THREADS: usize = 2;

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// Its tokens.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// Another role.
    #[error("{0}")]
    Role(String),
    /// Its addresses, or what the process needs to run.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What other roles are started with.
#[derive(Debug)]
pub struct Context<'a> {
    /// The state directory, which this process holds.
    pub state: &'a Path,
    /// Where tasks run.
    pub runtime: &'a tokio::runtime::Handle,
}

/// Starts a role, or says in one line why it cannot be.
pub type StartRole<'a> = Box<dyn FnOnce(&Context<'_>) -> Result<Arc<dyn Role>, String> + 'a>;

/// A running agent.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    /// `None` where the role is not played.
    agent: Option<Agent>,
    api: Arc<Api>,
    running: Running,
    http: Vec<SocketAddr>,
    serving: JoinHandle<()>,
    linked: Option<Linked>,
    stop: watch::Sender<bool>,
    signals: Signals,
    /// Keeps other agents off the state directory.
    hold: FileLock,
    fingerprint: Fingerprint,
    token: String,
}

/// What goes on with a controller.
#[derive(Debug)]
struct Linked {
    carries_out: std::thread::JoinHandle<()>,
    reports: JoinHandle<()>,
}

/// Limits that SIGHUP may change.
#[derive(Debug)]
struct Shared(Arc<Mutex<Limits>>);

impl LimitsNow for Shared {
    fn limits(&self) -> Limits {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    /// The name of a signal to end.
    async fn end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// The name of a signal to end, or `None` for one to read the configuration again.
    async fn end_or_reload(&mut self) -> Option<&'static str> {
        tokio::select! {
            _ = self.terminate.recv() => Some("SIGTERM"),
            _ = self.interrupt.recv() => Some("SIGINT"),
            _ = self.reload.recv() => None,
        }
    }
}

impl Server {
    /// Starts everything that `config` says, and these roles besides.
    ///
    /// # Errors
    /// When the state directory, a file of tokens or an address cannot be used.
    pub fn start(config: Config, others: Vec<StartRole<'_>>) -> Result<Self, ServeError> {
        let plays_agent = config.plays(RoleName::Agent);
        // Each stream and each file takes a descriptor; what the limit allows is what there is.
        if let Err(error) = machine::raise_open_files() {
            tracing::warn!("the limit on open files stays as it is: {error}");
        }
        let homes = homes(config.cpu.as_ref(), plays_agent)?;
        let state = State::open(&config.state)?;
        let hold = state.hold()?;
        let credentials = state.credentials()?;
        let running = Running::of(&config, &credentials.token);
        let tokens = Tokens::open(&credentials.token, &config.tokens)?;
        let gate = Arc::new(Gate::new(Rules {
            tokens,
            exports: config.exports,
            token_tags: config.token_tags,
            destinations: config.destinations,
        }));
        let identity = Arc::new(credentials.identity);
        let runtime =
            Builder::new_multi_thread().worker_threads(CONTROL_THREADS).enable_all().build()?;
        let signals = runtime.block_on(async {
            // Caught from here on, so that none is lost while the rest starts.
            let terminate = signal(SignalKind::terminate())?;
            let interrupt = signal(SignalKind::interrupt())?;
            Ok::<_, io::Error>(Signals {
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

        let context = Context { state: &config.state, runtime: runtime.handle() };
        let roles = others.into_iter().map(|start| start(&context));
        let roles: Vec<_> = roles.collect::<Result<_, _>>().map_err(ServeError::Role)?;
        let mover = |gate: &Arc<Gate>| {
            Agent::start(agent::Config {
                listen: config.listen.clone(),
                identity: Arc::clone(&identity),
                gatekeeper: Arc::clone(gate) as _,
                state: config.state.clone(),
                limits: config.limits.clone(),
                collectors: config.collectors.clone(),
                marker: config.marker.clone(),
                homes: homes.clone(),
            })
            .map_err(|error| start_error(&error))
        };
        let agent = plays_agent.then(|| mover(&gate)).transpose()?;

        let limits = Arc::new(Mutex::new(config.limits));
        let link = config.controller.zip(agent.clone()).map(|(controller, mover)| {
            let safe_rate = controller.safe_rate_bps;
            let gate = Arc::clone(&gate);
            let orders = Orders::new(mover.clone(), gate, state.clone(), safe_rate);
            let limits = Box::new(Shared(Arc::clone(&limits)));
            let fingerprint = identity.fingerprint();
            Arc::new(Link::new(controller, Arc::new(orders), mover, fingerprint, limits))
        });
        let traffic = Arc::new(ConnectionTracker::new(config.connections));
        let api = Arc::new(Api {
            mover: match &agent {
                Some(agent) => Arc::new(agent.clone()),
                None => Arc::new(NoMover),
            },
            gate,
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
        let linked = link.map(|link| {
            let carries_out = {
                let (link, stopped) = (Arc::clone(&link), stopped.clone());
                std::thread::spawn(move || link.carry_out(&stopped))
            };
            let stopped = stopped.clone();
            Linked { carries_out, reports: runtime.spawn(async move { link.run(stopped).await }) }
        });
        let fingerprint = identity.fingerprint();
        let serving = runtime.spawn(async move {
            let tls = identity.tls_server_config();
            server::serve(listeners, router, &tls, traffic, stopped).await;
        });
        if let Some(url) = config.registry {
            runtime.spawn(registry::keep_fresh(state, url));
        }
        let token = credentials.token;
        Ok(Self {
            runtime,
            agent,
            api,
            running,
            http,
            serving,
            linked,
            stop,
            signals,
            hold,
            fingerprint,
            token,
        })
    }

    /// Addresses of the mover.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.agent.as_ref().map(Agent::addresses).unwrap_or_default()
    }

    /// Addresses of the HTTP API.
    #[must_use]
    pub fn http(&self) -> &[SocketAddr] {
        &self.http
    }

    /// Of the agent's certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The agent's own token: a secret.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The file that holds it.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.api.state.join(state::TOKEN)
    }

    /// Runs until SIGTERM or SIGINT, then shuts down. The second signal during that ends the process
    /// with exit code 1. At SIGHUP limits, exports and tokens become what `load` gives; when that is an
    /// error, everything stays as it was. Other roles read their own files again.
    pub fn run(self, load: &dyn Fn() -> Result<Config, ConfigError>) {
        let Self { runtime, agent, api, running, serving, linked, stop, mut signals, hold, .. } =
            self;
        runtime.block_on(async {
            tell(&[NotifyState::Ready]);
            let watchdog = tokio::spawn(feed_watchdog(Arc::clone(&api)));
            let name = loop {
                match signals.end_or_reload().await {
                    Some(name) => break name,
                    None => {
                        match running.reload(load, agent.as_ref(), &api) {
                            Ok(()) => {
                                tracing::info!("SIGHUP: limits, exports and tokens are read anew")
                            }
                            Err(error) => tracing::error!("SIGHUP: nothing is changed: {error}"),
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
            tell(&[NotifyState::Stopping]);
            // A successor may start: each transfer that still ends here holds its own journal.
            drop(hold);
            watchdog.abort();
            let _ = stop.send(true);
            api.roles.iter().for_each(|role| role.stop());
            let down = async {
                // What is sent by order stops first, so that what is told last is where it stands.
                if let Some(Linked { carries_out, reports }) = linked {
                    let _ = tokio::task::spawn_blocking(move || carries_out.join()).await;
                    let _ = reports.await;
                }
                if let Some(agent) = agent {
                    let _ = tokio::task::spawn_blocking(move || agent.shut_down(GRACE)).await;
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

/// What an agent began with and keeps until it ends.
#[derive(Debug)]
struct Running {
    listen: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    state: PathBuf,
    metrics: MetricsAccess,
    reading: ReadPolicy,
    connections: usize,
    roles: Option<Vec<RoleName>>,
    controller: Option<controller::Config>,
    cpu: Option<Wish>,
    token: String,
}

/// Why a changed configuration is not taken.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tokens(#[from] TokenError),
}

impl Running {
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
        api: &Api,
    ) -> Result<(), ReloadError> {
        let config = load()?;
        let tokens = Tokens::open(&self.token, &config.tokens)?;
        for (what, same) in [
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
                tracing::warn!("{what} has changed: restart the agent for it");
            }
        }
        if let Some(agent) = agent {
            agent.set_limits(config.limits.clone());
        }
        *api.limits.lock().unwrap_or_else(PoisonError::into_inner) = config.limits;
        let Config { exports, token_tags, destinations, .. } = config;
        api.gate.replace(Rules { tokens, exports, token_tags, destinations });
        Ok(())
    }
}

/// Moves this process to the processors that are wanted, or says where threads of transfers are to go.
fn homes(wish: Option<&Wish>, plays_agent: bool) -> io::Result<Option<Homes>> {
    match wish {
        Some(Wish::These(cpus)) => placement::pin(cpus).map(|()| None),
        Some(Wish::Auto) if plays_agent => Ok(Some(Homes::here())),
        Some(Wish::Auto) | None => Ok(None),
    }
}

/// The mover names the address; what to do about it is said here.
fn start_error(error: &io::Error) -> io::Error {
    let remedy = "give another with --listen ADDR:PORT";
    io::Error::new(error.kind(), format!("{error}: {remedy}"))
}

/// Feeds systemd's watchdog, if there is one, while the mover answers.
async fn feed_watchdog(api: Arc<Api>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    // sd_watchdog_enabled(3): about half of the time.
    let mut ticks = tokio::time::interval(limit / 2);
    loop {
        ticks.tick().await;
        let mover = Arc::clone(&api.mover);
        let asked = tokio::task::spawn_blocking(move || {
            mover.transfers().iter().filter(|transfer| transfer.state == "running").count()
        });
        match tokio::time::timeout(limit / 4, asked).await {
            Ok(Ok(running)) => {
                let status = format!("{running} transfers running");
                tell(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
            }
            _ => tracing::error!("the mover does not answer; the watchdog is not fed"),
        }
    }
}

/// Tells systemd, if it is there.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
