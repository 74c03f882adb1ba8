//! Runs the copies of FTS3 jobs while this controller is the leader.
//!
//! A file is marked as active before its copy begins. After a restart, active files that no task copies wait again. A
//! cancelled file is found in the database, so that any controller may cancel it; its task closes the connection to the
//! storage, which ends the copy, and deletes the part that this left.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_control::backoff::backoff_delay;
use penstock_control::fts::state::FtsFileEvent;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::copy::{self, CopyResult, FtsCopyProgress};
use super::policy::FtsPolicy;
use super::route::AgentRoute;
use super::submit::is_in_pair;
use super::token_key::{TokenEnd, TokenKey, TokenKeyError};
use penstock_http::client::ServerTrustError;

use super::storage::{FtsCopyError, FtsStorages};
use crate::repository::fts::{self, FtsFileChange, FtsFileRow, FtsJobRow, FtsMover};
use crate::repository::{Audit, DatabaseError, StoreError, WriteError, now_ms};
use crate::shared::ControllerState;
use crate::use_cases::fts_requests::{self, FtsFileRequest};

/// Interval of looking for work without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of storing the bytes that a copy has moved.
const MOVED_INTERVAL_MS: i64 = 2_000;

/// Retries of a file whose job does not say.
const RETRIES_DEFAULT: i64 = 2;

/// Base of the time limit of an attempt, and its part per MiB, as in FTS3.
const ATTEMPT_TIMEOUT_S: u64 = 600;
const ATTEMPT_TIMEOUT_S_PER_MIB: u64 = 2;

/// Most files between agents in one transaction.
const REQUEST_FILES_MAX: i64 = 200;

/// Longest reason that is stored, in characters.
const REASON_CHARS_MAX: usize = 1000;

