//! Cipher of a record key, by the library whose code is the faster one on this processor.
//!
//! aws-lc has AES-GCM in 512-bit instructions (AVX-512) and in 128-bit ones. ring has it in 256-bit ones (VAES and VPCLMULQDQ
//! with AVX2), which processors without AVX-512 execute two to three times as fast as the 128-bit ones: AMD Zen 3, and those
//! of Intel's without AVX-512. Records are the same whichever library seals them. See docs/decisions/0016.

use aws_lc_rs::aead as aws_lc;
use penstock_sys::machine::aes_instruction_bits;
use ring::aead as ring_aead;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error};

/// Length of an authentication tag.
pub(super) const TAG_BYTES: usize = 16;

/// Length of a nonce.
pub(super) const NONCE_BYTES: usize = 12;

/// Reason why sealing cannot fail.
const LENGTHS_FIT: &str = "lengths are right, and far below the limit of the cipher";

/// Key of a cipher, ready to use.
#[derive(Debug)]
pub(super) enum RecordCipher {
    AwsLc(aws_lc::LessSafeKey),
    Ring(Box<ring_aead::LessSafeKey>),
}

impl RecordCipher {
    /// Prepares the key of a handshake or key update, and returns its IV.
    ///
    /// # Errors
    /// If its cipher is not offered.
    pub(super) fn new(
        secrets: &ConnectionTrafficSecrets,
    ) -> Result<(Self, [u8; NONCE_BYTES]), Error> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let is_ring_faster = is_ring_faster();
        let (cipher, iv) = match secrets {
            Aes128Gcm { key, iv } if is_ring_faster => {
                (Self::ring(&ring_aead::AES_128_GCM, key.as_ref()), iv)
            }
            Aes256Gcm { key, iv } if is_ring_faster => {
                (Self::ring(&ring_aead::AES_256_GCM, key.as_ref()), iv)
            }
            Aes128Gcm { key, iv } => (Self::aws_lc(&aws_lc::AES_128_GCM, key.as_ref()), iv),
            Aes256Gcm { key, iv } => (Self::aws_lc(&aws_lc::AES_256_GCM, key.as_ref()), iv),
            Chacha20Poly1305 { key, iv } => {
                (Self::aws_lc(&aws_lc::CHACHA20_POLY1305, key.as_ref()), iv)
            }
            _ => return Err(Error::General("a cipher that is not offered".to_owned())),
        };
        Ok((cipher?, iv.as_ref().try_into().expect("an IV of TLS 1.3 has 12 bytes")))
    }

    fn aws_lc(algorithm: &'static aws_lc::Algorithm, key: &[u8]) -> Result<Self, Error> {
        let key = aws_lc::UnboundKey::new(algorithm, key).map_err(|_| wrong_length())?;
        Ok(Self::AwsLc(aws_lc::LessSafeKey::new(key)))
    }

    fn ring(algorithm: &'static ring_aead::Algorithm, key: &[u8]) -> Result<Self, Error> {
        let key = ring_aead::UnboundKey::new(algorithm, key).map_err(|_| wrong_length())?;
        Ok(Self::Ring(Box::new(ring_aead::LessSafeKey::new(key))))
    }

    /// Seals `content` and the byte of its type into `body`, which ends with the tag.
    pub(super) fn seal(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        (content, kind): (&[u8], u8),
        body: &mut [u8],
    ) {
        let (sealed, rest) = body.split_at_mut(content.len());
        match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let aad = aws_lc::Aad::from(header);
                key.seal_out_of_place_scatter(nonce, aad, content, sealed, &[kind], rest)
                    .expect(LENGTHS_FIT);
            }
            Self::Ring(key) => {
                let nonce = ring_aead::Nonce::assume_unique_for_key(nonce);
                sealed.copy_from_slice(content);
                rest[0] = kind;
                let (inner, tag) = body.split_at_mut(content.len() + 1);
                let aad = ring_aead::Aad::from(header);
                let computed =
                    key.seal_in_place_separate_tag(nonce, aad, inner).expect(LENGTHS_FIT);
                tag.copy_from_slice(computed.as_ref());
            }
        }
    }

    /// Opens `body` without its tag into `out`, which is as long.
    ///
    /// # Errors
    /// The alert to send, if it does not authenticate; `out` has no plaintext then.
    pub(super) fn open_into(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        (body, tag): (&[u8], &[u8; TAG_BYTES]),
        out: &mut [u8],
    ) -> Result<(), AlertDescription> {
        let opened = match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let aad = aws_lc::Aad::from(header);
                key.open_separate_gather(nonce, aad, body, tag, out).is_ok()
            }
            Self::Ring(key) => {
                let nonce = ring_aead::Nonce::assume_unique_for_key(nonce);
                let aad = ring_aead::Aad::from(header);
                out.copy_from_slice(body);
                let tag = ring_aead::Tag::from(*tag);
                key.open_in_place_separate_tag(nonce, aad, tag, out, 0..).is_ok()
            }
        };
        if opened { Ok(()) } else { Err(AlertDescription::BadRecordMac) }
    }

    /// Opens `body`, which ends with the tag, in place, and returns the part that was opened.
    ///
    /// # Errors
    /// As [`RecordCipher::open_into`].
    pub(super) fn open_in_place<'a>(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        body: &'a mut [u8],
    ) -> Result<&'a mut [u8], AlertDescription> {
        match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let aad = aws_lc::Aad::from(header);
                key.open_in_place(nonce, aad, body).map_err(|_| AlertDescription::BadRecordMac)
            }
            Self::Ring(key) => {
                let nonce = ring_aead::Nonce::assume_unique_for_key(nonce);
                let aad = ring_aead::Aad::from(header);
                key.open_in_place(nonce, aad, body).map_err(|_| AlertDescription::BadRecordMac)
            }
        }
    }
}

