//! Tests against Debian's `iperf3 -s`, and against servers that break its protocol.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use penstock_nettest::iperf3::client::IperfServerError;
use penstock_nettest::iperf3::wire::COOKIE_BYTES;
use penstock_nettest::{
    NettestError, Report, TestDirection, TestParams, TestProgress, TestProtocol, TestTarget, run,
};

mod common;

use common::IperfServer;

fn test(host: &str, params: &TestParams, stop: &AtomicBool) -> Result<Report, NettestError> {
    let protocol = TestProtocol::Iperf3;
    let target = TestTarget { host: host.to_owned(), protocol, ..TestTarget::default() };
    run(&target, params, stop, &mut |_| {})
}

fn one_second() -> TestParams {
    TestParams { seconds: Some(1.0), ..TestParams::default() }
}

#[test]
fn tcp_test_of_iperf3_server_reports() {
    let Some(server) = IperfServer::new() else { return };
    for (direction, streams, flows) in [
        (TestDirection::Forward, 1, 1),
        (TestDirection::Reverse, 1, 1),
        (TestDirection::Bidir, 1, 2),
        (TestDirection::Forward, 3, 1),
        (TestDirection::Reverse, 2, 1),
        (TestDirection::Bidir, 2, 2),
    ] {
        let params = TestParams { direction, streams, ..one_second() };
        let report = server.test(&params).unwrap_or_else(|error| panic!("{direction:?}: {error}"));
        assert_eq!((report.flows.len(), report.interrupted), (flows, false));
        assert_eq!(report.streams.len() as u32, params.connections());
        assert!(!report.congestion.is_empty() && report.mss > 500, "{report:?}");
        assert!(report.cpu_local_percent > 0.0 && report.cpu_remote_percent > 0.0, "{report:?}");
        for flow in &report.flows {
            assert!(flow.bytes > 1 << 20 && flow.bits_per_second > 1e6, "{direction:?}: {flow:?}");
            assert!((0.5..1.8).contains(&flow.seconds), "{direction:?}: {flow:?}");
        }
        assert!(!report.intervals.is_empty());
    }
}

#[test]
fn tcp_options_reach_iperf3_server() {
    let Some(server) = IperfServer::new() else { return };
    let limited = TestParams { rate_bps: Some(40_000_000), streams: 2, ..one_second() };
    for direction in [TestDirection::Forward, TestDirection::Reverse] {
        let report = server.test(&TestParams { direction, ..limited.clone() }).unwrap();
        assert!((25e6..50e6).contains(&report.bits_per_second), "{direction:?}: {report:?}");
        let params = TestParams {
            direction,
            congestion: Some("reno".into()),
            window_bytes: Some(256 << 10),
            block_bytes: Some(64 << 10),
            omit_seconds: 1.0,
            ..one_second()
        };
        let report = server.test(&params).unwrap();
        assert_eq!(report.congestion, "reno");
        assert!((0.5..1.8).contains(&report.seconds), "{direction:?}: {report:?}");
        assert!(report.intervals[0].omitted);
    }
    let lacking = TestParams { congestion: Some("warp9".into()), ..one_second() };
    let error = server.test(&lacking).unwrap_err().to_string();
    assert!(error.contains("warp9") && !error.contains("connect"), "{error}");
}

#[test]
fn byte_limit_arrives_completely() {
    let Some(server) = IperfServer::new() else { return };
    let is_threaded = common::iperf3_minor() >= 16;
    for direction in [TestDirection::Forward, TestDirection::Reverse, TestDirection::Bidir] {
        let params =
            TestParams { direction, seconds: None, bytes: Some(3_000_001), ..one_second() };
        let report = server.test(&params).unwrap();
        // iperf3 sends whole blocks, and until it learns that the test has ended.
        // From 3.16 on its threads end with the test, and what they have not read is not counted.
        match direction {
            TestDirection::Forward if is_threaded => {
                assert!((1..=3_000_001).contains(&report.bytes), "{report:?}");
            }
            TestDirection::Forward => assert_eq!(report.bytes, 3_000_001, "{report:?}"),
            _ => assert!(report.bytes >= 3_000_001, "{direction:?}: {report:?}"),
        }
    }
}

