//! Frames of a data stream: a fixed header with the position of the payload, then the payload.
//!
//! A frame is self-contained, so any block may use any stream; `docs/protocol.md` shows the bytes. In
//! integrity mode a [`Seal`] follows the header: a tag of the payload's hash, and a tag of header and
//! payload tag, so that the receiver authenticates a length before it uses it.

use crate::digest::{Crc32c, DigestPart, crc32c};
use crate::proof::{Authenticator, HASHED_PART_BYTES, PayloadHash, PayloadKey, TAG_BYTES};
use crate::wire::{self, WireError, WireFormat, WireReader, wire_struct};

/// Encoded size of a frame header.
pub const HEADER_BYTES: usize = 80;

/// Size of the tags that follow the header in integrity mode.
pub const SEAL_BYTES: usize = 2 * TAG_BYTES;

/// Largest payload of a frame, and thus the largest `--block`.
pub const PAYLOAD_BYTES_MAX: u32 = 64 << 20;

/// Smallest block size. Block sizes are powers of two: offsets stay aligned for direct I/O, and blocks
/// are subtrees of BLAKE3.
pub const BLOCK_BYTES_MIN: u32 = 64 << 10;

/// Default block size: amortises per-block costs and fits a shared L3 cache.
pub const BLOCK_BYTES_DEFAULT: u32 = 4 << 20;

/// Limit of files in one pack.
pub const PACK_FILES_MAX: u16 = 8_192;

/// Size from which a file in a pack begins on a page boundary, so that both ends can use direct I/O.
pub const PACK_ALIGN_BYTES_MIN: usize = 16 << 10;

const PAGE_BYTES: usize = 4096;

/// Offset at which a file of `bytes` begins in a pack, after `at` bytes.
#[must_use]
pub fn pack_start(at: usize, bytes: usize) -> usize {
    if bytes < PACK_ALIGN_BYTES_MIN { at } else { at.next_multiple_of(PAGE_BYTES) }
}

/// Upper bound of the bytes that a file of `bytes` occupies in a pack, table item included.
#[must_use]
pub fn pack_room(bytes: u64) -> u64 {
    let padding = if bytes < PACK_ALIGN_BYTES_MIN as u64 { 0 } else { 2 * PAGE_BYTES as u64 };
    PackItem::MIN_BYTES as u64 + bytes + padding
}

/// Payload type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Data of one file.
    Block,
    /// Zeros of one file, without payload.
    Hole,
    /// Whole small files, followed by a table of [`PackItem`].
    Pack,
    /// Last frame of a stream; the sender closes it.
    End,
}

impl WireFormat for FrameKind {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Block),
            1 => Ok(Self::Hole),
            2 => Ok(Self::Pack),
            3 => Ok(Self::End),
            _ => Err(WireError::Invalid("frame kind")),
        }
    }
}

wire_struct! {
    /// Frame header, without the trailing checksum.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Header {
        /// Type of the payload.
        pub kind: FrameKind,
        /// Zero in this version.
        pub reserved: u8,
        /// Files in a pack, zero otherwise.
        pub items: u16,
        /// Size of the payload that follows.
        pub payload_bytes: u32,
        /// Frame number in the session, used in acknowledgements.
        pub sequence: u64,
        /// Number of the file, zero in a pack.
        pub file: u64,
        /// Offset in the file, zero in a pack.
        pub offset: u64,
        /// File bytes that the frame covers: the payload of a block, the zeros of a hole. In a pack,
        /// the bytes before its table.
        pub bytes: u64,
        /// Digest part of those bytes in the session's algorithm, zero in a pack.
        pub part: [u8; 32],
        /// CRC-32C of the payload.
        pub payload_crc: u32,
    }
}

/// Frame error; the stream is not usable after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The header does not decode.
    #[error("frame header is damaged: {0}")]
    Header(#[from] WireError),
    /// Wrong checksum or tag of the header.
    #[error("frame header fails its integrity check")]
    HeaderIntegrity,
    /// A length is out of range or contradicts another.
    #[error("frame {sequence} has an impossible {what}")]
    Shape {
        /// Frame number.
        sequence: u64,
        /// Name of the wrong field.
        what: &'static str,
    },
    /// Wrong checksum or tag of the payload.
    #[error("payload of frame {0} fails its integrity check")]
    PayloadIntegrity(u64),
}

