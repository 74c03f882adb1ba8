//! Keys of one issuer in memory.
//!
//! A known key is returned at once. Keys that age are fetched again in the background, and stay in use for a bounded
//! time while the issuer cannot be reached. An unknown key identifier makes its caller wait for a fetch, at most one per
//! interval, so that tokens with invented identifiers load neither the issuer nor this agent. A file in place of the
//! issuer is read when it changes.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_sys::fs::open_regular;
use tokio::runtime::Handle;

use crate::fetch::{KeyFetchError, fetch_keys};
use crate::keys::{JWKS_BYTES_MAX, KeySet, KeySetError, SignatureAlgorithm};
use crate::rejection::TokenRejection;

/// Callers that wait for a fetch at once; further ones are refused.
const WAITING_CALLERS_MAX: usize = 32;

/// Times of a cache.
#[derive(Debug, Clone, Copy)]
pub struct KeyCacheTimes {
    /// Age at which keys are fetched again.
    pub refresh: Duration,
    /// Age up to which keys are used while the issuer cannot be reached.
    pub usable: Duration,
    /// Shortest time from one fetch to the next.
    pub interval: Duration,
    /// Shortest time from a failed fetch to the next.
    pub retry: Duration,
    /// Time limit of a fetch, and of a caller that waits for it.
    pub fetch: Duration,
}

impl Default for KeyCacheTimes {
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(3600),
            usable: Duration::from_secs(24 * 3600),
            interval: Duration::from_secs(60),
            retry: Duration::from_secs(10),
            fetch: Duration::from_secs(10),
        }
    }
}

/// A key that is not available.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KeyLookupError {
    /// The issuer has no such key.
    #[error(transparent)]
    Rejected(#[from] TokenRejection),
    /// The issuer cannot be reached, and there are no recent keys.
    #[error("the keys of its issuer cannot be fetched ({0}): try again later")]
    Unreachable(Arc<KeyFetchError>),
    /// Too many callers wait for a fetch.
    #[error("the keys of its issuer are being fetched: try again in a moment")]
    Busy,
}

/// A file of keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("{}: {}", file.display(), penstock_sys::fs::describe(error))]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is no usable set of keys.
    #[error("{}: {error}", file.display())]
    Keys {
        /// Path of the file.
        file: PathBuf,
        /// Fault of its content.
        error: KeySetError,
    },
}

/// Source of an issuer's keys.
#[derive(Debug)]
enum KeySource {
    Issuer { url: String, authorities: Option<PathBuf>, runtime: Handle },
    File(PathBuf),
}

#[derive(Debug, Default)]
struct CacheState {
    keys: Option<Arc<KeySet>>,
    fetched: Option<Instant>,
    attempted: Option<Instant>,
    failure: Option<Arc<KeyFetchError>>,
    is_fetching: bool,
    waiting: usize,
    version: Option<FileVersion>,
}

/// Identity and version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion(u64, u64, i64, i64);

#[derive(Debug)]
struct CacheInner {
    source: KeySource,
    times: KeyCacheTimes,
    state: Mutex<CacheState>,
    fetched: Condvar,
}

/// Keys of one issuer, with the means to renew them.
#[derive(Debug, Clone)]
pub struct KeyCache(Arc<CacheInner>);

impl KeyCache {
    /// Creates an empty cache of the keys of the issuer at `url`, whose TLS certificate must come from `authorities` (a
    /// PEM file or a directory) or those of the system.
    #[must_use]
    pub fn of_issuer(
        url: String,
        authorities: Option<PathBuf>,
        runtime: Handle,
        times: KeyCacheTimes,
    ) -> Self {
        Self::new(KeySource::Issuer { url, authorities, runtime }, times, CacheState::default())
    }

    /// Reads the keys of a file, which replaces the issuer.
    ///
    /// # Errors
    /// When the file has no usable keys.
    pub fn of_file(file: PathBuf) -> Result<Self, KeyFileError> {
        let (version, keys) = read_file(&file)?;
        let keys = Some(Arc::new(keys));
        let state = CacheState { keys, version: Some(version), ..CacheState::default() };
        Ok(Self::new(KeySource::File(file), KeyCacheTimes::default(), state))
    }

    fn new(source: KeySource, times: KeyCacheTimes, state: CacheState) -> Self {
        let (state, fetched) = (Mutex::new(state), Condvar::new());
        Self(Arc::new(CacheInner { source, times, state, fetched }))
    }

