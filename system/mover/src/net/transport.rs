//! Transports of a connection: sockets and their options.
//!
//! TCP connections and socket pairs, blocking or not; TLS is in `channel`. Errors are those of sockets.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use penstock_sys::net::options;
use penstock_units::Dscp;
use socket2::{SockRef, TcpKeepalive};

/// Longest interval between retransmissions on a silent path. It bounds every retransmission time-out,
/// so a path with round trips above it would see spurious retransmissions; paths of science data are
/// far below.
const RETRANSMIT_WAIT_MAX: Duration = Duration::from_secs(1);

/// Socket of a connection.
#[derive(Debug)]
pub enum Transport {
    /// TCP connection to a peer.
    Tcp(TcpStream),
    /// Socket pair inside this machine: a local copy, or a connection tunnelled by ssh.
    Local(UnixStream),
}

impl Transport {
    /// Returns a second handle to the same connection.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(tcp) => tcp.try_clone().map(Self::Tcp),
            Self::Local(local) => local.try_clone().map(Self::Local),
        }
    }

    /// Shuts down the connection for all its handles.
    pub fn shut_down(&self) {
        // An already closed connection is fine.
        let _ = match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Both),
            Self::Local(local) => local.shutdown(Shutdown::Both),
        };
    }

    /// As [`Self::shut_down`]; unsent TCP data is discarded with the last handle.
    pub fn abort(&self) {
        if let Self::Tcp(tcp) = self {
            let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
        }
        self.shut_down();
    }

    /// Sets the time limit of one blocking read or write.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        let socket = SockRef::from(self);
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)
    }

    /// Makes reads and writes nonblocking.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        SockRef::from(self).set_nonblocking(nonblocking)
    }

    /// Makes the kernel end the connection when the peer is silent or unreachable for `dead_after`.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn notice_death(&self, dead_after: Duration) -> io::Result<()> {
        let Self::Tcp(_) = self else { return Ok(()) };
        let socket = SockRef::from(self);
        let probe = (dead_after / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(dead_after))?;
        // Kernels without this option retry a silent path when their doubled time-out expires.
        options::set_rto_max(self, RETRANSMIT_WAIT_MAX).map(|_| ())
    }

    /// Gives the packets that this end sends a DSCP. The bits of ECN stay with the kernel.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn set_dscp(&self, dscp: Dscp) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) if dscp != Dscp::DEFAULT => options::set_tos(tcp, dscp.traffic_class()),
            Self::Tcp(_) | Self::Local(_) => Ok(()),
        }
    }

    /// Limits how fast the kernel sends, in bits per second; `None` removes the limit.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn set_pace(&self, rate_bps: Option<u64>) -> io::Result<()> {
        let Self::Tcp(tcp) = self else { return Ok(()) };
        options::set_max_pacing_rate(tcp, rate_bps.map_or(u64::MAX, |rate| (rate / 8).max(1)))
    }

    /// IP address of the peer; `None` for local sockets.
    #[must_use]
    pub fn peer_address(&self) -> Option<std::net::IpAddr> {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().ok().map(|address| address.ip()),
            Self::Local(_) => None,
        }
    }

    /// IP address of this end; `None` for local sockets.
    #[must_use]
    pub fn own_address(&self) -> Option<std::net::IpAddr> {
        match self {
            Self::Tcp(tcp) => tcp.local_addr().ok().map(|address| address.ip()),
            Self::Local(_) => None,
        }
    }

    /// Display name of the peer.
    #[must_use]
    pub fn peer(&self) -> String {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().map_or_else(|_| "gone".into(), |a| a.to_string()),
            Self::Local(_) => "local".to_owned(),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Local(local) => local.as_fd(),
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(buffer),
            Self::Local(local) => local.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            Self::Local(local) => local.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write_vectored(slices),
            Self::Local(local) => local.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
