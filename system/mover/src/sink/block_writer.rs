//! Consecutive bytes of a file, written in whole blocks past the page cache.
//!
//! Data is copied once, into an aligned buffer that stays in the processor's cache, and several blocks are in flight, so that
//! the device works while more data arrives. Writes through the page cache cost a page of memory for each page of data,
//! and its writeback competes with the writer.
//!
//! Not for: file systems without direct I/O, nor files of less than a block.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, LazyLock};

use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer, BufferPool};
use penstock_sys::ring::{BlockIo, Operation, OperationKind, block_io};

/// Size of a block in bytes.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// Blocks in flight of a file of several blocks.
const BLOCKS_IN_FLIGHT_MAX: usize = 3;

/// Size of the file from which several blocks are in flight, which costs a ring of io_uring.
const RING_FILE_BYTES_MIN: u64 = 8 << 20;

/// Blocks of the pool that all writers of the process share.
const SHARED_BLOCKS_MAX: usize = 64;

/// Memory that stays mapped from file to file: mapping a block costs more than filling it.
static SHARED_BLOCKS: LazyLock<BufferPool> =
    LazyLock::new(|| BufferPool::new(SHARED_BLOCKS_MAX, BLOCK_BYTES));

/// Writer of consecutive bytes.
pub(super) struct BlockWriter {
    file: Arc<File>,
    io: Box<dyn BlockIo>,
    /// Blocks for the time that the shared pool is empty, so that no writer waits for another.
    own_blocks: BufferPool,
    /// The block that is being filled, and its content in bytes.
    current: Option<Buffer>,
    filled: usize,
    /// Offset of the current block in the file.
    offset: u64,
}

impl fmt::Debug for BlockWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockWriter").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl BlockWriter {
    /// Creates a writer of up to `bytes` from `offset`, a multiple of [`BUFFER_ALIGNMENT`], to a file with `O_DIRECT`.
    pub(super) fn new(file: Arc<File>, offset: u64, bytes: u64) -> Self {
        debug_assert!(offset.is_multiple_of(BUFFER_ALIGNMENT as u64), "offset {offset}");
        let depth = if bytes >= RING_FILE_BYTES_MIN { BLOCKS_IN_FLIGHT_MAX } else { 1 };
        let (io, _) = block_io(depth);
        let own_blocks = BufferPool::new(depth + 1, BLOCK_BYTES);
        Self { file, io, own_blocks, current: None, filled: 0, offset }
    }

    /// Appends `data`. `written` receives the content of each block once it is complete.
    ///
    /// # Errors
    /// When an earlier block could not be written.
    pub(super) fn write(
        &mut self,
        mut data: &[u8],
        mut written: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        while !data.is_empty() {
            let mut buffer = match self.current.take() {
                Some(buffer) => buffer,
                None => self.free_buffer()?,
            };
            let count = data.len().min(buffer.len() - self.filled);
            buffer[self.filled..self.filled + count].copy_from_slice(&data[..count]);
            self.filled += count;
            data = &data[count..];
            if self.filled == buffer.len() {
                written(&buffer);
                self.submit(buffer, BLOCK_BYTES)?;
            } else {
                self.current = Some(buffer);
            }
        }
        Ok(())
    }

    /// Writes the last block and waits for all. With `to_end` that block is padded, which the caller cuts off; otherwise its
    /// incomplete last sector is dropped. Returns the offset of the first byte that was not written.
    ///
    /// # Errors
    /// When a block could not be written.
    pub(super) fn finish(
        mut self,
        to_end: bool,
        mut written: impl FnMut(&[u8]),
    ) -> io::Result<u64> {
        let mut end = self.offset;
        if let Some(mut buffer) = self.current.take() {
            let content = match to_end {
                true => self.filled,
                false => self.filled - self.filled % BUFFER_ALIGNMENT,
            };
            let padded = content.next_multiple_of(BUFFER_ALIGNMENT);
            buffer[content..padded].fill(0);
            end += content as u64;
            if content > 0 {
                written(&buffer[..content]);
                self.submit(buffer, padded)?;
            }
        }
        while self.io.in_flight() > 0 {
            self.complete()?;
        }
        Ok(end)
    }

    fn free_buffer(&mut self) -> io::Result<Buffer> {
        loop {
            if let Some(block) = SHARED_BLOCKS.try_take().or_else(|| self.own_blocks.try_take()) {
                return Ok(block);
            }
            self.complete()?;
        }
    }

    fn submit(&mut self, buffer: Buffer, len: usize) -> io::Result<()> {
        while !self.io.has_room() {
            self.complete()?;
        }
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let kind = OperationKind::Write;
        self.io.submit(Operation { kind, file, buffer, start: 0, len, offset, token: offset });
        self.offset += len as u64;
        self.filled = 0;
        Ok(())
    }

    fn complete(&mut self) -> io::Result<()> {
        self.io.complete()?.result.map(drop)
    }
}
