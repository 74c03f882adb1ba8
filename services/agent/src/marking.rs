//! The marker as a service: rules from a file, a pipe and HTTP, kept in force until told otherwise.
//!
//! For: what `penstock tag run` runs. The packets are labelled by the kernel (`penstock-marker`); this only
//! fills its maps. When it ends, labelling goes on; the next start takes over.
//!
//! Fails with one line: of the file with its line, of the kernel as it says.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_marker::{Attach, Attached, Exclusive, Marker, MarkerError};
use penstock_sys::net::Link;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::http::server::{self, ConnectionTracker};
use crate::registry::Current;
use crate::state::{State, StateError};

mod api;
mod engine;
pub mod file;
mod metrics;
pub mod pipe;
pub mod privilege;

pub use api::{AddressRule, AttachedProgram, MarkerFacts, describe, describe_rule};
pub use engine::Engine;

/// How often flows that never ended are looked for.
const EXPIRY_TIME: Duration = Duration::from_secs(5);

/// What the marker is told to do.
#[derive(Debug, Clone)]
pub struct Config {
    /// File of rules; none for rules by pipe and HTTP, and for sockets that programs tag themselves.
    pub file: Option<PathBuf>,
    /// Devices.
    pub interfaces: Vec<String>,
    /// Directory on bpffs.
    pub pin: PathBuf,
    /// Named pipe with lines of flowd-go's protocol.
    pub pipe: Option<PathBuf>,
    /// How long a flow of the pipe lives without an end.
    pub lifetime: Duration,
    /// Addresses of the HTTP API.
    pub http: Vec<SocketAddr>,
    /// State directory: registry and token.
    pub state: PathBuf,
    /// How programs get to devices.
    pub attach: Attach,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum MarkingError {
    /// The rules.
    #[error(transparent)]
    File(#[from] file::FileError),
    /// The kernel.
    #[error(transparent)]
    Marker(#[from] MarkerError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The pipe.
    #[error(transparent)]
    Pipe(#[from] pipe::PipeError),
    /// Addresses, threads.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A marker that runs.
#[derive(Debug)]
pub struct Service {
    engine: Arc<Mutex<Engine>>,
    config: Config,
    attached: Vec<Attached>,
    runtime: tokio::runtime::Runtime,
    listeners: Vec<tokio::net::TcpListener>,
    http: Vec<SocketAddr>,
    credentials: Option<crate::state::Credentials>,
    signals: Signals,
    /// Held until this process ends.
    _exclusive: Exclusive,
}

#[derive(Debug)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Service {
    /// Puts rules in force, attaches, drops privilege, and opens pipe and addresses. Must be called before
    /// the process has other threads: privilege is a thread's.
    ///
    /// # Errors
    /// With one line; what was attached before by another process stays.
    pub fn start(config: Config) -> Result<Self, MarkingError> {
        let mut links = Vec::new();
        for name in &config.interfaces {
            links.push(Link::named(name).map_err(|_| MarkerError::Interface(name.clone()))?);
        }
        let (current, warning) = Current::load(&config.state);
        if let Some(line) = warning {
            tracing::warn!("{line}");
        }
        let rules = match &config.file {
            Some(path) => file::read(path, &current.registry)?,
            None => file::RuleFile::default(),
        };
        let credentials = match config.http.as_slice() {
            [] => None,
            _ => Some(State::open(&config.state)?.credentials()?),
        };
        let exclusive = Exclusive::take(&config.pin, &links)?;
        let marker = Marker::open(&config.pin)?;
        let mut engine = Engine::new(marker, links.clone(), current.registry, config.lifetime);
        engine.set_file(rules)?;
        let mut attached = Vec::new();
        for link in &links {
            attached.extend(engine.marker().attach(link, config.attach)?);
            // Those of a marker that ended go on, and this one has replaced its own.
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
        privilege::drop_most()?;
        let engine = Arc::new(Mutex::new(engine));
        if let Some(pipe) = pipe {
            let engine = Arc::clone(&engine);
            std::thread::Builder::new()
                .name("pipe".into())
                .spawn(move || pipe::serve(pipe, &engine))?;
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let signals = runtime.block_on(async {
            // Caught before anybody is told that it runs.
            Ok::<_, io::Error>(Signals {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                hangup: signal(SignalKind::hangup())?,
            })
        })?;
        let listeners = runtime.block_on(server::bind(&config.http))?;
        let http = listeners.iter().map(|one| one.local_addr()).collect::<io::Result<_>>()?;
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

    /// Where the programs are.
    #[must_use]
    pub fn attached(&self) -> &[Attached] {
        &self.attached
    }

    /// Addresses of the HTTP API.
    #[must_use]
    pub fn http(&self) -> &[SocketAddr] {
        &self.http
    }

    /// How many rules are in force, those of the file and those that a process before left.
    #[must_use]
    pub fn rules(&self) -> usize {
        locked(&self.engine).count()
    }

    /// Runs until SIGTERM or SIGINT; labelling goes on after it. SIGHUP reads the file again.
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
            tell(&[NotifyState::Ready]);
            let mut ticks = tokio::time::interval(EXPIRY_TIME);
            loop {
                tokio::select! {
                    _ = signals.terminate.recv() => break,
                    _ = signals.interrupt.recv() => break,
                    _ = signals.hangup.recv() => reload(&engine, &config),
                    _ = ticks.tick() => locked(&engine).expire(),
                }
            }
            tell(&[NotifyState::Stopping]);
            tracing::info!("ending; labelling goes on (penstock tag stop ends it)");
            let _ = stop.send(true);
            if let Some(serving) = serving {
                let _ = serving.await;
            }
        });
    }
}

fn reload(engine: &Mutex<Engine>, config: &Config) {
    let Some(path) = &config.file else { return };
    tell(&[NotifyState::Reloading]);
    let (current, _) = Current::load(&config.state);
    let mut engine = locked(engine);
    let done = file::read(path, &current.registry).map_err(MarkingError::from).and_then(|rules| {
        engine.set_registry(current.registry);
        Ok(engine.set_file(rules)?)
    });
    match done {
        Ok(()) => tracing::info!("{} rules in force", engine.count()),
        Err(error) => tracing::error!("{error}: the rules of before stay"),
    }
    drop(engine);
    tell(&[NotifyState::Ready]);
}

/// The engine, whatever another thread did with it.
fn locked(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
