//! Ways to reach the other end: TCP over any of several addresses, connections that ssh carries, and
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

use crate::labels::Labelling;
use crate::session::lock;
use crate::transport::Transport;

/// How long one attempt to connect may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Failures in a row after which an address is left alone while others live.
const FAILURES_MAX: u32 = 3;

/// How many addresses of a host an error names.
const ADDRESSES_NAMED_MAX: usize = 4;

/// A way to the other end.
pub trait Dial: Send + Sync {
    /// Connects; `number` spreads connections over what there is to choose from. With a mark every packet
    /// that this end sends carries it, where it can; how is told as [`Labelling::told`] is.
    ///
    /// # Errors
    /// When nothing answers.
    fn dial(&self, number: u32, mark: Option<Mark>) -> io::Result<(Transport, String)>;

    /// Connects for words alone: by any way, when those that are chosen are dead.
    ///
    /// # Errors
    /// When nothing answers.
    fn dial_control(&self) -> io::Result<Transport> {
        self.dial(0, None).map(|(transport, _)| transport)
    }

    /// Connects over these pairs of addresses alone from now on; over all that there are where none is given.
    ///
    /// # Errors
    /// When there is nothing to choose from.
    fn choose(&self, _path: &[Pair]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "its connections have one way only"))
    }

    /// Changes with each [`Dial::choose`] that changes something.
    fn choice(&self) -> u64 {
        0
    }

    /// Whether a connection goes over what is chosen.
    fn is_chosen(&self, _transport: &Transport) -> bool {
        true
    }

    /// An address that it leads to, where it is known.
    fn leads_to(&self) -> Option<IpAddr> {
        None
    }

    /// Where it leads, for people.
    fn shown(&self) -> String;

    /// Addresses that were given up.
    fn dropped(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A path as its two ends see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// The address of this end.
    pub from: IpAddr,
    /// The address of the other end.
    pub to: IpAddr,
}

/// TCP to a host that may have several addresses, from several of ours.
#[derive(Debug)]
pub struct TcpDial {
    shown: String,
    /// All ways that there are.
    pairs: Vec<Way>,
    /// Connections take turns; else all go where the last one was answered.
    spread: bool,
    /// Those of `chosen.0` alone, where there are any; how often they were changed.
    chosen: Mutex<(Vec<Way>, u64)>,
    congestion: Option<String>,
    answers: AtomicUsize,
    failures: Mutex<HashMap<Way, u32>>,
}

/// A destination, and the source if one was chosen.
type Way = (SocketAddr, Option<IpAddr>);

impl TcpDial {
    /// To `host:port`: to the first of its addresses that answers, or spread over the addresses `to` of
    /// it; from addresses `from`, or any.
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

    /// To one of these addresses, of which the first that answers is taken.
    ///
    /// # Errors
    /// When there is none.
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

    /// To those of its addresses alone that are allowed; they are not looked up again.
    ///
    /// # Errors
    /// The first error of `allowed`, when it has no other address.
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

    /// The ways to try, in order, for a connection.
    fn ways(&self, number: u32) -> Vec<Way> {
        let chosen = lock(&self.chosen).0.clone();
        let (all, spread) =
            if chosen.is_empty() { (self.pairs.clone(), self.spread) } else { (chosen, true) };
        let failures = lock(&self.failures);
        let is_alive = |way: &&Way| failures.get(way).is_none_or(|count| *count < FAILURES_MAX);
        let alive: Vec<_> = all.iter().filter(is_alive).copied().collect();
        // When nothing lives, everything is tried again.
        let mut ways = if alive.is_empty() { all } else { alive };
        let first = if spread { number as usize } else { self.answers.load(Ordering::Relaxed) };
        let first = first % ways.len();
        ways.rotate_left(first);
        ways
    }

    fn connect(&self, way: Way, label: &Labelling) -> io::Result<Transport> {
        let options = ConnectOptions {
            source: way.1,
            congestion: self.congestion.clone(),
            flow_label: label.flow_label,
            destination_option: label.destination_option,
            ..ConnectOptions::default()
        };
        let connected = connect(way.0, &options, CONNECT_WITHIN).and_then(|tcp| {
            tcp.set_nodelay(true)?;
            Ok(Transport::Tcp(tcp))
        });
        match &connected {
            Ok(_) => {
                lock(&self.failures).remove(&way);
                if let Some(place) = self.pairs.iter().position(|pair| *pair == way) {
                    self.answers.store(place, Ordering::Relaxed);
                }
            }
            Err(_) => *lock(&self.failures).entry(way).or_default() += 1,
        }
        connected
    }
}

