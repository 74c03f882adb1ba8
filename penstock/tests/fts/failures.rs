//! Failures at the storages of a copy: a full destination, expired tokens, parts and whole files that interrupted copies left.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_testkit::raw::serve_once;
use penstock_testkit::{Requirement, skip};
use serde_json::{Value, json};

use crate::client::{LOCAL, url};
use crate::common::{is_root, seeded, wait_until, write_file};
use crate::issuer::{TestIssuer, TestKey, now_s, with, wlcg};
use crate::operator::Transfers;
use crate::site::{Site, TOKEN};
use crate::xrootd::Xrootd;

/// A small file system, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it; `None`, reported, without the permission.
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&at);
        if is_root() && mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(at));
        }
        skip(Requirement::Root, "a tmpfs cannot be mounted here");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn full_destination_fails_the_file() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    let Some(disk) = SmallDisk::mount(all.b.data.join("full")) else { return };
    write_file(&mut seeded(2420), &all.a.data.join("f"), 8_000_000);
    let job = all.copy(&url(&all.a, "f"), &url(&all.b, "full/f"), &["--retry", "-1"]);
    assert_eq!(job["job_state"], "FAILED", "{job}");
    let reason = job["files"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("no space left on the file system"), "{reason}");
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 0, "a part is left");
}

/// Submits a copy that is tried again every second; returns its id.
fn submit_retried(all: &Transfers, source: &str, destination: &str) -> String {
    let file = json!({
        "sources": [source], "destinations": [destination],
        "source_tokens": [TOKEN], "destination_tokens": [TOKEN],
    });
    let job = json!({"files": [file], "params": {"retry": 30, "retry_delay": 1}});
    crate::agents::submit(all, &all.certificate.path(""), &job)
}

#[test]
fn changed_token_key_fails_the_file() {
    let Some(mut all) = Transfers::start(LOCAL) else { return };
    // The first attempt fails, and the second needs the key again.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = submit_retried(&all, &format!("https://{closed}/f"), &url(&all.b, "g"));
    fs::remove_file(all.controller.state.join("fts-token.key")).unwrap();
    all.controller.serve.as_mut().unwrap().kill();
    all.controller.restart();
    let job = all.wait(&id);
    assert_eq!(job["job_state"], "FAILED", "{job}");
    let reason = job["files"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("another key"), "{reason}");
    write_file(&mut seeded(2422), &all.a.data.join("f"), 1000);
    assert_eq!(all.copy(&url(&all.a, "f"), &url(&all.b, "g"), &[])["job_state"], "FINISHED");
}

#[test]
fn clear_token_of_older_version_works() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2423), &all.a.data.join("f"), 1000);
    // The first attempts fail, until the row has the tokens of an older version and a source that exists.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = submit_retried(&all, &format!("https://{closed}/f"), &url(&all.b, "g"));
    let text = "import sqlite3,sys\ndb = sqlite3.connect(sys.argv[1], timeout=20)\n\
                db.execute('UPDATE fts_file SET source_token = ?, destination_token = ?, source = ?', \
                (sys.argv[2], sys.argv[2], sys.argv[3]))\ndb.commit()";
    let mut update = Command::new("python3");
    update.args(["-c", text]).arg(all.controller.state.join("controller.db"));
    let updated = update.args([TOKEN, &url(&all.a, "f")]).output().unwrap();
    assert!(updated.status.success(), "{updated:?}");
    assert_eq!(all.wait(&id)["job_state"], "FINISHED");
    assert!(fs::read(all.b.data.join("g")).unwrap() == fs::read(all.a.data.join("f")).unwrap());
}

