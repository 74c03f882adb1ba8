//! Reads of open files: what the response to each is made of.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use penstock_xrootd::request::{READV_SEGMENT_HEAD_BYTES, ReadSegment, XrdFileHandle};
use penstock_xrootd::response::{self, DataStatus};
use penstock_xrootd::{XrdError, XrdErrorCode};

use super::data::{DataPiece, RootFile};
use super::files::refused;
use super::session::{RootAnswer, RootSession, stat_file};
use crate::account::admitted;
use crate::read::CHUNK_BYTES;

/// Longest part of a response to a read: one chunk with its head.
const READ_PART_BYTES: u64 = (CHUNK_BYTES - response::RESPONSE_HEAD_BYTES) as u64;

impl RootSession<'_> {
    /// Returns an open file and its present size, and counts it from now on; waits while the agent's limit of transfers is
    /// reached.
    async fn readable(&self, handle: XrdFileHandle) -> Result<(&Arc<RootFile>, u64), XrdError> {
        let file = self.file(handle)?;
        let size = stat_file(file).await?.size;
        let (connection, agent) = ((&self.socket, self.peer), &self.server.gateway.agent);
        let begun = admitted(|| file.begin(&self.account, connection, agent, size)).await;
        begun.map(|()| (file, size)).map_err(refused)
    }

    /// Answers a read with what the file has of it, in parts of a chunk.
    pub(super) async fn read(
        &self,
        id: [u8; 2],
        handle: XrdFileHandle,
        offset: u64,
        bytes: u32,
    ) -> Result<RootAnswer, XrdError> {
        let (file, size) = self.readable(handle).await?;
        let end = size.min(offset.saturating_add(u64::from(bytes)));
        let mut at = offset.min(end);
        let mut pieces = VecDeque::new();
        loop {
            let part = (end - at).min(READ_PART_BYTES);
            let status = if at + part < end { DataStatus::Partial } else { DataStatus::Final };
            let bytes = u32::try_from(part).expect("a part is shorter than a chunk");
            let mut head = Vec::with_capacity(response::RESPONSE_HEAD_BYTES);
            response::write_data_head(&mut head, id, status, bytes);
            pieces.push_back(DataPiece { head, file: Arc::clone(file), offset: at, bytes });
            at += part;
            if at >= end {
                return Ok(RootAnswer::Data(pieces));
            }
        }
    }

    /// Answers a vector read: one response while its segments fit into a chunk, and one for each longer segment.
    pub(super) async fn read_vector(
        &self,
        id: [u8; 2],
        segments: &[ReadSegment],
    ) -> Result<RootAnswer, XrdError> {
        let mut files = BTreeMap::new();
        for segment in segments {
            let (file, size) = match files.get(&segment.handle) {
                Some(known) => known,
                None => files.entry(segment.handle).or_insert(self.readable(segment.handle).await?),
            };
            if segment.offset.saturating_add(u64::from(segment.bytes)) > *size {
                let text = format!(
                    "{}: a segment at {} of {} bytes is beyond the end at {size}",
                    file.shown, segment.offset, segment.bytes
                );
                return Err(XrdError::new(XrdErrorCode::ArgInvalid, text));
            }
        }
        let mut pieces = VecDeque::with_capacity(segments.len());
        let mut rest = segments;
        while !rest.is_empty() {
            let mut total = 0_u64;
            let fits = |segment: &&ReadSegment| {
                total += segment_bytes(segment);
                total <= READ_PART_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (group, later) = rest.split_at(count);
            rest = later;
            let status = if rest.is_empty() { DataStatus::Final } else { DataStatus::Partial };
            let bytes: u64 = group.iter().map(segment_bytes).sum();
            let bytes = u32::try_from(bytes).expect("a group is shorter than 4 GiB");
            for (at, segment) in group.iter().enumerate() {
                let mut head = Vec::new();
                if at == 0 {
                    response::write_data_head(&mut head, id, status, bytes);
                }
                response::write_segment_head(&mut head, segment);
                let file = Arc::clone(files[&segment.handle].0);
                let (offset, bytes) = (segment.offset, segment.bytes);
                pieces.push_back(DataPiece { head, file, offset, bytes });
            }
        }
        Ok(RootAnswer::Data(pieces))
    }
}

fn segment_bytes(segment: &ReadSegment) -> u64 {
    READV_SEGMENT_HEAD_BYTES as u64 + u64::from(segment.bytes)
}
