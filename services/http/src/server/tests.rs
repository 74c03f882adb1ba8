//! Connections that end: close_notify, idle time, slow heads, the limit of connections.

use axum::routing::get;
use rcgen::generate_simple_self_signed;
use rustls::ClientConfig;
use tokio::io::AsyncReadExt;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

const REQUEST_TEXT: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Longer than any test.
const NO_LIMIT: Duration = Duration::from_secs(3600);

/// A server of TLS with one route, and the settings of its clients.
struct TestServer {
    address: SocketAddr,
    client: TlsConnector,
    /// Dropped with the server, which stops then.
    _stop: watch::Sender<bool>,
}

impl TestServer {
    fn start(limit: usize, head: Duration, idle: Duration) -> Self {
        let named = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = CertificateDer::from(named.cert);
        let provider = Arc::new(crate::crypto_provider());
        let tls = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], named.signing_key.into())
            .unwrap();
        let mut trusted = rustls::RootCertStore::empty();
        trusted.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let socket = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let router = Router::new().route("/", get(|| async { "answer" }));
        let config = ServeConfig { head, idle, ..ServeConfig::default() };
        tokio::spawn(async move {
            let listeners = vec![HttpListener { socket, encrypted: true }];
            let tracker = Arc::new(ConnectionTracker::new(limit));
            serve_with(listeners, router, &tls, tracker, stopped, config).await;
        });
        Self { address, client: TlsConnector::from(Arc::new(client)), _stop: stop }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        self.client.connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }
}

/// Fails where the connection ends without close_notify.
async fn rest_of(mut stream: TlsStream<TcpStream>) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("close_notify");
    text
}

#[tokio::test]
async fn idle_connection_ends_with_close_notify() {
    let server = TestServer::start(8, NO_LIMIT, Duration::from_millis(50));
    let mut used = server.connect().await;
    used.write_all(REQUEST_TEXT.as_bytes()).await.unwrap();
    assert!(rest_of(used).await.ends_with("answer"));
    assert_eq!(rest_of(server.connect().await).await, "");
}

#[tokio::test]
async fn slow_head_ends_with_close_notify() {
    let server = TestServer::start(8, Duration::from_millis(50), NO_LIMIT);
    let mut slow = server.connect().await;
    for part in [REQUEST_TEXT, &REQUEST_TEXT[..20]] {
        slow.write_all(part.as_bytes()).await.unwrap();
    }
    assert!(rest_of(slow).await.ends_with("answer"));
}

#[tokio::test]
async fn evicted_connection_ends_with_close_notify() {
    let server = TestServer::start(1, NO_LIMIT, NO_LIMIT);
    let mut first = server.connect().await;
    first.write_all(REQUEST_TEXT.as_bytes()).await.unwrap();
    first.read_exact(&mut [0; 12]).await.unwrap();
    let mut second = server.connect().await;
    assert!(rest_of(first).await.ends_with("answer"));
    second
        .write_all(REQUEST_TEXT.replace("Host", "Connection: close\r\nHost").as_bytes())
        .await
        .unwrap();
    assert!(rest_of(second).await.ends_with("answer"));
}

#[tokio::test]
async fn busy_connections_refuse_newcomers() {
    let socket = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let (begun, mut waiting) = tokio::sync::mpsc::channel(1);
    let handler = async move |axum::Extension(connection): axum::Extension<HttpConnection>| {
        connection.set_proven();
        begun.send(()).await.unwrap();
        std::future::pending::<&str>().await
    };
    let router = Router::new().route("/", get(handler));
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        let listeners = vec![HttpListener { socket, encrypted: false }];
        let tls = penstock_testkit::certificates::self_signed_server();
        let tracker = Arc::new(ConnectionTracker::new(1));
        serve(listeners, router, &tls, tracker, stopped).await;
    });
    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(REQUEST_TEXT.as_bytes()).await.unwrap();
    waiting.recv().await.unwrap();
    let mut text = String::new();
    let mut newcomer = TcpStream::connect(address).await.unwrap();
    newcomer.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("try it again"), "{text}");
}
