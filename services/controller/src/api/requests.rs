//! Endpoints of requests: submit, list, read, change, cancel.

use std::collections::HashSet;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderName, StatusCode, header};
use penstock_control::backoff;
use penstock_control::class::WorkClass;
use penstock_control::file::{FILE_BYTES_MAX, RequestFileState, TOTAL_BYTES_MAX};
use penstock_control::orders::{FILES_MAX, OrderTransport};
use penstock_control::quota::QuotaExcess;
use penstock_control::request::{RequestState, UnknownState};
use penstock_units::ByteCount;

use super::objects::{
    AppendBody, ChangeBody, FileBody, FileFacts, Files, History, OrderFacts, Orders, RequestFacts,
    Requests, SubmitBody,
};
use super::{ApiClient, PARAMETERS_PAGE, body, number};
use crate::access::AuthorizedClient;
use crate::config::Config;
use crate::paths;
use crate::problem::{ProblemDetails, unavailable};
use crate::repository::files::NewFile;
use crate::repository::requests::{self, RequestFilter, StoredRequest, TransferPolicy};
use crate::repository::{Audit, batches, events, files, now_ms, runs};
use crate::shared::ControllerState;
use crate::use_cases::append::{self, AppendedFiles};
use crate::use_cases::cancel;
use crate::use_cases::change::{self, ChangeOutcome, RequestChange};
use crate::use_cases::deadline;
use crate::use_cases::submit::{Submission, Submitted};
use crate::use_cases::waiting::Situation;
use penstock_http::{QueryParams, RawQuery, Refused, Unavailable};

/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 256;

/// Most requests, files or events in one response.
const LIST_MAX: i64 = 1000;

/// Time after which a client may have room in its quota again, in seconds.
const QUOTA_RETRY_S: u16 = 10;

const STORED: &str = "the request was just stored";

/// Submits a request to transfer files.
#[utoipa::path(post, path = "/api/v1/requests", operation_id = "submit_request", security(("token" = [])), request_body = SubmitBody, responses(
    (status = 201, body = RequestFacts, description = "It is new", headers(("Location" = String, description = "Path of the request"))),
    (status = 200, body = RequestFacts, description = "The same was asked before under this key"),
    Refused,
    Unavailable))]
pub(super) async fn submit(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: Result<Bytes, BytesRejection>,
) -> Result<SubmittedRequest, ProblemDetails> {
    let asked: SubmitBody = body(given)?;
    let submission = lower(&shared, &asking, asked)?;
    let files = submission.files.clone();
    let id = match shared.writer.submit(submission).await? {
        Submitted::New(stored) => {
            let problem = deadline_problem(&shared, &stored, None).await?;
            let mut facts = RequestFacts::from(*stored);
            facts.deadline_problem = problem;
            return Ok(submitted(StatusCode::CREATED, facts));
        }
        Submitted::Same(id) => id,
        Submitted::Other(id) => {
            return Err(ProblemDetails::at(
                StatusCode::CONFLICT,
                "/key",
                format!("request {id} has this key and asks for something else: give another key"),
            ));
        }
        Submitted::OverQuota(excess) => return Err(over_quota(excess)),
        Submitted::Taken { file, by } => {
            return Err(taken(&shared, &asking, &files, (file, by)).await?);
        }
    };
    let stored = requests::find(&shared.database.pool, id).await.map_err(unavailable)?;
    let stored = stored.ok_or_else(|| ProblemDetails::not_found(STORED))?;
    Ok(submitted(StatusCode::OK, stored.into()))
}

/// Response to a submission, with the path of the request in `Location`.
type SubmittedRequest = (StatusCode, [(HeaderName, String); 1], Json<RequestFacts>);

fn submitted(status: StatusCode, facts: RequestFacts) -> SubmittedRequest {
    let location = format!("/api/v1/requests/{}", facts.id);
    (status, [(header::LOCATION, location)], Json(facts))
}

