//! Submission of requests and their files.

use std::collections::HashSet;

use aws_lc_rs::digest::{SHA256, digest};
use penstock_control::batch::{BatchKind, BatchState};
use penstock_control::quota::QuotaExcess;
use penstock_control::request::RequestTally;
use penstock_http::tokens::hex;

use super::append::{split_into, sums};
use super::quota_ledger::QuotaLedger;
use crate::repository::batches::NewBatch;
use crate::repository::db;
use crate::repository::files::{DestinationDirectory, NewFile};
use crate::repository::requests::{KeyedRequest, StoredRequest, TransferPolicy};
use crate::repository::rows::JsonColumn;
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError, batches, files, requests};

/// A new request as validated by the API.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    /// Name of the client's token.
    pub(crate) client: String,
    pub(crate) peer: String,
    /// Idempotency key of the client.
    pub(crate) key: Option<String>,
    /// Hash of the request body.
    pub(crate) body: String,
    pub(crate) class: String,
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) policy: TransferPolicy,
    pub(crate) priority: i64,
    pub(crate) deadline: Option<i64>,
    pub(crate) size_estimate: Option<i64>,
    pub(crate) files: Vec<NewFile>,
    /// Set to transfer everything below the source directory, which is listed first.
    pub(crate) directory: bool,
    /// Set if more files will be appended.
    pub(crate) open: bool,
}

/// Result of a submission.
#[derive(Debug, Clone)]
pub(crate) enum Submitted {
    /// Stored as this request.
    New(Box<StoredRequest>),
    /// A retry of this request.
    Same(i64),
    /// The idempotency key belongs to this request, whose body differs.
    Other(i64),
    /// The client would exceed its quota.
    OverQuota(QuotaExcess),
    /// Another request is writing the destination of a file.
    Taken {
        /// Index of the file in the submission.
        file: usize,
        /// Id of the other request, if it still exists.
        by: Option<i64>,
    },
}

impl Submission {
    /// Returns class, source and destination of its queue. Listings have queues of their own.
    fn queue(&self) -> (String, String, String) {
        let to = if self.directory { String::new() } else { self.destination.clone() };
        (self.class.clone(), self.source.clone(), to)
    }

    /// Returns the compatibility key: batches with equal keys may share an order.
    fn lane(&self) -> String {
        let policy = serde_json::to_string(&self.policy).expect("plain data");
        lane_of(&self.from, &self.to, &policy)
    }

    /// Bytes that its files will have, as far as the client knows.
    pub(super) fn expected_bytes(&self) -> u64 {
        let known = sums(&self.files).0;
        u64::try_from(known.max(self.size_estimate.unwrap_or(0))).unwrap_or(0)
    }

    /// Compares it with the request that has its idempotency key.
    fn compared(&self, known: &KeyedRequest) -> Submitted {
        match known.body == self.body {
            true => Submitted::Same(known.id),
            false => Submitted::Other(known.id),
        }
    }

    fn to(&self) -> DestinationDirectory<'_> {
        DestinationDirectory { site: &self.destination, path: &self.to }
    }

    /// Describes it for events and the audit log.
    fn describe(&self) -> String {
        let what = match self.directory {
            true => format!("everything below {}", self.from),
            false => format!("{} files", self.files.len()),
        };
        format!("{what} from {} to {}, class {}", self.source, self.destination, self.class)
    }
}

/// Returns the compatibility key of paths and a stored policy.
pub(super) fn lane_of(from: &str, to: &str, policy: &str) -> String {
    let all = [from, to, policy].join("\0");
    let hash = digest(&SHA256, all.as_bytes());
    hex(&hash.as_ref()[..16])
}

/// Stores submissions, except those beyond the quota of their client. Results are in the order of the submissions.
pub(crate) async fn submit(
    cx: &mut TxContext,
    all: &[&Submission],
) -> Result<Vec<Submitted>, DatabaseError> {
    let mut ledger = QuotaLedger::default();
    let (mut admitted, mut refused) = (Vec::with_capacity(all.len()), Vec::new());
    for (at, one) in all.iter().enumerate() {
        match ledger.admit(cx, one).await? {
            None => admitted.push(*one),
            Some(excess) => refused.push((at, excess)),
        }
    }
    let mut answers = store(cx, &admitted).await?;
    for (at, excess) in refused {
        // A retry adds no request.
        let one = all[at];
        let known = requests::find_by_key(cx, &one.client, one.key.clone()).await?;
        let answer = known.map_or(Submitted::OverQuota(excess), |known| one.compared(&known));
        answers.insert(at, answer);
    }
    Ok(answers)
}

