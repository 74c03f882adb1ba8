//! Ways to reach the other end: TCP over any of several addresses, connections that ssh carries, and
//! sockets inside this process.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use penstock_sys::net::connect::{ConnectOptions, connect};

use crate::channel::Transport;
use crate::session::lock;

/// How long one attempt to connect may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Failures in a row after which an address is left alone while others live.
const FAILURES_MAX: u32 = 3;

/// A way to the other end.
pub trait Dial: Send + Sync {
    /// Connects; `number` spreads connections over what there is to choose from.
    ///
    /// # Errors
    /// When nothing answers.
    fn dial(&self, number: u32) -> io::Result<Transport>;

    /// Where it leads, for people.
    fn shown(&self) -> String;

    /// Addresses that were given up.
    fn dropped(&self) -> Vec<String> {
        Vec::new()
    }
}

/// TCP to a host that may have several addresses, from several of ours.
#[derive(Debug)]
pub struct TcpDial {
    shown: String,
    to: Vec<SocketAddr>,
    from: Vec<Option<IpAddr>>,
    congestion: Option<String>,
    failures: Mutex<HashMap<(SocketAddr, Option<IpAddr>), u32>>,
}

impl TcpDial {
    /// To `host:port`, or to the addresses `to` of it; from addresses `from`, or any.
    ///
    /// # Errors
    /// When the host has no address.
    pub fn new(
        host: &str,
        port: u16,
        to: &[IpAddr],
        from: &[IpAddr],
        congestion: Option<String>,
    ) -> io::Result<Self> {
        let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let to: Vec<_> = match to {
            [] => (host, port).to_socket_addrs().map_err(|error| {
                let text = format!("cannot find host '{host}' ({error}): check its name");
                io::Error::new(io::ErrorKind::NotFound, text)
            })?.collect(),
            chosen => chosen.iter().map(|address| SocketAddr::new(*address, port)).collect(),
        };
        // The first address family that the resolver names is the one that the system prefers.
        let preferred = to.first().map(SocketAddr::is_ipv6);
        let to = to.into_iter().filter(|address| Some(address.is_ipv6()) == preferred).collect();
        let from = match from {
            [] => vec![None],
            chosen => chosen.iter().copied().map(Some).collect(),
        };
        Ok(Self { shown, to, from, congestion, failures: Mutex::default() })
    }

    fn alive(&self) -> Vec<(SocketAddr, Option<IpAddr>)> {
        let failures = lock(&self.failures);
        let all = self.pairs();
        let alive: Vec<_> = all
            .iter()
            .copied()
            .filter(|pair| failures.get(pair).is_none_or(|count| *count < FAILURES_MAX))
            .collect();
        // When nothing lives, everything is tried again.
        if alive.is_empty() { all } else { alive }
    }

    fn pairs(&self) -> Vec<(SocketAddr, Option<IpAddr>)> {
        let count = self.to.len().max(self.from.len());
        (0..count)
            .map(|n| (self.to[n % self.to.len()], self.from[n % self.from.len()]))
            .collect()
    }
}

impl Dial for TcpDial {
    fn dial(&self, number: u32) -> io::Result<Transport> {
        let alive = self.alive();
        let pair = alive[number as usize % alive.len()];
        let options = ConnectOptions {
            source: pair.1,
            congestion: self.congestion.clone(),
            ..ConnectOptions::default()
        };
        match connect(pair.0, &options, CONNECT_WITHIN) {
            Ok(tcp) => {
                tcp.set_nodelay(true)?;
                lock(&self.failures).remove(&pair);
                Ok(Transport::Tcp(tcp))
            }
            Err(error) => {
                *lock(&self.failures).entry(pair).or_default() += 1;
                Err(io::Error::new(error.kind(), format!("{}: {error}", pair.0)))
            }
        }
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn dropped(&self) -> Vec<String> {
        let failures = lock(&self.failures);
        self.pairs()
            .into_iter()
            .filter(|pair| failures.get(pair).is_some_and(|count| *count >= FAILURES_MAX))
            .map(|(to, from)| from.map_or(to.to_string(), |from| format!("{from} to {to}")))
            .collect()
    }
}

/// Connections that `ssh -W` carries, one ssh process each.
#[derive(Debug)]
pub struct SshDial {
    command: Vec<String>,
    host: String,
    port: u16,
}

impl SshDial {
    /// To `port` on the loopback of `host`, by `command` (`ssh` and its options).
    #[must_use]
    pub fn new(command: Vec<String>, host: String, port: u16) -> Self {
        Self { command, host, port }
    }
}

impl Dial for SshDial {
    fn dial(&self, _number: u32) -> io::Result<Transport> {
        let (ours, theirs) = UnixStream::pair()?;
        let (program, options) = self.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let output = theirs.try_clone()?;
        let mut child = Command::new(program)
            .args(options)
            .arg("-W")
            .arg(format!("127.0.0.1:{}", self.port))
            .arg("--")
            .arg(&self.host)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(output)))
            .stderr(Stdio::inherit())
            .spawn()?;
        // It ends when the connection does, and must not stay a zombie until we do.
        crate::sending::spawn("ssh", move || child.wait());
        Ok(Transport::Local(ours))
    }

    fn shown(&self) -> String {
        format!("{} (inside ssh)", self.host)
    }
}