/// Failure of a step of the driver, which the next step repeats.
#[derive(Debug, thiserror::Error)]
enum FtsDriverError {
    #[error(transparent)]
    Query(#[from] DatabaseError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("authorities of [controller.fts]: {0}")]
    Trust(#[from] ServerTrustError),
}

/// A copy under way.
struct RunningAttempt {
    pair: String,
    task: JoinHandle<()>,
    cancelled: Arc<Notify>,
}

/// Runs copies until the controller stops.
pub(crate) async fn run(shared: Arc<ControllerState>) {
    let mut running: HashMap<i64, RunningAttempt> = HashMap::new();
    let mut client: Option<Arc<FtsStorages>> = None;
    let mut logged = String::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let settings = shared.settings();
        match &settings.config.fts {
            Some(policy) if shared.leads.load(Ordering::Relaxed) => {
                match step(&shared, policy, &mut client, &mut running).await {
                    Ok(()) => logged.clear(),
                    Err(error) => {
                        let error = error.to_string();
                        if error != logged {
                            tracing::error!("cannot run jobs of FTS3 clients: {error}");
                            logged = error;
                        }
                    }
                }
            }
            _ => running.drain().for_each(|(_, copy)| copy.task.abort()),
        }
        tokio::select! {
            () = shared.fts_notify.notified() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
    running.drain().for_each(|(_, copy)| copy.task.abort());
}

async fn step(
    shared: &Arc<ControllerState>,
    policy: &FtsPolicy,
    client: &mut Option<Arc<FtsStorages>>,
    running: &mut HashMap<i64, RunningAttempt>,
) -> Result<(), FtsDriverError> {
    let pool = &shared.database.pool;
    running.retain(|_, copy| !copy.task.is_finished());
    let active = fts::active(pool).await?;
    for id in active.iter().filter(|id| !running.contains_key(*id)) {
        let mut deferred = FtsFileChange::new(FtsFileEvent::Deferred);
        deferred.reason = Some("the controller restarted".to_owned());
        apply(shared, *id, deferred).await?;
    }
    running.retain(|id, copy| {
        let is_active = active.contains(id) || copy.task.is_finished();
        if !is_active {
            copy.cancelled.notify_one();
        }
        is_active
    });
    for job in fts::expired(pool, now_ms()).await? {
        let mut failed = FtsFileChange::new(FtsFileEvent::Failed);
        failed.reason =
            Some("the file was in the queue for longer than max_time_in_queue".to_owned());
        let written = shared.writer.apply(move |cx| {
            let failed = failed.clone();
            Box::pin(async move {
                let audit = Audit {
                    who: "controller".to_owned(),
                    peer: String::new(),
                    what: "fts expiry",
                    object: format!("fts job {job}"),
                    detail: String::new(),
                };
                fts_requests::end_files(cx, job, None, &failed, &audit).await
            })
        });
        written.await?;
    }
    let bans = fts::bans(pool).await?;
    let is_banned = |pair: &str| bans.iter().any(|ban| is_in_pair(pair, &ban.storage));
    follow_requests(shared).await?;
    submit_requests(shared, policy, is_banned).await?;
    let mut free = policy.copies.saturating_sub(running.len());
    let pairs =
        if free > 0 { fts::due_pairs(pool, FtsMover::Copy, now_ms()).await? } else { Vec::new() };
    if pairs.is_empty() {
        return Ok(());
    }
    let client = match client.take().filter(|client| client.policy == *policy) {
        Some(current) => client.insert(current),
        None => client.insert(Arc::new(FtsStorages::new(policy).await)),
    };
    client.load_trust().await?;
    for pair in pairs {
        if is_banned(&pair) {
            continue;
        }
        let busy = running.values().filter(|copy| copy.pair == pair).count();
        let most = policy.copies_per_pair.saturating_sub(busy).min(free);
        for file in fts::due(pool, FtsMover::Copy, &pair, now_ms(), most as i64).await? {
            let Some(job) = fts::job_by_id(pool, file.job).await? else { continue };
            if !apply(shared, file.id, FtsFileChange::new(FtsFileEvent::Started)).await? {
                continue;
            }
            free -= 1;
            let (id, state, client) = (file.id, Arc::clone(shared), Arc::clone(client));
            let cancelled = Arc::new(Notify::new());
            let cancellation = Arc::clone(&cancelled);
            let task = tokio::spawn(async move {
                let progress = FtsCopyProgress::default();
                tokio::select! {
                    () = attempt(&state, &client, &job, file.clone(), &progress) => {}
                    // The connection to the storage is closed then.
                    () = cancellation.notified() => {
                        delete_cancelled(&state, &client, &job, file, &progress).await;
                    }
                }
            });
            running.insert(id, RunningAttempt { pair: pair.clone(), task, cancelled });
        }
    }
    Ok(())
}

/// Stores what became of files whose requests have begun or ended.
async fn follow_requests(shared: &ControllerState) -> Result<(), FtsDriverError> {
    let news = fts::request_news(&shared.database.pool, REQUEST_FILES_MAX).await?;
    let moved = fts::request_bytes(&shared.database.pool, REQUEST_FILES_MAX).await?;
    let changes: Vec<(i64, FtsFileChange)> = news
        .iter()
        .filter_map(|one| fts_requests::change_of(one).map(|change| (one.id, change)))
        .collect();
    if changes.is_empty() && moved.is_empty() {
        return Ok(());
    }
    let is_full = news.len() as i64 == REQUEST_FILES_MAX;
    let written = shared.writer.apply(move |cx| {
        let (changes, moved) = (changes.clone(), moved.clone());
        Box::pin(async move {
            for one in moved {
                fts::set_moved(cx, one.id, one.moved).await?;
            }
            for (file, change) in changes {
                fts::change(cx, file, &change).await?;
            }
            Ok(())
        })
    });
    written.await?;
    if is_full {
        shared.fts_notify.notify_one();
    }
    Ok(())
}

/// Submits requests for due files between agents.
async fn submit_requests(
    shared: &ControllerState,
    policy: &FtsPolicy,
    is_banned: impl Fn(&str) -> bool,
) -> Result<(), FtsDriverError> {
    let (pool, now) = (&shared.database.pool, now_ms());
    let mut due = Vec::new();
    for pair in fts::due_pairs(pool, FtsMover::Request, now).await? {
        let left = REQUEST_FILES_MAX - due.len() as i64;
        if left > 0 && !is_banned(&pair) {
            due.extend(fts::due(pool, FtsMover::Request, &pair, now, left).await?);
        }
    }
    let is_full = due.len() as i64 == REQUEST_FILES_MAX;
    let mut jobs: HashMap<i64, Option<FtsJobRow>> = HashMap::new();
    let mut requests = Vec::new();
    for file in due {
        let job = match jobs.entry(file.job) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(fts::job_by_id(pool, file.job).await?),
        };
        let Some(job) = job else { continue };
        let settings = shared.settings();
        let route = AgentRoute::find(policy, &settings.config, &file.source, &file.destination);
        let submission = match route {
            Ok(Some(route)) => route.submission(job, &file).map_err(|error| error.to_string()),
            Ok(None) => Err("the ends are no longer at agents: submit the file again".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match submission {
            Ok(submission) => {
                let number = file.attempt + 1;
                let is_last = number > retries_of(job);
                let retry_at = (!is_last).then(|| now + delay_ms(job, file.id, number));
                requests.push(FtsFileRequest { file: file.id, retry_at, submission });
            }
            Err(reason) => {
                let mut failed = FtsFileChange::new(FtsFileEvent::Failed);
                failed.reason = Some(reason);
                apply(shared, file.id, failed).await?;
            }
        }
    }
    if requests.is_empty() {
        return Ok(());
    }
    let written = shared.writer.apply(move |cx| {
        let requests = requests.clone();
        Box::pin(async move { fts_requests::submit(cx, &requests).await })
    });
    written.await?;
    if is_full {
        shared.fts_notify.notify_one();
    }
    Ok(())
}

/// Returns the retries of a file of a job.
fn retries_of(job: &FtsJobRow) -> i64 {
    if job.retry == 0 { RETRIES_DEFAULT } else { job.retry.max(0) }
}

/// Returns the milliseconds from a failed attempt of this number to the next.
fn delay_ms(job: &FtsJobRow, file: i64, number: i64) -> i64 {
    match job.retry_delay_s {
        0 => backoff_delay(number as u32, file as u64).as_millis() as i64,
        seconds => seconds * 1000,
    }
}

/// Applies an event to a file. Returns false if it has no effect.
async fn apply(
    shared: &ControllerState,
    id: i64,
    change: FtsFileChange,
) -> Result<bool, StoreError> {
    let written = shared.writer.apply(move |cx| {
        let change = change.clone();
        Box::pin(async move { fts::change(cx, id, &change).await })
    });
    Ok(written.await?)
}

/// Makes one attempt of a file and stores its result.
async fn attempt(
    shared: &Arc<ControllerState>,
    client: &FtsStorages,
    job: &FtsJobRow,
    mut file: FtsFileRow,
    progress: &FtsCopyProgress,
) {
    let result = match decrypt_tokens(shared, client, job, &mut file) {
        Ok(()) => timed_copy(shared, client, job, &file, progress).await,
        Err(error) => Err(error.into()),
    };
    // A cancellation from here on must not delete the part of the next attempt.
    progress.end();
    let number = file.attempt + 1;
    let change = match result {
        Ok(CopyResult { bytes }) => FtsFileChange {
            moved: bytes,
            size: bytes,
            ..FtsFileChange::new(FtsFileEvent::Succeeded)
        },
        Err(error) => {
            let event = match error.is_transient() && number <= retries_of(job) {
                true => FtsFileEvent::Deferred,
                false => FtsFileEvent::Failed,
            };
            let reason: String = error.to_string().chars().take(REASON_CHARS_MAX).collect();
            tracing::debug!(file = file.id, "attempt {number} of an FTS3 file failed: {reason}");
            FtsFileChange {
                reason: Some(reason),
                not_before: now_ms() + delay_ms(job, file.id, number),
                ..FtsFileChange::new(event)
            }
        }
    };
    if let Err(error) = apply(shared, file.id, change).await {
        tracing::warn!(
            "cannot store the result of FTS3 file {}: {error}: it is copied again",
            file.id
        );
    }
    shared.fts_notify.notify_one();
}

/// Deletes what a cancelled copy left at its destination.
async fn delete_cancelled(
    shared: &ControllerState,
    client: &FtsStorages,
    job: &FtsJobRow,
    mut file: FtsFileRow,
    progress: &FtsCopyProgress,
) {
    let deleted = match decrypt_tokens(shared, client, job, &mut file) {
        Ok(()) => copy::delete_unfinished(client, job, &file, progress).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = deleted {
        tracing::warn!("the part of a cancelled copy stays: {error}");
    }
}

/// Decrypts the tokens of a file.
fn decrypt_tokens(
    shared: &ControllerState,
    client: &FtsStorages,
    job: &FtsJobRow,
    file: &mut FtsFileRow,
) -> Result<(), TokenKeyError> {
    let tokens = [
        (TokenEnd::Source, &mut file.source_token),
        (TokenEnd::Destination, &mut file.destination_token),
    ];
    let mut stored = tokens.into_iter().filter(|(_, token)| token.is_some()).peekable();
    if stored.peek().is_none() {
        return Ok(());
    }
    let key = TokenKey::load(&client.policy, &shared.directory)?;
    for (end, token) in stored {
        *token = Some(key.decrypt(&job.uuid, end, token.as_deref().unwrap_or_default())?);
    }
    Ok(())
}

async fn timed_copy(
    shared: &Arc<ControllerState>,
    client: &FtsStorages,
    job: &FtsJobRow,
    file: &FtsFileRow,
    progress: &FtsCopyProgress,
) -> Result<CopyResult, FtsCopyError> {
    let mib = file.size.unwrap_or(0).max(0) as u64 >> 20;
    let limit = match job.timeout_s {
        0 => ATTEMPT_TIMEOUT_S + ATTEMPT_TIMEOUT_S_PER_MIB * mib,
        seconds => seconds as u64,
    };
    let stored = std::sync::atomic::AtomicI64::new(now_ms());
    let moved = |bytes: u64| {
        let now = now_ms();
        if now - stored.load(Ordering::Relaxed) < MOVED_INTERVAL_MS {
            return;
        }
        stored.store(now, Ordering::Relaxed);
        let (shared, id) = (Arc::clone(shared), file.id);
        tokio::spawn(async move {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            let written = shared
                .writer
                .apply(move |cx| Box::pin(async move { fts::set_moved(cx, id, bytes).await }));
            let _ = written.await;
        });
    };
    let copied = copy::copy(client, job, file, progress, moved);
    match tokio::time::timeout(Duration::from_secs(limit), copied).await {
        Ok(result) => result,
        Err(_) => {
            let fault = FtsCopyError::Overdue(file.destination.clone(), limit);
            Err(match copy::delete_unfinished(client, job, file, progress).await {
                Ok(()) => fault,
                Err(error) => {
                    FtsCopyError::WrongCopy { fault: Box::new(fault), error: Box::new(error) }
                }
            })
        }
    }
}
