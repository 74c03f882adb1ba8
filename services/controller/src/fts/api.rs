//! Paths of the REST interface of FTS3 below `/fts`.
//!
//! Clients join paths with double slashes and name several jobs in one segment, so that one handler reads the segments.
//! Errors are objects with `status` and `message`. A client is authenticated by a token of the controller: as a bearer,
//! or as the password of basic authentication, which Rucio takes from a `.netrc` file.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penstock_control::fts::state::{FtsFileEvent, FtsJobState};
use penstock_control::fts::submission::{FtsSubmission, priority_of};
use penstock_http::ApiCaller;
use penstock_http::PROBLEM_JSON;
use penstock_http::server::PeerAddress;
use serde_json::{Value, json};

use super::policy::FtsPolicy;
use super::submit::{FtsSubmitter, SubmissionError};
use super::token_key::TokenKey;
use super::{submit, views};
use crate::access::AuthorizedClient;
use crate::api::BODY_BYTES_MAX;
use crate::issuers::identify;
use crate::problem::{ProblemDetails, unavailable};
use crate::repository::fts::{self, FtsFileChange, FtsJobFilter, FtsJobRow, FtsJobViewer};
use crate::repository::{Audit, now_ms};
use crate::shared::ControllerState;
use crate::use_cases::fts_requests;

/// Most jobs in one request.
const JOBS_PER_REQUEST_MAX: usize = 1000;

/// Most jobs of a list.
const LISTED_JOBS_MAX: i64 = 500;

/// An error as clients of FTS3 read it.
#[derive(Debug)]
struct FtsProblem(StatusCode, String);

impl From<ProblemDetails> for FtsProblem {
    fn from(problem: ProblemDetails) -> Self {
        let status = StatusCode::from_u16(problem.status);
        Self(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), problem.detail)
    }
}

impl From<crate::repository::DatabaseError> for FtsProblem {
    fn from(error: crate::repository::DatabaseError) -> Self {
        unavailable(error).into()
    }
}

impl From<crate::repository::WriteError> for FtsProblem {
    fn from(error: crate::repository::WriteError) -> Self {
        ProblemDetails::from(error).into()
    }
}

impl IntoResponse for FtsProblem {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        let body = json!({"status": status_text(status), "message": message}).to_string();
        // The server turns errors of other types into its own form, which has no `message`.
        (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
    }
}

fn status_text(status: StatusCode) -> String {
    format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or_default())
}

type FtsAnswer = Result<Response, FtsProblem>;

fn ok(value: Value) -> FtsAnswer {
    Ok(axum::Json(value).into_response())
}

fn bad(message: impl Into<String>) -> FtsProblem {
    FtsProblem(StatusCode::BAD_REQUEST, message.into())
}

/// Returns true if `path` belongs to this interface.
pub(crate) fn is_fts(path: &str) -> bool {
    path == "/fts" || path.starts_with("/fts/")
}

pub(crate) fn router(shared: Arc<ControllerState>) -> Router {
    Router::new()
        .route("/fts", any(serve))
        .route("/fts/", any(serve))
        .route("/fts/{*path}", any(serve))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), authenticate))
        .with_state(shared)
}

/// Returns the password of basic authentication.
fn basic_password(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    let decoded =
        STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    String::from_utf8(decoded).ok()?.split_once(':').map(|(_, password)| password.to_owned())
}

/// Identifies the client and enforces its rate limit.
async fn authenticate(
    State(shared): State<Arc<ControllerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let basic = basic_password(request.headers()).map(ApiCaller::Bearer);
    let caller = basic.as_ref().or_else(|| request.extensions().get::<ApiCaller>());
    let settings = shared.settings();
    match identify(&shared, &settings, caller).await {
        Ok(who) if settings.limiter.admits(&who.name) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Ok(_) => {
            let text = "too many requests in a second: wait a second".to_owned();
            FtsProblem(StatusCode::TOO_MANY_REQUESTS, text).into_response()
        }
        Err(problem) => {
            shared.counters.refused();
            FtsProblem::from(problem).into_response()
        }
    }
}

/// A request with its client and settings.
struct FtsRequest {
    shared: Arc<ControllerState>,
    policy: FtsPolicy,
    who: AuthorizedClient,
    peer: String,
    query: Vec<(String, String)>,
    body: Bytes,
}

