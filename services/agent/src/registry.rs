//! The site's copy of the scitags registry and its renewal.
//!
//! The copy is the file [`FILE`] in the state directory: the published document with its source and time.
//! Without a valid copy the built-in registry is active. A new document is checked before it replaces the copy
//! atomically; on any error the last valid one stays active. Renewal blocks neither transfers nor tags.
//!
//! Not for: the format, which `penstock-scitags` defines.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penstock_scitags::Registry;
use penstock_scitags::registry::{PUBLISHED_AT, REGISTRY_BYTES_MAX, RegistryError};
use penstock_scitags::time::UtcTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use penstock_daemon::state::{StateDir, StateError};
use penstock_http::fetch::{self, FetchOutcome};
use penstock_http::{HttpError, Url};

/// File name of the copy in the state directory.
pub const FILE: &str = "scitags.json";

/// Time between renewals of an agent, with up to an hour of jitter, so that sites do not renew in step.
const RENEW_INTERVAL: Duration = Duration::from_secs(24 * 3600);
const RENEW_JITTER_MAX: Duration = Duration::from_secs(3600);

/// Time before a retry of a failed renewal.
const RETRY_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Bound on the metadata around the document in [`FILE`].
const METADATA_BYTES_MAX: usize = 64 << 10;

/// The active registry with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveRegistry {
    /// Owners and activities by number.
    pub registry: Registry,
    /// URL or path of the source.
    pub source: String,
    /// Time of the last comparison with the source; `None` for the built-in registry.
    pub checked: Option<UtcTime>,
    etag: Option<String>,
}

/// Result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The registry that is active from now on.
    pub current: ActiveRegistry,
    /// True if owners, activities or the date differ from those before.
    pub changed: bool,
    /// A message for each entry that cannot be used.
    pub left_out: Vec<String>,
}

/// A failed update; the last valid registry stays active.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The file cannot be read.
    #[error("{}: {}", path.display(), penstock_sys::fs::describe(source))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// This process cannot start a download.
    #[error("cannot start a download: {0}")]
    Runtime(#[source] std::io::Error),
    /// The download failed.
    #[error(
        "{url}: {source}; the registry stays as it is: retry later, or download it and give the file"
    )]
    Fetch {
        /// URL of the source.
        url: String,
        /// Error of the download.
        source: HttpError,
    },
    /// The document is no registry.
    #[error("{source_name}: {error}; the registry stays as it is")]
    Registry {
        /// Path or URL of the source.
        source_name: String,
        /// Error in the document.
        error: RegistryError,
    },
    /// The copy cannot be stored.
    #[error(transparent)]
    StateDir(#[from] StateError),
}

#[derive(Serialize, Deserialize)]
struct StoredRegistry {
    source: String,
    checked: String,
    etag: Option<String>,
    registry: Value,
}

impl ActiveRegistry {
    /// The built-in registry.
    #[must_use]
    pub fn builtin() -> Self {
        let registry = Registry::builtin().clone();
        Self { registry, source: PUBLISHED_AT.to_owned(), checked: None, etag: None }
    }

    /// Returns true for the built-in registry.
    #[must_use]
    pub fn is_builtin(&self) -> bool {
        self.checked.is_none()
    }

    /// Loads the active registry from the state directory, which need not exist, with a warning where the copy
    /// there is invalid.
    #[must_use]
    pub fn load(directory: &Path) -> (Self, Option<String>) {
        match read_copy(&directory.join(FILE)) {
            Ok(Some(current)) => (current, None),
            Ok(None) => (Self::builtin(), None),
            Err(why) => {
                let path = directory.join(FILE);
                let line = format!(
                    "{}: {why}; the built-in registry is used: renew it with penstock tag registry update {PUBLISHED_AT}",
                    path.display()
                );
                (Self::builtin(), Some(line))
            }
        }
    }
}

