//! Files of FTS3 jobs that requests move, and quotas of their clients.

use penstock_control::fts::state::{FtsFileEvent, FtsFileState};
use penstock_control::quota::ClientQuota;

use super::*;
use crate::repository::fts::{self, FtsFileChange, FtsFileRow, FtsMover};
use crate::use_cases::cancel;
use crate::use_cases::fts_requests::{self, FtsFileRequest};
use crate::use_cases::samples::{FTS_PAIR, fts_file, fts_job, submission};
use crate::use_cases::submit::Submitted;

impl TwoSites {
    fn due_files(&self) -> Vec<FtsFileRow> {
        let pool = &self.controller.database.pool;
        self.read(fts::due(pool, FtsMover::Request, FTS_PAIR, self.now_ms, 10))
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
    sites.apply(|cx| {
        Box::pin(
            async move { fts::insert(cx, &fts_job("1"), &[fts_file(true), fts_file(true)]).await },
        )
    });
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

#[test]
fn quick_fts_file_has_its_start() {
    let sites = TwoSites::new();
    sites.apply(|cx| {
        Box::pin(async move { fts::insert(cx, &fts_job("1"), &[fts_file(true)]).await })
    });
    let file = sites.due_files().remove(0);
    sites.submit_due();
    let id = file.id;
    sites.apply(move |cx| {
        let succeeded = FtsFileChange::new(FtsFileEvent::Succeeded);
        Box::pin(async move { fts::change(cx, id, &succeeded).await })
    });
    let files = sites.read(fts::files(&sites.controller.database.pool, file.job));
    assert_eq!(files[0].state, FtsFileState::Finished);
    assert!(files[0].started.is_some() && files[0].started == files[0].ended, "{files:?}");
}
