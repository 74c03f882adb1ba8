//! TLS 1.3 over a transport: rustls performs the handshake and holds the secrets; records are sealed
//! and opened here.
//!
//! Used by [`Channel`](crate::net::channel::Channel) under TLS; peer authentication is in `identity`.
//!
//! rustls copies every record through buffers of its own. Here a record is sealed from the caller's
//! memory into the buffer that is written, and opened from the buffer that was read into the caller's
//! memory, without copies by aws-lc, with one within the cache by ring ([`cipher`]). Little remains after a handshake (RFC 8446, 4.6 and 6): key updates,
//! requested by the peer or due after the record limit of a key, ignored session tickets, and alerts.
//! See docs/decisions/0007. A peer that violates the protocol receives an alert and gives
//! `InvalidData`.

mod cipher;
mod handshake;
mod incoming;
mod keys;
mod outgoing;
mod record;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use penstock_identity::{Fingerprint, peer_fingerprint};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::UnbufferedConnectionCommon;
use rustls::{AlertDescription, ClientConfig, ContentType, HandshakeType, ServerConfig};

use crate::net::transport::Transport;
use incoming::RecordBuffer;
use keys::TrafficKeys;
use outgoing::SendBuffer;
use record::{CONTENT_BYTES_MAX, HEADER_BYTES};

/// Limit of a handshake message reassembled from records, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Header of a handshake message: type and length.
const MESSAGE_HEADER_BYTES: usize = 4;

/// TLS state of one connection.
#[derive(Debug)]
pub(crate) struct Tls {
    keys: TrafficKeys,
    incoming: RecordBuffer,
    outgoing: SendBuffer,
    /// Content of the last record that did not fit into the reader's buffer.
    left: Range<usize>,
    /// Partially received handshake message.
    message: Vec<u8>,
    /// Set when the peer has closed its direction.
    closed: bool,
    /// Set when the peer requested a key update of this direction.
    owes_update: bool,
    peer: Option<Fingerprint>,
}

impl Tls {
    /// Performs a handshake as a client.
    ///
    /// # Errors
    /// If `config` rejects the peer, or the connection fails.
    pub(crate) fn connect(
        transport: &mut Transport,
        config: Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let name = ServerName::try_from("penstock").expect("a valid name");
        let mut connection =
            UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut incoming = RecordBuffer::new();
        let process = UnbufferedConnectionCommon::<ClientConnectionData>::process_tls_records;
        handshake::run(&mut connection, process, transport, &mut incoming)?;
        let peer = peer_fingerprint(&connection);
        let keys = connection.dangerous_into_kernel_connection().and_then(TrafficKeys::client);
        Ok(Self::new(keys.map_err(io::Error::other)?, incoming, peer))
    }

    /// Performs a handshake as a server.
    ///
    /// # Errors
    /// If the handshake or the connection fails.
    pub(crate) fn accept(transport: &mut Transport, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut connection = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        let mut incoming = RecordBuffer::new();
        let process = UnbufferedConnectionCommon::<ServerConnectionData>::process_tls_records;
        handshake::run(&mut connection, process, transport, &mut incoming)?;
        let peer = peer_fingerprint(&connection);
        let keys = connection.dangerous_into_kernel_connection().and_then(TrafficKeys::server);
        Ok(Self::new(keys.map_err(io::Error::other)?, incoming, peer))
    }

    fn new(keys: TrafficKeys, incoming: RecordBuffer, peer: Option<Fingerprint>) -> Self {
        Self {
            keys,
            incoming,
            outgoing: SendBuffer::new(),
            left: 0..0,
            message: Vec::new(),
            closed: false,
            owes_update: false,
            peer,
        }
    }

    /// Fingerprint of the peer's certificate, if it presented one.
    pub(crate) fn peer(&self) -> Option<Fingerprint> {
        self.peer
    }

