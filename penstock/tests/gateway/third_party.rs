//! Third-party copies between gateways, and between a gateway and XRootD.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use penstock_testkit::raw::{self, serve_once};

use crate::common::{FaultProxy, seeded, wait_until, write_file};
use crate::site::{HostCertificate, Site, TOKEN, TestResponse, missing_program};
use crate::xrootd::Xrootd;

pub(crate) const ANYWHERE: &str = "[third_party]\nto = \"any\"\n";

/// A site whose certificate comes from `certificate`, and that copies to and from any address.
pub(crate) fn site(certificate: &HostCertificate) -> Site {
    Site::with(&certificate.config(), ANYWHERE)
}

pub(crate) fn bearer() -> String {
    format!("Bearer {TOKEN}")
}

/// Sends a `COPY` for the file `name` with the token of alice for both ends.
pub(crate) fn copy(site: &Site, name: &str, headers: &[(&str, &str)]) -> TestResponse {
    let bearer = bearer();
    let token = [("TransferHeaderAuthorization", bearer.as_str())];
    site.ask("COPY", &format!("/store/data/{name}"), &[&token, headers].concat(), b"")
}

#[track_caller]
pub(crate) fn assert_success(response: &TestResponse) {
    let text = response.text();
    assert!(response.status == 202 && text.ends_with("End\nsuccess: Created\n"), "{text}");
    assert!(text.starts_with("Perf Marker\nTimestamp: "), "{text}");
}

#[track_caller]
fn assert_failure(response: &TestResponse, words: &str) {
    let text = response.text();
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("failure: ") && last.contains(words), "{text}");
}

pub(crate) fn url_at(site: &Site, name: &str) -> String {
    format!("{}store/data/{name}", site.url("https"))
}

#[test]
fn gateways_copy_between_themselves() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    let mut random = seeded(1711);
    for bytes in [0, 1, 4097, (16 << 20) - 1, 16 << 20, (16 << 20) + 1, 40_000_003] {
        let name = format!("file-{bytes}");
        write_file(&mut random, &a.data.join(&name), bytes);
        let content = fs::read(a.data.join(&name)).unwrap();
        let verify = ("RequireChecksumVerification", "true");
        let streams = ("X-Number-Of-Streams", "3");
        assert_success(&copy(&b, &name, &[("Source", &url_at(&a, &name)), verify, streams]));
        assert!(fs::read(b.data.join(&name)).unwrap() == content, "{name}");
        let back = format!("back-{bytes}");
        assert_success(&copy(&b, &name, &[("Destination", &url_at(&a, &back)), verify]));
        assert!(fs::read(a.data.join(&back)).unwrap() == content, "{back}");
        let again = copy(&b, &name, &[("Source", &url_at(&a, &name)), ("Overwrite", "F")]);
        assert_eq!(again.status, 412, "{}", again.text());
        let again = copy(&b, &name, &[("Destination", &url_at(&a, &back)), ("Overwrite", "F")]);
        assert_eq!(again.status, 412, "{}", again.text());
    }
    let transfers = b.transfers();
    assert!(transfers.iter().all(|one| one["state"] == "done"), "{transfers:?}");
    assert_eq!(transfers.iter().filter(|one| one["direction"] == "receive").count(), 7);
}

/// Their servers send listings for them.
#[test]
fn directories_are_not_pulled() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    fs::create_dir(a.data.join("d")).unwrap();
    let refuse = |url: &str| {
        for verify in ["true", "false"] {
            let pulled = copy(&b, "f", &[("Source", url), ("RequireChecksumVerification", verify)]);
            let text = pulled.text();
            assert!(pulled.status == 409 && text.contains("it is a directory"), "{url}: {text}");
        }
        assert!(b.names().is_empty(), "{url}");
    };
    refuse(&url_at(&a, "d"));
    refuse(&url_at(&a, "d/"));
    refuse(&url_at(&a, ""));
    refuse(&a.url("https"));
    if let Some(peer) = Xrootd::start(&certificate) {
        fs::create_dir(peer.data.join("d")).unwrap();
        refuse(&peer.url("d"));
    }
    // As nginx, Apache and Python without WebDAV do.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        loop {
            let request = serve_once(&listener, |request| match request.head.contains(" /d/ ") {
                true => "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nlisting",
                false => {
                    "HTTP/1.1 301 Moved\r\nLocation: /d/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                }
            });
            if request.head.starts_with("STOP") {
                return;
            }
        }
    });
    refuse(&format!("http://{address}/d"));
    raw::exchange(&address, b"STOP\r\n\r\n");
    serving.join().unwrap();
}

