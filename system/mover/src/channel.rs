//! A connection, with or without TLS, as something to read from and write to.
//!
//! For: both ends of control and data connections, blocking or not. Not for: what is said on them.
//! Fails as sockets do; a TLS peer that is not who it should be is `PermissionDenied`.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_sys::event::{self, Interest};
use rustls::{ClientConfig, ServerConfig};
use socket2::SockRef;

use crate::identity::Fingerprint;
use crate::tls::Tls;
use crate::transport::Transport;

/// A connection that may be under TLS.
#[derive(Debug)]
pub struct Channel {
    transport: Transport,
    tls: Option<Box<Tls>>,
}

impl Channel {
    /// A connection in the clear.
    #[must_use]
    pub fn clear(transport: Transport) -> Self {
        Self { transport, tls: None }
    }

    /// Becomes a TLS client on a blocking transport and finishes the handshake.
    ///
    /// # Errors
    /// When the peer is not the one that `config` accepts, or the connection fails.
    pub fn connect_tls(mut transport: Transport, config: Arc<ClientConfig>) -> io::Result<Self> {
        let tls = Tls::connect(&mut transport, config)?;
        Ok(Self { transport, tls: Some(Box::new(tls)) })
    }

    /// Becomes a TLS server on a blocking transport and finishes the handshake.
    ///
    /// # Errors
    /// When the client cannot, or the connection fails.
    pub fn accept_tls(mut transport: Transport, config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = Tls::accept(&mut transport, config)?;
        Ok(Self { transport, tls: Some(Box::new(tls)) })
    }

    /// The certificate that the peer showed.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.tls.as_ref().and_then(|tls| tls.peer())
    }

    /// Whether TLS protects the connection.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The connection beneath.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Writes two slices as one, whole, on a blocking transport.
    ///
    /// # Errors
    /// When the connection is gone.
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

    /// Says under TLS that nothing more comes, and closes this side's direction.
    pub fn finish_writing(&mut self) {
        if let Some(tls) = &mut self.tls {
            let _ = tls.close(&mut self.transport);
        }
        let _ = SockRef::from(&self.transport).shutdown(Shutdown::Write);
    }

    /// Whether a peer that never sends anything is still there.
    ///
    /// # Errors
    /// When it has closed or lost the connection.
    pub fn check_open(&self) -> io::Result<()> {
        let fds = [(self.transport.as_fd(), Interest::READ)];
        match event::poll(&fds, Some(Duration::ZERO))?[0].any() {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(()),
        }
    }

    /// Whether the connection was shut down at this end or is gone. That the other end sends no more is not enough.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn is_broken(&self) -> io::Result<bool> {
        let fds = [(self.transport.as_fd(), Interest::NONE)];
        Ok(event::poll(&fds, Some(Duration::ZERO))?[0].any())
    }

    /// Whether TLS holds bytes that the socket has not taken.
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
    /// Under TLS on a transport that does not block, bytes are taken even when the socket takes none;
    /// [`Channel::wants_write`] then says so.
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
