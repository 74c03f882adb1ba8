//! Proof of possession of the session key for data connections, and the keys derived from it.
//!
//! The acceptor of a connection sends a nonce; the connector answers with its own nonce and HMAC-SHA256
//! over both under the session key. Neither can be replayed on another connection. In integrity mode
//! each connection has its own AES-128-GCM key that authenticates without encrypting: header and
//! payload are associated data and only the 16-byte tag is added (GMAC, NIST SP 800-38D). The GCM nonce
//! counts records, so a record cannot be repeated, dropped or moved.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;

/// Size of a session key, of a nonce and of a proof.
pub const KEY_BYTES: usize = 32;

/// Size of the tag of one record in integrity mode.
pub const TAG_BYTES: usize = 16;

/// Secret shared by both ends of a session.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey(pub [u8; KEY_BYTES]);

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKey(secret)")
    }
}

/// Nonces of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonces {
    /// Chosen by the end that accepted the connection.
    pub acceptor: [u8; KEY_BYTES],
    /// Chosen by the end that connected.
    pub connector: [u8; KEY_BYTES],
}

impl SessionKey {
    /// Computes the proof with which a connector joins `session` as `stream`.
    #[must_use]
    pub fn join_proof(&self, session: &[u8; 16], stream: u32, nonces: &Nonces) -> [u8; KEY_BYTES] {
        self.derive(b"penstock join", session, stream, nonces)
    }

    /// True if `proof` is correct; compares in constant time.
    #[must_use]
    pub fn verify_join(
        &self,
        session: &[u8; 16],
        stream: u32,
        nonces: &Nonces,
        proof: &[u8; KEY_BYTES],
    ) -> bool {
        let expected = self.join_proof(session, stream, nonces);
        aws_lc_rs::constant_time::verify_slices_are_equal(&expected, proof).is_ok()
    }

    /// Returns the authenticator of one direction of one connection in integrity mode.
    #[must_use]
    pub fn authenticator(&self, session: &[u8; 16], stream: u32, nonces: &Nonces) -> Authenticator {
        let key = self.derive(b"penstock data", session, stream, nonces);
        let key = UnboundKey::new(&AES_128_GCM, &key[..16]).expect("16 bytes are an AES-128 key");
        Authenticator { key: LessSafeKey::new(key), records: 0 }
    }

    fn derive(&self, label: &[u8], session: &[u8; 16], stream: u32, nonces: &Nonces) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        for part in
            [label, &session[..], &stream.to_be_bytes(), &nonces.acceptor, &nonces.connector]
        {
            context.update(part);
        }
        context.sign().as_ref().try_into().expect("HMAC-SHA256 gives 32 bytes")
    }
}

/// Tags or verifies the records of one connection in order.
#[derive(Debug)]
pub struct Authenticator {
    key: LessSafeKey,
    records: u64,
}

impl Authenticator {
    /// Computes the tag of the next record.
    pub fn tag(&mut self, record: &[u8]) -> [u8; TAG_BYTES] {
        let nonce = self.next_nonce();
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(record), &mut [])
            .expect("a record is far below the limit of GCM");
        tag.as_ref().try_into().expect("a GCM tag has 16 bytes")
    }

    /// True if `tag` authenticates the next record.
    pub fn verify(&mut self, record: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        let nonce = self.next_nonce();
        let mut sealed = *tag;
        self.key.open_in_place(nonce, Aad::from(record), &mut sealed).is_ok()
    }

    /// True if `tag` authenticates the record after the next one; the next one must still be verified.
    pub fn verify_after_next(&mut self, record: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        self.records += 1;
        let good = self.verify(record, tag);
        self.records -= 2;
        good
    }

    /// Skips a record that was verified out of order.
    pub fn skip(&mut self) {
        self.records += 1;
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.records.to_be_bytes());
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nonces() -> Nonces {
        Nonces { acceptor: [1; 32], connector: [2; 32] }
    }

    #[test]
    fn proof_is_bound_to_connection() {
        let key = SessionKey([7; 32]);
        let proof = key.join_proof(&[9; 16], 3, &nonces());
        assert!(key.verify_join(&[9; 16], 3, &nonces(), &proof));
        assert!(!key.verify_join(&[9; 16], 4, &nonces(), &proof));
        assert!(!key.verify_join(&[8; 16], 3, &nonces(), &proof));
        let other = Nonces { acceptor: [5; 32], ..nonces() };
        assert!(!key.verify_join(&[9; 16], 3, &other, &proof));
        assert!(!SessionKey([8; 32]).verify_join(&[9; 16], 3, &nonces(), &proof));
    }

    #[test]
    fn changed_or_moved_records_are_rejected() {
        let key = SessionKey([7; 32]);
        let make = || key.authenticator(&[9; 16], 0, &nonces());
        let mut sender = make();
        let (first, second) = (sender.tag(b"one"), sender.tag(b"two"));
        let mut receiver = make();
        assert!(receiver.verify(b"one", &first));
        assert!(receiver.verify(b"two", &second));
        assert!(!make().verify(b"two", &second), "a record out of order");
        assert!(!make().verify(b"onf", &first), "a changed record");
    }
}
