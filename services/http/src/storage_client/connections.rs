//! Idle connections to storages, and the certificates that they trust.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::{ClientConnection, HeaderCase, ServerTrust, ServerTrustError, Url};

/// Most idle connections to one storage.
const IDLE_PER_STORAGE_MAX: usize = 16;

/// Most idle connections.
const IDLE_MAX: usize = 256;

/// Age at which an idle connection is closed; common servers close it after 5 s (Apache) or later.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Age at which the files of authorities are read again.
const TRUST_AGE_MAX: Duration = Duration::from_secs(300);

/// Names of headers that XRootD 5 knows in this case only.
const HEADER_NAMES: [&str; 3] =
    ["TransferHeaderAuthorization", "RequireChecksumVerification", "SciTag"];

#[derive(Debug)]
struct IdleConnection {
    connection: ClientConnection,
    since: Instant,
}

#[derive(Debug, Default)]
struct IdleConnections {
    /// Connections by scheme, host and port, the last used one last.
    by_storage: HashMap<(bool, String, u16), Vec<IdleConnection>>,
    /// True while a task closes those that are too old.
    is_swept: bool,
}

impl IdleConnections {
    fn close_old(&mut self) {
        self.by_storage.retain(|_, all| {
            all.retain(|one| one.since.elapsed() < IDLE_TIMEOUT && !one.connection.is_closed());
            !all.is_empty()
        });
    }
}

/// Connections to storages that trust the same authorities. TLS sessions are resumed.
#[derive(Debug)]
pub struct StorageConnections {
    authorities: ServerTrust,
    loaded: tokio::sync::Mutex<Option<(Instant, ServerTrust)>>,
    idle: Mutex<IdleConnections>,
    pub(super) header_case: HeaderCase,
}

fn storage(url: &Url) -> (bool, String, u16) {
    let (host, port) = url.host_and_port();
    (url.is_encrypted(), host.to_ascii_lowercase(), port)
}

impl StorageConnections {
    /// Creates a set without connections. Certificates are read on first use and every five minutes.
    pub async fn new(authorities: ServerTrust) -> Arc<Self> {
        let header_case = HeaderCase::of(&HEADER_NAMES).await;
        let (loaded, idle) = (tokio::sync::Mutex::default(), Mutex::default());
        Arc::new(Self { authorities, loaded, idle, header_case })
    }

    /// Returns the certificates that connections trust. Once they are read again, no older connection is used.
    ///
    /// # Errors
    /// When they cannot be loaded.
    pub async fn trust(&self) -> Result<ServerTrust, ServerTrustError> {
        let mut loaded = self.loaded.lock().await;
        if let Some((since, trust)) = &*loaded
            && since.elapsed() < TRUST_AGE_MAX
        {
            return Ok(trust.clone());
        }
        let authorities = self.authorities.clone();
        let read = tokio::task::spawn_blocking(move || authorities.load()).await;
        let trust = read.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        self.lock().by_storage.clear();
        *loaded = Some((Instant::now(), trust.clone()));
        Ok(trust)
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the idle connection to a storage that was used last.
    pub(super) fn take(&self, url: &Url) -> Option<ClientConnection> {
        let mut idle = self.lock();
        idle.close_old();
        idle.by_storage.get_mut(&storage(url))?.pop().map(|one| one.connection)
    }

    /// Keeps a connection whose last response was read to its end, or closes it where there are too many.
    pub(super) fn keep(self: &Arc<Self>, url: &Url, connection: ClientConnection) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut idle = self.lock();
        idle.close_old();
        let is_full = idle.by_storage.values().map(Vec::len).sum::<usize>() >= IDLE_MAX;
        let of_storage = idle.by_storage.entry(storage(url)).or_default();
        if !is_full && of_storage.len() < IDLE_PER_STORAGE_MAX && !connection.is_closed() {
            of_storage.push(IdleConnection { connection, since: Instant::now() });
        }
        if !std::mem::replace(&mut idle.is_swept, true) {
            let this = Arc::downgrade(self);
            runtime.spawn(async move {
                loop {
                    tokio::time::sleep(IDLE_TIMEOUT).await;
                    let Some(this) = this.upgrade() else { return };
                    let mut idle = this.lock();
                    idle.close_old();
                    if idle.by_storage.is_empty() {
                        idle.is_swept = false;
                        return;
                    }
                }
            });
        }
    }
}
