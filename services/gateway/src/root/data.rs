//! Data of open files: read in chunks on threads for blocking calls, one chunk ahead of the network.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use penstock_http::SEND_TIMEOUT;
use penstock_mover::{Agent, TransferDirection};
use penstock_protocol::open::{Mark, Refusal};
use penstock_sys::buffer::BufferPool;
use penstock_sys::fs;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::login::RootClient;
use crate::account::{AccountedConnection, ConnectionAccount, FileInTransfer, FileRequest};
use crate::read::CHUNK_BYTES;
use crate::read_ahead::{ChunkSource, ReadAhead};

/// Time for the client to take one chunk.
const CHUNK_TIMEOUT: Duration = SEND_TIMEOUT.saturating_mul(4);

/// A file that a client has open.
#[derive(Debug)]
pub(super) struct RootFile {
    pub(super) file: Arc<std::fs::File>,
    pub(super) shown: String,
    pub(super) client: RootClient,
    pub(super) mark: Option<Mark>,
    /// Its part in the connection's transfer, from the first read on.
    pub(super) transfer: Mutex<FileTransfer>,
    pub(super) _permit: OwnedSemaphorePermit,
}

/// Account of an open file.
#[derive(Debug, Default)]
pub(super) struct FileTransfer {
    current: Option<FileInTransfer>,
    moved_bytes: u64,
    /// Size of the file at the last read.
    size: u64,
}

impl RootFile {
    /// Begins to count the file of this size, unless that has happened.
    ///
    /// # Errors
    /// If the agent's limit of transfers is reached.
    pub(super) fn begin(
        &self,
        account: &Arc<ConnectionAccount>,
        connection: (&std::net::TcpStream, std::net::SocketAddr),
        agent: &Agent,
        size: u64,
    ) -> Result<(), Refusal> {
        let mut transfer = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        transfer.size = size;
        if transfer.current.is_none() {
            let connection = AccountedConnection {
                account: Arc::clone(account),
                peer: connection.1,
                socket: Some(connection.0),
                protocol: "root",
            };
            let request = FileRequest {
                caller: &self.client.caller,
                direction: TransferDirection::Send,
                shown: &self.shown,
                bytes: None,
                mark: self.mark,
            };
            transfer.current = Some(ConnectionAccount::try_begin(connection, agent, &request)?);
        }
        Ok(())
    }

    /// Counts bytes about to be sent; returns the delay that the limits ask for.
    fn count(&self, bytes: usize) -> io::Result<Duration> {
        let mut transfer = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        transfer.moved_bytes += bytes as u64;
        transfer.current.as_ref().map_or(Ok(Duration::ZERO), |current| current.count(bytes))
    }

    /// Ends the account of a file that is open but not read; the next read begins another.
    pub(super) fn pause(&self) {
        let mut transfer = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = transfer.current.take() {
            current.finish_part();
        }
    }

    /// Ends the account of a file that the client closes. One whose bytes were all sent counts as a whole file.
    pub(super) fn finish(&self) {
        let mut transfer = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        let (moved, size) = (transfer.moved_bytes, transfer.size);
        match transfer.current.take() {
            Some(current) if moved >= size => current.finish(size),
            Some(current) => current.finish_part(),
            None => {}
        }
    }
}

/// A part of a file, with bytes before it.
#[derive(Debug)]
pub(super) struct DataPiece {
    pub(super) head: Vec<u8>,
    pub(super) file: Arc<RootFile>,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

/// Reads pieces one after the other in chunks of [`CHUNK_BYTES`].
#[derive(Debug)]
struct ChunkReader {
    pieces: VecDeque<DataPiece>,
    buffers: BufferPool,
}

#[derive(Debug)]
struct DataChunk {
    bytes: Bytes,
    delay: Duration,
}

impl ChunkSource for ChunkReader {
    type Chunk = DataChunk;

    /// Fails if a file has become shorter, cannot be read, or its transfer is cancelled.
    fn next_chunk(&mut self) -> io::Result<DataChunk> {
        if let Some(mut buffer) = self.buffers.try_take() {
            let (filled, delay) = self.fill(&mut buffer[..CHUNK_BYTES])?;
            return Ok(DataChunk { bytes: Bytes::from_owner(buffer).slice(..filled), delay });
        }
        let mut buffer = vec![0; self.remaining_bytes().min(CHUNK_BYTES)];
        let (filled, delay) = self.fill(&mut buffer)?;
        buffer.truncate(filled);
        Ok(DataChunk { bytes: Bytes::from(buffer), delay })
    }

    fn is_done(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl ChunkReader {
    /// Bytes that are left, counted up to a chunk.
    fn remaining_bytes(&self) -> usize {
        let mut bytes = 0;
        for piece in &self.pieces {
            bytes += piece.head.len() + piece.bytes as usize;
            if bytes >= CHUNK_BYTES {
                break;
            }
        }
        bytes
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Duration)> {
        let (mut filled, mut delay) = (0, Duration::ZERO);
        while let Some(piece) = self.pieces.front_mut() {
            let room = &mut buffer[filled..];
            let needed = piece.head.len() + usize::from(piece.bytes > 0);
            if room.len() < needed {
                break;
            }
            let head = std::mem::take(&mut piece.head);
            room[..head.len()].copy_from_slice(&head);
            let count = (piece.bytes as usize).min(room.len() - head.len());
            let data = &mut room[head.len()..head.len() + count];
            fs::read_exact_at(&piece.file.file, data, piece.offset)?;
            delay = delay.max(piece.file.count(count)?);
            filled += head.len() + count;
            piece.offset += count as u64;
            piece.bytes -= count as u32;
            if piece.bytes == 0 {
                self.pieces.pop_front();
            }
        }
        Ok((filled, delay))
    }
}

/// Sends pieces. An error ends the connection, as the client knows the length already.
pub(super) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    pieces: VecDeque<DataPiece>,
    buffers: &BufferPool,
) -> io::Result<()> {
    let mut chunks = ReadAhead::new(ChunkReader { pieces, buffers: buffers.clone() });
    while let Some(DataChunk { bytes, delay }) = chunks.next().await? {
        tokio::time::sleep(delay).await;
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(CHUNK_TIMEOUT, stream.write_all(&bytes)).await.map_err(timed_out)??;
    }
    Ok(())
}
