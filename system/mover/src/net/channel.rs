//! Byte stream over a connection, with or without TLS, or by RDMA beside it.
//!
//! Used by both ends of control and data connections, blocking or not. Errors are those of sockets; a
//! TLS peer with an unexpected certificate gives `PermissionDenied`.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_identity::Fingerprint;
use penstock_rdma::stream::BlockPart;
use penstock_sys::buffer::Buffer;
use penstock_sys::event::{self, Interest};
use rustls::{ClientConfig, ServerConfig};
use socket2::SockRef;

use crate::net::rdma::RdmaStream;
use crate::net::tls::Tls;
use crate::net::transport::Transport;

/// Connection with optional TLS, or with a queue pair that carries the bytes.
#[derive(Debug)]
pub struct Channel {
    transport: Transport,
    tls: Option<Box<Tls>>,
    rdma: Option<Box<RdmaStream>>,
}

impl Channel {
    /// Creates a channel without TLS.
    #[must_use]
    pub fn clear(transport: Transport) -> Self {
        Self { transport, tls: None, rdma: None }
    }

    /// Performs the TLS handshake as a client on a blocking transport.
    ///
    /// # Errors
    /// If `config` rejects the peer, or the connection fails.
    pub fn connect_tls(mut transport: Transport, config: Arc<ClientConfig>) -> io::Result<Self> {
        let tls = Tls::connect(&mut transport, config)?;
        Ok(Self { transport, tls: Some(Box::new(tls)), rdma: None })
    }

    /// Performs the TLS handshake as a server on a blocking transport.
    ///
    /// # Errors
    /// If the handshake or the connection fails.
    pub fn accept_tls(mut transport: Transport, config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = Tls::accept(&mut transport, config)?;
        Ok(Self { transport, tls: Some(Box::new(tls)), rdma: None })
    }

    /// Lets `agree` connect a queue pair on a transport without TLS, which carries all bytes from now on.
    ///
    /// # Errors
    /// Those of `agree`.
    pub(crate) fn upgrade<E>(
        &mut self,
        agree: impl FnOnce(&mut Transport) -> Result<RdmaStream, E>,
    ) -> Result<(), E> {
        debug_assert!(self.tls.is_none(), "RDMA does not encrypt");
        self.rdma = Some(Box::new(agree(&mut self.transport)?));
        Ok(())
    }

    /// Name of this end's device, if RDMA carries its bytes.
    pub(crate) fn rdma_device(&self) -> Option<&str> {
        self.rdma.as_ref().map(|rdma| rdma.device())
    }

    /// True if RDMA carries its bytes.
    #[must_use]
    pub fn is_rdma(&self) -> bool {
        self.rdma.is_some()
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
        if self.rdma.is_some() {
            // RDMA sends from blocks.
            return Err(io::ErrorKind::Unsupported.into());
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

    /// Writes `head` and a part of a block completely by RDMA.
    ///
    /// # Errors
    /// If the connection is lost, or carries no RDMA.
    pub(crate) fn write_block(
        &mut self,
        head: &[u8],
        part: Option<BlockPart<'_, Buffer>>,
    ) -> io::Result<()> {
        match &mut self.rdma {
            Some(rdma) => rdma.write(&self.transport, head, part),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Completes a stream that this end sends by RDMA: all of it is in the peer's memory.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        match &mut self.rdma {
            Some(rdma) => rdma.finish(&mut self.transport),
            None => Ok(()),
        }
    }

    /// Waits a short time for the end of a stream whose last frame arrived by RDMA.
    pub(crate) fn await_close(&self) {
        if let Some(rdma) = &self.rdma {
            rdma.await_close(&self.transport);
        }
    }

    /// Looks for a failure of the queue pair, if it has one.
    ///
    /// # Errors
    /// If the queue pair has failed.
    pub(crate) fn check_rdma(&mut self) -> io::Result<()> {
        self.rdma.as_mut().map_or(Ok(()), |rdma| rdma.check())
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
        match (&mut self.tls, &mut self.rdma) {
            (Some(tls), _) => tls.read(&mut self.transport, buffer),
            (None, Some(rdma)) => rdma.read(&mut self.transport, buffer),
            (None, None) => self.transport.read(buffer),
        }
    }
}

impl Write for Channel {
    /// Under TLS on a nonblocking transport, accepts bytes even if the socket does not;
    /// [`Channel::wants_write`] is then true.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (&mut self.tls, &mut self.rdma) {
            (Some(tls), _) => tls.write(&mut self.transport, bytes),
            (None, Some(_)) => Err(io::ErrorKind::Unsupported.into()),
            (None, None) => self.transport.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.flush(&mut self.transport),
            None => Ok(()),
        }
    }
}
