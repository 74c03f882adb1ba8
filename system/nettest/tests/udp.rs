//! UDP tests between two Penstock ends, and datagrams of clients that break the protocol.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use penstock_nettest::datagram::{CounterWidth, DatagramHeader, StreamHello};
use penstock_nettest::message::{Message, StreamReport, read_message, write_message};
use penstock_nettest::{ListenerLimits, NettestError, TestDirection, TestParams};
use penstock_protocol::preamble::{self, ConnectionKind, Preamble};

mod common;

use common::RunningListener;

/// Size of the datagrams of hostile clients.
const DATAGRAM_BYTES: u32 = 200;

fn datagrams() -> TestParams {
    TestParams {
        udp: true,
        seconds: Some(1.0),
        rate_bps: Some(20_000_000),
        ..TestParams::default()
    }
}

fn listen(handshake: Duration) -> RunningListener {
    RunningListener::with(ListenerLimits { handshake, ..ListenerLimits::default() })
}

#[test]
fn every_direction_counts_datagrams() {
    let listener = listen(Duration::from_secs(10));
    for (direction, streams, flows) in [
        (TestDirection::Forward, 1, 1),
        (TestDirection::Reverse, 2, 1),
        (TestDirection::Bidir, 2, 2),
    ] {
        let params = TestParams { direction, streams, block_bytes: Some(1_400), ..datagrams() };
        let report = listener.test(&params).unwrap();
        assert_eq!(report.flows.len(), flows);
        assert_eq!(report.datagram_bytes, Some(1_400));
        for flow in &report.flows {
            let counts = flow.udp.unwrap();
            assert!((17e6..23e6).contains(&flow.bits_per_second), "{direction:?}: {flow:?}");
            assert_eq!(flow.bytes, (counts.packets - counts.lost) * 1_400, "{flow:?}");
            assert!(counts.lost_percent < 10.0 && counts.jitter_us < 1e5, "{counts:?}");
            assert_eq!((counts.out_of_order, counts.duplicates), (Some(0), Some(0)));
        }
        let last = report.intervals.last().unwrap().udp.unwrap();
        assert!(last.packets > 0, "{last:?}");
        assert_eq!(report.streams.len() as u32, params.connections());
        listener.log_line("Finished");
    }
}

#[test]
fn byte_limit_sends_whole_datagrams() {
    let listener = listen(Duration::from_secs(10));
    let params = TestParams {
        seconds: None,
        bytes: Some(1_000_001),
        block_bytes: Some(1_000),
        ..datagrams()
    };
    let report = listener.test(&params).unwrap();
    assert_eq!(report.udp.unwrap().packets, 1_001);
}

#[test]
fn slow_stream_takes_small_datagrams() {
    let listener = listen(Duration::from_secs(10));
    let params = TestParams { rate_bps: Some(1_000_000), ..datagrams() };
    let report = listener.test(&params).unwrap();
    // The MSS of loopback is 65,483.
    assert_eq!(report.datagram_bytes, Some(1_460), "{report:?}");
    assert!(report.udp.unwrap().packets > 50, "{report:?}");
}

#[test]
fn occupied_udp_port_is_the_reason() {
    // A listener on port 0 takes a free TCP port; one on the port of a UDP socket has no UDP.
    let occupied = UdpSocket::bind("127.0.0.1:0").unwrap();
    let limits = ListenerLimits::default();
    let listener = penstock_nettest::Listener::bind(occupied.local_addr().unwrap(), limits);
    let Ok(listener) = listener else { return }; // Another program has the TCP port.
    assert!(listener.udp_unavailable().is_some_and(|reason| reason.contains("in use")));
}

/// Control connection of a client whose test is accepted; returns its id.
fn propose(listener: &RunningListener, params: TestParams) -> (TcpStream, [u8; 16]) {
    let mut socket = TcpStream::connect(listener.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let kind = ConnectionKind::NettestControl;
    socket.write_all(&preamble::encode(Preamble { kind, tls: false })).unwrap();
    let params = TestParams { block_bytes: Some(DATAGRAM_BYTES), ..params };
    write_message(&mut socket, &Message::Propose { software: "test".into(), params }).unwrap();
    let Message::Accepted { test_id, .. } = read_message(&mut socket).unwrap() else {
        panic!("not accepted");
    };
    (socket, u128::from_str_radix(&test_id, 16).unwrap().to_be_bytes())
}

fn open(listener: &RunningListener) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(listener.address).unwrap();
    socket
}

