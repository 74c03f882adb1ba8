//! From a request to its method.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use futures_util::StreamExt;
use penstock_http::ProblemDetails;
use penstock_http::server::HttpConnection;
use penstock_http::storage_client::StorageConnections;
use penstock_mover::{Agent, Caller, Gatekeeper, HiddenNames, ResolvedPath, is_temporary_name};
use penstock_protocol::digest::{Algorithm, Digest};
use penstock_protocol::open::{Mark, Refusal, RefusalKind};
use penstock_scopes::PathAccess;
use penstock_sys::buffer::BufferPool;
use penstock_tokens::{RedirectKey, TokenMinter};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

use crate::access::{CHALLENGES, authenticate, token_in_query};
use crate::account::requested_scitag;
use crate::conditions::keeps_existing;
use crate::config::Config;
use crate::error::refused;
use crate::head::HeadNode;
use crate::read::{CHUNK_BYTES, POOLED_CHUNKS_MAX};
use crate::third_party::{self, CopyEnds, check_overwrite};
use crate::url_path::UrlPath;
use crate::{digest, head, macaroon, namespace, properties, read, redirected, write};

/// Largest head of a request, in bytes.
const HEADERS_BYTES_MAX: usize = 64 << 10;

/// Digests that are computed at once.
const DIGESTS_MAX: usize = 2;

/// Body of a refused request that is read, so that its client gets the answer and may use the connection again.
const DRAIN_BYTES_MAX: usize = 4 << 20;

/// Time for that.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Methods of a file or collection.
const ALLOWED: &str = "OPTIONS, GET, HEAD, PUT, DELETE, MKCOL, COPY, MOVE, PROPFIND, PROPPATCH";

/// Shared state of the handlers.
pub(crate) struct Gateway {
    pub(crate) agent: Agent,
    pub(crate) keeper: Arc<dyn Gatekeeper>,
    pub(crate) minter: Arc<dyn TokenMinter>,
    pub(crate) config: Config,
    /// Hidden names of uploads and copies in progress.
    pub(crate) hidden_names: HiddenNames,
    /// Agents behind this gateway.
    pub(crate) head: Option<Arc<HeadNode>>,
    /// Port of `root://`, if it is served.
    pub(crate) root_port: Option<u16>,
    /// Permits to compute a digest.
    pub(crate) digests: Arc<Semaphore>,
    /// Buffers for chunks of files.
    pub(crate) buffers: BufferPool,
    /// Connections of third-party copies.
    pub(crate) storages: OnceCell<Arc<StorageConnections>>,
}

/// A request whose client is known.
#[derive(Debug, Clone)]
pub(crate) struct DavRequest {
    pub(crate) method: Method,
    pub(crate) version: Version,
    pub(crate) path: UrlPath,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) caller: Caller,
    /// True if a head node redirected it here.
    pub(crate) is_redirected: bool,
    pub(crate) connection: HttpConnection,
}

/// Path at which a client creates or replaces something.
pub(crate) struct WriteTarget {
    pub(crate) place: ResolvedPath,
    /// Refusal to replace what exists; `None` for a client that may.
    pub(crate) keeps: Option<ProblemDetails>,
}

impl DavRequest {
    /// Value of a header, if it is text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// False if the client wants nothing replaced, by `Overwrite: F` or `If-None-Match: *`.
    pub(crate) fn may_replace(&self) -> bool {
        self.overwrites() && !keeps_existing(&self.headers)
    }

    /// True if the client asks by the word that what exists is replaced, directories with all that is in them, too.
    ///
    /// RFC 4918 has it as the default. gfal2 and davix send no header for a rename to a directory, which their users expect
    /// to fail or to move into it.
    pub(crate) fn replaces_directories(&self) -> bool {
        self.header(HeaderName::from_static("overwrite"))
            .is_some_and(|text| text.trim().eq_ignore_ascii_case("t"))
    }