/// A copy of the registry that cannot be used.
#[derive(Debug, thiserror::Error)]
enum RegistryCopyError {
    #[error("{}", penstock_sys::fs::describe(.0))]
    Unreadable(io::Error),
    #[error("is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn read_copy(path: &Path) -> Result<Option<ActiveRegistry>, RegistryCopyError> {
    let limit = REGISTRY_BYTES_MAX + METADATA_BYTES_MAX;
    let bytes = match read_at_most(path, limit) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(RegistryCopyError::Unreadable(error));
        }
    };
    let damaged = |error: &dyn Display| RegistryCopyError::Damaged(error.to_string());
    let stored: StoredRegistry = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
    let json = serde_json::to_vec(&stored.registry).map_err(|error| damaged(&error))?;
    let registry = Registry::read(&json)?.registry;
    let checked = stored.checked.parse::<UtcTime>().map_err(|error| damaged(&error))?;
    Ok(Some(ActiveRegistry {
        registry,
        source: stored.source,
        checked: Some(checked),
        etag: stored.etag,
    }))
}

/// Reads at most one byte more than `limit`, so that excess is noticed.
fn read_at_most(path: &Path, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the registry by the file at `path`.
///
/// # Errors
/// When the file cannot be read, is no registry or cannot be stored.
pub fn update_from_file(state: &StateDir, path: &Path) -> Result<Update, UpdateError> {
    let name = path.display().to_string();
    let bytes = read_at_most(path, REGISTRY_BYTES_MAX)
        .map_err(|source| UpdateError::File { path: path.to_owned(), source })?;
    store(state, &name, &bytes, None)
}

/// Replaces the registry by the document at `url`, unless it is unchanged. Blocks for at most
/// [`fetch::FETCH_TIMEOUT`].
///
/// # Errors
/// When the download fails, the document is no registry or cannot be stored.
pub fn update_from_url(state: &StateDir, url: &Url) -> Result<Update, UpdateError> {
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(UpdateError::Runtime)?;
    let updated = runtime.block_on(renew(state, url));
    // A pending name lookup must not delay the return.
    runtime.shutdown_background();
    updated
}

async fn renew(state: &StateDir, url: &Url) -> Result<Update, UpdateError> {
    let (before, _) = ActiveRegistry::load(state.path());
    let source = url.to_string();
    let etag = before.etag.as_deref().filter(|_| before.source == source);
    match fetch::fetch(url, etag, REGISTRY_BYTES_MAX).await {
        Err(error) => Err(UpdateError::Fetch { url: source, source: error }),
        Ok(FetchOutcome::Modified { body, etag }) => {
            let state = state.clone();
            let stored = spawn_blocking(move || store(&state, &source, &body, etag)).await;
            stored.expect("storing does not panic")
        }
        Ok(FetchOutcome::NotModified) => {
            let state = state.clone();
            let noted = spawn_blocking(move || record_check(&state)).await;
            let current = noted.expect("recording does not panic")?;
            Ok(Update { current, changed: false, left_out: Vec::new() })
        }
    }
}

fn store(
    state: &StateDir,
    source: &str,
    json: &[u8],
    etag: Option<String>,
) -> Result<Update, UpdateError> {
    let wrong = |error| UpdateError::Registry { source_name: source.to_owned(), error };
    let reading = Registry::read(json).map_err(wrong)?;
    let document = serde_json::from_slice(json)
        .map_err(|error| wrong(RegistryError::Json(error.to_string())))?;
    let checked = now();
    let etag = etag.filter(|etag| etag.len() <= 1024);
    let stored = StoredRegistry {
        source: source.to_owned(),
        checked: checked.to_string(),
        etag: etag.clone(),
        registry: document,
    };
    let _lock = state.lock()?;
    let (before, _) = ActiveRegistry::load(state.path());
    write(state, &stored)?;
    let changed = before.registry != reading.registry;
    let source = stored.source;
    let current =
        ActiveRegistry { registry: reading.registry, source, checked: Some(checked), etag };
    Ok(Update { current, changed, left_out: reading.left_out })
}

/// Records that the copy equals its source.
fn record_check(state: &StateDir) -> Result<ActiveRegistry, UpdateError> {
    let _lock = state.lock()?;
    let text = state.read(FILE)?;
    let stored = text.and_then(|text| serde_json::from_str::<StoredRegistry>(&text).ok());
    if let Some(mut stored) = stored {
        stored.checked = now().to_string();
        write(state, &stored)?;
    }
    Ok(ActiveRegistry::load(state.path()).0)
}

fn write(state: &StateDir, stored: &StoredRegistry) -> Result<(), StateError> {
    let text = serde_json::to_vec(stored).expect("plain data");
    state.write(FILE, &text, 0o644)
}

/// The present time of the system clock.
fn now() -> UtcTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UtcTime::new(since.as_secs(), since.subsec_micros())
}

