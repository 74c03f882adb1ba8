//! Third-party pushes between two agents, whose data goes by the mover's protocol.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use serde_json::Value;

use crate::common::{seeded, wait_until, write_file};
use crate::mover_pull::{OFFERED_BYTES_MIN, adler32, begin_copy, disconnect_cancels, is_by_mover};
use crate::site::{HostCertificate, Site, TestResponse};
use crate::third_party::{ANYWHERE, assert_success, copy, site, url_at};

fn push(from: &Site, name: &str, to: &str, more: &[(&str, &str)]) -> TestResponse {
    copy(from, name, &[&[("Destination", to)], more].concat())
}

/// Transfers of an agent by the mover.
fn by_mover(site: &Site) -> Vec<Value> {
    site.transfers().into_iter().filter(|one| one["engine"] != "http").collect()
}

#[test]
fn agents_push_by_the_mover() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    let mut random = seeded(1751);
    let edge = OFFERED_BYTES_MIN;
    fs::create_dir(b.data.join("d")).unwrap();
    for bytes in [0, 1, edge - 1, edge, edge + 1, 40_000_003] {
        let (name, to) = (format!("f-{bytes}"), format!("d/to%20{bytes}"));
        write_file(&mut random, &a.data.join(&name), bytes);
        let content = fs::read(a.data.join(&name)).unwrap();
        let arrived = b.data.join(format!("d/to {bytes}"));
        let url = url_at(&b, &to);
        // With the verification of FTS, and as gfal2 and davix send it.
        for verify in ["true", "false"] {
            let verify = ("RequireChecksumVerification", verify);
            let pushed = push(&a, &name, &url, &[verify]);
            assert_success(&pushed);
            assert_eq!(is_by_mover(&pushed), bytes >= edge, "{name}");
            assert!(fs::read(&arrived).unwrap() == content, "{name}");
            assert_eq!(adler32(&b, &to), adler32(&a, &name));
            // Of the same size, and as old.
            let modified = fs::metadata(&arrived).unwrap().modified().unwrap();
            fs::write(&arrived, vec![b'x'; bytes]).unwrap();
            let file = fs::File::options().write(true).open(&arrived).unwrap();
            file.set_modified(modified).unwrap();
        }
        let kept = push(&a, &name, &url, &[("Overwrite", "F")]);
        assert_eq!(kept.status, 412, "{}", kept.text());
    }
    for (site, direction) in [(&a, "send"), (&b, "receive")] {
        let moved = by_mover(site);
        assert_eq!(moved.len(), 6, "{moved:?}");
        for one in moved {
            assert_eq!((&one["state"], &one["direction"]), (&"done".into(), &direction.into()));
            assert_eq!((&one["caller"], &one["files"]), (&"alice".into(), &1.into()), "{one}");
        }
    }
    let names: Vec<_> = fs::read_dir(b.data.join("d")).unwrap().collect();
    assert_eq!(names.len(), 6, "{names:?}");
}

/// Offers are for clients that may create and replace the file, where PUT would do so.
#[test]
fn offers_follow_the_rights() {
    let certificate = HostCertificate::new();
    let b = site(&certificate);
    fs::create_dir(b.data.join("d")).unwrap();
    fs::write(b.data.join("f"), b"abc").unwrap();
    symlink("f", b.data.join("link")).unwrap();
    let ask = [("Penstock-Mover", "push")];
    for (path, status, is_offered) in [
        ("f", 200, true),
        ("new", 404, true),
        ("d/new", 404, true),
        ("d", 200, false),
        ("d/", 200, false),
        ("new/", 404, false),
        ("none/new", 404, false),
        ("link", 200, false),
    ] {
        let answer = b.ask("HEAD", &format!("/store/data/{path}"), &ask, b"");
        let offer = answer.header("penstock-mover");
        assert_eq!((answer.status, offer.is_some()), (status, is_offered), "{path}");
        let unasked = b.ask("HEAD", &format!("/store/data/{path}"), &[], b"");
        assert_eq!(unasked.header("penstock-mover"), None, "{path}");
    }
    let other = b.ask_as("Bearer wrong-token-of-alice", "HEAD", "/store/data/f", &ask, b"");
    assert_eq!((other.status, other.header("penstock-mover")), (401, None));
}