    /// False if the client wants nothing replaced (RFC 4918 section 10.6).
    pub(crate) fn overwrites(&self) -> bool {
        self.header(HeaderName::from_static("overwrite"))
            .is_none_or(|text| !text.trim().eq_ignore_ascii_case("f"))
    }
}

impl Gateway {
    pub(crate) fn new(
        agent: Agent,
        keeper: Arc<dyn Gatekeeper>,
        minter: Arc<dyn TokenMinter>,
        config: Config,
        hidden_names: HiddenNames,
        root_port: Option<u16>,
    ) -> Self {
        let buffers = BufferPool::new(POOLED_CHUNKS_MAX, CHUNK_BYTES);
        let digests = Arc::new(Semaphore::new(DIGESTS_MAX));
        let head = config.head.clone().map(|head| Arc::new(HeadNode::new(head)));
        let storages = OnceCell::new();
        Self {
            agent,
            keeper,
            minter,
            config,
            hidden_names,
            head,
            root_port,
            digests,
            buffers,
            storages,
        }
    }

    /// Resolves the path of a request. `None` for a collection above exports that the client may use.
    ///
    /// # Errors
    /// If the client may not use the path.
    pub(crate) fn place(
        &self,
        request: &DavRequest,
        access: PathAccess,
    ) -> Result<Option<ResolvedPath>, ProblemDetails> {
        self.place_at(request, &request.path, access)
    }

    /// Resolves any path for the client of a request.
    ///
    /// # Errors
    /// If the client may not use the path.
    pub(crate) fn place_at(
        &self,
        request: &DavRequest,
        path: &UrlPath,
        access: PathAccess,
    ) -> Result<Option<ResolvedPath>, ProblemDetails> {
        self.resolve(&request.caller, path.bytes(), access).map_err(refused)
    }

