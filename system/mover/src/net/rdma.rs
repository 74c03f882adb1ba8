//! Data streams over RDMA: agreement of both ends on the stream's TCP connection, then a stream of bytes beside it.
//!
//! After a connection of kind `RdmaData` has joined, its acceptor sends a text: empty if it has an adapter for the
//! connection, else the reason why not. Both ends exchange offers and connect their queue pairs
//! ([`penstock_rdma::connection`]). The sender of the data then probes the path and sends its own text: empty if the probe
//! was answered. From there on frames travel by RDMA, and the TCP connection closes when the other end is gone: the sender
//! writes nothing to it but, at the end of the stream, the number of the stream's bytes.
//!
//! Blocks are sent from their buffers. A receiving stream has memory of its own for slots. It is deregistered after its
//! queue pair is destroyed, so that no late write reaches memory in other use.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use penstock_protocol::block::{HEADER_BYTES, SEAL_BYTES};
use penstock_rdma::connection::{ConnectionPart, ConnectionSettings, PreparedConnection};
use penstock_rdma::sending_domains::SendingDomains;
use penstock_rdma::stream::{BlockPart, SlotRead, SlotReader, SlotWriter};
use penstock_rdma::{RdmaAdapter, RdmaConnection, RdmaFailure};
use penstock_sys::buffer::Buffer;
use penstock_sys::event::{self, Interest};
use penstock_sys::net::TcpInfo;
use penstock_units::Dscp;

use crate::base::timeouts::PEER_TIMEOUT;
use crate::net::handshake::random;
use crate::net::transport::Transport;

/// Bytes of a slot: a quarter of the largest part of a frame that is written at once, and its header.
const SLOT_BYTES: u32 = (256 << 10) + 4096;
/// Bytes of a message that do not come from a block: the header of a frame and its seal.
const HEAD_BYTES: u32 = (HEADER_BYTES + SEAL_BYTES) as u32;
/// Least memory of a stream's messages in flight.
const STREAM_MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Most memory of a stream's messages in flight.
const STREAM_MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Longest text of the other end in bytes.
const TEXT_BYTES_MAX: u16 = 1024;
/// Time for the sender's last word after the last frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Headers of IP and TCP that the segment size leaves out.
const TCP_HEADER_BYTES: u32 = 40;

/// Reason why a stream is not over RDMA.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RdmaStreamError {
    /// The connection or its join failed, as without RDMA.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The connection carries no RDMA.
    #[error(
        "RDMA needs a TCP connection between the hosts, and this one is inside another program"
    )]
    Inside,
    /// The copy is to be encrypted, and the operator allows no exception for the peer's address.
    #[error(
        "RDMA does not encrypt, full protection was asked for, and unencrypted in [rdma] does not have {0}"
    )]
    Cleartext(IpAddr),
    /// Failure of RDMA at this end.
    #[error(transparent)]
    Here(#[from] RdmaFailure),
    /// Failure of RDMA at the other end, as it states.
    #[error("at the other end: {0}")]
    There(String),
}

impl RdmaStreamError {
    /// True if the other end went away, which may have nothing to do with RDMA.
    pub(crate) const fn is_loss(&self) -> bool {
        matches!(self, Self::Here(RdmaFailure::PeerClosed | RdmaFailure::Exchange(_)))
    }
}

/// Blocks that one end sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentBlocks<'a> {
    /// Domains in which they are registered.
    pub(crate) domains: &'a SendingDomains,
    /// Bytes of all blocks of the session.
    pub(crate) memory_bytes: u64,
}

/// Settings of one end of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RdmaStreamSettings<'a> {
    /// Blocks of the end that sends data; the other has none.
    pub(crate) sends: Option<SentBlocks<'a>>,
    /// Bytes of messages in flight, which the receiver has memory for.
    pub(crate) memory_bytes: u64,
    /// IPv6 flow label of its packets; 0 for none.
    pub(crate) flow_label: u32,
    /// DSCP of its packets.
    pub(crate) dscp: Dscp,
}