#[test]
fn markers_come_each_five_seconds() {
    let certificate = HostCertificate::new();
    let a = site(&certificate);
    let b = Site::with(&certificate.config(), &format!("{ANYWHERE}[limits]\nrate = \"8M\"\n"));
    write_file(&mut seeded(1719), &a.data.join("f"), 12_000_000);
    symlink("f", a.data.join("link")).unwrap();
    let begun = std::time::Instant::now();
    let pulled = copy(&b, "f", &[("Source", &url_at(&a, "link"))]);
    let seconds = begun.elapsed().as_secs();
    assert_success(&pulled);
    let text = pulled.text();
    let values = |name: &str| -> Vec<u64> {
        let values = text.lines().filter_map(|line| line.trim().strip_prefix(name));
        values.map(|value| value.trim().parse().unwrap()).collect()
    };
    let (times, bytes) = (values("Timestamp:"), values("Stripe Bytes Transferred:"));
    // One at the start, one each five seconds, one at the end.
    let expected = 2 + seconds / 5;
    assert!(times.len().abs_diff(usize::try_from(expected).unwrap()) <= 1, "{seconds} s: {text}");
    assert!(times.len() > 3 && times.is_sorted() && bytes.is_sorted(), "{text}");
    let between = &bytes[1..bytes.len() - 1];
    assert!(between.iter().all(|bytes| (1..12_000_000).contains(bytes)), "{text}");
    assert_eq!(bytes.last(), Some(&12_000_000), "{text}");
}

#[test]
fn copies_on_one_server_are_transfers() {
    let site = Site::new();
    fs::create_dir(site.data.join("d")).unwrap();
    fs::write(site.data.join("f"), b"abc").unwrap();
    fs::write(site.data.join("d/f"), b"12345").unwrap();
    let own = format!("http://{}/store/data/f", site.authority());
    assert_success(&copy(&site, "d/g", &[("Source", &own), ("X-Number-Of-Streams", "1")]));
    assert_eq!(fs::read(site.data.join("d/g")).unwrap(), b"abc");
    let tree = site.ask("COPY", "/store/data/d", &[("Destination", "/store/data/e")], b"");
    assert_eq!(tree.status, 201, "{}", tree.text());
    let transfers = site.agent.ended_transfers(&site.env.state);
    let facts = |one: &serde_json::Value| {
        ["path", "direction", "caller", "state"].map(|name| one[name].as_str().unwrap().to_owned())
    };
    let counts = |one: &serde_json::Value| {
        ["files", "bytes", "moved_bytes", "announced_bytes"].map(|name| one[name].as_u64().unwrap())
    };
    let mut listed: Vec<_> = transfers.iter().map(|one| (facts(one), counts(one))).collect();
    listed.sort();
    let of = |path: &str| [path, "receive", "alice", "done"].map(str::to_owned);
    let expected = [(of("/store/data/d/g"), [1, 3, 3, 3]), (of("/store/data/e"), [2, 8, 8, 8])];
    assert_eq!(listed, expected);
}

