//! What a connection runs over: a socket, and what can be set on it.
//!
//! For: TCP connections and socket pairs, blocking or not. Not for: what is said on them, nor TLS (`channel`).
//! Fails as sockets do.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use penstock_sys::net::options;
use socket2::{SockRef, TcpKeepalive};

/// A path that is silent is tried this often. It bounds all waits before something is sent again, so that a path with
/// round trips above it would be sent too much; paths of science data are far below.
const RETRANSMIT_WAIT_MAX: Duration = Duration::from_secs(1);

/// What a connection runs over.
#[derive(Debug)]
pub enum Transport {
    /// TCP.
    Tcp(TcpStream),
    /// A pair of sockets inside this machine: a local copy, or a connection that ssh carries.
    Local(UnixStream),
}

impl Transport {
    /// A second handle to the same connection.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(tcp) => tcp.try_clone().map(Self::Tcp),
            Self::Local(local) => local.try_clone().map(Self::Local),
        }
    }

    /// Ends the connection for every handle to it.
    pub fn shut_down(&self) {
        // It may be gone already, which is what is wanted.
        let _ = match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Both),
            Self::Local(local) => local.shutdown(Shutdown::Both),
        };
    }

    /// Ends the connection as [`Self::shut_down`] does; what TCP has not sent is thrown away with the last handle.
    pub fn abort(&self) {
        if let Self::Tcp(tcp) = self {
            let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
        }
        self.shut_down();
    }

    /// Bounds how long one read or write may block.
    ///
    /// # Errors
    /// When the socket is gone.
    pub fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        let socket = SockRef::from(self);
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)
    }

    /// Makes reads and writes return at once.
    ///
    /// # Errors
    /// When the socket is gone.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        SockRef::from(self).set_nonblocking(nonblocking)
    }

    /// Has the kernel end the connection when the peer is silent or unreachable for `dead_after`.
    ///
    /// # Errors
    /// When the socket is gone.
    pub fn notice_death(&self, dead_after: Duration) -> io::Result<()> {
        let Self::Tcp(_) = self else { return Ok(()) };
        let socket = SockRef::from(self);
        let probe = (dead_after / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(dead_after))?;
        // Kernels that cannot bound it try a silent path when their doubled wait ends.
        options::set_rto_max(self, RETRANSMIT_WAIT_MAX).map(|_| ())
    }

    /// Address of the peer, where it has one.
    #[must_use]
    pub fn peer_address(&self) -> Option<std::net::IpAddr> {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().ok().map(|address| address.ip()),
            Self::Local(_) => None,
        }
    }

    /// Address of this end, where it has one.
    #[must_use]
    pub fn own_address(&self) -> Option<std::net::IpAddr> {
        match self {
            Self::Tcp(tcp) => tcp.local_addr().ok().map(|address| address.ip()),
            Self::Local(_) => None,
        }
    }

    /// Where the connection leads, for people.
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
