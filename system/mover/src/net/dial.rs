//! Dialers of the other end: TCP over any of several addresses, connections tunnelled by ssh, and
//! sockets inside this process.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_protocol::open::Mark;
use penstock_sys::fs;
use penstock_sys::net::connect::{ConnectOptions, connect};

use crate::base::lock::lock;
use crate::base::spawn::spawn;
use crate::net::labels::Labelling;
use crate::net::transport::Transport;

/// Time limit of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Consecutive failures after which an address is skipped while others live.
const FAILURES_MAX: u32 = 3;

/// Limit of addresses named in an error.
const ADDRESSES_NAMED_MAX: usize = 4;

/// Dialer of the other end.
pub trait Dial: Send + Sync {
    /// Connects; `number` spreads connections over the available routes. With a mark, packets of this
    /// end are labelled if possible; the text is the note of [`Labelling`].
    ///
    /// # Errors
    /// If no address answers.
    fn dial(&self, number: u32, mark: Option<Mark>) -> io::Result<(Transport, String)>;

    /// Connects for control messages; uses any route if the chosen ones are dead.
    ///
    /// # Errors
    /// If no address answers.
    fn dial_control(&self) -> io::Result<Transport> {
        self.dial(0, None).map(|(transport, _)| transport)
    }

    /// Restricts later connections to these address pairs; lifts the restriction if `path` is empty.
    ///
    /// # Errors
    /// If this dialer has no choice of routes.
    fn choose(&self, _path: &[DialedPair]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "its connections have one way only"))
    }

    /// Generation of the choice; increases with each effective [`Dial::choose`].
    fn choice(&self) -> u64 {
        0
    }

    /// True if a connection uses a chosen route.
    fn is_chosen(&self, _transport: &Transport) -> bool {
        true
    }

    /// Destination address, if known.
    fn destination(&self) -> Option<IpAddr> {
        None
    }

    /// Display name of the destination.
    fn shown(&self) -> String;

    /// Addresses skipped after repeated failures.
    fn dropped(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Addresses of a path's two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialedPair {
    /// IP address of the local end.
    pub from: IpAddr,
    /// IP address of the remote end.
    pub to: IpAddr,
}

/// TCP dialer of a host with one or more addresses, from one or more local addresses.
#[derive(Debug)]
pub struct TcpDial {
    shown: String,
    /// All routes.
    pairs: Vec<DialRoute>,
    /// Spread connections over the routes in turn; otherwise prefer the last route that answered.
    spread: bool,
    /// Chosen routes (empty for all) and the generation of the choice.
    chosen: Mutex<(Vec<DialRoute>, u64)>,
    congestion: Option<String>,
    answers: AtomicUsize,
    failures: Mutex<HashMap<DialRoute, u32>>,
}

/// Destination, and source if one was given.
type DialRoute = (SocketAddr, Option<IpAddr>);

impl TcpDial {
    /// Dials `host:port`: the first address that answers, or spread over the addresses `to`; from
    /// addresses `from`, or any.
    ///
    /// # Errors
    /// If the host has no address.
    pub fn new(
        host: &str,
        port: u16,
        to: &[IpAddr],
        from: &[IpAddr],
        congestion: Option<String>,
    ) -> io::Result<Self> {
        let shown =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let resolved: Vec<_> = match to {
            [] => (host, port)
                .to_socket_addrs()
                .map_err(|error| {
                    let text = format!("cannot find host '{host}' ({error}): check its name");
                    io::Error::new(io::ErrorKind::NotFound, text)
                })?
                .collect(),
            chosen => chosen.iter().map(|address| SocketAddr::new(*address, port)).collect(),
        };
        let pairs = pairs(&resolved, from);
        if pairs.is_empty() {
            let text = format!("no address of {shown} is of the family of those in --from");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Self {
            shown,
            pairs,
            spread: !to.is_empty() || !from.is_empty(),
            chosen: Mutex::default(),
            congestion,
            answers: AtomicUsize::new(0),
            failures: Mutex::default(),
        })
    }