#[test]
fn faults_leave_the_old_file() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    fs::write(b.data.join("old"), b"old").unwrap();
    let missing = copy(&b, "old", &[("Source", &url_at(&a, "missing"))]);
    assert_eq!(missing.status, 404, "{}", missing.text());
    let denied = [("Source", url_at(&a, "f")), ("TransferHeaderAuthorization", "Bearer no".into())];
    let denied = denied.each_ref().map(|(name, value)| (*name, value.as_str()));
    let denied = b.ask("COPY", "/store/data/old", &denied, b"");
    assert_eq!(denied.status, 403, "{}", denied.text());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = copy(&b, "old", &[("Source", &format!("https://{closed}/f"))]);
    assert_eq!(refused.status, 502, "{}", refused.text());
    let plain = copy(&b, "old", &[("Source", "http://192.0.2.1/f")]);
    assert_eq!(plain.status, 400, "{}", plain.text());
    let no_parent = copy(&b, "x/y", &[("Source", &url_at(&b, "old"))]);
    assert_eq!(no_parent.status, 409, "{}", no_parent.text());
    let unwritable = b.ask("COPY", "/other/f", &[("Source", &url_at(&a, "f"))], b"");
    assert_eq!(unwritable.status, 404, "{}", unwritable.text());
    assert_eq!(fs::read(b.data.join("old")).unwrap(), b"old");
    assert_eq!(b.names(), ["old"]);
}

#[test]
fn forbidden_addresses_are_not_contacted() {
    // The default leaves out addresses of the host; a client on this host may reach them by itself, so that the
    // configuration has to forbid them.
    let site = Site::with("", "[third_party]\nto = \"none\"\n");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    fs::write(site.data.join("f"), b"abc").unwrap();
    let address = listener.local_addr().unwrap();
    for url in [format!("http://{address}/f"), format!("http://localhost:{}/f", address.port())] {
        for header in ["Source", "Destination"] {
            let refused = site.ask("COPY", "/store/data/f", &[(header, &url)], b"");
            assert_eq!(refused.status, 403, "{}", refused.text());
            assert!(refused.text().contains("third_party.to"), "{}", refused.text());
        }
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn redirects_are_checked_without_the_token() {
    let site = Site::new();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let location = format!("http://127.0.0.1:{}/b", target.local_addr().unwrap().port());
    let source = format!("http://127.0.0.1:{}/a", first.local_addr().unwrap().port());
    let serve = |listener: TcpListener, response: String| {
        std::thread::spawn(move || {
            let mut heads = Vec::new();
            // HEAD, PROPFIND, GET.
            for _ in 0..3 {
                let request = serve_once(&listener, |request| {
                    let end = response.find("\r\n\r\n").unwrap() + 4;
                    let is_head = request.head.starts_with("HEAD");
                    response[..if is_head { end } else { response.len() }].to_owned()
                });
                heads.push(request.head.to_ascii_lowercase());
            }
            heads
        })
    };
    let redirect = format!(
        "HTTP/1.1 307 Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let file = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello".to_owned();
    let (first, target) = (serve(first, redirect), serve(target, file));
    let verify = ("RequireChecksumVerification", "false");
    assert_success(&copy(&site, "f", &[("Source", &source), verify]));
    assert_eq!(fs::read(site.data.join("f")).unwrap(), b"hello");
    let token = format!("authorization: {}", bearer().to_ascii_lowercase());
    assert!(first.join().unwrap().iter().all(|head| head.contains(&token)));
    assert!(target.join().unwrap().iter().all(|head| !head.contains("authorization")));
}

#[test]
fn damaged_answers_are_not_success() {
    let site = Site::new();
    fs::write(site.data.join("f"), b"old").unwrap();
    for (answer, words) in [
        // Fewer bytes than announced, each time; other ranges than asked; another version; a wrong checksum.
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "end-of-file"),
        (
            "HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-3/5\r\nContent-Length: 5\r\n\r\nhello",
            "Content-Range",
        ),
        ("HTTP/1.1 200 OK\r\nETag: \"2\"\r\nContent-Length: 5\r\n\r\nhello", "changed"),
        ("HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nwhat", "500"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "checksum mismatch"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/f", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let head_answer = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 5\r\n\
                               Digest: adler32=00000001\r\nConnection: close\r\n\r\n";
            loop {
                let request = serve_once(&listener, |request| {
                    if request.head.starts_with("HEAD") { head_answer } else { answer }
                });
                if request.head.starts_with("STOP") {
                    return;
                }
            }
        });
        let failed = copy(&site, "f", &[("Source", &url)]);
        assert_failure(&failed, words);
        let address = url.trim_start_matches("http://").trim_end_matches("/f");
        raw::exchange(address, b"STOP\r\n\r\n");
        serving.join().unwrap();
    }
    assert_eq!(fs::read(site.data.join("f")).unwrap(), b"old");
    assert_eq!(site.names(), ["f"]);
}

/// Pulls `f` of a server that answers `HEAD` and `GET` with these responses, which end their connections.
fn pull_answered(
    site: &Site,
    head: &'static str,
    get: &'static str,
    headers: &[(&str, &str)],
) -> TestResponse {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        loop {
            let request = serve_once(&listener, |request| match request.head.starts_with("HEAD") {
                true => head,
                false => get,
            });
            if request.head.starts_with("STOP") {
                return;
            }
        }
    });
    let response =
        copy(site, "f", &[&[("Source", &*format!("http://{address}/f"))], headers].concat());
    raw::exchange(&address, b"STOP\r\n\r\n");
    serving.join().unwrap();
    response
}