/// Returns the reason why its deadline cannot be met, if known.
async fn deadline_problem(
    shared: &ControllerState,
    stored: &StoredRequest,
    forecast_seconds: Option<u64>,
) -> Result<Option<String>, ProblemDetails> {
    let settings = shared.settings();
    let pool = &shared.database.pool;
    deadline::problem(pool, &settings, now_ms(), stored, forecast_seconds)
        .await
        .map_err(unavailable)
}

/// Returns the conflict of a file that another request is writing; names that request only to clients that may see it.
async fn taken(
    shared: &ControllerState,
    asking: &ApiClient,
    files: &[NewFile],
    (file, by): (usize, Option<i64>),
) -> Result<ProblemDetails, ProblemDetails> {
    let path = files.get(file).map_or("", |file| file.path.as_str());
    let holder = match by {
        Some(id) => requests::find(&shared.database.pool, id).await.map_err(unavailable)?,
        None => None,
    };
    let text = match (by, holder.filter(|holder| asking.who.may_see(&holder.class))) {
        (None, _) => format!("'{path}' is in another line of the same list: leave one of them out"),
        (_, Some(holder)) => format!(
            "'{path}' is being written by request {}: wait for its end, cancel it, or leave the file out",
            holder.id
        ),
        (Some(_), None) => format!(
            "'{path}' is being written for another request: retry later, or leave the file out"
        ),
    };
    Ok(ProblemDetails::at(StatusCode::CONFLICT, format!("/files/{file}/path"), text))
}

fn over_quota(excess: QuotaExcess) -> ProblemDetails {
    ProblemDetails::new(StatusCode::TOO_MANY_REQUESTS, excess.to_string())
        .retry_after(QUOTA_RETRY_S)
}

