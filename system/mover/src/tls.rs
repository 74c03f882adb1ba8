//! TLS 1.3 over a transport: rustls shakes hands and keeps the secrets, records are made and opened here.
//!
//! For: what a [`Channel`](crate::channel::Channel) does under TLS. Not for: who the peer may be (`identity`).
//!
//! rustls takes every record through buffers of its own. Here a record is sealed from the caller's memory into
//! the buffer that is written, and opened from the buffer that was read into the caller's memory, so that
//! nothing is copied. What remains to be done after a handshake is little (RFC 8446, 4.6 and 6): new keys when the
//! peer says so or a key has protected as many records as it may, session tickets to be ignored, alerts.
//! See docs/decisions/0007. A peer that breaks the rules is told by an alert and is `InvalidData`.

mod handshake;
mod incoming;
mod keys;
mod outgoing;
mod record;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::UnbufferedConnectionCommon;
use rustls::{AlertDescription, ClientConfig, ContentType, HandshakeType, ServerConfig};

use crate::identity::{Fingerprint, peer_fingerprint};
use crate::transport::Transport;
use incoming::Incoming;
use keys::Keys;
use outgoing::Outgoing;
use record::{CONTENT_BYTES_MAX, HEADER_BYTES};

/// Most of a message about the connection itself that is put together from records.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Bytes before the body of such a message: kind and length.
const MESSAGE_HEADER_BYTES: usize = 4;

/// The state of one connection under TLS.
#[derive(Debug)]
pub(crate) struct Tls {
    keys: Keys,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Content of the last record that the reader had no room for.
    left: Range<usize>,
    /// The beginning of a message about the connection itself.
    message: Vec<u8>,
    /// The peer has said that nothing more comes.
    closed: bool,
    /// The peer has asked for new keys in this direction.
    owes_update: bool,
    peer: Option<Fingerprint>,
}

impl Tls {
    /// Finishes a handshake as a client.
    ///
    /// # Errors
    /// When the peer is not the one that `config` accepts, or the connection fails.
    pub(crate) fn connect(
        transport: &mut Transport,
        config: Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let name = ServerName::try_from("penstock").expect("a valid name");
        let mut connection =
            UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut incoming = Incoming::new();
        let process = UnbufferedConnectionCommon::<ClientConnectionData>::process_tls_records;
        handshake::run(&mut connection, process, transport, &mut incoming)?;
        let peer = peer_fingerprint(&connection);
        let keys = connection.dangerous_into_kernel_connection().and_then(Keys::client);
        Ok(Self::new(keys.map_err(io::Error::other)?, incoming, peer))
    }

    /// Finishes a handshake as a server.
    ///
    /// # Errors
    /// When the client cannot, or the connection fails.
    pub(crate) fn accept(transport: &mut Transport, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut connection = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        let mut incoming = Incoming::new();
        let process = UnbufferedConnectionCommon::<ServerConnectionData>::process_tls_records;
        handshake::run(&mut connection, process, transport, &mut incoming)?;
        let peer = peer_fingerprint(&connection);
        let keys = connection.dangerous_into_kernel_connection().and_then(Keys::server);
        Ok(Self::new(keys.map_err(io::Error::other)?, incoming, peer))
    }

    fn new(keys: Keys, incoming: Incoming, peer: Option<Fingerprint>) -> Self {
        Self {
            keys,
            incoming,
            outgoing: Outgoing::new(),
            left: 0..0,
            message: Vec::new(),
            closed: false,
            owes_update: false,
            peer,
        }
    }

    /// The certificate that the peer showed.
    pub(crate) fn peer(&self) -> Option<Fingerprint> {
        self.peer
    }

