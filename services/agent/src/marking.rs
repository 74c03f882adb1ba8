//! The marker as a service: applies rules from a file, a pipe and HTTP.
//!
//! For: `penstock tag run`. The kernel labels the packets (`penstock-marker`); this module fills its maps.
//! Labelling continues when the process ends, and the next start takes over.
//!
//! An error is one line: of the rule file with its line, or of the kernel verbatim.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_daemon::config::ConfigError;
use penstock_daemon::signals::{DaemonSignal, DaemonSignals};
use penstock_daemon::state::{StateDir, StateError};
use penstock_daemon::systemd::{self, NotifyState};
use penstock_http::server::{self, ConnectionTracker};
use penstock_marker::{Attach, AttachedMarker, Exclusive, Marker, MarkerError};
use penstock_sys::net::LinkAttributes;
use tokio::sync::watch;

use crate::registry::ActiveRegistry;

mod api;
mod engine;
pub mod file;
mod metrics;
pub mod pipe;
pub mod privilege;

pub use api::{AddressRule, AttachedProgram, MarkerFacts, describe, describe_rule};
pub use engine::RuleEngine;

/// Time between checks for expired flows.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);

/// Configuration of the marker service.
#[derive(Debug, Clone)]
pub struct Config {
    /// Rule file; none for rules by pipe and HTTP, and for sockets that programs tag themselves.
    pub file: Option<PathBuf>,
    /// Names of the network devices.
    pub interfaces: Vec<String>,
    /// Directory on bpffs for the pinned maps.
    pub pin: PathBuf,
    /// Named pipe for lines of flowd-go's protocol.
    pub pipe: Option<PathBuf>,
    /// Lifetime of a flow of the pipe that has no end.
    pub lifetime: Duration,
    /// Addresses on which the HTTP API listens.
    pub http: Vec<SocketAddr>,
    /// State directory with registry and token.
    pub state: PathBuf,
    /// Hook to which the programs attach.
    pub attach: Attach,
}