/// Validates a submission.
fn lower(
    shared: &ControllerState,
    asking: &ApiClient,
    asked: SubmitBody,
) -> Result<Submission, ProblemDetails> {
    let settings = shared.settings();
    let class = class_of(&settings.config, &asking.who, asked.class.as_deref())?;
    if !asking.who.may_submit(class) {
        shared.counters.refused();
        return Err(ProblemDetails::forbidden(format!(
            "'{}' may not submit to class {}: its token needs the scope submit:{}{}",
            asking.who.name,
            class.name,
            class.name,
            if class.who.is_empty() { "" } else { ", and its name in who of the class" }
        )));
    }
    for (pointer, site) in [("/source", &asked.source), ("/destination", &asked.destination)] {
        if !settings.config.is_site(site) {
            let text = format!(
                "the topology has no site '{site}': penstock drain, or GET /api/v1/hosts, lists hosts with their sites"
            );
            return Err(ProblemDetails::field(pointer, text));
        }
    }
    if asked.source == asked.destination && asked.from == asked.to {
        return Err(ProblemDetails::field(
            "/to",
            "it is where the files are: give another directory or site",
        ));
    }
    paths::directory(&asked.from)
        .map_err(|error| ProblemDetails::field("/from", error.to_string()))?;
    paths::directory(&asked.to).map_err(|error| ProblemDetails::field("/to", error.to_string()))?;
    let given = [!asked.files.is_empty(), asked.directory].into_iter().filter(|on| *on).count();
    match (given, asked.open) {
        (1, false) | (0 | 1, true) if !(asked.open && asked.directory) => {}
        (0, _) => {
            let text = "nothing is asked for: give files, or directory = true, or open = true and append files";
            return Err(ProblemDetails::field("/files", text));
        }
        _ => {
            let text = "give either directory, or files with or without open";
            return Err(ProblemDetails::field("/directory", text));
        }
    }
    if let Some(key) = &asked.key
        && (key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0'))
    {
        return Err(ProblemDetails::field(
            "/key",
            format!("a key has 1 to {KEY_BYTES_MAX} bytes, none of them zero"),
        ));
    }
    let priority = asked.priority.unwrap_or(3);
    check_priority(priority)?;
    let attempts = asked.attempts.unwrap_or(backoff::ATTEMPTS_DEFAULT);
    if !(1..=backoff::ATTEMPTS_MAX).contains(&attempts) {
        return Err(ProblemDetails::field(
            "/attempts",
            format!("give 1 to {}", backoff::ATTEMPTS_MAX),
        ));
    }
    if asked.size_estimate_bytes.is_some_and(|bytes| bytes > TOTAL_BYTES_MAX as u64) {
        let text = format!("a request has at most {}", ByteCount(TOTAL_BYTES_MAX as u64));
        return Err(ProblemDetails::field("/size_estimate_bytes", text));
    }
    let encrypt = asked.encrypt.unwrap_or(true);
    if encrypt && asked.transport == Some(OrderTransport::Rdma) {
        let text = "RDMA does not encrypt: set encrypt to false, with which blocks keep checksum and authentication, or use auto";
        return Err(ProblemDetails::field("/transport", text));
    }
    let files = new_files(&asked.files)?;
    let deadline = asked.deadline_unix_seconds.map(deadline_ms).transpose()?;
    // Hash of the parsed body, so white space and the order of keys do not matter.
    let text = serde_json::to_vec(&asked).expect("plain data");
    let hash = digest(&SHA256, &text);
    Ok(Submission {
        client: asking.who.name.clone(),
        peer: asking.peer.clone(),
        key: asked.key,
        body: penstock_http::tokens::hex(&hash.as_ref()[..16]),
        class: class.name.clone(),
        source: asked.source,
        destination: asked.destination,
        from: asked.from,
        to: asked.to,
        policy: TransferPolicy {
            verify: asked.verify,
            overwrite: asked.overwrite,
            encrypt,
            attempts,
            scitag: asked.scitag.or(class.scitag),
            tune: asked.tune,
            transport: asked.transport,
        },
        priority: i64::from(priority),
        deadline,
        size_estimate: asked.size_estimate_bytes.map(|bytes| bytes as i64),
        files,
        directory: asked.directory,
        open: asked.open,
    })
}

/// Returns the named class, or the only one that the token may submit to.
fn class_of<'a>(
    config: &'a Config,
    who: &AuthorizedClient,
    given: Option<&str>,
) -> Result<&'a WorkClass, ProblemDetails> {
    let classes = &config.classes;
    let Some(name) = given else {
        let mine: Vec<&WorkClass> = classes.iter().filter(|class| who.may_submit(class)).collect();
        return match (mine.as_slice(), classes.as_slice()) {
            ([one], _) => Ok(*one),
            ([], [one]) => Ok(one),
            ([], _) => Err(ProblemDetails::forbidden(format!(
                "'{}' may submit to no class: its token needs the scope submit:CLASS",
                who.name
            ))),
            _ => {
                let names: Vec<&str> = mine.iter().map(|class| class.name.as_str()).collect();
                let text = format!("say which class of work it is: {}", names.join(", "));
                Err(ProblemDetails::field("/class", text))
            }
        };
    };
    let labelled = |class: &&WorkClass| {
        class.label.as_ref().is_some_and(|(owner, activity)| format!("{owner}/{activity}") == name)
    };
    let found = config.class(name).or_else(|| classes.iter().find(labelled));
    found.ok_or_else(|| {
        ProblemDetails::field(
            "/class",
            format!("there is no class '{name}': GET /api/v1/classes lists them"),
        )
    })
}

fn check_priority(priority: u8) -> Result<(), ProblemDetails> {
    match priority {
        1..=5 => Ok(()),
        _ => Err(ProblemDetails::field("/priority", "give 1 (can wait) to 5 (urgent)")),
    }
}

fn deadline_ms(seconds: i64) -> Result<i64, ProblemDetails> {
    let far = 1_i64 << 40;
    match (1..far).contains(&seconds) {
        true => Ok(seconds * 1000),
        false => Err(ProblemDetails::field("/deadline_unix_seconds", "give seconds since 1970")),
    }
}

