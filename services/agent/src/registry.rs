//! The site's copy of the scitags registry: which one counts, and how it is renewed.
//!
//! The copy is the file [`FILE`] in the state directory: the published document with where it came from
//! and when. Without it, or when it cannot be read, the registry that is compiled in counts. A new one
//! is checked before it takes the place of the old one at a stroke; whatever goes wrong, the last good
//! one stays. Nothing waits for it: transfers and tags go on with the registry that is there.
//!
//! Not for: the format, which is `penstock-scitags`'.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

use penstock_scitags::Registry;
use penstock_scitags::registry::{PUBLISHED_AT, REGISTRY_BYTES_MAX, RegistryError};
use penstock_scitags::time::UtcTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use crate::state::{State, StateError};
use penstock_http::fetch::{self, FetchOutcome, Url};

/// The copy in the state directory.
pub const FILE: &str = "scitags.json";

/// Between two looks of an agent at the published registry; up to an hour more, so that sites do not
/// come all at once.
const EVERY: Duration = Duration::from_secs(24 * 3600);
const EVERY_MORE: Duration = Duration::from_secs(3600);

/// After a look that failed.
const AGAIN: Duration = Duration::from_secs(15 * 60);

/// What surrounds the document in [`FILE`].
const WRAPPING_BYTES_MAX: usize = 64 << 10;

/// A registry and where it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// The registry.
    pub registry: Registry,
    /// Address or file it was taken from.
    pub source: String,
    /// When it was last compared with its source; `None` for the one that is compiled in.
    pub checked: Option<UtcTime>,
    etag: Option<String>,
}

/// What an update did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// What counts from now on.
    pub current: Current,
    /// Whether it has other owners, activities or another date than what counted before.
    pub changed: bool,
    /// A line for each entry of it that cannot be used.
    pub left_out: Vec<String>,
}

/// Why the registry is not renewed. The last good one stays.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The file cannot be read.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// The address does not give it.
    #[error(
        "{url}: {why}; the registry stays as it is: try it later, or download it and give the file"
    )]
    Fetch {
        /// The address.
        url: String,
        /// Why.
        why: String,
    },
    /// It is no registry.
    #[error("{source_name}: {error}; the registry stays as it is")]
    Registry {
        /// Where it is from.
        source_name: String,
        /// What is wrong with it.
        error: RegistryError,
    },
    /// It cannot be kept.
    #[error(transparent)]
    State(#[from] StateError),
}

#[derive(Serialize, Deserialize)]
struct Kept {
    source: String,
    checked: String,
    etag: Option<String>,
    registry: Value,
}

impl Current {
    /// The one that is compiled in.
    #[must_use]
    pub fn builtin() -> Self {
        let registry = Registry::builtin().clone();
        Self { registry, source: PUBLISHED_AT.to_owned(), checked: None, etag: None }
    }

    /// Whether it is the one that is compiled in.
    #[must_use]
    pub fn is_builtin(&self) -> bool {
        self.checked.is_none()
    }

    /// The registry that counts by the state directory `directory`, which need not exist; and a line for
    /// the operator where the copy there cannot be used.
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

fn read_copy(path: &Path) -> Result<Option<Current>, String> {
    let limit = REGISTRY_BYTES_MAX + WRAPPING_BYTES_MAX;
    let bytes = match read_at_most(path, limit) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(penstock_sys::fs::describe(&error)),
    };
    let kept: Kept =
        serde_json::from_slice(&bytes).map_err(|error| format!("is damaged: {error}"))?;
    let json = serde_json::to_vec(&kept.registry).map_err(|error| error.to_string())?;
    let registry = Registry::read(&json).map_err(|error| error.to_string())?.registry;
    let checked = kept.checked.parse().map_err(|error| format!("is damaged: {error}"))?;
    Ok(Some(Current { registry, source: kept.source, checked: Some(checked), etag: kept.etag }))
}

/// At most one byte more than `limit`, so that what is too long shows.
fn read_at_most(path: &Path, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Takes the registry from the file at `path`.
///
/// # Errors
/// When the file cannot be read, is no registry or cannot be kept.
pub fn update_from_file(state: &State, path: &Path) -> Result<Update, UpdateError> {
    let name = path.display().to_string();
    let bytes = read_at_most(path, REGISTRY_BYTES_MAX).map_err(|error| UpdateError::File {
        path: name.clone(),
        why: penstock_sys::fs::describe(&error),
    })?;
    keep(state, &name, &bytes, None)
}

/// Takes the registry from `url`, if it is another than the copy that came from there. Waits for the
/// answer, at most [`fetch::FETCH_TIMEOUT`].
///
/// # Errors
/// When it cannot be had, is no registry or cannot be kept.
pub fn update_from_url(state: &State, url: &Url) -> Result<Update, UpdateError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| UpdateError::Fetch { url: url.to_string(), why: error.to_string() })?;
    let updated = runtime.block_on(renew(state, url));
    // A name that is still being looked up must not hold up the end.
    runtime.shutdown_background();
    updated
}