    /// True if bytes wait for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Reads the content of the next record, or as much as fits into `buffer`; zero when the peer has
    /// closed its direction. The rest of `buffer` may be overwritten.
    ///
    /// # Errors
    /// If the connection is lost, or a record fails its integrity check.
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
                Err(alert) => return Err(self.fail(from, TlsFault::Violation(alert))),
            }
        }
    }

    /// Opens the next record, of `bytes`; returns the data bytes put into `buffer`.
    fn open(&mut self, bytes: usize, buffer: &mut [u8]) -> Result<usize, TlsFault> {
        let (header, body) = self.incoming.first(bytes).split_at_mut(HEADER_BYTES);
        if ContentType::from(header[0]) != ContentType::ApplicationData {
            return Err(TlsFault::Violation(AlertDescription::UnexpectedMessage));
        }
        let fits = body.len() <= buffer.len();
        let opened = if fits {
            self.keys.receiving.open_into(header, body, buffer)
        } else {
            self.keys.receiving.open_in_place(header, body)
        };
        let opened = opened.map_err(TlsFault::Violation)?;
        let content = self.incoming.consume(bytes).start + HEADER_BYTES;
        let content = content..content + opened.bytes;
        match opened.kind {
            ContentType::ApplicationData if !self.message.is_empty() => {
                Err(TlsFault::Violation(AlertDescription::UnexpectedMessage))
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
                self.on_control_record(kind, &content).map(|()| 0)
            }
        }
    }

    /// Handles a record of a type other than application data.
    fn on_control_record(&mut self, kind: ContentType, content: &[u8]) -> Result<(), TlsFault> {
        let unexpected = Err(TlsFault::Violation(AlertDescription::UnexpectedMessage));
        match kind {
            ContentType::Handshake if content.is_empty() => unexpected,
            ContentType::Handshake => self.on_handshake_content(content),
            ContentType::Alert if self.message.is_empty() => {
                let [_, alert] = content else {
                    return Err(TlsFault::Violation(AlertDescription::DecodeError));
                };
                match AlertDescription::from(*alert) {
                    AlertDescription::CloseNotify => self.closed = true,
                    AlertDescription::UserCanceled => {}
                    alert => return Err(TlsFault::PeerAlert(alert)),
                }
                Ok(())
            }
            _ => unexpected,
        }
    }

    /// Reassembles handshake messages and handles the complete ones.
    fn on_handshake_content(&mut self, content: &[u8]) -> Result<(), TlsFault> {
        self.message.extend_from_slice(content);
        while let Some(header) = self.message.first_chunk::<MESSAGE_HEADER_BYTES>() {
            let body = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
            let whole = MESSAGE_HEADER_BYTES + body;
            if whole > MESSAGE_BYTES_MAX {
                return Err(TlsFault::Violation(AlertDescription::DecodeError));
            }
            if whole > self.message.len() {
                break;
            }
            let message: Vec<u8> = self.message.drain(..whole).collect();
            match (HandshakeType::from(message[0]), &message[MESSAGE_HEADER_BYTES..]) {
                (HandshakeType::NewSessionTicket, _) => {}
                // No data may stand between it and the first record under the new key.
                (HandshakeType::KeyUpdate, [wish @ (0 | 1)]) if self.message.is_empty() => {
                    self.owes_update |= *wish == 1;
                    let updated = self.keys.update_receiving();
                    updated.map_err(|_| TlsFault::Violation(AlertDescription::InternalError))?;
                }
                (HandshakeType::KeyUpdate, [0 | 1]) | (_, _) => {
                    return Err(TlsFault::Violation(AlertDescription::UnexpectedMessage));
                }
            }
        }
        Ok(())
    }

    /// Sends the alert to the peer and returns the error for the caller.
    fn fail(&mut self, transport: &mut Transport, fault: TlsFault) -> io::Error {
        const ALERT_LEVEL_FATAL: u8 = 2;
        let text = match fault {
            TlsFault::PeerAlert(alert) => format!("the peer ended TLS ({alert:?})"),
            TlsFault::Violation(alert) => {
                // The cause counts, not whether the alert arrived.
                let _ = self.flush(transport).and_then(|()| {
                    self.notify(ContentType::Alert, &[ALERT_LEVEL_FATAL, u8::from(alert)]);
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

    /// Seals as many of `bytes` as fit.
    fn seal(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        for part in bytes.chunks(CONTENT_BYTES_MAX) {
            if !self.outgoing.has_room(part.len()) {
                break;
            }
            if self.owes_update || self.keys.sending_is_old() {
                // The peer updates the key of the other direction itself.
                const UPDATE_NOT_REQUESTED: u8 = 0;
                let message = [u8::from(HandshakeType::KeyUpdate), 0, 0, 1, UPDATE_NOT_REQUESTED];
                self.notify(ContentType::Handshake, &message);
                self.keys.update_sending().map_err(io::Error::other)?;
                self.owes_update = false;
            }
            self.outgoing.push(&mut self.keys.sending, ContentType::ApplicationData, part);
            taken += part.len();
        }
        Ok(taken)
    }

    /// Accepts as many of `bytes` as fit, and writes what the socket accepts.
    ///
    /// # Errors
    /// If the connection is lost, or `WouldBlock` if nothing was accepted.
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

    /// Accepts all of `bytes` on a blocking transport; the last of them may need a [`Tls::flush`].
    ///
    /// # Errors
    /// If the connection is lost.
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

    /// Writes all buffered records to the socket.
    ///
    /// # Errors
    /// Errors of the socket.
    pub(crate) fn flush(&mut self, to: &mut Transport) -> io::Result<()> {
        self.outgoing.flush(to)
    }

    /// Sends the close_notify alert.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(crate) fn close(&mut self, to: &mut Transport) -> io::Result<()> {
        const ALERT_LEVEL_WARNING: u8 = 1;
        self.flush(to)?;
        self.notify(
            ContentType::Alert,
            &[ALERT_LEVEL_WARNING, u8::from(AlertDescription::CloseNotify)],
        );
        self.flush(to)
    }
}

/// Fatal condition of the receiving direction.
#[derive(Debug, Clone, Copy)]
enum TlsFault {
    /// The peer violated the protocol; this alert is sent.
    Violation(AlertDescription),
    /// The peer sent this alert.
    PeerAlert(AlertDescription),
}

#[cfg(test)]
mod tests;
