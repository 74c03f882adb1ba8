//! Quotas of clients whose requests move files of FTS3 jobs.

use penstock_control::fts::state::{FtsFileState, FtsJobKind, FtsJobState};
use penstock_control::orders::{Overwrite, Verify};

use super::*;
use crate::quota::ClientQuota;
use crate::repository::fts::{self, FtsFileRow, FtsJobRow, FtsMover, NewFtsFile};
use crate::repository::requests::TransferPolicy;
use crate::repository::rows::JsonColumn;
use crate::use_cases::cancel;
use crate::use_cases::fts_requests::{self, FtsFileRequest};
use crate::use_cases::submit::{Submission, Submitted};

const PAIR: &str = "https://a https://b";

fn job() -> FtsJobRow {
    FtsJobRow {
        id: 0,
        uuid: "1".to_owned(),
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
        submitted: START_MS,
        expires: None,
        ended: None,
    }
}

fn file() -> NewFtsFile {
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
        pair: PAIR.to_owned(),
        source_token: None,
        destination_token: None,
        checksum: None,
        size: None,
        activity: None,
        class: "default".to_owned(),
        metadata: "null".to_owned(),
        scitag: None,
        by_request: true,
    }
}

fn submission(key: &str) -> Submission {
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
        },
        priority: 3,
        deadline: None,
        size_estimate: None,
        files: vec![NewFile { path: "f".to_owned(), size: Some(10), digest: None }],
        directory: false,
        open: false,
    }
}

impl TwoSites {
    fn due_files(&self) -> Vec<FtsFileRow> {
        let pool = &self.controller.database.pool;
        self.read(fts::due(pool, FtsMover::Request, PAIR, self.now_ms, 10))
    }

    fn submit_due(&self) {
        let due: Vec<_> = self.due_files().iter().map(|file| file.id).collect();
        self.apply(move |cx| {
            let requests: Vec<_> = due
                .iter()
                .map(|file| FtsFileRequest {
                    file: *file,
                    retry_at: None,
                    submission: submission(&format!("fts {file}")),
                })
                .collect();
            Box::pin(async move { fts_requests::submit(cx, &requests).await })
        });
    }
}

#[test]
fn fts_files_wait_for_quota() {
    let quota = ClientQuota { client: "test".to_owned(), requests: Some(2), bytes: None };
    let mut sites = TwoSites::with_quota(quota);
    let first = sites.controller.runtime.block_on(sites.controller.writer.submit(submission("1")));
    let Submitted::New(first) = first.unwrap() else { panic!("it is new") };
    let first = first.id;
    sites.apply(|cx| Box::pin(async move { fts::insert(cx, &job(), &[file(), file()]).await }));
    sites.submit_due();
    assert!(sites.due_files().is_empty(), "one has a request, the other waits");
    sites.advance(60_000);
    let waiting = sites.due_files();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    let reason = waiting[0].reason.as_deref().unwrap_or_default();
    assert!(reason.contains("quota") && waiting[0].attempt == 0, "{waiting:?}");
    sites.submit_due();
    assert!(sites.due_files().is_empty());
    sites.apply(move |cx| Box::pin(async move { cancel::cancel(cx, first, audit()).await }));
    sites.controller.round().unwrap();
    sites.advance(60_000);
    sites.submit_due();
    sites.advance(60_000);
    assert!(sites.due_files().is_empty(), "it has a request now");
}
