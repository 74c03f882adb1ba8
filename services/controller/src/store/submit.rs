//! Submission of requests and their files.

use std::collections::{HashMap, HashSet};

use aws_lc_rs::digest::{SHA256, digest};
use penstock_operations::batch::{self, BatchLimits};
use penstock_operations::orders::{Overwrite, Verify};
use penstock_operations::state::{FileState, RequestTally};
use serde::{Deserialize, Serialize};
use sqlx::Row;

use super::db;
use super::read::StoredRequest;
use super::rows::{self, SqlValue};
use super::writer::{Audit, TxContext};
use super::{BatchKind, BatchState, state_number};

/// Transfer options of a request's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferPolicy {
    pub(crate) verify: Verify,
    pub(crate) overwrite: Overwrite,
    pub(crate) encrypt: bool,
    pub(crate) attempts: u32,
    pub(crate) scitag: Option<u16>,
}

/// A file to transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewFile {
    /// Relative to both directories.
    pub(crate) path: String,
    pub(crate) size: Option<u64>,
    pub(crate) digest: Option<String>,
}

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
    /// Another request is writing the destination of a file.
    Taken {
        /// Index of the file in the submission.
        file: usize,
        /// Id of the other request, if it still exists.
        by: Option<i64>,
    },
}

/// Bytes of a destination key that hash the directory.
const DIRECTORY_HASH_BYTES: usize = 6;

/// Returns the key that prevents two requests from writing one file: a hash of its directory, then one of its whole
/// path.
///
/// The directory prefix keeps files of one directory adjacent in the index of destinations. With uniform keys, 10,000
/// files would modify as many pages, the more so the larger the index.
pub(crate) fn destination(site: &str, to: &str, path: &str) -> Vec<u8> {
    DestinationKeys::new(site, to).of(path)
}

/// Computes destination keys of files below one directory.
#[derive(Debug)]
pub(crate) struct DestinationKeys {
    /// Site and destination directory, the common prefix of all keys' input.
    text: Vec<u8>,
    common: usize,
    /// Directory of the last file, with its hash.
    last: Option<(String, [u8; DIRECTORY_HASH_BYTES])>,
}

impl DestinationKeys {
    pub(crate) fn new(site: &str, to: &str) -> Self {
        let mut text = Vec::with_capacity(site.len() + to.len() + 256);
        text.extend_from_slice(site.as_bytes());
        text.push(0);
        text.extend_from_slice(to.trim_end_matches('/').as_bytes());
        text.push(b'/');
        Self { common: text.len(), text, last: None }
    }

    pub(crate) fn of(&mut self, path: &str) -> Vec<u8> {
        let (directory, _) = path.rsplit_once('/').unwrap_or_default();
        self.text.truncate(self.common);
        self.text.extend_from_slice(path.as_bytes());
        let file = digest(&SHA256, &self.text);
        if self.last.as_ref().is_none_or(|(last, _)| last != directory) {
            self.text.truncate(self.common);
            self.text.extend_from_slice(directory.as_bytes());
            // The same for any split of the directory between `to` and the path.
            let whole = self.text.strip_suffix(b"/").unwrap_or(&self.text);
            let hash = digest(&SHA256, whole);
            let mut first = [0; DIRECTORY_HASH_BYTES];
            first.copy_from_slice(&hash.as_ref()[..DIRECTORY_HASH_BYTES]);
            self.last = Some((directory.to_owned(), first));
        }
        let (_, first) = self.last.as_ref().expect("it was set");
        [&first[..], &file.as_ref()[..16 - DIRECTORY_HASH_BYTES]].concat()
    }
}

/// Returns the compatibility key of a submission: batches with equal keys may share an order.
pub(crate) fn lane(submission: &Submission) -> String {
    let policy = serde_json::to_string(&submission.policy).expect("plain data");
    lane_of(&submission.from, &submission.to, &policy)
}

