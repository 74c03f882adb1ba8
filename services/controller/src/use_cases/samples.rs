//! Samples of what clients submit, for tests.

use penstock_control::fts::state::{FtsFileState, FtsJobKind, FtsJobState};
use penstock_control::orders::{Overwrite, Verify};

use super::submit::Submission;
use crate::repository::files::NewFile;
use crate::repository::fts::{FtsJobRow, NewFtsFile};
use crate::repository::requests::TransferPolicy;
use crate::repository::rows::JsonColumn;

/// Pair of storages of [`fts_file`].
pub(crate) const FTS_PAIR: &str = "https://a https://b";

/// One file from CERN to Caltech, to the directory `/to/KEY`.
pub(crate) fn submission(key: &str) -> Submission {
    Submission {
        client: "test".to_owned(),
        peer: String::new(),
        key: Some(key.to_owned()),
        body: key.to_owned(),
        class: "default".to_owned(),
        source: "cern".to_owned(),
        destination: "caltech".to_owned(),
        from: "/from".to_owned(),
        to: format!("/to/{key}"),
        policy: TransferPolicy {
            verify: Verify::Transfer,
            overwrite: Overwrite::Changed,
            encrypt: true,
            attempts: 3,
            scitag: None,
            tune: None,
            transport: None,
        },
        priority: 3,
        deadline: None,
        size_estimate: None,
        files: vec![NewFile { path: "f".to_owned(), size: Some(10), digest: None }],
        directory: false,
        open: false,
    }
}

/// A job of FTS3 of independent files.
pub(crate) fn fts_job(uuid: &str) -> FtsJobRow {
    FtsJobRow {
        id: 0,
        uuid: uuid.to_owned(),
        client: "test".to_owned(),
        class: "default".to_owned(),
        kind: FtsJobKind::Independent,
        state: FtsJobState::Submitted,
        priority: 3,
        verify: "none".to_owned(),
        overwrite: false,
        retry: 0,
        retry_delay_s: 0,
        timeout_s: 0,
        metadata: JsonColumn::default(),
        reason: None,
        submitted: 0,
        expires: None,
        ended: None,
    }
}

/// A file of a job, moved by a request of the controller or copied between its storages.
pub(crate) fn fts_file(by_request: bool) -> NewFtsFile {
    NewFtsFile {
        id: 0,
        job: 0,
        state: FtsFileState::Submitted,
        priority: 3,
        not_before: 0,
        attempt: 0,
        moved: 0,
        source: "https://a/f".to_owned(),
        destination: "https://b/f".to_owned(),
        pair: FTS_PAIR.to_owned(),
        source_token: None,
        destination_token: None,
        checksum: None,
        size: None,
        activity: None,
        class: "default".to_owned(),
        metadata: "null".to_owned(),
        scitag: None,
        by_request,
    }
}