#[test]
fn udp_test_of_iperf3_server_counts() {
    let Some(server) = IperfServer::new() else { return };
    for (direction, streams) in
        [(TestDirection::Forward, 1), (TestDirection::Reverse, 2), (TestDirection::Bidir, 1)]
    {
        let params = TestParams {
            direction,
            streams,
            udp: true,
            rate_bps: Some(20_000_000),
            block_bytes: Some(1_400),
            ..one_second()
        };
        let report = server.test(&params).unwrap_or_else(|error| panic!("{direction:?}: {error}"));
        for flow in &report.flows {
            let counts = flow.udp.unwrap();
            assert!((15e6..25e6).contains(&flow.bits_per_second), "{direction:?}: {flow:?}");
            assert!(counts.packets > 1_000 && counts.lost_percent < 10.0, "{counts:?}");
            // iperf3 does not report the order.
            assert_eq!(counts.out_of_order.is_some(), flow.direction == "reverse");
        }
    }
}

#[test]
fn busy_server_is_reported_as_busy() {
    let Some(server) = IperfServer::new() else { return };
    let stop = AtomicBool::new(false);
    let long = TestParams { rate_bps: Some(8_000_000), seconds: Some(60.0), ..one_second() };
    thread::scope(|scope| {
        let (sender, started) = std::sync::mpsc::channel();
        let (server, stop, long) = (&server, &stop, &long);
        let first = scope.spawn(move || {
            let protocol = TestProtocol::Iperf3;
            let target =
                TestTarget { host: server.host.clone(), protocol, ..TestTarget::default() };
            run(&target, long, stop, &mut |progress| {
                if matches!(progress, TestProgress::Started) {
                    let _ = sender.send(());
                }
            })
        });
        started.recv_timeout(Duration::from_secs(20)).unwrap();
        let error = server.test(&one_second()).unwrap_err();
        assert!(is(&error, |error| matches!(error, IperfServerError::Busy)), "{error}");
        assert!(error.to_string().contains("busy running a test"), "{error}");
        // A user's interrupt leaves the results of both ends.
        stop.store(true, Relaxed);
        let report = first.join().unwrap().unwrap();
        assert!(report.interrupted && report.seconds < 59.0, "{report:?}");
    });
}

#[test]
fn killed_server_ends_test_with_reason() {
    let Some(mut server) = IperfServer::new() else { return };
    for signal in ["-KILL", "-TERM"] {
        for direction in [TestDirection::Forward, TestDirection::Reverse] {
            let long = TestParams { direction, seconds: Some(60.0), ..one_second() };
            let pid = server.child.id().to_string();
            let begun = Instant::now();
            let protocol = TestProtocol::Iperf3;
            let target =
                TestTarget { host: server.host.clone(), protocol, ..TestTarget::default() };
            let result = run(&target, &long, &AtomicBool::new(false), &mut |progress| {
                if matches!(progress, TestProgress::Started) {
                    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
                }
            });
            let error = result.unwrap_err();
            let typed = |error: &IperfServerError| {
                matches!(error, IperfServerError::Closed { .. } | IperfServerError::Terminated(_))
            };
            assert!(is(&error, typed), "{signal} {direction:?}: {error:?}");
            assert!(begun.elapsed() < Duration::from_secs(20));
            let Some(next) = IperfServer::new() else { return };
            server = next;
        }
    }
}

fn is(error: &NettestError, what: impl Fn(&IperfServerError) -> bool) -> bool {
    match error {
        NettestError::Broken { error, .. } => is(error, what),
        NettestError::IperfServer { error, .. } => what(error),
        _ => false,
    }
}

/// Server that reads a cookie, sends `answers`, each after one more read, and then keeps silent until the client
/// closes. The result is that of the client.
fn hostile(answers: &[&[u8]]) -> NettestError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        let client = scope.spawn(move || test(&host, &one_second(), &AtomicBool::new(false)));
        let (mut control, _) = listener.accept().unwrap();
        control.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        control.read_exact(&mut [0; COOKIE_BYTES]).unwrap();
        let mut connections: Vec<TcpStream> = Vec::new();
        for (number, answer) in answers.iter().enumerate() {
            if control.write_all(answer).is_err() {
                break;
            }
            match number {
                0 if answers.len() > 1 => {
                    let mut length = [0; 4];
                    control.read_exact(&mut length).unwrap();
                    let mut json = vec![0; u32::from_be_bytes(length) as usize];
                    control.read_exact(&mut json).unwrap();
                    serde_json::from_slice::<serde_json::Value>(&json).unwrap();
                }
                1 if answers.len() > 2 => connections.push(listener.accept().unwrap().0),
                2 => {
                    // Reads the data until the end of the test, as a server does.
                    let mut data = connections[0].try_clone().unwrap();
                    scope.spawn(move || while matches!(data.read(&mut [0; 65_536]), Ok(1..)) {});
                    // A client that knows better leaves.
                    let mut state = [0];
                    if control.read_exact(&mut state).is_err() {
                        break;
                    }
                    assert_eq!(state, [4]);
                }
                _ => {}
            }
        }
        let error = client.join().unwrap().unwrap_err();
        drop((control, connections));
        error
    })
}