impl Header {
    /// Returns the header of the last frame of a stream.
    #[must_use]
    pub fn end() -> Self {
        Self {
            kind: FrameKind::End,
            reserved: 0,
            items: 0,
            payload_bytes: 0,
            sequence: 0,
            file: 0,
            offset: 0,
            bytes: 0,
            part: [0; 32],
            payload_crc: 0,
        }
    }

    /// Encodes the header with its checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = wire::encode(self);
        crc32c(&out).put(&mut out);
        out.try_into().expect("the fields make HEADER_BYTES")
    }

    /// Decodes a header and checks its checksum and consistency.
    ///
    /// # Errors
    /// If the checksum is wrong or the fields contradict each other.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let (fields, crc) = bytes.split_at(HEADER_BYTES - 4);
        if crc32c(fields).to_be_bytes() != crc {
            return Err(FrameError::HeaderIntegrity);
        }
        let header: Self = wire::decode(fields)?;
        let shape = |what| Err(FrameError::Shape { sequence: header.sequence, what });
        let payload = u64::from(header.payload_bytes);
        if header.payload_bytes > PAYLOAD_BYTES_MAX {
            return shape("payload length");
        }
        if header.offset.checked_add(header.bytes).is_none() {
            return shape("offset");
        }
        match header.kind {
            FrameKind::Block if payload != header.bytes || payload == 0 => shape("block length"),
            FrameKind::Hole if payload != 0 || header.bytes == 0 => shape("hole length"),
            FrameKind::Pack if !pack_fits(&header) => shape("pack length"),
            FrameKind::End if payload != 0 => shape("end"),
            _ => Ok(header),
        }
    }

    /// Digest part of the covered bytes.
    #[must_use]
    pub fn part(&self) -> DigestPart {
        DigestPart(self.part)
    }
}

fn pack_fits(header: &Header) -> bool {
    let table = u64::from(header.items) * PackItem::MIN_BYTES as u64;
    (1..=PACK_FILES_MAX).contains(&header.items)
        && header.bytes + table == u64::from(header.payload_bytes)
}

/// Tags of a frame in integrity mode: payload tag, header tag.
pub type Seal = [u8; SEAL_BYTES];

/// CRC-32C of a payload and, in integrity mode, its keyed hash, in one pass.
#[derive(Debug)]
pub struct PayloadChecks<'a> {
    key: Option<&'a PayloadKey>,
    crc: Crc32c,
    hash: PayloadHash,
}

impl<'a> PayloadChecks<'a> {
    /// Starts a payload; without a key there is no hash.
    #[must_use]
    pub fn new(key: Option<&'a PayloadKey>) -> Self {
        Self { key, crc: Crc32c::default(), hash: PayloadHash::default() }
    }

    /// Adds the next bytes: a multiple of [`HASHED_PART_BYTES`], or the rest.
    pub fn update(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(HASHED_PART_BYTES) {
            // The hash computes longer, so that the processor fetches ahead of it; the checksum is limited by memory.
            if let Some(key) = self.key {
                key.hash_part(part, &mut self.hash);
            }
            self.crc.update(part);
        }
    }

    /// Returns the checksum, and the hash if there is a key.
    #[must_use]
    pub fn finish(self) -> (u32, Option<PayloadHash>) {
        (self.crc.value(), self.key.is_some().then_some(self.hash))
    }
}

/// Tags the hash of the payload, and the header, as the next two records of `authenticator`.
#[must_use]
pub fn seal(
    authenticator: &mut Authenticator,
    header: &[u8; HEADER_BYTES],
    payload: &PayloadHash,
) -> Seal {
    let payload_tag = authenticator.tag(payload.record());
    let header_tag = authenticator.tag(&sealed_header(header, &payload_tag));
    let mut seal = [0; SEAL_BYTES];
    seal[..TAG_BYTES].copy_from_slice(&payload_tag);
    seal[TAG_BYTES..].copy_from_slice(&header_tag);
    seal
}

/// Verifies the frames of one stream in the order in which they were sealed.
#[derive(Debug)]
pub struct Opener {
    authenticator: Authenticator,
}

impl Opener {
    /// Creates an opener with the same key as the sender's authenticator.
    #[must_use]
    pub fn new(authenticator: Authenticator) -> Self {
        Self { authenticator }
    }

