//! sFlow collectors over UDP. An unreachable collector loses only its own datagrams.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::error::SamplerError;

/// Interval of reports about an unreachable collector.
const FAILURE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A socket to one collector, with its counters.
#[derive(Debug)]
pub(crate) struct CollectorSocket {
    socket: UdpSocket,
    pub(crate) address: SocketAddr,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) failed: u64,
    reported_at: Option<Instant>,
}

/// Result of sending a datagram.
#[derive(Debug)]
pub(crate) enum SendResult {
    /// Success, or a failure within [`FAILURE_REPORT_INTERVAL`] of the last report.
    Quiet,
    /// A failure to report.
    Failed(io::Error),
}

impl CollectorSocket {
    /// Opens a socket connected to a collector.
    pub(crate) fn new(address: SocketAddr) -> Result<Self, SamplerError> {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let open = || {
            let socket = UdpSocket::bind((any, 0))?;
            // Connected, so that the kernel reports ICMP port unreachable with the next datagram.
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let failed = |error: io::Error| SamplerError::Collector {
            collector: address.to_string(),
            reason: penstock_sys::fs::describe(&error),
        };
        let socket = open().map_err(failed)?;
        Ok(Self { socket, address, sent: 0, sent_bytes: 0, failed: 0, reported_at: None })
    }

    /// Local address of the socket, which the collector sees without NAT.
    pub(crate) fn own_address(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// Sends a datagram without blocking.
    pub(crate) fn send(&mut self, datagram: &[u8], now: Instant) -> SendResult {
        let mut sent = self.socket.send(datagram);
        let mut refused = None;
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // The error belongs to an earlier datagram; this one was not sent.
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
        let due = self
            .reported_at
            .is_none_or(|reported_at| now.duration_since(reported_at) >= FAILURE_REPORT_INTERVAL);
        match refused {
            Some(error) if due => {
                self.reported_at = Some(now);
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
    fn closed_port_is_reported_each_minute() {
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut collector = CollectorSocket::new(gone).unwrap();
        let begun = Instant::now();
        let mut is_reported = |at| {
            // The kernel reports the closed port with a later datagram.
            (0..4).any(|_| matches!(collector.send(b"sample", begun + at), SendResult::Failed(_)))
        };
        assert!(is_reported(Duration::ZERO));
        assert!(!is_reported(Duration::from_secs(59)));
        assert!(is_reported(Duration::from_secs(60)));
        assert!(collector.failed >= 3 && collector.sent >= 3, "{collector:?}");
    }
}
