//! Client of HTTP for tests: one request with what it needs, and a live feed of events.
//!
//! Both use the client of `penstock_http` on a runtime of their own, so that synchronous tests may call them.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use penstock_http::client::{
    ClientConnection, HttpClient, HttpError, HttpRequest, HttpResponse, ServerTrust, Url,
};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// Longest body of a response of success.
const BODY_BYTES_MAX: usize = 256 << 20;

/// Time limit of a request, and of each event of a feed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A response with its whole body; of an error at most 64 KiB of it.
#[derive(Debug, Clone)]
pub struct TestResponse {
    /// Code of the status line.
    pub status: u16,
    /// Headers under their names in lower case.
    pub headers: HeaderMap,
    /// Body without the framing of chunks.
    pub body: Vec<u8>,
}

impl TestResponse {
    /// Returns the first header of this name, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl From<HttpResponse> for TestResponse {
    fn from(response: HttpResponse) -> Self {
        let HttpResponse { status, headers, body } = response;
        Self { status: status.as_u16(), headers, body: body.into() }
    }
}

/// One request over a connection of its own.
#[derive(Debug, Clone)]
#[must_use]
pub struct TestRequest {
    address: SocketAddr,
    host: String,
    token: String,
    request: HttpRequest,
}

impl TestRequest {
    /// Creates a request to the server at `address`, an IP address with a port.
    ///
    /// # Panics
    /// When address or method is malformed.
    #[track_caller]
    pub fn new(address: impl Display, method: &str, path: &str) -> Self {
        let address: SocketAddr = address.to_string().parse().unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = HttpRequest::new(method, path).bytes_max(BODY_BYTES_MAX);
        let request = request.timeout(RESPONSE_TIMEOUT);
        Self { address, host: address.to_string(), token: String::new(), request }
    }

    /// Sets the header `Host`, which is the address otherwise.
    pub fn host(self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self }
    }

    /// Sets the bearer token; an empty one is not sent.
    pub fn token(self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self }
    }

    /// Adds a header to those of the client.
    ///
    /// # Panics
    /// When name or value is malformed.
    #[track_caller]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap();
        self.request = self.request.header(name, HeaderValue::from_str(value).unwrap());
        self
    }

    /// Sets a body of any type.
    pub fn body(mut self, body: &[u8]) -> Self {
        self.request = self.request.body(body.to_vec());
        self
    }

    /// Sets a body of JSON.
    pub fn json(mut self, body: &Value) -> Self {
        self.request = self.request.json(body.to_string());
        self
    }

    /// Sends the request and returns the response of any status.
    ///
    /// # Panics
    /// When there is no response.
    #[track_caller]
    pub fn send(self) -> TestResponse {
        let what = format!("{self:?}");
        match self.try_send() {
            Ok(response) => response,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Sends the request and returns the response of any status.
    ///
    /// # Errors
    /// When there is no response.
    pub fn try_send(self) -> Result<TestResponse, HttpError> {
        let url: Url = format!("http://{}", self.host).parse().unwrap();
        let client = HttpClient::new(url).addresses(vec![self.address]).token(self.token);
        runtime().block_on({ client }.send(self.request)).map(TestResponse::from)
    }
}

/// An event of a live feed.
#[derive(Debug, Clone)]
pub struct FeedEvent {
    /// Value of its line `id`, or an empty text.
    pub id: String,
    /// Value of its line `event`, or an empty text.
    pub kind: String,
    /// JSON of its line `data`.
    pub data: Value,
}

/// A live feed (`text/event-stream`) of a server.
pub struct EventFeed {
    runtime: Runtime,
    /// Dropping it would end the connection.
    _connection: ClientConnection,
    body: Incoming,
    received: String,
}

impl EventFeed {
    /// Opens the feed at `path`, with further headers.
    ///
    /// # Panics
    /// When the server does not answer with a feed.
    #[track_caller]
    pub fn open(address: impl Display, path: &str, headers: &[(&str, &str)]) -> Self {
        let address: SocketAddr = address.to_string().parse().unwrap();
        let url: Url = format!("http://{address}").parse().unwrap();
        let mut request = Request::get(path).header("host", address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        let runtime = runtime();
        let opened = runtime.block_on(async {
            let trust = ServerTrust::default();
            let mut connection = ClientConnection::open(&url, &[address], &trust).await?;
            let response = connection.send(request).await?;
            Ok::<_, HttpError>((connection, response))
        });
        let (connection, response) = opened.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{path}");
        let body = response.into_body();
        Self { runtime, _connection: connection, body, received: String::new() }
    }

    /// Opens the feed at `path` with a bearer token.
    ///
    /// # Panics
    /// When the server does not answer with a feed.
    #[track_caller]
    pub fn open_as(address: impl Display, path: &str, token: &str) -> Self {
        let credentials = format!("Bearer {token}");
        Self::open(address, path, &[(AUTHORIZATION.as_str(), credentials.as_str())])
    }
}

impl std::fmt::Debug for EventFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventFeed").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Iterator for EventFeed {
    type Item = FeedEvent;

    /// Waits for the next event with data; returns none at the end of the feed.
    fn next(&mut self) -> Option<FeedEvent> {
        loop {
            while let Some((block, rest)) = self.received.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = block.lines();
                    let value = lines.find_map(|line| line.strip_prefix(name));
                    value.map(|value| value.trim().to_owned())
                };
                let (id, kind, data) = (field("id:"), field("event:"), field("data:"));
                self.received = rest.to_owned();
                let Some(data) = data else { continue };
                let data = serde_json::from_str(&data).unwrap();
                let (id, kind) = (id.unwrap_or_default(), kind.unwrap_or_default());
                return Some(FeedEvent { id, kind, data });
            }
            let frame = self.runtime.block_on(async {
                let frame = tokio::time::timeout(RESPONSE_TIMEOUT, self.body.frame()).await;
                frame.expect("an event in time")
            })?;
            let frame = frame.unwrap();
            if let Some(data) = frame.data_ref() {
                self.received += std::str::from_utf8(data).unwrap();
            }
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}