/// A server that confirms an upload without reading it.
#[test]
fn early_confirmation_is_a_failure() {
    let site = Site::with("", ANYWHERE);
    write_file(&mut seeded(1720), &site.data.join("f"), 9_000_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}/f", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let (mut first, mut line) = (String::new(), String::new());
            let _ = reader.read_line(&mut first);
            while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                line.clear();
            }
            let status = if first.starts_with("PUT") { "201 Created" } else { "404 Not Found" };
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    let headers = [("Destination", to.as_str()), ("RequireChecksumVerification", "false")];
    assert_failure(&copy(&site, "f", &headers), "answered after 0 of 9000000 bytes");
}

/// 202 is no confirmation: only a digest of the other server is one.
#[test]
fn accepted_upload_needs_checksum() {
    let site = Site::with("", ANYWHERE);
    // Without content no request waits for 100 Continue.
    fs::write(site.data.join("f"), b"").unwrap();
    for (digest, end) in [
        ("Digest: adler32=00000001\r\n", None),
        ("Digest: adler32=00000002\r\n", Some("checksum mismatch")),
        ("", Some("not stored it yet (202 Accepted): no checksum to compare")),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("http://{}/f", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            loop {
                serve_once(&listener, |request| {
                    let (status, digest) = match request.head.starts_with("PUT") {
                        true => ("202 Accepted", ""),
                        false => ("200 OK", digest),
                    };
                    format!(
                        "HTTP/1.1 {status}\r\nContent-Length: 0\r\n{digest}Connection: close\r\n\r\n"
                    )
                });
            }
        });
        let headers = [("Destination", to.as_str()), ("RequireChecksumVerification", "false")];
        let response = copy(&site, "f", &headers);
        match end {
            None => assert_success(&response),
            Some(words) => assert_failure(&response, words),
        }
    }
}

