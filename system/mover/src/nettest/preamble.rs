//! The 16 bytes every connection to the mover's port starts with.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | magic, `PENSTOCK` |
//! | 2 | version, big endian, 1 |
//! | 1 | kind: 1 transfer control, 2 transfer data, 3 nettest control, 4 nettest data |
//! | 1 | flags, 0 |
//! | 4 | reserved, 0 |
//!
//! Pure: bytes in, a [`Kind`] or a reason out. Strangers are told apart as far as their first
//! bytes allow, because a log line "that was iperf3" saves somebody an afternoon.

use thiserror::Error;

/// Bytes of a preamble.
pub const LENGTH: usize = 16;
/// The version this build speaks.
pub const VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"PENSTOCK";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Control channel of a transfer.
    TransferControl,
    /// Data stream of a transfer.
    TransferData,
    /// Control channel of a memory-to-memory test.
    NettestControl,
    /// Data stream of a memory-to-memory test.
    NettestData,
}

/// Why sixteen bytes are not a preamble we accept.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PreambleError {
    /// Not our protocol.
    #[error("not penstock: {0}")]
    Stranger(&'static str),
    /// Our protocol in another version.
    #[error(
        "protocol version {theirs}, this end speaks {VERSION}: install the same release on both ends"
    )]
    Version {
        /// The version the peer announced.
        theirs: u16,
    },
    /// A kind this version does not know.
    #[error("unknown connection kind {0}")]
    Kind(u8),
    /// Flags or reserved bytes that version 1 leaves zero.
    #[error("flags or reserved bytes are set that version {VERSION} does not use")]
    Reserved,
}

/// The preamble of a connection of this kind.
#[must_use]
pub fn encode(kind: Kind) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
    bytes[10] = match kind {
        Kind::TransferControl => 1,
        Kind::TransferData => 2,
        Kind::NettestControl => 3,
        Kind::NettestData => 4,
    };
    bytes
}

/// Reads a preamble.
///
/// # Errors
/// Says what the bytes are instead, where that can be told.
pub fn decode(bytes: &[u8; LENGTH]) -> Result<Kind, PreambleError> {
    if &bytes[..8] != MAGIC {
        return Err(PreambleError::Stranger(describe_stranger(bytes)));
    }
    let theirs = u16::from_be_bytes([bytes[8], bytes[9]]);
    if theirs != VERSION {
        return Err(PreambleError::Version { theirs });
    }
    let kind = match bytes[10] {
        1 => Kind::TransferControl,
        2 => Kind::TransferData,
        3 => Kind::NettestControl,
        4 => Kind::NettestData,
        other => return Err(PreambleError::Kind(other)),
    };
    if bytes[11..].iter().any(|&byte| byte != 0) {
        return Err(PreambleError::Reserved);
    }
    Ok(kind)
}

/// Guesses who sent these bytes. iperf3 opens with a cookie of 36 characters from the base-32
/// alphabet (`make_cookie` in iperf_util.c).
fn describe_stranger(bytes: &[u8]) -> &'static str {
    const COOKIE: &[u8] = b"abcdefghijklmnopqrstuvwxyz234567";
    if bytes.iter().all(|byte| COOKIE.contains(byte)) {
        "this looks like an iperf3 client; test against this listener with `penstock nettest`, \
         or run `iperf3 -s` for iperf3 clients"
    } else if bytes.starts_with(&[0x16, 3]) {
        "this looks like a TLS client"
    } else if bytes.starts_with(b"SSH-") {
        "this looks like an SSH client"
    } else if [&b"GET "[..], b"POST", b"HEAD", b"PUT ", b"PRI "]
        .iter()
        .any(|method| bytes.starts_with(method))
    {
        "this looks like an HTTP client"
    } else {
        "unknown first bytes"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_round_trips() {
        use Kind::{NettestControl, NettestData, TransferControl, TransferData};
        for kind in [TransferControl, TransferData, NettestControl, NettestData] {
            assert_eq!(decode(&encode(kind)), Ok(kind));
        }
        assert_eq!(encode(Kind::NettestControl), *b"PENSTOCK\x00\x01\x03\x00\x00\x00\x00\x00");
    }

    #[test]
    fn each_fault_has_its_reason() {
        let mut bytes = encode(Kind::NettestData);
        bytes[9] = 7;
        assert_eq!(decode(&bytes), Err(PreambleError::Version { theirs: 7 }));
        assert!(decode(&bytes).unwrap_err().to_string().contains("version 7"));
        let mut bytes = encode(Kind::NettestData);
        bytes[10] = 9;
        assert_eq!(decode(&bytes), Err(PreambleError::Kind(9)));
        let mut bytes = encode(Kind::NettestData);
        bytes[15] = 1;
        assert_eq!(decode(&bytes), Err(PreambleError::Reserved));
    }

    #[test]
    fn strangers_are_recognised() {
        let says = |bytes: &[u8; 16]| decode(bytes).unwrap_err().to_string();
        assert!(says(b"abcdefgh234567zz").contains("iperf3"));
        assert!(says(b"GET / HTTP/1.1\r\n").contains("HTTP"));
        assert!(says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcd\x00").contains("TLS"));
        assert!(says(&[0; 16]).contains("unknown"));
    }
}
