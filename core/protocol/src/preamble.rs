//! Preamble: the first sixteen bytes of every connection, with its kind and the protocol version.
//!
//! The preamble is not encrypted, so that a peer with another version, or another program, gets a clear
//! error before anything is negotiated. It holds nothing secret or trusted; [`crate::proof`]
//! authenticates sessions afterwards.

use crate::PROTOCOL_VERSION;

/// Encoded size of a preamble.
pub const PREAMBLE_BYTES: usize = 16;

const MAGIC: &[u8; 8] = b"PENSTOCK";

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Opens a session or reconnects to one.
    Control = 1,
    /// Carries data frames of a session.
    Data = 2,
    /// Controls a memory-to-memory test.
    NettestControl = 3,
    /// Carries the data of a memory-to-memory test.
    NettestData = 4,
    /// Joins a session as a data connection does; its frames then travel by RDMA.
    RdmaData = 5,
}

/// Reason to refuse the first bytes of a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// Another program or a wrong port; holds a guess at the program.
    #[error("the peer does not speak Penstock's protocol: {0}")]
    NotPenstock(String),
    /// A peer with another protocol version.
    #[error(
        "the peer speaks protocol version {theirs} and this penstock {ours}: use the same release on both ends"
    )]
    Version {
        /// Version of the peer.
        theirs: u16,
        /// [`PROTOCOL_VERSION`].
        ours: u16,
    },
    /// Unknown connection kind, as received.
    #[error("the peer asks for an unknown kind of connection ({0})")]
    Kind(u8),
}

/// Kind and protection of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// Purpose of the connection.
    pub kind: ConnectionKind,
    /// Set when a TLS handshake follows.
    pub tls: bool,
}

/// Encodes a preamble with [`PROTOCOL_VERSION`].
#[must_use]
pub fn encode(preamble: Preamble) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_be_bytes());
    bytes[10] = preamble.kind as u8;
    bytes[11] = u8::from(preamble.tls);
    bytes
}

/// Decodes and checks a preamble.
///
/// # Errors
/// If the magic is not Penstock's, or the version or the kind is unknown.
pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Preamble, PreambleError> {
    if &bytes[..8] != MAGIC {
        return Err(PreambleError::NotPenstock(describe_foreign_peer(bytes)));
    }
    let theirs = u16::from_be_bytes([bytes[8], bytes[9]]);
    if theirs != PROTOCOL_VERSION {
        return Err(PreambleError::Version { theirs, ours: PROTOCOL_VERSION });
    }
    let kind = match bytes[10] {
        1 => ConnectionKind::Control,
        2 => ConnectionKind::Data,
        3 => ConnectionKind::NettestControl,
        4 => ConnectionKind::NettestData,
        5 => ConnectionKind::RdmaData,
        other => return Err(PreambleError::Kind(other)),
    };
    Ok(Preamble { kind, tls: bytes[11] & 1 == 1 })
}

/// Guesses the program that sent these bytes, for the error message. iperf3 opens with a cookie of 36
/// characters from the base-32 alphabet (`make_cookie` in iperf_util.c).
fn describe_foreign_peer(bytes: &[u8; PREAMBLE_BYTES]) -> String {
    const COOKIE: &[u8] = b"abcdefghijklmnopqrstuvwxyz234567";
    const METHODS: [&[u8]; 5] = [b"GET ", b"POST", b"HEAD", b"PUT ", b"PRI "];
    if bytes.iter().all(|byte| COOKIE.contains(byte)) {
        "this looks like an iperf3 client; run `penstock nettest --listen` on another port, which \
         answers iperf3 clients"
            .to_owned()
    } else if bytes.starts_with(&[0x16, 3]) {
        "this looks like a TLS client".to_owned()
    } else if bytes.starts_with(b"SSH-") {
        "this looks like an SSH client".to_owned()
    } else if METHODS.iter().any(|method| bytes.starts_with(method)) {
        "this looks like an HTTP client".to_owned()
    } else {
        let text: String = String::from_utf8_lossy(&bytes[..8]).escape_debug().take(24).collect();
        format!("its first bytes are \"{text}\": check host and port")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preamble_round_trips_kind_and_version() {
        for kind in [
            ConnectionKind::Control,
            ConnectionKind::Data,
            ConnectionKind::NettestControl,
            ConnectionKind::NettestData,
            ConnectionKind::RdmaData,
        ] {
            for tls in [false, true] {
                let preamble = Preamble { kind, tls };
                assert_eq!(decode(&encode(preamble)), Ok(preamble));
            }
        }
        let mut newer = encode(Preamble { kind: ConnectionKind::Data, tls: true });
        newer[9] = 9;
        assert_eq!(
            decode(&newer),
            Err(PreambleError::Version { theirs: 9, ours: PROTOCOL_VERSION })
        );
    }

    #[test]
    fn foreign_protocols_are_recognised() {
        for (bytes, word) in [
            (b"abcdefgh234567zz", "iperf3"),
            (b"GET / HTTP/1.1\r\n", "HTTP"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcd\x00", "TLS"),
            (b"SSH-2.0-OpenSSH_", "SSH"),
            (b"\x00\xff23456789012345", "\\0"),
        ] {
            let reason = decode(bytes).expect_err("not ours").to_string();
            assert!(reason.contains(word), "{reason}");
        }
    }
}