/// Sources and destinations of one family, paired in turn.
fn pairs(to: &[SocketAddr], from: &[IpAddr]) -> Vec<Way> {
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

/// Attempts to connect that failed, each with its way.
#[derive(Debug, Default)]
struct FailedAttempts(Vec<(Way, io::Error)>);

impl FailedAttempts {
    /// One error that names each address that did not answer; what failed before any packet was sent (an
    /// option that this host does not have) and an address that `shown` names already are left as they are.
    fn into_error(mut self, shown: &str) -> io::Error {
        let is_local =
            |error: &io::Error| error.raw_os_error().is_none() && error.get_ref().is_some();
        if let Some(local) = self.0.iter().position(|(_, error)| is_local(error)) {
            return self.0.swap_remove(local).1;
        }
        let is_named = |(way, _): &(Way, io::Error)| way.1.is_none() && way.0.to_string() == shown;
        match self.0.len() {
            0 => return io::Error::from(io::ErrorKind::NotConnected),
            1 if is_named(&self.0[0]) => return self.0.swap_remove(0).1,
            _ => {}
        }
        let mut texts: Vec<String> = self
            .0
            .iter()
            .take(ADDRESSES_NAMED_MAX)
            .map(|(way, error)| format!("{}: {}", display_way(way), fs::describe(error)))
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

fn display_way((to, from): &Way) -> String {
    from.map_or(to.to_string(), |from| format!("{from} to {to}"))
}

impl Dial for TcpDial {
    fn dial(&self, number: u32, mark: Option<Mark>) -> io::Result<(Transport, String)> {
        let mut failed = FailedAttempts::default();
        for way in self.ways(number) {
            let label = Labelling::connecting(mark, number, way.0, way.1);
            match self.connect(way, &label) {
                Ok(transport) => return Ok((transport, label.told)),
                Err(error) => failed.0.push((way, error)),
            }
        }
        Err(failed.into_error(&self.shown))
    }

    fn dial_control(&self) -> io::Result<Transport> {
        let mut failed = FailedAttempts::default();
        let mut ways = self.ways(0);
        ways.extend(
            self.pairs.iter().filter(|way| !ways.contains(way)).copied().collect::<Vec<_>>(),
        );
        for way in ways {
            match self.connect(way, &Labelling::connecting(None, 0, way.0, way.1)) {
                Ok(transport) => return Ok(transport),
                Err(error) => failed.0.push((way, error)),
            }
        }
        Err(failed.into_error(&self.shown))
    }

    fn choose(&self, path: &[Pair]) -> io::Result<()> {
        let port_of = |ip: IpAddr| {
            let same = self.pairs.iter().find(|(to, _)| to.ip() == ip);
            same.or(self.pairs.first()).map_or(0, |(to, _)| to.port())
        };
        if let Some(pair) = path.iter().find(|pair| pair.from.is_ipv4() != pair.to.is_ipv4()) {
            let text = format!("{} and {} are not of one family", pair.from, pair.to);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let way = |pair: &Pair| (SocketAddr::new(pair.to, port_of(pair.to)), Some(pair.from));
        let ways: Vec<Way> = path.iter().map(way).collect();
        let mut chosen = lock(&self.chosen);
        if chosen.0 != ways {
            // What failed may be alive again: that may be why it is chosen.
            lock(&self.failures).retain(|way, _| !ways.contains(way));
            *chosen = (ways, chosen.1 + 1);
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
        let is_it =
            |way: &Way| way.0.ip() == ip(to) && way.1.is_none_or(|source| source == ip(from));
        chosen.0.is_empty() || chosen.0.iter().any(is_it)
    }

    fn leads_to(&self) -> Option<IpAddr> {
        self.ways(0).first().map(|(to, _)| to.ip())
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn dropped(&self) -> Vec<String> {
        let failures = lock(&self.failures);
        self.pairs
            .iter()
            .filter(|way| failures.get(way).is_some_and(|count| *count >= FAILURES_MAX))
            .map(display_way)
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
        // It ends when the connection does, and must not stay a zombie until we do.
        crate::sending::spawn("ssh", move || child.wait());
        Ok((Transport::Local(ours), Labelling::inside(mark).told))
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
    fn an_address_that_stays_dead_is_left_alone_while_others_live() {
        let listener = TcpListener::bind("127.0.0.2:0").expect("loopback");
        let port = listener.local_addr().expect("its address").port();
        let dead = SocketAddr::from(([127, 0, 0, 3], port));
        let two = dial(port, &["127.0.0.3", "127.0.0.2"]);
        for failures in 0..5 {
            // Those with an even number begin at the dead one.
            two.dial(0, None).expect("the other one answers");
            assert_eq!(two.dropped().len(), usize::from(failures >= 2));
        }
        assert_eq!(two.dropped(), [dead.to_string()]);
        assert_eq!(lock(&two.failures)[&(dead, None)], FAILURES_MAX);
        // Alone, it is tried again.
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
    fn only_what_is_allowed_is_connected_to() {
        let allowed =
            |to: SocketAddr| if to.ip().to_string() == "127.0.0.2" { Ok(()) } else { Err(to) };
        let some = dial(9, &["127.0.0.3", "127.0.0.2"]).only_to(allowed).expect("one is allowed");
        assert_eq!(some.pairs, [(SocketAddr::from(([127, 0, 0, 2], 9)), None)]);
        let none = dial(9, &["127.0.0.3", "127.0.0.4"]).only_to(allowed).unwrap_err();
        assert_eq!(none, SocketAddr::from(([127, 0, 0, 3], 9)));
    }
}