#[test]
fn expired_tokens_fail_the_file() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    let key = TestKey::es256("e1");
    let issuer = TestIssuer::new(&[&key]);
    let tables = format!(
        "[third_party]\nto = \"any\"\n[[issuer]]\nname = \"cms\"\nurl = \"{}\"\naudience = \"{}\"\n\
         base = \"/store/data\"\nauthorities = {:?}\n",
        issuer.url(),
        crate::issuer::AUDIENCE,
        issuer.authority()
    );
    let site = || Site::admitting("\"issuer:cms\"", &all.certificate.config(), &tables);
    let (a, b) = (site(), site());
    write_file(&mut seeded(2421), &a.data.join("f"), 10_000);
    let claims = || wlcg(issuer.url(), "storage.read:/ storage.modify:/");
    let good = key.token(&claims());
    let expired = key.token(&with(claims(), &json!({"exp": now_s() - 100})));
    let copy = |source: &str, destination: &str, name: &str| {
        let words = ["--src-access-token", source, "--dst-access-token", destination];
        let urls = [url(&a, "f"), url(&b, name)];
        let urls = urls.each_ref().map(String::as_str);
        let printed = all.run("fts-rest-transfer-submit", &[&words[..], &urls[..]].concat());
        all.wait(printed.split_whitespace().next_back().unwrap())
    };
    for (source, destination, end) in
        [(&expired, &good, "source"), (&good, &expired, "destination")]
    {
        let job = copy(source, destination, "g");
        assert_eq!(job["job_state"], "FAILED", "{job}");
        let reason = job["files"][0]["reason"].as_str().unwrap();
        let words = [end, "Permission denied: it answers 401 Unauthorized"];
        assert!(words.iter().all(|word| reason.contains(word)), "{end}: {reason}");
        assert!(!b.data.join("g").exists());
    }
    assert_eq!(copy(&good, &good, "h")["job_state"], "FINISHED");
    assert!(fs::read(b.data.join("h")).unwrap() == fs::read(a.data.join("f")).unwrap());
}

/// Serves a storage that keeps what arrived of a copy that broke off, as XRootD does: the first copy breaks off and leaves
/// `part`, and no copy replaces a file. Returns its URL and the methods that it was asked for.
fn keeping_storage(bytes: usize, part: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap());
    let methods = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&methods);
    std::thread::spawn(move || {
        let (mut size, mut copies) = (None, 0);
        loop {
            serve_once(&listener, |request| {
                let method = request.head.split(' ').next().unwrap_or_default();
                asked.lock().unwrap().push(method.to_owned());
                let (status, length, body) = match (method, size) {
                    ("MKCOL", _) => ("405 Method Not Allowed", 0, ""),
                    ("COPY", None) => {
                        copies += 1;
                        size = Some(if copies == 1 { part.len() } else { bytes });
                        let end =
                            if copies == 1 { "failure: it broke off" } else { "success: Created" };
                        ("201 Created", end.len(), end)
                    }
                    ("COPY", Some(_)) => ("412 Precondition Failed", 0, ""),
                    ("DELETE", _) => {
                        size = None;
                        ("200 OK", 0, "")
                    }
                    // The part is shorter than the range that is asked for at most.
                    ("GET", Some(_)) => ("206 Partial Content", part.len(), part.as_str()),
                    (_, Some(size)) => ("200 OK", size, ""),
                    (_, None) => ("404 Not Found", 0, ""),
                };
                format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                )
            });
        }
    });
    (url, methods)
}

/// Copies a file of 1000 bytes to a storage that keeps `part`; returns the job, and the numbers of copies and deletions.
fn copy_to_keeping_storage(part: &str, retry: i64) -> Option<(Value, usize, usize)> {
    let all = Transfers::start(LOCAL)?;
    fs::write(all.a.data.join("f"), "0123456789".repeat(100)).unwrap();
    let (destination, methods) = keeping_storage(1000, part.to_owned());
    let files = json!([{
        "sources": [url(&all.a, "f")], "destinations": [destination],
        "source_tokens": [TOKEN], "destination_tokens": [TOKEN],
    }]);
    let id = crate::kinds::submit(&all, &files, &json!({"retry": retry, "retry_delay": 1}));
    let job = all.wait(&id);
    let methods = methods.lock().unwrap();
    let count = |method: &str| methods.iter().filter(|one| *one == method).count();
    Some((job, count("COPY"), count("DELETE")))
}

