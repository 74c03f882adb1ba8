//! The body of an upload on its way to the file.
//!
//! The first MiB is held in memory, so that no thread waits for a slow client, and a short body, once it is complete, takes
//! one task of the thread pool. A longer one gets a thread, which writes while more arrives.

use std::io;

use axum::body::Bytes;
use penstock_mover::{FileUpload, JoinedUpload};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Largest body that is held in memory, in bytes.
pub(crate) const HELD_BYTES_MAX: usize = 1 << 20;

/// Chunks that are held one by one; more are copied into one, as each keeps a read buffer of the connection.
const HELD_CHUNKS_MAX: usize = 256;

/// Chunks in flight between network and disk.
const CHUNKS_QUEUED_MAX: usize = 16;

/// A body that is being received.
pub(crate) enum UploadBody {
    Held(HeldBody),
    Writing(BodyWriter),
}

/// A body whose last byte has arrived.
pub(crate) enum ReceivedBody {
    Held(HeldBody),
    Written(JoinedUpload),
}

/// A body, or the beginning of one, of which nothing is written yet.
pub(crate) struct HeldBody {
    upload: FileUpload,
    chunks: Vec<Bytes>,
    bytes: usize,
}

/// A thread that writes a body as it arrives.
pub(crate) struct BodyWriter {
    chunks: mpsc::Sender<Bytes>,
    written: JoinHandle<io::Result<JoinedUpload>>,
}

impl UploadBody {
    pub(crate) fn new(upload: FileUpload) -> Self {
        Self::Held(HeldBody { upload, chunks: Vec::new(), bytes: 0 })
    }

    /// Appends a chunk; also returns false once writing has failed, which [`Self::end`] reports.
    pub(crate) async fn push(self, chunk: Bytes) -> (Self, bool) {
        match self {
            Self::Held(mut held) => {
                held.push(chunk);
                let body = match held.bytes > HELD_BYTES_MAX {
                    true => Self::Writing(held.into_writer()),
                    false => Self::Held(held),
                };
                (body, true)
            }
            Self::Writing(writer) => {
                let is_sent = writer.chunks.send(chunk).await.is_ok();
                (Self::Writing(writer), is_sent)
            }
        }
    }

    /// Ends a body that is complete.
    ///
    /// # Errors
    /// When it could not be written.
    pub(crate) async fn end(self) -> io::Result<ReceivedBody> {
        match self {
            Self::Held(held) => Ok(ReceivedBody::Held(held)),
            Self::Writing(BodyWriter { chunks, written }) => {
                drop(chunks);
                written.await.map_err(io::Error::other)?.map(ReceivedBody::Written)
            }
        }
    }

    /// Drops a body that broke off, and waits until nothing of it is left.
    pub(crate) async fn cancel(self) {
        // Releasing the room of a large file takes a while.
        let _ = match self {
            Self::Held(held) => spawn_blocking(move || drop(held)).await,
            Self::Writing(BodyWriter { chunks, written }) => {
                drop(chunks);
                written.await.map(drop)
            }
        };
    }
}

impl ReceivedBody {
    /// Writes what is held; blocks.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn join(self) -> io::Result<JoinedUpload> {
        match self {
            Self::Held(held) => {
                let mut content = held.upload.whole();
                for chunk in held.chunks {
                    content.write(&chunk)?;
                }
                let bytes = content.received();
                held.upload.join(vec![content.finish(true)?], bytes)
            }
            Self::Written(joined) => Ok(joined),
        }
    }
}

impl HeldBody {
    fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len();
        self.chunks.push(chunk);
        if self.chunks.len() == HELD_CHUNKS_MAX {
            self.chunks = vec![self.chunks.concat().into()];
        }
    }

    /// Starts the thread that writes this beginning and what follows.
    fn into_writer(self) -> BodyWriter {
        let Self { upload, chunks: held, .. } = self;
        let (chunks, mut received) = mpsc::channel::<Bytes>(CHUNKS_QUEUED_MAX);
        let written = spawn_blocking(move || {
            let mut content = upload.whole();
            for chunk in held {
                content.write(&chunk)?;
            }
            while let Some(chunk) = received.blocking_recv() {
                content.write(&chunk)?;
            }
            let bytes = content.received();
            upload.join(vec![content.finish(true)?], bytes)
        });
        BodyWriter { chunks, written }
    }
}