/// Stores submissions. Results are in the order of the submissions.
async fn store(cx: &mut TxContext, all: &[&Submission]) -> Result<Vec<Submitted>, DatabaseError> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    batches::load_queues(cx, all.iter().map(|one| one.queue()).collect()).await?;
    let first = db::allocate_ids(&mut cx.tx, "id", all.len()).await?;
    let ids = first..first + all.len() as i64;
    let stored: Vec<StoredRequest> =
        ids.clone().zip(all).map(|(id, one)| new_request(cx, id, one)).collect();
    let made = requests::insert(cx, stored.clone()).await?;
    // Rare: some are retries.
    let mut new: HashSet<i64> = ids.clone().collect();
    if made < all.len() as u64 {
        new = requests::ids_in(cx, ids).await?.into_iter().collect();
    }
    let mut answers = Vec::with_capacity(all.len());
    for (stored, one) in stored.into_iter().zip(all) {
        answers.push(match new.contains(&stored.id) {
            true => Submitted::New(Box::new(stored)),
            false => one.compared(&requests::by_key(cx, &one.client, one.key.clone()).await?),
        });
    }
    store_files_or_reject(cx, all, &mut answers).await?;
    let mut new_batches = Vec::new();
    for (answer, one) in answers.iter().zip(all) {
        let Submitted::New(stored) = answer else { continue };
        new_batches.extend(first_batches(cx, stored, one));
        cx.event(Some(stored.id), Some(&one.class), "submitted", one.describe());
        cx.audit(Audit {
            who: one.client.clone(),
            peer: one.peer.clone(),
            what: "submit",
            object: format!("request {}", stored.id),
            detail: one.describe(),
        });
    }
    batches::insert(cx, new_batches).await?;
    Ok(answers)
}

/// Returns a new request as stored.
fn new_request(cx: &TxContext, id: i64, one: &Submission) -> StoredRequest {
    let (bytes, sized) = sums(&one.files);
    let open = one.open || one.directory;
    let files = one.files.len() as u64;
    let tally = RequestTally { files, open, ..RequestTally::default() };
    StoredRequest {
        id,
        client: one.client.clone(),
        client_key: one.key.clone(),
        body: one.body.clone(),
        class: one.class.clone(),
        source: one.source.clone(),
        destination: one.destination.clone(),
        from_path: one.from.clone(),
        to_path: one.to.clone(),
        policy: JsonColumn(Some(one.policy.clone())),
        lane: one.lane(),
        queue: cx.queues.get(&one.queue()).copied().unwrap_or_default(),
        priority: one.priority,
        deadline: one.deadline,
        size_estimate: one.size_estimate,
        state: tally.state(),
        paused: false,
        cancel: false,
        open,
        broken: false,
        files,
        active: 0,
        done: 0,
        failed: 0,
        cancelled: 0,
        bytes,
        bytes_done: 0,
        sized,
        submitted: cx.now,
        changed: cx.now,
        ended: None,
        trouble: None,
        transport: None,
        transport_reason: None,
    }
}

/// Stores the files of new requests; deletes requests with a file whose destination is in use.
async fn store_files_or_reject(
    cx: &mut TxContext,
    all: &[&Submission],
    answers: &mut [Submitted],
) -> Result<(), DatabaseError> {
    let mut rows = Vec::new();
    for (answer, one) in answers.iter().zip(all) {
        let Submitted::New(stored) = answer else { continue };
        rows.extend(files::queued_rows(cx, stored.id, 0, one.to(), &one.files));
    }
    let expected = rows.len() as u64;
    if files::insert(cx, rows).await? == expected {
        return Ok(());
    }
    for (answer, one) in answers.iter_mut().zip(all) {
        let Submitted::New(stored) = &*answer else { continue };
        let id = stored.id;
        if let Some((file, by)) = conflicting_file(cx, id, one).await? {
            requests::delete_with_files(cx, id).await?;
            *answer = Submitted::Taken { file, by };
        }
    }
    Ok(())
}

/// Returns the first file not inserted because its destination is in use, and the request that uses it.
async fn conflicting_file(
    cx: &mut TxContext,
    request: i64,
    one: &Submission,
) -> Result<Option<(usize, Option<i64>)>, DatabaseError> {
    let mut there = files::seqs_from(cx, request, 0).await?.into_iter().peekable();
    let missing = (0..one.files.len()).find(|at| there.next_if_eq(&(*at as i64)).is_none());
    let Some(at) = missing else { return Ok(None) };
    let holder = files::destination_holder(cx, one.to(), &one.files[at].path).await?;
    Ok(Some((at, holder)))
}

fn first_batches(cx: &TxContext, stored: &StoredRequest, one: &Submission) -> Vec<NewBatch> {
    let base = NewBatch {
        root: None,
        request: stored.id,
        queue: stored.queue,
        kind: BatchKind::Copy,
        first: 0,
        last: -1,
        seqs: None,
        files: 0,
        bytes: 0,
        priority: one.priority,
        deadline: one.deadline,
        lane: stored.lane.clone(),
        attempt: 0,
        state: BatchState::Queued,
        not_before: 0,
    };
    if one.directory {
        return vec![NewBatch { kind: BatchKind::List, ..base }];
    }
    split_into(&base, 0, &one.files, cx.settings.config.batch)
}
