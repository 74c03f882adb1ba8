//! Reading and writing files in blocks, several at a time.
//!
//! For: keeping fast storage busy. [`Ring`] submits many operations at once through io_uring; [`SyncIo`] does one
//! after the other where io_uring is unavailable or not worth it. Both own buffer and file while an operation lasts, so
//! that safe code cannot touch a buffer the kernel writes into. One loop drives either through [`BlockIo`]: submit while
//! there is room, complete while anything is in flight.
//!
//! Not for: sockets (io_uring is no faster for them) nor order: operations finish in any.
//!
//! Fails per operation, in [`Completion::result`]; [`BlockIo::complete`] itself fails only where the ring is broken or
//! nothing is in flight. An invalid operation finishes at once with `InvalidInput`.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::fs::{is_direct, stat_file};

mod batch;
mod uring;

pub use batch::{BatchRead, BatchReader};
pub use uring::{Ring, UringUnavailable};

/// Direction of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// From the file into the buffer.
    Read,
    /// From the buffer into the file.
    Write,
}

/// One block to read or write: `buffer[start..start + len]` at `offset` of `file`.
#[derive(Debug)]
pub struct Operation {
    /// Direction of the transfer.
    pub kind: OperationKind,
    /// Kept open until completion.
    pub file: Arc<File>,
    /// Returned in the [`Completion`].
    pub buffer: Buffer,
    /// Start of the block in the buffer, in bytes.
    pub start: usize,
    /// Length of the block in bytes.
    pub len: usize,
    /// Start of the block in the file, in bytes.
    pub offset: u64,
    /// Caller's identifier, returned unchanged.
    pub token: u64,
}

/// Outcome of an [`Operation`].
#[derive(Debug)]
pub struct Completion {
    /// [`Operation::token`] of the operation.
    pub token: u64,
    /// The operation's buffer; after a failed read its content is undefined.
    pub buffer: Buffer,
    /// Direction of the operation.
    pub kind: OperationKind,
    /// Bytes moved: all of them, or less only where a read met the end of the file.
    pub result: io::Result<usize>,
}

/// Block I/O on files, with or without depth.
pub trait BlockIo: Send {
    /// Submits an operation. Beyond the depth ([`Self::has_room`]) it finishes at once with `WouldBlock`.
    fn submit(&mut self, operation: Operation);
    /// Waits for the next completion. `InvalidInput` where nothing is in flight.
    fn complete(&mut self) -> io::Result<Completion>;
    /// True if another operation can be submitted.
    fn has_room(&self) -> bool;
    /// Operations submitted whose completion was not returned.
    fn in_flight(&self) -> usize;
    /// Name of the backend for logs and metrics: `io_uring` or `pread/pwrite`.
    fn name(&self) -> &'static str;
}

/// Chooses a backend for `depth` operations at a time. With the reason for operators where it falls back from io_uring.
pub fn block_io(depth: usize) -> (Box<dyn BlockIo>, Option<String>) {
    if depth <= 1 {
        return (Box::new(SyncIo::new()), None);
    }
    let reason = match Ring::probe() {
        Ok(()) => match Ring::new(depth) {
            Ok(ring) => return (Box::new(ring), None),
            Err(error) => {
                format!("io_uring with depth {depth} failed: {}", crate::fs::describe(&error))
            }
        },
        Err(reason) => reason.to_string(),
    };
    (Box::new(SyncIo::new()), Some(reason))
}

/// One operation at a time, done when submitted, with `pread` and `pwrite`.
#[derive(Debug, Default)]
pub struct SyncIo {
    done: VecDeque<Completion>,
}

impl SyncIo {
    /// Creates the backend; opens nothing.
    pub fn new() -> Self {
        Self::default()
    }
}

impl BlockIo for SyncIo {
    fn submit(&mut self, operation: Operation) {
        let completion = if self.has_room() {
            match PartialOperation::begin(operation) {
                Ok(mut progress) => {
                    let result = loop {
                        let moved = progress.transfer_once();
                        if let Some(result) = progress.advance(moved) {
                            break result;
                        }
                    };
                    progress.finish(result)
                }
                Err(completion) => completion,
            }
        } else {
            no_room(operation)
        };
        self.done.push_back(completion);
    }

