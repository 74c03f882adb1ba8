//! A controller behind a real HTTP server, on SQLite or on its own PostgreSQL, and simulated nodes.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(missing_docs, missing_debug_implementations, unreachable_pub, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use axum::middleware::{self, Next};
use hyper::{HeaderMap, Method};
use penstock_controller::Controller;
use penstock_controller::config::Config;
use penstock_http::client::{HttpClient, HttpError, HttpRequest};
use penstock_http::server::{self, ConnectionTracker};
use penstock_http::{ApiCaller, ServiceRole, metrics};
use penstock_scitags::Registry;
use penstock_testkit::certificates::self_signed_server;
use penstock_testkit::postgres::PostgresServer;
use penstock_testkit::topologies::TWO_SITES;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub mod node;

/// Time limit of a whole test, generous for slow and busy machines.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest response, in bytes.
const RESPONSE_BYTES_MAX: usize = 256 << 20;

pub const OWNER: &str = "the-token-of-the-owner";

/// Token names; each token is its name followed by this.
pub fn token(name: &str) -> String {
    format!("{name}-has-a-token-of-some-length")
}

fn sha256(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    penstock_http::tokens::hex(digest.as_ref())
}

/// Returns a configuration with classes and tokens, and `more` in its table.
pub fn config(directory: &Path, more: &str) -> Config {
    std::fs::write(directory.join("network.toml"), TWO_SITES).unwrap();
    let mut text = format!(
        r#"
[controller]
topology = "network.toml"
round = "100ms"
lost_after = "4s"
{more}

[[controller.class]]
name = "production"
weight = 3
[[controller.class]]
name = "analysis"
mark = "10G"
"#
    );
    for (name, scopes) in [
        ("reader", "\"read\""),
        ("producer", "\"submit:production\""),
        ("analyst", "\"submit:analysis\""),
        ("operator", "\"operate\", \"submit:*\""),
        ("c1", "\"agent:c1\""),
        ("c2", "\"agent:c2\""),
        ("t1", "\"agent:t1\""),
        ("t2", "\"agent:t2\""),
    ] {
        let sha256 = sha256(&token(name));
        text += &format!(
            "[[controller.token]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\nscopes = [{scopes}]\n"
        );
    }
    let file = directory.join("penstock.toml");
    std::fs::write(&file, text).unwrap();
    Config::load(Some(&file), Registry::builtin()).unwrap()
}

