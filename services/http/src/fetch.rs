//! Fetch of one document over HTTP or HTTPS, conditional on its ETag.
//!
//! For: small public documents such as the scitags registry. TLS trusts the authorities of the
//! system ([`CA_BUNDLES`], or the file in `SSL_CERT_FILE`). Size, time and redirects are bounded; a
//! redirect never leads from HTTPS to HTTP. Not for: agents, whose certificates are pinned by
//! fingerprint (see the agent's client), and not for proxies: behind one, download the document by
//! other means.
//!
//! Errors are one line with the address and the reason.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, CONTENT_TYPE, ETAG, HOST, HeaderMap, IF_NONE_MATCH, LOCATION, USER_AGENT,
};
use hyper::http::response::Parts;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::de::{self, Deserialize, Deserializer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Time limit of a fetch, redirects included.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Files in which distributions keep the trusted authorities: Debian, EL, SUSE, Alpine.
pub const CA_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

const REDIRECTS_MAX: usize = 5;

/// Longest answer to a POST, which is discarded.
const POST_ANSWER_BYTES_MAX: usize = 64 << 10;

/// A URL `http://HOST[:PORT]/PATH` or `https://...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    encrypted: bool,
    host: String,
    port: u16,
    path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "'{text}' is no address to fetch from: write it like https://www.scitags.org/api.json"
            )
        };
        let uri: Uri = text.trim().parse().map_err(|_| bad())?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?;
        // A password in a URL would end up in logs.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(bad());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { encrypted, host, port, path })
    }
}

/// Parses inside the visitor, so that an error gets the line of this value.
impl<'de> Deserialize<'de> for Url {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UrlVisitor;
        impl de::Visitor<'_> for UrlVisitor {
            type Value = Url;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text in quotes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Url, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(UrlVisitor)
    }
}

impl Url {
    /// Returns true if the scheme is `https`.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Host without brackets, and port.
    #[must_use]
    pub fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Path with its query, beginning with `/`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Host and port as in the Host header: without the scheme's default port.
    #[must_use]
    pub fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.encrypted, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Resolves the location of a redirect.
    fn redirected(&self, location: &str) -> Result<Self, String> {
        let next = if location.starts_with('/') && !location.starts_with("//") {
            Self { path: location.to_owned(), ..self.clone() }
        } else {
            location.parse().map_err(|_| {
                format!("it redirects to '{}', which is no address", excerpt(location))
            })?
        };
        if self.encrypted && !next.encrypted {
            return Err(format!("it redirects to {next}, which is not encrypted"));
        }
        Ok(next)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

/// Result of a conditional fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The server's document still has the given ETag.
    NotModified,
    /// A new document.
    Modified {
        /// The document, at most as long as the given limit.
        body: Vec<u8>,
        /// ETag for the next fetch, as the server sent it.
        etag: Option<String>,
    },
}

/// Posts `json` to `url` and discards the answer. Follows no redirect.
///
/// # Errors
/// One line with the reason, also for a status of failure.
pub async fn post(url: &Url, json: Vec<u8>) -> Result<(), String> {
    let sent = async {
        let request = request(url, "POST").header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::new(Bytes::from(json)));
        match send(url, request.map_err(|error| error.to_string())?, POST_ANSWER_BYTES_MAX).await? {
            FetchStep::Done(_) => Ok(()),
            FetchStep::Redirect(location) => {
                Err(format!("it redirects to '{}'", excerpt(&location)))
            }
        }
    };
    let late = || Err(format!("no answer within {}s", FETCH_TIMEOUT.as_secs()));
    timeout(FETCH_TIMEOUT, sent).await.unwrap_or_else(|_| late())
}

/// Answer to [`post_with_headers`], of any status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostResponse {
    /// True if the status is 2xx.
    pub success: bool,
    /// HTTP status code of the answer.
    pub status: u16,
    /// Body, at most as long as the given limit.
    pub body: Vec<u8>,
}

/// Posts `body` with these headers and returns the answer, even one of failure. Follows no
/// redirect.
///
/// # Errors
/// One line with the reason, when there is no answer, or one of more than `limit` bytes.
pub async fn post_with_headers(
    url: &Url,
    headers: &[(&str, &str)],
    body: Vec<u8>,
    limit: usize,
) -> Result<PostResponse, String> {
    let exchange = async {
        let mut request = request(url, "POST");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let mut answer = connect_and_send(url, request.map_err(|error| error.to_string())?).await?;
        let status = answer.head.status;
        let body = answer.body(limit).await?;
        Ok(PostResponse { success: status.is_success(), status: status.as_u16(), body })
    };
    let late = || Err(format!("no answer within {}s", FETCH_TIMEOUT.as_secs()));
    timeout(FETCH_TIMEOUT, exchange).await.unwrap_or_else(|_| late())
}

/// Fetches the document at `url`, of at most `limit` bytes, unless its ETag is `etag`.
///
/// # Errors
/// One line with the reason; the caller names the address.
pub async fn fetch(url: &Url, etag: Option<&str>, limit: usize) -> Result<FetchOutcome, String> {
    let follow = async {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            match get(&url, etag, limit).await? {
                FetchStep::Done(answer) => return Ok(answer),
                FetchStep::Redirect(location) => url = url.redirected(&location)?,
            }
        }
        Err(format!("more than {REDIRECTS_MAX} redirects"))
    };
    let late = || Err(format!("no answer within {}s", FETCH_TIMEOUT.as_secs()));
    timeout(FETCH_TIMEOUT, follow).await.unwrap_or_else(|_| late())
}

