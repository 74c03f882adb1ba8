//! Proof of possession of the session key for data connections, and the keys derived from it.
//!
//! The acceptor of a connection sends a nonce; the connector answers with its own nonce and HMAC-SHA256
//! over both under the session key. Neither can be replayed on another connection. In integrity mode
//! each connection has its own AES-128-GCM key that authenticates without encrypting: a record is
//! associated data and only the 16-byte tag is added (GMAC, NIST SP 800-38D). The GCM nonce counts
//! records, so a record cannot be repeated, dropped or moved. The record of a payload consists of the
//! [`PayloadHash`] that its reader made while it had the payload in its cache.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;

/// Size of a session key, of a nonce and of a proof.
pub const KEY_BYTES: usize = 32;

/// Size of the tag of one record in integrity mode.
pub const TAG_BYTES: usize = 16;

/// Bytes of a payload that are hashed at once. A processor keeps them in its own cache, in which the checksum finds them.
pub const HASHED_PART_BYTES: usize = 64 << 10;

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
        self.derive_for_stream(b"penstock join", session, stream, nonces)
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
        let key = gcm_key(&self.derive_for_stream(b"penstock data", session, stream, nonces));
        Authenticator { key, payload_key: self.payload_key(session), records: 0 }
    }

    /// Returns the key that hashes the payloads of all streams of `session` in integrity mode.
    #[must_use]
    pub fn payload_key(&self, session: &[u8; 16]) -> PayloadKey {
        PayloadKey(Arc::new(gcm_key(&self.derive(&[b"penstock payload", session]))))
    }

    fn derive_for_stream(
        &self,
        label: &[u8],
        session: &[u8; 16],
        stream: u32,
        nonces: &Nonces,
    ) -> [u8; 32] {
        self.derive(&[label, session, &stream.to_be_bytes(), &nonces.acceptor, &nonces.connector])
    }

    fn derive(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        parts.iter().for_each(|part| context.update(part));
        context.sign().as_ref().try_into().expect("HMAC-SHA256 gives 32 bytes")
    }
}

fn gcm_key(derived: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_128_GCM, &derived[..16]);
    LessSafeKey::new(key.expect("16 bytes are an AES-128 key"))
}

/// Key of the hash of payloads, which is the same for all streams of a session: a payload is hashed before its stream
/// is known.
///
/// The hash of a part is its GMAC with a fixed nonce, thus a universal hash with a secret key. It never leaves the
/// process, since two GMACs with one nonce would reveal the key: the frame carries a tag of the hashes.
#[derive(Debug, Clone)]
pub struct PayloadKey(Arc<LessSafeKey>);

impl PayloadKey {
    /// Hashes a whole payload.
    #[must_use]
    pub fn hash(&self, payload: &[u8]) -> PayloadHash {
        let mut hash = PayloadHash::default();
        payload.chunks(HASHED_PART_BYTES).for_each(|part| self.hash_part(part, &mut hash));
        hash
    }

    /// Adds the next part of a payload: [`HASHED_PART_BYTES`], or the rest.
    pub fn hash_part(&self, part: &[u8], hash: &mut PayloadHash) {
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(part), &mut []);
        hash.0.extend_from_slice(tag.expect("a part is far below the limit of GCM").as_ref());
    }
}

/// Hashes of the parts of one payload, 16 bytes each; secret.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(PartialEq, Eq))]
pub struct PayloadHash(Vec<u8>);

impl PayloadHash {
    /// Record that is tagged in place of the payload.
    pub(crate) fn record(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for PayloadHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PayloadHash(secret)")
    }
}

/// Tags or verifies the records of one connection in order.
#[derive(Debug)]
pub struct Authenticator {
    key: LessSafeKey,
    payload_key: PayloadKey,
    records: u64,
}

impl Authenticator {
    /// Key that hashes the payloads of the session.
    #[must_use]
    pub fn payload_key(&self) -> &PayloadKey {
        &self.payload_key
    }

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

    #[test]
    fn payload_hash_depends_on_every_part() {
        let key = SessionKey([7; 32]).payload_key(&[9; 16]);
        for bytes in [0, 1, HASHED_PART_BYTES - 1, HASHED_PART_BYTES, 2 * HASHED_PART_BYTES + 1] {
            let payload = vec![5; bytes];
            let hash = key.hash(&payload);
            assert_eq!(hash.record().len(), bytes.div_ceil(HASHED_PART_BYTES) * TAG_BYTES);
            assert_eq!(hash, SessionKey([7; 32]).payload_key(&[9; 16]).hash(&payload));
            for at in [0, bytes / 2, bytes.saturating_sub(1)] {
                let mut changed = payload.clone();
                let Some(byte) = changed.get_mut(at) else { continue };
                *byte ^= 1;
                assert_ne!(hash, key.hash(&changed), "byte {at} of {bytes}");
            }
            let longer = vec![5; bytes + 1];
            assert_ne!(hash, key.hash(&longer), "{bytes} bytes and one more");
            assert_ne!(SessionKey([8; 32]).payload_key(&[9; 16]).hash(&longer), key.hash(&longer));
            assert_ne!(SessionKey([7; 32]).payload_key(&[8; 16]).hash(&longer), key.hash(&longer));
        }
    }
}
