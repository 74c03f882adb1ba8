//! Reader and writer of frames on a data stream, with the session's protection.
//!
//! One stream in one direction. A reader that fails has lost its position and the stream with it:
//! `InvalidData` means an integrity failure, anything else a connection failure.

use std::borrow::Cow;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use penstock_protocol::block::{
    self, FrameError, HEADER_BYTES, Header, Opener, PayloadChecks, SEAL_BYTES, Seal,
};
use penstock_protocol::proof::{Authenticator, HASHED_PART_BYTES, PayloadHash, TAG_BYTES};
use penstock_rdma::stream::BlockPart;
use penstock_sys::buffer::Buffer;
use penstock_sys::net::PageSender;

use crate::net::channel::Channel;

/// Smallest payload whose pages are sent without a copy, in bytes: below, looking up pages costs more.
const PAGES_BYTES_MIN: usize = 64 << 10;

/// Part of a payload that is read and then checked, in bytes: it fits a processor's own cache.
const CHECKED_PART_BYTES: usize = 4 * HASHED_PART_BYTES;

/// Payload of a frame, by the way in which it is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FramePayload<'a> {
    /// Copied into the socket.
    Bytes(&'a [u8]),
    /// Pages that the socket refers to: the first bytes of a buffer, which stays unchanged until the receiver
    /// acknowledges the frame.
    Pages(&'a Buffer, usize),
    /// Block that RDMA sends from its buffer: the first bytes, and the most blocks that the stream holds.
    Block(&'a Arc<Buffer>, usize, usize),
}

impl<'a> FramePayload<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pages(buffer, len) => &buffer[..len],
            Self::Block(buffer, len, _) => &buffer[..len],
        }
    }

    /// Part of the payload for RDMA, if there is any.
    fn part(self, bytes: Range<usize>) -> Option<BlockPart<'a, Buffer>> {
        match self {
            Self::Block(block, _, blocks_held_max) if !bytes.is_empty() => {
                Some(BlockPart { block, bytes, blocks_held_max })
            }
            _ => None,
        }
    }
}

/// Writer of the frames of one stream.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    channel: Channel,
    authenticator: Option<Authenticator>,
    /// Sender of pages, for TCP without TLS.
    pages: Option<PageSender>,
}

impl FrameWriter {
    /// Creates a writer: sealed with an authenticator, under TLS without.
    #[must_use]
    pub(crate) fn new(channel: Channel, authenticator: Option<Authenticator>) -> Self {
        let is_plain_tcp =
            !channel.is_tls() && !channel.is_rdma() && channel.transport().peer_address().is_some();
        // Without a pipe payloads are copied.
        let pages = is_plain_tcp.then(PageSender::new).and_then(Result::ok);
        Self { channel, authenticator, pages }
    }

    /// True if RDMA carries the frames.
    #[must_use]
    pub(crate) fn is_rdma(&self) -> bool {
        self.channel.is_rdma()
    }

    /// True if the pages of a payload of this size can be sent.
    #[must_use]
    pub(crate) fn sends_pages(&self, payload_bytes: usize) -> bool {
        self.pages.is_some() && payload_bytes >= PAGES_BYTES_MIN
    }

