//! Buffers whose pages were sent without a copy and are not confirmed by the receiver.
//!
//! The kernel reads such pages until the receiver has them, so that a buffer returns to its pool with the
//! acknowledgement of its frame. Those of a lost stream are discarded: sockets may still refer to their pages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use penstock_protocol::control::FrameRange;
use penstock_protocol::sender::StreamId;
use penstock_sys::buffer::Buffer;

use crate::base::lock::lock;

/// Buffers of unacknowledged frames, by frame number.
#[derive(Debug, Default)]
pub(crate) struct SentBuffers(Mutex<BTreeMap<u64, SentBuffer>>);

#[derive(Debug)]
struct SentBuffer {
    stream: StreamId,
    buffer: Arc<Buffer>,
}

impl SentBuffers {
    /// Holds the buffer of a frame that is about to be sent on a stream, unless `limit` buffers are held: readers
    /// would wait for acknowledgements.
    pub(crate) fn try_hold(
        &self,
        sequence: u64,
        stream: StreamId,
        buffer: &Arc<Buffer>,
        limit: usize,
    ) -> bool {
        let mut held = lock(&self.0);
        let has_room = held.len() < limit;
        if has_room {
            held.insert(sequence, SentBuffer { stream, buffer: Arc::clone(buffer) });
        }
        has_room
    }

    /// Returns the buffers of acknowledged frames to their pool.
    pub(crate) fn release(&self, acknowledged: &[FrameRange]) {
        let mut held = lock(&self.0);
        let mut released = Vec::new();
        for frames in acknowledged {
            let end = frames.first.saturating_add(frames.count);
            released.extend(held.extract_if(frames.first..end, |_, _| true));
        }
        drop(held);
        drop(released);
    }

    /// Discards the buffers of a lost stream, which nothing else uses.
    pub(crate) fn discard(&self, lost: StreamId) {
        let discarded: Vec<_> =
            lock(&self.0).extract_if(.., |_, sent| sent.stream == lost).collect();
        for (_, sent) in discarded {
            if let Some(buffer) = Arc::into_inner(sent.buffer) {
                buffer.discard();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_sys::buffer::BufferPool;

    use super::*;

    fn holding(pool: &BufferPool, sequences: &[(u64, StreamId)]) -> SentBuffers {
        let sent = SentBuffers::default();
        for (sequence, stream) in sequences {
            let buffer = Arc::new(pool.take().expect("a buffer"));
            assert!(sent.try_hold(*sequence, *stream, &buffer, sequences.len()));
        }
        sent
    }

    #[test]
    fn acknowledged_buffers_return() {
        let pool = BufferPool::new(5, 4096);
        let sent = holding(&pool, &[(3, 0), (4, 1), (5, 0), (9, 0), (u64::MAX, 0)]);
        sent.release(&[FrameRange { first: 4, count: 2 }, FrameRange { first: 0, count: 1 }]);
        assert_eq!(pool.free(), 2);
        sent.release(&[FrameRange { first: 9, count: u64::MAX }]);
        assert_eq!(pool.free(), 3);
        sent.release(&[FrameRange { first: 0, count: 9 }]);
        assert_eq!(pool.free(), 4);
        drop(sent);
        assert_eq!((pool.free(), pool.allocated()), (5, 5));
    }

    #[test]
    fn limit_bounds_held_buffers() {
        let pool = BufferPool::new(2, 4096);
        let sent = holding(&pool, &[(0, 0)]);
        let buffer = Arc::new(pool.take().expect("a buffer"));
        assert!(!sent.try_hold(1, 0, &buffer, 1));
        sent.release(&[FrameRange { first: 0, count: 2 }]);
        assert!(sent.try_hold(1, 0, &buffer, 1));
    }

    #[test]
    fn buffers_of_lost_stream_are_unmapped() {
        let pool = BufferPool::new(3, 4096);
        let sent = holding(&pool, &[(0, 7), (1, 8), (2, 7)]);
        sent.discard(7);
        assert_eq!((pool.free(), pool.allocated()), (0, 1));
        sent.release(&[FrameRange { first: 0, count: 3 }]);
        assert_eq!((pool.free(), pool.allocated()), (1, 1));
    }
}
