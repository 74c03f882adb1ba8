//! Handshake of a connection, from both ends: preamble, request and answer, challenge and join.

use std::io::{self, Read, Write};

use penstock_protocol::open::{Answer, Join, OPEN_BYTES_MAX, OpenRequest};
use penstock_protocol::preamble::{self, PREAMBLE_BYTES, Preamble};
use penstock_protocol::proof::KEY_BYTES;
use penstock_protocol::wire::{self, WireFormat};

use crate::net::channel::Channel;
use crate::net::transport::Transport;

/// Answer to a [`Join`]; the discriminant is its byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    /// The stream joined the session.
    Yes,
    /// The session is not known.
    UnknownSession,
    /// Wrong proof, or protection other than the session's.
    Refused,
    /// The session has reached its stream limit.
    TooMany,
}

/// Returns random bytes for keys, nonces and identifiers.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// Sends the preamble of a connection.
///
/// # Errors
/// If the connection is lost.
pub(crate) fn send_preamble(transport: &mut Transport, preamble: Preamble) -> io::Result<()> {
    transport.write_all(&preamble::encode(preamble))
}

/// Reads the preamble of a connection.
///
/// # Errors
/// `InvalidData` if it is not a valid preamble.
pub(crate) fn read_preamble(transport: &mut Transport) -> io::Result<Preamble> {
    let mut bytes = [0; PREAMBLE_BYTES];
    transport.read_exact(&mut bytes)?;
    preamble::decode(&bytes).map_err(invalid)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn send_message<T: WireFormat>(channel: &mut Channel, message: &T) -> io::Result<()> {
    let body = wire::encode(message);
    let length = u32::try_from(body.len()).map_err(invalid)?;
    channel.write_two(&length.to_be_bytes(), &body)
}

fn read_message<T: WireFormat>(channel: &mut Channel) -> io::Result<T> {
    let mut length = [0; 4];
    channel.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > OPEN_BYTES_MAX {
        return Err(invalid("the peer's first message is too long"));
    }
    let mut body = vec![0; length];
    channel.read_exact(&mut body)?;
    wire::decode(&body).map_err(invalid)
}

/// Sends a request and reads the answer.
///
/// # Errors
/// If the connection is lost or the answer is malformed.
pub(crate) fn request(channel: &mut Channel, open: &OpenRequest) -> io::Result<Answer> {
    if wire::encode(open).len() > OPEN_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many sources for one command: name their directory, or use --files-from",
        ));
    }
    send_message(channel, open)?;
    read_message(channel)
}

/// Reads a client's request.
///
/// # Errors
/// If the connection is lost or the request is malformed.
pub(crate) fn read_request(channel: &mut Channel) -> io::Result<OpenRequest> {
    read_message(channel)
}

/// Sends the answer to a request.
///
/// # Errors
/// If the connection is lost.
pub(crate) fn send_answer(channel: &mut Channel, answer: &Answer) -> io::Result<()> {
    send_message(channel, answer)
}

/// Sends the acceptor's nonce and reads the join.
///
/// # Errors
/// If the connection is lost.
pub(crate) fn challenge(channel: &mut Channel) -> io::Result<([u8; KEY_BYTES], Join)> {
    let nonce = random();
    channel.write_two(&nonce, &[])?;
    let mut bytes = [0; Join::MIN_BYTES];
    channel.read_exact(&mut bytes)?;
    Ok((nonce, wire::decode(&bytes).map_err(invalid)?))
}

/// Reads the acceptor's nonce.
///
/// # Errors
/// If the connection is lost.
pub(crate) fn read_challenge(channel: &mut Channel) -> io::Result<[u8; KEY_BYTES]> {
    let mut nonce = [0; KEY_BYTES];
    channel.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// Sends a join and reads its answer.
///
/// # Errors
/// If the connection is lost.
pub(crate) fn join(channel: &mut Channel, join: &Join) -> io::Result<Joined> {
    channel.write_two(&wire::encode(join), &[])?;
    let mut answer = [0];
    channel.read_exact(&mut answer)?;
    Ok(match answer[0] {
        0 => Joined::Yes,
        1 => Joined::UnknownSession,
        3 => Joined::TooMany,
        _ => Joined::Refused,
    })
}

/// Sends the answer to a join.
///
/// # Errors
/// If the connection is lost.
pub(crate) fn send_join_answer(channel: &mut Channel, answer: Joined) -> io::Result<()> {
    channel.write_two(&[answer as u8], &[])
}
