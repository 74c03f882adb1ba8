//! File digests without a separate read: each block is hashed in passing, on any stream and in any
//! order, and the parts are combined.
//!
//! CRC-32C and Adler-32 combine algebraically; BLAKE3 is a tree whose subtrees are the blocks, which
//! therefore all have one power-of-two length. SHA-256 and MD5 do not combine: [`Serial`] needs the
//! bytes in file order, and the reader of the file must read again what arrived out of order.

use std::fmt;
use std::str::FromStr;

use blake3::hazmat::{self, HasherExt, Mode};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use md5::Digest as _;
use serde::{Deserialize, Serialize};

use concatenation::crc32c_of_both;

mod concatenation;

/// Digest algorithm of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// No file digest; blocks still have their own checksums.
    None,
    /// CRC-32C (Castagnoli), the default: every block has it anyway.
    Crc32c,
    /// Adler-32, common in WLCG storage.
    Adler32,
    /// BLAKE3, cryptographic and combinable.
    Blake3,
    /// SHA-256, in file order.
    Sha256,
    /// MD5, in file order.
    Md5,
}

const NAMES: [(&str, Algorithm); 6] = [
    ("none", Algorithm::None),
    ("crc32c", Algorithm::Crc32c),
    ("adler32", Algorithm::Adler32),
    ("blake3", Algorithm::Blake3),
    ("sha256", Algorithm::Sha256),
    ("md5", Algorithm::Md5),
];

impl Algorithm {
    /// True if blocks can be hashed in any order.
    #[must_use]
    pub fn combines(self) -> bool {
        !matches!(self, Self::Sha256 | Self::Md5)
    }

    /// Algorithm that verifies ranges of an unfinished file: this one if its parts are checksums, else
    /// CRC-32C.
    #[must_use]
    pub fn of_ranges(self) -> Self {
        match self {
            Self::None | Self::Sha256 | Self::Md5 => Self::Crc32c,
            Self::Crc32c | Self::Adler32 | Self::Blake3 => self,
        }
    }

    /// True if parts depend on block boundaries.
    #[must_use]
    pub fn needs_grid(self) -> bool {
        self == Self::Blake3
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, algorithm)| algorithm == self);
        f.write_str(name.map_or("none", |(name, _)| name))
    }
}

/// A name that is not that of a checksum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is no checksum penstock knows: use one of {}", algorithm_names())]
pub struct UnknownAlgorithm {
    /// The name as given.
    pub name: String,
}

/// Lists the names of the algorithms.
fn algorithm_names() -> String {
    let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = NAMES.iter().find(|(name, _)| *name == text);
        let unknown = || UnknownAlgorithm { name: text.to_owned() };
        known.map(|(_, algorithm)| *algorithm).ok_or_else(unknown)
    }
}

/// Combinable digest of one block or range; unused bytes are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DigestPart(pub [u8; 32]);

impl DigestPart {
    fn to_u32(self) -> u32 {
        u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }

    fn from_u32(value: u32) -> Self {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&value.to_be_bytes());
        Self(bytes)
    }
}

/// Digest of a whole file, big-endian; empty if unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest(pub Vec<u8>);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Computes the CRC-32C of `data`, as in every frame.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, data) as u32
}

/// CRC-32C of data that arrives in parts.
#[derive(Debug)]
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(crc_fast::Digest::new(Crc32Iscsi))
    }
}

