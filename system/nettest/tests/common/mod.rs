//! Listener on a thread and servers of iperf3, for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use penstock_nettest::{
    Listener, ListenerEvent, ListenerLimits, NettestError, Report, TestParams, TestProtocol,
    TestTarget, run,
};

const LOG_TIMEOUT: Duration = Duration::from_secs(20);

/// Listener on a free port, stopped on drop.
pub(crate) struct RunningListener {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    log: Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

impl RunningListener {
    pub(crate) fn with(limits: ListenerLimits) -> Self {
        Self::at("127.0.0.1:0", limits)
    }

    pub(crate) fn at(address: &str, limits: ListenerLimits) -> Self {
        let listener = Listener::bind(address.parse().unwrap(), limits).unwrap();
        assert_eq!(listener.udp_unavailable(), None);
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

    /// Waits for an event that contains `word`.
    pub(crate) fn log_line(&self, word: &str) -> String {
        loop {
            let line = self.log.recv_timeout(LOG_TIMEOUT).unwrap_or_else(|_| panic!("no '{word}'"));
            if line.contains(word) {
                return line;
            }
        }
    }

    pub(crate) fn test(&self, params: &TestParams) -> Result<Report, NettestError> {
        let target = TestTarget { host: self.address.to_string(), ..TestTarget::default() };
        run(&target, params, &AtomicBool::new(false), &mut |_| {})
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

/// Variable with the path of another release of iperf3.
const IPERF3_VARIABLE: &str = "PENSTOCK_IPERF3";

/// Program of iperf3: that of the variable, else the installed one.
pub(crate) fn iperf3_program() -> OsString {
    std::env::var_os(IPERF3_VARIABLE).unwrap_or_else(|| "iperf3".into())
}

/// Minor number of the release of iperf3: 12 of 3.12.
pub(crate) fn iperf3_minor() -> u32 {
    let output = Command::new(iperf3_program()).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let release = text.strip_prefix("iperf 3.").expect("iperf 3").to_owned();
    let digits: String = release.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// `iperf3 -s` on a port of its own; killed when dropped.
pub(crate) struct IperfServer {
    pub(crate) child: Child,
    pub(crate) host: String,
}

impl IperfServer {
    /// Starts a server; `None` if iperf3 is missing.
    pub(crate) fn new() -> Option<Self> {
        let deadline = Instant::now() + LOG_TIMEOUT;
        loop {
            // Another program may take the port before the server does: then it exits, and the next is tried.
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let spawned = Command::new(iperf3_program())
                .args(["-s", "-B", "127.0.0.1", "-p", &free.port().to_string()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let Ok(mut child) = spawned else {
                penstock_testkit::skip(penstock_testkit::Requirement::Program, "needs iperf3");
                return None;
            };
            while child.try_wait().unwrap().is_none() {
                assert!(Instant::now() < deadline, "iperf3 -s does not listen");
                if is_listening(free.port()) {
                    return Some(Self { child, host: free.to_string() });
                }
                thread::yield_now();
            }
        }
    }

    pub(crate) fn test(&self, params: &TestParams) -> Result<Report, NettestError> {
        let protocol = TestProtocol::Iperf3;
        let target = TestTarget { host: self.host.clone(), protocol, ..TestTarget::default() };
        let deadline = Instant::now() + LOG_TIMEOUT;
        loop {
            // The server opens its socket anew after each test, and resets connections that came before.
            match run(&target, params, &AtomicBool::new(false), &mut |_| {}) {
                Err(NettestError::Connect { source, .. })
                    if source.kind() == ErrorKind::ConnectionReset && Instant::now() < deadline =>
                {
                    thread::yield_now();
                }
                result => return result,
            }
        }
    }
}

impl Drop for IperfServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// True if a socket listens on the port. A connection would be a client to iperf3.
fn is_listening(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| line.contains(&format!(":{port:04X} 00000000:0000 0A")))
}