#[test]
fn end_of_source_is_certain() {
    let site = Site::new();
    let off = ("RequireChecksumVerification", "false");
    let with_length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let zero = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let silent = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    let digest = "HTTP/1.1 200 OK\r\nDigest: adler32=062c0215\r\nConnection: close\r\n\r\n";
    let until_close = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello";
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (head, get, headers) in [
        (zero, with_length, &[][..]),
        (silent, with_length, &[]),
        (silent, chunks, &[off]),
        (digest, until_close, &[]),
        (digest, until_close, &[off]),
    ] {
        assert_success(&pull_answered(&site, head, get, headers));
        assert_eq!(fs::read(site.data.join("f")).unwrap(), b"hello", "{head} {get}");
        fs::write(site.data.join("f"), b"old").unwrap();
    }
    for (head, get, headers, words) in [
        (silent, until_close, &[][..], "states no length"),
        (silent, until_close, &[off], "states no length"),
        (digest, &until_close[..until_close.len() - 2], &[off], "checksum mismatch"),
        (silent, &chunks[..chunks.len() - 5], &[], "end-of-file"),
        (zero, "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nhello", &[], "206"),
        (silent, zero, &[("RequireChecksumVerification", "true")], "no checksum to compare"),
    ] {
        let failed = pull_answered(&site, head, get, headers);
        assert_failure(&failed, words);
        assert!(!failed.text().contains("hello"), "{}", failed.text());
        // Attempts repeat its five bytes.
        let text = failed.text();
        let mut moved =
            text.lines().filter_map(|line| line.strip_prefix("Stripe Bytes Transferred: "));
        assert!(moved.all(|bytes| bytes.parse::<u64>().unwrap() <= 5), "{text}");
        assert_eq!(fs::read(site.data.join("f")).unwrap(), b"old", "{head} {get}");
    }
}

#[test]
fn malformed_offered_checksum_fails() {
    let site = Site::new();
    let get = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDigest: adler32=zzzz\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRepr-Digest: md5=x\r\nConnection: close\r\n\r\n",
    ] {
        assert_failure(&pull_answered(&site, head, get, &[]), "cannot be compared");
        assert!(site.names().is_empty());
    }
}

/// Connections break at seeded positions; the copy continues where they broke.
#[test]
fn broken_connections_continue() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    let mut random = seeded(1712);
    write_file(&mut random, &a.data.join("f"), 50_000_000);
    let content = fs::read(a.data.join("f")).unwrap();
    let upstream = a.url("https").replace("https://", "").trim_end_matches('/').to_owned();
    let proxy = FaultProxy::start(&upstream, random, 6, 20_000_000);
    // What a link names comes over HTTP, which the proxy carries.
    symlink("f", a.data.join("link")).unwrap();
    let source = format!("https://{}/store/data/link", proxy.address);
    let options = [("Source", source.as_str()), ("RequireChecksumVerification", "false")];
    assert_success(&copy(&b, "f", &[&options[..], &[("X-Number-Of-Streams", "2")]].concat()));
    assert!(fs::read(b.data.join("f")).unwrap() == content);
    assert!(!proxy.done().is_empty(), "the proxy injected no fault");
}

#[test]
fn disconnecting_client_ends_the_copy() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    write_file(&mut seeded(1713), &a.data.join("f"), 20_000_000);
    let upstream = a.url("https").replace("https://", "").trim_end_matches('/').to_owned();
    let proxy = FaultProxy::clean("127.0.0.1:0", &upstream);
    symlink("f", a.data.join("link")).unwrap();
    let mut stream = b.connect();
    let head = format!(
        "COPY /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: {0}\r\nTransferHeaderAuthorization: {0}\r\n\
         Source: https://{1}/store/data/link\r\nRequireChecksumVerification: false\r\n\r\n",
        bearer(),
        proxy.address
    );
    // Data stops on its way once the copy runs.
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains(" 202 "), "{line}");
    proxy.freeze();
    drop(reader);
    wait_until("the transfer ends", Duration::from_secs(20), || {
        let state = b.transfers()[0]["state"].clone();
        (state != "running").then_some(())
    });
    // The copy may have been complete before the client went.
    assert!(b.names().is_empty() || b.names() == ["f"]);
}

