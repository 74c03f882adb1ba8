//! A connection, with or without TLS, as something to read from and write to.
//!
//! For: both ends of control and data connections, blocking or not. Not for: what is said on them.
//! Fails as sockets do; a TLS peer that is not who it should be is `PermissionDenied`.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use penstock_protocol::preamble;
use penstock_sys::event::{self, Interest};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use socket2::{SockRef, TcpKeepalive};

use crate::identity::{Fingerprint, peer_fingerprint};

/// Bytes taken from a socket at once under TLS: records are 16 KiB and a system call each would cost
/// more than their decryption.
const TLS_READ_BYTES: usize = 256 * 1024;

/// Plaintext that TLS turns into records before they are written.
const TLS_WRITE_BYTES: usize = 256 * 1024;

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
        socket.set_tcp_user_timeout(Some(dead_after))
    }

    /// Where the connection leads, for people.
    #[must_use]
    pub fn peer(&self) -> String {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().map_or_else(|_| "gone".into(), |a| a.to_string()),
            Self::Local(_) => "local".to_owned(),
        }
    }

    /// Address of the peer, where it has one.
    #[must_use]
    pub fn peer_address(&self) -> Option<std::net::IpAddr> {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().ok().map(|address| address.ip()),
            Self::Local(_) => None,
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

/// A connection that may be under TLS.
#[derive(Debug)]
pub struct Channel {
    transport: Transport,
    tls: Option<Box<Tls>>,
}

#[derive(Debug)]
struct Tls {
    connection: Connection,
    incoming: Incoming,
}

/// Bytes read from the socket and not yet given to TLS.
///
/// TLS takes a few KiB at a time and looks for a whole record after each, so it is asked to look only
/// when a record is whole.
#[derive(Debug)]
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the record at hand that TLS has not been given.
    record_left: usize,
}

impl Incoming {
    /// Bytes before the body of a TLS record, the last two its length (RFC 8446, 5.1).
    const HEADER_BYTES: usize = 5;

    fn new() -> Self {
        Self { bytes: vec![0; TLS_READ_BYTES], start: 0, end: 0, record_left: 0 }
    }

    /// Reads from the socket behind what is there.
    fn fill(&mut self, from: &mut Transport) -> io::Result<usize> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let read = from.read(&mut self.bytes[self.end..])?;
        self.end += read;
        Ok(read)
    }

    /// Makes sure that something of a record is there; zero at the end of the connection.
    fn ready(&mut self, from: &mut Transport) -> io::Result<usize> {
        let wanted = if self.record_left == 0 { Self::HEADER_BYTES } else { 1 };
        while self.end - self.start < wanted {
            if self.fill(from)? == 0 {
                return Ok(0);
            }
        }
        if self.record_left == 0 {
            let length = [self.bytes[self.start + 3], self.bytes[self.start + 4]];
            // What is no TLS record has no length to wait for: TLS is to refuse it at once.
            let is_record = (20..=23).contains(&self.bytes[self.start]);
            let body = if is_record { usize::from(u16::from_be_bytes(length)) } else { 0 };
            self.record_left = Self::HEADER_BYTES + body;
        }
        Ok(self.record_left)
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.end - self.start).min(self.record_left);
        buffer[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        self.record_left -= count;
        Ok(count)
    }
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
    pub fn connect_tls(transport: Transport, config: Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from("penstock").expect("a valid name");
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Self::handshake(transport, connection.into())
    }

    /// Becomes a TLS server on a blocking transport and finishes the handshake.
    ///
    /// # Errors
    /// When the client cannot, or the connection fails.
    pub fn accept_tls(transport: Transport, config: Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Self::handshake(transport, connection.into())
    }

    fn handshake(transport: Transport, mut connection: Connection) -> io::Result<Self> {
        connection.set_buffer_limit(Some(TLS_WRITE_BYTES));
        let incoming = Incoming::new();
        let mut channel = Self { transport, tls: Some(Box::new(Tls { connection, incoming })) };
        let mut first = true;
        while channel.tls.as_ref().is_some_and(|tls| tls.connection.is_handshaking()) {
            channel.flush_tls()?;
            if channel.tls.as_ref().is_some_and(|tls| tls.connection.is_handshaking())
                && channel.fill_tls().map_err(|error| channel.why_no_tls(first, error))? == 0
            {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            first = false;
        }
        channel.flush_tls()?;
        Ok(channel)
    }

    /// What answers a TLS handshake with anything but TLS is another version, or another program.
    fn why_no_tls(&self, first: bool, error: io::Error) -> io::Error {
        let start = self.tls.as_ref().and_then(|tls| tls.incoming.bytes.first_chunk());
        match start.map(preamble::decode) {
            Some(Err(fault)) if first && error.kind() == io::ErrorKind::InvalidData => {
                let is_tls = start.is_some_and(|bytes| (20..=23).contains(&bytes[0]));
                if is_tls { error } else { io::Error::new(io::ErrorKind::InvalidData, fault) }
            }
            _ => error,
        }
    }

    /// The certificate that the peer showed.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.tls.as_ref().and_then(|tls| peer_fingerprint(&tls.connection))
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
        if self.tls.is_some() {
            self.write_all(head)?;
            self.write_all(body)?;
            return self.flush();
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
            tls.connection.send_close_notify();
        }
        let _ = self.flush_tls();
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

    /// Whether TLS holds bytes that the socket has not taken.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection.wants_write())
    }

    fn flush_tls(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.connection.wants_write() {
            match tls.connection.write_tls(&mut self.transport) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives TLS one record from the socket; zero at the end of the connection.
    fn fill_tls(&mut self) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return Ok(0) };
        let mut given = 0;
        loop {
            if tls.incoming.ready(&mut self.transport)? == 0 {
                // Said to TLS too, which knows whether the peer closed properly.
                tls.connection.read_tls(&mut io::empty())?;
                return Ok(0);
            }
            given += tls.connection.read_tls(&mut tls.incoming)?;
            if tls.incoming.record_left == 0 {
                break;
            }
        }
        if let Err(error) = tls.connection.process_new_packets() {
            let _ = self.flush_tls();
            return Err(tls_error(error));
        }
        Ok(given)
    }
}

fn tls_error(error: rustls::Error) -> io::Error {
    let kind = match error {
        rustls::Error::InvalidCertificate(_) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

impl Read for Channel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else { return self.transport.read(buffer) };
            match tls.connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            self.fill_tls()?;
        }
    }
}

impl Write for Channel {
    /// Under TLS on a transport that does not block, bytes are taken even when the socket takes none;
    /// [`Channel::wants_write`] then says so.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.transport.write(bytes) };
        let taken = tls.connection.writer().write(bytes)?;
        match self.flush_tls() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_tls()
    }
}