#[test]
fn part_of_broken_copy_is_deleted() {
    let part = "0123456789".repeat(50);
    let Some((job, copies, deletions)) = copy_to_keeping_storage(&part, 3) else { return };
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert_eq!((copies, deletions), (2, 1));
}

#[test]
fn file_of_another_client_stays() {
    let other = "another client".repeat(50);
    let Some((job, copies, deletions)) = copy_to_keeping_storage(&other, -1) else { return };
    assert_eq!(job["job_state"], "FAILED", "{job}");
    assert_eq!((copies, deletions), (1, 0));
}

/// Two ports of one gateway: the copy replaces its source, and fails.
#[test]
fn copy_onto_alias_keeps_the_file() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2427), &all.a.data.join("f"), 1000);
    let content = fs::read(all.a.data.join("f")).unwrap();
    let source = url(&all.a, "f");
    let alias = format!("http://{}/store/data/f", all.a.authority());
    let wrong = ["--overwrite", "--checksum-mode", "target", "ADLER32:00000001"];
    let job = all.copy(&source, &alias, &wrong);
    assert_eq!(job["job_state"], "FAILED", "{job}");
    let reason = job["files"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("are one file") && reason.contains("not 00000001"), "{reason}");
    assert!(fs::read(all.a.data.join("f")).unwrap() == content);
}

/// XRootD would empty the file.
#[test]
fn second_name_of_source_is_refused() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    let Some(xrootd) = Xrootd::start(&all.certificate) else { return };
    write_file(&mut seeded(2428), &all.a.data.join("f"), 1000);
    let content = fs::read(all.a.data.join("f")).unwrap();
    xrootd.put("f", &content);
    for (source, file) in
        [(url(&all.a, "f"), all.a.data.join("f")), (xrootd.url("f"), xrootd.data.join("f"))]
    {
        let of_name = |name: &str| {
            source.replace("127.0.0.1", name).replace("localhost", name).replace("/f", "//%66")
        };
        let job = all.copy(&of_name("127.0.0.1"), &of_name("localhost"), &["--overwrite"]);
        assert_eq!(job["job_state"], "FAILED", "{job}");
        assert_eq!(job["files"][0]["reason"], "source and destination are one file");
        assert!(fs::read(file).unwrap() == content);
    }
    let job = all.copy(&url(&all.a, "f"), &url(&all.b, "f"), &["--overwrite"]);
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    let job = all.copy(&url(&all.a, "f"), &url(&all.b, "f"), &["--overwrite"]);
    assert_eq!(job["job_state"], "FINISHED", "{job}");
}

/// Serves a storage for which the last change of a file depends on the name of its host; returns its port.
fn virtual_hosts(times: [&'static str; 2]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        loop {
            serve_once(&listener, |request| {
                let (status, body) = match request.head.split(' ').next().unwrap_or_default() {
                    "MKCOL" => ("405 Method Not Allowed", ""),
                    "COPY" => ("201 Created", "success: Created"),
                    "HEAD" => ("200 OK", "12345"),
                    _ => ("501 Not Implemented", ""),
                };
                let is_first = request.head.to_ascii_lowercase().contains("host: 127.0.0.1");
                let time = times[usize::from(!is_first)];
                let body_sent = if body == "12345" { "" } else { body };
                format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{time}Connection: close\r\n\r\n{body_sent}",
                    body.len()
                )
            });
        }
    });
    port
}

#[test]
fn virtual_hosts_are_told_apart() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    let [old, new] = [
        "Last-Modified: Fri, 27 Nov 2026 21:57:17 GMT\r\n",
        "Last-Modified: Fri, 27 Nov 2026 21:57:18 GMT\r\n",
    ];
    for (times, state) in [([old, new], "FINISHED"), ([old, old], "FAILED"), (["", ""], "FAILED")] {
        let port = virtual_hosts(times);
        let [source, destination] =
            ["127.0.0.1", "localhost"].map(|host| format!("http://{host}:{port}/f"));
        let job = all.copy(&source, &destination, &["--overwrite"]);
        assert_eq!(job["job_state"], state, "{times:?}: {job}");
    }
}