impl Crc32c {
    /// Adds the next part.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// Returns the checksum of all parts.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// Computes the part of the block at `offset` of a file of `file_bytes`. `crc` is the block's CRC-32C,
/// so the default digest costs nothing.
#[must_use]
pub fn part(
    algorithm: Algorithm,
    offset: u64,
    file_bytes: u64,
    data: &[u8],
    crc: u32,
) -> DigestPart {
    match algorithm {
        Algorithm::None | Algorithm::Sha256 | Algorithm::Md5 => DigestPart::default(),
        Algorithm::Crc32c => DigestPart::from_u32(crc),
        Algorithm::Adler32 => DigestPart::from_u32(simd_adler32::adler32(&data)),
        Algorithm::Blake3 if data.len() as u64 == file_bytes => {
            DigestPart(blake3::hash(data).into())
        }
        Algorithm::Blake3 => {
            let mut hasher = blake3::Hasher::new();
            hasher.set_input_offset(offset);
            hasher.update(data);
            DigestPart(hasher.finalize_non_root())
        }
    }
}

/// Hasher of one range that is too long for a single buffer; takes its bytes in order.
#[derive(Debug, Clone)]
pub struct RangeHasher {
    algorithm: Algorithm,
    hasher: SerialHasher,
    /// Set when the range is the whole file, which BLAKE3 hashes as a root.
    is_file: bool,
}

impl RangeHasher {
    /// Creates a hasher for `bytes` at `offset` of a file of `file_bytes`. `None` if parts of
    /// `algorithm` are no checksum, or the range is no BLAKE3 subtree.
    #[must_use]
    pub fn new(algorithm: Algorithm, offset: u64, bytes: u64, file_bytes: u64) -> Option<Self> {
        let is_subtree = offset.is_multiple_of(blake3::CHUNK_LEN as u64)
            && hazmat::max_subtree_len(offset).is_none_or(|longest| bytes <= longest);
        if algorithm == Algorithm::Blake3 && !is_subtree {
            return None;
        }
        let hasher = match algorithm {
            Algorithm::None | Algorithm::Sha256 | Algorithm::Md5 => return None,
            Algorithm::Crc32c => SerialHasher::Crc32c(crc_fast::Digest::new(Crc32Iscsi)),
            Algorithm::Adler32 => SerialHasher::Adler32(1),
            Algorithm::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                if bytes < file_bytes {
                    hasher.set_input_offset(offset);
                }
                SerialHasher::Blake3(Box::new(hasher))
            }
        };
        Some(Self { algorithm, hasher, is_file: bytes == file_bytes })
    }

    /// Hashes the next bytes of the range.
    pub fn update(&mut self, data: &[u8]) {
        self.hasher.update(data);
    }

    /// Returns the part of the range.
    #[must_use]
    pub fn finish(self) -> DigestPart {
        match self.hasher {
            SerialHasher::Crc32c(hasher) => DigestPart::from_u32(hasher.finalize() as u32),
            SerialHasher::Adler32(sum) => DigestPart::from_u32(sum),
            SerialHasher::Blake3(hasher) if self.is_file => DigestPart(hasher.finalize().into()),
            SerialHasher::Blake3(hasher) => DigestPart(hasher.finalize_non_root()),
            SerialHasher::Sha256(_) | SerialHasher::Md5(_) => {
                unreachable!("{} has no parts", self.algorithm)
            }
        }
    }
}

/// Merges the parts of two adjacent ranges; with BLAKE3 they must be the halves of a subtree.
#[must_use]
pub fn merge(
    algorithm: Algorithm,
    left: DigestPart,
    right: DigestPart,
    right_bytes: u64,
) -> DigestPart {
    match algorithm {
        Algorithm::Crc32c => {
            DigestPart::from_u32(crc32c_of_both(left.to_u32(), right.to_u32(), right_bytes))
        }
        Algorithm::Adler32 => {
            DigestPart::from_u32(merge_adler32(left.to_u32(), right.to_u32(), right_bytes))
        }
        Algorithm::Blake3 => {
            DigestPart(hazmat::merge_subtrees_non_root(&left.0, &right.0, Mode::Hash))
        }
        Algorithm::None | Algorithm::Sha256 | Algorithm::Md5 => DigestPart::default(),
    }
}

/// Computes Adler-32 of a concatenation (RFC 1950 section 9). The sums start at 1 and 0: the second's
/// leading 1 is subtracted, and the first's low sum counts once for every byte that follows.
fn merge_adler32(left: u32, right: u32, right_bytes: u64) -> u32 {
    const MOD_ADLER: u64 = 65_521;
    let split = |sum: u32| (u64::from(sum & 0xffff), u64::from(sum >> 16));
    let ((left_low, left_high), (right_low, right_high)) = (split(left), split(right));
    let low = (left_low + right_low + MOD_ADLER - 1) % MOD_ADLER;
    let carried = (right_bytes % MOD_ADLER) * ((left_low + MOD_ADLER - 1) % MOD_ADLER);
    let high = (left_high + right_high + carried) % MOD_ADLER;
    ((high << 16) | low) as u32
}

