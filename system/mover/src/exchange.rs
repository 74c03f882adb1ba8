//! The first words of a connection, from both sides: preamble, request and answer, challenge and join.

use std::io::{self, Read, Write};

use penstock_protocol::open::{Answer, Join, OPEN_BYTES_MAX, Open};
use penstock_protocol::preamble::{self, PREAMBLE_BYTES, Preamble};
use penstock_protocol::proof::KEY_BYTES;
use penstock_protocol::wire::{self, WireFormat};

use crate::channel::Channel;
use crate::transport::Transport;

/// Answer to a [`Join`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// Go on.
    Yes,
    /// No such session.
    UnknownSession,
    /// The proof is wrong, or the protection is not the session's.
    Refused,
    /// The session has as many streams as it may.
    TooMany,
}

/// Random bytes for keys, nonces and names.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// Says what a connection is for.
///
/// # Errors
/// When the connection is gone.
pub fn send_preamble(transport: &mut Transport, preamble: Preamble) -> io::Result<()> {
    transport.write_all(&preamble::encode(preamble))
}

/// Hears what a connection is for.
///
/// # Errors
/// `InvalidData` when it is not Penstock's.
pub fn receive_preamble(transport: &mut Transport) -> io::Result<Preamble> {
    let mut bytes = [0; PREAMBLE_BYTES];
    transport.read_exact(&mut bytes)?;
    preamble::decode(&bytes).map_err(invalid)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn send<T: WireFormat>(channel: &mut Channel, message: &T) -> io::Result<()> {
    let body = wire::encode(message);
    let length = u32::try_from(body.len()).map_err(invalid)?;
    channel.write_two(&length.to_be_bytes(), &body)
}

fn receive<T: WireFormat>(channel: &mut Channel) -> io::Result<T> {
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

/// Asks for a session and hears the answer.
///
/// # Errors
/// When the connection is gone or the answer makes no sense.
pub fn ask(channel: &mut Channel, open: &Open) -> io::Result<Answer> {
    if wire::encode(open).len() > OPEN_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many sources for one command: name their directory, or use --files-from",
        ));
    }
    send(channel, open)?;
    receive(channel)
}

/// Hears what a client asks for.
///
/// # Errors
/// When the connection is gone or the request makes no sense.
pub fn hear(channel: &mut Channel) -> io::Result<Open> {
    receive(channel)
}

/// Answers a client.
///
/// # Errors
/// When the connection is gone.
pub fn answer(channel: &mut Channel, answer: &Answer) -> io::Result<()> {
    send(channel, answer)
}

/// Sends the acceptor's nonce and hears the join.
///
/// # Errors
/// When the connection is gone.
pub fn challenge(channel: &mut Channel) -> io::Result<([u8; KEY_BYTES], Join)> {
    let nonce = random();
    channel.write_two(&nonce, &[])?;
    let mut bytes = [0; Join::MIN_BYTES];
    channel.read_exact(&mut bytes)?;
    Ok((nonce, wire::decode(&bytes).map_err(invalid)?))
}

/// Hears the acceptor's nonce.
///
/// # Errors
/// When the connection is gone.
pub fn receive_challenge(channel: &mut Channel) -> io::Result<[u8; KEY_BYTES]> {
    let mut nonce = [0; KEY_BYTES];
    channel.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// Sends a join and hears the answer.
///
/// # Errors
/// When the connection is gone.
pub fn join(channel: &mut Channel, join: &Join) -> io::Result<Joined> {
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

/// Answers a join.
///
/// # Errors
/// When the connection is gone.
pub fn answer_join(channel: &mut Channel, answer: Joined) -> io::Result<()> {
    channel.write_two(&[answer as u8], &[])
}