    /// Whether there are bytes that the socket has not taken.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Reads what the next record holds, or as much of it as `buffer` takes; zero when the peer has closed
    /// its direction. Bytes of `buffer` behind those may be overwritten.
    ///
    /// # Errors
    /// When the connection is gone, or what came is not what the peer wrote.
    pub(crate) fn read(&mut self, from: &mut Transport, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.left.is_empty() {
                let count = buffer.len().min(self.left.len());
                let taken = self.left.start..self.left.start + count;
                self.left.start += count;
                buffer[..count].copy_from_slice(self.incoming.kept(taken));
                return Ok(count);
            }
            if self.closed || buffer.is_empty() {
                return Ok(0);
            }
            match self.incoming.record(0) {
                Ok(None) if self.incoming.fill(from)? == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(None) => {}
                Ok(Some(bytes)) => match self.open(bytes, buffer) {
                    Ok(0) => {}
                    Ok(count) => return Ok(count),
                    Err(fault) => return Err(self.fail(from, fault)),
                },
                Err(alert) => return Err(self.fail(from, Fault::Broken(alert))),
            }
        }
    }

    /// Opens the record of `bytes` at hand; how many bytes of data it put into `buffer`.
    fn open(&mut self, bytes: usize, buffer: &mut [u8]) -> Result<usize, Fault> {
        let (header, body) = self.incoming.first(bytes).split_at_mut(HEADER_BYTES);
        if ContentType::from(header[0]) != ContentType::ApplicationData {
            return Err(Fault::Broken(AlertDescription::UnexpectedMessage));
        }
        let fits = body.len() <= buffer.len();
        let opened = if fits {
            self.keys.receiving.open_into(header, body, buffer)
        } else {
            self.keys.receiving.open_in_place(header, body)
        };
        let opened = opened.map_err(Fault::Broken)?;
        let content = self.incoming.consume(bytes).start + HEADER_BYTES;
        let content = content..content + opened.bytes;
        match opened.kind {
            ContentType::ApplicationData if !self.message.is_empty() => {
                Err(Fault::Broken(AlertDescription::UnexpectedMessage))
            }
            ContentType::ApplicationData if fits => Ok(opened.bytes),
            ContentType::ApplicationData => {
                self.left = content;
                Ok(0)
            }
            kind => {
                let content =
                    if fits { &buffer[..opened.bytes] } else { self.incoming.kept(content) };
                let content = content.to_vec();
                self.take_notice(kind, &content).map(|()| 0)
            }
        }
    }

    /// Takes what the peer says about the connection itself.
    fn take_notice(&mut self, kind: ContentType, content: &[u8]) -> Result<(), Fault> {
        let unexpected = Err(Fault::Broken(AlertDescription::UnexpectedMessage));
        match kind {
            ContentType::Handshake if content.is_empty() => unexpected,
            ContentType::Handshake => self.take_messages(content),
            ContentType::Alert if self.message.is_empty() => {
                let [_, alert] = content else {
                    return Err(Fault::Broken(AlertDescription::DecodeError));
                };
                match AlertDescription::from(*alert) {
                    AlertDescription::CloseNotify => self.closed = true,
                    AlertDescription::UserCanceled => {}
                    alert => return Err(Fault::Told(alert)),
                }
                Ok(())
            }
            _ => unexpected,
        }
    }

    /// Puts messages together and takes those that are whole.
    fn take_messages(&mut self, content: &[u8]) -> Result<(), Fault> {
        self.message.extend_from_slice(content);
        while let Some(header) = self.message.first_chunk::<MESSAGE_HEADER_BYTES>() {
            let body = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
            let whole = MESSAGE_HEADER_BYTES + body;
            if whole > MESSAGE_BYTES_MAX {
                return Err(Fault::Broken(AlertDescription::DecodeError));
            }
            if whole > self.message.len() {
                break;
            }
            let message: Vec<u8> = self.message.drain(..whole).collect();
            match (HandshakeType::from(message[0]), &message[MESSAGE_HEADER_BYTES..]) {
                (HandshakeType::NewSessionTicket, _) => {}
                // Nothing may stand between it and the first record under the new key.
                (HandshakeType::KeyUpdate, [wish @ (0 | 1)]) if self.message.is_empty() => {
                    self.owes_update |= *wish == 1;
                    let updated = self.keys.update_receiving();
                    updated.map_err(|_| Fault::Broken(AlertDescription::InternalError))?;
                }
                (HandshakeType::KeyUpdate, [0 | 1]) | (_, _) => {
                    return Err(Fault::Broken(AlertDescription::UnexpectedMessage));
                }
            }
        }
        Ok(())
    }

    /// Tells the peer why no more is read from it, and the caller too.
    fn fail(&mut self, transport: &mut Transport, fault: Fault) -> io::Error {
        const FATAL: u8 = 2;
        let text = match fault {
            Fault::Told(alert) => format!("the peer ended TLS ({alert:?})"),
            Fault::Broken(alert) => {
                // The reason for it counts, not whether it was heard.
                let _ = self.flush(transport).and_then(|()| {
                    self.notify(ContentType::Alert, &[FATAL, u8::from(alert)]);
                    self.flush(transport)
                });
                format!("what came is not what the peer wrote under TLS ({alert:?})")
            }
        };
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    fn notify(&mut self, kind: ContentType, content: &[u8]) {
        self.outgoing.push(&mut self.keys.sending, kind, content);
    }

    /// Seals as many of `bytes` as there is room for.
    fn seal(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        for part in bytes.chunks(CONTENT_BYTES_MAX) {
            if !self.outgoing.has_room(part.len()) {
                break;
            }
            if self.owes_update || self.keys.sending_is_old() {
                // The other direction's key is its sender's affair.
                const NOT_REQUESTED: u8 = 0;
                let message = [u8::from(HandshakeType::KeyUpdate), 0, 0, 1, NOT_REQUESTED];
                self.notify(ContentType::Handshake, &message);
                self.keys.update_sending().map_err(io::Error::other)?;
                self.owes_update = false;
            }
            self.outgoing.push(&mut self.keys.sending, ContentType::ApplicationData, part);
            taken += part.len();
        }
        Ok(taken)
    }

    /// Takes as many of `bytes` as there is room for, and writes what the socket takes.
    ///
    /// # Errors
    /// When the connection is gone, or `WouldBlock` when nothing was taken.
    pub(crate) fn write(&mut self, to: &mut Transport, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let taken = self.seal(bytes)?;
            match self.flush(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => {
                    return Ok(taken);
                }
                Err(error) => return Err(error),
                Ok(()) if taken > 0 || bytes.is_empty() => return Ok(taken),
                Ok(()) => {}
            }
        }
    }

    /// Takes all of `bytes`, on a blocking transport; the last of it may wait for a [`Tls::flush`].
    ///
    /// # Errors
    /// When the connection is gone.
    pub(crate) fn write_all(&mut self, to: &mut Transport, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.seal(bytes)?;
            bytes = &bytes[taken..];
            if !bytes.is_empty() {
                self.flush(to)?;
            }
        }
        Ok(())
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// As the socket does.
    pub(crate) fn flush(&mut self, to: &mut Transport) -> io::Result<()> {
        self.outgoing.flush(to)
    }

    /// Says that nothing more comes.
    ///
    /// # Errors
    /// When the connection is gone.
    pub(crate) fn close(&mut self, to: &mut Transport) -> io::Result<()> {
        const WARNING: u8 = 1;
        self.flush(to)?;
        self.notify(ContentType::Alert, &[WARNING, u8::from(AlertDescription::CloseNotify)]);
        self.flush(to)
    }
}

/// Why nothing more is read.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The peer broke the rules, and is to be told so.
    Broken(AlertDescription),
    /// The peer says that we did, or goes.
    Told(AlertDescription),
}

#[cfg(test)]
mod tests;