/// Ends a forward test and returns the listener's report of its stream.
fn end(control: &mut TcpStream, packets: u64) -> StreamReport {
    let report = StreamReport { packets, ..StreamReport::default() };
    write_message(control, &Message::Stream(Box::new(report))).unwrap();
    loop {
        match read_message(control).unwrap() {
            Message::Stream(report) => return *report,
            Message::Alive | Message::Interval { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn hello_without_test_gets_no_stream() {
    let listener = listen(Duration::from_millis(500));
    let (mut control, test_id) = propose(&listener, datagrams());
    let socket = open(&listener);
    for bytes in [
        // Another test, another stream, other magic, other sizes.
        &StreamHello { test_id: [0; 16], index: 0 }.encode()[..],
        &StreamHello { test_id, index: 1 }.encode(),
        &StreamHello { test_id, index: 0 }.encode().map(|byte| byte ^ 1),
        &StreamHello { test_id, index: 0 }.encode()[..27],
        &[0; 1400],
        b"9876",
        b"",
    ] {
        socket.send(bytes).unwrap();
    }
    let Message::Failed { reason } = read_message(&mut control).unwrap() else {
        panic!("not failed");
    };
    assert!(reason.contains("1 of 1 stream") && reason.contains("UDP"), "{reason}");
    assert!(listener.test(&datagrams()).is_ok());
}

#[test]
fn hostile_datagrams_do_not_count() {
    let listener = listen(Duration::from_secs(10));
    let (mut control, test_id) = propose(&listener, datagrams());
    let socket = open(&listener);
    let hello = StreamHello { test_id, index: 0 }.encode();
    socket.send(&hello).unwrap();
    assert_eq!(read_message(&mut control).unwrap(), Message::Start);
    let send = |counter: u64, size: u32| {
        let mut bytes = vec![0; size as usize];
        DatagramHeader { sent: Duration::from_millis(counter), counter }
            .encode(CounterWidth::Bits64, &mut bytes);
        socket.send(&bytes).unwrap();
    };
    // A second hello, wrong sizes, counters that jump, and replays.
    socket.send(&hello).unwrap();
    socket.send(b"").unwrap();
    socket.send(&[0xff; DATAGRAM_BYTES as usize]).unwrap();
    for size in [16, DATAGRAM_BYTES - 1, DATAGRAM_BYTES + 1, 65_000] {
        send(1, size);
    }
    for counter in [0, u64::MAX, 1, 2, 2, 2, 5, 4, 4] {
        send(counter, DATAGRAM_BYTES);
    }
    // From another socket: the stream's is connected to the first.
    open(&listener).send(&[0; DATAGRAM_BYTES as usize]).unwrap();
    let report = end(&mut control, 6);
    assert_eq!(report.error, None);
    assert_eq!(report.bytes, 4 * u64::from(DATAGRAM_BYTES));
    assert_eq!((report.packets, report.lost), (5, 1));
    assert_eq!((report.out_of_order, report.duplicates), (Some(1), Some(3)));
}

#[test]
fn jumping_counter_stays_in_bounds() {
    let listener = listen(Duration::from_secs(10));
    let (mut control, test_id) = propose(&listener, datagrams());
    let socket = open(&listener);
    socket.send(&StreamHello { test_id, index: 0 }.encode()).unwrap();
    assert_eq!(read_message(&mut control).unwrap(), Message::Start);
    let mut bytes = [0; DATAGRAM_BYTES as usize];
    for counter in [1, 1 << 32, 2 << 32, 1 << 40, 3] {
        DatagramHeader { sent: Duration::MAX, counter }.encode(CounterWidth::Bits64, &mut bytes);
        socket.send(&bytes).unwrap();
    }
    let report = end(&mut control, 0);
    assert_eq!((report.packets, report.lost), (2 << 32, (2 << 32) - 3));
    assert_eq!(report.bytes, 3 * u64::from(DATAGRAM_BYTES));
}

#[test]
fn missing_datagram_size_is_refused() {
    let listener = listen(Duration::from_secs(10));
    let mut socket = TcpStream::connect(listener.address).unwrap();
    let kind = ConnectionKind::NettestControl;
    socket.write_all(&preamble::encode(Preamble { kind, tls: false })).unwrap();
    let propose = Message::Propose { software: "test".into(), params: datagrams() };
    write_message(&mut socket, &propose).unwrap();
    let answer = read_message(&mut socket).unwrap();
    assert!(
        matches!(&answer, Message::Refused { reason } if reason.contains("size")),
        "{answer:?}"
    );
    let huge = TestParams { block_bytes: Some(65_508), ..datagrams() };
    assert!(matches!(listener.test(&huge), Err(NettestError::Params(_))));
}