    /// Returns the keys, which have one of this identifier. Blocks for at most [`KeyCacheTimes::fetch`] where the key is
    /// not known.
    ///
    /// # Errors
    /// When the issuer has no such key, or its keys are not available.
    pub fn find(
        &self,
        id: Option<&str>,
        algorithm: SignatureAlgorithm,
    ) -> Result<Arc<KeySet>, KeyLookupError> {
        let (url, authorities, runtime) = match &self.0.source {
            KeySource::File(file) => return self.find_in_file(file, id, algorithm),
            KeySource::Issuer { url, authorities, runtime } => (url, authorities, runtime),
        };
        let deadline = Instant::now() + self.0.times.fetch;
        let mut state = self.0.lock();
        let mut has_waited = false;
        loop {
            let now = Instant::now();
            let found = self.0.usable_keys(&state, now).map(|keys| {
                let found = keys.find(id, algorithm).map(drop);
                (keys, found)
            });
            let unknown = match found {
                Some((keys, Ok(()))) => {
                    if self.0.is_due(&state, now) {
                        self.start(&mut state, url, authorities, runtime);
                    }
                    return Ok(keys);
                }
                Some((_, Err(rejection @ TokenRejection::UnknownKey(_)))) => Some(rejection),
                Some((_, Err(rejection))) => return Err(rejection.into()),
                None => None,
            };
            if state.is_fetching {
                if state.waiting >= WAITING_CALLERS_MAX {
                    return Err(KeyLookupError::Busy);
                }
                let left = deadline.saturating_duration_since(now);
                if left.is_zero() {
                    return Err(KeyLookupError::Unreachable(Arc::new(KeyFetchError::Late)));
                }
                state.waiting += 1;
                let waited = self.0.fetched.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.waiting -= 1;
                has_waited = true;
            } else if !has_waited && self.0.may_fetch(&state, now) {
                self.start(&mut state, url, authorities, runtime);
            } else {
                return Err(match (unknown, &state.failure) {
                    (Some(rejection), None) => rejection.into(),
                    (_, Some(failure)) => KeyLookupError::Unreachable(Arc::clone(failure)),
                    (None, None) => KeyLookupError::Busy,
                });
            }
        }
    }

    fn start(
        &self,
        state: &mut CacheState,
        url: &str,
        authorities: &Option<PathBuf>,
        runtime: &Handle,
    ) {
        state.is_fetching = true;
        state.attempted = Some(Instant::now());
        let (cache, url, authorities) = (self.clone(), url.to_owned(), authorities.clone());
        let limit = self.0.times.fetch;
        runtime.spawn(async move {
            // A task that is cancelled or panics must not block later fetches.
            let mut pending = PendingFetch { cache, result: None };
            pending.result = Some(fetch_keys(&url, authorities, limit).await);
        });
    }

    fn find_in_file(
        &self,
        file: &Path,
        id: Option<&str>,
        algorithm: SignatureAlgorithm,
    ) -> Result<Arc<KeySet>, KeyLookupError> {
        let mut state = self.0.lock();
        let version = fs::metadata(file).ok().as_ref().map(FileVersion::of);
        if version != state.version {
            match read_file(file) {
                Ok((version, keys)) => {
                    state.keys = Some(Arc::new(keys));
                    state.version = Some(version);
                }
                Err(error) => {
                    tracing::error!("{error}; the keys that were read before stay in use");
                    state.version = version;
                }
            }
        }
        let keys = state.keys.clone().ok_or(KeyLookupError::Busy)?;
        keys.find(id, algorithm)?;
        Ok(keys)
    }
}

impl CacheInner {
    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usable_keys(&self, state: &CacheState, now: Instant) -> Option<Arc<KeySet>> {
        let age = now.saturating_duration_since(state.fetched?);
        state.keys.clone().filter(|_| age < self.times.usable)
    }

    /// True if the keys are old enough for a new fetch.
    fn is_due(&self, state: &CacheState, now: Instant) -> bool {
        let is_old = state.fetched.is_none_or(|at| now - at >= self.times.refresh);
        is_old && !state.is_fetching && self.may_fetch(state, now)
    }

    fn may_fetch(&self, state: &CacheState, now: Instant) -> bool {
        let pause = match state.failure {
            Some(_) => self.times.retry,
            None => self.times.interval,
        };
        state.attempted.is_none_or(|at| now - at >= pause)
    }
}

/// Reports the end of a fetch when dropped.
struct PendingFetch {
    cache: KeyCache,
    result: Option<Result<KeySet, KeyFetchError>>,
}

impl Drop for PendingFetch {
    fn drop(&mut self) {
        let mut state = self.cache.0.lock();
        state.is_fetching = false;
        match self.result.take() {
            Some(Ok(keys)) => {
                state.keys = Some(Arc::new(keys));
                state.fetched = Some(Instant::now());
                state.failure = None;
            }
            Some(Err(error)) => {
                tracing::warn!("keys of an issuer of tokens cannot be fetched: {error}");
                state.failure = Some(Arc::new(error));
            }
            None => state.failure = Some(Arc::new(KeyFetchError::Interrupted)),
        }
        drop(state);
        self.cache.0.fetched.notify_all();
    }
}

impl FileVersion {
    fn of(facts: &fs::Metadata) -> Self {
        Self(facts.ino(), facts.size(), facts.mtime(), facts.mtime_nsec())
    }
}

fn read_file(file: &Path) -> Result<(FileVersion, KeySet), KeyFileError> {
    let failed = |error| KeyFileError::Read { file: file.to_owned(), error };
    let opened = open_regular(file).map_err(failed)?;
    let version = FileVersion::of(&opened.metadata().map_err(failed)?);
    let mut document = Vec::new();
    opened.take(JWKS_BYTES_MAX as u64 + 1).read_to_end(&mut document).map_err(failed)?;
    let keys = KeySet::parse(&document);
    let keys = keys.map_err(|error| KeyFileError::Keys { file: file.to_owned(), error })?;
    Ok((version, keys))
}