/// Name of the transports that carried the streams of a transfer; empty without a stream.
pub(crate) const fn transport_name(by_rdma: bool, by_tcp: bool) -> &'static str {
    match (by_rdma, by_tcp) {
        (false, false) => "",
        (false, true) => "tcp",
        (true, false) => "rdma",
        (true, true) => "mixed",
    }
}

/// Bytes of messages in flight on each of `streams` streams of a session with so many bytes of blocks.
#[must_use]
pub(crate) fn stream_memory_bytes(session_bytes: u64, streams: u16) -> u64 {
    let share = session_bytes / u64::from(streams.max(1));
    share.clamp(STREAM_MEMORY_BYTES_MIN, STREAM_MEMORY_BYTES_MAX)
}

/// Finds the adapter that has this end's address of a connection.
///
/// # Errors
/// The reason why there is none, with the remedy.
pub(crate) fn adapter_of(transport: &Transport) -> Result<RdmaAdapter, RdmaStreamError> {
    let Transport::Tcp(tcp) = transport else { return Err(RdmaStreamError::Inside) };
    let address: SocketAddr = tcp.local_addr()?;
    Ok(RdmaAdapter::for_address(address)?)
}

/// Agrees on RDMA as the connector of a stream that has joined.
///
/// # Errors
/// [`RdmaStreamError`]; the connection is of no use then.
pub(crate) fn connect(
    transport: &mut Transport,
    adapter: &RdmaAdapter,
    settings: RdmaStreamSettings<'_>,
) -> Result<RdmaStream, RdmaStreamError> {
    expect_agreement(transport)?;
    let prepared = prepare(transport, adapter, settings)?;
    RdmaStream::open(transport, prepared, settings)
}

/// Agrees on RDMA as the acceptor of a stream that has joined.
///
/// # Errors
/// [`RdmaStreamError`]; the connection is of no use then.
pub(crate) fn accept(
    transport: &mut Transport,
    settings: RdmaStreamSettings<'_>,
) -> Result<RdmaStream, RdmaStreamError> {
    let prepared = adapter_of(transport).and_then(|adapter| prepare(transport, &adapter, settings));
    send_text(transport, prepared.as_ref().err())?;
    RdmaStream::open(transport, prepared?, settings)
}

/// Registers the memory of a stream and creates its queue pair.
fn prepare(
    transport: &Transport,
    adapter: &RdmaAdapter,
    settings: RdmaStreamSettings<'_>,
) -> Result<PreparedConnection, RdmaStreamError> {
    let info = TcpInfo::of(transport).ok();
    let slots = settings.memory_bytes / u64::from(SLOT_BYTES);
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let depth = slots.min(adapter.limits().work_requests / 2).max(1);
    let connection = ConnectionSettings {
        part: match settings.sends {
            Some(_) => ConnectionPart::Initiator,
            None => ConnectionPart::WriteTarget,
        },
        depth,
        message_bytes: SLOT_BYTES,
        head_bytes: Some(HEAD_BYTES),
        distinct_slots: depth,
        round_trip: info.as_ref().map_or(Duration::ZERO, round_trip_of),
        ip_mtu: info.map(|info| info.snd_mss + TCP_HEADER_BYTES),
        traffic_class: settings.dscp.traffic_class(),
        flow_label: settings.flow_label,
        sequence: u32::from_be_bytes(random()),
    };
    Ok(match settings.sends {
        Some(blocks) => blocks.domains.prepare(adapter, &connection, blocks.memory_bytes)?,
        None => PreparedConnection::new(adapter, &connection)?,
    })
}

fn round_trip_of(info: &TcpInfo) -> Duration {
    Duration::from_micros(info.rtt_us.into())
}

