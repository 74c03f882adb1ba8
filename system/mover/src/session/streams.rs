//! Connected data streams, and those among them whose path is dead.

use penstock_sys::net::TcpInfo;

use crate::net::transport::Transport;

/// Time without acknowledgement after which a stream has lost its path, if others of its session are
/// answered.
const SILENT_TIMEOUT_MS: u32 = 3_000;

/// Margin over the other streams: streams on one shared path fall silent together.
const SILENT_MARGIN_MS: u32 = 1_000;

/// Progress of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamProgress {
    /// Bytes acknowledged by the peer.
    pub arrived: u64,
    /// Set when bytes are in flight or queued.
    pub is_under_way: bool,
    /// Set when the stream will send no more.
    pub is_finished: bool,
}

/// Data stream that is connected.
#[derive(Debug)]
pub(super) struct DataStream {
    pub(super) transport: Transport,
    /// Set when its data must be sent again.
    pub(super) broken: bool,
    /// Set when it will send no more.
    pub(super) finished: bool,
}

impl DataStream {
    /// Breaks the stream; data that the kernel has not sent is discarded.
    pub(super) fn abort(&mut self) {
        self.broken = true;
        self.transport.abort();
    }
}

/// For each connection, true if it waits for acknowledgements in vain while others receive them.
pub(super) fn find_silent(infos: &[TcpInfo]) -> Vec<bool> {
    let last_heard_ms = infos.iter().map(|info| info.last_acknowledged_ms).min().unwrap_or(0);
    let limit = SILENT_TIMEOUT_MS.max(last_heard_ms.saturating_add(SILENT_MARGIN_MS));
    let is_silent = |i: &TcpInfo| i.unacked_segments > 0 && i.last_acknowledged_ms > limit;
    infos.iter().map(is_silent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unacknowledged_stream_silent_beside_live_ones() {
        let info = |unacked_segments, last_acknowledged_ms| TcpInfo {
            unacked_segments,
            last_acknowledged_ms,
            ..TcpInfo::default()
        };
        let of = |infos: &[(u32, u32)]| {
            find_silent(&infos.iter().map(|(unacked, ms)| info(*unacked, *ms)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(9, 3_001), (9, 10), (0, 9_000)]), [true, false, false]);
        // The others have nothing left to send, and were answered later.
        assert_eq!(of(&[(9, 5_000), (0, 3_500)]), [true, false]);
        // All at once: the shared path is interrupted.
        assert_eq!(of(&[(9, 8_000), (9, 7_900), (1, 8_200)]), [false; 3]);
        assert_eq!(of(&[(9, 60_000)]), [false]);
        assert_eq!(of(&[]), [false; 0]);
    }
}
