//! ProxyFault injector: a proxy of TCP in threads of the test that flips bits, truncates streams, delays and resets, at
//! seeded positions.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::Random;

/// ProxyFault-free bytes in each direction at the start of a control connection: its TLS handshake and request. A client
/// whose first request fails gives up at once.
const CALM_BYTES: u64 = 16 << 10;

/// Receive buffer of connections with a pace.
const PACED_BUFFER_BYTES: usize = 64 << 10;

/// Kind of an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyFault {
    /// One bit is changed.
    Flip,
    /// The rest of a chunk is dropped, and the connection is closed.
    Truncate,
    /// A chunk arrives up to half a second later.
    Delay,
    /// The connection is reset on both sides.
    Reset,
}

const FAULTS: [ProxyFault; 4] =
    [ProxyFault::Flip, ProxyFault::Truncate, ProxyFault::Delay, ProxyFault::Reset];

/// A proxy of TCP, stopped when dropped.
pub struct FaultProxy {
    /// Address that clients connect to.
    pub address: SocketAddr,
    inner: Arc<ProxyState>,
}

struct ProxyState {
    upstream: String,
    /// Remaining faults.
    budget: AtomicI64,
    /// Mean bytes between two faults of one direction of one connection.
    every: u64,
    /// Bytes per second of each direction of a connection.
    pace: Option<u64>,
    random: Mutex<Random>,
    done: Mutex<Vec<ProxyFault>>,
    live: Mutex<Vec<Arc<ProxiedConnection>>>,
    passed: AtomicU64,
    stopping: AtomicBool,
    frozen: AtomicBool,
}

/// The two sockets of a proxied connection.
struct ProxiedConnection {
    client: TcpStream,
    agent: TcpStream,
    reset: AtomicBool,
}

impl ProxiedConnection {
    /// Sets SO_LINGER to 0 and stops reading, so that both closes send RST.
    fn reset(&self) {
        self.reset.store(true, Ordering::SeqCst);
        for socket in [&self.client, &self.agent] {
            let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Read);
        }
    }

    fn cut(&self) {
        for socket in [&self.client, &self.agent] {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl std::fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultProxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl FaultProxy {
    /// Forwards to `upstream` and injects `budget` faults.
    #[must_use]
    pub fn start(upstream: &str, random: Random, budget: i64, every: u64) -> Self {
        Self::start_at("127.0.0.1:0", upstream, random, budget, every)
    }

    /// Forwards without faults, each direction of each connection at this rate at most: a cap for each connection, as a
    /// small window or a shaper is.
    #[must_use]
    pub fn paced(upstream: &str, bytes_per_second: u64) -> Self {
        Self::start_with("127.0.0.1:0", upstream, Random::new(0), 0, 1, Some(bytes_per_second))
    }

    /// Forwards from `listen` without faults.
    #[must_use]
    pub fn clean(listen: &str, upstream: &str) -> Self {
        Self::start_at(listen, upstream, Random::new(0), 0, 1)
    }

    fn start_at(listen: &str, upstream: &str, random: Random, budget: i64, every: u64) -> Self {
        Self::start_with(listen, upstream, random, budget, every, None)
    }

    fn start_with(
        listen: &str,
        upstream: &str,
        random: Random,
        budget: i64,
        every: u64,
        pace: Option<u64>,
    ) -> Self {
        let listener = TcpListener::bind(listen).unwrap();
        if pace.is_some() {
            // Accepted sockets inherit it: what the buffers hold is not paced.
            socket2::SockRef::from(&listener).set_recv_buffer_size(PACED_BUFFER_BYTES).unwrap();
        }
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(ProxyState {
            upstream: upstream.to_owned(),
            budget: AtomicI64::new(budget),
            every,
            pace,
            random: Mutex::new(random),
            done: Mutex::default(),
            live: Mutex::default(),
            passed: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&inner);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.stopping.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    accepting.carry(client);
                }
            }
        });
        Self { address, inner }
    }

    /// Returns the URL of `path` at the agent behind the proxy.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("penstock://{}/{path}", self.address)
    }

    /// Forwards nothing from now on; both sides keep their connections.
    pub fn freeze(&self) {
        self.inner.frozen.store(true, Ordering::SeqCst);
    }

    /// Forwards again, and first what [`FaultProxy::freeze`] held back.
    pub fn thaw(&self) {
        self.inner.frozen.store(false, Ordering::SeqCst);
    }

    /// Returns the faults injected so far.
    #[must_use]
    pub fn done(&self) -> Vec<ProxyFault> {
        self.inner.done.lock().unwrap().clone()
    }

    /// Returns the number of bytes forwarded in both directions.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.inner.passed.load(Ordering::SeqCst)
    }

    /// Resets a random connection; returns false if there is none.
    pub fn reset_one(&self, random: &mut Random) -> bool {
        let mut live = self.inner.live.lock().unwrap();
        if live.is_empty() {
            return false;
        }
        let chosen = random.between(0, live.len() as u64) as usize;
        live.swap_remove(chosen).reset();
        true
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        self.inner.live.lock().unwrap().iter().for_each(|pair| pair.cut());
        let _ = TcpStream::connect(self.address);
    }
}

