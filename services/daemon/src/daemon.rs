//! A daemon that runs roles: state directory, identity, HTTP API, signals and the service manager.
//!
//! [`Daemon::open`] locks the state directory and binds the addresses, or fails with one line. The caller starts roles
//! with the [`RoleContext`], and [`Daemon::serve`] answers their requests. [`RunningDaemon::run`] waits for SIGTERM or
//! SIGINT, ends the roles in order, and returns; a second signal ends the process at once. Under systemd
//! (`Type=notify`) it reports readiness and shutdown, and feeds the watchdog while every role answers.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_http::ServiceRole;
use penstock_http::access::{ReadAccess, ReadPolicy};
use penstock_http::server::{self, ConnectionTracker, HttpListener};
use penstock_http::tokens::{TokenError, read_secret};
use penstock_identity::{Fingerprint, Identity};
use penstock_sys::lock::ExclusiveFileLock;
use penstock_sys::machine;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{self, Bearers, DaemonApi};
use crate::signals::{DaemonSignal, DaemonSignals};
use crate::state::{self, StateDir, StateError};
use crate::systemd::{self, NotifyState};

/// Threads of the control plane; data planes have their own.
const CONTROL_THREADS: usize = 2;

/// Files of a certificate and of its private key, both in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// Certificate, with its chain.
    pub certificate: PathBuf,
    /// Private key, which others may not read.
    pub key: PathBuf,
}

impl IdentityFiles {
    /// Texts of certificate and key.
    fn read(&self) -> Result<(String, String), DaemonError> {
        let certificate = std::fs::read_to_string(&self.certificate)
            .map_err(|error| DaemonError::Certificate { file: self.certificate.clone(), error })?;
        Ok((certificate, read_secret(&self.key)?))
    }
}

/// Settings of a daemon that are not a role's.
#[derive(Debug, Clone)]
pub struct DaemonConfig {
    /// Absolute path of the state directory.
    pub state: PathBuf,
    /// Certificate and key to take over into the state directory; without them it makes its own.
    pub identity: Option<IdentityFiles>,
    /// Addresses on which the HTTP API listens; empty for no API.
    pub http: Vec<SocketAddr>,
    /// Limit on concurrent HTTP connections.
    pub connections: usize,
    /// Read access to the HTTP API without a token.
    pub reading: ReadPolicy,
    /// Read access to `/metrics` without a token.
    pub metrics: ReadAccess,
}

/// An error that keeps a daemon from starting.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateError),
    /// The configured certificate cannot be read.
    #[error("certificate {}: {error}", file.display())]
    Certificate {
        /// Its file.
        file: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The key of the configured certificate cannot be used.
    #[error(transparent)]
    CertificateKey(#[from] TokenError),
    /// An address or a resource of the process is not available.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Resources for starting a role.
#[derive(Debug)]
pub struct RoleContext<'a> {
    /// State directory, locked by this process.
    pub state: &'a StateDir,
    /// Runtime on which the role spawns its tasks.
    pub runtime: &'a Handle,
    /// Certificate of this node with its key.
    pub identity: &'a Arc<Identity>,
    /// The node's own token, a secret.
    pub token: &'a str,
    /// Addresses on which the HTTP API listens.
    pub http: &'a [SocketAddr],
    /// Counters of HTTP connections and answers.
    pub traffic: &'a Arc<ConnectionTracker>,
}

/// A daemon without roles: its state directory is locked and its addresses are bound.
#[derive(Debug)]
pub struct Daemon {
    runtime: Runtime,
    state: StateDir,
    /// Lock that keeps other daemons off the state directory.
    hold: ExclusiveFileLock,
    identity: Arc<Identity>,
    identity_files: Option<IdentityFiles>,
    token: String,
    signals: DaemonSignals,
    listeners: Vec<HttpListener>,
    http: Vec<SocketAddr>,
    traffic: Arc<ConnectionTracker>,
    reading: ReadPolicy,
    metrics: ReadAccess,
}

/// A daemon whose roles answer requests.
#[derive(Debug)]
pub struct RunningDaemon {
    runtime: Runtime,
    hold: ExclusiveFileLock,
    signals: DaemonSignals,
    roles: Vec<Arc<dyn ServiceRole>>,
    serving: JoinHandle<()>,
    stop: watch::Sender<bool>,
    state: StateDir,
    http: Vec<SocketAddr>,
    identity: Arc<Identity>,
    identity_files: Option<IdentityFiles>,
    token: String,
}

impl Daemon {
    /// Locks the state directory, creates identity and token on the first start, and binds the addresses.
    ///
    /// # Errors
    /// When the state directory or an address cannot be used.
    pub fn open(config: DaemonConfig) -> Result<Self, DaemonError> {
        // Each stream and each open file takes a descriptor.
        if let Err(error) = machine::raise_open_files() {
            tracing::warn!("the limit on open files is not raised: {error}");
        }
        let state = StateDir::open(&config.state)?;
        let hold = state.hold()?;
        if let Some(files) = &config.identity {
            let (certificate, key) = files.read()?;
            state.install_identity(&certificate, &key)?;
        }
        let credentials = state.credentials()?;
        let runtime =
            Builder::new_multi_thread().worker_threads(CONTROL_THREADS).enable_all().build()?;
        // Registered early, so that no signal is lost while the rest starts.
        let signals = runtime.block_on(async { DaemonSignals::register() })?;
        let listeners = runtime.block_on(server::bind(&config.http))?;
        let http = listeners
            .iter()
            .map(|listener| listener.socket.local_addr())
            .collect::<io::Result<_>>()?;
        Ok(Self {
            runtime,
            state,
            hold,
            identity: Arc::new(credentials.identity),
            identity_files: config.identity,
            token: credentials.token,
            signals,
            listeners,
            http,
            traffic: Arc::new(ConnectionTracker::new(config.connections)),
            reading: config.reading,
            metrics: config.metrics,
        })
    }

    /// Resources for starting roles.
    #[must_use]
    pub fn context(&self) -> RoleContext<'_> {
        RoleContext {
            state: &self.state,
            runtime: self.runtime.handle(),
            identity: &self.identity,
            token: &self.token,
            http: &self.http,
            traffic: &self.traffic,
        }
    }

    /// Serves the API of `roles`, of which the first heads the API document. `bearers` knows the tokens of clients.
    #[must_use]
    pub fn serve(
        self,
        roles: Vec<Arc<dyn ServiceRole>>,
        bearers: Arc<dyn Bearers>,
    ) -> RunningDaemon {
        let router = api::router(Arc::new(DaemonApi {
            roles: roles.clone(),
            bearers,
            reading: self.reading,
            metrics: self.metrics,
            traffic: Arc::clone(&self.traffic),
        }));
        let (stop, stopped) = watch::channel(false);
        let (tls, listeners, traffic) =
            (self.identity.tls_server_config(), self.listeners, self.traffic);
        let serving = self.runtime.spawn(async move {
            server::serve(listeners, router, &tls, traffic, stopped).await;
        });
        RunningDaemon {
            runtime: self.runtime,
            hold: self.hold,
            signals: self.signals,
            roles,
            serving,
            stop,
            state: self.state,
            http: self.http,
            identity: self.identity,
            identity_files: self.identity_files,
            token: self.token,
        }
    }
}

