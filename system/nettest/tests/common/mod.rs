//! Listener on a thread, for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use penstock_nettest::{
    Listener, ListenerEvent, ListenerLimits, NettestError, Report, TestParams, TestTarget, run,
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
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), limits).unwrap();
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
