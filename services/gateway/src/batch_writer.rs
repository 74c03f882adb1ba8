//! Data from the network on its way to a file.
//!
//! Chunks are collected until they are worth a task of the thread pool; the next ones arrive while that task writes. So no
//! thread waits for a slow peer, and a short file, once it is complete, takes one task.

use std::io;

use axum::body::Bytes;
use penstock_mover::{RangeWriter, WrittenRange};
use tokio::task::{JoinHandle, spawn_blocking};

/// Bytes that are collected before a task writes them.
const BATCH_BYTES: usize = 1 << 20;

/// Bytes that are collected at most, while a task writes the ones before.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Least size of a chunk that is held as it is, in bytes. Shorter ones are copied together, as each keeps a read buffer of the
/// connection.
const HELD_CHUNK_BYTES_MIN: usize = 16 << 10;

/// Writer of one range of a file, in order.
#[derive(Debug)]
pub(crate) struct BatchWriter {
    state: State,
    batch: Batch,
}

#[derive(Debug)]
enum State {
    Idle(RangeWriter),
    Writing(JoinHandle<io::Result<RangeWriter>>),
    /// [`BatchWriter::end`] reports the error.
    Failed(io::Error),
}

/// A range that has arrived, and of which the last batch is not written yet.
#[derive(Debug)]
pub(crate) struct ReceivedRange {
    writer: RangeWriter,
    batch: Batch,
}

/// Chunks that wait for the writer.
#[derive(Debug, Default)]
struct Batch {
    chunks: Vec<Bytes>,
    /// Short chunks after the last one of `chunks`.
    short: Vec<u8>,
    bytes: usize,
}

impl BatchWriter {
    pub(crate) fn new(writer: RangeWriter) -> Self {
        Self { state: State::Idle(writer), batch: Batch::default() }
    }

    /// Appends a chunk; waits while the writer is behind. Returns false once writing has failed, which [`Self::end`]
    /// reports.
    pub(crate) async fn push(&mut self, chunk: Bytes) -> bool {
        self.batch.push(chunk);
        let is_busy = matches!(&self.state, State::Writing(task) if !task.is_finished());
        let bytes_max = if is_busy { BATCH_BYTES_MAX } else { BATCH_BYTES };
        if self.batch.bytes <= bytes_max {
            return true;
        }
        let batch = std::mem::take(&mut self.batch);
        match self.idle().await {
            Ok(mut writer) => {
                self.state = State::Writing(spawn_blocking(move || {
                    batch.write(&mut writer)?;
                    Ok(writer)
                }));
                true
            }
            Err(error) => {
                self.state = State::Failed(error);
                false
            }
        }
    }

    /// Waits until the writer is idle, and takes it.
    async fn idle(&mut self) -> io::Result<RangeWriter> {
        let taken = State::Failed(io::Error::other("the writer was taken"));
        match std::mem::replace(&mut self.state, taken) {
            State::Idle(writer) => Ok(writer),
            State::Writing(task) => task.await.map_err(io::Error::other)?,
            State::Failed(error) => Err(error),
        }
    }

    /// Ends the range after its last chunk, or where it broke off; nothing is being written afterwards.
    ///
    /// # Errors
    /// When a batch could not be written.
    pub(crate) async fn end(mut self) -> io::Result<ReceivedRange> {
        let writer = self.idle().await?;
        Ok(ReceivedRange { writer, batch: self.batch })
    }
}

impl ReceivedRange {
    /// Writes the last batch; blocks. `is_complete` as in [`RangeWriter::finish`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn finish(mut self, is_complete: bool) -> io::Result<WrittenRange> {
        self.batch.write(&mut self.writer)?;
        self.writer.finish(is_complete)
    }
}

impl Batch {
    fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len();
        if chunk.len() < HELD_CHUNK_BYTES_MIN {
            self.short.extend_from_slice(&chunk);
            return;
        }
        if !self.short.is_empty() {
            self.chunks.push(std::mem::take(&mut self.short).into());
        }
        self.chunks.push(chunk);
    }

    fn write(self, writer: &mut RangeWriter) -> io::Result<()> {
        self.chunks.iter().try_for_each(|chunk| writer.write(chunk))?;
        writer.write(&self.short)
    }
}