/// Renews the copy from `url` daily while the agent runs.
pub(crate) async fn run_renewal(state: StateDir, url: Url) {
    let mut failing = false;
    loop {
        let pause = match renew(&state, &url).await {
            Ok(update) => {
                failing = false;
                if update.changed {
                    let owners = update.current.registry.owners().len();
                    tracing::info!("scitags registry renewed from {url}: {owners} owners");
                }
                for line in update.left_out {
                    tracing::warn!("scitags registry: left out {line}");
                }
                RENEW_INTERVAL + RENEW_JITTER_MAX.mul_f64(random_fraction())
            }
            Err(error) => {
                // Logged once per series of failures.
                if !failing {
                    tracing::warn!("scitags registry not renewed: {error}");
                }
                failing = true;
                RETRY_INTERVAL
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn random_fraction() -> f64 {
    let mut byte = [0];
    aws_lc_rs::rand::fill(&mut byte).expect("the system's random generator works");
    f64::from(byte[0]) / 256.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"version": 1, "modified": "2026-01-02T03:04:05+00:00", "experiments":
        [{"expName": "ours", "expId": 77, "activities": [{"activityName": "Bulk", "activityId": 3}]}]}"#;

    fn state() -> (tempfile::TempDir, StateDir) {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(&directory.path().join("state")).unwrap();
        (directory, state)
    }

    #[test]
    fn file_replaces_builtin_registry() {
        let (directory, state) = state();
        let (before, line) = ActiveRegistry::load(state.path());
        assert!(before.is_builtin() && line.is_none());
        let file = directory.path().join("api.json");
        std::fs::write(&file, SMALL).unwrap();
        let update = update_from_file(&state, &file).unwrap();
        assert!(update.changed && !update.current.is_builtin());
        let (current, line) = ActiveRegistry::load(state.path());
        assert_eq!((current.clone(), line), (update.current, None));
        assert_eq!(current.source, file.display().to_string());
        assert_eq!(current.registry.find("ours/bulk").unwrap().number(), 77 << 6 | 3);
        assert!(!update_from_file(&state, &file).unwrap().changed);
    }

    #[test]
    fn last_valid_registry_stays() {
        let (directory, state) = state();
        let file = directory.path().join("api.json");
        std::fs::write(&file, SMALL).unwrap();
        let stored = update_from_file(&state, &file).unwrap().current;
        for bad in ["", "{}", "<html>", r#"{"version": 1, "experiments": []}"#] {
            std::fs::write(&file, bad).unwrap();
            let error = update_from_file(&state, &file).unwrap_err().to_string();
            assert!(error.contains("stays as it is"), "{error}");
            assert_eq!(ActiveRegistry::load(state.path()).0, stored);
        }
        std::fs::write(&file, vec![b' '; REGISTRY_BYTES_MAX + 10]).unwrap();
        assert!(update_from_file(&state, &file).unwrap_err().to_string().contains("at most"));
        let gone = update_from_file(&state, &directory.path().join("gone")).unwrap_err();
        assert!(matches!(gone, UpdateError::File { .. }), "{gone}");
        assert_eq!(ActiveRegistry::load(state.path()).0, stored);
    }

    #[test]
    fn damaged_copy_falls_back_to_builtin() {
        let (_directory, state) = state();
        for text in ["", "{", r#"{"source": "x", "checked": "y", "etag": null, "registry": {}}"#] {
            state.write(FILE, text.as_bytes(), 0o644).unwrap();
            let (current, line) = ActiveRegistry::load(state.path());
            assert!(current.is_builtin());
            let line = line.unwrap();
            assert!(line.contains("scitags.json") && line.contains("registry update"), "{line}");
        }
    }
}