/// Returns the compatibility key of paths and a stored policy.
pub(crate) fn lane_of(from: &str, to: &str, policy: &str) -> String {
    let all = [from, to, policy].join("\0");
    let hash = digest(&SHA256, all.as_bytes());
    hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A batch to store.
#[derive(Debug, Clone)]
pub(crate) struct NewBatch {
    /// Batch that first had these files, whose partial files are resumed; none for itself.
    pub(crate) root: Option<i64>,
    pub(crate) request: i64,
    pub(crate) queue: i64,
    pub(crate) kind: BatchKind,
    /// Sequence numbers of its first and last file in the request.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Sequence numbers of its files, if not contiguous.
    pub(crate) seqs: Option<Vec<i64>>,
    pub(crate) files: i64,
    pub(crate) bytes: i64,
    pub(crate) priority: i64,
    pub(crate) deadline: Option<i64>,
    pub(crate) lane: String,
    pub(crate) attempt: i64,
    pub(crate) state: BatchState,
    pub(crate) not_before: i64,
}

/// Stores batches and counts the queued ones.
pub(crate) async fn add_batches(
    cx: &mut TxContext,
    batches: Vec<NewBatch>,
) -> Result<(), sqlx::Error> {
    if batches.is_empty() {
        return Ok(());
    }
    let first = db::allocate_ids(&mut cx.tx, "id", batches.len()).await?;
    let mut counts: HashMap<i64, (i64, i64, i64)> = HashMap::new();
    let mut rows = Vec::with_capacity(batches.len());
    for (id, batch) in (first..).zip(batches) {
        if batch.state == BatchState::Queued {
            let count = counts.entry(batch.queue).or_default();
            *count = (count.0 + 1, count.1 + batch.files, count.2 + batch.bytes);
        }
        let seqs = batch.seqs.map(|seqs| serde_json::to_string(&seqs).expect("plain data"));
        rows.push([
            id.into(),
            batch.root.unwrap_or(id).into(),
            batch.request.into(),
            batch.queue.into(),
            (batch.kind as i64).into(),
            batch.first.into(),
            batch.last.into(),
            seqs.into(),
            batch.files.into(),
            batch.bytes.into(),
            batch.priority.into(),
            batch.deadline.into(),
            batch.lane.into(),
            batch.attempt.into(),
            (batch.state as i64).into(),
            batch.not_before.into(),
        ]);
    }
    let into = "INSERT INTO batch (id, root, request, queue, kind, first, last, seqs, files, bytes, priority, deadline, lane, attempt, state, not_before)";
    rows::insert(&mut cx.tx, into, rows, "").await?;
    count_queues(cx, counts).await?;
    cx.request_round();
    Ok(())
}

/// Adds batches, files and bytes to the counts of queues.
pub(crate) async fn count_queues(
    cx: &mut TxContext,
    counts: HashMap<i64, (i64, i64, i64)>,
) -> Result<(), sqlx::Error> {
    let mut rows: Vec<[SqlValue; 4]> = counts
        .into_iter()
        .map(|(id, (batches, files, bytes))| {
            [id.into(), batches.into(), files.into(), bytes.into()]
        })
        .collect();
    // All controllers lock queues in one order.
    rows.sort_by_key(|row| if let SqlValue::Int(id) = row[0] { id } else { 0 });
    rows::query_values(
        &mut cx.tx,
        "i, n, f, b",
        rows,
        "UPDATE queue SET batches = batches + v.n, files = files + v.f, bytes = bytes + v.b FROM v WHERE queue.id = v.i",
    )
    .await?;
    Ok(())
}

/// Loads the ids of queues into the cache; creates missing queues.
pub(crate) async fn queues(
    cx: &mut TxContext,
    wanted: Vec<(String, String, String)>,
) -> Result<(), sqlx::Error> {
    let mut missing: Vec<_> =
        wanted.into_iter().filter(|queue| !cx.queues.contains_key(queue)).collect();
    missing.sort();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let first = db::allocate_ids(&mut cx.tx, "id", missing.len()).await?;
    let rows = (first..).zip(missing).map(|(id, (class, from, to))| -> [SqlValue; 7] {
        [id.into(), class.into(), from.into(), to.into(), 0.into(), 0.into(), 0.into()]
    });
    let found = rows::insert_returning(
        &mut cx.tx,
        "INSERT INTO queue (id, class, source, destination, batches, files, bytes)",
        rows.collect(),
        "ON CONFLICT (class, source, destination) DO UPDATE SET batches = queue.batches
         RETURNING id, class, source, destination",
    )
    .await?;
    for row in found {
        cx.queues.insert((row.get(1), row.get(2), row.get(3)), row.get(0));
    }
    Ok(())
}

/// Columns of a new file: request, seq, path, size, digest, state, fault, destination, changed.
pub(crate) type FileRow = [SqlValue; 9];

/// Inserts files; the unique index drops those whose destination is in use. Returns the number inserted.
pub(crate) async fn add_files(cx: &mut TxContext, rows: Vec<FileRow>) -> Result<u64, sqlx::Error> {
    let into =
        "INSERT INTO file (request, seq, path, size, digest, state, fault, destination, changed)";
    rows::insert(&mut cx.tx, into, rows, "ON CONFLICT DO NOTHING").await
}

/// Returns the rows of queued files, with sequence numbers from `first` on.
pub(crate) fn file_rows<'a>(
    cx: &TxContext,
    request: i64,
    first: i64,
    (site, to): (&str, &str),
    files: &'a [NewFile],
) -> impl Iterator<Item = FileRow> + use<'a> {
    let now = cx.now;
    let mut destinations = DestinationKeys::new(site, to);
    (first..).zip(files).map(move |(seq, file)| {
        [
            request.into(),
            seq.into(),
            file.path.clone().into(),
            file.size.map(|size| size as i64).into(),
            file.digest.clone().into(),
            (FileState::Queued as i64).into(),
            None::<String>.into(),
            SqlValue::Bytes(Some(destinations.of(&file.path))),
            now.into(),
        ]
    })
}