    fn complete(&mut self) -> io::Result<Completion> {
        self.done.pop_front().ok_or_else(nothing_in_flight)
    }

    fn has_room(&self) -> bool {
        self.done.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn name(&self) -> &'static str {
        "pread/pwrite"
    }
}

fn nothing_in_flight() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no file operation is in flight to wait for")
}

fn no_room(operation: Operation) -> Completion {
    let error = io::Error::new(
        io::ErrorKind::WouldBlock,
        "more file operations submitted than the depth allows",
    );
    finished(operation, Err(error))
}

fn finished(operation: Operation, result: io::Result<usize>) -> Completion {
    Completion { token: operation.token, buffer: operation.buffer, kind: operation.kind, result }
}

/// Below the kernel's limit of 2 GiB per call, and a multiple of any alignment.
const BYTES_PER_CALL_MAX: usize = 1 << 30;

/// An operation in progress, which may take several calls: the kernel may transfer fewer bytes than requested.
#[derive(Debug)]
struct PartialOperation {
    operation: Operation,
    moved: usize,
}

impl PartialOperation {
    /// Checks the operation. `Err` holds the completion of an invalid or an empty one.
    fn begin(operation: Operation) -> Result<Self, Completion> {
        let in_buffer = operation
            .start
            .checked_add(operation.len)
            .is_some_and(|end| end <= operation.buffer.len());
        // An offset of u64::MAX would mean "the file's position" to io_uring.
        let in_file = operation
            .offset
            .checked_add(operation.len as u64)
            .is_some_and(|end| i64::try_from(end).is_ok());
        if !in_buffer || !in_file {
            let why = if in_buffer {
                "a file operation beyond the largest offset"
            } else {
                "a file operation beyond the end of its buffer"
            };
            let error = io::Error::new(io::ErrorKind::InvalidInput, why);
            return Err(finished(operation, Err(error)));
        }
        if operation.len == 0 {
            return Err(finished(operation, Ok(0)));
        }
        Ok(Self { operation, moved: 0 })
    }

    /// Returns buffer and file offset of the next call.
    fn remaining(&mut self) -> (&mut [u8], u64) {
        let left = (self.operation.len - self.moved).min(BYTES_PER_CALL_MAX);
        let start = self.operation.start + self.moved;
        let offset = self.operation.offset + self.moved as u64;
        (&mut self.operation.buffer[start..start + left], offset)
    }

    /// Transfers the next piece with one `pread` or `pwrite`.
    fn transfer_once(&mut self) -> io::Result<usize> {
        let file = Arc::clone(&self.operation.file);
        let kind = self.operation.kind;
        let (bytes, offset) = self.remaining();
        match kind {
            OperationKind::Read => file.read_at(bytes, offset),
            OperationKind::Write => file.write_at(bytes, offset),
        }
    }

    /// Accounts for the result of one call; returns the operation's result when it is finished.
    fn advance(&mut self, moved: io::Result<usize>) -> Option<io::Result<usize>> {
        match (moved, self.operation.kind) {
            (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => None,
            (Err(error), _) => Some(Err(error)),
            (Ok(0), OperationKind::Read) => Some(Ok(self.moved)),
            (Ok(0), OperationKind::Write) => Some(Err(io::ErrorKind::WriteZero.into())),
            (Ok(moved), kind) => {
                self.moved = (self.moved + moved).min(self.operation.len);
                let all = self.moved == self.operation.len;
                (all || kind == OperationKind::Read && self.at_direct_end())
                    .then_some(Ok(self.moved))
            }
        }
    }

    /// True after a short read with `O_DIRECT` at the end of the file. Another read from there, as without `O_DIRECT`, would
    /// start at an unaligned offset and fail.
    fn at_direct_end(&self) -> bool {
        let file = &self.operation.file;
        let end = self.operation.offset + self.moved as u64;
        is_direct(file).unwrap_or(false) && stat_file(file).is_ok_and(|stat| end >= stat.size)
    }

    fn finish(self, result: io::Result<usize>) -> Completion {
        finished(self.operation, result)
    }
}

#[cfg(test)]
mod tests;
