//! TLS handshake by rustls, one record at a time.
//!
//! Both sides on a blocking transport. rustls receives no byte after the handshake, so its last record
//! ends its part in the connection. A peer with an unexpected certificate gives `PermissionDenied`; one
//! without TLS, `InvalidData`.

use std::io::{self, Write};

use penstock_protocol::preamble::{self, PREAMBLE_BYTES};
use rustls::unbuffered::{
    ConnectionState, EncodeTlsData, UnbufferedConnectionCommon, UnbufferedStatus,
};

use super::incoming::RecordBuffer;
use super::record::{BODY_BYTES_MAX, HEADER_BYTES};
use crate::net::transport::Transport;

/// Passes the available records to rustls: `process_tls_records` of one side.
pub(super) type Process<Side> = for<'c, 'i> fn(
    &'c mut UnbufferedConnectionCommon<Side>,
    &'i mut [u8],
) -> UnbufferedStatus<'c, 'i, Side>;

/// Runs the handshake to completion.
pub(super) fn run<Side>(
    connection: &mut UnbufferedConnectionCommon<Side>,
    process: Process<Side>,
    transport: &mut Transport,
    incoming: &mut RecordBuffer,
) -> io::Result<()> {
    let mut outgoing = Vec::new();
    let mut refused = None;
    // Available bytes that rustls has seen; a message may span records.
    let mut shown = 0;
    loop {
        let status = process(connection, incoming.first(shown));
        let discard = status.discard;
        let mut wants_more = false;
        match (status.state, &refused) {
            (Ok(ConnectionState::EncodeTlsData(data)), _) => encode(data, &mut outgoing)?,
            (Err(error), None) => refused = Some(error),
            (_, Some(error)) => {
                // rustls encoded an alert for its refusal; whether it arrives does not matter.
                let _ = transport.write_all(&outgoing);
                return Err(tls_error(error.clone()));
            }
            (Ok(ConnectionState::TransmitTlsData(data)), None) => {
                transport.write_all(&outgoing)?;
                outgoing.clear();
                data.done();
            }
            (Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)), None) => {
                wants_more = true;
            }
            (Ok(_), None) => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        incoming.consume(discard);
        shown -= discard;
        if wants_more && !connection.is_handshaking() {
            return Ok(());
        }
        if wants_more {
            shown += next_record(incoming, shown, transport)?;
        }
    }
}

fn encode<Side>(mut data: EncodeTlsData<'_, Side>, outgoing: &mut Vec<u8>) -> io::Result<()> {
    let at = outgoing.len();
    outgoing.resize(at + HEADER_BYTES + BODY_BYTES_MAX, 0);
    let written = data.encode(&mut outgoing[at..]).map_err(io::Error::other)?;
    outgoing.truncate(at + written);
    Ok(())
}

/// Length of the record after those already passed, once it is complete.
fn next_record(
    incoming: &mut RecordBuffer,
    shown: usize,
    transport: &mut Transport,
) -> io::Result<usize> {
    loop {
        let is_tls = incoming.bytes().first().is_none_or(|kind| (20..=23).contains(kind));
        if !is_tls {
            return Err(not_tls(incoming.bytes()));
        }
        let record = incoming.record(shown).map_err(|_| not_tls(incoming.bytes()))?;
        if let Some(bytes) = record {
            return Ok(bytes);
        }
        if incoming.fill(transport)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Error for a peer that answers without TLS: another version or another program.
fn not_tls(bytes: &[u8]) -> io::Error {
    let mut start = [0; PREAMBLE_BYTES];
    let count = bytes.len().min(PREAMBLE_BYTES);
    start[..count].copy_from_slice(&bytes[..count]);
    match preamble::decode(&start) {
        Err(fault) => io::Error::new(io::ErrorKind::InvalidData, fault),
        Ok(_) => io::Error::new(io::ErrorKind::InvalidData, "the peer does not speak TLS"),
    }
}

fn tls_error(error: rustls::Error) -> io::Error {
    let kind = match error {
        rustls::Error::InvalidCertificate(_) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}