impl ProxyState {
    fn carry(self: &Arc<Self>, client: TcpStream) {
        // The upstream refuses: close the client's connection.
        let Ok(agent) = TcpStream::connect(&self.upstream) else { return };
        for socket in [&client, &agent] {
            let _ = socket.set_nodelay(true);
        }
        let pair = Arc::new(ProxiedConnection { client, agent, reset: AtomicBool::new(false) });
        self.live.lock().unwrap().push(Arc::clone(&pair));
        for upwards in [true, false] {
            let (inner, pair) = (Arc::clone(self), Arc::clone(&pair));
            let random = self.random.lock().unwrap().fork();
            std::thread::spawn(move || {
                inner.pump(&pair, upwards, random);
                inner.live.lock().unwrap().retain(|other| !Arc::ptr_eq(other, &pair));
            });
        }
    }

    fn pump(&self, pair: &ProxiedConnection, upwards: bool, mut random: Random) {
        let (mut from, mut to) =
            if upwards { (&pair.client, &pair.agent) } else { (&pair.agent, &pair.client) };
        let mut buffer = vec![0; 32 << 10];
        let mut due = Instant::now();
        let mut calm = CALM_BYTES + random.between(0, 2 * self.every);
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => count,
            };
            while self.frozen.load(Ordering::SeqCst) && !self.stopping.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
            }
            if let Some(pace) = self.pace {
                due = due.max(Instant::now()) + Duration::from_secs_f64(count as f64 / pace as f64);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            self.passed.fetch_add(count as u64, Ordering::SeqCst);
            let bytes = &mut buffer[..count];
            let mut pass = count;
            if (count as u64) < calm {
                calm -= count as u64;
            } else if self.budget.fetch_sub(1, Ordering::SeqCst) > 0 {
                calm = random.between(1, 2 * self.every);
                let fault = FAULTS[random.between(0, 4) as usize];
                self.done.lock().unwrap().push(fault);
                match fault {
                    ProxyFault::Flip => {
                        let at = random.between(0, count as u64) as usize;
                        bytes[at] ^= 1 << random.between(0, 8);
                    }
                    ProxyFault::Truncate => pass = random.between(0, count as u64) as usize,
                    ProxyFault::Delay => {
                        std::thread::sleep(Duration::from_millis(random.between(50, 500)));
                    }
                    ProxyFault::Reset => {
                        pair.reset();
                        return;
                    }
                }
            } else {
                calm = u64::MAX;
            }
            if to.write_all(&bytes[..pass]).is_err() {
                break;
            }
            if pass < count {
                pair.cut();
                return;
            }
        }
        if !pair.reset.load(Ordering::SeqCst) {
            let _ = to.shutdown(Shutdown::Write);
            let _ = from.shutdown(Shutdown::Read);
        }
    }
}
