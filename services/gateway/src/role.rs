//! The gateway as a role of a daemon.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use penstock_daemon::RoleContext;
use penstock_http::server::{self, ConnectionTracker, ServeConfig};
use penstock_http::{MetricWriter, RoleReloadError, ServiceRole};
use penstock_identity::ServerCertificate;
use penstock_mover::{Agent, Gatekeeper};
use penstock_sys::fs::describe;
use penstock_tokens::TokenMinter;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};

use crate::config::Config;
use crate::dispatch::{Gateway, router};
use crate::head::HeadNode;
use crate::root::{self, RootServer};
use crate::staged;

/// Time for running requests to end at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Read buffer of a connection, in bytes.
const BUFFER_BYTES: usize = 512 << 10;

/// An error that keeps the gateway from starting.
#[derive(Debug, thiserror::Error)]
pub enum GatewayStartError {
    /// An address cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The certificate or its key cannot be used.
    #[error("{key} {} in [gateway]: {reason}", file.display())]
    Certificate {
        /// Key of the configuration.
        key: &'static str,
        /// Path of the file.
        file: PathBuf,
        /// Reason and remedy, one line.
        reason: String,
    },
}

/// A gateway that listens, until the daemon stops it.
pub struct GatewayRole {
    addresses: Vec<(SocketAddr, bool)>,
    root_addresses: Vec<SocketAddr>,
    tracker: Arc<ConnectionTracker>,
    root_tracker: Arc<ConnectionTracker>,
    head: Option<Arc<HeadNode>>,
    certificate: Option<RenewableCertificate>,
    stop: watch::Sender<bool>,
    serving: Mutex<Option<JoinHandle<()>>>,
    runtime: Handle,
}

impl fmt::Debug for GatewayRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayRole").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl GatewayRole {
    /// Starts to serve the files of `agent` to clients that `keeper` admits, for whom `minter` derives
    /// tokens.
    ///
    /// # Errors
    /// When an address or the certificate cannot be used.
    pub fn start(
        config: Config,
        agent: Agent,
        keeper: Arc<dyn Gatekeeper>,
        minter: Arc<dyn TokenMinter>,
        context: &RoleContext<'_>,
    ) -> Result<Self, GatewayStartError> {
        let certificate = config.certificate.as_ref();
        let certificate = certificate.map(|(file, key)| RenewableCertificate::read(file, key));
        let certificate = certificate.transpose()?;
        let tls: Arc<ServerConfig> = match &certificate {
            Some(certificate) => Arc::new(certificate.server_config()?),
            None => context.identity.tls_server_config(),
        };
        if config.certificate.is_none()
            && let Some(address) = config.root.iter().find(|address| !address.ip().is_loopback())
        {
            tracing::warn!(
                "root://{address} has no host certificate, without which clients of XRootD on other hosts refuse it: set certificate and key in [gateway]"
            );
        }
        let bind = async {
            let mut listeners =
                server::bind_with(&config.listen, "change listen in [gateway]").await?;
            listeners.iter_mut().for_each(|listener| listener.encrypted = true);
            let mut plain =
                server::bind_with(&config.plaintext, "change plaintext in [gateway]").await?;
            plain.iter_mut().for_each(|listener| listener.encrypted = false);
            listeners.extend(plain);
            io::Result::Ok((listeners, root::bind(&config.root).await?))
        };
        let (listeners, root_listeners) = context.runtime.block_on(bind)?;
        let addresses = listeners
            .iter()
            .map(|listener| Ok((listener.socket.local_addr()?, listener.encrypted)))
            .collect::<io::Result<_>>()?;
        let root_addresses = root_listeners
            .iter()
            .map(tokio::net::TcpListener::local_addr)
            .collect::<io::Result<Vec<_>>>()?;
        let root_port = root_addresses.first().map(SocketAddr::port);
        let tracker = Arc::new(ConnectionTracker::new(config.connections));
        let root_tracker = Arc::new(ConnectionTracker::new(config.connections));
        let (stop, stopped) = watch::channel(false);
        let trust = config.trust();
        let names = staged::open_names(context.state.path())?;
        let gateway = Arc::new(Gateway::new(agent, keeper, minter, config, names, root_port));
        let head = gateway.head.clone();
        let root = RootServer::new(Arc::clone(&gateway), &tls, Arc::clone(&root_tracker));
        let router = router(gateway);
        let counted = Arc::clone(&tracker);
        let watched = head.clone();
        let serving = context.runtime.spawn(async move {
            if let Some(head) = watched {
                head.watch_agents(&trust, &stopped);
            }
            let limits = ServeConfig {
                buffer_bytes: BUFFER_BYTES,
                shutdown: SHUTDOWN_TIMEOUT,
                explain_malformed: false,
                ..ServeConfig::default()
            };
            let http =
                server::serve_with(listeners, router, &tls, counted, stopped.clone(), limits);
            tokio::join!(http, root.serve(root_listeners, stopped));
        });
        Ok(Self {
            addresses,
            root_addresses,
            tracker,
            root_tracker,
            head,
            certificate,
            stop,
            serving: Mutex::new(Some(serving)),
            runtime: context.runtime.clone(),
        })
    }

    /// Addresses, each with true if it speaks TLS.
    #[must_use]
    pub fn addresses(&self) -> &[(SocketAddr, bool)] {
        &self.addresses
    }

    /// Addresses on which the gateway serves `root://`.
    #[must_use]
    pub fn root_addresses(&self) -> &[SocketAddr] {
        &self.root_addresses
    }
}

