//! Protection of TLS 1.3 records under one key (RFC 8446, 5.2).
//!
//! One direction of a connection; key updates are in `keys`. After an error the caller must send the
//! alert and stop reading.

use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error};

use super::cipher::{NONCE_BYTES, RecordCipher, TAG_BYTES};

/// Record header: type, version and two bytes of body length.
pub(super) const HEADER_BYTES: usize = 5;

/// Limit of a record's content.
pub(super) const CONTENT_BYTES_MAX: usize = 1 << 14;

/// Limit of a record's body: content, type, padding and tag.
pub(super) const BODY_BYTES_MAX: usize = CONTENT_BYTES_MAX + 256;

/// Bytes added by sealing: header, content type and tag.
pub(super) const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// Content type and length of an opened record, whose content is at the start of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenedRecord {
    pub(super) kind: ContentType,
    pub(super) bytes: usize,
}

/// Key of one direction with its record sequence number.
#[derive(Debug)]
pub(super) struct RecordKey {
    cipher: RecordCipher,
    iv: [u8; NONCE_BYTES],
    sequence: u64,
}

impl RecordKey {
    /// Creates the key from a handshake or key update, with the sequence number of its next record.
    ///
    /// # Errors
    /// If its cipher is not offered.
    pub(super) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let (cipher, iv) = RecordCipher::new(&secrets)?;
        Ok(Self { cipher, iv, sequence })
    }

    /// Number of records protected so far.
    pub(super) fn records(&self) -> u64 {
        self.sequence
    }

    /// Seals content into `out`, which is [`OVERHEAD_BYTES`] larger.
    pub(super) fn seal(&mut self, kind: ContentType, content: &[u8], out: &mut [u8]) {
        let (header, body) = out.split_at_mut(HEADER_BYTES);
        let length = u16::try_from(body.len()).expect("a record is short");
        let [high, low] = length.to_be_bytes();
        header.copy_from_slice(&[u8::from(ContentType::ApplicationData), 3, 3, high, low]);
        let nonce = self.next_nonce();
        self.cipher.seal(nonce, header, (content, u8::from(kind)), body);
    }

    /// Opens a record into the first `body.len() - 16` bytes of `out`.
    ///
    /// # Errors
    /// The alert to send, if the record does not authenticate under this key and sequence number.
    pub(super) fn open_into(
        &mut self,
        header: &[u8],
        body: &[u8],
        out: &mut [u8],
    ) -> Result<OpenedRecord, AlertDescription> {
        let (body, tag): (_, &[u8; TAG_BYTES]) =
            body.split_last_chunk().ok_or(AlertDescription::DecodeError)?;
        let nonce = self.next_nonce();
        let out = &mut out[..body.len()];
        self.cipher.open_into(nonce, header, (body, tag), out)?;
        unpad(out)
    }

    /// Opens a record in place.
    ///
    /// # Errors
    /// As [`RecordKey::open_into`].
    pub(super) fn open_in_place(
        &mut self,
        header: &[u8],
        body: &mut [u8],
    ) -> Result<OpenedRecord, AlertDescription> {
        let nonce = self.next_nonce();
        unpad(self.cipher.open_in_place(nonce, header, body)?)
    }

    /// Nonce: the IV XORed with the sequence number (RFC 8446, 5.3).
    fn next_nonce(&mut self) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        nonce
    }
}

/// The content type follows the content; zeros may follow it (RFC 8446, 5.4).
fn unpad(plain: &[u8]) -> Result<OpenedRecord, AlertDescription> {
    let bytes =
        plain.iter().rposition(|byte| *byte != 0).ok_or(AlertDescription::UnexpectedMessage)?;
    if bytes > CONTENT_BYTES_MAX {
        return Err(AlertDescription::RecordOverflow);
    }
    Ok(OpenedRecord { kind: ContentType::from(plain[bytes]), bytes })
}

#[cfg(test)]
mod tests {
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    fn key(sequence: u64) -> RecordKey {
        let key = AeadKey::from([7; 32]);
        let secrets = ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv: Iv::from([9; 12]) };
        RecordKey::new((sequence, secrets)).expect("a key")
    }

    fn sealed(content: &[u8], sequence: u64) -> Vec<u8> {
        let mut record = vec![0; content.len() + OVERHEAD_BYTES];
        key(sequence).seal(ContentType::Handshake, content, &mut record);
        record
    }

    #[test]
    fn sealed_record_opens_only_in_sequence() {
        let content: Vec<u8> = (0..CONTENT_BYTES_MAX).map(|n| n as u8).collect();
        for bytes in [0, 1, 80, CONTENT_BYTES_MAX] {
            let mut record = sealed(&content[..bytes], 3);
            let (header, body) = record.split_at_mut(HEADER_BYTES);
            let mut out = vec![0; bytes + 1];
            let opened = key(3).open_into(header, body, &mut out).expect("its own record");
            assert_eq!(opened, OpenedRecord { kind: ContentType::Handshake, bytes });
            assert_eq!(out[..bytes], content[..bytes]);
            let wrong = key(4).open_into(header, body, &mut out);
            assert_eq!(wrong, Err(AlertDescription::BadRecordMac));
            let opened = key(3).open_in_place(header, body).expect("its own record");
            assert_eq!(opened, OpenedRecord { kind: ContentType::Handshake, bytes });
            assert_eq!(body[..bytes], content[..bytes]);
        }
    }

    #[test]
    fn any_flipped_bit_is_detected() {
        let record = sealed(b"content", 0);
        for bit in 0..record.len() * 8 {
            let mut record = record.clone();
            record[bit / 8] ^= 1 << (bit % 8);
            let (header, body) = record.split_at_mut(HEADER_BYTES);
            assert!(key(0).open_in_place(header, body).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn padding_only_record_is_refused() {
        assert_eq!(unpad(b"ab\x17\0\0").map(|opened| opened.bytes), Ok(2));
        assert_eq!(unpad(b"\0\0"), Err(AlertDescription::UnexpectedMessage));
        assert_eq!(unpad(b""), Err(AlertDescription::UnexpectedMessage));
        assert_eq!(unpad(&[1; 16_386]), Err(AlertDescription::RecordOverflow));
    }

    #[test]
    fn body_shorter_than_tag_fails() {
        assert!(key(0).open_into(&[23, 3, 3, 0, 3], &[1, 2, 3], &mut []).is_err());
        assert!(key(0).open_in_place(&[23, 3, 3, 0, 3], &mut [1, 2, 3]).is_err());
    }
}