    /// Key that hashes the payloads of the session.
    #[must_use]
    pub fn payload_key(&self) -> &PayloadKey {
        self.authenticator.payload_key()
    }

    /// Verifies a header and returns the tag that the payload must have.
    ///
    /// # Errors
    /// If the peer did not seal this header as the next frame.
    pub fn header(
        &mut self,
        header: &[u8; HEADER_BYTES],
        seal: &Seal,
    ) -> Result<[u8; TAG_BYTES], FrameError> {
        let (payload_tag, header_tag) = seal.split_at(TAG_BYTES);
        let payload_tag: [u8; TAG_BYTES] = payload_tag.try_into().expect("half a seal");
        let header_tag = header_tag.try_into().expect("half a seal");
        // The payload's record precedes the header's in the record count.
        let record = sealed_header(header, &payload_tag);
        if self.authenticator.verify_after_next(&record, &header_tag) {
            Ok(payload_tag)
        } else {
            Err(FrameError::HeaderIntegrity)
        }
    }

    /// Verifies the payload of the header verified last.
    #[must_use]
    pub fn payload(&mut self, payload: &PayloadHash, tag: &[u8; TAG_BYTES]) -> bool {
        let good = self.authenticator.verify(payload.record(), tag);
        self.authenticator.skip();
        good
    }
}

fn sealed_header(
    header: &[u8; HEADER_BYTES],
    payload_tag: &[u8; TAG_BYTES],
) -> [u8; HEADER_BYTES + TAG_BYTES] {
    let mut record = [0; HEADER_BYTES + TAG_BYTES];
    record[..HEADER_BYTES].copy_from_slice(header);
    record[HEADER_BYTES..].copy_from_slice(payload_tag);
    record
}

wire_struct! {
    /// Table item of a file in a pack.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PackItem {
        /// Number of the file.
        pub file: u64,
        /// Size of the file. Files lie in the payload in table order; see [`pack_start`].
        pub bytes: u32,
        /// CRC-32C of the file.
        pub crc: u32,
        /// Digest part of the file.
        pub part: [u8; 32],
    }
}