/// Returns the first file not inserted because its destination is in use, and the request that uses it.
pub(crate) async fn conflicting_file(
    cx: &mut TxContext,
    request: i64,
    first: i64,
    (site, to): (&str, &str),
    files: &[NewFile],
) -> Result<Option<(usize, Option<i64>)>, sqlx::Error> {
    let there = sqlx::query("SELECT seq FROM file WHERE request = $1 AND seq >= $2 ORDER BY seq")
        .bind(request)
        .bind(first)
        .fetch_all(&mut cx.tx)
        .await?;
    let mut there = there.into_iter().map(|row| row.get::<i64, _>(0)).peekable();
    let missing = (0..files.len()).find(|at| there.next_if_eq(&(first + *at as i64)).is_none());
    let Some(at) = missing else { return Ok(None) };
    let holder = sqlx::query("SELECT request FROM file WHERE destination = $1 AND state < 2")
        .bind(destination(site, to, &files[at].path))
        .fetch_optional(&mut cx.tx)
        .await?;
    Ok(Some((at, holder.map(|row| row.get(0)))))
}

fn sums(files: &[NewFile]) -> (i64, i64) {
    let sized = files.iter().filter_map(|file| file.size);
    (sized.clone().map(|size| size as i64).sum(), sized.count() as i64)
}

/// Stores submissions. Results are in the order of the submissions.
pub(crate) async fn submit(
    cx: &mut TxContext,
    all: &[&Submission],
) -> Result<Vec<Submitted>, sqlx::Error> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let wanted = all.iter().map(|one| queue_of(one)).collect();
    queues(cx, wanted).await?;
    let first = db::allocate_ids(&mut cx.tx, "id", all.len()).await?;
    let rows = (first..).zip(all).map(|(id, one)| request_row(cx, id, one)).collect();
    let made = rows::insert(
        &mut cx.tx,
        "INSERT INTO request (id, client, client_key, body, class, source, destination, from_path, to_path, policy, lane,
            queue, priority, deadline, size_estimate, state, paused, cancel, open, broken, files, active, done, failed,
            cancelled, bytes, bytes_done, sized, submitted, changed)",
        rows,
        "ON CONFLICT DO NOTHING",
    )
    .await?;
    // Rare: some are retries.
    let mut new: HashSet<i64> = (first..first + all.len() as i64).collect();
    if made < all.len() as u64 {
        let there = sqlx::query("SELECT id FROM request WHERE id >= $1 AND id < $2");
        let there = there.bind(first).bind(first + all.len() as i64);
        new = there.fetch_all(&mut cx.tx).await?.iter().map(|row| row.get(0)).collect();
    }
    let mut answers = Vec::with_capacity(all.len());
    for (id, one) in (first..).zip(all) {
        answers.push(match new.contains(&id) {
            true => Submitted::New(Box::new(stored(cx, id, one))),
            false => existing_request(cx, one).await?,
        });
    }
    store_files_or_reject(cx, all, &mut answers).await?;
    let mut batches = Vec::new();
    for (answer, one) in answers.iter().zip(all) {
        let Submitted::New(stored) = answer else { continue };
        batches.extend(first_batches(cx, stored.id, one));
        cx.event(Some(stored.id), Some(&one.class), "submitted", describe(one));
        cx.audit(Audit {
            who: one.client.clone(),
            peer: one.peer.clone(),
            what: "submit",
            object: format!("request {}", stored.id),
            detail: describe(one),
        });
    }
    add_batches(cx, batches).await?;
    Ok(answers)
}

