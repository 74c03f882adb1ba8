//! Limits of a listener, with short deadlines: refused, dropped and admitted clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use penstock_nettest::message::{Message, read_message, write_message};
use penstock_nettest::{
    Listener, ListenerEvent, ListenerLimits, NettestError, TestParams, TestTarget, run,
};
use penstock_protocol::preamble::{self, ConnectionKind, Preamble};

const LOG_TIMEOUT: Duration = Duration::from_secs(20);

/// Listener on a thread, stopped on drop.
struct RunningListener {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    log: Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

impl RunningListener {
    fn with(limits: ListenerLimits) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), limits).unwrap();
        let address = listener.local_addr();
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, log) = channel();
        let ended = stop.clone();
        let thread = thread::spawn(move || {
            let log = move |event: &ListenerEvent<'_>| {
                let _ = sender.send(format!("{event:?}"));
            };
            listener.run(&ended, log).unwrap();
        });
        Self { address, stop, log, thread: Some(thread) }
    }

    fn log_line(&self, word: &str) -> String {
        loop {
            let line = self.log.recv_timeout(LOG_TIMEOUT).unwrap_or_else(|_| panic!("no '{word}'"));
            if line.contains(word) {
                return line;
            }
        }
    }

    fn test(&self, params: &TestParams) -> Result<u64, NettestError> {
        let target = TestTarget { host: self.address.to_string(), ..TestTarget::default() };
        run(&target, params, &AtomicBool::new(false), &mut |_| {}).map(|report| report.bytes)
    }

    /// Control connection that has proposed `params`.
    fn propose(&self, params: TestParams) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).unwrap();
        let kind = ConnectionKind::NettestControl;
        socket.write_all(&preamble::encode(Preamble { kind, tls: false })).unwrap();
        let software = "test".to_owned();
        write_message(&mut socket, &Message::Propose { software, params }).unwrap();
        socket
    }

    /// Accepted control connection whose test waits for its data connections.
    fn book(&self) -> TcpStream {
        let mut socket = self.propose(TestParams::default());
        let answer = read_message(&mut socket).unwrap();
        assert!(matches!(answer, Message::Accepted { .. }), "{answer:?}");
        socket
    }
}

impl Drop for RunningListener {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok());
        }
    }
}

fn small() -> TestParams {
    TestParams { seconds: None, bytes: Some(100_000), ..TestParams::default() }
}

#[test]
fn test_beyond_limit_is_refused() {
    let listener = RunningListener::with(ListenerLimits::default());
    let mut booked: Vec<_> = (0..16).map(|_| listener.book()).collect();
    let refused = listener.test(&small()).unwrap_err();
    assert!(
        matches!(&refused, NettestError::Refused(why) if why.contains("16 tests")),
        "{refused}"
    );
    // The client disconnects before its data connections arrive.
    drop(booked.pop());
    listener.log_line("control connection ended");
    assert_eq!(listener.test(&small()).unwrap(), 100_000);
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
    let mut booked = listener.book();
    assert!(matches!(read_message(&mut booked).unwrap(), Message::Failed { .. }));
    assert!(listener.log_line("Failed").contains("1 of 1 data connection"));
    assert!(begun.elapsed() >= 3 * handshake && begun.elapsed() < LOG_TIMEOUT);
    assert_eq!(listener.test(&small()).unwrap(), 100_000);
}

#[test]
fn vanished_client_frees_its_slot() {
    let listener = RunningListener::with(ListenerLimits { tests: 1, ..ListenerLimits::default() });
    let mut control =
        listener.propose(TestParams { seconds: Some(600.0), ..TestParams::default() });
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
    assert_eq!(listener.test(&small()).unwrap(), 100_000);
}

#[test]
fn excess_data_connections_are_refused() {
    let listener = RunningListener::with(ListenerLimits::default());
    let mut control = listener.propose(TestParams { streams: 2, ..TestParams::default() });
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
