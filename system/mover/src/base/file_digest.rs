//! Digests of whole files, read in order.

use std::fs::File;
use std::io;

use penstock_protocol::digest::{Algorithm, Digest, Serial};
use penstock_sys::fs;

/// File readable at any offset.
pub(crate) trait ReadAt {
    /// Reads until the buffer is full or the file ends; returns the bytes read.
    ///
    /// # Errors
    /// If reading fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fs::read_at_most(self, buffer, offset)
    }
}

/// Digests an open file through `buffer`; `None` if the algorithm is none.
///
/// # Errors
/// If reading fails.
pub(crate) fn digest_file<F: ReadAt + ?Sized>(
    file: &F,
    algorithm: Algorithm,
    buffer: &mut [u8],
) -> io::Result<Option<Digest>> {
    let Some(mut serial) = Serial::new(algorithm) else { return Ok(None) };
    while let count @ 1.. = file.read_at(buffer, serial.next())? {
        serial.update(&buffer[..count]);
    }
    Ok(Some(serial.finish()))
}

/// Advances `serial` to `end` by reading the bytes between.
///
/// # Errors
/// If reading fails or the file ends early.
pub(crate) fn catch_up<F: ReadAt + ?Sized>(
    serial: &mut Serial,
    file: &F,
    end: u64,
) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    while serial.next() < end {
        let left = usize::try_from(end - serial.next()).unwrap_or(usize::MAX).min(buffer.len());
        match file.read_at(&mut buffer[..left], serial.next())? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => serial.update(&buffer[..count]),
        }
    }
    Ok(())
}