async fn renew(state: &State, url: &Url) -> Result<Update, UpdateError> {
    let (before, _) = Current::load(state.path());
    let source = url.to_string();
    let etag = before.etag.as_deref().filter(|_| before.source == source);
    match fetch::fetch(url, etag, REGISTRY_BYTES_MAX).await {
        Err(why) => Err(UpdateError::Fetch { url: source, why }),
        Ok(FetchOutcome::Modified { body, etag }) => {
            let state = state.clone();
            let kept = spawn_blocking(move || keep(&state, &source, &body, etag)).await;
            kept.expect("keeping does not panic")
        }
        Ok(FetchOutcome::NotModified) => {
            let state = state.clone();
            let noted = spawn_blocking(move || note_checked(&state)).await;
            let current = noted.expect("noting does not panic")?;
            Ok(Update { current, changed: false, left_out: Vec::new() })
        }
    }
}

fn keep(
    state: &State,
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
    let kept = Kept {
        source: source.to_owned(),
        checked: checked.to_string(),
        etag: etag.clone(),
        registry: document,
    };
    let _lock = state.lock()?;
    let (before, _) = Current::load(state.path());
    write(state, &kept)?;
    let changed = before.registry != reading.registry;
    let source = kept.source;
    let current = Current { registry: reading.registry, source, checked: Some(checked), etag };
    Ok(Update { current, changed, left_out: reading.left_out })
}

/// Notes that the copy is still what its source has.
fn note_checked(state: &State) -> Result<Current, UpdateError> {
    let _lock = state.lock()?;
    let text = state.read(FILE)?;
    let kept = text.and_then(|text| serde_json::from_str::<Kept>(&text).ok());
    if let Some(mut kept) = kept {
        kept.checked = now().to_string();
        write(state, &kept)?;
    }
    Ok(Current::load(state.path()).0)
}

fn write(state: &State, kept: &Kept) -> Result<(), StateError> {
    let text = serde_json::to_vec(kept).expect("plain data");
    state.write(FILE, &text, 0o644)
}

/// This moment, by the system's clock.
fn now() -> UtcTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UtcTime::new(since.as_secs(), since.subsec_micros())
}

/// Renews the copy from `url` once a day, for as long as the agent runs.
pub(crate) async fn keep_fresh(state: State, url: Url) {
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
                EVERY + EVERY_MORE.mul_f64(random_fraction())
            }
            Err(error) => {
                // Once for a series of failures; the last good registry counts meanwhile.
                if !failing {
                    tracing::warn!("scitags registry not renewed: {error}");
                }
                failing = true;
                AGAIN
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

    fn state() -> (tempfile::TempDir, State) {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(&directory.path().join("state")).unwrap();
        (directory, state)
    }

    #[test]
    fn a_file_replaces_the_built_in_registry() {
        let (directory, state) = state();
        let (before, line) = Current::load(state.path());
        assert!(before.is_builtin() && line.is_none());
        let file = directory.path().join("api.json");
        std::fs::write(&file, SMALL).unwrap();
        let update = update_from_file(&state, &file).unwrap();
        assert!(update.changed && !update.current.is_builtin());
        let (current, line) = Current::load(state.path());
        assert_eq!((current.clone(), line), (update.current, None));
        assert_eq!(current.source, file.display().to_string());
        assert_eq!(current.registry.find("ours/bulk").unwrap().number(), 77 << 6 | 3);
        assert!(!update_from_file(&state, &file).unwrap().changed);
    }

    #[test]
    fn the_last_good_one_stays() {
        let (directory, state) = state();
        let file = directory.path().join("api.json");
        std::fs::write(&file, SMALL).unwrap();
        let kept = update_from_file(&state, &file).unwrap().current;
        for bad in ["", "{}", "<html>", r#"{"version": 1, "experiments": []}"#] {
            std::fs::write(&file, bad).unwrap();
            let error = update_from_file(&state, &file).unwrap_err().to_string();
            assert!(error.contains("stays as it is"), "{error}");
            assert_eq!(Current::load(state.path()).0, kept);
        }
        std::fs::write(&file, vec![b' '; REGISTRY_BYTES_MAX + 10]).unwrap();
        assert!(update_from_file(&state, &file).unwrap_err().to_string().contains("at most"));
        let gone = update_from_file(&state, &directory.path().join("gone")).unwrap_err();
        assert!(matches!(gone, UpdateError::File { .. }), "{gone}");
        assert_eq!(Current::load(state.path()).0, kept);
    }

    #[test]
    fn a_damaged_copy_is_told_and_not_used() {
        let (_directory, state) = state();
        for text in ["", "{", r#"{"source": "x", "checked": "y", "etag": null, "registry": {}}"#] {
            state.write(FILE, text.as_bytes(), 0o644).unwrap();
            let (current, line) = Current::load(state.path());
            assert!(current.is_builtin());
            let line = line.unwrap();
            assert!(line.contains("scitags.json") && line.contains("registry update"), "{line}");
        }
    }
}