    /// Dials the first of these addresses that answers.
    ///
    /// # Errors
    /// If `addresses` is empty.
    pub fn to_any(addresses: &[SocketAddr]) -> io::Result<Self> {
        let Some(first) = addresses.first() else {
            let text = "no address is given to connect to";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        Ok(Self {
            shown: first.to_string(),
            pairs: addresses.iter().map(|to| (*to, None)).collect(),
            spread: false,
            chosen: Mutex::default(),
            congestion: None,
            answers: AtomicUsize::new(0),
            failures: Mutex::default(),
        })
    }

    /// Restricts the dialer to allowed addresses; they are not resolved again.
    ///
    /// # Errors
    /// The first error of `allowed`, if no address is left.
    pub fn only_to<E>(mut self, allowed: impl Fn(SocketAddr) -> Result<(), E>) -> Result<Self, E> {
        let mut why = None;
        self.pairs.retain(|(to, _)| {
            let answer = allowed(*to);
            let is_allowed = answer.is_ok();
            why = why.take().or(answer.err());
            is_allowed
        });
        match why {
            Some(why) if self.pairs.is_empty() => Err(why),
            _ => Ok(self),
        }
    }

    /// Routes to try for a connection, in order.
    fn routes(&self, number: u32) -> Vec<DialRoute> {
        let chosen = lock(&self.chosen).0.clone();
        let (all, spread) =
            if chosen.is_empty() { (self.pairs.clone(), self.spread) } else { (chosen, true) };
        let failures = lock(&self.failures);
        let is_alive =
            |route: &&DialRoute| failures.get(route).is_none_or(|count| *count < FAILURES_MAX);
        let alive: Vec<_> = all.iter().filter(is_alive).copied().collect();
        // If all are dead, all are tried again.
        let mut routes = if alive.is_empty() { all } else { alive };
        let first = if spread { number as usize } else { self.answers.load(Ordering::Relaxed) };
        let first = first % routes.len();
        routes.rotate_left(first);
        routes
    }

    fn connect(&self, route: DialRoute, label: &Labelling) -> io::Result<Transport> {
        let options = ConnectOptions {
            source: route.1,
            congestion: self.congestion.clone(),
            flow_label: label.flow_label,
            destination_option: label.destination_option,
            ..ConnectOptions::default()
        };
        let connected = connect(route.0, &options, CONNECT_TIMEOUT).and_then(|tcp| {
            tcp.set_nodelay(true)?;
            Ok(Transport::Tcp(tcp))
        });
        match &connected {
            Ok(_) => {
                lock(&self.failures).remove(&route);
                if let Some(place) = self.pairs.iter().position(|pair| *pair == route) {
                    self.answers.store(place, Ordering::Relaxed);
                }
            }
            Err(_) => *lock(&self.failures).entry(route).or_default() += 1,
        }
        connected
    }
}

/// Pairs sources and destinations of one address family in turn.
fn pairs(to: &[SocketAddr], from: &[IpAddr]) -> Vec<DialRoute> {
    if from.is_empty() {
        return to.iter().map(|to| (*to, None)).collect();
    }
    let mut pairs = Vec::new();
    for ipv6 in [true, false] {
        let to: Vec<_> = to.iter().filter(|to| to.is_ipv6() == ipv6).collect();
        let from: Vec<_> = from.iter().filter(|from| from.is_ipv6() == ipv6).collect();
        if !to.is_empty() && !from.is_empty() {
            let count = to.len().max(from.len());
            pairs.extend((0..count).map(|n| (*to[n % to.len()], Some(*from[n % from.len()]))));
        }
    }
    pairs
}

/// Failed connection attempts with their routes.
#[derive(Debug, Default)]
struct FailedAttempts(Vec<(DialRoute, io::Error)>);

impl FailedAttempts {
    /// Combines them to one error that names each address. Errors before any packet was sent (an option
    /// that this host lacks) and addresses already named by `shown` stay unchanged.
    fn into_error(mut self, shown: &str) -> io::Error {
        let is_local =
            |error: &io::Error| error.raw_os_error().is_none() && error.get_ref().is_some();
        if let Some(local) = self.0.iter().position(|(_, error)| is_local(error)) {
            return self.0.swap_remove(local).1;
        }
        let is_named =
            |(route, _): &(DialRoute, io::Error)| route.1.is_none() && route.0.to_string() == shown;
        match self.0.len() {
            0 => return io::Error::from(io::ErrorKind::NotConnected),
            1 if is_named(&self.0[0]) => return self.0.swap_remove(0).1,
            _ => {}
        }
        let mut texts: Vec<String> = self
            .0
            .iter()
            .take(ADDRESSES_NAMED_MAX)
            .map(|(route, error)| format!("{}: {}", display_route(route), fs::describe(error)))
            .collect();
        if let Some(more) = self.0.len().checked_sub(ADDRESSES_NAMED_MAX).filter(|more| *more > 0) {
            texts.push(format!("and {more} more"));
        }
        let kind = match self.0.last().map(|(_, error)| error.kind()) {
            Some(kind @ (io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut)) => kind,
            _ => io::ErrorKind::NotConnected,
        };
        io::Error::new(kind, texts.join("; "))
    }
}

fn display_route((to, from): &DialRoute) -> String {
    from.map_or(to.to_string(), |from| format!("{from} to {to}"))
}

impl Dial for TcpDial {
    fn dial(&self, number: u32, mark: Option<Mark>) -> io::Result<(Transport, String)> {
        let mut failed = FailedAttempts::default();
        for route in self.routes(number) {
            let label = Labelling::connecting(mark, number, route.0, route.1);
            match self.connect(route, &label) {
                Ok(transport) => return Ok((transport, label.description)),
                Err(error) => failed.0.push((route, error)),
            }
        }
        Err(failed.into_error(&self.shown))
    }

