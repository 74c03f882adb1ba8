//! Bodies of responses, read one chunk ahead of the network.
//!
//! A task of the thread pool reads one chunk and ends, so that no thread waits for a slow client.

use std::io;

use tokio::task::{JoinHandle, spawn_blocking};

/// Source of the chunks of a body, in order.
pub(crate) trait ChunkSource: Send + 'static {
    type Chunk: Send + 'static;

    /// Reads the next chunk; blocks on storage. Not called once [`Self::is_done`].
    ///
    /// # Errors
    /// When it cannot be read; then nothing follows.
    fn next_chunk(&mut self) -> io::Result<Self::Chunk>;

    /// True after the last chunk.
    fn is_done(&self) -> bool;
}

/// Chunks of a source, of which the next one is being read.
#[derive(Debug)]
pub(crate) struct ReadAhead<S: ChunkSource> {
    /// `None` after the last chunk, and after an error.
    reading: Option<JoinHandle<(S, io::Result<S::Chunk>)>>,
}

impl<S: ChunkSource> ReadAhead<S> {
    /// Begins to read the first chunk.
    pub(crate) fn new(source: S) -> Self {
        Self { reading: Self::read_from(source) }
    }

    fn read_from(mut source: S) -> Option<JoinHandle<(S, io::Result<S::Chunk>)>> {
        if source.is_done() {
            return None;
        }
        Some(spawn_blocking(move || {
            let chunk = source.next_chunk();
            (source, chunk)
        }))
    }

    /// Returns the next chunk, and begins to read the one after it; `None` after the last chunk.
    ///
    /// # Errors
    /// When the chunk could not be read.
    pub(crate) async fn next(&mut self) -> io::Result<Option<S::Chunk>> {
        let Some(reading) = self.reading.take() else { return Ok(None) };
        let (source, chunk) = reading.await.map_err(io::Error::other)?;
        let chunk = chunk?;
        self.reading = Self::read_from(source);
        Ok(Some(chunk))
    }

    /// True after the last chunk.
    pub(crate) const fn is_done(&self) -> bool {
        self.reading.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts down to 1; fails at `fails_at`.
    struct Countdown {
        left: u32,
        fails_at: u32,
    }

    impl ChunkSource for Countdown {
        type Chunk = u32;

        fn next_chunk(&mut self) -> io::Result<u32> {
            let chunk = self.left;
            self.left -= 1;
            if chunk == self.fails_at { Err(io::ErrorKind::StorageFull.into()) } else { Ok(chunk) }
        }

        fn is_done(&self) -> bool {
            self.left == 0
        }
    }

    #[tokio::test]
    async fn chunks_end_with_last_or_error() {
        for (left, fails_at, expected) in
            [(0, 9, vec![]), (3, 9, vec![3, 2, 1]), (3, 1, vec![3, 2]), (3, 3, vec![])]
        {
            let mut chunks = ReadAhead::new(Countdown { left, fails_at });
            for chunk in expected {
                assert!(!chunks.is_done());
                assert_eq!(chunks.next().await.unwrap(), Some(chunk));
            }
            if fails_at <= left {
                assert_eq!(chunks.next().await.unwrap_err().kind(), io::ErrorKind::StorageFull);
            }
            assert!(chunks.is_done());
            assert_eq!(chunks.next().await.unwrap(), None);
        }
    }
}
