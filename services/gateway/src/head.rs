//! Head node: redirects clients to the agents behind it.
//!
//! ```text
//! client ── PUT /store/f ── head node ── 307, Location: https://dtn2.../store/f?authz=Bearer%20pr1...
//!        └─ PUT /store/f?authz=... ── dtn2 ── file system of the site
//! ```
//!
//! The head node authenticates the client, checks its permission, and chooses the agent that has most room by the reports
//! that it asks all agents for each second. The token in the URL is for this request alone ([`penstock_tokens::redirect`]):
//! clients send no credentials to another host. Metadata and copies inside the exports stay here, as the agents export the
//! same file system. Where no agent has room the head node moves the file itself, unless `serves` is false.
//!
//! Not for: requests that were redirected here (`redirected`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use penstock_http::ProblemDetails;
use penstock_http::client::{HttpClient, HttpError, HttpRequest, ServerTrust, Url};
use penstock_http::tokens::CONTROLLER;
use penstock_mover::Caller;
use penstock_scopes::PathAccess;
use penstock_sys::fs::Kind;
use penstock_sys::machine::unix_seconds;
use penstock_tokens::redirect::REDIRECT_LIFETIME_S;
use penstock_tokens::{RedirectGrant, RedirectKey, RedirectTokenError, RedirectedClient};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::dispatch::{DavRequest, Gateway, blocking};
use crate::namespace;
use crate::redirected::{ROOM_PATH, ROOT_OPEN_METHOD};
use crate::third_party::{CopyDirection, CopyEnds};
use crate::url_path::encode;

mod candidates;
pub(crate) mod config;

pub(crate) use candidates::{AgentRoom, ExportRoom};

use candidates::{AvailabilityChange, Candidates, NoRoom, PollFailure, RoomRequest};
use config::HeadConfig;

/// Time between two reports of an agent.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time for an agent to report.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest report in bytes.
const REPORT_BYTES_MAX: usize = 1 << 20;

/// Pause that clients are asked for while no agent has room, in seconds.
pub(crate) const NO_ROOM_RETRY_AFTER_S: u16 = 5;

/// Clients that show a redirect as an error, by the beginning of `User-Agent`.
const FOLLOWING_NO_REDIRECT: [&str; 1] = ["cadaver/"];

/// A report that did not come.
#[derive(Debug, thiserror::Error)]
enum RoomReportError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("it answers {0}{1}")]
    Status(StatusCode, String),
    #[error("its report is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl RoomReportError {
    fn failure(&self) -> PollFailure {
        match self {
            Self::Http(HttpError::Connect { .. }) => PollFailure::Refused,
            _ => PollFailure::Unclear,
        }
    }
}

/// A gateway in front of others.
pub(crate) struct HeadNode {
    key: Arc<RedirectKey>,
    agents: Vec<Url>,
    serves: bool,
    candidates: Mutex<Candidates>,
    redirected: AtomicU64,
    without_room: AtomicU64,
}

impl HeadNode {
    pub(crate) fn new(config: HeadConfig) -> Self {
        let HeadConfig { key, agents, serves } = config;
        let candidates = Mutex::new(Candidates::new(agents.len()));
        let (redirected, without_room) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { key, agents, serves, candidates, redirected, without_room }
    }

    fn candidates(&self) -> MutexGuard<'_, Candidates> {
        self.candidates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of agents that answer.
    pub(crate) fn available(&self) -> usize {
        self.candidates().available()
    }

