//! Many small third-party copies, with servers that are killed in between.
//!
//! With XRootD a test takes 500 files; `make clients` sets [`FILES_VARIABLE`] for 2,000.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use penstock_testkit::is_installed;

use crate::common::{seeded, write_file};
use crate::site::{HostCertificate, Site};
use crate::third_party::{assert_success, bearer, copy, site, url_at};
use crate::xrootd::Xrootd;

/// Variable with the number of files.
const FILES_VARIABLE: &str = "PENSTOCK_TEST_COPIES";

/// Number of times that a server is killed.
const KILL_COUNT: usize = 3;

/// Attempts of a client for one file, as FTS makes them.
const ATTEMPTS_MAX: usize = 3;

/// Number of files: that of the variable, else `few`.
fn file_count(few: usize) -> usize {
    match std::env::var(FILES_VARIABLE) {
        Ok(text) => text.parse().expect("a number of files"),
        Err(_) => few,
    }
}

/// The destination is killed while it pulls many files; a client that asks again for those without success gets them all.
#[test]
fn many_copies_survive_kills() {
    let files = file_count(2000);
    let certificate = HostCertificate::new();
    let (a, mut b) = (site(&certificate), site(&certificate));
    let mut random = seeded(1716);
    for number in 0..files {
        let bytes = (random.unit() * 20_000.0) as usize;
        write_file(&mut random, &a.data.join(format!("f{number}")), bytes);
    }
    let mut missing: Vec<usize> = (0..files).collect();
    let mut killed = 0;
    while !missing.is_empty() {
        let begun = missing.len();
        let kill_at = files / (KILL_COUNT + 1);
        let mut done = 0;
        missing.retain(|number| {
            if killed < KILL_COUNT && done == kill_at {
                return true;
            }
            let name = format!("f{number}");
            let verify = ("RequireChecksumVerification", "true");
            assert_success(&copy(&b, &name, &[("Source", &url_at(&a, &name)), verify]));
            done += 1;
            false
        });
        assert!(missing.len() < begun);
        if killed < KILL_COUNT {
            kill_in_copy(
                &mut b,
                &format!("f{}", missing[0]),
                &url_at(&a, &format!("f{}", missing[0])),
            );
            killed += 1;
        }
    }
    for number in 0..files {
        let name = format!("f{number}");
        assert!(fs::read(a.data.join(&name)).unwrap() == fs::read(b.data.join(&name)).unwrap());
    }
    assert_eq!(b.names().len(), files, "{:?}", b.names());
}

/// Kills the gateway in the middle of a pull of `url`: its first marker was sent, its end was not read.
fn kill_in_copy(site: &mut Site, name: &str, url: &str) {
    let mut stream = site.connect();
    let head = format!(
        "COPY /store/data/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: {0}\r\nTransferHeaderAuthorization: {0}\r\nSource: {url}\r\n\r\n",
        bearer(),
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains(" 202 "), "{line}");
    site.restart();
}

/// Active side and direction of a copy, as the number of its file decides.
#[derive(Debug, Clone, Copy)]
enum CopyMode {
    GatewayPulls,
    GatewayPushes,
    XrootdPulls,
    XrootdPushes,
}

impl CopyMode {
    fn of(number: usize) -> Self {
        [Self::GatewayPulls, Self::GatewayPushes, Self::XrootdPulls, Self::XrootdPushes][number % 4]
    }

    /// True if the file goes to the gateway.
    fn is_to_gateway(self) -> bool {
        matches!(self, Self::GatewayPulls | Self::XrootdPushes)
    }
}

/// Copies one file; returns the last line of the answer, or the error of the client.
fn copy_once(
    mode: CopyMode,
    name: &str,
    gateway: &Site,
    peer: &Xrootd,
    certificate: &HostCertificate,
) -> String {
    let own = url_at(gateway, name).replace("127.0.0.1", "localhost");
    let local = gateway.url("http");
    let local = format!("{local}store/data/{name}");
    let (at, header) = match mode {
        CopyMode::GatewayPulls => (local, format!("Source: {}", peer.url(name))),
        CopyMode::GatewayPushes => (local, format!("Destination: {}", peer.url(name))),
        CopyMode::XrootdPulls => (peer.url(name), format!("Source: {own}")),
        CopyMode::XrootdPushes => (peer.url(name), format!("Destination: {own}")),
    };
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "10", "--cacert"])
        .arg(certificate.path("ca.pem"))
        .args(["-X", "COPY", "-H", &header, "-H", &format!("Authorization: {}", bearer())])
        .args(["-H", &format!("TransferHeaderAuthorization: {}", bearer())])
        .args(["-H", "RequireChecksumVerification: true", &at])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    text.trim_end().lines().last().map_or_else(|| error.trim_end().to_owned(), str::to_owned)
}

/// Files go between a gateway and XRootD, both ways and with either as the active side, while both are killed.
#[test]
fn xrootd_copies_survive_kills() {
    let certificate = HostCertificate::new();
    let Some(mut peer) = Xrootd::start(&certificate) else { return };
    if !is_installed("curl") {
        return;
    }
    let files = file_count(500);
    let mut gateway = site(&certificate);
    let mut random = seeded(1717);
    for number in 0..files {
        let mut content = vec![0; (random.unit() * 20_000.0) as usize];
        random.fill(&mut content);
        let name = format!("f{number}");
        match CopyMode::of(number).is_to_gateway() {
            true => peer.put(&name, &content),
            false => fs::write(gateway.data.join(&name), &content).unwrap(),
        }
    }
    let kill_interval = files / (2 * KILL_COUNT + 1);
    let begun = Instant::now();
    let (mut kills, mut repeated) = (0, Vec::new());
    for number in 0..files {
        let name = format!("f{number}");
        if kills < 2 * KILL_COUNT && number == (kills + 1) * kill_interval {
            // In the middle of a copy of a file of its own.
            peer.put(&format!("killed{kills}"), &[7; 100_000]);
            match kills % 2 {
                0 => kill_in_copy(
                    &mut gateway,
                    &format!("killed{kills}"),
                    &peer.url(&format!("killed{kills}")),
                ),
                _ => peer.restart(),
            }
            kills += 1;
        }
        let mode = CopyMode::of(number);
        for attempt in 1.. {
            let answer = copy_once(mode, &name, &gateway, &peer, &certificate);
            if answer == "success: Created" {
                break;
            }
            repeated.push(format!("{mode:?} {name}: {answer}"));
            assert!(attempt < ATTEMPTS_MAX, "{repeated:#?}");
            // XRootD 5.5.3 at times crashes or stops accepting connections while it computes checksums.
            peer.restart();
        }
    }
    for number in 0..files {
        let name = format!("f{number}");
        let (here, there) = (fs::read(gateway.data.join(&name)), fs::read(peer.data.join(&name)));
        assert!(here.unwrap() == there.unwrap(), "{name}");
    }
    // Shown by --nocapture.
    println!(
        "{files} files, {kills} kills, {:.1} s, repeated: {repeated:#?}",
        begun.elapsed().as_secs_f64()
    );
}