    fn dial_control(&self) -> io::Result<Transport> {
        let mut failed = FailedAttempts::default();
        let mut routes = self.routes(0);
        routes.extend(
            self.pairs.iter().filter(|route| !routes.contains(route)).copied().collect::<Vec<_>>(),
        );
        for route in routes {
            match self.connect(route, &Labelling::connecting(None, 0, route.0, route.1)) {
                Ok(transport) => return Ok(transport),
                Err(error) => failed.0.push((route, error)),
            }
        }
        Err(failed.into_error(&self.shown))
    }

    fn choose(&self, path: &[DialedPair]) -> io::Result<()> {
        let port_of = |ip: IpAddr| {
            let same = self.pairs.iter().find(|(to, _)| to.ip() == ip);
            same.or(self.pairs.first()).map_or(0, |(to, _)| to.port())
        };
        if let Some(pair) = path.iter().find(|pair| pair.from.is_ipv4() != pair.to.is_ipv4()) {
            let text = format!("{} and {} are not of one family", pair.from, pair.to);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let route =
            |pair: &DialedPair| (SocketAddr::new(pair.to, port_of(pair.to)), Some(pair.from));
        let routes: Vec<DialRoute> = path.iter().map(route).collect();
        let mut chosen = lock(&self.chosen);
        if chosen.0 != routes {
            // What failed may be alive again: that may be why it is chosen.
            lock(&self.failures).retain(|route, _| !routes.contains(route));
            *chosen = (routes, chosen.1 + 1);
        }
        Ok(())
    }

    fn choice(&self) -> u64 {
        lock(&self.chosen).1
    }

    fn is_chosen(&self, transport: &Transport) -> bool {
        let Transport::Tcp(tcp) = transport else { return true };
        let (Ok(to), Ok(from)) = (tcp.peer_addr(), tcp.local_addr()) else { return false };
        let chosen = lock(&self.chosen);
        let ip = |address: SocketAddr| address.ip().to_canonical();
        let is_it = |route: &DialRoute| {
            route.0.ip() == ip(to) && route.1.is_none_or(|source| source == ip(from))
        };
        chosen.0.is_empty() || chosen.0.iter().any(is_it)
    }

    fn destination(&self) -> Option<IpAddr> {
        self.routes(0).first().map(|(to, _)| to.ip())
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn dropped(&self) -> Vec<String> {
        let failures = lock(&self.failures);
        self.pairs
            .iter()
            .filter(|route| failures.get(route).is_some_and(|count| *count >= FAILURES_MAX))
            .map(display_route)
            .collect()
    }
}

/// Dialer that tunnels each connection through an `ssh -W` process.
#[derive(Debug)]
pub struct SshDial {
    command: Vec<String>,
    host: String,
    port: u16,
}

impl SshDial {
    /// Dials `port` on the loopback of `host` with `command` (`ssh` and its options).
    #[must_use]
    pub fn new(command: Vec<String>, host: String, port: u16) -> Self {
        Self { command, host, port }
    }
}

impl Dial for SshDial {
    fn dial(&self, _number: u32, mark: Option<Mark>) -> io::Result<(Transport, String)> {
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
        // The process ends with the connection and must be reaped.
        spawn("ssh", move || child.wait());
        Ok((Transport::Local(ours), Labelling::inside(mark).description))
    }

    fn shown(&self) -> String {
        format!("{} (inside ssh)", self.host)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn dial(port: u16, to: &[&str]) -> TcpDial {
        let to: Vec<_> = to.iter().map(|text| text.parse().expect(text)).collect();
        TcpDial::new("localhost", port, &to, &[], None).expect("addresses")
    }

    #[test]
    fn dead_address_skipped_while_others_live() {
        let listener = TcpListener::bind("127.0.0.2:0").expect("loopback");
        let port = listener.local_addr().expect("its address").port();
        let dead = SocketAddr::from(([127, 0, 0, 3], port));
        let two = dial(port, &["127.0.0.3", "127.0.0.2"]);
        for failures in 0..5 {
            // Even numbers start with the dead address.
            two.dial(0, None).expect("the other one answers");
            assert_eq!(two.dropped().len(), usize::from(failures >= 2));
        }
        assert_eq!(two.dropped(), [dead.to_string()]);
        assert_eq!(lock(&two.failures)[&(dead, None)], FAILURES_MAX);
        // A single address is always tried again.
        let one = dial(port, &["127.0.0.3"]);
        for failures in 1..=5 {
            assert!(one.dial(0, None).is_err());
            assert_eq!(lock(&one.failures)[&(dead, None)], failures);
        }
    }

    #[test]
    fn refused_addresses_are_named() {
        let free = TcpListener::bind("127.0.0.2:0").expect("loopback");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let text = |dial: TcpDial| dial.dial_control().unwrap_err().to_string();
        let two = text(dial(port, &["127.0.0.3", "127.0.0.2"]));
        assert!(two.contains(&format!("127.0.0.3:{port}: Connection refused")), "{two}");
        assert!(two.contains(&format!("; 127.0.0.2:{port}: Connection refused")), "{two}");
        let one = text(dial(port, &["127.0.0.2"]));
        assert!(one.starts_with(&format!("127.0.0.2:{port}: ")), "{one}");
        let named = TcpDial::new("127.0.0.2", port, &[], &[], None).expect("an address");
        let error = named.dial_control().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(111), "the caller names this address itself");
        let from: Vec<IpAddr> = vec!["127.0.0.9".parse().expect("an address")];
        let from = TcpDial::new("127.0.0.2", port, &[], &from, None).expect("an address");
        let text = text(from);
        assert!(text.contains(&format!("127.0.0.9 to 127.0.0.2:{port}: ")), "{text}");
        let many: Vec<String> = (2..9).map(|n| format!("127.0.0.{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let text = super::tests::dial(port, &many).dial_control().unwrap_err().to_string();
        assert!(text.ends_with("; and 3 more"), "{text}");
    }

    #[test]
    fn disallowed_addresses_are_removed() {
        let allowed =
            |to: SocketAddr| if to.ip().to_string() == "127.0.0.2" { Ok(()) } else { Err(to) };
        let some = dial(9, &["127.0.0.3", "127.0.0.2"]).only_to(allowed).expect("one is allowed");
        assert_eq!(some.pairs, [(SocketAddr::from(([127, 0, 0, 2], 9)), None)]);
        let none = dial(9, &["127.0.0.3", "127.0.0.4"]).only_to(allowed).unwrap_err();
        assert_eq!(none, SocketAddr::from(([127, 0, 0, 3], 9)));
    }
}