async fn serve(State(shared): State<Arc<ControllerState>>, request: Request) -> Response {
    handle(shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn handle(shared: Arc<ControllerState>, request: Request) -> FtsAnswer {
    let Some(policy) = shared.settings().config.fts.clone() else {
        let text = "the interface of FTS3 is off: add [controller.fts] with storages".to_owned();
        return Err(FtsProblem(StatusCode::NOT_FOUND, text));
    };
    let who = request.extensions().get::<AuthorizedClient>().cloned();
    let who = who.ok_or_else(|| ProblemDetails::unauthorized("give a token"))?;
    if !who.is_client() {
        return Err(ProblemDetails::forbidden("the token is one of a host, not of a client").into());
    }
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0.ip().to_string());
    let method = request.method().clone();
    let path = request.uri().path();
    let path = path.strip_prefix("/fts").unwrap_or(path).to_owned();
    let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(request.uri());
    let query = query.map_err(|error| bad(error.body_text()))?.0;
    let body = <Bytes as axum::extract::FromRequest<()>>::from_request(request, &()).await;
    let body = body.map_err(|error| FtsProblem(error.status(), error.body_text()))?;
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let request = FtsRequest { shared, policy, who, peer: peer.unwrap_or_default(), query, body };
    match (&method, segments.as_slice()) {
        (&Method::GET, []) => ok(version()),
        (&Method::GET, ["whoami"]) => ok(request.whoami()),
        (&Method::POST | &Method::PUT, ["jobs"]) => request.submit().await,
        (&Method::GET, ["jobs"]) => request.list().await,
        (&Method::GET, ["jobs", ids]) => request.jobs(ids).await,
        (&Method::GET, ["jobs", id, "files"]) => request.files(id).await,
        (&Method::GET, ["jobs", id, "dm"]) => {
            request.job(id).await?;
            ok(json!([]))
        }
        (&Method::GET, ["jobs", id, field]) => request.field(id, field).await,
        (&Method::DELETE, ["jobs", ids]) => request.cancel(ids).await,
        (&Method::DELETE, ["jobs", id, "files", files]) => request.cancel_files(id, files).await,
        (&Method::POST, ["jobs", ids]) => request.change(ids).await,
        (&Method::GET, ["config", "se"]) => ok(json!({})),
        (&Method::GET, ["ban", "dn"]) => ok(json!([])),
        (&Method::GET, ["ban", "se"]) => request.bans().await,
        (&Method::POST | &Method::DELETE, ["ban", "se"]) => request.ban(&method).await,
        (&Method::GET, ["status", "hosts"]) => request.hosts().await,
        (&Method::GET, ["delegation", _]) => ok(Value::Null),
        (_, ["delegation", ..]) => {
            let text =
                "credentials are not delegated here: submit with a token (--fts-access-token)";
            Err(bad(text))
        }
        _ => {
            let text = format!("the interface of FTS3 has no {method} {path}: see docs/fts.md");
            Err(FtsProblem(StatusCode::NOT_FOUND, text))
        }
    }
}

fn version() -> Value {
    let version = json!({"major": 3, "minor": 14, "patch": 0});
    json!({
        "delegation": {"major": 1, "minor": 0, "patch": 0},
        "api": version,
        "core": version,
        "schema": {"major": 8, "minor": 0, "patch": 0},
        "_links": {"curies": []},
        "server": concat!("penstock/", env!("CARGO_PKG_VERSION")),
    })
}

impl FtsRequest {
    /// Classes that the client may submit to, which are its VOs.
    fn classes(&self) -> Vec<String> {
        let settings = self.shared.settings();
        let classes = settings.config.classes.iter().filter(|class| self.who.may_submit(class));
        classes.map(|class| class.name.clone()).collect()
    }

    fn whoami(&self) -> Value {
        let name = &self.who.name;
        let vos = self.classes();
        let vo_ids: Vec<String> = vos.iter().map(|vo| submit::client_id(vo)).collect();
        let level = if self.who.may_operate() { "all" } else { "private" };
        json!({
            "user_dn": name,
            "dn": [name],
            "base_id": submit::base_id(),
            "delegation_id": submit::client_id(name),
            "voms_cred": [],
            "vos": vos,
            "vos_id": vo_ids,
            "roles": [],
            "level": {"transfer": level},
            "method": "oauth2",
            "is_root": false,
        })
    }

    fn audit(&self, what: &'static str, object: &str, detail: String) -> Audit {
        let (who, peer) = (self.who.name.clone(), self.peer.clone());
        Audit { who, peer, what, object: object.to_owned(), detail }
    }

    async fn submit(&self) -> FtsAnswer {
        let job = FtsSubmission::parse(&self.body).map_err(|error| bad(error.to_string()))?;
        let client = FtsSubmitter { name: self.who.name.clone(), classes: self.classes() };
        if client.classes.is_empty() {
            let text = "the token may submit to no class: it needs the scope submit:CLASS";
            return Err(ProblemDetails::forbidden(text).into());
        }
        let settings = self.shared.settings();
        let key = TokenKey::load(&self.policy, &self.shared.directory)
            .map_err(|error| FtsProblem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        let refused = |error: SubmissionError| bad(error.to_string());
        let (row, files) =
            submit::rows(job, &client, &self.policy, &settings.config, &key, now_ms())
                .map_err(refused)?;
        let bans = fts::bans(&self.shared.database.pool).await?;
        let is_banned = |pair: &str| {
            let ban = bans.iter().find(|ban| submit::is_in_pair(pair, &ban.storage));
            ban.map(|ban| ban.storage.clone())
        };
        if let Some(storage) = files.iter().find_map(|file| is_banned(&file.pair)) {
            let text = format!("{storage} is banned: see GET /fts/ban/se");
            return Err(ProblemDetails::forbidden(text).into());
        }
        let uuid = row.uuid.clone();
        let audit = self.audit("fts submit", &uuid, format!("{} files", files.len()));
        let written = self.shared.writer.apply(move |cx| {
            let (row, files, audit) = (row.clone(), files.clone(), audit.clone());
            Box::pin(async move {
                let is_new = fts::insert(cx, &row, &files).await?;
                if is_new {
                    cx.audit(audit);
                }
                Ok(is_new)
            })
        });
        if !written.await? {
            let text = format!("The job id {uuid} already exists");
            return Err(FtsProblem(StatusCode::CONFLICT, text));
        }
        self.shared.fts_notify.notify_one();
        ok(json!({"job_id": uuid}))
    }

    /// Returns a job that the client may see.
    async fn job(&self, uuid: &str) -> Result<FtsJobRow, FtsProblem> {
        let job = fts::job(&self.shared.database.pool, &uuid.to_ascii_lowercase()).await?;
        match job.filter(|job| job.client == self.who.name || self.who.may_see(&job.class)) {
            Some(job) => Ok(job),
            None => {
                let text = format!("No job with the id {uuid} has been found");
                Err(FtsProblem(StatusCode::NOT_FOUND, text))
            }
        }
    }

    /// Returns a job that the client may change.
    async fn own_job(&self, uuid: &str) -> Result<FtsJobRow, FtsProblem> {
        let job = self.job(uuid).await?;
        if job.client != self.who.name && !self.who.may_change(&job.class) {
            let text = format!("the token may not change the job {uuid} of {}", job.client);
            return Err(ProblemDetails::forbidden(text).into());
        }
        Ok(job)
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }

    async fn list(&self) -> FtsAnswer {
        let text = |name| self.parameter(name).map(str::to_owned);
        let states = self.parameter("state_in").map(|names| {
            let named = |state: &FtsJobState| names.split(',').any(|name| name == state.as_str());
            FtsJobState::ALL.into_iter().filter(named).collect::<Vec<_>>()
        });
        if states.as_ref().is_some_and(Vec::is_empty) {
            return ok(json!([]));
        }
        let limit = self.parameter("limit").map(str::parse::<i64>).transpose();
        let limit = limit.map_err(|_| bad("limit: a whole number"))?;
        let mut client = text("user_dn");
        if let Some(id) = self.parameter("dlg_id") {
            let meant = self.client_of(id).await?;
            match meant.filter(|meant| client.as_ref().is_none_or(|client| client == meant)) {
                Some(meant) => client = Some(meant),
                None => return ok(json!([])),
            }
        }
        let viewer =
            self.who.sees().map(|classes| FtsJobViewer { client: self.who.name.clone(), classes });
        let filter = FtsJobFilter {
            client,
            class: text("vo_name"),
            source: text("source_se"),
            destination: text("dest_se"),
            states: states.unwrap_or_default(),
            viewer,
            limit: limit.unwrap_or(LISTED_JOBS_MAX).clamp(1, LISTED_JOBS_MAX),
        };
        let jobs = fts::list(&self.shared.database.pool, &filter).await?;
        ok(Value::Array(jobs.iter().map(views::job).collect()))
    }

    /// Returns the name of the client with a delegation id: the own one, or that of a job.
    async fn client_of(&self, delegation: &str) -> Result<Option<String>, FtsProblem> {
        let is_meant = |name: &String| delegation == submit::client_id(name);
        if is_meant(&self.who.name) {
            return Ok(Some(self.who.name.clone()));
        }
        let clients = fts::clients(&self.shared.database.pool).await?;
        Ok(clients.into_iter().find(is_meant))
    }

    /// Runs `work` for each of the comma-separated ids; several make a list with the status of each.
    fn ids(given: &str) -> Result<Vec<&str>, FtsProblem> {
        let ids: Vec<&str> = given.split(',').filter(|id| !id.is_empty()).collect();
        match ids.len() {
            0 => Err(bad("give the id of a job")),
            1..=JOBS_PER_REQUEST_MAX => Ok(ids),
            _ => Err(bad(format!("give at most {JOBS_PER_REQUEST_MAX} ids of jobs"))),
        }
    }

    /// Answers for one id with its object or error, for several with a list and 207 if one of them failed.
    fn several(mut results: Vec<(String, Result<Value, FtsProblem>)>) -> FtsAnswer {
        if results.len() == 1 {
            let (_, result) = results.remove(0);
            return ok(result?);
        }
        let has_failed = results.iter().any(|(_, result)| result.is_err());
        let each = results.into_iter().map(|(id, result)| {
            result.unwrap_or_else(|FtsProblem(status, message)| {
                json!({"job_id": id, "http_status": status_text(status), "http_message": message})
            })
        });
        let list = axum::Json(Value::Array(each.collect()));
        let status = if has_failed { StatusCode::MULTI_STATUS } else { StatusCode::OK };
        Ok((status, list).into_response())
    }

    async fn view(&self, uuid: &str) -> Result<Value, FtsProblem> {
        let job = self.job(uuid).await?;
        let mut view = views::job(&job);
        if let Some(keys) = self.parameter("files") {
            let keys: Vec<&str> = keys.split(',').collect();
            view["files"] = self.file_views(&job, &keys).await?;
        }
        Ok(view)
    }

    async fn file_views(&self, job: &FtsJobRow, keys: &[&str]) -> Result<Value, FtsProblem> {
        let files = fts::files(&self.shared.database.pool, job.id).await?;
        let files = files.iter().enumerate();
        Ok(files.map(|(index, file)| views::only(views::file(job, file, index), keys)).collect())
    }

    async fn jobs(&self, ids: &str) -> FtsAnswer {
        let mut results = Vec::new();
        for id in Self::ids(ids)? {
            results.push((id.to_owned(), self.view(id).await));
        }
        Self::several(results)
    }

    async fn files(&self, id: &str) -> FtsAnswer {
        let job = self.job(id).await?;
        ok(self.file_views(&job, &[]).await?)
    }

    async fn field(&self, id: &str, field: &str) -> FtsAnswer {
        match views::job(&self.job(id).await?).get(field) {
            Some(value) => ok(value.clone()),
            None => Err(FtsProblem(StatusCode::NOT_FOUND, format!("a job has no field {field}"))),
        }
    }

    async fn end_files(&self, job: &FtsJobRow, files: Option<Vec<i64>>) -> Result<(), FtsProblem> {
        let audit = self.audit("fts cancel", &job.uuid, String::new());
        let id = job.id;
        let written = self.shared.writer.apply(move |cx| {
            let (audit, files) = (audit.clone(), files.clone());
            Box::pin(async move {
                let mut cancelled = FtsFileChange::new(FtsFileEvent::Cancelled);
                cancelled.reason = Some(format!("cancelled by {}", audit.who));
                let ids = files.as_deref();
                if fts_requests::end_files(cx, id, ids, &cancelled, &audit).await? > 0 {
                    cx.audit(audit);
                }
                Ok(())
            })
        });
        written.await?;
        self.shared.fts_notify.notify_one();
        Ok(())
    }

    async fn cancel_one(&self, uuid: &str) -> Result<Value, FtsProblem> {
        let job = self.own_job(uuid).await?;
        self.end_files(&job, None).await?;
        Ok(views::job(&self.job(uuid).await?))
    }

    async fn cancel(&self, ids: &str) -> FtsAnswer {
        let mut results = Vec::new();
        for id in Self::ids(ids)? {
            results.push((id.to_owned(), self.cancel_one(id).await));
        }
        Self::several(results)
    }

    /// Cancels files by their ids.
    async fn cancel_files(&self, id: &str, files: &str) -> FtsAnswer {
        let job = self.own_job(id).await?;
        let all = fts::files(&self.shared.database.pool, job.id).await?;
        let mut meant = Vec::new();
        for text in Self::ids(files)? {
            let number: i64 = text.parse().map_err(|_| bad(format!("'{text}' is no file")))?;
            match all.iter().find(|file| file.id == number) {
                Some(file) => meant.push(file.id),
                None => {
                    let text = format!("the job {id} has no file {number}");
                    return Err(FtsProblem(StatusCode::NOT_FOUND, text));
                }
            }
        }
        self.end_files(&job, Some(meant.clone())).await?;
        let after = fts::files(&self.shared.database.pool, job.id).await?;
        let state = |id: &i64| {
            let file = after.iter().find(|file| file.id == *id);
            file.map_or(Value::Null, |file| json!(file.state.as_str()))
        };
        let states: Vec<Value> = meant.iter().map(state).collect();
        ok(Value::Array(states))
    }

    async fn change(&self, ids: &str) -> FtsAnswer {
        let body: Value =
            serde_json::from_slice(&self.body).map_err(|error| bad(error.to_string()))?;
        let params = body.get("params").and_then(Value::as_object);
        let given = params.map(priority_of).transpose().map_err(|error| bad(error.to_string()))?;
        let Some(priority) = given.flatten() else {
            return Err(bad("give params.priority, the only property of a job that changes"));
        };
        let mut results = Vec::new();
        for id in Self::ids(ids)? {
            let changed = async {
                let job = self.own_job(id).await?;
                let audit = self.audit("fts priority", &job.uuid, priority.to_string());
                let written = self.shared.writer.apply(move |cx| {
                    let audit = audit.clone();
                    Box::pin(async move {
                        fts_requests::set_priority(cx, job.id, priority, &audit).await?;
                        cx.audit(audit);
                        Ok(())
                    })
                });
                written.await?;
                Ok(views::job(&self.job(id).await?))
            };
            results.push((id.to_owned(), changed.await));
        }
        Self::several(results)
    }

    async fn bans(&self) -> FtsAnswer {
        let bans = fts::bans(&self.shared.database.pool).await?;
        let view = |ban: &fts::FtsBanRow| json!({"se": ban.storage, "addition_time": views::time(ban.since), "admin_dn": ban.client, "status": ban.status, "wait_timeout": 0});
        ok(bans.iter().map(view).collect())
    }

    async fn ban(&self, method: &Method) -> FtsAnswer {
        if !self.who.may_operate() {
            return Err(ProblemDetails::forbidden("bans need the scope operate").into());
        }
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let named =
            body.get("storage").and_then(Value::as_str).or_else(|| self.parameter("storage"));
        let Some(storage) = named.filter(|storage| storage.contains("://") && storage.len() < 512)
        else {
            return Err(bad("give storage, such as https://se.example.org"));
        };
        let storage = submit::banned_storage(storage);
        let is_ban = *method == Method::POST;
        let status = match body.get("status").filter(|status| !status.is_null()) {
            None => "CANCEL",
            Some(status) => {
                let is_named = |name: &&str| {
                    status.as_str().is_some_and(|text| text.eq_ignore_ascii_case(name))
                };
                let named = ["CANCEL", "WAIT"].into_iter().find(is_named);
                named.ok_or_else(|| bad("status: write CANCEL or WAIT"))?
            }
        };
        let cancels = is_ban && status == "CANCEL";
        let audit =
            self.audit(if is_ban { "fts ban" } else { "fts unban" }, &storage, String::new());
        let (given, client) = (storage.clone(), is_ban.then(|| self.who.name.clone()));
        let written = self.shared.writer.apply(move |cx| {
            let (storage, client, audit) = (given.clone(), client.clone(), audit.clone());
            Box::pin(async move {
                let jobs = match cancels {
                    true => fts_requests::cancel_storage(cx, &storage, &audit).await?,
                    false => Vec::new(),
                };
                cx.audit(audit);
                let ban = client.as_deref().map(|client| (client, status));
                fts::set_ban(cx, &storage, ban).await?;
                Ok(jobs)
            })
        });
        let jobs = written.await?;
        self.shared.fts_notify.notify_one();
        match is_ban {
            true => ok(json!(jobs)),
            false => Ok(StatusCode::NO_CONTENT.into_response()),
        }
    }

    async fn hosts(&self) -> FtsAnswer {
        let active = fts::active_count(&self.shared.database.pool).await?;
        ok(json!({"controller": {"active": active, "staging": 0}}))
    }
}
