//! The client against storages on loopback sockets.

use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::client::ServerTrust;

/// Admits every address until a test closes it.
#[derive(Default)]
struct LoopbackAdmission {
    refused: Mutex<bool>,
}

impl StorageAdmission for LoopbackAdmission {
    fn check_address(&self, url: &Url, _: SocketAddr) -> Result<(), AdmissionError> {
        match *self.refused.lock().unwrap() {
            true => Err(AdmissionError::new(format!("{} is refused", url.authority()))),
            false => Ok(()),
        }
    }
}

/// A storage that answers the requests of each connection in turn and then closes it; returns its URL and the heads,
/// each with the number of its connection.
async fn serve(
    connections: Vec<Vec<String>>,
) -> (Url, tokio::sync::mpsc::UnboundedReceiver<(usize, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap()).parse().unwrap();
    let (received, heads) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for (index, answers) in connections.into_iter().enumerate() {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                let _ = received.send((index, String::from_utf8(head).unwrap()));
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    (url, heads)
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn redirect(to: &Url) -> String {
    format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
}

async fn client(
    headers: &[(&'static str, &'static str)],
) -> (StorageClient, Arc<LoopbackAdmission>) {
    let admission = Arc::new(LoopbackAdmission::default());
    let map = headers.iter().map(|(name, value)| {
        (
            hyper::header::HeaderName::from_static(name),
            hyper::header::HeaderValue::from_static(value),
        )
    });
    let connections = StorageConnections::new(ServerTrust::default()).await;
    let policy = Arc::clone(&admission) as Arc<dyn StorageAdmission>;
    (StorageClient::new(connections, policy, map.collect(), Duration::from_secs(20)), admission)
}

async fn get(client: &StorageClient, url: &Url) -> Result<Vec<u8>, StorageError> {
    let mut response = client.request(&Method::GET, url, &HeaderMap::new()).await?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await {
        body.extend_from_slice(&chunk?);
    }
    Ok(body)
}

#[tokio::test]
async fn read_responses_share_a_connection() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n2\r\n0\r\n\r\n";
    let answers = vec![answer("200 OK", "1"), chunked.to_owned(), answer("404 Not Found", "no")];
    let (url, mut heads) = serve(vec![answers]).await;
    let (client, _) = client(&[]).await;
    assert_eq!(get(&client, &url).await.unwrap(), b"1");
    assert_eq!(get(&client, &url).await.unwrap(), b"2");
    let head = client.request(&Method::HEAD, &url, &HeaderMap::new()).await.unwrap();
    assert_eq!(head.status, StatusCode::NOT_FOUND);
    for _ in 0..3 {
        assert_eq!(heads.recv().await.unwrap().0, 0);
    }
}

#[tokio::test]
async fn unread_response_closes_its_connection() {
    let (url, mut heads) =
        serve(vec![vec![answer("200 OK", "unread"); 2], vec![answer("200 OK", "2")]]).await;
    let (client, _) = client(&[]).await;
    drop(client.request(&Method::GET, &url, &HeaderMap::new()).await.unwrap());
    assert_eq!(get(&client, &url).await.unwrap(), b"2");
    assert_eq!(heads.recv().await.unwrap().0, 0);
}

#[tokio::test]
async fn closed_idle_connection_is_replaced() {
    let (url, mut heads) =
        serve(vec![vec![answer("200 OK", "1")], vec![answer("200 OK", "2")]]).await;
    let (client, _) = client(&[]).await;
    assert_eq!(get(&client, &url).await.unwrap(), b"1");
    assert_eq!(get(&client, &url).await.unwrap(), b"2");
    for connection in 0..2 {
        assert_eq!(heads.recv().await.unwrap().0, connection);
    }
}

#[tokio::test]
async fn unrepeatable_request_gets_new_connection() {
    let (url, mut heads) =
        serve(vec![vec![answer("200 OK", "1")], vec![answer("201 Created", "")]]).await;
    let (client, _) = client(&[]).await;
    assert_eq!(get(&client, &url).await.unwrap(), b"1");
    let name = hyper::header::HeaderName::from_static("overwrite");
    let headers = HeaderMap::from_iter([(name, hyper::header::HeaderValue::from_static("F"))]);
    let copy = Method::from_bytes(b"COPY").unwrap();
    assert!(
        !may_use_idle_connection(&copy, &headers)
            && may_use_idle_connection(&copy, &HeaderMap::new())
    );
    let response = client.request(&copy, &url, &headers).await.unwrap();
    assert_eq!(response.status, StatusCode::CREATED);
    let _ = heads.recv().await;
    let (connection, head) = heads.recv().await.unwrap();
    assert!(connection == 1 && head.starts_with("COPY /f"), "{connection}: {head}");
}

#[tokio::test]
async fn silent_digest_request_is_repeated() {
    let digest = "HTTP/1.1 200 OK\r\ndigest: adler32=1\r\ncontent-length: 0\r\n\r\n".to_owned();
    // Empty answers: the storage waits until the client closes the connection.
    let (url, mut heads) = serve(vec![vec![String::new(); 2], vec![digest]]).await;
    let (client, _) = client(&[]).await;
    let value = hyper::header::HeaderValue::from_static("adler32");
    let headers = HeaderMap::from_iter([(WANT_DIGEST, value)]);
    let limit = Duration::from_millis(300);
    let response = client.repeat_head(&url, &headers, limit).await.unwrap();
    assert_eq!(response.header("digest"), Some("adler32=1"));
    drop(response);
    assert!(client.connections.take(&url).is_none(), "the connection of a digest is kept");
    assert_eq!(heads.recv().await.unwrap().0, 0);
}

#[tokio::test]
async fn idle_connection_obeys_changed_policy() {
    let (url, _heads) = serve(vec![vec![answer("200 OK", "1"), answer("200 OK", "2")]]).await;
    let (client, admission) = client(&[]).await;
    assert_eq!(get(&client, &url).await.unwrap(), b"1");
    *admission.refused.lock().unwrap() = true;
    let error = get(&client, &url).await.unwrap_err();
    assert!(matches!(error, StorageError::Forbidden(_)), "{error}");
    assert!(error.to_string().contains("is refused"), "{error}");
}

#[tokio::test]
async fn redirected_request_keeps_credentials_back() {
    let (other, mut there) = serve(vec![vec![answer("200 OK", "1")]]).await;
    let (url, mut here) = serve(vec![vec![redirect(&other)]]).await;
    let (client, _) = client(&[("authorization", "secret"), ("scitag", "65")]).await;
    assert_eq!(get(&client, &url).await.unwrap(), b"1");
    let first = here.recv().await.unwrap().1;
    assert!(first.contains("Authorization: secret\r\n"), "{first}");
    let second = there.recv().await.unwrap().1;
    assert!(!second.contains("secret") && second.contains("SciTag: 65\r\n"), "{second}");
}

#[tokio::test]
async fn errors_have_words_of_fts3() {
    let page = answer("403 Forbidden", "<html>");
    let text = answer("404 Not Found", "Unable to\nopen");
    let answers = vec![page, text, answer("503 Service Unavailable", "later")];
    let (url, _heads) = serve(vec![answers]).await;
    let (client, _) = client(&[]).await;
    for (text, is_transient) in [
        ("Permission denied: it answers 403 Forbidden", false),
        ("No such file: it answers 404 Not Found: Unable to open", false),
        ("it answers 503 Service Unavailable: later", true),
    ] {
        let response = client.request(&Method::GET, &url, &HeaderMap::new()).await.unwrap();
        let error = response.into_error().await;
        assert_eq!((error.to_string().as_str(), error.is_transient()), (text, is_transient));
    }
}

#[tokio::test]
async fn storage_names_its_collections() {
    let (client, _) = client(&[]).await;
    let listed = |kind: &str| {
        let document = format!(
            "<D:multistatus xmlns:D=\"DAV:\"><D:response><D:propstat><D:prop><D:resourcetype>{kind}</D:resourcetype>\
             </D:prop></D:propstat></D:response></D:multistatus>"
        );
        answer("207 Multi-Status", &document)
    };
    for (answered, expected) in [
        (listed("<D:collection/>"), true),
        (listed(""), false),
        (answer("405 Method Not Allowed", ""), false),
        // The connection ends without an answer.
        (String::new(), false),
    ] {
        let (url, mut heads) = serve(vec![vec![answered]]).await;
        let found = client.is_collection(&url, &url, &HeaderMap::new()).await;
        let (_, head) = heads.recv().await.unwrap();
        assert!(head.starts_with("PROPFIND /f ") && head.contains("Depth: 0\r\n"), "{head}");
        assert_eq!(found, expected, "{head}");
    }
    // A final slash needs no request.
    let urls = ["http://127.0.0.1:1/f?a=/", "http://127.0.0.1:1/f/?a"];
    let [file, slash]: [Url; 2] = urls.map(|url| url.parse().unwrap());
    assert!(client.is_collection(&file, &slash, &HeaderMap::new()).await);
    assert!(!client.is_collection(&file, &file, &HeaderMap::new()).await);
}
