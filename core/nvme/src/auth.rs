//! DH-HMAC-CHAP (Base Specification 2.0, section 8.13): secrets, and the state machine of a host that proves its own.
//!
//! ```text
//! host     Negotiate ──────── Reply ──────────
//! target   ───────── Challenge ───── Success1 or Failure1
//! ```
//!
//! Without a Diffie-Hellman group: an exchange that was recorded allows an attacker to test guesses of the secret, which is
//! of no use against the 32 random bytes of generated secrets. The target is not authenticated.

use std::fmt;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::{u16_at, u32_at};

/// Bytes that a host asks for with each Authentication Receive.
pub const AUTHENTICATION_BYTES: u32 = 4096;

const COMMON_MESSAGES: u8 = 0;
const CHAP_MESSAGES: u8 = 1;
const NEGOTIATE_ID: u8 = 0x00;
const CHALLENGE_ID: u8 = 0x01;
const REPLY_ID: u8 = 0x02;
const SUCCESS1_ID: u8 = 0x03;
const FAILURE1_ID: u8 = 0xF1;
const CHALLENGE_HEADER_BYTES: usize = 16;
const KEY_SUFFIX: &[u8] = b"NVMe-over-Fabrics";

/// Secret that is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Other text.
    #[error(
        "no secret of NVMe: it has the form DHHC-1:00:BASE64:, as penstock disk secret prints it"
    )]
    Format,
    /// The checksum does not match the key.
    #[error("the secret is damaged: its checksum does not match")]
    Checksum,
}

/// Hash of DH-HMAC-CHAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChapHash {
    Sha256,
    Sha384,
    Sha512,
}

impl ChapHash {
    const fn of(identifier: u8) -> Option<Self> {
        match identifier {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha384),
            3 => Some(Self::Sha512),
            _ => None,
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        for part in parts {
            context.update(part);
        }
        context.sign().as_ref().to_vec()
    }
}

/// Secret of a host, in the form `DHHC-1:HASH:BASE64:`.
#[derive(Clone, PartialEq, Eq)]
pub struct HostSecret {
    key: Vec<u8>,
    transform: Option<ChapHash>,
}

impl fmt::Debug for HostSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostSecret")
    }
}

impl HostSecret {
    /// Secret of 32 random bytes, used as they are.
    #[must_use]
    pub fn of_key(key: [u8; 32]) -> Self {
        Self { key: key.to_vec(), transform: None }
    }

    /// Parses a secret in the form `DHHC-1:HASH:BASE64:`.
    ///
    /// # Errors
    /// If the form or the checksum is wrong.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let mut parts = text.trim().split(':');
        let (head, hash, key, end) = (parts.next(), parts.next(), parts.next(), parts.next());
        let (Some("DHHC-1"), Some(hash), Some(key), Some(""), None) =
            (head, hash, key, end, parts.next())
        else {
            return Err(SecretError::Format);
        };
        let transform = match hash.parse::<u8>() {
            Ok(0) => None,
            Ok(identifier) => Some(ChapHash::of(identifier).ok_or(SecretError::Format)?),
            Err(_) => return Err(SecretError::Format),
        };
        let bytes = STANDARD.decode(key).map_err(|_| SecretError::Format)?;
        let (key, checksum) = bytes.split_last_chunk::<4>().ok_or(SecretError::Format)?;
        let has_length = match transform {
            None => matches!(key.len(), 32 | 48 | 64),
            Some(hash) => key.len() == hash.bytes(),
        };
        if !has_length {
            return Err(SecretError::Format);
        }
        if crc32(key) != u32::from_le_bytes(*checksum) {
            return Err(SecretError::Checksum);
        }
        Ok(Self { key: key.to_vec(), transform })
    }

    /// Text that the kernel and other programs read.
    #[must_use]
    pub fn text(&self) -> String {
        let hash = match self.transform {
            None => 0,
            Some(ChapHash::Sha256) => 1,
            Some(ChapHash::Sha384) => 2,
            Some(ChapHash::Sha512) => 3,
        };
        let bytes = [&self.key[..], &crc32(&self.key).to_le_bytes()].concat();
        format!("DHHC-1:{hash:02}:{}:", STANDARD.encode(bytes))
    }

    /// Key for the host of this name.
    fn key_of(&self, host: &str) -> Vec<u8> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[host.as_bytes(), KEY_SUFFIX]),
        }
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

/// Reason for which an authentication fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// The target rejects the response.
    #[error("the secret is wrong")]
    WrongSecret,
    /// The target closes the connection instead of an answer to the response: Linux does so for a wrong secret where its
    /// reset of the controller overtakes the message.
    #[error(
        "the secret is wrong: the target closed the connection at the response to its challenge"
    )]
    ClosedAtResponse,
    /// The target ends the authentication with another reason.
    #[error("the target ends the authentication: {}", explanation(*.0))]
    Refused(u8),
    /// The target demands a Diffie-Hellman group.
    #[error(
        "the target demands DH group {0}, which penstock does not have: set dhchap_dhgroup of the host to null there"
    )]
    Group(u8),
    /// The target demands an unknown hash.
    #[error("the target demands hash {0}, which penstock does not have")]
    Hash(u8),
    /// Message that does not belong here.
    #[error("the target breaks the protocol of authentication: message {kind:#04x}/{id:#04x}")]
    Message {
        /// Kind of the message.
        kind: u8,
        /// Identifier of the message.
        id: u8,
    },
}