/// An error that keeps the service from starting.
#[derive(Debug, thiserror::Error)]
pub enum MarkingError {
    /// The rule file is invalid.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// The kernel refuses a program or a map.
    #[error(transparent)]
    Marker(#[from] MarkerError),
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateError),
    /// The pipe cannot be used.
    #[error(transparent)]
    Pipe(#[from] pipe::PipeError),
    /// An address or a thread is not available.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A marker that runs.
#[derive(Debug)]
pub struct MarkerService {
    engine: Arc<Mutex<RuleEngine>>,
    config: Config,
    attached: Vec<AttachedMarker>,
    runtime: tokio::runtime::Runtime,
    listeners: Vec<server::HttpListener>,
    http: Vec<SocketAddr>,
    credentials: Option<penstock_daemon::state::Credentials>,
    signals: DaemonSignals,
    /// Held until this process ends.
    _exclusive: Exclusive,
}

impl MarkerService {
    /// Applies the rules, attaches the programs, drops capabilities, and opens pipe and addresses. Must be called
    /// before the process has other threads: capabilities are per thread.
    ///
    /// # Errors
    /// One line; programs that another process attached stay.
    pub fn start(config: Config) -> Result<Self, MarkingError> {
        let mut links = Vec::new();
        for name in &config.interfaces {
            links.push(
                LinkAttributes::named(name).map_err(|_| MarkerError::Interface(name.clone()))?,
            );
        }
        let (current, warning) = ActiveRegistry::load(&config.state);
        if let Some(line) = warning {
            tracing::warn!("{line}");
        }
        let rules = match &config.file {
            Some(path) => file::read(path, &current.registry)?,
            None => file::RuleFile::default(),
        };
        let credentials = match config.http.as_slice() {
            [] => None,
            _ => Some(StateDir::open(&config.state)?.credentials()?),
        };
        let exclusive = Exclusive::take(&config.pin, &links)?;
        let marker = Marker::open(&config.pin)?;
        let mut engine = RuleEngine::new(marker, links.clone(), current.registry, config.lifetime);
        engine.set_file(rules)?;
        let mut attached = Vec::new();
        for link in &links {
            attached.extend(engine.marker().attach(link, config.attach)?);
            // Programs of an ended marker with another pin directory stay attached.
            let others = engine.marker().attached_by_others(link);
            if others > 0 {
                tracing::warn!(
                    "{others} programs of another penstock tag run, which has ended, are attached to {} and look at each packet, too: penstock tag stop --pin DIR, with its directory, detaches them",
                    link.name
                );
            }
        }
        let indexes: Vec<u32> = links.iter().map(|link| link.index).collect();
        for one in engine.marker().detach_others(&indexes)? {
            tracing::info!(
                "detached from {} ({}), which is not named any more",
                one.interface,
                one.direction
            );
        }
        let pipe = config.pipe.as_deref().map(pipe::open).transpose()?;
        privilege::drop_capabilities()?;
        let engine = Arc::new(Mutex::new(engine));
        if let Some(pipe) = pipe {
            let engine = Arc::clone(&engine);
            std::thread::Builder::new()
                .name("pipe".into())
                .spawn(move || pipe::serve(pipe, &engine))?;
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        // Registered before readiness is reported.
        let signals = runtime.block_on(async { DaemonSignals::register() })?;
        let listeners = runtime.block_on(server::bind(&config.http))?;
        let http =
            listeners.iter().map(|one| one.socket.local_addr()).collect::<io::Result<_>>()?;
        Ok(Self {
            engine,
            config,
            attached,
            runtime,
            listeners,
            http,
            credentials,
            signals,
            _exclusive: exclusive,
        })
    }

    /// Attached programs with interface and direction.
    #[must_use]
    pub fn attached(&self) -> &[AttachedMarker] {
        &self.attached
    }

    /// Addresses on which the HTTP API listens.
    #[must_use]
    pub fn http(&self) -> &[SocketAddr] {
        &self.http
    }

    /// Number of rules in force, with those that an earlier process left.
    #[must_use]
    pub fn rules(&self) -> usize {
        locked(&self.engine).count()
    }

    /// Runs until SIGTERM or SIGINT; labelling continues afterwards. SIGHUP reloads the rule file.
    pub fn run(self) {
        let Self {
            engine, config, runtime, listeners, credentials, mut signals, _exclusive, ..
        } = self;
        runtime.block_on(async {
            let (stop, stopped) = watch::channel(false);
            let serving = credentials.map(|credentials| {
                let router =
                    api::router(Arc::clone(&engine), credentials.token, config.pin.clone());
                tokio::spawn(async move {
                    let traffic = Arc::new(ConnectionTracker::default());
                    let tls = credentials.identity.tls_server_config();
                    server::serve(listeners, router, &tls, traffic, stopped).await;
                })
            });
            systemd::notify(&[NotifyState::Ready]);
            let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
            loop {
                tokio::select! {
                    signal = signals.next() => match signal {
                        DaemonSignal::End(_) => break,
                        DaemonSignal::Reload => reload(&engine, &config),
                    },
                    _ = ticks.tick() => locked(&engine).expire(),
                }
            }
            systemd::notify(&[NotifyState::Stopping]);
            tracing::info!("ending; labelling continues (penstock tag stop ends it)");
            let _ = stop.send(true);
            if let Some(serving) = serving {
                let _ = serving.await;
            }
        });
    }
}

fn reload(engine: &Mutex<RuleEngine>, config: &Config) {
    let Some(path) = &config.file else { return };
    systemd::notify(&[NotifyState::Reloading]);
    let (current, _) = ActiveRegistry::load(&config.state);
    let mut engine = locked(engine);
    let done = file::read(path, &current.registry).map_err(MarkingError::from).and_then(|rules| {
        engine.set_registry(current.registry);
        Ok(engine.set_file(rules)?)
    });
    match done {
        Ok(()) => tracing::info!("{} rules in force", engine.count()),
        Err(error) => tracing::error!("{error}: the previous rules stay"),
    }
    drop(engine);
    systemd::notify(&[NotifyState::Ready]);
}

/// Locks the engine, ignoring poison: its state is valid between calls.
fn locked(engine: &Mutex<RuleEngine>) -> MutexGuard<'_, RuleEngine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}