fn new_files(files: &[FileBody]) -> Result<Vec<NewFile>, ProblemDetails> {
    if files.len() > FILES_MAX {
        let text =
            format!("more than {FILES_MAX} files: submit with open = true and append the rest");
        return Err(ProblemDetails::field("/files", text));
    }
    let mut seen = HashSet::with_capacity(files.len());
    let mut new = Vec::with_capacity(files.len());
    for (at, file) in files.iter().enumerate() {
        let wrong =
            |field: &str, text: String| ProblemDetails::field(format!("/files/{at}/{field}"), text);
        paths::relative(&file.path).map_err(|error| wrong("path", error.to_string()))?;
        if !seen.insert(file.path.as_str()) {
            return Err(wrong("path", format!("'{}' is there twice", file.path)));
        }
        if file.size.is_some_and(|size| size > FILE_BYTES_MAX) {
            return Err(wrong("size", format!("a file has at most {}", ByteCount(FILE_BYTES_MAX))));
        }
        if let Some(text) = &file.digest {
            check_digest(text).map_err(|error| wrong("digest", error.to_string()))?;
        }
        let (path, size, digest) = (file.path.clone(), file.size, file.digest.clone());
        new.push(NewFile { path, size, digest });
    }
    Ok(new)
}

/// A digest in another form than `algorithm:hexadecimal`.
#[derive(Debug, thiserror::Error)]
#[error("write it like crc32c:0a1b2c3d, in lower case")]
struct InvalidDigest;

/// Validates the form `algorithm:hexadecimal`; the node checks the algorithm.
fn check_digest(text: &str) -> Result<(), InvalidDigest> {
    let good = |name: &str, hex: &str| {
        (1..=16).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            && (8..=128).contains(&hex.len())
            && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    match text.split_once(':') {
        Some((name, hex)) if good(name, hex) => Ok(()),
        _ => Err(InvalidDigest),
    }
}

/// Returns a request if the client may see it.
async fn seen(
    shared: &ControllerState,
    asking: &ApiClient,
    id: &str,
) -> Result<StoredRequest, ProblemDetails> {
    let missing = || {
        ProblemDetails::not_found(format!(
            "there is no request {id} that you may see: penstock list, or GET /api/v1/requests, lists them"
        ))
    };
    let number = number(id)?;
    let stored = requests::find(&shared.database.pool, number)
        .await
        .map_err(unavailable)?
        .ok_or_else(missing)?;
    // A request that the client may not see does not exist for it.
    if asking.who.may_see(&stored.class) { Ok(stored) } else { Err(missing()) }
}

fn may_change(
    shared: &ControllerState,
    asking: &ApiClient,
    stored: &StoredRequest,
) -> Result<(), ProblemDetails> {
    if asking.who.may_change(&stored.class) {
        return Ok(());
    }
    shared.counters.refused();
    Err(ProblemDetails::forbidden(format!(
        "'{}' may not change requests of class {}: its token needs the scope submit:{} or operate",
        asking.who.name, stored.class, stored.class
    )))
}

/// Requests, the newest first.
#[utoipa::path(get, path = "/api/v1/requests", operation_id = "list_requests", security((), ("token" = [])),
    params(("state" = Option<String>, Query, description = "States, with commas",
            pattern = "^(submitted|staged|active|done|failed|partial|cancelled)(,(submitted|staged|active|done|failed|partial|cancelled))*$"),
        ("class" = Option<String>, Query, description = "Of this class"),
        ("source" = Option<String>, Query, description = "From this site"),
        ("destination" = Option<String>, Query, description = "To this site"),
        ("client" = Option<String>, Query, description = "Of this token"),
        ("key" = Option<String>, Query, description = "With this key of `client`, or of the asking client"),
        ("before" = Option<i64>, Query, description = "With smaller numbers than this", minimum = 0),
        ("limit" = Option<i64>, Query, description = "Largest number of items", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = Requests, description = "Requests, the newest first"), Refused,
    Unavailable))]