const fn explanation(code: u8) -> &'static str {
    match code {
        1 => "authentication failed",
        2 => "the protocol is not usable",
        3 => "secure channel concatenation is demanded",
        4 => "no common hash",
        5 => "no common DH group",
        6 => "incorrect payload",
        7 => "incorrect message",
        _ => "unknown reason",
    }
}

/// Progress of an authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthenticationState {
    Negotiating,
    Replied,
    Authenticated,
}

/// Next step of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthenticationStep {
    /// Send this message, then receive.
    Send(Vec<u8>),
    /// The host is authenticated.
    Done,
}

/// Authentication of a host on one queue.
#[derive(Debug, Clone)]
pub struct HostAuthentication {
    key: Vec<u8>,
    host: String,
    subsystem: String,
    transaction: u16,
    state: AuthenticationState,
}

impl HostAuthentication {
    /// Authentication of `host` to `subsystem`; `transaction` differs from that of other queues.
    #[must_use]
    pub fn new(secret: &HostSecret, host: &str, subsystem: &str, transaction: u16) -> Self {
        Self {
            key: secret.key_of(host),
            host: host.to_owned(),
            subsystem: subsystem.to_owned(),
            transaction,
            state: AuthenticationState::Negotiating,
        }
    }

    /// Message that begins the authentication: the hashes and groups of this host.
    #[must_use]
    pub fn negotiate(&self) -> Vec<u8> {
        let mut message = vec![0; 8 + 64];
        message[..2].copy_from_slice(&[COMMON_MESSAGES, NEGOTIATE_ID]);
        message[4..6].copy_from_slice(&self.transaction.to_le_bytes());
        message[7] = 1;
        message[8..12].copy_from_slice(&[1, 0, 3, 2]);
        message[12..15].copy_from_slice(&[1, 2, 3]);
        // Linux refuses a list of the null group alone where null is set (fabrics-cmd-auth.c, nvmet_auth_negotiate), so
        // ffdhe2048 follows it; a target that chooses it is refused.
        message[42..44].copy_from_slice(&[0, 1]);
        message
    }

    /// True between the response to a challenge and the answer to it.
    #[must_use]
    pub fn awaits_verdict(&self) -> bool {
        self.state == AuthenticationState::Replied
    }

    /// Takes a message of the target.
    ///
    /// # Errors
    /// When the target refuses the host, or breaks the protocol.
    pub fn receive(&mut self, message: &[u8]) -> Result<AuthenticationStep, AuthenticationError> {
        let (kind, id) =
            (message.first().copied().unwrap_or(0xFF), message.get(1).copied().unwrap_or(0xFF));
        if (kind, id) == (COMMON_MESSAGES, FAILURE1_ID) {
            let code = message.get(7).copied().unwrap_or(0);
            return Err(match self.state {
                AuthenticationState::Replied if code == 1 => AuthenticationError::WrongSecret,
                _ => AuthenticationError::Refused(code),
            });
        }
        let expected = match self.state {
            AuthenticationState::Negotiating => CHALLENGE_ID,
            AuthenticationState::Replied => SUCCESS1_ID,
            AuthenticationState::Authenticated => FAILURE1_ID,
        };
        let wrong = AuthenticationError::Message { kind, id };
        let is_expected = (kind, id) == (CHAP_MESSAGES, expected)
            && message.len() >= CHALLENGE_HEADER_BYTES
            && u16_at(message, 4) == self.transaction;
        if !is_expected {
            return Err(wrong);
        }
        if self.state == AuthenticationState::Replied {
            self.state = AuthenticationState::Authenticated;
            return Ok(AuthenticationStep::Done);
        }
        let (hash_bytes, hash_id, group) = (usize::from(message[6]), message[8], message[9]);
        let hash = ChapHash::of(hash_id).ok_or(AuthenticationError::Hash(hash_id))?;
        if group != 0 || u16_at(message, 10) != 0 {
            return Err(AuthenticationError::Group(group));
        }
        let value = message.get(CHALLENGE_HEADER_BYTES..CHALLENGE_HEADER_BYTES + hash_bytes);
        let Some(value) = value.filter(|_| hash_bytes == hash.bytes()) else { return Err(wrong) };
        let response = self.response(hash, value, u32_at(message, 12));
        self.state = AuthenticationState::Replied;
        Ok(AuthenticationStep::Send(self.reply(&response)))
    }

    /// Response to a challenge (Base Specification 2.0, section 8.13.5.4).
    fn response(&self, hash: ChapHash, challenge: &[u8], sequence: u32) -> Vec<u8> {
        hash.hmac(
            &self.key,
            &[
                challenge,
                &sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[0],
                b"HostHost",
                self.host.as_bytes(),
                &[0],
                self.subsystem.as_bytes(),
            ],
        )
    }

    fn reply(&self, response: &[u8]) -> Vec<u8> {
        let mut message = vec![0; 16 + 2 * response.len()];
        message[..2].copy_from_slice(&[CHAP_MESSAGES, REPLY_ID]);
        message[4..6].copy_from_slice(&self.transaction.to_le_bytes());
        message[6] = response.len() as u8;
        message[16..16 + response.len()].copy_from_slice(response);
        message
    }
}
