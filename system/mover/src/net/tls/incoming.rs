//! Receive buffer of TLS records.
//!
//! Finds complete records in few large reads.

use std::io::{self, Read};
use std::ops::Range;

use rustls::AlertDescription;

use super::record::{BODY_BYTES_MAX, HEADER_BYTES};
use crate::net::transport::Transport;

/// Size of one socket read: a system call for each 16 KiB record would cost more than its decryption.
const READ_BYTES: usize = 256 * 1024;

/// Received bytes: complete records and the beginning of one more.
#[derive(Debug)]
pub(super) struct RecordBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl RecordBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; READ_BYTES], start: 0, end: 0 }
    }

    /// Length of the record that begins `after` bytes later, header included; `None` while incomplete.
    ///
    /// # Errors
    /// If it exceeds the record size limit.
    pub(super) fn record(&self, after: usize) -> Result<Option<usize>, AlertDescription> {
        let rest = &self.bytes[self.start..self.end][after..];
        let Some(header) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let body = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if body > BODY_BYTES_MAX {
            return Err(AlertDescription::RecordOverflow);
        }
        Ok(Some(HEADER_BYTES + body).filter(|bytes| *bytes <= rest.len()))
    }

    /// Appends bytes from the socket; zero at the end of the connection.
    ///
    /// # Errors
    /// Errors of the socket, and if the buffer is full.
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

    /// Returns the first bytes for decryption in place.
    pub(super) fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.end][..bytes]
    }

    /// Consumes the first bytes; they stay in place until the next [`RecordBuffer::fill`].
    pub(super) fn consume(&mut self, bytes: usize) -> Range<usize> {
        self.start += bytes;
        assert!(self.start <= self.end, "consumed what is not there");
        self.start - bytes..self.start
    }

    /// Returns consumed bytes that are not overwritten yet.
    pub(super) fn kept(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Returns all buffered bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}