    /// Requests redirected so far, and those for which no agent had room.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.redirected.load(Ordering::Relaxed), self.without_room.load(Ordering::Relaxed))
    }

    /// Asks all agents for their room until `stopped`, each in a task of its own.
    pub(crate) fn watch_agents(
        self: &Arc<Self>,
        trust: &ServerTrust,
        stopped: &watch::Receiver<bool>,
    ) {
        for number in 0..self.agents.len() {
            tokio::spawn(Arc::clone(self).watch_agent(number, trust.clone(), stopped.clone()));
        }
    }

    async fn watch_agent(
        self: Arc<Self>,
        number: usize,
        trust: ServerTrust,
        mut stopped: watch::Receiver<bool>,
    ) {
        let url = &self.agents[number];
        let mut client = HttpClient::new(url.clone()).trust(trust);
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Reason for which no client gets there, as it was logged last.
        let mut logged: Option<String> = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.changed() => return,
            }
            let report = self.ask(&mut client, url).await;
            let failure = report.as_ref().err().map(ToString::to_string);
            let change = self.candidates().report(number, report.map_err(|error| error.failure()));
            match (change, failure) {
                (Some(AvailabilityChange::Returned), _) => {
                    tracing::info!("{url}: redirects go there");
                    logged = None;
                }
                (Some(AvailabilityChange::Lost), Some(failure)) => {
                    tracing::warn!("{url}: no redirects go there: {failure}");
                    logged = Some(failure);
                }
                (None, Some(failure)) if logged.as_ref().is_some_and(|was| *was != failure) => {
                    tracing::warn!("{url}: still no redirects go there: {failure}");
                    logged = Some(failure);
                }
                _ => {}
            }
        }
    }

    /// Asks an agent for its room.
    async fn ask(&self, client: &mut HttpClient, url: &Url) -> Result<AgentRoom, RoomReportError> {
        let grant = RedirectGrant {
            method: Method::GET.to_string(),
            path: ROOM_PATH.as_bytes().to_vec(),
            host: url.authority(),
            client: None,
            expires_s: unix_seconds() + REDIRECT_LIFETIME_S,
        };
        let token = self.key.seal(&grant).expect("a token without rights is short");
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).expect("letters and digits");
        let request = HttpRequest::new(Method::GET, ROOM_PATH)
            .header(header::AUTHORIZATION, bearer)
            .bytes_max(REPORT_BYTES_MAX)
            .timeout(POLL_TIMEOUT);
        let response = client.send(request).await?;
        if !response.status.is_success() {
            let text = response.problem().map(|text| format!(": {text}")).unwrap_or_default();
            return Err(RoomReportError::Status(response.status, text));
        }
        Ok(serde_json::from_slice(&response.body)?)
    }

    /// Token with which `caller` may send this one request to the agent at `url`.
    fn seal(
        &self,
        url: &Url,
        method: &str,
        path: &[u8],
        caller: &Caller,
    ) -> Result<String, RedirectTokenError> {
        let client =
            RedirectedClient { name: caller.name.clone(), grant: caller.grant.as_deref().cloned() };
        let sealed = self.key.seal(&RedirectGrant {
            method: method.to_owned(),
            path: path.to_vec(),
            host: url.authority(),
            client: Some(client),
            expires_s: unix_seconds() + REDIRECT_LIFETIME_S,
        });
        sealed.inspect_err(|error| tracing::debug!("{} is not redirected: {error}", caller.name))
    }

    /// Answers for a request for which no agent has room; `None` where this gateway moves the file.
    fn without_room(&self, reason: NoRoom) -> Option<ProblemDetails> {
        self.without_room.fetch_add(1, Ordering::Relaxed);
        if self.serves {
            return None;
        }
        let candidates = self.candidates();
        let (available, all) = (candidates.available(), candidates.count());
        let text = match reason {
            NoRoom::Unavailable => {
                format!(
                    "no agent serves this path now ({available} of {all} agents answer): try again"
                )
            }
            NoRoom::Transfers => {
                format!("all transfers of the {available} agents that answer are taken: try again")
            }
            NoRoom::Space => {
                let text = "no agent has the space for a file of this length: remove files, or use another site";
                return Some(ProblemDetails::new(StatusCode::INSUFFICIENT_STORAGE, text));
            }
        };
        let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, text);
        Some(problem.retry_after(NO_ROOM_RETRY_AFTER_S))
    }
}

/// Redirects a request that moves a file; `None` for another one, and where this gateway serves it.
///
/// # Errors
/// 503 or 507 where no agent has room and this gateway moves no files itself.
pub(crate) async fn redirect(
    gateway: &Arc<Gateway>,
    head: &HeadNode,
    request: &DavRequest,
) -> Result<Option<Response>, ProblemDetails> {
    let Some((writes, bytes)) = movement(gateway, head, request).await else { return Ok(None) };
    let path = request.path.bytes();
    let chosen = head.candidates().choose(RoomRequest { path, writes, bytes, by_root: false });
    let url = match chosen {
        Ok(number) => &head.agents[number],
        Err(reason) => return head.without_room(reason).map_or(Ok(None), Err),
    };
    let Ok(token) = head.seal(url, request.method.as_str(), path, &request.caller) else {
        return Ok(None);
    };
    let location = location(url, path, request.query.as_deref(), &token);
    let Ok(location) = HeaderValue::from_str(&location) else { return Ok(None) };
    head.redirected.fetch_add(1, Ordering::Relaxed);
    tracing::debug!("{} {} goes to {}", request.method, request.path.shown(), url.authority());
    let mut headers = HeaderMap::new();
    headers.insert(header::LOCATION, location);
    // The URL holds a secret.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // HTTP/1.0 knows no 307.
    let status = match request.version {
        Version::HTTP_09 | Version::HTTP_10 => StatusCode::FOUND,
        _ => StatusCode::TEMPORARY_REDIRECT,
    };
    Ok(Some((status, headers).into_response()))
}