    /// Resolves a path with a leading slash and none at its end. `None` for a collection above exports that the client may
    /// use.
    ///
    /// # Errors
    /// If the client may not use the path.
    pub(crate) fn resolve(
        &self,
        caller: &Caller,
        path: &[u8],
        access: PathAccess,
    ) -> Result<Option<ResolvedPath>, Refusal> {
        if path.split(|byte| *byte == b'/').any(is_temporary_name) {
            let text = format!(
                "{}: names of this form are temporary files of transfers",
                path.escape_ascii()
            );
            return Err(Refusal::new(RefusalKind::NotFound, text));
        }
        match self.keeper.place(caller, path, access) {
            Ok(place) => Ok(Some(place)),
            Err(refusal) if refusal.kind == RefusalKind::NotFound => {
                match self.members_of(caller, path).is_empty() {
                    true => Err(refusal),
                    false => Ok(None),
                }
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Resolves the path of a request that writes.
    ///
    /// # Errors
    /// If the client may not write there.
    pub(crate) fn writable(
        &self,
        request: &DavRequest,
        access: PathAccess,
    ) -> Result<ResolvedPath, ProblemDetails> {
        self.writable_at(request, &request.path, access)
    }

    fn writable_at(
        &self,
        request: &DavRequest,
        path: &UrlPath,
        access: PathAccess,
    ) -> Result<ResolvedPath, ProblemDetails> {
        let place = self.place_at(request, path, access)?;
        place.ok_or_else(|| {
            ProblemDetails::forbidden(format!("{} is above the exports", path.shown()))
        })
    }

    /// Resolves a path at which the client creates or replaces something.
    ///
    /// # Errors
    /// If the client may not create it.
    pub(crate) fn write_target(
        &self,
        request: &DavRequest,
        path: &UrlPath,
    ) -> Result<WriteTarget, ProblemDetails> {
        let place = self.writable_at(request, path, PathAccess::Create)?;
        let replaceable = self.writable_at(request, path, PathAccess::Replace);
        Ok(WriteTarget { place, keeps: replaceable.err() })
    }

    /// Members of a collection above the exports that the client may use.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn virtual_members(
        &self,
        request: &DavRequest,
    ) -> Result<Vec<String>, ProblemDetails> {
        Ok(self.members_of(&request.caller, request.path.bytes()))
    }

    /// Members of a collection above the exports that `caller` may use; empty if there is none.
    pub(crate) fn members_of(&self, caller: &Caller, path: &[u8]) -> Vec<String> {
        let mut members: Vec<String> = self
            .keeper
            .exports(caller)
            .into_iter()
            .filter_map(|export| {
                let rest = match path == b"/" {
                    true => export.strip_prefix('/')?,
                    false => {
                        let path = std::str::from_utf8(path).ok()?;
                        export.strip_prefix(path)?.strip_prefix('/')?
                    }
                };
                rest.split('/').next().map(str::to_owned)
            })
            .filter(|name| !name.is_empty())
            .collect();
        members.sort();
        members.dedup();
        members
    }

    /// Returns the digest of a file. Few are computed at once, as each reads a whole file; a computation ends when the
    /// future is dropped, as that of a client that disconnects is.
    ///
    /// # Errors
    /// When the file cannot be read, or changes meanwhile.
    pub(crate) async fn digest(
        &self,
        file: Arc<File>,
        algorithm: Algorithm,
    ) -> io::Result<Option<Digest>> {
        let permit = Arc::clone(&self.digests).acquire_owned().await.map_err(io::Error::other)?;
        let client = Arc::new(());
        let waiting = Arc::downgrade(&client);
        let digest = blocking(move || {
            // Kept until the file is not read any more.
            let _permit = permit;
            digest::of_file(&file, algorithm, &|| waiting.strong_count() > 0)
        })
        .await;
        drop(client);
        digest
    }

    /// Scitag of the data of a request.
    ///
    /// # Errors
    /// If the request names an invalid one, or the client may not set it.
    pub(crate) fn mark(&self, request: &DavRequest) -> Result<Option<Mark>, ProblemDetails> {
        let requested = requested_scitag(&request.headers, request.query.as_deref())?;
        self.keeper.mark(&request.caller, request.path.bytes(), requested).map_err(refused)
    }
}

/// Runs blocking file operations.
pub(crate) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(run).await.map_err(io::Error::other)?
}

/// Routes of the gateway.
pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    Router::new().fallback(handle).with_state(gateway)
}