fn describe(one: &Submission) -> String {
    let what = match one.directory {
        true => format!("everything below {}", one.from),
        false => format!("{} files", one.files.len()),
    };
    format!("{what} from {} to {}, class {}", one.source, one.destination, one.class)
}

fn queue_of(one: &Submission) -> (String, String, String) {
    // Listings have queues of their own.
    let to = if one.directory { String::new() } else { one.destination.clone() };
    (one.class.clone(), one.source.clone(), to)
}

/// Returns the initial counts of a request.
fn first_tally(one: &Submission) -> RequestTally {
    let open = one.open || one.directory;
    RequestTally { files: one.files.len() as u64, open, ..RequestTally::default() }
}

/// Returns a new request as the database would.
fn stored(cx: &TxContext, id: i64, one: &Submission) -> StoredRequest {
    let (bytes, sized) = sums(&one.files);
    let tally = first_tally(one);
    StoredRequest {
        id,
        client: one.client.clone(),
        key: one.key.clone(),
        class: one.class.clone(),
        source: one.source.clone(),
        destination: one.destination.clone(),
        from: one.from.clone(),
        to: one.to.clone(),
        priority: one.priority,
        deadline: one.deadline,
        size_estimate: one.size_estimate,
        state: tally.state(),
        paused: false,
        tally,
        bytes,
        bytes_done: 0,
        sized,
        submitted: cx.now,
        changed: cx.now,
        ended: None,
        trouble: None,
    }
}

fn request_row(cx: &TxContext, id: i64, one: &Submission) -> [SqlValue; 30] {
    let (bytes, sized) = sums(&one.files);
    let tally = first_tally(one);
    let queue = cx.queues.get(&queue_of(one)).copied().unwrap_or_default();
    [
        id.into(),
        one.client.clone().into(),
        one.key.clone().into(),
        one.body.clone().into(),
        one.class.clone().into(),
        one.source.clone().into(),
        one.destination.clone().into(),
        one.from.clone().into(),
        one.to.clone().into(),
        serde_json::to_string(&one.policy).expect("plain data").into(),
        lane(one).into(),
        queue.into(),
        one.priority.into(),
        one.deadline.into(),
        one.size_estimate.into(),
        state_number(tally.state()).into(),
        0.into(),
        0.into(),
        i64::from(tally.open).into(),
        0.into(),
        (one.files.len() as i64).into(),
        0.into(),
        0.into(),
        0.into(),
        0.into(),
        bytes.into(),
        0.into(),
        sized.into(),
        cx.now.into(),
        cx.now.into(),
    ]
}

async fn existing_request(cx: &mut TxContext, one: &Submission) -> Result<Submitted, sqlx::Error> {
    let row = sqlx::query("SELECT id, body FROM request WHERE client = $1 AND client_key = $2")
        .bind(one.client.clone())
        .bind(one.key.clone())
        .fetch_one(&mut cx.tx)
        .await?;
    let (id, body): (i64, String) = (row.get(0), row.get(1));
    Ok(if body == one.body { Submitted::Same(id) } else { Submitted::Other(id) })
}

/// Stores the files of new requests; deletes requests with a file whose destination is in use.
async fn store_files_or_reject(
    cx: &mut TxContext,
    all: &[&Submission],
    answers: &mut [Submitted],
) -> Result<(), sqlx::Error> {
    let mut rows = Vec::new();
    for (answer, one) in answers.iter().zip(all) {
        let Submitted::New(stored) = answer else { continue };
        rows.extend(file_rows(cx, stored.id, 0, (&one.destination, &one.to), &one.files));
    }
    let expected = rows.len() as u64;
    if add_files(cx, rows).await? == expected {
        return Ok(());
    }
    for (answer, one) in answers.iter_mut().zip(all) {
        let Submitted::New(stored) = &*answer else { continue };
        let id = stored.id;
        let place = (one.destination.as_str(), one.to.as_str());
        if let Some((file, by)) = conflicting_file(cx, id, 0, place, &one.files).await? {
            for text in ["DELETE FROM file WHERE request = $1", "DELETE FROM request WHERE id = $1"]
            {
                sqlx::query(text).bind(id).execute(&mut cx.tx).await?;
            }
            *answer = Submitted::Taken { file, by };
        }
    }
    Ok(())
}

