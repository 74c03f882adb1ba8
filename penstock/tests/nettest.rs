//! `penstock nettest`: the binary over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use penstock_nettest::message::{Message, read_message, write_message};
use penstock_protocol::PROTOCOL_VERSION;
use penstock_testkit::process::{RunningCommand, stop_and_continue};
use penstock_testkit::raw::free_port;
use serde_json::Value;
use socket2::{SockFilter, SockRef};

const LOG_TIMEOUT: Duration = Duration::from_secs(30);

/// A listener on a free port; killed when dropped.
struct Listening {
    child: Child,
    address: String,
    log: Receiver<String>,
    _stdout: BufReader<ChildStdout>,
}

impl Listening {
    fn on(address: &str) -> Self {
        let mut child = penstock()
            .args(["nettest", "--json", "--listen", address])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        let object: Value = serde_json::from_str(&line).expect("one JSON object");
        let address = object["listening"].as_str().expect("its address").to_owned();
        assert_eq!(object["open"], true);
        assert_eq!(object["udp_unavailable"], Value::Null, "{object}");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, address, log, _stdout: stdout }
    }

    /// Waits for a log line that contains `word`.
    fn log_line(&self, word: &str) -> String {
        loop {
            let line =
                self.log.recv_timeout(LOG_TIMEOUT).unwrap_or_else(|_| panic!("no line '{word}'"));
            if line.contains(word) {
                return line;
            }
        }
    }

    fn test(&self, flags: &[&str]) -> Value {
        test_at(&self.address, flags)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn penstock() -> Command {
    Command::new(env!("CARGO_BIN_EXE_penstock"))
}

/// Command of a client that prints JSON.
fn json_client(address: &str, flags: &[&str]) -> Command {
    let mut command = penstock();
    command.args(["nettest", address, "--json"]).args(flags);
    command
}

fn client(address: &str, flags: &[&str]) -> Output {
    json_client(address, flags).output().expect("it runs")
}

/// Starts a client, whose JSON is collected.
fn start_client(address: &str, flags: &[&str]) -> RunningCommand {
    RunningCommand::start(&mut json_client(address, flags))
}

/// Lines that a client prints.
fn lines_at(address: &str, flags: &[&str]) -> String {
    let output = penstock().args(["nettest", address]).args(flags).output().expect("it runs");
    assert!(output.status.success(), "{flags:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn test_at(address: &str, flags: &[&str]) -> Value {
    let output = client(address, flags);
    assert!(output.status.success(), "{flags:?}: {output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn number(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("{field} in {report}"))
}

fn only_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text).into_owned();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn every_direction_prints_documented_fields() {
    let listener = Listening::on("127.0.0.1:0");
    for (flags, direction, streams) in [
        (&["-t", "0.5"][..], "forward", 1),
        (&["--time", "0.5", "-R", "--parallel", "2"][..], "reverse", 2),
        (&["-t", "500ms", "--bidir", "--streams", "2"][..], "bidir", 4),
    ] {
        let report = listener.test(flags);
        assert_eq!(report["direction"], direction);
        assert_eq!(report["streams"].as_array().unwrap().len(), streams, "{report}");
        let total: u64 = report["streams"]
            .as_array()
            .unwrap()
            .iter()
            .map(|stream| stream["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(report["bytes"].as_u64(), Some(total));
        assert!(number(&report, "bits_per_second") > 0.0);
        assert!(number(&report, "seconds") > 0.2, "{report}");
        assert!(number(&report, "cpu_local_percent") > 0.0);
        assert!(number(&report, "cpu_remote_percent") > 0.0);
        assert!(number(&report, "mss") > 500.0);
        assert!(report["retransmits"].is_u64());
        assert!(report["congestion"].as_str().is_some_and(|name| !name.is_empty()));
        assert!(report["path"].as_str().is_some_and(|path| !path.is_empty()));
        assert!(report["intervals"].as_array().is_some_and(|list| !list.is_empty()));
        listener.log_line("finished");
    }
}

#[test]
fn fixed_byte_count_is_exact() {
    let listener = Listening::on("127.0.0.1:0");
    for path in ["auto", "vmsplice", "sendfile", "write"] {
        let report = listener.test(&["-n", "12345679", "-P", "3", "--path", path]);
        assert_eq!(report["bytes"], 12_345_679, "{path}");
        let report = listener.test(&["-n", "3000001", "--bidir", "--path", path]);
        assert_eq!(report["bytes"], 6_000_002, "{path}");
        if path != "auto" {
            assert!(report["path"].as_str().unwrap().starts_with(path), "{report}");
        }
    }
}

#[test]
fn one_byte_has_a_rate() {
    let listener = Listening::on("127.0.0.1:0");
    for flags in [&["-n", "1"][..], &["-n", "1", "--udp"]] {
        let report = listener.test(flags);
        assert!(number(&report, "bits_per_second") > 0.0, "{report}");
        let text = lines_at(&listener.address, flags);
        assert!(!text.contains("  0 b/s") && text.contains(" ms, bound by"), "{text}");
    }
}

#[test]
fn small_windows_end_in_time() {
    let listener = Listening::on("127.0.0.1:0");
    // The kernel takes a block of 1 MiB in hundreds of parts.
    for window in ["4096", "16KiB"] {
        let report = listener.test(&["-t", "0.5", "-w", window, "-P", "2"]);
        assert!(number(&report, "seconds") < 5.0, "{window}: {report}");
        let advice = report["advice"].as_str();
        assert!(advice.is_none_or(|advice| advice.contains("-w")), "{window}: {report}");
    }
}

#[test]
fn malformed_hosts_are_usage_errors() {
    for (host, words) in [
        ("127.0.0.1:8620", "give one of them"),
        ("127.0.0.1:99999", "'99999' is not a port"),
        ("127.0.0.1:", "'' is not a port"),
        (":8620", "no host"),
        ("", "no host"),
        ("[::1", "'[' without ']'"),
    ] {
        let output = client(host, &["-p", "1", "-t", "0.2"]);
        assert_eq!(output.status.code(), Some(2), "{host}");
        assert!(only_line(&output.stderr).contains(words), "{host}: {output:?}");
    }
}

#[test]
fn rate_limit_spans_all_streams() {
    let listener = Listening::on("127.0.0.1:0");
    for flags in [&["-P", "1"][..], &["-P", "4", "-R"]] {
        let flags = [&["--rate", "80M", "-t", "2"], flags].concat();
        let report = listener.test(&flags);
        let rate = number(&report, "bits_per_second");
        assert!((70e6..90e6).contains(&rate), "{flags:?}: {rate}");
    }
}

#[test]
fn the_omitted_start_is_not_counted() {
    let listener = Listening::on("127.0.0.1:0");
    let report = listener.test(&["-t", "2", "-O", "0.5", "--rate", "80M", "-i", "0.25"]);
    assert!((15e6..25e6).contains(&number(&report, "bytes")), "{report}");
    assert_eq!(report["intervals"][0]["omitted"], true);
}

#[test]
fn ipv6_and_a_chosen_congestion_control() {
    let listener = Listening::on("[::1]:0");
    let report = listener.test(&["-6", "-t", "0.2", "-C", "reno"]);
    assert_eq!(report["congestion"], "reno");
    let output = client(&listener.address, &["-4", "-t", "0.2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(only_line(&output.stderr).contains("-4"));
}

#[test]
fn udp_reports_loss_jitter_and_order() {
    let listener = Listening::on("127.0.0.1:0");
    let flags = ["--udp", "--rate", "80M", "--datagram-size", "1400", "-t", "1"];
    for direction in [&[][..], &["-R"], &["--bidir"]] {
        let report = listener.test(&[&flags[..], direction].concat());
        for flow in report["flows"].as_array().unwrap() {
            assert!((70e6..90e6).contains(&number(flow, "bits_per_second")), "{flow}");
            assert!(number(&flow["udp"], "packets") > 5_000.0, "{flow}");
            assert!(number(&flow["udp"], "lost_percent") < 10.0, "{flow}");
            assert!(number(&flow["udp"], "jitter_us") < 1e5, "{flow}");
            assert!(flow["udp"]["out_of_order"].is_u64() && flow["udp"]["duplicates"].is_u64());
        }
        assert_eq!(report["datagram_bytes"], 1400);
        assert!(number(&report["intervals"][0]["udp"], "packets") > 1_000.0, "{report}");
    }
    let lines = lines_at(&listener.address, &["-u", "-R", "-t", "0.5", "-i", "0.2"]);
    assert!(lines.contains("1.0") && lines.contains("jitter") && lines.contains("lost 0 of"));
    assert!(lines.contains("datagrams of 1460 B"), "{lines}");
}

#[test]
fn zero_rate_is_no_limit() {
    let listener = Listening::on("127.0.0.1:0");
    for flags in [&["-u"][..], &["-u", "-R"], &["-u", "--iperf3"], &["-u", "--iperf3", "-R"], &[]] {
        let report = listener.test(&[&["-b", "0", "-t", "1"], flags].concat());
        // Without it datagrams have 1 Mb/s.
        assert!(number(&report, "bits_per_second") > 20e6, "{flags:?}: {report}");
    }
}

/// An iperf3 server reports none.
#[test]
fn round_trip_time_is_measured() {
    let listener = Listening::on("127.0.0.1:0");
    for flags in [&[][..], &["-R"], &["--iperf3"], &["--iperf3", "-R"]] {
        let flags = [&["-t", "0.5"], flags].concat();
        let report = listener.test(&flags);
        let stream = &report["streams"][0];
        for field in ["rtt_us", "rtt_min_us"] {
            assert!(stream[field].as_u64().is_some_and(|rtt| rtt > 0), "{flags:?}: {stream}");
        }
        let lines = lines_at(&listener.address, &flags);
        assert!(lines.contains(", rtt ") && !lines.contains("rtt 0 us"), "{lines}");
    }
    let report = listener.test(&["-u", "-t", "0.5"]);
    assert_eq!(report["streams"][0]["rtt_us"], Value::Null, "{report}");
}

#[test]
fn occupied_udp_port_is_in_json() {
    // A free TCP port whose UDP port is taken.
    let udp = std::net::UdpSocket::bind(("127.0.0.1", free_port())).unwrap();
    let address = udp.local_addr().unwrap().to_string();
    let mut child = penstock()
        .args(["nettest", "--json", "--listen", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let object: Value = serde_json::from_str(&line).expect("one JSON object");
    let reason = object["udp_unavailable"].as_str().unwrap().to_owned();
    assert!(reason.contains("in use"), "{reason}");
    let refused = client(&address, &["--udp", "-t", "0.2"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(only_line(&refused.stderr).contains("in use"), "{refused:?}");
}

/// A listener answers iperf3's protocol, so this client tests against it without iperf3.
#[test]
fn iperf3_flag_prints_documented_fields() {
    let listener = Listening::on("127.0.0.1:0");
    for flags in
        [&["-t", "0.5"][..], &["-t", "0.5", "--bidir", "-P", "2"], &["-u", "-t", "1", "-R"]]
    {
        let report = listener.test(&[&["--iperf3"], flags].concat());
        assert!(number(&report, "bytes") > 0.0 && number(&report, "seconds") > 0.2, "{report}");
        assert_eq!(report["udp"].is_object(), flags.contains(&"-u"), "{report}");
    }
    let other = client(&listener.address, &["--iperf3", "-t", "0.2", "-C", "warp9"]);
    assert!(!other.status.success());
    assert!(only_line(&other.stderr).contains("congestion control"), "{other:?}");
}

#[test]
fn many_clients_at_once() {
    let listener = Listening::on("127.0.0.1:0");
    let address = listener.address.as_str();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let report = test_at(address, &["-n", "5000000", "-P", "4", "--bidir"]);
                assert_eq!(report["bytes"], 10_000_000);
            });
        }
    });
}

/// Both of two tests that share the listener report it.
#[test]
fn simultaneous_tests_are_reported_in_both() {
    let listener = Listening::on("127.0.0.1:0");
    let alone = listener.test(&["-n", "1000"]);
    assert_eq!(alone["other_tests"], 0, "{alone}");
    listener.log_line("finished");
    let address = listener.address.as_str();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| test_at(address, &["-t", "4", "--rate", "10M"]));
        listener.log_line("started");
        let second = lines_at(address, &["-t", "0.3", "--rate", "10M"]);
        assert!(second.contains("ran 1 other test at the same time"), "{second}");
        assert_eq!(first.join().unwrap()["other_tests"], 1);
    });
    // A client may end before the listener has ended its part.
    (0..2).for_each(|_| drop(listener.log_line("finished")));
    let after = listener.test(&["-n", "1000"]);
    assert_eq!(after["other_tests"], 0, "{after}");
}

/// A stopped (SIGSTOP) listener keeps its connections open and silent.
#[test]
fn hung_listener_fails_within_five_seconds() {
    let listener = Listening::on("127.0.0.1:0");
    let pid = listener.child.id().to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    let start = |flags: &[&str]| {
        penstock()
            .args(["nettest", &listener.address, "-t", "60"])
            .args(flags)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // During a test, in both directions and with rare interval lines, and before its start.
    let running: Vec<_> = [&["-R"][..], &["-i", "30"]].iter().map(|flags| start(flags)).collect();
    running.iter().for_each(|_| drop(listener.log_line("started")));
    signal("-STOP");
    let stopped = Instant::now();
    let late = start(&[]);
    for client in running.into_iter().chain([late]) {
        let output = client.wait_with_output().unwrap();
        assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let line = only_line(&output.stderr);
        assert!(line.contains(&listener.address) && line.contains("hangs"), "{line}");
    }
    signal("-CONT");
    assert_eq!(listener.test(&["-n", "1000"])["bytes"], 1000);
}

#[test]
fn a_sweep_reports_its_knee() {
    let listener = Listening::on("127.0.0.1:0");
    let report = listener.test(&["--sweep", "--sweep-max", "4", "-t", "0.2"]);
    let sweep = &report["sweep"];
    let knee = sweep["knee_streams"].as_u64().unwrap();
    assert!((1..=4).contains(&knee));
    assert!(sweep["points"].as_array().unwrap().len() >= 2);
    assert!(number(&report, "bits_per_second") >= number(sweep, "knee_bits_per_second"));
}

#[test]
fn garbage_is_dropped_with_reason() {
    let listener = Listening::on("127.0.0.1:0");
    let send = |bytes: &[u8]| {
        let mut socket = TcpStream::connect(&listener.address).unwrap();
        // The listener may close before all bytes are written.
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let begin = |kind, rest: &[u8]| {
        let version = PROTOCOL_VERSION.to_be_bytes();
        [&b"PENSTOCK"[..], &version, &[kind, 0, 0, 0, 0, 0], rest].concat()
    };
    send(b"mnopqrstuvwxyz234567mnopqrstuvwxyz233");
    assert!(listener.log_line("dropped").contains("iperf3"));
    send(b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(listener.log_line("dropped").contains("HTTP"));
    send(b"short");
    assert!(listener.log_line("dropped").contains("closed after 5 bytes"));
    let answer = send(b"PENSTOCK\x00\x09\x03\x00\x00\x00\x00\x00");
    let ours = format!("penstock {PROTOCOL_VERSION}");
    assert!(answer.contains("version 9") && answer.contains(&ours), "{answer}");
    assert!(listener.log_line("dropped").contains("version 9"));
    send(&begin(4, b"abcdefghijklmnop\x00\x00\x00\x00"));
    assert!(listener.log_line("dropped").contains("not here"));
    send(&begin(3, b"\xff\xff\xff\xff"));
    assert!(listener.log_line("failed").contains("limit"));
    send(&begin(3, b"\x00\x00\x00\x02{}"));
    assert!(listener.log_line("failed").contains("not a message"));
    assert_eq!(listener.test(&["-n", "1000"])["bytes"], 1000);
}

#[test]
fn other_programs_are_named() {
    for (answer, words) in [
        (&b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..], "it speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "it speaks TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it speaks SSH"),
        (b"220 mail.example.org ESMTP\r\n", "no penstock listener"),
        (b"", "closed the connection without an answer"),
    ] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            // It reads only the beginning, as servers of other protocols do, so that the rest resets the connection.
            stream.read_exact(&mut [0; 16]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let output = penstock().args(["nettest", &address]).output().unwrap();
        serving.join().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let line = only_line(&output.stderr);
        assert!(line.contains(&address) && line.contains(words), "{line}");
        assert!(line.contains("--iperf3"), "{line}");
    }
}

/// Client with frequent interval lines, which has printed its first one. The kernel holds its further ones.
fn running_client(listener: &Listening, flags: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut client = penstock()
        .args(["nettest", &listener.address, "-t", "60", "-i", "0.2"])
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    listener.log_line("started");
    let mut stdout = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("b/s"), "{line}");
    (client, stdout)
}

#[test]
fn vanished_client_leaves_figures_and_slot() {
    let listener = Listening::on("127.0.0.1:0");
    for flags in [&[][..], &["--udp"], &["--iperf3"]] {
        let (mut client, _stdout) = running_client(&listener, flags);
        client.kill().unwrap();
        client.wait().unwrap();
        let event: Value = serde_json::from_str(&listener.log_line("failed")).unwrap();
        assert!(number(&event, "bytes_received") > 0.0, "{flags:?}: {event}");
        assert!(number(&event, "seconds") > 0.1, "{flags:?}: {event}");
    }
}

#[test]
fn killed_listener_leaves_clients_figures() {
    let mut listener = Listening::on("127.0.0.1:0");
    let json = ["-R", "--udp", "--iperf3"].map(|flag| {
        let client = start_client(&listener.address, &["-t", "60", flag]);
        listener.log_line("started");
        client
    });
    let (text, mut stdout) = running_client(&listener, &[]);
    listener.child.kill().unwrap();
    listener.child.wait().unwrap();

    let mut lines = String::new();
    stdout.read_to_string(&mut lines).unwrap();
    assert!(lines.contains("forward  ") && lines.contains("(the test failed)"), "{lines}");
    let output = text.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    only_line(&output.stderr);
    for client in json {
        let done = client.wait();
        assert_eq!(done.code, 1, "{done:?}");
        assert_eq!(
            done.error,
            format!("penstock nettest: {}\n", done.json["error"].as_str().unwrap())
        );
        assert!(number(&done.json, "bytes") > 0.0, "{done:?}");
        assert!(number(&done.json, "bits_per_second") > 0.0, "{done:?}");
        assert_eq!(done.json["udp"], Value::Null, "no receiver counted the loss: {done:?}");
    }
}

/// Drops received segments with data without an acknowledgement, as a path does that passes the handshake only. Sockets
/// that a listening one accepts inherit it.
fn cut(socket: &impl std::os::fd::AsFd) {
    /// Length of a SYN with the options of Linux; the shortest message of a test is longer.
    const SYN_BYTES: u32 = 40;
    // BPF_LD | BPF_W | BPF_LEN; BPF_JMP | BPF_JGT; BPF_RET.
    let filter = [
        SockFilter::new(0x80, 0, 0, 0),
        SockFilter::new(0x25, 0, 1, SYN_BYTES),
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ];
    SockRef::from(socket).attach_filter(&filter).unwrap();
}

#[test]
fn cut_path_is_named_before_test() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    cut(&listener);
    let address = listener.local_addr().unwrap().to_string();
    let output = client(&address, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = only_line(&output.stderr);
    assert!(line.contains(&address) && line.contains("acknowledges nothing"), "{line}");
}

#[test]
fn cut_path_ends_running_test() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = start_client(&address, &["-t", "60"]);
    let (mut control, _) = listener.accept().unwrap();
    control.read_exact(&mut [0; 16]).unwrap();
    assert!(matches!(read_message(&mut control).unwrap(), Message::Propose { .. }));
    let accepted =
        Message::Accepted { software: "test".into(), test_id: "0".repeat(32), rdma: false };
    write_message(&mut control, &accepted).unwrap();
    let (mut data, _) = listener.accept().unwrap();
    write_message(&mut control, &Message::Start).unwrap();
    data.read_exact(&mut [0; 64 << 10]).unwrap();
    cut(&control);
    cut(&data);
    let begun = Instant::now();
    let done = client.wait();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(done.code, 1, "{done:?}");
    assert!(only_line(done.error.as_bytes()).contains("acknowledges nothing"), "{done:?}");
    assert!(number(&done.json, "bytes") > 0.0, "{done:?}");
}

#[test]
fn stopped_ends_continue_their_tests() {
    let listener = Listening::on("127.0.0.1:0");
    let clients: Vec<_> = [
        &[][..],
        &["-R"],
        &["--udp", "--bidir"],
        &["--iperf3"],
        &["--iperf3", "-R"],
        &["--iperf3", "--udp", "-R"],
    ]
    .iter()
    .map(|flags| start_client(&listener.address, &[&["-t", "6"], *flags].concat()))
    .collect();
    // All of them run at once, so that each is stopped during its test.
    clients.iter().for_each(|_| drop(listener.log_line("started")));
    stop_and_continue(listener.child.id());
    for client in &clients {
        stop_and_continue(client.child.id());
    }
    stop_and_continue(listener.child.id());
    for client in clients {
        let done = client.wait().good();
        assert!(number(&done.json, "bytes") > 0.0, "{done:?}");
    }
}

#[test]
fn an_interrupted_test_still_reports() {
    let listener = Listening::on("127.0.0.1:0");
    for flags in [&["-t", "60", "-R"][..], &["-t", "60"]] {
        let client = start_client(&listener.address, flags);
        listener.log_line("started");
        interrupt(&client.child);
        let report = client.wait().good().json;
        assert_eq!(report["interrupted"], true);
        assert!(number(&report, "seconds") < 30.0);
        listener.log_line("finished");
    }
}

#[test]
fn bad_arguments_are_usage_errors() {
    for flags in [
        &["nettest"][..],
        &["nettest", "h", "-P", "0"],
        &["nettest", "h", "-P", "257"],
        &["nettest", "h", "-t", "2d"],
        &["nettest", "h", "-t", "0"],
        &["nettest", "h", "-n", "5X"],
        &["nettest", "h", "-n", "5M", "-t", "3"],
        &["nettest", "h", "-R", "--bidir"],
        &["nettest", "h", "--rate", "fast"],
        &["nettest", "h", "-C", "not a name"],
        &["nettest", "h", "--datagram-size", "1400"],
        &["nettest", "h", "--udp", "--datagram-size", "65508"],
        &["nettest", "h", "--udp", "-l", "10"],
        &["nettest", "h", "--udp", "-C", "cubic"],
        &["nettest", "h", "--iperf3", "-P", "129"],
        &["nettest", "h", "--iperf3", "-O", "0.5"],
        &["nettest", "--listen", "--udp"],
        &["nettest", "h", "--listen"],
        &["nettest", "--listen", "nowhere"],
    ] {
        let output = penstock().args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{flags:?}");
    }
}

#[test]
fn failure_line_names_its_object() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = client(&free.to_string(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let line = only_line(&output.stderr);
    assert!(line.contains(&free.to_string()) && line.contains("--listen"), "{line}");

    let listener = Listening::on("127.0.0.1:0");
    for (flags, word, code) in [
        (&["-C", "warp9"][..], "warp9", 2),
        (&["-B", "192.0.2.1"], "192.0.2.1", 2),
        (&["-B", "::1"], "family", 1),
    ] {
        let output = client(&listener.address, flags);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(only_line(&output.stderr).contains(word), "{output:?}");
    }
    let output = penstock().args(["nettest", "--listen", &listener.address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(only_line(&output.stderr).contains(&listener.address));
}

fn interrupt(child: &Child) {
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
}

#[test]
fn interrupted_listener_lets_clients_report() {
    let mut listener = Listening::on("127.0.0.1:0");
    let client = start_client(&listener.address, &["-t", "60"]);
    listener.log_line("started");
    interrupt(&listener.child);
    assert_eq!(client.wait().good().json["interrupted"], true);
    listener.log_line("finished");
    assert!(listener.child.wait().unwrap().success());
}

#[test]
fn interrupt_before_start_ends_at_once() {
    // The backlog accepts the connection, and no answer follows.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut client = penstock().args(["nettest", &address]).spawn().unwrap();
    let _control = silent.accept().unwrap();
    let begun = Instant::now();
    interrupt(&client);
    assert!(!client.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn closed_stdout_ends_test_quietly() {
    let listener = Listening::on("127.0.0.1:0");
    let mut client = penstock()
        .args(["nettest", &listener.address, "-t", "60", "-i", "0.1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("retransmits"), "{line}");
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn idle_connections_do_not_block_tests() {
    penstock_sys::machine::raise_open_files().unwrap();
    let listener = Listening::on("127.0.0.1:0");
    let address = listener.address.as_str();
    std::thread::scope(|scope| {
        let test = scope.spawn(move || test_at(address, &["-t", "4", "--rate", "100M"]));
        listener.log_line("started");
        let idle: Vec<_> = (0..2000).map(|_| TcpStream::connect(address)).collect();
        assert!(idle.iter().all(Result::is_ok));
        assert!(listener.log_line("dropped").contains("replaced by newer"));
        let other = test_at(address, &["-n", "1000000", "-P", "4"]);
        assert_eq!(other["bytes"], 1_000_000);
        let rate = number(&test.join().unwrap(), "bits_per_second");
        assert!(rate > 80e6, "{rate}");
    });
}