    /// Writes one frame; calls `pace` before each part of `part_bytes`. `hash` is that of the payload, where it is
    /// known already.
    ///
    /// # Errors
    /// If the connection is lost or `pace` fails.
    pub(crate) fn write(
        &mut self,
        header: &Header,
        payload: FramePayload<'_>,
        hash: Option<&PayloadHash>,
        part_bytes: usize,
        pace: impl Fn(&Channel, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let bytes = payload.bytes();
        let mut head = [0; HEADER_BYTES + SEAL_BYTES];
        let (encoded, seal) = head.split_first_chunk_mut().expect("longer than a header");
        *encoded = header.encode();
        let head = match &mut self.authenticator {
            None => &head[..HEADER_BYTES],
            Some(authenticator) => {
                let hash = match hash {
                    Some(hash) => Cow::Borrowed(hash),
                    None => Cow::Owned(authenticator.payload_key().hash(bytes)),
                };
                seal.copy_from_slice(&block::seal(authenticator, encoded, &hash));
                &head[..]
            }
        };
        let first = bytes.len().min(part_bytes);
        pace(&self.channel, HEADER_BYTES + first)?;
        match (payload, &self.pages) {
            _ if self.channel.is_rdma() => {
                self.channel.write_block(head, payload.part(0..first))?;
                for start in (first..bytes.len()).step_by(part_bytes) {
                    let end = bytes.len().min(start + part_bytes);
                    pace(&self.channel, end - start)?;
                    self.channel.write_block(&[], payload.part(start..end))?;
                }
            }
            (FramePayload::Pages(buffer, len), Some(pages)) => {
                pages.send_head(self.channel.transport(), head)?;
                pages.send(self.channel.transport(), buffer, 0..first)?;
                for start in (first..len).step_by(part_bytes) {
                    let end = len.min(start + part_bytes);
                    pace(&self.channel, end - start)?;
                    pages.send(self.channel.transport(), buffer, start..end)?;
                }
            }
            _ => {
                self.channel.write_two(head, &bytes[..first])?;
                for part in bytes[first..].chunks(part_bytes) {
                    pace(&self.channel, part.len())?;
                    self.channel.write_two(&[], part)?;
                }
            }
        }
        Ok(())
    }

    /// Sends the end frame and closes the write direction.
    ///
    /// # Errors
    /// If RDMA does not deliver all frames. Over TCP a lost connection shows in what the receiver acknowledges.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let _ = self.write(&Header::end(), FramePayload::Bytes(&[]), None, 1, |_, _| Ok(()));
        let drained = self.channel.drain();
        self.channel.finish_writing();
        drained
    }

    /// Checks that a peer that never sends data is still connected.
    ///
    /// # Errors
    /// If the connection or its queue pair is lost.
    pub(crate) fn check_open(&mut self) -> io::Result<()> {
        self.channel.check_rdma()?;
        self.channel.check_open()
    }
}

/// Reader of the frames of one stream.
#[derive(Debug)]
pub(crate) struct FrameReader {
    channel: Channel,
    opener: Option<Opener>,
    tag: [u8; TAG_BYTES],
}

impl FrameReader {
    /// Creates a reader for a [`FrameWriter`] with the same protection.
    #[must_use]
    pub(crate) fn new(channel: Channel, authenticator: Option<Authenticator>) -> Self {
        Self { channel, opener: authenticator.map(Opener::new), tag: [0; TAG_BYTES] }
    }

    /// Reads the next header.
    ///
    /// # Errors
    /// `InvalidData` if it fails its integrity check.
    pub(crate) fn header(&mut self) -> io::Result<Header> {
        let mut bytes = [0; HEADER_BYTES];
        self.channel.read_exact(&mut bytes)?;
        if let Some(opener) = &mut self.opener {
            let mut seal: Seal = [0; SEAL_BYTES];
            self.channel.read_exact(&mut seal)?;
            self.tag = opener.header(&bytes, &seal).map_err(damaged)?;
        }
        Header::decode(&bytes).map_err(damaged)
    }

    /// Reads the payload of the last header into all of `payload`, in parts of at most `part_bytes`; calls `pace` with
    /// the length of each before it is read.
    ///
    /// # Errors
    /// `InvalidData` if it fails its integrity check; those of the connection and of `pace`.
    pub(crate) fn payload(
        &mut self,
        header: &Header,
        payload: &mut [u8],
        part_bytes: usize,
        pace: impl FnMut(&Channel, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let (crc, hash) = self.read_and_check(payload, part_bytes, pace)?;
        let is_sealed = match (&mut self.opener, hash) {
            (Some(opener), Some(hash)) => opener.payload(&hash, &self.tag),
            (opener, _) => opener.is_none(),
        };
        if is_sealed && crc == header.payload_crc {
            Ok(())
        } else {
            Err(damaged(FrameError::PayloadIntegrity(header.sequence)))
        }
    }

    /// Reads a payload in parts and returns its CRC-32C and hash, which are made while a part is in the processor's cache.
    fn read_and_check(
        &mut self,
        payload: &mut [u8],
        part_bytes: usize,
        mut pace: impl FnMut(&Channel, usize) -> io::Result<()>,
    ) -> io::Result<(u32, Option<PayloadHash>)> {
        let mut checks = PayloadChecks::new(self.opener.as_ref().map(Opener::payload_key));
        for checked in payload.chunks_mut(CHECKED_PART_BYTES) {
            for part in checked.chunks_mut(part_bytes) {
                pace(&self.channel, part.len())?;
                self.channel.read_exact(part)?;
            }
            checks.update(checked);
        }
        Ok(checks.finish())
    }

    /// Connection of the stream.
    #[must_use]
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }
}

fn damaged(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