pub(super) async fn list(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<Requests>, ProblemDetails> {
    if !asking.who.is_client() {
        return Err(ProblemDetails::forbidden("the token needs the scope read or submit"));
    }
    let mut params = QueryParams::new(given)?;
    let states = params.take("state").unwrap_or_default();
    let states = states.split(',').filter(|text| !text.is_empty());
    let states: Result<Vec<RequestState>, UnknownState> =
        states.map(|text| text.trim().parse()).collect();
    let key = clean(&mut params, "key")?;
    // Keys of other clients may be equal.
    let own = key.is_some().then(|| asking.who.name.clone());
    let filter = RequestFilter {
        before: params.parsed::<i64>("before")?,
        states: states.map_err(|error| ProblemDetails::field("state", error.to_string()))?,
        classes: asking.who.sees(),
        class: clean(&mut params, "class")?,
        source: clean(&mut params, "source")?,
        destination: clean(&mut params, "destination")?,
        client: clean(&mut params, "client")?.or(own),
        key,
        limit: params.limit(100, LIST_MAX)?,
    };
    params.none(PARAMETERS_PAGE)?;
    let pool = &shared.database.pool;
    let found = requests::list(pool, &filter).await.map_err(unavailable)?;
    let next = found.last().map(|last| last.id).filter(|_| found.len() as i64 == filter.limit);
    let settings = shared.settings();
    let situation = Situation::read(pool, &settings.config, now_ms(), shared.alive_ms())
        .await
        .map_err(unavailable)?;
    let mut requests = Vec::with_capacity(found.len());
    for stored in found {
        // Only the reason of a cancellation that has not ended names hosts of runs.
        let is_cancelling = stored.cancel && !stored.state.is_final();
        let runs = match is_cancelling {
            true => runs::list(pool, Some(stored.id), LIST_MAX).await.map_err(unavailable)?,
            false => Vec::new(),
        };
        let waiting = situation.reason(&stored, &runs, None);
        requests.push(RequestFacts { waiting, ..RequestFacts::from(stored) });
    }
    Ok(Json(Requests { requests, next }))
}

/// Returns a text parameter without NUL.
fn clean(params: &mut QueryParams, name: &str) -> Result<Option<String>, ProblemDetails> {
    match params.take(name) {
        Some(text) if text.contains('\0') => Err(ProblemDetails::field(name, "it has a zero byte")),
        text => Ok(text),
    }
}

/// One request, with its rate and a forecast.
#[utoipa::path(get, path = "/api/v1/requests/{id}", operation_id = "request", security((), ("token" = [])),
    params(("id" = i64, Path, description = "Its number")), responses(
    (status = 200, body = RequestFacts, description = "The request"), Refused,
    Unavailable))]
pub(super) async fn one(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
) -> Result<Json<RequestFacts>, ProblemDetails> {
    let stored = seen(&shared, &asking, &id).await?;
    let pool = &shared.database.pool;
    let runs = runs::list(pool, Some(stored.id), LIST_MAX).await.map_err(unavailable)?;
    let again = batches::next_attempt(pool, stored.id).await.map_err(unavailable)?;
    let settings = shared.settings();
    let situation = Situation::read(pool, &settings.config, now_ms(), shared.alive_ms())
        .await
        .map_err(unavailable)?;
    let waiting = situation.reason(&stored, &runs, again);
    let mut facts =
        RequestFacts::with_runs(stored.clone(), &runs, |run| situation.is_recent(run.seen));
    facts.waiting = waiting;
    facts.deadline_problem = deadline_problem(&shared, &stored, facts.forecast_seconds).await?;
    Ok(Json(facts))
}

fn audit(asking: &ApiClient, what: &'static str, id: i64, detail: String) -> Audit {
    Audit {
        who: asking.who.name.clone(),
        peer: asking.peer.clone(),
        what,
        object: format!("request {id}"),
        detail,
    }
}

/// Returns the response to a change.
async fn answer(
    shared: &ControllerState,
    id: i64,
    changed: ChangeOutcome,
) -> Result<Json<RequestFacts>, ProblemDetails> {
    let conflict = |text: String| Err(ProblemDetails::new(StatusCode::CONFLICT, text));
    match changed {
        ChangeOutcome::Done => {
            let stored = requests::find(&shared.database.pool, id).await.map_err(unavailable)?;
            let stored = stored.ok_or_else(|| ProblemDetails::not_found(STORED))?;
            let problem = deadline_problem(shared, &stored, None).await?;
            let mut facts = RequestFacts::from(stored);
            facts.deadline_problem = problem;
            Ok(Json(facts))
        }
        ChangeOutcome::Missing => {
            Err(ProblemDetails::not_found(format!("there is no request {id}")))
        }
        ChangeOutcome::Over(state) => {
            conflict(format!("request {id} is {state}: submit another one"))
        }
        ChangeOutcome::Sealed => {
            conflict(format!("request {id} takes no more files: submit another one"))
        }
        ChangeOutcome::OffsetMismatch(files) => Err(ProblemDetails::at(
            StatusCode::CONFLICT,
            "/at",
            format!("request {id} has {files} files: give them from there on"),
        )),
        ChangeOutcome::OverQuota(excess) => Err(over_quota(excess)),
        // `append` reports it, with the file's name.
        ChangeOutcome::Taken { file, .. } => Err(ProblemDetails::at(
            StatusCode::CONFLICT,
            format!("/files/{file}/path"),
            "it is being written for another request: retry later, or leave the file out",
        )),
    }
}