/// A controller that serves HTTP.
pub struct Running {
    pub runtime: Runtime,
    pub address: SocketAddr,
    controller: Arc<Controller>,
    stop: watch::Sender<bool>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl Running {
    /// Starts on SQLite in `directory`, or on the configured database.
    pub fn start(config: Config, directory: &Path) -> Self {
        let runtime = Runtime::new().unwrap();
        let controller = Controller::start(config, directory, runtime.handle()).unwrap();
        let file = directory.join("penstock.toml");
        let load = move || Ok(Config::load(Some(&file), Registry::builtin())?);
        let controller = Arc::new(controller.reloading(load));
        let guard = |mut request: Request, next: Next| async move {
            let value = request.headers().get("authorization").cloned();
            let token = value
                .and_then(|value| Some(value.to_str().ok()?.strip_prefix("Bearer ")?.to_owned()));
            let caller = match token {
                Some(token) if token == OWNER => ApiCaller::Owner,
                Some(token) => ApiCaller::Bearer(token),
                None => ApiCaller::Unauthorized("give a token".to_owned()),
            };
            request.extensions_mut().insert(caller);
            next.run(request).await
        };
        let router = controller.router().layer(middleware::from_fn(guard));
        let listen = ["127.0.0.1:0".parse().unwrap()];
        let listeners = runtime.block_on(server::bind(&listen)).unwrap();
        let address = listeners[0].socket.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        // Loopback uses plain HTTP, but the server requires a certificate.
        let identity = self_signed_server();
        let serving = runtime.spawn(async move {
            server::serve(
                listeners,
                router,
                &identity,
                Arc::new(ConnectionTracker::default()),
                stopped,
            )
            .await;
        });
        Self { runtime, address, controller, stop, serving: Some(serving) }
    }

    /// Reloads as on SIGHUP.
    pub fn reload(&self) -> Result<(), String> {
        self.controller.reload().map_err(|error| error.to_string())
    }

    /// True if its metrics report it as leader.
    pub fn leads(&self) -> bool {
        let controller = Arc::clone(&self.controller);
        let text = metrics::render(move |writer| controller.metrics(writer)).0;
        text.lines().any(|line| line == "penstock_controller_leads 1")
    }

    /// Returns a client with this token.
    pub fn client(&self, name: &str) -> Client {
        let token = if name == "owner" { OWNER.to_owned() } else { token(name) };
        Client::new(self.address, &token)
    }

    /// Runs a future on the controller's own threads.
    pub fn block<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.stop.send(true);
        if let Some(serving) = self.serving.take() {
            let controller = Arc::clone(&self.controller);
            self.runtime.block_on(async move {
                tokio::task::spawn(async move { controller.stop() }).await.unwrap();
                let _ = serving.await;
            });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A client of a controller with one connection, which it reopens when closed.
pub struct Client {
    http: HttpClient,
    token: String,
    /// Headers of the last response.
    pub headers: HeaderMap,
}

impl Client {
    pub fn new(address: SocketAddr, token: &str) -> Self {
        let url = format!("http://{address}").parse().unwrap();
        let http = HttpClient::new(url).token(token);
        Self { http, token: token.to_owned(), headers: HeaderMap::new() }
    }

    /// Changes the controller's address.
    pub fn move_to(&mut self, address: SocketAddr) {
        *self = Self::new(address, &self.token);
    }

    /// Returns status and body; an error if the controller is unreachable.
    pub async fn try_ask(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<(u16, Value), HttpError> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = HttpRequest::new(method, path).json(body.to_vec());
        let response = self.http.send(request.bytes_max(RESPONSE_BYTES_MAX)).await?;
        self.headers = response.headers;
        let body = response.body;
        let value = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
        Ok((response.status.as_u16(), value))
    }

    pub async fn ask(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        self.try_ask(method, path, &body).await.unwrap()
    }

    pub async fn get(&mut self, path: &str) -> Value {
        let (status, answer) = self.ask("GET", path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Repeats a GET until `done` accepts the response.
    pub async fn until(&mut self, path: &str, done: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let answer = self.try_ask("GET", path, b"").await;
            if let Ok((200, answer)) = &answer
                && done(answer)
            {
                return answer.clone();
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "{path}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Database of a test.
pub enum Store {
    Sqlite,
    Postgres(Arc<PostgresServer>),
}

impl Store {
    /// Returns the configuration's `database` line.
    pub fn line(&self) -> String {
        match self {
            Self::Sqlite => String::new(),
            Self::Postgres(server) => format!("database = \"{}\"", server.new_database()),
        }
    }
}

/// Runs a test on both databases; skips PostgreSQL with a message if it is not installed.
pub fn on_both(test: impl Fn(&Store)) {
    test(&Store::Sqlite);
    match PostgresServer::shared() {
        Ok(server) => test(&Store::Postgres(server)),
        Err(why) => {
            penstock_testkit::skip(penstock_testkit::Requirement::Program, &why.to_string())
        }
    }
}

/// Creates a directory for a test.
pub fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    (directory, path)
}

/// Returns the body of a request of one file of this size, from `/data` at CERN to Caltech.
pub fn request(class: &str, to: &str, bytes: u64) -> Value {
    json!({
        "class": class, "source": "cern", "destination": "caltech", "from": "/data", "to": to,
        "files": [{ "path": "a", "size": bytes }],
    })
}

/// Submits a request; returns its path.
pub async fn submit(client: &mut Client, body: &Value) -> String {
    let (status, made) = client.ask("POST", "/api/v1/requests", body).await;
    assert_eq!(status, 201, "{made}");
    format!("/api/v1/requests/{}", made["id"])
}

/// Returns the Unix time in seconds.
pub fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}