async fn handle(
    State(gateway): State<Arc<Gateway>>,
    Extension(connection): Extension<HttpConnection>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let expects = parts.headers.contains_key(header::EXPECT);
    let has_body = !hyper::body::Body::is_end_stream(&body);
    let mut body = Some(body);
    let answered = answer(&gateway, connection.clone(), parts, &mut body).await;
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    connection.set_lingering(has_body && !response.status().is_success());
    if response.status() == StatusCode::UNAUTHORIZED {
        let headers = response.headers_mut();
        headers.remove(header::WWW_AUTHENTICATE);
        for challenge in CHALLENGES {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
    }
    // A client that expects 100 sends nothing after a refusal, unless it stopped waiting: then the connection lingers.
    if let Some(body) = body.filter(|_| !expects) {
        drain(&mut body.into_data_stream()).await;
    }
    response
}

/// Reads the rest of a short body, so that its client gets the answer.
pub(crate) async fn drain(chunks: &mut BodyDataStream) {
    let mut left = DRAIN_BYTES_MAX;
    let all = async {
        while let Some(Ok(chunk)) = chunks.next().await {
            left = left.saturating_sub(chunk.len());
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(DRAIN_TIMEOUT, all).await;
}

/// Refuses codings that the HTTP library leaves in the body: what it delivers would be stored (RFC 9112 section 6.1).
fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), ProblemDetails> {
    let mut lines = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_known = match (lines.next(), lines.next()) {
        (None, _) => true,
        (Some(line), None) => line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    };
    if is_known {
        return Ok(());
    }
    let text = "Transfer-Encoding: only chunked, once: send the bytes of the file as they are";
    Err(ProblemDetails::new(StatusCode::NOT_IMPLEMENTED, text))
}

async fn answer(
    gateway: &Arc<Gateway>,
    connection: HttpConnection,
    parts: axum::http::request::Parts,
    body: &mut Option<Body>,
) -> Result<Response, ProblemDetails> {
    let head: usize =
        parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if head + parts.uri.to_string().len() > HEADERS_BYTES_MAX {
        let text = format!("the head of the request is longer than {HEADERS_BYTES_MAX} bytes");
        return Err(ProblemDetails::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text));
    }
    if parts.method == Method::OPTIONS {
        // Before a client has credentials, it asks what the server can do.
        return Ok(options());
    }
    check_transfer_encoding(&parts.headers)?;
    let path = UrlPath::of(&parts.uri)?;
    if matches!(parts.method.as_str(), "PUT" | "COPY" | "MOVE") {
        check_overwrite(&parts.headers)?;
    }
    if let Some(config) = &gateway.config.redirected
        && parts.method == Method::GET
        && path.bytes() == redirected::ROOM_PATH.as_bytes()
    {
        let credentials = parts.headers.get(header::AUTHORIZATION);
        let credentials = credentials.and_then(|value| value.to_str().ok());
        return redirected::report_room(gateway, config, credentials).await;
    }
    let query = parts.uri.query();
    let redirect = query.and_then(token_in_query);
    let redirect = redirect.filter(|token| RedirectKey::looks_redirected(token));
    let caller = match &redirect {
        Some(token) => {
            let config = gateway.config.redirected.as_ref();
            redirected::authenticate(config, token, parts.method.as_str(), path.bytes())?
        }
        None => authenticate(&gateway.keeper, &parts.headers, query, &connection).await?,
    };
    connection.set_proven();
    let request = DavRequest {
        method: parts.method,
        version: parts.version,
        path,
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        caller,
        is_redirected: redirect.is_some(),
        connection,
    };
    if let Some(head) = &gateway.head
        && let Some(response) = head::redirect(gateway, head, &request).await?
    {
        return Ok(response);
    }
    if request.method == Method::PUT {
        return write::put(gateway, &request, body).await;
    }
    let mut take_body = || body.take().unwrap_or_default();
    match request.method.as_str() {
        "GET" | "HEAD" => read::get(gateway, &request).await,
        "DELETE" => namespace::delete(gateway, &request).await,
        "MKCOL" => {
            let length = request.header(header::CONTENT_LENGTH);
            let has_body = length.is_some_and(|length| length != "0")
                || request.headers.contains_key(header::TRANSFER_ENCODING);
            namespace::make_collection(gateway, &request, has_body).await
        }
        "MOVE" => namespace::rename(gateway, &request).await,
        "COPY" => match CopyEnds::of(&request.headers)? {
            CopyEnds::LocalPush => namespace::copy(gateway, &request, None).await,
            CopyEnds::LocalPull(source) => namespace::copy(gateway, &request, Some(&source)).await,
            CopyEnds::ThirdParty(copy) => third_party::copy(gateway, &request, *copy).await,
        },
        "PROPFIND" => properties::find(gateway, &request, take_body()).await,
        "PROPPATCH" => properties::patch(gateway, &request, take_body()).await,
        "POST" if macaroon::is_request(&request) => {
            macaroon::mint(gateway, &request, take_body()).await
        }
        method => {
            let text = format!("{method} is not supported: use one of {ALLOWED}");
            let problem = ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, text);
            Ok(([(header::ALLOW, ALLOWED)], problem).into_response())
        }
    }
}

/// Answers `OPTIONS`: WebDAV of class 1, without locks.
fn options() -> Response {
    let dav = HeaderName::from_static("dav");
    let author = HeaderName::from_static("ms-author-via");
    let headers = [(header::ALLOW, ALLOWED), (dav, "1"), (author, "DAV")];
    (StatusCode::OK, headers).into_response()
}