#[test]
fn faults_keep_the_destination() {
    let certificate = HostCertificate::new();
    let (a, b) = (site(&certificate), site(&certificate));
    write_file(&mut seeded(1752), &a.data.join("f"), OFFERED_BYTES_MIN);
    let content = fs::read(a.data.join("f")).unwrap();
    // A link at the source is copied as the file that it names.
    symlink("f", a.data.join("link")).unwrap();
    assert_success(&push(&a, "link", &url_at(&b, "link"), &[]));
    assert!(!b.data.join("link").is_symlink() && fs::read(b.data.join("link")).unwrap() == content);
    fs::create_dir(b.data.join("d")).unwrap();
    fs::write(b.data.join("old"), b"old").unwrap();
    symlink("old", b.data.join("to")).unwrap();
    for (to, words) in [("d", "409"), ("no/f", "409"), ("to", "409")] {
        let refused = push(&a, "f", &url_at(&b, to), &[]);
        let text = refused.text();
        assert!(text.contains("failure: ") && text.contains(words), "{to}: {text}");
    }
    let token = [("TransferHeaderAuthorization", "Bearer wrong-token-of-alice")];
    let old = url_at(&b, "old");
    let denied = [&token[..], &[("Destination", old.as_str())]].concat();
    let denied = a.ask("COPY", "/store/data/f", &denied, b"");
    assert!(denied.text().contains("Permission denied"), "{}", denied.text());
    assert_eq!(fs::read(b.data.join("old")).unwrap(), b"old");
    assert_eq!(b.names(), ["d", "link", "old", "to"]);
    assert!(fs::read_dir(b.data.join("d")).unwrap().next().is_none());
}

/// The active agent is killed in the middle; the same request to its successor continues.
#[test]
fn repeated_push_continues() {
    let certificate = HostCertificate::new();
    let slow = format!("{ANYWHERE}[limits]\nrate = \"80Mbps\"\n");
    let (mut a, b) = (Site::with(&certificate.config(), &slow), site(&certificate));
    let bytes = 3 * OFFERED_BYTES_MIN;
    write_file(&mut seeded(1753), &a.data.join("f"), bytes);
    let _stream = begin_copy(&a, ("Destination", &url_at(&b, "f")));
    wait_until("blocks arrive", Duration::from_secs(20), || {
        let moved = by_mover(&b);
        let arrived = moved.first().and_then(|one| one["moved_bytes"].as_u64());
        (arrived > Some(OFFERED_BYTES_MIN as u64 / 2)).then_some(())
    });
    a.restart();
    assert!(!b.data.join("f").exists());
    let pushed = push(&a, "f", &url_at(&b, "f"), &[]);
    assert_success(&pushed);
    assert!(is_by_mover(&pushed));
    assert!(fs::read(b.data.join("f")).unwrap() == fs::read(a.data.join("f")).unwrap());
    let moved = by_mover(&a);
    let sent = moved.last().unwrap()["moved_bytes"].as_u64().unwrap();
    assert!(sent < bytes as u64, "{moved:?}");
    assert_eq!(b.names(), ["f"]);
}

#[test]
fn disconnecting_client_cancels_the_push() {
    let certificate = HostCertificate::new();
    let slow = format!("{ANYWHERE}[limits]\nrate = \"8Mbps\"\n");
    let (a, b) = (Site::with(&certificate.config(), &slow), site(&certificate));
    write_file(&mut seeded(1754), &a.data.join("f"), OFFERED_BYTES_MIN);
    disconnect_cancels(&a, ("Destination", &url_at(&b, "f")), &b);
    assert!(!b.data.join("f").exists());
}