/// Sends the reason of a failure, or an empty text.
fn send_text(transport: &mut Transport, failure: Option<&RdmaStreamError>) -> io::Result<()> {
    let mut text = failure.map(ToString::to_string).unwrap_or_default();
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX.into()));
    let length = u16::try_from(text.len()).unwrap_or(TEXT_BYTES_MAX);
    transport.write_all(&[&length.to_be_bytes()[..], text.as_bytes()].concat())
}

/// Reads the text of the other end, which is a failure unless it is empty.
fn expect_agreement(transport: &mut Transport) -> Result<(), RdmaStreamError> {
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => RdmaFailure::PeerClosed,
        _ => RdmaFailure::Exchange(error),
    };
    let mut length = [0; 2];
    transport.read_exact(&mut length).map_err(lost)?;
    let length = u16::from_be_bytes(length);
    if length > TEXT_BYTES_MAX {
        let text = "it answers a request for RDMA with something else";
        return Err(RdmaStreamError::There(text.to_owned()));
    }
    let mut text = vec![0; length.into()];
    transport.read_exact(&mut text).map_err(lost)?;
    match String::from_utf8_lossy(&text).escape_debug().to_string() {
        text if text.is_empty() => Ok(()),
        text => Err(RdmaStreamError::There(text)),
    }
}

/// Bytes of a stream in one direction over a queue pair.
#[derive(Debug)]
pub(crate) struct RdmaStream {
    device: String,
    end: RdmaDirection,
}

#[derive(Debug)]
enum RdmaDirection {
    Sender(SlotWriter<RdmaConnection>),
    Receiver(RdmaReceiver),
}

#[derive(Debug)]
struct RdmaReceiver {
    reader: SlotReader<RdmaConnection>,
    /// Bytes of the whole stream, once the sender has stated them.
    total_bytes: Option<u64>,
    /// Time of the last message, or of the statement.
    last_heard: Instant,
}

impl RdmaStream {
    fn open(
        transport: &mut Transport,
        prepared: PreparedConnection,
        settings: RdmaStreamSettings<'_>,
    ) -> Result<Self, RdmaStreamError> {
        let connection = prepared.connect(transport)?;
        let depth = connection.depth();
        let device = connection.device().to_owned();
        let end = if settings.sends.is_some() {
            let round_trip =
                TcpInfo::of(&*transport).as_ref().map_or(Duration::ZERO, round_trip_of);
            let probed = connection.probe(false, round_trip, transport.as_fd());
            let probed = probed.map_err(RdmaStreamError::from);
            send_text(transport, probed.as_ref().err())?;
            probed?;
            let slots = connection.peer().slots;
            RdmaDirection::Sender(SlotWriter::new(connection, slots, depth))
        } else {
            expect_agreement(transport)?;
            RdmaDirection::Receiver(RdmaReceiver {
                reader: SlotReader::new(connection, depth),
                total_bytes: None,
                last_heard: Instant::now(),
            })
        };
        Ok(Self { device, end })
    }

    /// Name of the device at this end.
    #[must_use]
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Writes `head` and a part of a block completely.
    ///
    /// # Errors
    /// If the queue pair fails or the other end closes the connection.
    pub(crate) fn write(
        &mut self,
        transport: &Transport,
        head: &[u8],
        part: Option<BlockPart<'_, Buffer>>,
    ) -> io::Result<()> {
        let RdmaDirection::Sender(writer) = &mut self.end else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        writer.write(head, part, transport.as_fd()).map_err(broken)
    }