/// Changes a request: priority, deadline, paused.
#[utoipa::path(patch, path = "/api/v1/requests/{id}", operation_id = "change_request", security(("token" = [])),
    params(("id" = i64, Path, description = "Its number")), request_body = ChangeBody, responses(
    (status = 200, body = RequestFacts, description = "The request as it is now"), Refused,
    Unavailable))]
pub(super) async fn change(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<RequestFacts>, ProblemDetails> {
    let stored = seen(&shared, &asking, &id).await?;
    may_change(&shared, &asking, &stored)?;
    let asked: ChangeBody = body(given)?;
    if asked == ChangeBody::default() {
        let text = "nothing to change: give priority, deadline_unix_seconds or paused";
        return Err(ProblemDetails::field("", text));
    }
    asked.priority.map(check_priority).transpose()?;
    let deadline = match asked.deadline_unix_seconds {
        None => None,
        Some(0) => Some(None),
        Some(seconds) => Some(Some(deadline_ms(seconds)?)),
    };
    let wanted =
        RequestChange { priority: asked.priority.map(i64::from), deadline, paused: asked.paused };
    let detail = serde_json::to_string(&asked).expect("plain data");
    let (id, audit) = (stored.id, audit(&asking, "change", stored.id, detail));
    let changed = shared.writer.apply(move |cx| {
        let (wanted, audit) = (wanted.clone(), audit.clone());
        Box::pin(async move { change::change(cx, id, &wanted, audit).await })
    });
    answer(&shared, id, changed.await?).await
}

/// Cancels a request. Transferred files stay; running orders stop soon after.
#[utoipa::path(delete, path = "/api/v1/requests/{id}", operation_id = "cancel_request", security(("token" = [])),
    params(("id" = i64, Path, description = "Its number")), responses(
    (status = 200, body = RequestFacts, description = "The request, which ends soon"), Refused,
    Unavailable))]
pub(super) async fn cancel(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
) -> Result<Json<RequestFacts>, ProblemDetails> {
    let stored = seen(&shared, &asking, &id).await?;
    may_change(&shared, &asking, &stored)?;
    let (id, audit) = (stored.id, audit(&asking, "cancel", stored.id, String::new()));
    let changed = shared.writer.apply(move |cx| {
        let audit = audit.clone();
        Box::pin(async move { cancel::cancel(cx, id, audit).await })
    });
    answer(&shared, id, changed.await?).await
}

/// Files of a request, by number.
#[utoipa::path(get, path = "/api/v1/requests/{id}/files", operation_id = "request_files", security((), ("token" = [])),
    params(("id" = i64, Path, description = "Its number"),
        ("state" = Option<String>, Query, description = "In this state",
            pattern = "^(queued|active|done|failed|cancelled)$"),
        ("after" = Option<i64>, Query, description = "With greater numbers than this"),
        ("limit" = Option<i64>, Query, description = "Largest number of items", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = Files, description = "Files of the request"), Refused,
    Unavailable))]
