//! Requests of HTTP and WebDAV.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use penstock_testkit::raw::read_response;

use crate::common::site::Operations;
use crate::common::{seeded, wait_until, write_file};
use crate::site::{Site, TOKEN, TestRequest};

const END_WITHIN: Duration = Duration::from_secs(20);

#[test]
fn uploaded_file_is_read_back() {
    let site = Site::new();
    let mut random = seeded(1701);
    for bytes in [0, 1, 4095, 4096, 4097, (512 << 10) - 1, 512 << 10, (1 << 20) + 1, 5_000_000] {
        let source = site.env.path("upload.bin");
        write_file(&mut random, &source, bytes);
        let content = fs::read(&source).unwrap();
        let path = format!("/store/data/file-{bytes}");
        let put =
            site.ask("PUT", &path, &[("Content-Length", "0")][..usize::from(bytes == 0)], &content);
        assert_eq!(put.status, 201, "{}", put.text());
        assert!(fs::read(site.data.join(format!("file-{bytes}"))).unwrap() == content);
        let get = site.ask("GET", &path, &[], b"");
        assert!(get.status == 200 && get.body == content, "{bytes}");
        assert_eq!(get.header("etag"), put.header("etag"));
        let again = site.ask("PUT", &path, &[("Overwrite", "F")], b"other");
        assert_eq!(again.status, 412);
        let again = site.ask("PUT", &path, &[("If-None-Match", "*")], b"other");
        assert_eq!(again.status, 412);
    }
    assert_eq!(site.ask("PUT", "/store/data/file-1", &[], b"other").status, 204);
    assert_eq!(fs::read(site.data.join("file-1")).unwrap(), b"other");
}