fn wrong_length() -> Error {
    Error::General("a key of the wrong length".to_owned())
}

/// True where ring's AES-GCM is faster than that of aws-lc.
fn is_ring_faster() -> bool {
    aes_instruction_bits() == 256
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_NONCE: [u8; NONCE_BYTES] = [3; NONCE_BYTES];
    const TEST_HEADER: [u8; 5] = [23, 3, 3, 0, 9];

    /// The same key in both libraries.
    fn pairs() -> [[RecordCipher; 2]; 3] {
        let of = |first: Result<_, _>, second: Result<_, _>| [first.unwrap(), second.unwrap()];
        [
            of(
                RecordCipher::aws_lc(&aws_lc::AES_128_GCM, &[5; 16]),
                RecordCipher::ring(&ring_aead::AES_128_GCM, &[5; 16]),
            ),
            of(
                RecordCipher::aws_lc(&aws_lc::AES_256_GCM, &[6; 32]),
                RecordCipher::ring(&ring_aead::AES_256_GCM, &[6; 32]),
            ),
            of(
                RecordCipher::aws_lc(&aws_lc::CHACHA20_POLY1305, &[7; 32]),
                RecordCipher::ring(&ring_aead::CHACHA20_POLY1305, &[7; 32]),
            ),
        ]
    }

    fn sealed(cipher: &RecordCipher, content: &[u8]) -> Vec<u8> {
        let mut body = vec![0; content.len() + 1 + TAG_BYTES];
        cipher.seal(TEST_NONCE, &TEST_HEADER, (content, 23), &mut body);
        body
    }

    #[test]
    fn libraries_seal_alike() {
        let content: Vec<u8> = (0..1 << 14).map(|number: u32| number as u8).collect();
        for pair in &pairs() {
            for bytes in (0..300).chain([4095, 4096, 16_383, 16_384]) {
                let content = &content[..bytes];
                let bodies = pair.each_ref().map(|cipher| sealed(cipher, content));
                assert_eq!(bodies[0], bodies[1], "{bytes} bytes");
                for cipher in pair {
                    let (body, tag) = bodies[0].split_last_chunk().unwrap();
                    let mut out = vec![0; bytes + 1];
                    cipher.open_into(TEST_NONCE, &TEST_HEADER, (body, tag), &mut out).unwrap();
                    assert!(out[..bytes] == *content && out[bytes] == 23);
                    let mut body = bodies[0].clone();
                    let opened = cipher.open_in_place(TEST_NONCE, &TEST_HEADER, &mut body).unwrap();
                    assert!(opened == out);
                }
            }
        }
    }

    #[test]
    fn forged_records_are_refused() {
        for cipher in pairs().as_flattened() {
            let body = sealed(cipher, b"sixteen bytes and more");
            for bit in 0..body.len() * 8 {
                let mut forged = body.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                let (inner, tag) = forged.split_last_chunk().unwrap();
                let mut out = vec![0; inner.len()];
                assert!(
                    cipher.open_into(TEST_NONCE, &TEST_HEADER, (inner, tag), &mut out).is_err()
                );
                assert!(!out.starts_with(b"sixteen"));
                assert!(cipher.open_in_place(TEST_NONCE, &TEST_HEADER, &mut forged).is_err());
            }
            assert!(cipher.open_in_place(TEST_NONCE, &[0; 5], &mut body.clone()).is_err());
            assert!(cipher.open_in_place([4; 12], &TEST_HEADER, &mut body.clone()).is_err());
        }
    }
}
