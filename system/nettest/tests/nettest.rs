//! Limits of a listener, with short deadlines: refused, dropped and admitted clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use penstock_nettest::message::{Message, read_message, write_message};
use penstock_nettest::{ListenerLimits, NettestError, TestParams};
use penstock_protocol::preamble::{self, ConnectionKind, Preamble};

mod common;

use common::RunningListener;

/// Control connection that has proposed `params`.
fn propose(listener: &RunningListener, params: TestParams) -> TcpStream {
    let mut socket = TcpStream::connect(listener.address).unwrap();
    let kind = ConnectionKind::NettestControl;
    socket.write_all(&preamble::encode(Preamble { kind, tls: false })).unwrap();
    let software = "test".to_owned();
    write_message(&mut socket, &Message::Propose { software, params }).unwrap();
    socket
}

/// Accepted control connection whose test waits for its data connections.
fn book(listener: &RunningListener) -> TcpStream {
    let mut socket = propose(listener, TestParams::default());
    let answer = read_message(&mut socket).unwrap();
    assert!(matches!(answer, Message::Accepted { .. }), "{answer:?}");
    socket
}

fn small() -> TestParams {
    TestParams { seconds: None, bytes: Some(100_000), ..TestParams::default() }
}

#[test]
fn test_beyond_limit_is_refused() {
    let listener = RunningListener::with(ListenerLimits::default());
    let mut booked: Vec<_> = (0..16).map(|_| book(&listener)).collect();
    let refused = listener.test(&small()).unwrap_err();
    assert!(
        matches!(&refused, NettestError::Refused(why) if why.contains("16 tests")),
        "{refused}"
    );
    // The client disconnects before its data connections arrive.
    drop(booked.pop());
    listener.log_line("control connection ended");
    assert_eq!(listener.test(&small()).unwrap().bytes, 100_000);
}

#[test]
fn silent_connection_is_dropped_at_deadline() {
    let handshake = Duration::from_millis(200);
    let listener =
        RunningListener::with(ListenerLimits { tests: 1, handshake, ..ListenerLimits::default() });
    let begun = Instant::now();
    let mut silent = TcpStream::connect(listener.address).unwrap();
    assert!(listener.log_line("Dropped").contains("handshake deadline"));
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    let mut slow = TcpStream::connect(listener.address).unwrap();
    slow.write_all(b"PENSTOCK").unwrap();
    assert!(listener.log_line("Dropped").contains("8 bytes and then silence"));
    // Accepted, then no data connections.
    let mut booked = book(&listener);
    assert!(matches!(read_message(&mut booked).unwrap(), Message::Failed { .. }));
    assert!(listener.log_line("Failed").contains("1 of 1 data connection"));
    assert!(begun.elapsed() >= 3 * handshake && begun.elapsed() < Duration::from_secs(20));
    assert_eq!(listener.test(&small()).unwrap().bytes, 100_000);
}

#[test]
fn vanished_client_frees_its_slot() {
    let listener = RunningListener::with(ListenerLimits { tests: 1, ..ListenerLimits::default() });
    let mut control =
        propose(&listener, TestParams { seconds: Some(600.0), ..TestParams::default() });
    let Message::Accepted { test_id, .. } = read_message(&mut control).unwrap() else {
        panic!("not accepted");
    };
    let mut data = TcpStream::connect(listener.address).unwrap();
    let kind = ConnectionKind::NettestData;
    data.write_all(&preamble::encode(Preamble { kind, tls: false })).unwrap();
    data.write_all(&u128::from_str_radix(&test_id, 16).unwrap().to_be_bytes()).unwrap();
    data.write_all(&[0; 4]).unwrap();
    listener.log_line("Started");
    assert!(matches!(listener.test(&small()), Err(NettestError::Refused(_))));
    drop((control, data));
    listener.log_line("control connection ended");
    assert_eq!(listener.test(&small()).unwrap().bytes, 100_000);
}

#[test]
fn excess_data_connections_are_refused() {
    let listener = RunningListener::with(ListenerLimits::default());
    let mut control = propose(&listener, TestParams { streams: 2, ..TestParams::default() });
    let Message::Accepted { test_id, .. } = read_message(&mut control).unwrap() else {
        panic!("not accepted");
    };
    let id = u128::from_str_radix(&test_id, 16).unwrap().to_be_bytes();
    let kind = ConnectionKind::NettestData;
    let head = preamble::encode(Preamble { kind, tls: false });
    let index = 7_u32.to_be_bytes();
    let mut data = TcpStream::connect(listener.address).unwrap();
    data.write_all(&[&head[..], &id, &index].concat()).unwrap();
    assert!(matches!(read_message(&mut control).unwrap(), Message::Failed { .. }));
    listener.log_line("Failed");
}
