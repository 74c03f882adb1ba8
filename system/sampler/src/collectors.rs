//! sFlow collectors over UDP. An unreachable collector loses only its own datagrams.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::error::SamplerError;

/// Interval of reports about an unreachable collector.
const FAILURE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A socket to one collector, with its counters.
#[derive(Debug)]
pub(crate) struct Collector {
    socket: UdpSocket,
    pub(crate) address: SocketAddr,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) failed: u64,
    told: Option<Instant>,
}

/// Result of sending a datagram.
#[derive(Debug)]
pub(crate) enum SendResult {
    /// SendResult, or a failure that was reported lately.
    Quiet,
    /// A failure to report.
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
    pub(crate) fn send(&mut self, datagram: &[u8], now: Instant) -> SendResult {
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
        let due = self.told.is_none_or(|told| now.duration_since(told) >= FAILURE_REPORT_INTERVAL);
        match refused {
            Some(error) if due => {
                self.told = Some(now);
                SendResult::Failed(error)
            }
            _ => SendResult::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_port_is_reported_once_a_minute() {
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut collector = Collector::new(gone).unwrap();
        let begun = Instant::now();
        let mut told = |at| {
            // The kernel tells of the port with the datagram after the one that came to nobody.
            (0..4).any(|_| matches!(collector.send(b"sample", begun + at), SendResult::Failed(_)))
        };
        assert!(told(Duration::ZERO));
        assert!(!told(Duration::from_secs(59)));
        assert!(told(Duration::from_secs(60)));
        assert!(collector.failed >= 3 && collector.sent >= 3, "{collector:?}");
    }
}