impl RunningDaemon {
    /// Addresses on which the HTTP API listens.
    #[must_use]
    pub fn http(&self) -> &[SocketAddr] {
        &self.http
    }

    /// Fingerprint of the node's certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.identity.fingerprint()
    }

    /// The node's own token, a secret.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Path of the file with the token.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.state.path().join(state::TOKEN)
    }

    /// Runs until SIGTERM or SIGINT, then ends the roles; a second signal meanwhile ends the process with exit code 1.
    /// SIGHUP reads the certificate again, and reloads each role.
    pub fn run(self) {
        let Self { runtime, hold, mut signals, roles, serving, stop, .. } = self;
        let renew = || renew_identity(&self.identity, self.identity_files.as_ref(), &self.state);
        runtime.block_on(async {
            systemd::notify(&[NotifyState::Ready]);
            let watchdog = tokio::spawn(feed_watchdog(roles.clone()));
            let name = loop {
                match signals.next().await {
                    DaemonSignal::End(name) => break name,
                    DaemonSignal::Reload => {
                        if let Err(error) = renew() {
                            tracing::error!("SIGHUP: the certificate of [agent] stays: {error}");
                        }
                        reload(&roles);
                    }
                }
            };
            tracing::info!("{name}: shutting down; transfers stay resumable");
            systemd::notify(&[NotifyState::Stopping]);
            // A successor may start: transfers that still end here lock their own journals.
            drop(hold);
            watchdog.abort();
            let _ = stop.send(true);
            roles.iter().for_each(|role| role.stop());
            let down = async {
                for role in roles {
                    let _ = tokio::task::spawn_blocking(move || role.shut_down()).await;
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

/// Takes over the configured certificate and its key, or those of the state directory, if they have changed: new
/// connections get them.
fn renew_identity(
    identity: &Identity,
    files: Option<&IdentityFiles>,
    state: &StateDir,
) -> Result<(), DaemonError> {
    let (certificate, key) = match files {
        Some(files) => {
            let (certificate, key) = files.read()?;
            state.install_identity(&certificate, &key)?;
            (certificate, key)
        }
        None => {
            let identity = state.stored_identity()?;
            (identity.certificate_pem(), identity.key_pem())
        }
    };
    let renewed = identity.renew(&certificate, &key).map_err(io::Error::other)?;
    if renewed {
        tracing::info!(
            "SIGHUP: the certificate of [agent] is {} now: clients that log in by fingerprint log in again",
            identity.fingerprint()
        );
    }
    Ok(())
}

fn reload(roles: &[Arc<dyn ServiceRole>]) {
    for role in roles {
        if let Err(error) = role.reload() {
            tracing::error!("SIGHUP: {error}");
        }
    }
}

/// Feeds systemd's watchdog, if enabled, while every role reports its status.
async fn feed_watchdog(roles: Vec<Arc<dyn ServiceRole>>) {
    let Some(limit) = systemd::watchdog_limit() else { return };
    // sd_watchdog_enabled(3) recommends half of the limit.
    let mut ticks = tokio::time::interval(limit / 2);
    loop {
        ticks.tick().await;
        let roles = roles.clone();
        let status = tokio::task::spawn_blocking(move || {
            let lines = roles.iter().filter_map(|role| role.status());
            lines.collect::<Vec<_>>().join("; ")
        });
        match tokio::time::timeout(limit / 4, status).await {
            Ok(Ok(status)) => {
                systemd::notify(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
            }
            _ => tracing::error!("a role does not answer; the watchdog is not fed"),
        }
    }
}
