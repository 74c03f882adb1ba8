//! Requests that mean harm.

use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use super::raw::{RootClient, read_arguments, segment};
use super::{AUTHZ, root_site};
use crate::common::{seeded, wait_until, write_file};
use crate::site::Site;

/// True if the server closes the connection without an answer.
fn is_closed(client: &mut RootClient) -> bool {
    let mut rest = Vec::new();
    match client.stream.read_to_end(&mut rest) {
        Ok(_) => rest.is_empty(),
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn site_with_file(size: usize) -> Site {
    let site = root_site("");
    write_file(&mut seeded(1725), &site.data.join("f"), size);
    site
}

#[test]
fn garbage_handshake_is_closed() {
    let site = site_with_file(10);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 20], &[0; 20]] {
        let mut client = RootClient::connect(&site);
        client.stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut client), "{bytes:?}");
    }
    let mut client = RootClient::connect(&site);
    client.handshake();
    let refused = client.ask(3017, [0; 16], format!("/store/data/f?{AUTHZ}").as_bytes()).unwrap();
    assert_eq!(refused.code(), 3006, "a request before the login");
}

#[test]
fn huge_body_ends_connection() {
    let site = site_with_file(10);
    for (code, length, expected) in
        [(3017, u32::MAX, 3002), (3017, 1 << 20, 3002), (3019, 1 << 20, 3025)]
    {
        let mut client = RootClient::logged_in(&site);
        client.send_with_length(code, [0; 16], length, &[0; 1000]).unwrap();
        assert_eq!(client.receive().unwrap().code(), expected);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_closed(&mut client));
    }
}