enum FetchStep {
    Done(FetchOutcome),
    Redirect(String),
}

async fn get(url: &Url, etag: Option<&str>, limit: usize) -> Result<FetchStep, String> {
    let mut request = request(url, "GET").header(ACCEPT, "application/json, */*");
    if let Some(etag) = etag {
        request = request.header(IF_NONE_MATCH, etag);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    send(url, request, limit).await
}

fn request(url: &Url, method: &str) -> hyper::http::request::Builder {
    Request::builder()
        .method(method)
        .uri(&url.path)
        .header(HOST, url.authority())
        .header(USER_AGENT, concat!("penstock/", env!("CARGO_PKG_VERSION")))
}

async fn send<B>(url: &Url, request: Request<B>, limit: usize) -> Result<FetchStep, String>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let mut answer = connect_and_send(url, request).await?;
    let text = |headers: &HeaderMap, name| {
        headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    match answer.head.status {
        status if status.is_success() => {
            let body = answer.body(limit).await?;
            Ok(FetchStep::Done(FetchOutcome::Modified {
                body,
                etag: text(&answer.head.headers, ETAG),
            }))
        }
        StatusCode::NOT_MODIFIED => Ok(FetchStep::Done(FetchOutcome::NotModified)),
        status if status.is_redirection() => text(&answer.head.headers, LOCATION)
            .map(FetchStep::Redirect)
            .ok_or_else(|| format!("it answers {status} without saying where")),
        status => Err(format!("it answers {status}")),
    }
}

/// An answer whose body has not been read. Dropping it closes the connection.
struct UnreadResponse {
    head: Parts,
    body: Option<hyper::body::Incoming>,
    connection: tokio::task::AbortHandle,
}

impl UnreadResponse {
    async fn body(&mut self, limit: usize) -> Result<Vec<u8>, String> {
        let too_long = || format!("it is longer than {limit} bytes");
        let Some(body) = self.body.take() else { return Ok(Vec::new()) };
        if body.size_hint().lower() > limit as u64 {
            return Err(too_long());
        }
        let body = Limited::new(body, limit).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() { too_long() } else { error.to_string() }
        })?;
        Ok(body.to_bytes().to_vec())
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

async fn connect_and_send<B>(url: &Url, request: Request<B>) -> Result<UnreadResponse, String>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let stream = TcpStream::connect((url.host.as_str(), url.port)).await;
    let stream =
        stream.map_err(|error| format!("cannot connect to {}: {error}", url.authority()))?;
    if !url.encrypted {
        return send_over(stream, request).await;
    }
    let name = ServerName::try_from(url.host.clone())
        .map_err(|_| format!("'{}' is no name that a certificate can have", url.host))?;
    let tls = TlsConnector::from(trusted_tls_config(None)?);
    let stream = tls.connect(name, stream).await.map_err(|error| {
        format!("{error}: if the site has an authority of its own, name its file in SSL_CERT_FILE")
    })?;
    send_over(stream, request).await
}

async fn send_over<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<B>,
) -> Result<UnreadResponse, String>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection).abort_handle();
    match sender.send_request(request).await {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            Ok(UnreadResponse { head, body: Some(body), connection })
        }
        Err(error) => {
            connection.abort();
            Err(error.to_string())
        }
    }
}

/// TLS configuration that trusts the authorities in `file`, by default those of the system.
///
/// # Errors
/// When no file of authorities exists or it holds no certificate.
pub fn trusted_tls_config(file: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let named = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    let known = || CA_BUNDLES.iter().map(PathBuf::from).find(|file| file.exists());
    let given = file.map(PathBuf::from);
    let file = given.or(named.map(PathBuf::from)).or_else(known).ok_or(
        "no file of trusted authorities is there: install ca-certificates or set SSL_CERT_FILE",
    )?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(load_root_certificates(&file)?)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn load_root_certificates(file: &Path) -> Result<RootCertStore, String> {
    let failed = |why: String| format!("authorities in {}: {why}", file.display());
    let pem = std::fs::read(file).map_err(|error| failed(penstock_sys::fs::describe(&error)))?;
    let mut store = RootCertStore::empty();
    // A bundle may hold authorities that TLS does not accept; the others count.
    let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
    let (taken, _) = store.add_parsable_certificates(certificates);
    if taken == 0 {
        return Err(failed("it holds no certificate".to_owned()));
    }
    Ok(store)
}

fn excerpt(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("https://www.scitags.org/api.json", "https://www.scitags.org/api.json"),
            ("http://localhost:80/", "http://localhost/"),
            (" http://[::1]:8080/a?b=c ", "http://[::1]:8080/a?b=c"),
            ("https://h", "https://h/"),
        ] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), shown);
        }
        for text in
            ["", "/api.json", "ftp://h/x", "api.json", "https://", "https://u:p@h/", "http://h x/"]
        {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.contains("https://www.scitags.org/api.json"), "{error}");
        }
    }

    #[test]
    fn redirects_never_downgrade_to_http() {
        let url: Url = "https://www.scitags.org/api.json".parse().unwrap();
        let next = url.redirected("https://scitags.org/api.json").unwrap();
        assert_eq!(next.to_string(), "https://scitags.org/api.json");
        assert_eq!(
            url.redirected("/v1.json").unwrap().to_string(),
            "https://www.scitags.org/v1.json"
        );
        for location in ["http://scitags.org/", "//elsewhere/x", "x.json", "file:///etc/passwd"] {
            assert!(url.redirected(location).is_err(), "{location}");
        }
    }
}