/// Agent to which a client of `root://` is redirected.
pub(crate) struct RootTarget<'a> {
    /// Host without brackets.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    /// Token for the file.
    pub(crate) token: String,
}

/// Chooses the agent at which a client of `root://` opens the file `path`; `None` where this gateway serves it.
///
/// # Errors
/// With the reason to ask again where no agent has room and this gateway moves no files itself.
pub(crate) fn redirect_root<'a>(
    head: &'a HeadNode,
    caller: &Caller,
    path: &[u8],
) -> Result<Option<RootTarget<'a>>, ProblemDetails> {
    if caller.pass.is_some() || caller.name == CONTROLLER {
        return Ok(None);
    }
    let request = RoomRequest { path, writes: false, bytes: 0, by_root: true };
    let chosen = {
        let mut candidates = head.candidates();
        candidates.choose(request).map(|number| (number, candidates.root_port(number)))
    };
    let (url, port) = match chosen {
        Ok((number, Some(port))) => (&head.agents[number], port),
        Ok((_, None)) => return Ok(None),
        Err(reason) => return head.without_room(reason).map_or(Ok(None), Err),
    };
    let Ok(token) = head.seal(url, ROOT_OPEN_METHOD, path, caller) else { return Ok(None) };
    head.redirected.fetch_add(1, Ordering::Relaxed);
    Ok(Some(RootTarget { host: url.host_and_port().0, port, token }))
}

/// Direction and size of the data that a request moves; `None` if it moves none, or this gateway has to answer it.
async fn movement(
    gateway: &Arc<Gateway>,
    head: &HeadNode,
    request: &DavRequest,
) -> Option<(bool, u64)> {
    let agent = request.header(header::USER_AGENT).unwrap_or_default();
    let caller = &request.caller;
    if FOLLOWING_NO_REDIRECT.iter().any(|name| agent.starts_with(name))
        || caller.pass.is_some()
        || caller.name == CONTROLLER
        || request.is_redirected
    {
        return None;
    }
    match request.method.as_str() {
        "GET" => readable(gateway, request).await.then_some((false, 0)),
        "PUT" => {
            // Other clients have begun to send the file, and would have to send it again.
            let waits = request.headers.contains_key(header::EXPECT) || !head.serves;
            let length = request.header(header::CONTENT_LENGTH);
            let bytes = length.and_then(|text| text.parse().ok()).unwrap_or(0);
            (waits && writable(gateway, request)).then_some((true, bytes))
        }
        "COPY" => match CopyEnds::of(&request.headers) {
            Ok(CopyEnds::ThirdParty(copy)) => match copy.direction {
                CopyDirection::Pull => writable(gateway, request).then_some((true, 0)),
                CopyDirection::Push => readable(gateway, request).await.then_some((false, 0)),
            },
            _ => None,
        },
        _ => None,
    }
}

/// Returns true for a file that the client may read; this gateway answers for anything else.
async fn readable(gateway: &Arc<Gateway>, request: &DavRequest) -> bool {
    let Ok(Some(place)) = gateway.place(request, PathAccess::Read) else { return false };
    let found = blocking(move || namespace::stat(&place)).await;
    matches!(found, Ok(Some(stat)) if stat.kind == Kind::File)
}

/// Returns true for a path at which the client may create a file.
fn writable(gateway: &Gateway, request: &DavRequest) -> bool {
    !request.path.is_collection() && gateway.write_target(request, &request.path).is_ok()
}

/// URL of a request at another agent. A token of the client's own in the query stays here.
fn location(agent: &Url, path: &[u8], query: Option<&str>, token: &str) -> String {
    let scheme = if agent.is_encrypted() { "https" } else { "http" };
    let mut url = format!("{scheme}://{}{}?", agent.authority(), encode(path));
    let kept = query.unwrap_or_default().split('&');
    for pair in kept.filter(|pair| !pair.is_empty() && !pair.starts_with("authz=")) {
        url += pair;
        url += "&";
    }
    url + "authz=Bearer%20" + token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_keeps_the_query() {
        let agent: Url = "https://dtn2.example.org:8443".parse().unwrap();
        for (query, expected) in [
            (None, "authz=Bearer%20pr1.x.y"),
            (Some("authz=Bearer%20secret"), "authz=Bearer%20pr1.x.y"),
            (
                Some("oss.asize=3&authz=Bearer%20secret&scitag.flow=65"),
                "oss.asize=3&scitag.flow=65&authz=Bearer%20pr1.x.y",
            ),
        ] {
            let url = location(&agent, b"/store/a b", query, "pr1.x.y");
            assert_eq!(url, format!("https://dtn2.example.org:8443/store/a%20b?{expected}"));
        }
    }
}
