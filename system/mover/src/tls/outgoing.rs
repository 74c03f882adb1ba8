//! TLS records that wait for the socket, many to one write.

use std::io::{self, Write};

use rustls::ContentType;

use super::record::{CONTENT_BYTES_MAX, OVERHEAD_BYTES, RecordKey};
use crate::transport::Transport;

/// Records that go out in one write: few system calls, and still in the processor's cache.
const RECORDS_AT_ONCE: usize = 16;

/// Room kept for records about the connection itself.
const NOTICES_BYTES: usize = 256;

/// Sealed records.
#[derive(Debug)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        let records = RECORDS_AT_ONCE * (CONTENT_BYTES_MAX + OVERHEAD_BYTES);
        Self { bytes: vec![0; records + NOTICES_BYTES], start: 0, end: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether there is room for a record of so many bytes of data.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.end + bytes + OVERHEAD_BYTES + NOTICES_BYTES <= self.bytes.len()
    }

    /// Seals a record, for which there must be room.
    pub(super) fn push(&mut self, key: &mut RecordKey, kind: ContentType, content: &[u8]) {
        let end = self.end + content.len() + OVERHEAD_BYTES;
        key.seal(kind, content, &mut self.bytes[self.end..end]);
        self.end = end;
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// As the socket does; what it has not taken stays.
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
