//! Limits of connections and transfers, and requests that break the rules of HTTP.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use penstock_testkit::raw::{RawResponse, exchange, read_response, uninterrupted};

use crate::common::{seeded, wait_until, write_file};
use crate::root::root_authority;
use crate::site::{Site, TOKEN, missing_program};

/// Opens idle connections to a server that admits `limit`; it has accepted all of them on return.
fn idle(authority: &str, limit: usize) -> Vec<TcpStream> {
    const EXTRA_CONNECTIONS: usize = 4;
    let connect = |_| {
        let stream = TcpStream::connect(authority).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        stream
    };
    let mut streams: Vec<_> = (0..limit + EXTRA_CONNECTIONS).map(connect).collect();
    // The oldest ones gave way to the last.
    assert!(streams.drain(..EXTRA_CONNECTIONS).all(|stream| is_closed(&stream)), "{authority}");
    streams
}

/// True once the server closes a connection, sooner than the time limit of an idle one.
fn is_closed(stream: &TcpStream) -> bool {
    let mut stream = stream;
    matches!(uninterrupted(|| stream.read(&mut [0])), Ok(0))
}

#[test]
fn huge_listings_are_streamed() {
    const LISTED_FILES: usize = 40_000;
    // One listing of 24 MB for each client would be 740 MB.
    const GROWTH_MAX: u64 = 100 << 20;
    const SLOW_CLIENTS: usize = 30;
    let site = Site::new();
    for number in 0..LISTED_FILES {
        fs::File::create(site.data.join(format!("a-file-with-a-longer-name-{number}"))).unwrap();
    }
    let before = site.resident_bytes();
    // Clients that ask and read nothing hold a chunk each, not a listing of some 20 MB.
    let ask = |_| {
        let mut stream = site.connect();
        let head = format!(
            "PROPFIND /store/data/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nDepth: 1\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let slow: Vec<TcpStream> = (0..SLOW_CLIENTS).map(ask).collect();
    let listing = site.ask("PROPFIND", "/store/data/", &[("Depth", "1")], b"");
    assert_eq!(listing.status, 207);
    let text = listing.text();
    assert_eq!(text.matches("<D:response>").count(), LISTED_FILES + 1);
    assert!(text.trim_end().ends_with("</D:multistatus>"), "it breaks off");
    let growth = site.resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more for {} of a listing", text.len());
    drop(slow);
}

#[test]
fn idle_connections_give_way() {
    let site = Site::with("root = [\"127.0.0.1:0\"]\nconnections = 8\n", "");
    fs::write(site.data.join("f"), b"hello").unwrap();
    let https = site.url("https");
    let https = https["https://".len()..].trim_end_matches('/');
    for authority in [site.authority().as_str(), https] {
        let held = idle(authority, 8);
        for _ in 0..3 {
            assert_eq!(site.ask("GET", "/store/data/f", &[], b"").text(), "hello");
        }
        assert!(is_closed(&held[0]), "{authority}");
    }
    let held = idle(&root_authority(&site), 8);
    let mut newcomer = TcpStream::connect(root_authority(&site)).unwrap();
    newcomer.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    newcomer.write_all(&[0_u32, 0, 0, 4, 2012].map(u32::to_be_bytes).concat()).unwrap();
    newcomer.read_exact(&mut [0; 16]).unwrap();
    assert!(is_closed(&held[0]));
}

fn begin_upload(site: &Site, name: &str) -> TcpStream {
    let mut stream = site.connect();
    let head = format!(
        "PUT /store/data/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\nab"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn one_caller_leaves_room_for_others() {
    let site = Site::with("", "[limits]\ntransfers = 4\n");
    let mut uploads: Vec<_> =
        ["a", "b", "c"].iter().map(|name| begin_upload(&site, name)).collect();
    wait_until("three uploads run", Duration::from_secs(20), || {
        (site.transfers().len() == 3).then_some(())
    });
    let mut fourth = begin_upload(&site, "d");
    fourth.write_all(b"cde").unwrap();
    let owner = fs::read_to_string(site.env.state.join("token")).unwrap();
    let owner = format!("Bearer {}", owner.trim());
    assert_eq!(site.ask_as(&owner, "PUT", "/store/data/o", &[], b"hello").status, 201);
    assert!(!site.data.join("d").exists());
    // The end of one makes room for the fourth.
    drop(uploads.pop());
    assert_eq!(read_response(&mut BufReader::new(fourth)).status, 201);
}

/// A copy over HTTP, one by the mover's protocol, and one within the agent.
#[test]
fn third_party_copies_wait_for_room() {
    let source = Site::new();
    write_file(&mut seeded(1730), &source.data.join("http"), 100_000);
    write_file(&mut seeded(1731), &source.data.join("mover"), 16 << 20);
    for name in ["http", "mover", "local"] {
        let site = Site::with("", "[limits]\ntransfers = 4\n[third_party]\nto = \"any\"\n");
        let mut uploads: Vec<_> =
            ["a", "b", "c"].iter().map(|name| begin_upload(&site, name)).collect();
        wait_until("three uploads run", Duration::from_secs(20), || {
            (site.transfers().len() == 3).then_some(())
        });
        fs::write(site.data.join("local"), b"content").unwrap();
        let url = match name {
            "local" => "/store/data/local".to_owned(),
            _ => format!("{}store/data/{name}", source.url("http")),
        };
        let mut copy = site.connect();
        let head = format!(
            "COPY /store/data/copy HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\
             Source: {url}\r\nTransferHeaderAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        copy.write_all(head.as_bytes()).unwrap();
        copy.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let early = copy.read(&mut [0; 1000]).map(drop).map_err(|error| error.kind());
        assert_eq!(early, Err(std::io::ErrorKind::WouldBlock), "{name}: it was answered");
        drop(uploads.pop());
        copy.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let answer = read_response(&mut BufReader::new(copy));
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 202, "{name}: {text}");
        assert!(text.ends_with("success: Created\n"), "{name}: {text}");
    }
}

#[test]
fn host_header_is_required_once() {
    let site = Site::new();
    for (lines, status) in [
        ("HTTP/1.1\r\n", 400),
        ("HTTP/1.1\r\nHost: x\r\nHost: y\r\n", 400),
        ("HTTP/1.1\r\nHost: x\r\n", 401),
        ("HTTP/1.0\r\n", 401),
    ] {
        let mut stream = site.connect();
        stream.write_all(format!("GET /store/data/f {lines}\r\n").as_bytes()).unwrap();
        assert_eq!(read_response(&mut BufReader::new(stream)).status, status, "{lines}");
    }
}

/// Sends requests over one connection, each after the response to the one before it; returns the last response, and whether
/// the server closed the connection then.
fn last_of(site: &Site, requests: &[&str]) -> (RawResponse, bool) {
    let mut stream = site.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut last = None;
    for request in requests {
        stream.write_all(request.as_bytes()).unwrap();
        last = Some(read_response(&mut reader));
    }
    let closed = reader.get_ref().set_read_timeout(Some(Duration::from_secs(8))).is_ok()
        && matches!(uninterrupted(|| reader.read(&mut [0])), Ok(0));
    (last.unwrap(), closed)
}

#[test]
fn fragment_in_target_is_refused() {
    let site = Site::new();
    let head = |method: &str, target: &str, more: &str| {
        format!(
            "{method} {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{more}\r\n"
        )
    };
    let put = head("PUT", "/store/data/a", "Content-Length: 3\r\n") + "x#y";
    let chunked = head("PUT", "/store/data/a", "Transfer-Encoding: chunked\r\n")
        + "10\r\nDELETE /a#b HTTP\r\n0\r\n\r\n";
    for first in [&[put.as_str()][..], &[chunked.as_str()], &[put.as_str(), &chunked, &put]] {
        let delete = head("DELETE", "/store/data/a#b", "");
        let (refused, closed) = last_of(&site, &[first, &[delete.as_str()]].concat());
        assert!(refused.status == 400 && closed, "{refused:?}");
        assert_eq!(site.names(), ["a"]);
        // Also where it arrives together with the request before it.
        let all = exchange(site.authority(), (first.concat() + &delete).as_bytes());
        assert_eq!(all.matches("HTTP/1.1 204").count(), first.len(), "{all}");
        assert_eq!(all.matches("HTTP/1.1 400").count(), 1, "{all}");
        assert_eq!(site.names(), ["a"]);
    }
    assert_eq!(fs::read(site.data.join("a")).unwrap(), b"x#y");
    let (refused, closed) = last_of(&site, &[&head("GET", "/store/data/a?x=#b", "")]);
    assert!(refused.status == 400 && closed);
    let encoded = site.ask("PUT", "/store/data/a%23b", &[], b"1");
    assert_eq!((encoded.status, site.names().len()), (201, 2));
}

#[test]
fn two_framings_are_refused() {
    let site = Site::new();
    let (length, chunked) = ("Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n");
    for (first, second) in [(length, chunked), (chunked, length)] {
        let request = format!(
            "PUT /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{first}X-Y: z\r\n{second}\r\n0\r\n\r\n"
        );
        let good = "OPTIONS /store/data HTTP/1.1\r\nHost: x\r\n\r\n";
        for requests in [&[request.as_str()][..], &[good, &request]] {
            let (refused, closed) = last_of(&site, requests);
            assert!(refused.status == 400 && closed, "{first}{second}: {refused:?}");
        }
    }
    assert!(site.names().is_empty());
}

#[test]
fn unknown_codings_are_refused() {
    let site = Site::new();
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    for (headers, status) in [
        ("Transfer-Encoding: chunked\r\n", 201),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501),
        ("Transfer-Encoding: chunked, chunked\r\n", 501),
        (
            "Transfer-Encoding: chunked\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\n",
            415,
        ),
    ] {
        let request = format!(
            "PUT /store/data/coded HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{headers}\r\n{chunks}"
        );
        let (answer, _) = last_of(&site, &[&request]);
        assert_eq!(answer.status, status, "{headers}: {answer:?}");
        let stored = site.data.join("coded");
        assert_eq!(stored.exists(), status == 201, "{headers}");
        let _ = fs::remove_file(stored);
    }
    let twice = [("Destination", "/store/data/b"), ("Destination", "/store/data/c")];
    fs::write(site.data.join("a"), b"a").unwrap();
    assert_eq!(site.ask("MOVE", "/store/data/a", &twice, b"").status, 400);
}

#[test]
fn broken_bodies_are_client_errors() {
    let site = Site::new();
    for (framing, body) in [
        ("Content-Length: 10", "abc"),
        ("Transfer-Encoding: chunked", "3\r\nabc\r\nzz\r\n"),
        ("Transfer-Encoding: chunked", "3\r\nabc\r\n"),
    ] {
        let mut stream = site.connect();
        let request = format!(
            "PUT /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{framing}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let response = read_response(&mut BufReader::new(stream));
        assert_eq!(response.status, 400, "{framing}: {response:?}");
        assert!(site.names().is_empty());
    }
}

#[test]
fn slow_upload_gets_timeout() {
    let site = Site::with("upload_timeout = \"1s\"\n", "");
    for is_silent in [true, false] {
        let mut stream = site.connect();
        let head = format!(
            "PUT /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 10000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        if !is_silent {
            let mut one = stream.try_clone().unwrap();
            std::thread::spawn(move || {
                // Ten bytes a second, until the server closes.
                while one.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
        let response = read_response(&mut BufReader::new(&stream));
        let text = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!(response.status, 408, "{text}");
        let words = if is_silent { "sent nothing for 1 s" } else { "slower than 1024 bytes" };
        assert!(text.contains(words), "{text}");
        assert!(site.names().is_empty());
    }
}

#[test]
fn bursts_wait_to_be_accepted() {
    if missing_program("ss") {
        return;
    }
    let site = Site::with("root = [\"127.0.0.1:0\"]\n", "");
    for authority in [site.authority(), root_authority(&site)] {
        let port = authority.rsplit_once(':').unwrap().1;
        let output = Command::new("ss").args(["-Hltn", &format!("sport = :{port}")]).output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        let backlog: u32 = output.split_whitespace().nth(2).unwrap().parse().unwrap();
        let limit = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        assert_eq!(backlog, limit.trim().parse::<u32>().unwrap().min(1024), "{output}");
    }
}

#[test]
fn port_in_use_names_its_key() {
    let site = Site::new();
    let taken = site.authority();
    let env = crate::common::TestEnv::new();
    let config = env.path("penstock.toml");
    let text = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"none\"\n[gateway]\nlisten = [\"{taken}\"]\n\
         [[export]]\nname = \"/data\"\npath = {:?}\nmode = \"read\"\nwho = [\"owner\"]\n",
        env.path("")
    );
    fs::write(&config, text).unwrap();
    let mut command = crate::common::penstock(&env.state);
    command.args(["serve", "--roles", "agent", "--config"]).arg(&config);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("change listen in [gateway]"), "{error}");
}
