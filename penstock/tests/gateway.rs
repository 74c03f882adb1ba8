//! The gateway: files of an agent over HTTP and WebDAV.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Agent, TestEnv, seeded, wait_until, write_file};

const TOKEN: &str = "the-token-of-alice-is-long";

/// A response with its body.
#[derive(Debug)]
struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Response {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// An agent with a gateway without TLS, and its export `/data`.
struct Site {
    env: TestEnv,
    agent: Agent,
    data: PathBuf,
}

impl Site {
    fn new() -> Self {
        let env = TestEnv::new();
        let data = env.path("data");
        fs::create_dir_all(&data).unwrap();
        let tokens = env.path("tokens");
        fs::write(&tokens, format!("alice {TOKEN}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&tokens, mode).unwrap();
        let config = env.path("penstock.toml");
        let text = format!(
            "tokens = {tokens:?}\n[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n\
             [gateway]\nlisten = [\"127.0.0.1:0\"]\nplaintext = [\"127.0.0.1:0\"]\n\
             [[export]]\nname = \"/store/data\"\npath = {data:?}\nmode = \"read-write\"\nwho = [\"alice\", \"owner\"]\n"
        );
        fs::write(&config, text).unwrap();
        let mut command = common::penstock(&env.state);
        command.args(["serve", "--json", "--roles", "agent", "--config"]).arg(&config);
        let agent = Agent::spawn(command);
        Self { env, agent, data }
    }

    /// URL of the gateway with this scheme.
    fn url(&self, scheme: &str) -> String {
        let urls = self.agent.facts["webdav"].as_array().unwrap();
        let mut urls = urls.iter().map(|url| url.as_str().unwrap());
        urls.find(|url| url.starts_with(&format!("{scheme}://"))).unwrap().to_owned()
    }

    fn authority(&self) -> String {
        self.url("http")["http://".len()..].trim_end_matches('/').to_owned()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.authority()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends one request of alice and reads the response.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut stream = self.connect();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n",
            self.authority()
        );
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // The server may refuse and close before it has read the body.
        let _ = stream.write_all(body);
        read_response(&mut BufReader::new(stream), method == "HEAD")
    }

    fn transfers(&self) -> Vec<serde_json::Value> {
        self.agent.transfers(&self.env.state)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.data).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn read_response(reader: &mut impl BufRead, is_head: bool) -> Response {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("a status: {line:?}"));
    let status = status.parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut response = Response { status, headers, body: Vec::new() };
    if is_head || status == 204 || status == 304 || status == 100 {
        return response;
    }
    if response.header("transfer-encoding").is_some() {
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let count = usize::from_str_radix(line.trim(), 16).expect("a chunk's length");
            let mut chunk = vec![0; count + 2];
            reader.read_exact(&mut chunk).unwrap();
            response.body.extend_from_slice(&chunk[..count]);
            if count == 0 {
                return response;
            }
        }
    }
    let count = response.header("content-length").map_or(0, |text| text.parse().unwrap());
    response.body = vec![0; count];
    reader.read_exact(&mut response.body).unwrap();
    response
}

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
    for credentials in ["", "Authorization: Bearer wrong-token-wrong-token\r\n"] {
        let mut stream = site.connect();
        let head = format!(
            "GET /store/data/f HTTP/1.1\r\nHost: x\r\n{credentials}Connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let refused = read_response(&mut BufReader::new(stream), false);
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
    assert_eq!(read_response(&mut BufReader::new(stream), false).status, 400);
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
        assert_eq!(read_response(&mut reader, false).status, 201);
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

#[test]
fn curl_copies_over_tls() {
    if !is_installed("curl") {
        return;
    }
    let site = Site::new();
    let source = site.env.path("source.bin");
    write_file(&mut seeded(1702), &source, 3 << 20);
    let url = format!("{}store/data/f", site.url("https"));
    let header = format!("Authorization: Bearer {TOKEN}");
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--insecure", "-H", &header])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    curl(&["-T", source.to_str().unwrap(), &url]);
    assert!(curl(&[&url]) == fs::read(&source).unwrap());
    let tail = curl(&["-r", "1000-", &url]);
    assert!(tail == fs::read(&source).unwrap()[1000..]);
}

/// True if `program` is installed; reports the test as skipped otherwise.
fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').any(|directory| Path::new(directory).join(program).is_file());
    if !found {
        penstock_testkit::skip(penstock_testkit::Requirement::Program, program);
    }
    found
}

/// Runs a client in the directory of `site`, and returns its output; fails unless it exits with 0.
fn client(site: &Site, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(site.env.path(""))
        .env("HOME", site.env.path(""))
        .env("BEARER_TOKEN", TOKEN)
        // Its scripts name no interpreter of their own on Debian.
        .env("GFAL_PYTHONBIN", "/usr/bin/python3")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A site with a file to upload, and its content.
fn site_with_upload() -> (Site, PathBuf, Vec<u8>) {
    let site = Site::new();
    let source = site.env.path("upload.bin");
    write_file(&mut seeded(1703), &source, 300_000);
    let content = fs::read(&source).unwrap();
    (site, source, content)
}

#[test]
fn davix_moves_files() {
    if !is_installed("davix-put") {
        return;
    }
    let (site, source, content) = site_with_upload();
    let (header, base) = (format!("Authorization: Bearer {TOKEN}"), site.url("http"));
    let url = |path: &str| format!("{base}store/data/{path}");
    let davix = |program, arguments: &[&str]| {
        client(&site, program, &[&["-H", &header], arguments].concat())
    };
    let copy = site.env.path("copy.bin");
    davix("davix-mkdir", &[&url("d")]);
    davix("davix-put", &[source.to_str().unwrap(), &url("d/f")]);
    davix("davix-get", &[&url("d/f"), copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == content);
    let listed = davix("davix-ls", &["-l", &url("d")]);
    assert!(listed.contains("300000") && listed.contains(" f"), "{listed}");
    davix("davix-rm", &[&url("d/f")]);
    davix("davix-rm", &[&url("d")]);
    assert!(site.names().is_empty());
}

#[test]
fn gfal_moves_and_checks_files() {
    if !is_installed("gfal-copy") {
        return;
    }
    let (site, source, content) = site_with_upload();
    let base = site.url("http").replace("http://", "dav://");
    let url = |path: &str| format!("{base}store/data/{path}");
    let (file, copy) = (format!("file://{}", source.display()), site.env.path("copy.bin"));
    client(&site, "gfal-mkdir", &["-p", &url("a/b")]);
    client(&site, "gfal-copy", &["-f", "-K", "ADLER32", &file, &url("a/b/f")]);
    client(&site, "gfal-copy", &["-f", &url("a/b/f"), &format!("file://{}", copy.display())]);
    assert!(fs::read(&copy).unwrap() == content);
    assert!(client(&site, "gfal-stat", &[&url("a/b/f")]).contains("Size: 300000"));
    assert!(client(&site, "gfal-ls", &["-l", &url("a/b")]).contains("300000"));
    let sum = client(&site, "gfal-sum", &[&url("a/b/f"), "MD5"]);
    let expected = client(&site, "md5sum", &[source.to_str().unwrap()]);
    assert_eq!(sum.split(' ').nth(1).map(str::trim), expected.split(' ').next(), "{sum}");
    client(&site, "gfal-rename", &[&url("a/b/f"), &url("a/g")]);
    client(&site, "gfal-rm", &["-r", &url("a")]);
    assert!(site.names().is_empty());
}

#[test]
fn rclone_synchronises_trees() {
    if !is_installed("rclone") {
        return;
    }
    let (site, _, _) = site_with_upload();
    let tree = site.env.path("tree");
    common::write_tree(&mut seeded(1704), &tree, 1, 20);
    let text = format!(
        "[p]\ntype = webdav\nurl = {}store/data\nvendor = other\nbearer_token = {TOKEN}\n",
        site.url("http")
    );
    fs::write(site.env.path("rclone.conf"), text).unwrap();
    let rclone = |arguments: &[&str]| {
        client(&site, "rclone", &[&["--config", "rclone.conf"], arguments].concat())
    };
    rclone(&["copy", "tree", "p:copy"]);
    rclone(&["check", "tree", "p:copy", "--download"]);
    rclone(&["move", "p:copy", "p:moved"]);
    rclone(&["check", "tree", "p:moved", "--download"]);
    rclone(&["purge", "p:moved"]);
    assert!(!site.names().contains(&"moved".to_owned()));
}

#[test]
fn litmus_groups_pass() {
    if !is_installed("litmus") {
        return;
    }
    let site = Site::new();
    let output = Command::new("litmus")
        .args([&format!("{}store/data/", site.url("http")), "alice", TOKEN])
        .env("TESTS", "basic copymove http")
        .current_dir(site.env.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches(" 0 failed. 100.0%").count(), 3, "{text}");
}

#[test]
fn cadaver_moves_files() {
    if !is_installed("cadaver") {
        return;
    }
    let (site, _, content) = site_with_upload();
    let netrc = site.env.path(".netrc");
    fs::write(&netrc, format!("machine 127.0.0.1\nlogin alice\npassword {TOKEN}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&netrc, mode).unwrap();
    let mut child = Command::new("cadaver")
        .arg(format!("{}store/data/", site.url("http")))
        .env("HOME", site.env.path(""))
        .current_dir(site.env.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let commands = "put upload.bin a\nmkcol d\nmove a d/b\nls d\nget d/b copy.bin\ndelete d/b\nrmcol d\nquit\n";
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("failed"), "{text}");
    assert!(fs::read(site.env.path("copy.bin")).unwrap() == content, "{text}");
    assert!(site.names().is_empty(), "{text}");
}