#[test]
fn hostile_paths_are_refused() {
    let site = site_with_file(10);
    fs::write(site.env.path("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink("../secret", site.data.join("link")).unwrap();
    std::os::unix::fs::symlink("f", site.data.join("inner")).unwrap();
    let mut client = RootClient::logged_in(&site);
    for path in [
        "/store/data/../secret",
        "/store/data/..",
        "/store/data/link",
        "/store/data/%2e%2e/secret",
        "/store/data/f\0",
        "/store/data\0/f",
        "store/data/f",
        "/../../etc/passwd",
        "/etc/passwd",
        "",
        "*",
        "/store/data/",
        "/store",
    ] {
        let opened = client.open(path);
        assert!(opened.is_err(), "{path:?}: {opened:?}");
    }
    for (opaque, is_accepted) in [
        (AUTHZ.to_owned(), true),
        (format!("x=1&{AUTHZ}&path=/etc/passwd"), true),
        (format!("{AUTHZ}&{AUTHZ}"), true),
        (String::new(), false),
        ("authz=".to_owned(), false),
        ("authz=Bearer%20".to_owned(), false),
        ("authz=Basic%20the-token-of-alice-is-long".to_owned(), false),
        (format!("xauthz=1&x{AUTHZ}"), false),
        (format!("{AUTHZ}&authz=other"), false),
        (format!("{AUTHZ}&scitag.flow=x"), false),
        ("authz=%ff".to_owned(), false),
    ] {
        // A connection for each, as several wrong tokens end one.
        let mut client = RootClient::logged_in(&site);
        let opened = client.open_raw(format!("/store/data/f?{opaque}").as_bytes());
        assert_eq!(opened.is_ok(), is_accepted, "{opaque}: {opened:?}");
    }
    assert!(client.open("/store/data/inner").is_ok());
    assert!(client.open("//store/./data//f").is_ok());
    assert_eq!(client.open(&format!("/{}", "x".repeat(5000))), Err(3002));
}

#[test]
fn wrong_tokens_end_connection() {
    let site = site_with_file(10);
    let mut client = RootClient::logged_in(&site);
    for at in 0..5 {
        let path = format!("/store/data/f?authz=a-wrong-token-number-{at}");
        assert_eq!(client.open_raw(path.as_bytes()), Err(3030));
    }
    assert!(is_closed(&mut client));
}

#[test]
fn reads_outside_the_file_fail() {
    let site = site_with_file(1000);
    let mut client = RootClient::logged_in(&site);
    let handle = client.open("/store/data/f").unwrap();
    for (offset, bytes) in [(-1, 1), (i64::MIN, 1), (0, -1), (0, i32::MIN)] {
        assert!(client.read(handle, offset, bytes).is_err());
    }
    assert_eq!(client.read(handle, i64::MAX, i32::MAX).unwrap(), b"");
    assert_eq!(client.read(handle, 1000, 1).unwrap(), b"");
    assert_eq!(client.read(handle, 990, i32::MAX).unwrap().len(), 10);
    assert_eq!(client.read(handle, 0, 0).unwrap(), b"");
    let stat = read_arguments(0, 0, i32::try_from(handle + 1).unwrap());
    let other = read_arguments(handle + 1, 0, 1);
    for (code, arguments) in [(3013, other), (3017, stat), (3003, other)] {
        let unknown = client.ask(code, arguments, b"").unwrap();
        assert_eq!(unknown.code(), 3004, "{unknown:?}");
    }
    client.close(handle).unwrap();
    assert_eq!(client.close(handle), Err(3004));
    assert!(client.read(handle, 0, 1).is_err());
}

#[test]
fn vector_reads_are_bounded() {
    let site = site_with_file(5_000_000);
    let content = fs::read(site.data.join("f")).unwrap();
    let mut client = RootClient::logged_in(&site);
    let handle = client.open("/store/data/f").unwrap();
    let mut random = seeded(1726);
    let mut segments = vec![(0, 2_097_136), (4_999_999, 1), (5_000_000, 0), (3, 524_280)];
    segments.extend((0..1000).map(|_| {
        let offset = random.below(4_000_000);
        (offset, 1 + random.below(3000))
    }));
    let body: Vec<u8> = segments
        .iter()
        .flat_map(|(offset, bytes)| segment(handle, *bytes as i32, *offset as i64))
        .collect();
    let mut rest = &client.ask(3025, [0; 16], &body).unwrap().body[..];
    for (at, (offset, bytes)) in segments.iter().enumerate() {
        let (head, later) = rest.split_at(16);
        assert!(head == &body[16 * at..16 * at + 16], "segment {at}");
        let (data, later) = later.split_at(*bytes as usize);
        assert!(data == &content[*offset as usize..][..*bytes as usize], "segment {at}");
        rest = later;
    }
    assert!(rest.is_empty());
    for (body, code) in [
        (segment(handle, 1, 0).repeat(1025), 3002),
        (segment(handle, 2_097_137, 0), 3002),
        (segment(handle, 2, 4_999_999), 3000),
        (segment(handle, 1, i64::MAX), 3000),
        (segment(handle, -1, 0), 3000),
        (segment(handle + 1, 1, 0), 3004),
        (vec![0; 15], 3000),
        (Vec::new(), 3000),
    ] {
        let answer = client.ask(3025, [0; 16], &body).unwrap();
        // A body beyond the limit ends the connection after the answer.
        assert_eq!(answer.code(), code, "{answer:?}");
        if body.len() > 16 << 10 {
            client = RootClient::logged_in(&site);
            assert_eq!(client.open("/store/data/f"), Ok(handle));
        }
    }
}

#[test]
fn open_files_are_bounded() {
    let site = site_with_file(10);
    let mut client = RootClient::logged_in(&site);
    for _ in 0..256 {
        client.open("/store/data/f").unwrap();
    }
    assert_eq!(client.open("/store/data/f"), Err(3024));
    client.close(1).unwrap();
    client.open("/store/data/f").unwrap();
}

#[test]
fn reader_that_leaves_is_no_failure() {
    let site = site_with_file(100_000);
    let mut client = RootClient::logged_in(&site);
    let handle = client.open("/store/data/f").unwrap();
    assert_eq!(client.read(handle, 0, 100_000).unwrap().len(), 100_000);
    drop(client);
    let ended = wait_until("the transfer ends", Duration::from_secs(20), || {
        site.transfers().pop().filter(|one| one["state"] != "running")
    });
    assert_eq!((&ended["state"], &ended["bytes"]), (&"done".into(), &100_000.into()), "{ended}");
}

#[test]
fn leaving_client_ends_its_checksum() {
    let site = root_site("");
    // Its MD5 takes longer than the test waits.
    fs::File::create(site.data.join("f")).unwrap().set_len(1 << 40).unwrap();
    let mut client = RootClient::logged_in(&site);
    let mut checksum = [0; 16];
    checksum[1] = 3;
    let path = format!("/store/data/f?cks.type=md5&{AUTHZ}");
    client.send(3001, checksum, path.as_bytes()).unwrap();
    let within = Duration::from_secs(20);
    wait_until("the file is read", within, || site.reads("f").then_some(()));
    drop(client);
    wait_until("the computation ends", within, || (!site.reads("f")).then_some(()));
}

#[test]
fn slow_clients_do_not_hold_others() {
    let site = root_site("[limits]\ntransfers = 200\ntransfers_per_caller = 200\n");
    write_file(&mut seeded(1728), &site.data.join("f"), 64 << 20);
    let resident_bytes = || {
        let status = fs::read_to_string(format!("/proc/{}/status", site.agent.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let before = resident_bytes();
    // None of them reads what it asks for.
    let slow: Vec<RootClient> = (0..100)
        .map(|_| {
            let mut client = RootClient::logged_in(&site);
            let handle = client.open("/store/data/f").unwrap();
            for _ in 0..8 {
                client.send(3013, read_arguments(handle, 0, 64 << 20), b"").unwrap();
            }
            client
        })
        .collect();
    let mut client = RootClient::logged_in(&site);
    let handle = client.open("/store/data/f").unwrap();
    let content = fs::read(site.data.join("f")).unwrap();
    assert!(client.read(handle, 0, 64 << 20).unwrap() == content);
    // Two chunks of 512 KiB each, and what the allocator keeps.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes for 100 slow clients");
    drop(slow);
    client.close(handle).unwrap();
    wait_until("the transfers of clients that left end", Duration::from_secs(20), || {
        site.transfers().iter().all(|one| one["state"] != "running").then_some(())
    });
}
