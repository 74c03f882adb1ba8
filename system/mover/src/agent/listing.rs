//! What an agent tells its operators: transfers and counters.

use std::time::SystemTime;

use serde::Serialize;

/// A transfer as operators see it.
#[derive(Debug, Clone, Serialize)]
pub struct Transfer {
    /// Its number at this agent.
    pub id: u64,
    /// Whose it is.
    pub caller: String,
    /// Where the client is.
    pub peer: String,
    /// `receive` or `send`.
    pub direction: &'static str,
    /// What it is about.
    pub path: String,
    /// `running`, `waiting`, `done`, `failed` or `cancelled`.
    pub state: &'static str,
    /// When it began.
    pub started: SystemTime,
    /// How long it has run.
    pub seconds: f64,
    /// Bytes of files in place.
    pub bytes: u64,
    /// Bytes that crossed the network and are written.
    pub moved_bytes: u64,
    /// Bytes that were there before.
    pub resumed_bytes: u64,
    /// Bytes announced so far.
    pub announced_bytes: u64,
    /// Files in place.
    pub files: u64,
    /// Entries that failed.
    pub failed: u64,
    /// Streams connected.
    pub streams: u16,
    /// Reader threads per device, where this end sends.
    pub readers: u16,
    /// Writer threads per device, where this end receives.
    pub writers: u16,
    /// Its rate limit.
    pub rate_bps: Option<u64>,
    /// Mean rate over the last second or so; of one that has ended, over all its time.
    pub bits_per_second: u64,
    /// What bounds it; what did most of the time, where it has ended, and `-` where nothing moved.
    pub bound_by: String,
    /// Storage engine of this end.
    pub engine: String,
    /// TCP segments sent again by the sending end.
    pub retransmits: u64,
    /// Owner and activity as one number, where the data is someone's.
    pub scitag: Option<u16>,
}

/// What an agent has done since it started.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections and requests refused.
    pub refused: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Transfers begun.
    pub transfers_started: u64,
    /// Transfers that failed.
    pub transfers_failed: u64,
    /// Blocks sent again.
    pub blocks_repeated: u64,
    /// Streams that broke.
    pub streams_lost: u64,
    /// Fireflies sent, by [`crate::firefly::STATES`].
    pub fireflies_sent: [u64; 3],
    /// Fireflies that could not be sent.
    pub fireflies_failed: [u64; 3],
}