/// A file of which a piece reads like an error of the HTTP library, as archives of web pages do.
#[test]
fn stored_http_errors_stay_unchanged() {
    let site = Site::new();
    let mut content = vec![b'x'; 512 << 10];
    content.extend(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    fs::write(site.data.join("f"), &content).unwrap();
    let get = site.ask("GET", "/store/data/f", &[], b"");
    assert!(get.status == 200 && get.body == content);
}

#[test]
fn ranges_are_parts_of_the_file() {
    let site = Site::new();
    fs::write(site.data.join("f"), b"0123456789").unwrap();
    let get = |range| site.ask("GET", "/store/data/f", &[("Range", range)], b"");
    let part = get("bytes=2-4");
    assert_eq!((part.status, part.text().as_str()), (206, "234"));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    assert_eq!(get("bytes=-3").text(), "789");
    let none = get("bytes=10-");
    assert_eq!((none.status, none.header("content-range")), (416, Some("bytes */10")));
    let parts = get("bytes=0-1,8-");
    assert!(parts.header("content-type").unwrap().starts_with("multipart/byteranges"));
    let text = parts.text();
    assert!(text.contains("Content-Range: bytes 0-1/10\r\n\r\n01\r\n"), "{text}");
    assert!(text.contains("Content-Range: bytes 8-9/10\r\n\r\n89\r\n"), "{text}");
    let head = site.ask("HEAD", "/store/data/f?oss.asize=10", &[("Content-Length", "0")], b"");
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
}

#[test]
fn multipart_boundaries_are_unique() {
    let site = Site::new();
    fs::write(site.data.join("f"), b"0123456789").unwrap();
    let kind = || {
        let parts = site.ask("GET", "/store/data/f", &[("Range", "bytes=0-1,8-")], b"");
        let kind = parts.header("content-type").unwrap().to_owned();
        let boundary = kind.split_once("boundary=").unwrap().1;
        assert!(parts.text().ends_with(&format!("\r\n--{boundary}--\r\n")), "{}", parts.text());
        kind
    };
    assert_ne!(kind(), kind());
}

#[test]
fn disconnecting_client_ends_the_digest() {
    let site = Site::new();
    // Its MD5 takes longer than the test waits.
    fs::File::create(site.data.join("f")).unwrap().set_len(1 << 40).unwrap();
    let mut stream = site.connect();
    let head = format!(
        "HEAD /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nWant-Digest: md5\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    wait_until("the file is read", END_WITHIN, || site.reads("f").then_some(()));
    drop(stream);
    wait_until("the computation ends", END_WITHIN, || (!site.reads("f")).then_some(()));
}

#[test]
fn digests_are_kept_and_checked() {
    let site = Site::new();
    let put = |headers: &[(&str, &str)]| site.ask("PUT", "/store/data/f", headers, b"hello world");
    // Adler-32, MD5 and SHA-256 of "hello world", by Python's zlib and hashlib.
    assert_eq!(put(&[("Digest", "adler32=00000001")]).status, 400);
    assert!(site.names().is_empty());
    assert_eq!(put(&[("Digest", "adler32=1a0b045d, md5=XrY7u+Ae7tCTyyK7j1rNww==")]).status, 201);
    let head = |name, value| site.ask("HEAD", "/store/data/f", &[(name, value)], b"");
    assert_eq!(head("Want-Digest", "ADLER32").header("digest"), Some("adler32=1a0b045d"));
    assert_eq!(head("Want-Digest", "md5").header("digest"), Some("md5=XrY7u+Ae7tCTyyK7j1rNww=="));
    assert_eq!(
        head("Want-Repr-Digest", "sha-256=5").header("repr-digest"),
        Some("sha-256=:uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek=:")
    );
    fs::write(site.data.join("f"), b"hello").unwrap();
    assert_eq!(head("Want-Digest", "adler32").header("digest"), Some("adler32=062c0215"));
}

#[test]
fn malformed_digests_are_refused() {
    let site = Site::new();
    for (name, value, status) in [
        ("Content-MD5", "!!!", 400),
        ("Digest", "garbage", 400),
        ("Digest", "adler32=zzzz", 400),
        ("Repr-Digest", "sha-256=:AAAA:", 400),
        ("Content-Encoding", "gzip", 415),
        ("Content-Encoding", "identity", 201),
        ("Digest", "unixsum=30637", 204),
    ] {
        let put = site.ask("PUT", "/store/data/f", &[(name, value)], b"hello");
        assert_eq!(put.status, status, "{name}: {value}: {}", put.text());
        assert_eq!(site.names().is_empty(), status > 201 && status != 204, "{name}: {value}");
    }
}

#[test]
fn broken_upload_leaves_nothing() {
    let site = Site::new();
    fs::write(site.data.join("old"), b"old").unwrap();
    for path in ["/store/data/old", "/store/data/new"] {
        let mut stream = site.connect();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&[7; 300_000]).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    wait_until("both uploads failed", Duration::from_secs(20), || {
        let all = site.transfers();
        let failed = all.iter().filter(|one| one["failed"] == 1);
        (failed.count() == 2).then_some(())
    });
    assert_eq!(site.names(), ["old"]);
    assert_eq!(fs::read(site.data.join("old")).unwrap(), b"old");
}

/// Uploads that begin before any of them ends, each with a condition that holds at its beginning.
#[test]
fn one_conditional_upload_succeeds() {
    let site = Site::new();
    let put = |condition: &str| {
        let mut stream = site.connect();
        let head = format!(
            "PUT /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{condition}\r\n\
             Expect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
        // The server has checked the condition when it asks for the body.
        stream.read_exact(&mut line).unwrap();
        assert!(line.starts_with(b"HTTP/1.1 100"));
        stream
    };
    let etag = || site.ask("HEAD", "/store/data/f", &[], b"").header("etag").map(str::to_owned);
    for round in 0..4 {
        let condition = match etag() {
            None => "If-None-Match: *".to_owned(),
            Some(etag) => format!("If-Match: {etag}"),
        };
        let uploads = [put(&condition), put(&condition), put(&condition)];
        let mut all: Vec<u16> = std::thread::scope(|scope| {
            let end = |mut stream: TcpStream| {
                stream.write_all(b"hello").unwrap();
                read_response(&mut BufReader::new(stream)).status
            };
            let all = uploads.map(|stream| scope.spawn(move || end(stream)));
            all.map(|one| one.join().unwrap()).to_vec()
        });
        all.sort_unstable();
        assert_eq!(all, [if round == 0 { 201 } else { 204 }, 412, 412], "{condition}");
    }
    assert_eq!(site.names(), ["f"]);
}

#[test]
fn collections_are_made_moved_and_removed() {
    let site = Site::new();
    let status =
        |method, path, headers: &[(&str, &str)]| site.ask(method, path, headers, b"").status;
    assert_eq!(status("MKCOL", "/store/data/a/b", &[]), 409);
    assert_eq!(status("MKCOL", "/store/data/a/", &[]), 201);
    assert_eq!(status("MKCOL", "/store/data/a", &[]), 405);
    assert_eq!(site.ask("PUT", "/store/data/x/f", &[], b"1").status, 409);
    assert_eq!(site.ask("PUT", "/store/data/a/f", &[], b"1").status, 201);
    let to = |path: &str| format!("http://{}{path}", site.authority());
    let (copy, file) = (to("/store/data/copy"), to("/store/data/copy/f"));
    assert_eq!(status("COPY", "/store/data/a", &[("Destination", &copy)]), 201);
    assert_eq!(
        status("MOVE", "/store/data/a/f", &[("Destination", &file), ("Overwrite", "F")]),
        412
    );
    assert_eq!(status("MOVE", "/store/data/a/f", &[("Destination", &file)]), 204);
    assert_eq!(status("MOVE", "/store/data/a", &[("Destination", "http://elsewhere/x")]), 502);
    assert_eq!(
        status("MOVE", "/store/data/copy", &[("Destination", &to("/store/data/copy/y"))]),
        403
    );
    assert_eq!(status("DELETE", "/store/data/copy", &[]), 204);
    assert_eq!(status("DELETE", "/store/data/copy", &[]), 404);
    assert_eq!(status("DELETE", "/store/data", &[]), 403);
    assert_eq!(site.names(), ["a"]);
}

/// Nothing exists below a file (RFC 9110 section 15.5.5); a writer lacks the directory (RFC 4918 section 9.7.1).
#[test]
fn path_below_file_is_missing() {
    let site = Site::new();
    fs::write(site.data.join("f"), b"1").unwrap();
    fs::write(site.data.join("g"), b"2").unwrap();
    let below = "/store/data/f/x";
    let to = format!("http://{}{below}", site.authority());
    for (method, path, header, status) in [
        ("GET", below, ("X-Y", "z"), 404),
        ("HEAD", below, ("X-Y", "z"), 404),
        ("PROPFIND", below, ("Depth", "0"), 404),
        ("DELETE", below, ("X-Y", "z"), 404),
        ("PUT", below, ("X-Y", "z"), 409),
        ("MKCOL", below, ("X-Y", "z"), 409),
        ("COPY", "/store/data/g", ("Destination", to.as_str()), 409),
        ("MOVE", "/store/data/g", ("Destination", to.as_str()), 409),
    ] {
        let answer = site.ask(method, path, &[header], b"");
        assert_eq!(answer.status, status, "{method}: {}", answer.text());
        assert!(method == "HEAD" || answer.text().contains(below), "{method}: {}", answer.text());
    }
    for method in ["COPY", "MOVE"] {
        let missing =
            site.ask(method, "/store/data/none", &[("Destination", "/store/data/h")], b"");
        let words = "/store/data/none: no such file or directory";
        assert!(missing.status == 404 && missing.text().contains(words), "{}", missing.text());
    }
    assert_eq!(site.names(), ["f", "g"]);
}

#[test]
fn listings_show_exports_and_files() {
    let site = Site::new();
    fs::create_dir(site.data.join("d")).unwrap();
    fs::write(site.data.join("a&b"), b"12345").unwrap();
    fs::write(site.data.join(".penstock-0123.part"), b"").unwrap();
    std::os::unix::fs::symlink("/etc", site.data.join("out")).unwrap();
    let find = |path, depth, body: &[u8]| site.ask("PROPFIND", path, &[("Depth", depth)], body);
    let root = find("/", "1", b"");
    assert!(
        root.status == 207 && root.text().contains("<D:href>/store</D:href>"),
        "{}",
        root.text()
    );
    assert!(find("/store", "1", b"").text().contains("<D:href>/store/data</D:href>"));
    let body = b"<D:propfind xmlns:D=\"DAV:\"><D:prop><D:getcontentlength/></D:prop></D:propfind>";
    let text = find("/store/data", "1", body).text();
    assert!(text.contains("<D:href>/store/data/a%26b</D:href>"), "{text}");
    assert!(text.contains("<D:getcontentlength>5</D:getcontentlength>"), "{text}");
    assert!(text.contains("<D:href>/store/data/d/</D:href>"), "{text}");
    assert!(!text.contains("part") && !text.contains("/out"), "{text}");
    assert_eq!(find("/store/data", "infinity", b"").status, 403);
    assert_eq!(find("/store/data", "0", b"<x").status, 400);
    assert_eq!(find("/store/data/none", "0", b"").status, 404);
    let page = site.ask("GET", "/store/data/", &[], b"");
    assert!(
        page.status == 200 && page.text().contains("<a href=\"/store/data/a%26b\">a&amp;b</a>")
    );
    let patch = site.ask(
        "PROPPATCH",
        "/store/data/d",
        &[],
        b"<D:propertyupdate xmlns:D=\"DAV:\"><D:set><D:prop><x xmlns=\"urn:y\">1</x></D:prop></D:set></D:propertyupdate>",
    );
    assert!(patch.status == 207 && patch.text().contains("403 Forbidden"), "{}", patch.text());
    let empty = b"<D:propertyupdate xmlns:D=\"DAV:\"/>";
    let patch = site.ask("PROPPATCH", "/store/data/d", &[], empty).text();
    assert!(
        patch.contains("</D:href><D:status>HTTP/1.1 200 OK</D:status></D:response>"),
        "{patch}"
    );
}

#[test]
fn hostile_requests_are_refused() {
    let site = Site::new();
    fs::write(site.env.path("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink(site.env.path("secret"), site.data.join("link")).unwrap();
    for (path, status) in [
        ("/store/data/../../etc/passwd", 400),
        ("/store/data/%2e%2e/secret", 400),
        ("/store/data%2f..%2fsecret", 400),
        ("/store/data/a%00", 400),
        ("/store/data/.penstock-0.part", 404),
        ("/elsewhere", 404),
    ] {
        assert_eq!(site.ask("GET", path, &[], b"").status, status, "{path}");
    }
    let link = site.ask("GET", "/store/data/link", &[], b"");
    assert!(link.status >= 400 && !link.text().contains("secret\""), "{}", link.text());
    let bomb = format!("bytes={}", "0-0,".repeat(1500));
    fs::write(site.data.join("f"), b"0123456789").unwrap();
    assert_eq!(site.ask("GET", "/store/data/f", &[("Range", &bomb)], b"").status, 416);
    let flood = "x".repeat(100_000);
    assert_eq!(site.ask("GET", "/store/data/f", &[("X-Flood", &flood)], b"").status, 431);
    assert_eq!(site.ask("LOCK", "/store/data/f", &[], b"").status, 405);
    // Without a token, and with a wrong one.
    for credentials in ["", "Bearer wrong-token-wrong-token"] {
        let refused = site.ask_as(credentials, "GET", "/store/data/f", &[], b"");
        assert_eq!(refused.status, 401);
        assert!(refused.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    // A request with two lengths is not forwarded as two requests.
    let mut stream = site.connect();
    let head = format!(
        "PUT /store/data/s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 4\r\n\
         Content-Length: 5\r\n\r\nabcde"
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_response(&mut BufReader::new(stream)).status, 400);
    assert!(!site.data.join("s").exists());
}

#[test]
fn requests_count_as_transfers() {
    let site = Site::new();
    let stream = site.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    for number in 0..3 {
        let head = format!(
            "PUT /store/data/f{number} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\nabcde"
        );
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(read_response(&mut reader).status, 201);
    }
    let all = site.transfers();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!((&all[0]["files"], &all[0]["bytes"]), (&3.into(), &15.into()), "{all:?}");
    assert_eq!((&all[0]["caller"], &all[0]["engine"]), (&"alice".into(), &"http".into()));
    assert_eq!((&all[0]["direction"], &all[0]["state"]), (&"receive".into(), &"running".into()));
    drop((stream, reader));
    wait_until("the transfer ends with its connection", Duration::from_secs(20), || {
        (site.transfers()[0]["state"] == "done").then_some(())
    });
}

/// Gateway, API of the agent, API of the controller and its interface of FTS3.
#[test]
fn other_origins_get_no_permission() {
    let site = Site::new();
    fs::write(site.data.join("f"), b"content").unwrap();
    let controller = Operations::start("[controller.fts]\nstorages = [\"localhost\"]\n");
    let token = fs::read_to_string(controller.state.join("token")).unwrap();
    for (address, path, token) in [
        (site.authority().as_str(), "/store/data/f", TOKEN),
        (site.agent.http.as_str(), "/api/v1/transfers", TOKEN),
        (controller.listen.as_str(), "/api/v1/requests", token.trim()),
        (controller.listen.as_str(), "/fts/whoami", token.trim()),
    ] {
        let ask = |method: &str| {
            let request = TestRequest::new(address, method, path);
            request.header("origin", "https://elsewhere.example")
        };
        let preflight = ask("OPTIONS").header("access-control-request-method", "POST");
        let preflight = preflight.header("access-control-request-headers", "authorization");
        let get = ask("GET").token(token).send();
        assert!(get.status < 300, "{path}: {}", get.text());
        for response in [preflight.send(), get] {
            let mut names = response.headers.keys().map(|name| name.as_str());
            let permission = names.find(|name| name.starts_with("access-control-"));
            assert_eq!(permission, None, "{path}");
        }
    }
}
