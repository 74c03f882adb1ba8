//! Bytes read from a socket that are not yet opened as TLS records.
//!
//! For: finding whole records in few large reads. Not for: what is in them.

use std::io::{self, Read};
use std::ops::Range;

use rustls::AlertDescription;

use super::record::{BODY_BYTES_MAX, HEADER_BYTES};
use crate::transport::Transport;

/// Bytes taken from a socket at once: records are 16 KiB and a system call each would cost more than
/// their decryption.
const READ_BYTES: usize = 256 * 1024;

/// Bytes from the socket, whole records and the beginning of one more.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; READ_BYTES], start: 0, end: 0 }
    }

    /// Bytes of the record that begins `after` bytes later, header included; none while it is not whole.
    ///
    /// # Errors
    /// When it is longer than a record may be.
    pub(super) fn record(&self, after: usize) -> Result<Option<usize>, AlertDescription> {
        let rest = &self.bytes[self.start..self.end][after..];
        let Some(header) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let body = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if body > BODY_BYTES_MAX {
            return Err(AlertDescription::RecordOverflow);
        }
        Ok(Some(HEADER_BYTES + body).filter(|bytes| *bytes <= rest.len()))
    }

    /// Reads from the socket behind what is there; zero at the end of the connection.
    ///
    /// # Errors
    /// As the socket does, and when there is no room.
    pub(super) fn fill(&mut self, from: &mut Transport) -> io::Result<usize> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.bytes.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a TLS message is too long"));
        }
        loop {
            match from.read(&mut self.bytes[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The first bytes, and where they lie.
    pub(super) fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.end][..bytes]
    }

    /// Lets go of the first bytes; they stay where they lie until the next [`Incoming::fill`].
    pub(super) fn consume(&mut self, bytes: usize) -> Range<usize> {
        self.start += bytes;
        assert!(self.start <= self.end, "consumed what is not there");
        self.start - bytes..self.start
    }

    /// Bytes that were consumed and not yet overwritten.
    pub(super) fn kept(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// All that is there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}
