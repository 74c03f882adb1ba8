//! Where datagrams go: any number of collectors over UDP. One that is away costs its own datagrams alone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::error::SamplerError;

/// A collector that is away is told of once in this time.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// One collector.
#[derive(Debug)]
pub(crate) struct Collector {
    socket: UdpSocket,
    pub(crate) address: SocketAddr,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) failed: u64,
    told: Option<Instant>,
}

/// What came of a datagram.
#[derive(Debug)]
pub(crate) enum Sent {
    /// It left, or the failure was told of lately.
    Quiet,
    /// It did not leave, for this reason.
    Failed(io::Error),
}

impl Collector {
    /// Opens a socket towards it.
    pub(crate) fn new(address: SocketAddr) -> Result<Self, SamplerError> {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let open = || {
            let socket = UdpSocket::bind((any, 0))?;
            // Connected, so that a port where nobody listens is told of by the next datagram.
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let failed = |error: io::Error| SamplerError::Collector {
            collector: address.to_string(),
            reason: penstock_sys::fs::describe(&error),
        };
        let socket = open().map_err(failed)?;
        Ok(Self { socket, address, sent: 0, sent_bytes: 0, failed: 0, told: None })
    }

    /// The address of this host that it sees.
    pub(crate) fn own_address(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// Sends it. Never waits.
    pub(crate) fn send(&mut self, datagram: &[u8], now: Instant) -> Sent {
        let mut sent = self.socket.send(datagram);
        let mut refused = None;
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // The kernel tells so of an earlier datagram, in place of sending this one.
            self.failed += 1;
            refused = std::mem::replace(&mut sent, self.socket.send(datagram)).err();
        }
        match sent {
            Ok(_) => {
                self.sent += 1;
                self.sent_bytes += datagram.len() as u64;
            }
            Err(error) => {
                self.failed += 1;
                refused = Some(error);
            }
        }
        let due = self.told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY);
        match refused {
            Some(error) if due => {
                self.told = Some(now);
                Sent::Failed(error)
            }
            _ => Sent::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_where_nobody_listens_is_told_of_once_a_minute_and_counted() {
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut collector = Collector::new(gone).unwrap();
        let begun = Instant::now();
        let mut told = |at| {
            // The kernel tells of the port with the datagram after the one that came to nobody.
            (0..4).any(|_| matches!(collector.send(b"sample", begun + at), Sent::Failed(_)))
        };
        assert!(told(Duration::ZERO));
        assert!(!told(Duration::from_secs(59)));
        assert!(told(Duration::from_secs(60)));
        assert!(collector.failed >= 3 && collector.sent >= 3, "{collector:?}");
    }
}
