//! Reader and writer of frames on a data stream, with the session's protection.
//!
//! One stream in one direction. A reader that fails has lost its position and the stream with it:
//! `InvalidData` means an integrity failure, anything else a connection failure.

use std::io::{self, Read};

use penstock_protocol::block::{self, FrameError, HEADER_BYTES, Header, Opener, SEAL_BYTES, Seal};
use penstock_protocol::digest::crc32c;
use penstock_protocol::proof::{Authenticator, TAG_BYTES};

use crate::net::channel::Channel;

/// Writer of the frames of one stream.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    channel: Channel,
    authenticator: Option<Authenticator>,
}

impl FrameWriter {
    /// Creates a writer: sealed with an authenticator, under TLS without.
    #[must_use]
    pub(crate) fn new(channel: Channel, authenticator: Option<Authenticator>) -> Self {
        Self { channel, authenticator }
    }

    /// Writes one frame; calls `pace` before each part of `part_bytes`.
    ///
    /// # Errors
    /// If the connection is lost or `pace` fails.
    pub(crate) fn write(
        &mut self,
        header: &Header,
        payload: &[u8],
        part_bytes: usize,
        pace: impl Fn(&Channel, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let header = header.encode();
        let (first, rest) = payload.split_at(payload.len().min(part_bytes));
        pace(&self.channel, header.len() + first.len())?;
        match &mut self.authenticator {
            None => self.channel.write_two(&header, first)?,
            Some(authenticator) => {
                let mut head = [0; HEADER_BYTES + SEAL_BYTES];
                head[..HEADER_BYTES].copy_from_slice(&header);
                head[HEADER_BYTES..].copy_from_slice(&block::seal(authenticator, &header, payload));
                self.channel.write_two(&head, first)?;
            }
        }
        for part in rest.chunks(part_bytes) {
            pace(&self.channel, part.len())?;
            self.channel.write_two(&[], part)?;
        }
        Ok(())
    }

    /// Sends the end frame and closes the write direction.
    pub(crate) fn finish(&mut self) {
        let _ = self.write(&Header::end(), &[], 1, |_, _| Ok(()));
        self.channel.finish_writing();
    }

    /// Connection of the stream.
    #[must_use]
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
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

    /// Reads the payload of the last header into all of `payload`.
    ///
    /// # Errors
    /// `InvalidData` if it fails its integrity check.
    pub(crate) fn payload(&mut self, header: &Header, payload: &mut [u8]) -> io::Result<()> {
        self.channel.read_exact(payload)?;
        let sealed = self.opener.as_mut().is_none_or(|opener| opener.payload(payload, &self.tag));
        if sealed && crc32c(payload) == header.payload_crc {
            Ok(())
        } else {
            Err(damaged(FrameError::PayloadIntegrity(header.sequence)))
        }
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
