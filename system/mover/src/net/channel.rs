//! Byte stream over a connection, with or without TLS.
//!
//! Used by both ends of control and data connections, blocking or not. Errors are those of sockets; a
//! TLS peer with an unexpected certificate gives `PermissionDenied`.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_identity::Fingerprint;
use penstock_sys::event::{self, Interest};
use rustls::{ClientConfig, ServerConfig};
use socket2::SockRef;

use crate::net::tls::Tls;
use crate::net::transport::Transport;

/// Connection with optional TLS.
#[derive(Debug)]
pub struct Channel {
    transport: Transport,
    tls: Option<Box<Tls>>,
}

impl Channel {
    /// Creates a channel without TLS.
    #[must_use]
    pub fn clear(transport: Transport) -> Self {
        Self { transport, tls: None }
    }

    /// Performs the TLS handshake as a client on a blocking transport.
    ///
    /// # Errors
    /// If `config` rejects the peer, or the connection fails.
    pub fn connect_tls(mut transport: Transport, config: Arc<ClientConfig>) -> io::Result<Self> {
        let tls = Tls::connect(&mut transport, config)?;
        Ok(Self { transport, tls: Some(Box::new(tls)) })
    }

    /// Performs the TLS handshake as a server on a blocking transport.
    ///
    /// # Errors
    /// If the handshake or the connection fails.
    pub fn accept_tls(mut transport: Transport, config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = Tls::accept(&mut transport, config)?;
        Ok(Self { transport, tls: Some(Box::new(tls)) })
    }

    /// Fingerprint of the peer's certificate, if it presented one.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.tls.as_ref().and_then(|tls| tls.peer())
    }

    /// True if TLS protects the connection.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Transport beneath TLS, if any.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Writes two slices completely, in one system call if possible, on a blocking transport.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn write_two(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.write_all(&mut self.transport, head)?;
            tls.write_all(&mut self.transport, body)?;
            return tls.flush(&mut self.transport);
        }
        let mut sent = 0;
        while sent < head.len() {
            let slices = [IoSlice::new(&head[sent..]), IoSlice::new(body)];
            match self.transport.write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.transport.write_all(&body[sent - head.len()..])
    }

    /// Sends the TLS close alert, if any, and shuts down the write direction.
    pub fn finish_writing(&mut self) {
        if let Some(tls) = &mut self.tls {
            let _ = tls.close(&mut self.transport);
        }
        let _ = SockRef::from(&self.transport).shutdown(Shutdown::Write);
    }

    /// Checks that a peer that never sends data is still connected.
    ///
    /// # Errors
    /// If the peer has closed or lost the connection.
    pub fn check_open(&self) -> io::Result<()> {
        let fds = [(self.transport.as_fd(), Interest::READ)];
        match event::poll(&fds, Some(Duration::ZERO))?[0].any() {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(()),
        }
    }

    /// True if the connection was shut down at this end or is lost. A peer that only stopped sending
    /// does not count.
    ///
    /// # Errors
    /// If the socket cannot be polled.
    pub fn is_broken(&self) -> io::Result<bool> {
        let fds = [(self.transport.as_fd(), Interest::NONE)];
        Ok(event::poll(&fds, Some(Duration::ZERO))?[0].any())
    }

    /// True if TLS holds bytes that the socket has not accepted.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}

impl Read for Channel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.read(&mut self.transport, buffer),
            None => self.transport.read(buffer),
        }
    }
}

impl Write for Channel {
    /// Under TLS on a nonblocking transport, accepts bytes even if the socket does not;
    /// [`Channel::wants_write`] is then true.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.write(&mut self.transport, bytes),
            None => self.transport.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.flush(&mut self.transport),
            None => Ok(()),
        }
    }
}