#[test]
fn cancelled_copy_leaves_no_part() {
    let Some(all) = Transfers::start(LOCAL) else { return };
    let Some(xrootd) = Xrootd::start(&all.certificate) else { return };
    // XRootD reports each five seconds.
    let slow = "[limits]\nrate = \"16M\"\n[third_party]\nto = \"any\"\n";
    let source = Site::with(&all.certificate.config(), slow);
    write_file(&mut seeded(2425), &source.data.join("f"), 100_000_000);
    let files = json!([{
        "sources": [url(&source, "f")], "destinations": [xrootd.url("g")], "source_tokens": [TOKEN],
        "destination_tokens": [TOKEN],
    }]);
    let id = crate::kinds::submit(&all, &files, &json!({}));
    wait_until("XRootD writes the file", Duration::from_secs(60), || {
        let job = all.get(&format!("jobs/{id}?files=transferred"));
        (job["files"][0]["transferred"].as_i64()? > 0).then_some(())
    });
    assert!(xrootd.data.join("g").exists());
    all.run("fts-rest-transfer-cancel", &[&id]);
    wait_until("the part is deleted", Duration::from_secs(60), || {
        (!xrootd.data.join("g").exists()).then_some(())
    });
}

/// Serves a storage whose first copy is whole, but reports nothing until its client has gone. Returns its URL, the methods
/// that it was asked for, and the sender that ends the first copy.
fn silent_storage(bytes: usize, digest: String) -> (String, Arc<Mutex<Vec<String>>>, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap());
    let methods = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&methods);
    let (ended, waiting) = channel();
    std::thread::spawn(move || {
        let mut is_copied = false;
        loop {
            serve_once(&listener, |request| {
                let method = request.head.split(' ').next().unwrap_or_default();
                asked.lock().unwrap().push(method.to_owned());
                let (status, length) = match method {
                    "MKCOL" => ("405 Method Not Allowed", 0),
                    "COPY" if is_copied => ("412 Precondition Failed", 0),
                    "COPY" => {
                        is_copied = true;
                        waiting.recv().unwrap();
                        ("201 Created", 0)
                    }
                    _ if is_copied => ("200 OK", bytes),
                    _ => ("404 Not Found", 0),
                };
                format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nDigest: {digest}\r\nConnection: close\r\n\r\n"
                )
            });
        }
    });
    (url, methods, ended)
}

/// A file that is there with the checksum of the source is the copy; another one stays.
#[test]
fn copy_completed_unseen_is_finished() {
    let Some(mut all) = Transfers::start(LOCAL) else { return };
    write_file(&mut seeded(2426), &all.a.data.join("f"), 1000);
    let want = [("Want-Digest", "adler32")];
    let head = all.a.ask("HEAD", "/store/data/f", &want, b"");
    let digest = head.header("digest").unwrap().to_owned();
    for (digest, state) in [(digest, "FINISHED"), ("adler32=00000001".to_owned(), "FAILED")] {
        let (destination, methods, ended) = silent_storage(1000, digest);
        let files = json!([{
            "sources": [url(&all.a, "f")], "destinations": [destination],
            "source_tokens": [TOKEN], "destination_tokens": [TOKEN],
        }]);
        let params = json!({"verify_checksum": "both", "retry": 3, "retry_delay": 1});
        let id = crate::kinds::submit(&all, &files, &params);
        wait_until("the copy begins", Duration::from_secs(30), || {
            methods.lock().unwrap().iter().any(|one| one == "COPY").then_some(())
        });
        all.controller.serve.as_mut().unwrap().kill();
        ended.send(()).unwrap();
        all.controller.restart();
        let job = all.wait(&id);
        assert_eq!(job["job_state"], state, "{job}");
        let methods = methods.lock().unwrap();
        let count = |method: &str| methods.iter().filter(|one| *one == method).count();
        let copies = if state == "FINISHED" { 1 } else { 2 };
        assert_eq!((count("COPY"), count("DELETE")), (copies, 0), "{methods:?}");
    }
}