fn first_batches(cx: &TxContext, id: i64, one: &Submission) -> Vec<NewBatch> {
    let queue = cx.queues.get(&queue_of(one)).copied().unwrap_or_default();
    let base = NewBatch {
        root: None,
        request: id,
        queue,
        kind: BatchKind::Copy,
        first: 0,
        last: -1,
        seqs: None,
        files: 0,
        bytes: 0,
        priority: one.priority,
        deadline: one.deadline,
        lane: lane(one),
        attempt: 0,
        state: BatchState::Queued,
        not_before: 0,
    };
    if one.directory {
        return vec![NewBatch { kind: BatchKind::List, ..base }];
    }
    split_into(&base, 0, &one.files, cx.settings.config.batch)
}

/// Splits files into batches; the first file has sequence number `first`.
pub(crate) fn split_into(
    base: &NewBatch,
    first: i64,
    files: &[NewFile],
    limits: BatchLimits,
) -> Vec<NewBatch> {
    let sizes: Vec<_> = files.iter().map(|file| file.size).collect();
    let batches = batch::split(&sizes, limits).into_iter().map(|range| NewBatch {
        first: first + range.start as i64,
        last: first + range.end as i64 - 1,
        files: range.len() as i64,
        bytes: sums(&files[range]).0,
        ..base.clone()
    });
    batches.collect()
}

/// Appends files to a request that has `first` files. Files whose destination is in use fail.
pub(crate) async fn append(
    cx: &mut TxContext,
    base: &NewBatch,
    first: i64,
    (site, to): (&str, &str),
    mut files: Vec<NewFile>,
) -> Result<(), sqlx::Error> {
    let request = base.request;
    let mut taken_files = Vec::new();
    let mut start = first;
    loop {
        let rows: Vec<_> = file_rows(cx, request, start, (site, to), &files).collect();
        let expected = rows.len() as u64;
        if add_files(cx, rows).await? == expected {
            break;
        }
        // Rare: remove the inserted rows, and insert again without the conflicting files.
        let missing = missing(cx, request, start, files.len()).await?;
        sqlx::query("DELETE FROM file WHERE request = $1 AND seq >= $2")
            .bind(request)
            .bind(start)
            .execute(&mut cx.tx)
            .await?;
        let mut at = 0;
        files.retain(|file| {
            let keep = !missing.contains(&at);
            if !keep {
                taken_files.push(file.clone());
            }
            at += 1;
            keep
        });
        let failed: Vec<_> = file_rows(cx, request, start, (site, to), &taken_files)
            .map(|mut row| {
                row[5] = (FileState::Failed as i64).into();
                row[6] = "another request is writing this file".into();
                row[7] = SqlValue::Bytes(None);
                row
            })
            .collect();
        start = first + failed.len() as i64;
        add_files(cx, failed).await?;
    }
    let (bytes, sized) = sums(&files);
    let delta = super::outcomes::RequestDelta {
        files: (files.len() + taken_files.len()) as i64,
        failed: taken_files.len() as i64,
        bytes,
        sized,
        ..super::outcomes::RequestDelta::default()
    };
    let batches = split_into(base, start, &files, cx.settings.config.batch);
    add_batches(cx, batches).await?;
    super::outcomes::apply_deltas(cx, super::outcomes::RequestDeltas::from([(request, delta)]))
        .await
}

/// Returns the indices of rows, counted from `first`, that were not inserted.
async fn missing(
    cx: &mut TxContext,
    request: i64,
    first: i64,
    count: usize,
) -> Result<HashSet<usize>, sqlx::Error> {
    let there = sqlx::query("SELECT seq FROM file WHERE request = $1 AND seq >= $2")
        .bind(request)
        .bind(first)
        .fetch_all(&mut cx.tx)
        .await?;
    let there: HashSet<i64> = there.iter().map(|row| row.get(0)).collect();
    Ok((0..count).filter(|at| !there.contains(&(first + *at as i64))).collect())
}
