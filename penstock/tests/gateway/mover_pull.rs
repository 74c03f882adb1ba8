//! Third-party copies between two agents, whose data comes by the mover's protocol.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, symlink};
use std::thread;
use std::time::Duration;

use penstock_testkit::raw::{free_port, serve_once};

use crate::common::{seeded, wait_until, write_file};
use crate::site::{HostCertificate, Site, TestResponse};
use crate::third_party::{ANYWHERE, assert_success, bearer, copy, site, url_at};

/// Size from which a gateway offers the mover's protocol.
pub(crate) const OFFERED_BYTES_MIN: usize = 16 << 20;

pub(crate) fn is_by_mover(response: &TestResponse) -> bool {
    response.header("penstock-protocol") == Some("penstock")
}

pub(crate) fn adler32(site: &Site, name: &str) -> String {
    let path = format!("/store/data/{name}");
    let head = site.ask("HEAD", &path, &[("Want-Digest", "adler32")], b"");
    head.header("digest").unwrap_or_else(|| panic!("{:?}", head.headers)).to_owned()
}

/// Asks for a copy of `/store/data/f`, whose other end is a header and its URL.
pub(crate) fn begin_copy(active: &Site, other: (&str, &str)) -> TcpStream {
    let mut stream = active.connect();
    let head = format!(
        "COPY /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: {0}\r\nTransferHeaderAuthorization: {0}\r\n\
         {1}: {2}\r\n\r\n",
        bearer(),
        other.0,
        other.1
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Begins a copy and disconnects after its first marker; both sites end the transfer.
pub(crate) fn disconnect_cancels(active: &Site, other: (&str, &str), passive: &Site) {
    let mut reader = BufReader::new(begin_copy(active, other));
    let mut answer = String::new();
    while !answer.contains("End\n") {
        assert!(reader.read_line(&mut answer).unwrap() > 0, "{answer}");
    }
    assert!(answer.contains("penstock-protocol: penstock"), "{answer}");
    drop(reader);
    for site in [passive, active] {
        wait_until("the transfer ends", Duration::from_secs(20), || {
            let state = site.transfers()[0]["state"].clone();
            (state == "cancelled").then_some(())
        });
    }
}

#[test]
fn agents_copy_by_the_mover() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    let mut random = seeded(1731);
    let edge = OFFERED_BYTES_MIN;
    for bytes in [0, 1, edge - 1, edge, edge + 1, 40_000_003] {
        let name = format!("file {bytes}");
        let url = url_at(&a, &name.replace(' ', "%20"));
        write_file(&mut random, &a.data.join(&name), bytes);
        let content = fs::read(a.data.join(&name)).unwrap();
        let path = name.replace(' ', "%20");
        for overwritten in [None, Some("T")] {
            let overwrite: Vec<_> =
                overwritten.map(|value| ("Overwrite", value)).into_iter().collect();
            let copied = copy(&b, &path, &[&[("Source", url.as_str())], &overwrite[..]].concat());
            assert_success(&copied);
            assert_eq!(is_by_mover(&copied), bytes >= edge, "{name}");
            assert!(fs::read(b.data.join(&name)).unwrap() == content, "{name}");
            assert_eq!(adler32(&b, &path), adler32(&a, &path));
            // Of the same size, and as old.
            let other = vec![b'x'; bytes];
            let modified = fs::metadata(b.data.join(&name)).unwrap().modified().unwrap();
            fs::write(b.data.join(&name), other).unwrap();
            let file = fs::File::options().write(true).open(b.data.join(&name)).unwrap();
            file.set_modified(modified).unwrap();
        }
        let kept = copy(&b, &path, &[("Source", &url), ("Overwrite", "F")]);
        assert_eq!(kept.status, 412, "{}", kept.text());
    }
    let transfers = b.transfers();
    let by_mover: Vec<_> = transfers.iter().filter(|one| one["engine"] != "http").collect();
    assert_eq!(by_mover.len(), 6, "{transfers:?}");
    for one in by_mover {
        assert_eq!(
            (&one["state"], &one["direction"]),
            (&"done".into(), &"receive".into()),
            "{one}"
        );
        assert_eq!(one["caller"], "alice", "{one}");
    }
    let at_source = a.transfers();
    assert_eq!(at_source.iter().filter(|one| one["engine"] != "http").count(), 6, "{at_source:?}");
}

#[test]
fn links_are_copied_as_files() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    write_file(&mut seeded(1732), &a.data.join("f"), OFFERED_BYTES_MIN);
    let content = fs::read(a.data.join("f")).unwrap();
    symlink("f", a.data.join("link")).unwrap();
    assert_success(&copy(&b, "link", &[("Source", &url_at(&a, "link"))]));
    assert!(!b.data.join("link").is_symlink());
    assert!(fs::read(b.data.join("link")).unwrap() == content);
    // A link at the destination.
    fs::write(b.data.join("target"), b"old").unwrap();
    symlink("target", b.data.join("to")).unwrap();
    let refused = copy(&b, "to", &[("Source", &url_at(&a, "f"))]);
    assert!(refused.status == 409 && refused.text().contains("a link"), "{}", refused.text());
    assert_eq!(fs::read(b.data.join("target")).unwrap(), b"old");
    let missing = copy(&b, "no/f", &[("Source", &url_at(&a, "f"))]);
    assert_eq!(missing.status, 409, "{}", missing.text());
}

/// Offers that lead nowhere: a closed port, a port of another protocol, and a certificate of another agent.
#[test]
fn false_offers_fall_back_to_http() {
    let (site, other) = (Site::new(), Site::new());
    let closed = free_port();
    let mover: SocketAddr = other.agent.facts["listen"][0].as_str().unwrap().parse().unwrap();
    let zeros = "0".repeat(64);
    for port in [closed, other.connect().peer_addr().unwrap().port(), mover.port()] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/f", listener.local_addr().unwrap());
        let offer = format!("Penstock-Mover: port={port}; certificate=SHA256:{zeros}\r\n");
        let serving = thread::spawn(move || {
            // HEAD, GET.
            for _ in 0..2 {
                serve_once(&listener, |request| {
                    let body = if request.head.starts_with("HEAD") { "" } else { "hello" };
                    format!(
                        "HTTP/1.1 200 OK\r\n{offer}Content-Length: 5\r\nConnection: close\r\n\r\n{body}"
                    )
                });
            }
        });
        let options = [("Source", url.as_str()), ("RequireChecksumVerification", "false")];
        let copied = copy(&site, "f", &options);
        assert_success(&copied);
        assert!(!is_by_mover(&copied));
        assert_eq!(fs::read(site.data.join("f")).unwrap(), b"hello");
        serving.join().unwrap();
    }
}

/// The client disconnects in the middle; nothing is left, and both agents end the transfer.
#[test]
fn disconnecting_client_cancels_the_session() {
    let certificate = HostCertificate::new();
    let slow = format!("{ANYWHERE}[limits]\nrate = \"8Mbps\"\n");
    let (a, b) = (Site::with(&certificate.config(), &slow), site(&certificate));
    write_file(&mut seeded(1733), &a.data.join("f"), OFFERED_BYTES_MIN);
    disconnect_cancels(&b, ("Source", &url_at(&a, "f")), &a);
    wait_until("the partial file goes", Duration::from_secs(20), || {
        b.names().is_empty().then_some(())
    });
    assert_eq!(fs::metadata(a.data.join("f")).unwrap().size(), OFFERED_BYTES_MIN as u64);
}
