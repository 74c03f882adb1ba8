//! Read queue of one device and its order.

use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use super::{OutgoingFile, PACK_FILES_TARGET, Piece, SourceEntry};
use crate::block::{PACK_FILES_MAX, pack_room};
use crate::digest::Digest;

/// Pending reads of one device.
#[derive(Debug, Default)]
pub(super) struct DeviceQueue {
    pub(super) retry: VecDeque<Piece>,
    pub(super) compare: VecDeque<(u64, Digest)>,
    pub(super) digest: VecDeque<Arc<SourceEntry>>,
    pub(super) large: BinaryHeap<(u64, u64)>,
    pub(super) small: VecDeque<u64>,
    pub(super) small_is_next: bool,
}

/// Returns the part of a requeued piece that is still needed.
pub(super) fn still_wanted(files: &HashMap<u64, OutgoingFile>, piece: Piece) -> Option<Piece> {
    match piece {
        Piece::Block { ref source, .. } | Piece::Compare { ref source, .. } => {
            files.contains_key(&source.file).then_some(piece)
        }
        Piece::Digest(_) => Some(piece),
        Piece::Pack(mut sources) => {
            sources.retain(|source| files.contains_key(&source.file));
            (!sources.is_empty()).then_some(Piece::Pack(sources))
        }
    }
}

/// Returns the next block of the largest file.
pub(super) fn next_block(
    queue: &mut DeviceQueue,
    files: &mut HashMap<u64, OutgoingFile>,
    block_bytes: u64,
) -> Option<Piece> {
    while let Some((_, file)) = queue.large.peek() {
        let next = files.get_mut(file).and_then(|active| {
            let range = active.ranges.front_mut()?;
            let offset = range.start;
            // Blocks end on multiples of the block size, wherever a resumed range begins.
            let end = range.end.min((offset / block_bytes + 1) * block_bytes);
            range.start = end;
            if range.is_empty() {
                active.ranges.pop_front();
            }
            let source = Arc::clone(&active.source);
            Some(Piece::Block { source, offset, bytes: end - offset })
        });
        if next.is_some() {
            return next;
        }
        queue.large.pop();
    }
    None
}

/// Returns as many small files as fit in a pack.
pub(super) fn next_pack(
    queue: &mut DeviceQueue,
    files: &HashMap<u64, OutgoingFile>,
    block_bytes: u64,
) -> Option<Piece> {
    let mut sources = Vec::new();
    let mut bytes = 0;
    while let Some(active) = queue.small.front().map(|file| files.get(file)) {
        let Some(active) = active else {
            queue.small.pop_front();
            continue;
        };
        let item = pack_room(active.source.entry.bytes);
        if bytes + item > block_bytes
            || sources.len() == PACK_FILES_TARGET.min(PACK_FILES_MAX.into())
        {
            break;
        }
        bytes += item;
        sources.push(Arc::clone(&active.source));
        queue.small.pop_front();
    }
    (!sources.is_empty()).then_some(Piece::Pack(sources))
}
