//! Send buffer of TLS records, many per write.

use std::io::{self, Write};

use rustls::ContentType;

use super::record::{CONTENT_BYTES_MAX, OVERHEAD_BYTES, RecordKey};
use crate::net::transport::Transport;

/// Records per write: few system calls, and still in the processor's cache.
const RECORDS_AT_ONCE: usize = 16;

/// Bytes reserved for alerts and handshake messages.
const NOTICES_BYTES: usize = 256;

/// Buffer of sealed records.
#[derive(Debug)]
pub(super) struct SendBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl SendBuffer {
    pub(super) fn new() -> Self {
        let records = RECORDS_AT_ONCE * (CONTENT_BYTES_MAX + OVERHEAD_BYTES);
        Self { bytes: vec![0; records + NOTICES_BYTES], start: 0, end: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// True if a record with this many bytes of data fits.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.end + bytes + OVERHEAD_BYTES + NOTICES_BYTES <= self.bytes.len()
    }

    /// Seals a record; there must be room for it.
    pub(super) fn push(&mut self, key: &mut RecordKey, kind: ContentType, content: &[u8]) {
        let end = self.end + content.len() + OVERHEAD_BYTES;
        key.seal(kind, content, &mut self.bytes[self.end..end]);
        self.end = end;
    }

    /// Writes all buffered records.
    ///
    /// # Errors
    /// Errors of the socket; unwritten bytes stay buffered.
    pub(super) fn flush(&mut self, to: &mut Transport) -> io::Result<()> {
        while self.start < self.end {
            match to.write(&self.bytes[self.start..self.end]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.start += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.start, self.end) = (0, 0);
        Ok(())
    }
}