/// Combines parts in order, as `(offset, bytes, part)`, to the digest of a file of `file_bytes`. `None`
/// if the parts do not cover the file or the algorithm does not combine.
#[must_use]
pub fn combine(
    algorithm: Algorithm,
    file_bytes: u64,
    parts: &[(u64, u64, DigestPart)],
) -> Option<Digest> {
    let mut expected = 0;
    for (offset, bytes, _) in parts {
        if *offset != expected {
            return None;
        }
        expected += bytes;
    }
    if expected != file_bytes {
        return None;
    }
    match algorithm {
        Algorithm::None => Some(Digest(Vec::new())),
        Algorithm::Sha256 | Algorithm::Md5 => None,
        Algorithm::Crc32c | Algorithm::Adler32 => {
            let empty = DigestPart::from_u32(u32::from(algorithm == Algorithm::Adler32));
            let whole = parts
                .iter()
                .copied()
                .map(|(_, bytes, part)| (bytes, part))
                .reduce(|(left_bytes, left), (right_bytes, right)| {
                    (left_bytes + right_bytes, merge(algorithm, left, right, right_bytes))
                })
                .map_or(empty, |(_, part)| part);
            Some(Digest(whole.0[..4].to_vec()))
        }
        Algorithm::Blake3 => match parts {
            [] => Some(Digest(blake3::hash(b"").as_bytes().to_vec())),
            [(_, _, whole)] => Some(Digest(whole.0.to_vec())),
            _ => blake3_root(parts, file_bytes).map(|root| Digest(root.to_vec())),
        },
    }
}

fn blake3_root(parts: &[(u64, u64, DigestPart)], file_bytes: u64) -> Option<[u8; 32]> {
    let (left, right) = blake3_halves(parts, file_bytes)?;
    let left = blake3_subtree(left.0, left.1)?;
    let right = blake3_subtree(right.0, right.1)?;
    Some(hazmat::merge_subtrees_root(&left, &right, Mode::Hash).into())
}

fn blake3_subtree(parts: &[(u64, u64, DigestPart)], bytes: u64) -> Option<[u8; 32]> {
    if let [(_, _, part)] = parts {
        return Some(part.0);
    }
    let (left, right) = blake3_halves(parts, bytes)?;
    let left = blake3_subtree(left.0, left.1)?;
    let right = blake3_subtree(right.0, right.1)?;
    Some(hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash))
}

type Subtree<'a> = (&'a [(u64, u64, DigestPart)], u64);

/// Splits like BLAKE3: the left subtree is the largest power of two of chunks below the whole.
fn blake3_halves(
    parts: &[(u64, u64, DigestPart)],
    bytes: u64,
) -> Option<(Subtree<'_>, Subtree<'_>)> {
    let left_bytes = hazmat::left_subtree_len(bytes);
    let start = parts.first()?.0;
    let middle = parts.binary_search_by_key(&(start + left_bytes), |(offset, ..)| *offset).ok()?;
    Some(((&parts[..middle], left_bytes), (&parts[middle..], bytes - left_bytes)))
}

/// Digest computed from bytes in file order.
#[derive(Debug, Clone)]
pub struct Serial {
    hasher: SerialHasher,
    next: u64,
}

#[derive(Debug, Clone)]
enum SerialHasher {
    Crc32c(crc_fast::Digest),
    Adler32(u32),
    Blake3(Box<blake3::Hasher>),
    Sha256(sha2::Sha256),
    Md5(md5::Md5),
}

impl SerialHasher {
    fn update(&mut self, data: &[u8]) {
        match self {
            Self::Crc32c(hasher) => hasher.update(data),
            Self::Adler32(sum) => {
                let mut hasher = simd_adler32::Adler32::from_checksum(*sum);
                hasher.write(data);
                *sum = hasher.finish();
            }
            Self::Blake3(hasher) => {
                hasher.update(data);
            }
            Self::Sha256(hasher) => hasher.update(data),
            Self::Md5(hasher) => hasher.update(data),
        }
    }
}

