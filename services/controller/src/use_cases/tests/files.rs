//! Files that clients append and listings find.

use penstock_control::orders::{LISTED_PATH, ListedFile, Overwrite, Verify};

use super::*;
use crate::repository::requests::{self, StoredRequest, TransferPolicy};
use crate::simulation::FileStatus;
use crate::use_cases::submit::{Submission, Submitted};

impl TwoSites {
    /// Submits files below `/to`, to which more may be appended; a directory if there are none.
    fn submit_open(&self, to: &str, files: &[&str]) -> i64 {
        let submission = Submission {
            client: "test".to_owned(),
            peer: "::1".to_owned(),
            key: None,
            body: String::new(),
            class: "default".to_owned(),
            source: "cern".to_owned(),
            destination: "caltech".to_owned(),
            from: "/from/run".to_owned(),
            to: to.to_owned(),
            policy: TransferPolicy {
                verify: Verify::Transfer,
                overwrite: Overwrite::Changed,
                encrypt: true,
                attempts: 2,
                scitag: None,
                tune: None,
                transport: None,
            },
            priority: 3,
            deadline: None,
            size_estimate: None,
            files: files.iter().map(|path| new_file(path)).collect(),
            directory: files.is_empty(),
            open: true,
        };
        let submitted = self.controller.runtime.block_on(self.controller.writer.submit(submission));
        match submitted.unwrap() {
            Submitted::New(stored) => stored.id,
            other => panic!("{other:?}"),
        }
    }

    fn append(&self, id: i64, at: i64, files: &[&str], seal: bool) -> ChangeOutcome {
        let new =
            AppendedFiles { at, files: files.iter().map(|path| new_file(path)).collect(), seal };
        self.apply(move |cx| {
            let new = new.clone();
            Box::pin(async move { append::append(cx, id, &new, audit()).await })
        })
    }

    /// Adds listed files; `again` if an earlier run may have listed them.
    fn add_listed(&self, id: i64, paths: &[&str], again: bool) {
        let files: Vec<ListedFile> =
            paths.iter().map(|path| ListedFile { path: (*path).to_owned(), bytes: 10 }).collect();
        self.apply(move |cx| {
            let files = files.clone();
            Box::pin(async move {
                let files: Vec<&ListedFile> = files.iter().collect();
                append::add_listed_files(cx, id, &files, again).await
            })
        });
    }

    fn stored(&self, id: i64) -> StoredRequest {
        self.read(requests::find(&self.controller.database.pool, id)).expect("it is stored")
    }

    fn files_of(&self, id: i64) -> Vec<FileStatus> {
        let files = self.controller.files().unwrap();
        files.into_iter().filter(|file| file.request == id).collect()
    }

    fn paths_of(&self, id: i64) -> Vec<String> {
        self.files_of(id).into_iter().map(|file| file.path).collect()
    }
}

fn new_file(path: &str) -> NewFile {
    NewFile { path: path.to_owned(), size: Some(10), digest: None }
}

#[test]
fn appended_files_follow_first_ones() {
    let sites = TwoSites::new();
    let id = sites.submit_open("/to", &["a"]);
    assert_eq!(sites.append(id, 1, &["b", "c"], false), ChangeOutcome::Done);
    assert_eq!(sites.paths_of(id), ["a", "b", "c"]);
    let stored = sites.stored(id);
    assert_eq!((stored.files, stored.bytes, stored.sized, stored.open), (3, 30, 3, true));
    assert_eq!(sites.append(id, 1, &["b", "c"], false), ChangeOutcome::Done, "a repeated call");
    assert_eq!(sites.stored(id).files, 3);
    assert_eq!(sites.append(id, 2, &["d", "e"], false), ChangeOutcome::OffsetMismatch(3));
}

#[test]
fn sealed_request_ends_with_its_files() {
    let mut sites = TwoSites::new();
    let id = sites.submit_open("/to", &["a"]);
    let order = sites.start();
    sites.end(order, &[None]);
    assert_eq!(sites.request(id).state, RequestState::Active, "more files may follow");
    assert_eq!(sites.append(id, 1, &[], true), ChangeOutcome::Done);
    assert_eq!((sites.request(id).state, sites.stored(id).open), (RequestState::Done, false));
    assert_eq!(sites.append(id, 1, &["b"], false), ChangeOutcome::Over("done".to_owned()));
}

#[test]
fn append_to_used_destination_is_refused() {
    let sites = TwoSites::new();
    let first = sites.submit(&["a"]);
    let id = sites.submit_open("/to", &["x"]);
    let taken = ChangeOutcome::Taken { file: 1, by: Some(first) };
    assert_eq!(sites.append(id, 1, &["b", "a"], false), taken);
    assert_eq!(sites.paths_of(id), ["x"], "none of the call is added");
}

#[test]
fn listed_files_are_added_once() {
    let sites = TwoSites::new();
    let id = sites.submit_open("/to", &[]);
    sites.add_listed(id, &["x", "y"], false);
    // A node that restarted lists everything again.
    sites.add_listed(id, &["y", "z"], true);
    assert_eq!(sites.paths_of(id), ["x", "y", "z"]);
    let stored = sites.stored(id);
    assert_eq!((stored.files, stored.bytes, stored.open), (3, 30, true));
}

#[test]
fn listed_paths_outside_are_dropped() {
    let sites = TwoSites::new();
    let id = sites.submit_open("/to", &[]);
    sites.add_listed(id, &["../x", "/y", "d/../z", "d/good"], false);
    assert_eq!(sites.paths_of(id), ["d/good"]);
}

#[test]
fn listed_file_becomes_the_request() {
    let sites = TwoSites::new();
    let id = sites.submit_open("/to", &[]);
    sites.add_listed(id, &[LISTED_PATH], true);
    let stored = sites.stored(id);
    assert_eq!((stored.from_path.as_str(), stored.open), ("/from", false));
    assert_eq!(sites.paths_of(id), ["run"]);
    sites.add_listed(id, &["more"], false);
    assert_eq!(sites.paths_of(id), ["run"], "the listing is complete");
}

#[test]
fn listed_file_with_used_destination_fails() {
    let sites = TwoSites::new();
    sites.submit(&["a"]);
    let id = sites.submit_open("/to", &[]);
    sites.add_listed(id, &["b", "a", "c"], false);
    let failed: Vec<(String, Option<String>)> = sites
        .files_of(id)
        .into_iter()
        .filter(|file| file.state == RequestFileState::Failed)
        .map(|file| (file.path, file.fault))
        .collect();
    let fault = "another request is writing this file".to_owned();
    assert_eq!(failed, [("a".to_owned(), Some(fault))]);
    assert_eq!(sites.request(id).files, [3, 0, 1, 0]);
}

#[test]
fn cancelled_request_takes_no_listing() {
    let sites = TwoSites::new();
    let id = sites.submit_open("/to", &[]);
    sites.controller.cancel(id).unwrap();
    sites.add_listed(id, &["a"], false);
    assert_eq!(sites.paths_of(id), [""; 0]);
    assert_eq!(sites.append(id, 0, &["a"], false), ChangeOutcome::Sealed);
}
