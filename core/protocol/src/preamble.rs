//! The first sixteen bytes of every connection to the mover's port: what it is, in which version.
//!
//! They cross in the clear so that a peer of another version, or a program that is not Penstock at
//! all, can be told so before anything is negotiated. Nothing secret or trusted is in them: sessions
//! are proven afterwards (see [`crate::proof`]).

use crate::PROTOCOL_VERSION;

/// Bytes in a preamble.
pub const PREAMBLE_BYTES: usize = 16;

const MAGIC: &[u8; 8] = b"PENSTOCK";

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Opens a session or comes back to one.
    Control = 1,
    /// Carries blocks of a session.
    Data = 2,
    /// Steers a memory-to-memory test.
    NettestControl = 3,
    /// Carries the bytes of a memory-to-memory test.
    NettestData = 4,
}

/// Why the first bytes of a connection are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// Some other program, or a wrong port.
    #[error("the peer does not speak Penstock's protocol: {0}")]
    NotPenstock(String),
    /// Penstock, but not this one.
    #[error(
        "the peer speaks protocol version {theirs} and this penstock {ours}: use the same release on both ends"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// A kind that this version does not know.
    #[error("the peer asks for an unknown kind of connection ({0})")]
    Kind(u8),
}

/// What the first bytes of a connection say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// What it is for.
    pub kind: ConnectionKind,
    /// Whether a TLS handshake follows.
    pub tls: bool,
}

/// The bytes of a preamble.
#[must_use]
pub fn encode(preamble: Preamble) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_be_bytes());
    bytes[10] = preamble.kind as u8;
    bytes[11] = u8::from(preamble.tls);
    bytes
}

/// Reads a preamble.
///
/// # Errors
/// When it is not Penstock's, or of another version, or of an unknown kind.
pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Preamble, PreambleError> {
    if &bytes[..8] != MAGIC {
        return Err(PreambleError::NotPenstock(describe_stranger(bytes)));
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
        other => return Err(PreambleError::Kind(other)),
    };
    Ok(Preamble { kind, tls: bytes[11] & 1 == 1 })
}

/// Guesses who sent these bytes: a log line "that was iperf3" saves somebody an afternoon. iperf3
/// opens with a cookie of 36 characters from the base-32 alphabet (`make_cookie` in iperf_util.c).
fn describe_stranger(bytes: &[u8; PREAMBLE_BYTES]) -> String {
    const COOKIE: &[u8] = b"abcdefghijklmnopqrstuvwxyz234567";
    const METHODS: [&[u8]; 5] = [b"GET ", b"POST", b"HEAD", b"PUT ", b"PRI "];
    if bytes.iter().all(|byte| COOKIE.contains(byte)) {
        "this looks like an iperf3 client; test with `penstock nettest`, or run `iperf3 -s` for \
         iperf3 clients"
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
    fn kinds_survive_and_others_are_told_apart() {
        for kind in [
            ConnectionKind::Control,
            ConnectionKind::Data,
            ConnectionKind::NettestControl,
            ConnectionKind::NettestData,
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
    fn strangers_are_recognised() {
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
