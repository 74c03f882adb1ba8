//! The client against a server on a loopback socket.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A server that answers each request of a connection with the next of `answers` and then closes it; returns its URL
/// and the heads that it received.
async fn serve(
    connections: Vec<Vec<&'static str>>,
) -> (Url, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/base/", listener.local_addr().unwrap()).parse().unwrap();
    let (received, heads) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for answers in connections {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                received.send(String::from_utf8(head).unwrap()).unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    (url, heads)
}

fn get() -> HttpRequest {
    HttpRequest::new(Method::GET, "/path")
}

const ONE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1";
const TWO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2";

#[tokio::test]
async fn requests_share_a_connection() {
    let (url, mut heads) = serve(vec![vec![ONE, TWO]]).await;
    let mut client = HttpClient::new(url).token("secret");
    assert_eq!(client.send(get()).await.unwrap().body, "1");
    assert_eq!(client.send(get()).await.unwrap().body, "2");
    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("GET /base/path HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Authorization: Bearer secret\r\n"), "{head}");
}

#[tokio::test]
async fn closed_idle_connection_is_replaced() {
    let (url, mut heads) = serve(vec![vec![ONE], vec![TWO], vec![ONE]]).await;
    let mut client = HttpClient::new(url);
    assert_eq!(client.send(get()).await.unwrap().body, "1");
    assert_eq!(client.send(get()).await.unwrap().body, "2");
    assert_eq!(client.send(get().once()).await.unwrap().body, "1");
    for _ in 0..3 {
        heads.recv().await.unwrap();
    }
}

#[tokio::test]
async fn long_response_is_an_error() {
    let endless = "HTTP/1.1 200 OK\r\n\r\n0123456789";
    let counted = "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n";
    let (url, _heads) = serve(vec![vec![endless], vec![counted]]).await;
    let mut client = HttpClient::new(url);
    for _ in 0..2 {
        let error = client.send(get().bytes_max(5)).await.unwrap_err();
        assert!(matches!(error, HttpError::TooLong(5)), "{error}");
    }
}

#[tokio::test]
async fn long_error_body_is_cut() {
    let missing: &str = Box::leak(
        format!("HTTP/1.1 404 Not Found\r\n\r\n{}", "x".repeat(2 * ERROR_BYTES_MAX)).into(),
    );
    let (url, _heads) = serve(vec![vec![missing], vec![ONE]]).await;
    let mut client = HttpClient::new(url);
    let response = client.send(get().bytes_max(5)).await.unwrap();
    assert_eq!((response.status.as_u16(), response.body.len()), (404, ERROR_BYTES_MAX));
    assert_eq!(client.send(get()).await.unwrap().body, "1");
}

#[tokio::test]
async fn silent_server_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let mut client = HttpClient::new(url.clone());
    let error = client.send(get().timeout(Duration::from_millis(50))).await.unwrap_err();
    assert!(matches!(error, HttpError::ResponseTimeout(_)) && error.is_unreachable(), "{error}");
    drop(listener);
    let error = HttpClient::new(url).send(get()).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. }) && error.is_unreachable(), "{error}");
}

#[tokio::test]
async fn broken_answers_are_told_from_strangers() {
    for (answer, broken_off) in [
        ("", true),
        ("HTTP/1.1 200 OK\r\ncontent-le", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n1", true),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", false),
    ] {
        let (url, _heads) = serve(vec![vec![answer], vec![answer]]).await;
        let error = HttpClient::new(url).send(get().once()).await.unwrap_err();
        assert_eq!(error.is_broken_off(), broken_off, "{answer:?}: {error}");
    }
}

#[tokio::test]
async fn unknown_certificate_ends_the_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (host, port) = ("127.0.0.1", listener.local_addr().unwrap().port());
    let mut client = HttpClient::new(Url::of_host(true, host, port)).trust(ServerTrust::Unknown);
    let error = client.send(get()).await.unwrap_err();
    assert!(matches!(error, HttpError::Trust(ServerTrustError::Unknown)), "{error}");
}

#[tokio::test]
async fn webhook_status_is_an_error() {
    let moved = "HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n";
    let refused = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
    let (url, _heads) = serve(vec![vec![ONE], vec![moved], vec![refused]]).await;
    post(&url, b"{}".to_vec()).await.unwrap();
    for words in ["redirects to '/x'", "it answers 403 Forbidden"] {
        let error = post(&url, Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// A server of the grid that knows TLS 1.2 only: loaded authorities accept it, the project's own clients do not.
#[tokio::test]
async fn loaded_authorities_accept_tls_1_2() {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let authorities = tempfile::tempdir().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    std::fs::write(authorities.path().join("ca.pem"), pem).unwrap();
    let authority = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], key.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.write_all(ONE.as_bytes()).await;
            let _ = stream.read_u8().await;
        }
    });
    let url: Url = format!("https://localhost:{}/", address.port()).parse().unwrap();
    let trust = ServerTrust::Authorities(Some(authorities.path().to_owned()));
    let loaded = trust.load().unwrap();
    let mut connection = ClientConnection::open(&url, &[address], &loaded).await.unwrap();
    let request = Request::builder().uri("/").body(Body::empty()).unwrap();
    assert_eq!(connection.send(request).await.unwrap().status(), StatusCode::OK);
    assert!(ClientConnection::open(&url, &[address], &trust).await.is_err());
}

#[tokio::test]
async fn header_case_reaches_the_server() {
    let (url, mut heads) = serve(vec![vec![ONE]]).await;
    let address = url.authority().parse().unwrap();
    let mut connection =
        ClientConnection::open(&url, &[address], &ServerTrust::default()).await.unwrap();
    let head = Request::get("/").header("transferheaderx", "1").header("x-other", "2");
    let mut request = head.body(Body::empty()).unwrap();
    HeaderCase::of(&["TransferHeaderX"]).await.apply(&mut request);
    connection.send(request).await.unwrap();
    let head = heads.recv().await.unwrap();
    assert!(head.contains("\r\nTransferHeaderX: 1\r\nX-Other: 2\r\n"), "{head}");
}
