//! Tests of Debian's iperf3 client against a listener, and clients that break its protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use penstock_nettest::ListenerLimits;
use serde_json::Value;

const COOKIE: &[u8; 37] = b"mnopqrstuvwxyz234567mnopqrstuvwxyz23\0";

mod common;

use common::{IperfServer, RunningListener, iperf3_program};

fn listen(tests: usize) -> RunningListener {
    let handshake = Duration::from_secs(2);
    RunningListener::with(ListenerLimits { tests, handshake, ..ListenerLimits::default() })
}

/// Runs `iperf3 -c` with these flags; `None` if it is not installed.
fn iperf3(listener: &RunningListener, flags: &str) -> Option<Value> {
    iperf3_at(listener.address.port(), flags)
}

/// Runs `iperf3 -c` against the server on a port.
fn iperf3_at(port: u16, flags: &str) -> Option<Value> {
    let output = Command::new(iperf3_program())
        .args(["-J", "-c", "127.0.0.1", "-p", &port.to_string()])
        .args(flags.split_whitespace())
        .output();
    let Ok(output) = output else {
        penstock_testkit::skip(penstock_testkit::Requirement::Program, "needs iperf3");
        return None;
    };
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    Some(report)
}

fn connect(listener: &RunningListener, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(listener.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(bytes).unwrap();
    socket
}

fn number(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {report}"))
}

#[test]
fn tcp_options_of_iperf3_work() {
    let listener = listen(16);
    for flags in [
        "-t 1",
        "-t 1 -R",
        // A client that waits for the rest of a large block learns the end from its stream.
        "-t 1 -R -l 1M",
        "-t 1 -P 3",
        "-t 1 -R -P 2",
        "-t 1 --bidir",
        "-t 1 --bidir -P 2",
        "-n 3M",
        "-n 3M -R",
        "-k 20",
        "-t 1 -b 40M",
        "-t 1 -w 256K -C reno -M 1000 -N -S 8 -l 64K",
        "-t 1 -R -w 256K -C reno -M 1000 -N -S 8 -l 64K",
        "-t 1 -O 1",
        "-t 1 --get-server-output",
        "-t 1 -T title --extra-data x",
    ] {
        let Some(report) = iperf3(&listener, flags) else { return };
        assert_eq!(report.get("error"), None, "{flags}: {report}");
        assert!(number(&report, "/end/sum_received/bytes") > 1e5, "{flags}: {report}");
        assert!(number(&report, "/end/sum_sent/bytes") > 1e5, "{flags}: {report}");
        if flags.contains("--bidir") {
            let bytes = number(&report, "/end/sum_received_bidir_reverse/bytes");
            assert!(bytes > 1e5, "{flags}: {report}");
        }
        if flags.contains("40M") {
            let rate = number(&report, "/end/sum_received/bits_per_second");
            assert!((30e6..50e6).contains(&rate), "{rate}");
        }
        if flags == "-n 3M" {
            // iperf3 sends whole blocks; all of them arrive.
            let sent = number(&report, "/end/sum_sent/bytes");
            let received = number(&report, "/end/sum_received/bytes");
            assert!((sent - received).abs() < 1.0, "{sent} {received}");
        }
        if flags.contains("--get-server-output") {
            let text = report["server_output_text"].as_str().unwrap_or_default();
            assert!(text.contains("penstock"), "{report}");
        }
        listener.log_line("Finished");
    }
}

#[test]
fn receiver_rates_equal_those_of_iperf3() {
    let listener = listen(16);
    let Some(server) = IperfServer::new() else { return };
    let iperf3_port = server.host.rsplit_once(':').unwrap().1.parse().unwrap();
    for (flags, sums) in [
        ("-t 1 -P 64 -b 1M", &["sum_received"][..]),
        ("-t 1 -l 1M -b 100M", &["sum_received"]),
        ("-t 1 -R -P 4 -b 10M -l 16K", &["sum_received", "sum_sent"]),
        ("-t 1 --bidir -b 20M -l 16K", &["sum_received", "sum_received_bidir_reverse"]),
        ("-n 2M -b 16M -l 16K", &["sum_received"]),
        ("-k 128 -b 16M -l 16K", &["sum_received"]),
        ("-t 1 -O 1 -b 20M -l 16K", &["sum_received"]),
        ("-u -t 1 -b 1M", &["sum"]),
        ("-u -t 1 -b 5M -l 1400 -R", &["sum"]),
        ("-u -t 1 -P 4 -b 5M -l 1400", &["sum"]),
        ("-u -t 1 -b 5M -l 1400 --bidir", &["sum", "sum_bidir_reverse"]),
    ] {
        let differences = || {
            let (ours, theirs) = thread::scope(|scope| {
                let theirs = scope.spawn(|| iperf3_at(iperf3_port, flags));
                (iperf3(&listener, flags).unwrap(), theirs.join().unwrap().unwrap())
            });
            let paths = sums.iter().flat_map(|sum| {
                ["seconds", "bits_per_second"].map(|key| format!("/end/{sum}/{key}"))
            });
            let differs = paths.filter_map(|path| {
                let (ours, theirs) = (number(&ours, &path), number(&theirs, &path));
                let is_near = (0.95..1.05).contains(&(ours / theirs));
                (!is_near).then(|| format!("{path}: {ours}, of iperf3 {theirs}"))
            });
            differs.collect::<Vec<_>>()
        };
        // A busy machine may delay one of the clients.
        let different = (0..4).map(|_| differences()).take_while(|one| !one.is_empty());
        let different: Vec<_> = different.collect();
        assert!(different.len() < 4, "{flags}: {different:?}");
    }
}

#[test]
fn udp_options_of_iperf3_work() {
    let listener = listen(16);
    for (flags, streams) in [
        ("-u -t 1 -b 20M", 1.0),
        ("-u -t 1 -b 20M -R", 1.0),
        ("-u -t 1 -b 20M -P 2 -l 1400", 2.0),
        ("-u -t 1 -b 20M --bidir -l 1400", 1.0),
        ("-u -t 1 -b 20M --udp-counters-64bit -l 1400", 1.0),
    ] {
        let Some(report) = iperf3(&listener, flags) else { return };
        assert_eq!(report.get("error"), None, "{flags}: {report}");
        let rate = number(&report, "/end/sum/bits_per_second");
        assert!((rate / streams - 20e6).abs() < 6e6, "{flags}: {rate}");
        assert!(number(&report, "/end/sum/lost_percent") < 10.0, "{flags}: {report}");
        assert!(number(&report, "/end/sum/packets") > 50.0, "{flags}: {report}");
        let line = listener.log_line("Finished");
        let received = !line.contains("bytes_received: 0,");
        assert_eq!(received, !flags.contains("-R"), "{flags}: {line}");
    }
}

#[test]
fn simultaneous_clients_are_served() {
    let listener = listen(16);
    thread::scope(|scope| {
        for flags in ["-t 1", "-t 1 -R", "-u -t 1 -b 5M", "-u -t 1 -b 5M -R"] {
            let listener = &listener.address;
            scope.spawn(move || {
                let output = Command::new(iperf3_program())
                    .args(["-J", "-c", "127.0.0.1", "-p", &listener.port().to_string()])
                    .args(flags.split_whitespace())
                    .output();
                let Ok(output) = output else { return };
                let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(report.get("error"), None, "{flags}: {report}");
            });
        }
    });
}

#[test]
fn full_listener_answers_busy() {
    let listener = listen(1);
    let mut first = connect(&listener, COOKIE);
    let mut state = [0];
    first.read_exact(&mut state).unwrap();
    assert_eq!(state, [9]);
    let Some(report) = iperf3(&listener, "-t 1") else { return };
    assert!(report["error"].as_str().unwrap().contains("busy"), "{report}");
}

#[test]
fn broken_clients_cost_one_event() {
    let listener = listen(16);
    let answer = |bytes: &[u8], shut: bool| {
        let mut socket = connect(&listener, bytes);
        if shut {
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        answer
    };
    let with = |rest: &[u8]| [&COOKIE[..], rest].concat();
    // Half a cookie, a wrong end, silence after the cookie.
    answer(&COOKIE[..20], true);
    assert!(listener.log_line("Dropped").contains("closed after"));
    answer(b"mnopqrstuvwxyz234567mnopqrstuvwxyz233", true);
    assert!(listener.log_line("Dropped").contains("iperf3"));
    assert_eq!(answer(COOKIE, false), [9]);
    listener.log_line("Failed");
    // Parameters that are too long, no JSON, or out of range.
    assert_eq!(answer(&with(b"\xff\xff\xff\xff"), false), [9, 254, 0, 0, 0, 114, 0, 0, 0, 0]);
    assert_eq!(answer(&with(b"\0\0\0\x02[]"), false), [9, 254, 0, 0, 0, 114, 0, 0, 0, 0]);
    let many = b"\0\0\0\x11{\"parallel\":9999}";
    assert_eq!(answer(&with(many), false), [9, 254, 0, 0, 0, 6, 0, 0, 0, 0]);
    // Data connections that never arrive.
    assert_eq!(answer(&with(b"\0\0\0\x02{}"), false)[..3], [9, 10, 254]);
    assert!(listener.log_line("data connection").contains("1 of 1"));
    // An interrupted client.
    assert_eq!(answer(&with(b"\0\0\0\x02{}\x0c"), false), [9, 10]);
    assert!(listener.log_line("Failed").contains("interrupted"));
    let Some(report) = iperf3(&listener, "-n 1M") else { return };
    assert_eq!(report.get("error"), None, "{report}");
}
