//! Frames that streams carry until the receiver acknowledges them.

use super::{FrameTask, Piece, Sender, StreamId};

/// Frame that was handed to a stream and is not acknowledged.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) stream: StreamId,
    pub(super) piece: Piece,
    pub(super) is_hole: bool,
}

impl Sender {
    /// Records that a frame was handed to a stream.
    pub fn sent(&mut self, stream: StreamId, work: FrameTask) {
        let FrameTask { sequence, piece } = work;
        self.in_flight.insert(sequence, InFlight { stream, piece, is_hole: false });
    }

    /// Records that the frame of a hole, which carries no data, was handed to a stream.
    pub fn sent_hole(&mut self, stream: StreamId, work: FrameTask) {
        let FrameTask { sequence, piece } = work;
        self.in_flight.insert(sequence, InFlight { stream, piece, is_hole: true });
    }

    /// Requeues the unacknowledged frames of a lost stream; returns their number.
    pub fn stream_lost(&mut self, stream: StreamId) -> usize {
        let lost: Vec<_> = self
            .in_flight
            .iter()
            .filter(|(_, frame)| frame.stream == stream)
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in &lost {
            let frame = self.in_flight.remove(sequence).expect("just listed");
            self.requeue(frame.piece);
        }
        lost.len()
    }

    /// True if frames of the stream are unacknowledged.
    #[must_use]
    pub fn has_unacknowledged(&self, stream: StreamId) -> bool {
        self.in_flight.values().any(|frame| frame.stream == stream)
    }
}
