//! Protection of TLS 1.3 records under one key (RFC 8446, 5.2).
//!
//! One direction of a connection; key updates are in `keys`. After an error the caller must send the
//! alert and stop reading.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error};

/// Record header: type, version and two bytes of body length.
pub(super) const HEADER_BYTES: usize = 5;

/// Limit of a record's content.
pub(super) const CONTENT_BYTES_MAX: usize = 1 << 14;

/// Limit of a record's body: content, type, padding and tag.
pub(super) const BODY_BYTES_MAX: usize = CONTENT_BYTES_MAX + 256;

const TAG_BYTES: usize = 16;

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
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl RecordKey {
    /// Creates the key from a handshake or key update, with the sequence number of its next record.
    ///
    /// # Errors
    /// If its cipher is not offered.
    pub(super) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("a cipher that is not offered".to_owned())),
        };
        let key = UnboundKey::new(algorithm, key.as_ref())
            .map_err(|_| Error::General("a key of the wrong length".to_owned()))?;
        let iv = iv.as_ref().try_into().expect("an IV of TLS 1.3 has 12 bytes");
        Ok(Self { key: LessSafeKey::new(key), iv, sequence })
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
        let (sealed, rest) = body.split_at_mut(content.len());
        let nonce = self.next_nonce();
        self.key
            .seal_out_of_place_scatter(
                nonce,
                Aad::from(header),
                content,
                sealed,
                &[u8::from(kind)],
                rest,
            )
            .expect("lengths are right, and far below the limit of the cipher");
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
        let sealed = body.len().checked_sub(TAG_BYTES).ok_or(AlertDescription::DecodeError)?;
        let (body, tag) = body.split_at(sealed);
        let nonce = self.next_nonce();
        self.key
            .open_separate_gather(nonce, Aad::from(header), body, tag, &mut out[..sealed])
            .map_err(|_| AlertDescription::BadRecordMac)?;
        unpad(&out[..sealed])
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
        let opened = self.key.open_in_place(nonce, Aad::from(header), body);
        unpad(opened.map_err(|_| AlertDescription::BadRecordMac)?)
    }

    /// Nonce: the IV XORed with the sequence number (RFC 8446, 5.3).
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
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