pub(super) async fn files(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
    given: RawQuery,
) -> Result<Json<Files>, ProblemDetails> {
    let stored = seen(&shared, &asking, &id).await?;
    let mut params = QueryParams::new(given)?;
    let state = params.parsed::<RequestFileState>("state")?;
    let after = params.parsed::<i64>("after")?.unwrap_or(-1);
    let limit = params.limit(LIST_MAX, LIST_MAX)?;
    params.none(PARAMETERS_PAGE)?;
    let found = files::list(&shared.database.pool, stored.id, state, after, limit)
        .await
        .map_err(unavailable)?;
    let next = found.last().map(|last| last.seq).filter(|_| found.len() as i64 == limit);
    let files: Vec<FileFacts> = found.into_iter().map(Into::into).collect();
    Ok(Json(Files { files, next }))
}

/// Appends files to an open request, and seals it.
#[utoipa::path(post, path = "/api/v1/requests/{id}/files", operation_id = "append_files", security(("token" = [])),
    params(("id" = i64, Path, description = "Its number")), request_body = AppendBody, responses(
    (status = 200, body = RequestFacts, description = "The request with the further files"), Refused,
    Unavailable))]
pub(super) async fn append(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<RequestFacts>, ProblemDetails> {
    let stored = seen(&shared, &asking, &id).await?;
    may_change(&shared, &asking, &stored)?;
    let asked: AppendBody = body(given)?;
    if asked.files.is_empty() && !asked.seal {
        return Err(ProblemDetails::field(
            "/files",
            "nothing to append: give files, or seal = true",
        ));
    }
    let at =
        i64::try_from(asked.at).map_err(|_| ProblemDetails::field("/at", "it is too large"))?;
    let new = AppendedFiles { at, files: new_files(&asked.files)?, seal: asked.seal };
    let new = Arc::new(new);
    let detail = format!("{} files, seal {}", new.files.len(), asked.seal);
    let (id, audit) = (stored.id, audit(&asking, "append", stored.id, detail));
    let appended = Arc::clone(&new);
    let changed = shared.writer.apply(move |cx| {
        let (new, audit) = (Arc::clone(&appended), audit.clone());
        Box::pin(async move { append::append(cx, id, &new, audit).await })
    });
    match changed.await? {
        ChangeOutcome::Taken { file, by } => {
            Err(taken(&shared, &asking, &new.files, (file, by)).await?)
        }
        changed => answer(&shared, id, changed).await,
    }
}

/// Events of a request, oldest first.
#[utoipa::path(get, path = "/api/v1/requests/{id}/history", operation_id = "request_history", security((), ("token" = [])),
    params(("id" = i64, Path, description = "Its number"),
        ("after" = Option<i64>, Query, description = "Events with greater numbers than this"),
        ("limit" = Option<i64>, Query, description = "Largest number of items", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = History, description = "Changes of its state"), Refused,
    Unavailable))]
pub(super) async fn history(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
    given: RawQuery,
) -> Result<Json<History>, ProblemDetails> {
    let stored = seen(&shared, &asking, &id).await?;
    let mut params = QueryParams::new(given)?;
    let after = params.parsed::<i64>("after")?.unwrap_or(0);
    let limit = params.limit(LIST_MAX, LIST_MAX)?;
    params.none(PARAMETERS_PAGE)?;
    let found = events::list(&shared.database.pool, Some(stored.id), after, limit)
        .await
        .map_err(unavailable)?;
    let next = found.last().map(|last| last.id).filter(|_| found.len() as i64 == limit);
    Ok(Json(History { events: found.into_iter().map(Into::into).collect(), next }))
}

/// Active orders of a request, each with its rate and the reason for it.
#[utoipa::path(get, path = "/api/v1/requests/{id}/why", operation_id = "waiting_reasons", security((), ("token" = [])),
    params(("id" = i64, Path, description = "Its number")), responses(
    (status = 200, body = Orders, description = "Orders of the request, with the reasons of a wait"), Refused,
    Unavailable))]
pub(super) async fn why(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
) -> Result<Json<Orders>, ProblemDetails> {
    let stored = seen(&shared, &asking, &id).await?;
    let runs =
        runs::list(&shared.database.pool, Some(stored.id), LIST_MAX).await.map_err(unavailable)?;
    let recent = now_ms() - shared.alive_ms();
    let orders = runs.into_iter().map(|run| OrderFacts::at(run, |run| run.seen >= recent));
    Ok(Json(Orders { orders: orders.collect() }))
}