#[test]
fn xrootd_copies_in_all_directions() {
    let certificate = HostCertificate::new();
    let Some(peer) = Xrootd::start(&certificate) else { return };
    if missing_program("curl") {
        return;
    }
    let site = site(&certificate);
    let bearer = bearer();
    let verify = ("RequireChecksumVerification", "true");
    let mut random = seeded(1714);
    for bytes in [0, 1, 300_000, (16 << 20) + 1] {
        let name = format!("file-{bytes}");
        write_file(&mut random, &site.data.join(&name), bytes);
        let content = fs::read(site.data.join(&name)).unwrap();
        let local = site.url("https").replace("127.0.0.1", "localhost");
        let own = |name: &str| format!("{local}store/data/{name}");
        // Penstock is the active side.
        assert_success(&copy(&site, &name, &[("Destination", &peer.url(&name)), verify]));
        assert!(fs::read(peer.data.join(&name)).unwrap() == content, "{name}");
        let pulled = format!("pulled-{bytes}");
        let streams = ("X-Number-Of-Streams", "2");
        assert_success(&copy(&site, &pulled, &[("Source", &peer.url(&name)), verify, streams]));
        assert!(fs::read(site.data.join(&pulled)).unwrap() == content, "{pulled}");
        // XRootD is.
        for (at, header, url, streams) in [
            (format!("a-{bytes}"), "Source", own(&name), "1"),
            // Its several streams fail for an empty file.
            (format!("b-{bytes}"), "Source", own(&name), if bytes == 0 { "1" } else { "3" }),
            (name.clone(), "Destination", own(&format!("c-{bytes}")), "1"),
        ] {
            let output = Command::new("curl")
                .args(["--silent", "--show-error", "--cacert"])
                .arg(certificate.path("ca.pem"))
                .args(["-X", "COPY", "-H", &format!("{header}: {url}")])
                .args(["-H", &format!("TransferHeaderAuthorization: {bearer}")])
                .args(["-H", &format!("X-Number-Of-Streams: {streams}")])
                .arg(peer.url(&at))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.trim_end().ends_with("success: Created"), "{at}: {text}");
        }
        for copied in [
            peer.data.join(format!("a-{bytes}")),
            peer.data.join(format!("b-{bytes}")),
            site.data.join(format!("c-{bytes}")),
        ] {
            assert!(fs::read(&copied).unwrap() == content, "{}", copied.display());
        }
    }
    let missing = copy(&site, "none", &[("Source", &peer.url("missing"))]);
    assert_eq!(missing.status, 404, "{}", missing.text());
}

#[test]
fn gfal_and_davix_copy_third_party() {
    let certificate = HostCertificate::new();
    let Some(peer) = Xrootd::start(&certificate) else { return };
    if missing_program("gfal-copy") || missing_program("davix-cp") || missing_program("openssl") {
        return;
    }
    let site = site(&certificate);
    // Both find authorities in a directory of hashed names.
    let hashed = certificate.hashed_authorities();
    let mut content = vec![0; 300_000];
    seeded(1715).fill(&mut content);
    peer.put("f", &content);
    let own = |name: &str| {
        format!("{}store/data/{name}", site.url("https").replace("127.0.0.1", "localhost"))
    };
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .env("HOME", site.env.path(""))
            .env("BEARER_TOKEN", TOKEN)
            .env("X509_CERT_DIR", &hashed)
            .env("GFAL_PYTHONBIN", "/usr/bin/python3")
            .output()
            .unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    };
    for mode in ["pull", "push"] {
        let (to, back) = (format!("sub/to-{mode}"), format!("back-{mode}"));
        let gfal = ["-f", "-p", "-K", "ADLER32", "--copy-mode", mode];
        run("gfal-copy", &[&gfal[..], &[&peer.url("f"), &own(&to)]].concat());
        assert!(fs::read(site.data.join(&to)).unwrap() == content);
        run("gfal-copy", &[&gfal[..], &[&own(&to), &peer.url(&back)]].concat());
        assert!(fs::read(peer.data.join(&back)).unwrap() == content);
    }
    let header = format!("Authorization: {}", bearer());
    let capath = hashed.to_str().unwrap();
    let davix = ["--capath", capath, "-H", &header, "--copy-mode"];
    run("davix-cp", &[&davix[..], &["pull", &peer.url("f"), &own("d")]].concat());
    assert!(fs::read(site.data.join("d")).unwrap() == content);
    run("davix-cp", &[&davix[..], &["push", &own("d"), &peer.url("e")]].concat());
    assert!(fs::read(peer.data.join("e")).unwrap() == content);
}
