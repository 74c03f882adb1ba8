//! A submitted transfer as the state directory keeps it: one file each, mode 0600, as it holds the token of the other
//! agent until the transfer has ended.

use std::fs;
use std::io;

use penstock_daemon::state::{StateDir, StateError};
use penstock_http::tokens::{hex, unhex};
use penstock_mover::Caller;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::TransferBody;
use super::state::TransferStatus;
use crate::authorizer::Authorizer;
use crate::http::api::TransferFacts;

/// Subdirectory of the state directory.
const DIRECTORY: &str = "submitted";

/// End of the names of its files.
const SUFFIX: &str = ".json";

/// A file that was not copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailedFile {
    /// Path of the file below the source.
    pub path: String,
    /// Reason of the failure.
    pub error: String,
}

/// A submitted transfer as its file has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TransferRecord {
    pub(super) id: u64,
    /// Name of the client.
    pub(super) caller: String,
    /// SHA-256 of the client's token, hexadecimal.
    pub(super) token_sha256: Option<String>,
    /// Set for a client whose rights are those of its name, so that they hold after a restart.
    pub(super) is_resumable: bool,
    /// Set where the client was on this host, and could connect to the other agent by itself.
    pub(super) from_here: bool,
    pub(super) body: TransferBody,
    /// SHA-256 of the body as submitted, hexadecimal.
    pub(super) body_sha256: String,
    /// Bytes of the files, as far as they are known.
    #[serde(default)]
    pub(super) size_bytes: u64,
    pub(super) submitted_unix_seconds: f64,
    pub(super) state: TransferStatus,
    pub(super) attempts: u32,
    pub(super) ended_unix_seconds: Option<f64>,
    pub(super) error: Option<String>,
    pub(super) failures: Vec<FailedFile>,
    /// Counters at the end.
    pub(super) last: Option<TransferFacts>,
}

impl TransferRecord {
    /// The client after a restart; `None` where its token is not valid any more, or its rights were those of claims.
    pub(super) fn caller(&self, authorizer: &Authorizer) -> Option<Caller> {
        let token = self.token_sha256.as_deref().and_then(unhex)?;
        let found = authorizer.caller_of_hash(&token).filter(|found| found.name == self.caller);
        found.filter(|_| self.is_resumable)
    }

    pub(super) fn token_of(caller: &Caller) -> Option<String> {
        caller.token.as_ref().map(|sha256| hex(sha256))
    }
}

/// Directory with the records.
#[derive(Debug)]
pub(super) struct RecordStore(StateDir);

impl RecordStore {
    /// Opens the directory and reads the records; unreadable ones are logged and left in place.
    pub(super) fn open(state: &StateDir) -> Result<(Self, Vec<TransferRecord>), StateError> {
        let directory = StateDir::open(&state.path().join(DIRECTORY))?;
        let mut records = Vec::new();
        let names = fs::read_dir(directory.path()).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        for name in names.filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.')) {
            let text = directory.read_secret(&name)?.unwrap_or_default();
            match serde_json::from_str::<TransferRecord>(&text) {
                Ok(record) => records.push(record),
                Err(error) => {
                    let path = directory.path().join(&name);
                    tracing::warn!("{}: {error}: its transfer is not resumed", path.display());
                }
            }
        }
        records.sort_by_key(|record| record.id);
        Ok((Self(directory), records))
    }

    pub(super) fn write(&self, record: &TransferRecord) -> Result<(), StateError> {
        let text = serde_json::to_vec(record).expect("plain data");
        self.0.write(&format!("{}{SUFFIX}", record.id), &text, 0o600)
    }

    pub(super) fn remove(&self, id: u64) {
        match fs::remove_file(self.0.path().join(format!("{id}{SUFFIX}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("the record of transfer {id} stays: {error}");
            }
            _ => {}
        }
    }
}