    /// Reads at least one byte; 0 at the end of the stream.
    ///
    /// # Errors
    /// If the queue pair fails, or the connection ends before the stream.
    pub(crate) fn read(
        &mut self,
        transport: &mut Transport,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let RdmaDirection::Receiver(end) = &mut self.end else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        loop {
            if buffer.is_empty() || end.total_bytes == Some(end.reader.read_bytes()) {
                return Ok(0);
            }
            let socket = end.total_bytes.is_none().then(|| transport.as_fd());
            match end.reader.read(buffer, socket).map_err(broken)? {
                SlotRead::Bytes(count) => {
                    end.last_heard = Instant::now();
                    return Ok(count);
                }
                SlotRead::SocketReady => {
                    let mut total = [0; 8];
                    transport.read_exact(&mut total)?;
                    end.total_bytes = Some(u64::from_be_bytes(total));
                    end.last_heard = Instant::now();
                }
                SlotRead::Idle if end.total_bytes.is_none() => {}
                SlotRead::Idle => {
                    let fds = [(transport.as_fd(), Interest::NONE)];
                    let is_broken = event::poll(&fds, Some(Duration::ZERO))?[0].any();
                    if is_broken || end.last_heard.elapsed() > PEER_TIMEOUT {
                        return Err(broken(RdmaFailure::PeerClosed));
                    }
                }
            }
        }
    }

    /// Looks for a failure of the queue pair at the sending end, without waiting.
    ///
    /// # Errors
    /// If it has failed.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match &mut self.end {
            RdmaDirection::Sender(writer) => writer.check().map_err(broken),
            RdmaDirection::Receiver(_) => Ok(()),
        }
    }

    /// Waits until the other end's memory has all messages, and states the bytes of the whole stream.
    ///
    /// # Errors
    /// If the queue pair or the connection fails.
    pub(crate) fn finish(&mut self, transport: &mut Transport) -> io::Result<()> {
        let RdmaDirection::Sender(writer) = &mut self.end else { return Ok(()) };
        writer.drain(transport.as_fd(), PEER_TIMEOUT).map_err(broken)?;
        transport.write_all(&writer.written_bytes().to_be_bytes())
    }

    /// Keeps the queue pair for a short time until the sender knows that its last message has arrived.
    pub(crate) fn await_close(&self, transport: &Transport) {
        if let RdmaDirection::Receiver(RdmaReceiver { total_bytes: None, .. }) = &self.end {
            // The stream is complete in any case.
            let _ = event::poll(&[(transport.as_fd(), Interest::READ)], Some(CLOSE_TIMEOUT));
        }
    }
}

fn broken(failure: RdmaFailure) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, failure.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (Transport, Transport) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("its address")).expect("it");
        let far = listener.accept().expect("a connection").0;
        (Transport::Tcp(near), Transport::Tcp(far))
    }

    #[test]
    fn memory_of_streams_is_bounded() {
        assert_eq!(stream_memory_bytes(64 << 20, 8), 8 << 20);
        assert_eq!(stream_memory_bytes(64 << 20, 64), STREAM_MEMORY_BYTES_MIN);
        assert_eq!(stream_memory_bytes(u64::MAX, 0), STREAM_MEMORY_BYTES_MAX);
    }

    #[test]
    fn reason_of_acceptor_reaches_connector() {
        let (mut near, mut far) = pair();
        send_text(&mut far, None).expect("a connection");
        expect_agreement(&mut near).expect("an agreement");
        let reason = RdmaStreamError::from(RdmaFailure::NoDevice);
        send_text(&mut far, Some(&reason)).expect("a connection");
        let error = expect_agreement(&mut near).expect_err("a refusal").to_string();
        assert_eq!(error, format!("at the other end: {}", RdmaFailure::NoDevice));
    }

    #[test]
    fn foreign_answer_is_refused() {
        let (mut near, mut far) = pair();
        far.write_all(b"PENSTOCK").expect("a connection");
        assert!(matches!(expect_agreement(&mut near), Err(RdmaStreamError::There(_))));
        let (mut near, far) = pair();
        drop(far);
        assert!(expect_agreement(&mut near).expect_err("closed").is_loss());
    }

    #[test]
    fn inner_connection_has_no_adapter() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let error = adapter_of(&Transport::Local(near)).expect_err("no adapter");
        assert!(matches!(error, RdmaStreamError::Inside), "{error}");
    }
}
