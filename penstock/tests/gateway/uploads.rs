//! Bodies of uploads: slow, broken, of any framing, and refused before they arrive.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use penstock_testkit::raw::{RawResponse, exchange, read_response};

use crate::common::{seeded, wait_until};
use crate::site::{Site, TOKEN};

/// Bytes of a body that the gateway collects before it writes.
const BATCH_BYTES: usize = 1 << 20;

/// Size of chunks that the gateway holds as they arrive; it copies shorter ones together.
const SHORT_CHUNK_BYTES: usize = 16 << 10;

const TRANSFERS_WITHIN: Duration = Duration::from_secs(60);

/// Head of an upload with these headers.
fn head(name: &str, headers: &str) -> String {
    format!(
        "PUT /store/data/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{headers}\r\n\r\n"
    )
}

fn content_length(bytes: usize) -> String {
    format!("Content-Length: {bytes}")
}

/// Begins an upload and sends `bytes` of its body.
fn begin(site: &Site, name: &str, headers: &str, bytes: usize) -> TcpStream {
    let mut stream = site.connect();
    stream.write_all(head(name, headers).as_bytes()).unwrap();
    stream.write_all(&vec![7; bytes]).unwrap();
    stream
}

/// Sends `content` in HTTP chunks of `chunk_bytes`.
fn put_chunked(site: &Site, name: &str, content: &[u8], chunk_bytes: usize) -> RawResponse {
    let mut stream = site.connect();
    let mut request = head(name, "Transfer-Encoding: chunked").into_bytes();
    for chunk in content.chunks(chunk_bytes) {
        request.extend(format!("{:x}\r\n", chunk.len()).bytes());
        request.extend(chunk);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    stream.write_all(&request).unwrap();
    read_response(&mut BufReader::new(stream))
}

/// Number of transfers with one failed file.
fn failed_uploads(site: &Site) -> usize {
    site.transfers().iter().filter(|one| one["failed"] == 1).count()
}

#[test]
fn slow_uploads_block_no_others() {
    // More than the threads of the pool for blocking work.
    const SLOW_UPLOADS: usize = 600;
    const RESIDENT_BYTES_MAX: u64 = 300 << 20;
    let site = Site::with(
        "upload_timeout = \"10m\"\n",
        "[limits]\ntransfers = 1000\ntransfers_per_caller = 900\n",
    );
    fs::write(site.data.join("f"), b"hello").unwrap();
    let announced = content_length(100_000);
    let slow = |number: usize| match number % 2 {
        0 => begin(&site, &format!("slow-{number}"), &announced, 10),
        _ => {
            let mut stream =
                begin(&site, &format!("slow-{number}"), "Transfer-Encoding: chunked", 0);
            stream.write_all(b"a\r\n0123456789\r\n").unwrap();
            stream
        }
    };
    let mut slow: Vec<_> = (0..SLOW_UPLOADS).map(slow).collect();
    wait_until("all slow uploads run", TRANSFERS_WITHIN, || {
        (site.transfers().len() == SLOW_UPLOADS).then_some(())
    });
    assert_eq!(site.ask("GET", "/store/data/f", &[], b"").text(), "hello");
    for bytes in [5, BATCH_BYTES + 1] {
        let put = site.ask("PUT", &format!("/store/data/{bytes}"), &[], &vec![7; bytes]);
        assert_eq!(put.status, 201, "{}", put.text());
    }
    let resident = site.resident_bytes();
    assert!(resident < RESIDENT_BYTES_MAX, "{resident}");
    // One of them goes on, the others break off.
    let mut last = slow.remove(0);
    drop(slow);
    last.write_all(&vec![7; 100_000 - 10]).unwrap();
    assert_eq!(read_response(&mut BufReader::new(last)).status, 201);
    wait_until("the others have ended", TRANSFERS_WITHIN, || {
        site.transfers().iter().all(|one| one["state"] != "running").then_some(())
    });
    assert_eq!(site.names(), [&(BATCH_BYTES + 1).to_string(), "5", "f", "slow-0"]);
}

#[test]
fn slow_clients_hold_no_threads() {
    const SLOW_CLIENTS: usize = 80;
    let site = Site::with(
        "upload_timeout = \"10m\"\n",
        "[limits]\ntransfers = 1000\ntransfers_per_caller = 900\n",
    );
    fs::File::create(site.data.join("f")).unwrap().set_len(1 << 30).unwrap();
    let length = content_length(3 * BATCH_BYTES);
    let uploads: Vec<_> =
        (0..SLOW_CLIENTS).map(|n| begin(&site, &n.to_string(), &length, BATCH_BYTES + 1)).collect();
    let get = |_| {
        let mut stream = site.connect();
        let request = format!(
            "GET /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let downloads: Vec<_> = (0..SLOW_CLIENTS).map(get).collect();
    wait_until("all run", TRANSFERS_WITHIN, || {
        (site.transfers().len() == 2 * SLOW_CLIENTS).then_some(())
    });
    // Threads of the pool that have nothing to do end after a while.
    let process = format!("/proc/{}/status", site.agent.child.id());
    wait_until("threads are fewer than clients", TRANSFERS_WITHIN, || {
        let status = fs::read_to_string(&process).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
        (line.trim().parse::<usize>().unwrap() < SLOW_CLIENTS / 2).then_some(())
    });
    for mut upload in uploads {
        upload.write_all(&vec![7; 2 * BATCH_BYTES - 1]).unwrap();
        assert_eq!(read_response(&mut BufReader::new(upload)).status, 201);
    }
    let mut reader = BufReader::new(downloads.into_iter().next_back().unwrap());
    let mut start = [0; 12];
    reader.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
}

#[test]
fn disconnected_uploads_leave_nothing() {
    let site = Site::new();
    let length = content_length(3 * BATCH_BYTES);
    let sent = [10, BATCH_BYTES, BATCH_BYTES + 1, 2 * BATCH_BYTES + 4097];
    for bytes in sent {
        drop(begin(&site, "f", &length, bytes));
        let mut stream = begin(&site, "f", "Transfer-Encoding: chunked", 0);
        write!(stream, "{:x}\r\n", 3 * BATCH_BYTES).unwrap();
        stream.write_all(&vec![7; bytes]).unwrap();
    }
    let all = 2 * sent.len();
    wait_until("all have failed", TRANSFERS_WITHIN, || {
        (failed_uploads(&site) == all).then_some(())
    });
    assert!(site.names().is_empty());
}

#[test]
fn upload_without_directory_conflicts() {
    let site = Site::new();
    fs::create_dir(site.data.join("d")).unwrap();
    let mut stream = begin(&site, "d/f", &content_length(20), 10);
    wait_until("it runs", TRANSFERS_WITHIN, || (!site.transfers().is_empty()).then_some(()));
    fs::remove_dir_all(site.data.join("d")).unwrap();
    stream.write_all(&[7; 10]).unwrap();
    let answer = read_response(&mut BufReader::new(stream));
    assert_eq!(answer.status, 409, "{answer:?}");
}

#[test]
fn cancelled_uploads_get_an_answer() {
    let site = Site::new();
    let length = content_length(3 * BATCH_BYTES);
    for bytes in [10, 2 * BATCH_BYTES] {
        let stream = begin(&site, "f", &length, bytes);
        let id = wait_until("it runs", TRANSFERS_WITHIN, || {
            let transfers = site.transfers();
            let running = transfers.iter().find(|one| one["state"] == "running")?;
            Some(running["id"].to_string())
        });
        let mut command = crate::common::penstock(&site.env.state);
        let http = site.agent.http.clone();
        let output = command.args(["transfers", "cancel", &id, "--http", &http]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let answer = read_response(&mut BufReader::new(stream));
        assert_eq!(answer.status, 409);
        let text = String::from_utf8_lossy(&answer.body);
        assert!(text.contains("cancelled"), "{text}");
        assert!(site.names().is_empty());
    }
}

#[test]
fn answers_to_eager_clients_arrive() {
    let site = Site::new();
    // More than the gateway reads of a refused body, and than sockets hold.
    let content = vec![7; 32 << 20];
    for expect in ["", "Expect: 100-continue\r\n"] {
        let length = content_length(content.len());
        let mut stream = site.connect();
        let head = format!("PUT /store/data/f HTTP/1.1\r\nHost: x\r\n{expect}{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&content).unwrap();
        assert_eq!(read_response(&mut BufReader::new(stream)).status, 401, "{expect}");
    }
}

#[test]
fn killed_uploads_leave_nothing() {
    let mut site = Site::new();
    fs::write(site.data.join("f"), b"old").unwrap();
    let length = content_length(3 * BATCH_BYTES);
    let begun = [10, 2 * BATCH_BYTES].map(|bytes| begin(&site, "f", &length, bytes));
    wait_until("both run", TRANSFERS_WITHIN, || (site.transfers().len() == 2).then_some(()));
    site.restart();
    drop(begun);
    assert_eq!(site.names(), ["f"]);
    assert_eq!(fs::read(site.data.join("f")).unwrap(), b"old");
    assert_eq!(site.ask("PUT", "/store/data/f", &[], b"new").status, 204);
}

#[test]
fn sizes_around_batch_agree() {
    let site = Site::new();
    let around = |bytes| [bytes - 1, bytes, bytes + 1];
    let batches = [BATCH_BYTES, 4 * BATCH_BYTES, 9 * BATCH_BYTES].map(around);
    let short = [0, 1, 4095, SHORT_CHUNK_BYTES - 1, SHORT_CHUNK_BYTES];
    let sizes: Vec<_> = short.into_iter().chain(batches.into_iter().flatten()).collect();
    for bytes in sizes {
        let content = seeded(1761).bytes(bytes);
        for chunk_bytes in [1000, SHORT_CHUNK_BYTES, 1 << 21] {
            let put = put_chunked(&site, "chunked", &content, chunk_bytes);
            assert!(matches!(put.status, 201 | 204), "{bytes}: {put:?}");
            assert!(fs::read(site.data.join("chunked")).unwrap() == content, "{bytes}");
        }
        let mut request = head("plain", &content_length(bytes)).into_bytes();
        request.extend(&content);
        let mut stream = site.connect();
        stream.write_all(&request).unwrap();
        let put = read_response(&mut BufReader::new(stream));
        assert!(matches!(put.status, 201 | 204), "{bytes}: {put:?}");
        assert!(fs::read(site.data.join("plain")).unwrap() == content, "{bytes}");
        let digest = |name| {
            let path = format!("/store/data/{name}");
            let answer = site.ask("HEAD", &path, &[("Want-Digest", "adler32")], b"");
            answer.header("digest").map(str::to_owned)
        };
        assert!(digest("plain").is_some() && digest("plain") == digest("chunked"), "{bytes}");
    }
}

#[test]
fn tiny_chunks_are_stored() {
    let site = Site::new();
    let content = seeded(1762).bytes(3000);
    assert_eq!(put_chunked(&site, "f", &content, 1).status, 201);
    assert!(fs::read(site.data.join("f")).unwrap() == content);
}

#[test]
fn bytes_after_body_are_not_stored() {
    let site = Site::new();
    for (headers, body) in [
        ("Content-Length: 5", "helloGARBAGE\r\n\r\n"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\nGARBAGE\r\n\r\n"),
    ] {
        let all = exchange(site.authority(), (head("f", headers) + body).as_bytes());
        let statuses: Vec<_> = all.matches("HTTP/1.1 ").collect();
        assert!(statuses.len() == 2 && all.contains("HTTP/1.1 400"), "{headers}: {all}");
        assert_eq!(fs::read(site.data.join("f")).unwrap(), b"hello");
        fs::remove_file(site.data.join("f")).unwrap();
    }
    for body in ["5\r\nhelloXX\r\n0\r\n\r\n", "-5\r\nhello\r\n0\r\n\r\n", "5\nhello\n0\n\n"] {
        let request = head("f", "Transfer-Encoding: chunked") + body;
        let all = exchange(site.authority(), request.as_bytes());
        assert!(all.starts_with("HTTP/1.1 400"), "{body:?}: {all}");
        assert!(site.names().is_empty(), "{body:?}");
    }
}

#[test]
fn http10_upload_needs_its_length() {
    let site = Site::new();
    let request = |headers: &str| {
        let head = head("f", headers).replace("HTTP/1.1", "HTTP/1.0");
        exchange(site.authority(), (head + "hello").as_bytes())
    };
    let refused = request("X: y");
    assert!(refused.starts_with("HTTP/1.0 411"), "{refused}");
    assert!(site.names().is_empty() && site.transfers().is_empty());
    let stored = request(&content_length(5));
    assert!(stored.starts_with("HTTP/1.0 201"), "{stored}");
    assert_eq!(fs::read(site.data.join("f")).unwrap(), b"hello");
}

#[test]
fn refused_upload_keeps_its_connection() {
    let site = Site::new();
    fs::write(site.data.join("f"), b"old").unwrap();
    let mut stream = site.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let length = content_length(BATCH_BYTES);
    let new = format!("If-None-Match: *\r\n{length}");
    for (name, status) in [("f", 412), ("none/f", 409), ("new", 201), ("new", 412)] {
        stream.write_all(head(name, &new).as_bytes()).unwrap();
        stream.write_all(&vec![7; BATCH_BYTES]).unwrap();
        assert_eq!(read_response(&mut reader).status, status, "{name}");
    }
    // A client that waits for 100 sends nothing to a refusal.
    for (name, status) in [("f", 412), ("none/f", 409)] {
        let head = head(name, &format!("{new}\r\nExpect: 100-continue"));
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(read_response(&mut reader).status, status, "{name}");
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        stream = site.connect();
        reader = BufReader::new(stream.try_clone().unwrap());
    }
    let head = head("g", &format!("{length}\r\nExpect: 100-continue"));
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_response(&mut reader).status, 100);
    stream.write_all(&vec![7; BATCH_BYTES]).unwrap();
    assert_eq!(read_response(&mut reader).status, 201);
    assert_eq!(fs::read(site.data.join("f")).unwrap(), b"old");
    assert_eq!(site.names(), ["f", "g", "new"]);
}
