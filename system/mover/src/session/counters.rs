//! Counters of an agent over all its sessions.

use serde::Serialize;

/// Counters of an agent since its start.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AgentCounters {
    /// Number of accepted connections.
    pub connections: u64,
    /// Number of refused connections and requests.
    pub refused: u64,
    /// Payload bytes received, including repeated blocks.
    pub received_bytes: u64,
    /// Payload bytes sent, including repeated blocks.
    pub sent_bytes: u64,
    /// Number of started transfers.
    pub transfers_started: u64,
    /// Number of failed transfers.
    pub transfers_failed: u64,
    /// Number of blocks sent again.
    pub blocks_repeated: u64,
    /// Number of lost streams.
    pub streams_lost: u64,
    /// Fireflies sent, by state as in [`crate::net::firefly::STATES`].
    pub fireflies_sent: [u64; 3],
    /// Fireflies that could not be sent, likewise.
    pub fireflies_failed: [u64; 3],
}