/// Reads the table at the end of a pack's payload; returns the offset of each file with its item.
///
/// # Errors
/// If the table is damaged or its lengths do not add up to the payload.
pub fn pack_items(header: &Header, payload: &[u8]) -> Result<Vec<(usize, PackItem)>, FrameError> {
    let shape = || FrameError::Shape { sequence: header.sequence, what: "pack table" };
    let data_bytes = usize::try_from(header.bytes).map_err(|_| shape())?;
    let table = payload.get(data_bytes..).ok_or_else(shape)?;
    let mut input = WireReader::new(table);
    let mut items = Vec::with_capacity(usize::from(header.items.min(PACK_FILES_MAX)));
    let mut at = 0;
    for _ in 0..header.items {
        let item = PackItem::take(&mut input)?;
        let start = pack_start(at, item.bytes as usize);
        at = start
            .checked_add(item.bytes as usize)
            .filter(|end| *end <= data_bytes)
            .ok_or_else(shape)?;
        items.push((start, item));
    }
    if at != data_bytes || input.remaining() != 0 {
        return Err(shape());
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proof::{Nonces, SessionKey};

    fn block(payload: &[u8]) -> Header {
        let bytes = payload.len() as u64;
        Header {
            kind: FrameKind::Block,
            payload_bytes: payload.len() as u32,
            sequence: 5,
            file: 6,
            offset: 7 << 20,
            bytes,
            payload_crc: crc32c(payload),
            ..Header::end()
        }
    }

    #[test]
    fn header_round_trips_at_fixed_size() {
        let header = block(b"data");
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        assert_eq!(Header::decode(&Header::end().encode()), Ok(Header::end()));
    }

    #[test]
    fn contradicting_lengths_are_rejected() {
        let good = block(b"data");
        for bad in [
            Header { payload_bytes: PAYLOAD_BYTES_MAX + 1, ..good.clone() },
            Header { bytes: 5, ..good.clone() },
            Header { offset: u64::MAX, ..good.clone() },
            Header { kind: FrameKind::Hole, ..good.clone() },
            Header { kind: FrameKind::Pack, items: 3, ..good.clone() },
            Header { kind: FrameKind::Pack, ..good.clone() },
            Header { kind: FrameKind::End, ..good },
        ] {
            let error = Header::decode(&bad.encode());
            assert!(matches!(error, Err(FrameError::Shape { .. })), "{bad:?}");
        }
    }

    #[test]
    fn seals_reject_reordered_frames() {
        let nonces = Nonces { acceptor: [1; 32], connector: [2; 32] };
        let make = || SessionKey([3; 32]).authenticator(&[4; 16], 0, &nonces);
        let mut sender = make();
        let key = SessionKey([3; 32]).payload_key(&[4; 16]);
        let frames: Vec<_> = [&b"one"[..], b"two"]
            .into_iter()
            .map(|payload| {
                let (header, hash) = (block(payload).encode(), key.hash(payload));
                (header, seal(&mut sender, &header, &hash), hash)
            })
            .collect();
        let mut opener = Opener::new(make());
        for (header, seal, hash) in &frames {
            let tag = opener.header(header, seal).expect("sealed in this order");
            assert!(opener.payload(hash, &tag));
        }
        let mut skipped = Opener::new(make());
        assert!(skipped.header(&frames[1].0, &frames[1].1).is_err(), "a dropped frame");
        let mut changed = Opener::new(make());
        let tag = changed.header(&frames[0].0, &frames[0].1).expect("the first frame");
        assert!(!changed.payload(&key.hash(b"onf"), &tag), "a changed payload");
    }

    #[test]
    fn checks_do_not_depend_on_cuts() {
        let key = SessionKey([3; 32]).payload_key(&[4; 16]);
        let payload: Vec<u8> = (0..=250).cycle().take(5 * HASHED_PART_BYTES + 7).collect();
        for cut in [1, 2, 4, 8].map(|parts| parts * HASHED_PART_BYTES) {
            for key in [None, Some(&key)] {
                let mut checks = PayloadChecks::new(key);
                payload.chunks(cut).for_each(|part| checks.update(part));
                let expected = (crc32c(&payload), key.map(|key| key.hash(&payload)));
                assert_eq!(checks.finish(), expected, "cut every {cut} bytes");
            }
        }
    }

    /// The vectors of `docs/protocol.md`, which another implementation of AES-GCM made.
    #[test]
    fn seals_match_documented_vectors() {
        let document = include_str!("../../../docs/protocol.md");
        let nonces = Nonces { acceptor: [1; 32], connector: [2; 32] };
        let key = SessionKey([3; 32]);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut header = [0; HEADER_BYTES];
        header[..32].copy_from_slice(&[
            0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0,
            0x70, 0, 0,
        ]);
        header[39] = 4;
        header[40..72].fill(0xee);
        header[72..].copy_from_slice(&[0xae, 0xd8, 0x7d, 0xd1, 0x55, 0x27, 0xdd, 0x33]);
        let long: Vec<u8> = (0..=250).cycle().take(100_000).collect();
        let mut sender = key.authenticator(&[4; 16], 0, &nonces);
        assert!(document.contains(&hex(&key.join_proof(&[4; 16], 0, &nonces))));
        for payload in [&b"data"[..], &long] {
            let hash = key.payload_key(&[4; 16]).hash(payload);
            assert!(document.contains(&hex(hash.record())));
            assert!(document.contains(&hex(&seal(&mut sender, &header, &hash))));
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn arbitrary_header_never_panics(bytes in proptest::array::uniform32(any::<u8>())) {
            let mut header = [0; HEADER_BYTES];
            header[..32].copy_from_slice(&bytes);
            let crc = crc32c(&header[..HEADER_BYTES - 4]).to_be_bytes();
            header[HEADER_BYTES - 4..].copy_from_slice(&crc);
            if let Ok(decoded) = Header::decode(&header) {
                prop_assert_eq!(decoded.encode(), header);
            }
        }

        #[test]
        fn any_flipped_bit_is_detected(bit in 0..HEADER_BYTES * 8) {
            let mut bytes = block(b"data").encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), Err(FrameError::HeaderIntegrity));
        }

        #[test]
        fn arbitrary_pack_never_panics(
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            items in 0_u16..8,
            bytes in 0_u64..300,
        ) {
            let header = Header { kind: FrameKind::Pack, items, bytes, ..block(&payload) };
            if let Ok(table) = pack_items(&header, &payload) {
                prop_assert_eq!(table.len(), usize::from(items));
            }
        }
    }
}
