//! Checksums and authentication of blocks.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use penstock_protocol::block::PayloadChecks;
use penstock_protocol::digest::{self, Algorithm, DigestPart};
use penstock_protocol::proof::SessionKey;
use penstock_random::Random;

use crate::{HotPath, count};

const BLOCK_BYTES: usize = 4 << 20;
/// Content of a full record of TLS.
const RECORD_BYTES: usize = 16 << 10;

pub(crate) const PATHS: &[HotPath] = &[
    ("crc32c-block", crc32c_block),
    ("crc32c-combine", crc32c_combine),
    ("payload-checks-block", payload_checks),
    ("gcm-seal-record", gcm_seal),
    ("gcm-open-record", gcm_open),
];

pub(crate) fn content(bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    Random::new(bytes as u64).fill(&mut content);
    content
}

fn crc32c_block() {
    let block = content(BLOCK_BYTES);
    count(|| digest::crc32c(&block));
}

/// Parts of a file of 4 GiB.
fn crc32c_combine() {
    let bytes = BLOCK_BYTES as u64;
    let part = |number: u64| {
        let crc = digest::crc32c(&number.to_be_bytes());
        (number * bytes, bytes, digest::part(Algorithm::Crc32c, 0, 0, &[], crc))
    };
    let parts: Vec<(u64, u64, DigestPart)> = (0..1024).map(part).collect();
    count(|| digest::combine(Algorithm::Crc32c, 1024 * bytes, &parts));
}

/// Checks of a block that each end makes in integrity mode.
fn payload_checks() {
    let (block, key) = (content(BLOCK_BYTES), SessionKey([3; 32]).payload_key(&[4; 16]));
    count(|| {
        let mut checks = PayloadChecks::new(Some(&key));
        checks.update(&block);
        checks.finish()
    });
}

fn gcm_key() -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("a key of 16 bytes"))
}

fn gcm_seal() {
    let (mut record, key) = (content(RECORD_BYTES), gcm_key());
    count(|| {
        let nonce = Nonce::assume_unique_for_key([8; 12]);
        key.seal_in_place_separate_tag(nonce, Aad::from([9; 5]), &mut record)
    });
}

fn gcm_open() {
    let key = gcm_key();
    let mut sealed = content(RECORD_BYTES);
    let nonce = || Nonce::assume_unique_for_key([8; 12]);
    key.seal_in_place_append_tag(nonce(), Aad::from([9; 5]), &mut sealed).expect("a short record");
    let mut copies = [sealed.clone(), sealed].into_iter();
    count(|| {
        let mut record = copies.next().expect("two records");
        key.open_in_place(nonce(), Aad::from([9; 5]), &mut record).expect("an authentic record");
        record
    });
}