#[test]
fn hostile_answers_are_typed_errors() {
    let results = |json: &str| {
        let length = u32::try_from(json.len()).unwrap().to_be_bytes();
        [&[13][..], &length, json.as_bytes()].concat()
    };
    let running = &[1, 2][..];
    let huge = [13, 0xff, 0xff, 0xff, 0xff];
    let no_stream = results(
        r#"{"cpu_util_total":1,"cpu_util_user":1,"cpu_util_system":0,"sender_has_retransmits":0,"streams":[]}"#,
    );
    let no_stream = [&no_stream[..], &[14]].concat();
    for (answers, word) in [
        (&[&b"HTTP/1.1 400 Bad Request\r\n"[..]][..], "no state"),
        (&[&b"\xff"[..]][..], "busy"),
        (&[&b"\x0b"[..]][..], "stopped"),
        (&[&b"\x0d"[..]][..], "where ParamExchange belongs"),
        (&[&b"\xfe\0\0\0\x8e\0\0\0\0"[..]][..], "authentication"),
        (&[&b"\xfe\0\0\x0f\xff\0\0\0\x69"[..]][..], "error 4095"),
        (&[&b"\x09"[..], b"\xfe\0\0\0\x1b\0\0\0\0"][..], "lower --rate"),
        (&[&b"\x09"[..], b"\x0a", b"\x77"][..], "no state"),
        (&[&b"\x09"[..], b"\x0a", running, &huge][..], "1 MiB"),
        (&[&b"\x09"[..], b"\x0a", running, &results("[]")][..], "results"),
        (&[&b"\x09"[..], b"\x0a", running, &results("{\"streams\":")][..], "results"),
        (&[&b"\x09"[..], b"\x0a", running, &no_stream][..], "results"),
    ] {
        let error = hostile(answers);
        assert!(is(&error, |_| true), "{word}: {error:?}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[test]
fn silent_server_fails_at_deadline() {
    // Before the parameters, and while the streams open.
    for answers in [&[&b""[..]][..], &[&b"\x09"[..], b"\x0a"]] {
        let begun = Instant::now();
        let error = hostile(answers);
        assert!(is(&error, |error| matches!(error, IperfServerError::Silent { .. })), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}

/// A server that sends nothing in a reverse test; it closes when the client reports the stall.
#[test]
fn stalled_server_is_reported_early() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let (sender, stalled) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            let long = TestParams {
                direction: TestDirection::Reverse,
                seconds: Some(60.0),
                ..one_second()
            };
            let protocol = TestProtocol::Iperf3;
            let target = TestTarget { host, protocol, ..TestTarget::default() };
            run(&target, &long, &AtomicBool::new(false), &mut |progress| {
                if let TestProgress::Stalled { silence, limit } = progress {
                    sender.send((silence, limit)).unwrap();
                }
            })
        });
        let (mut control, _) = listener.accept().unwrap();
        control.read_exact(&mut [0; COOKIE_BYTES]).unwrap();
        control.write_all(b"\x09").unwrap();
        let mut length = [0; 4];
        control.read_exact(&mut length).unwrap();
        control.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
        control.write_all(b"\x0a").unwrap();
        let (data, _) = listener.accept().unwrap();
        control.write_all(&[1, 2]).unwrap();
        let (silence, limit) = stalled.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!((3..10).contains(&silence.as_secs()) && limit.as_secs() == 30, "{silence:?}");
        drop((control, data));
        let error = client.join().unwrap().unwrap_err();
        assert!(is(&error, |error| matches!(error, IperfServerError::Closed { .. })), "{error:?}");
    });
}

#[test]
fn missing_server_error_names_iperf3() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = test(&free, &one_second(), &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains(&free) && error.contains("iperf3 -s"), "{error}");
}