impl Serial {
    /// Starts at offset 0; `None` for [`Algorithm::None`].
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        let hasher = match algorithm {
            Algorithm::None => return None,
            Algorithm::Crc32c => SerialHasher::Crc32c(crc_fast::Digest::new(Crc32Iscsi)),
            Algorithm::Adler32 => SerialHasher::Adler32(1),
            Algorithm::Blake3 => SerialHasher::Blake3(Box::default()),
            Algorithm::Sha256 => SerialHasher::Sha256(sha2::Sha256::new()),
            Algorithm::Md5 => SerialHasher::Md5(md5::Md5::new()),
        };
        Some(Self { hasher, next: 0 })
    }

    /// Offset of the next byte to hash.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Hashes the bytes at [`Serial::next`].
    pub fn update(&mut self, data: &[u8]) {
        self.hasher.update(data);
        self.next += data.len() as u64;
    }

    /// Returns the digest of all bytes hashed.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(match self.hasher {
            SerialHasher::Crc32c(hasher) => (hasher.finalize() as u32).to_be_bytes().to_vec(),
            SerialHasher::Adler32(sum) => sum.to_be_bytes().to_vec(),
            SerialHasher::Blake3(hasher) => hasher.finalize().as_bytes().to_vec(),
            SerialHasher::Sha256(hasher) => hasher.finalize().to_vec(),
            SerialHasher::Md5(hasher) => hasher.finalize().to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(algorithm: Algorithm, data: &[u8]) -> String {
        let mut serial = Serial::new(algorithm).expect("an algorithm");
        serial.update(data);
        serial.finish().to_string()
    }

    #[test]
    fn published_vectors() {
        // RFC 3720 B.4 (CRC-32C), RFC 1950 (Adler-32), BLAKE3, FIPS 180-4 and RFC 1321 test strings.
        assert_eq!(whole(Algorithm::Crc32c, &[0; 32]), "8a9136aa");
        assert_eq!(whole(Algorithm::Crc32c, b"123456789"), "e3069283");
        assert_eq!(whole(Algorithm::Adler32, b"Wikipedia"), "11e60398");
        assert_eq!(whole(Algorithm::Adler32, b""), "00000001");
        assert!(whole(Algorithm::Blake3, b"").starts_with("af1349b9f5f9a1a6"));
        assert!(whole(Algorithm::Sha256, b"abc").starts_with("ba7816bf8f01cfea"));
        assert_eq!(whole(Algorithm::Md5, b"abc"), "900150983cd24fb0d6963f7d28e17f72");
    }

    #[test]
    fn empty_files_have_digests() {
        for algorithm in [Algorithm::Crc32c, Algorithm::Adler32, Algorithm::Blake3] {
            let digest = combine(algorithm, 0, &[]).expect("no parts make an empty file");
            assert_eq!(digest.to_string(), whole(algorithm, b""));
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// The serial digest, checked by published vectors, is the oracle for the combined one.
        #[test]
        fn parts_combine_to_the_whole(
            data in proptest::collection::vec(any::<u8>(), 0..40_000),
            log_block in 10_u32..14,
        ) {
            for algorithm in [Algorithm::Crc32c, Algorithm::Adler32, Algorithm::Blake3] {
                let mut offset = 0;
                let mut parts = Vec::new();
                for block in data.chunks(1 << log_block) {
                    let part = part(algorithm, offset, data.len() as u64, block, crc32c(block));
                    parts.push((offset, block.len() as u64, part));
                    offset += block.len() as u64;
                }
                for (index, (offset, bytes, part)) in parts.iter().enumerate() {
                    let range = *offset as usize..(*offset + *bytes) as usize;
                    let total = data.len() as u64;
                    let mut hasher = RangeHasher::new(algorithm, *offset, *bytes, total)
                        .expect("an algorithm with parts");
                    data[range].chunks(700 + index).for_each(|piece| hasher.update(piece));
                    prop_assert_eq!(hasher.finish(), *part);
                }
                let digest = combine(algorithm, offset, &parts).expect("parts are whole");
                prop_assert_eq!(digest.to_string(), whole(algorithm, &data));
                prop_assert!(combine(algorithm, offset + 1, &parts).is_none());
            }
        }
    }
}