/// Mode bits that a private key must not have; its group may read it.
const KEY_FORBIDDEN_BITS: u32 = 0o037;

/// Certificate and key of the configuration, which a reload reads again.
struct RenewableCertificate {
    file: PathBuf,
    key: PathBuf,
    current: Arc<ServerCertificate>,
}

impl RenewableCertificate {
    fn read(file: &Path, key: &Path) -> Result<Self, GatewayStartError> {
        let current = Arc::new(read_certificate(file, key)?);
        Ok(Self { file: file.to_owned(), key: key.to_owned(), current })
    }

    /// Configuration of servers. Clients of the grid may know TLS 1.2 only.
    fn server_config(&self) -> Result<ServerConfig, GatewayStartError> {
        let provider = Arc::new(penstock_http::crypto_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let clients = penstock_identity::optional_client_certificates();
        let builder = builder.with_client_cert_verifier(clients);
        Ok(builder.with_cert_resolver(Arc::clone(&self.current) as _))
    }

    /// Reads the files again; new connections get what they hold. Returns false if that is the present certificate.
    fn renew(&self) -> Result<bool, GatewayStartError> {
        Ok(self.current.replace(&read_certificate(&self.file, &self.key)?))
    }
}

/// Reads a host certificate with its chain, and its key.
fn read_certificate(
    certificate: &Path,
    key: &Path,
) -> Result<ServerCertificate, GatewayStartError> {
    let of_certificate = |reason: String| GatewayStartError::Certificate {
        key: "certificate",
        file: certificate.to_owned(),
        reason,
    };
    let of_key = |reason: String| GatewayStartError::Certificate {
        key: "key",
        file: key.to_owned(),
        reason,
    };
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect).map_err(
            |error| of_certificate(format!("{error}: name the PEM file of the certificate")),
        )?;
    if chain.is_empty() {
        return Err(of_certificate("it holds no certificate: name a PEM file with one".to_owned()));
    }
    let facts = std::fs::metadata(key).map_err(|error| of_key(describe(&error)))?;
    if facts.mode() & KEY_FORBIDDEN_BITS != 0 {
        let mode = facts.mode() & 0o7777;
        return Err(of_key(format!(
            "others may read or change it (mode {mode:04o}): chmod 600 it"
        )));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| of_key(format!("{error}: name the PEM file of the key")))?;
    ServerCertificate::new(chain, private).map_err(|error| {
        of_certificate(format!("{error}: it belongs to the key {}", key.display()))
    })
}

impl ServiceRole for GatewayRole {
    fn router(&self) -> Router {
        Router::new()
    }

    fn document(&self) -> OpenApi {
        let info = InfoBuilder::new().title("Penstock gateway").version(env!("CARGO_PKG_VERSION"));
        OpenApiBuilder::new().info(info.build()).build()
    }

    fn metrics(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let open = self.tracker.open();
        writer.gauge("penstock_gateway_connections", None, "Open connections", open as u64)?;
        let refused = self.tracker.refused();
        writer.counter(
            "penstock_gateway_refused",
            None,
            "Connections refused or closed over the limit",
            refused,
        )?;
        let open = self.root_tracker.open() as u64;
        writer.gauge(
            "penstock_gateway_root_connections",
            None,
            "Open connections of root://",
            open,
        )?;
        let refused = self.root_tracker.refused();
        let help = "Connections of root:// refused or closed over the limit";
        writer.counter("penstock_gateway_root_refused", None, help, refused)?;
        let Some(head) = &self.head else { return Ok(()) };
        let help = "Agents behind this head node that answer";
        writer.gauge("penstock_gateway_head_agents", None, help, head.available() as u64)?;
        let (redirected, without_room) = head.counts();
        let help = "Requests redirected to agents";
        writer.counter("penstock_gateway_head_redirected", None, help, redirected)?;
        let help = "Requests for which no agent had room";
        writer.counter("penstock_gateway_head_without_room", None, help, without_room)
    }

    fn reload(&self) -> Result<(), RoleReloadError> {
        let Some(certificate) = &self.certificate else { return Ok(()) };
        let renewed = certificate.renew();
        if renewed.map_err(|error| format!("the gateway keeps its certificate: {error}"))? {
            tracing::info!("SIGHUP: the gateway has a renewed certificate");
        }
        Ok(())
    }

    fn stop(&self) {
        let _ = self.stop.send(true);
    }

    fn shut_down(&self) {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(serving) = serving {
            let _ = self.runtime.block_on(serving);
        }
    }
}
