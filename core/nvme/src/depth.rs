//! Rate of a remote disk by queues, depth, size and round-trip time.
//!
//! With `n` queues of `q` commands of `b` bytes in flight, a host receives at most `n·q·b` bytes per round trip:
//! `R = min(C, n·q·b / (k·RTT))`. A read takes one round trip (k = 1), and so does a write that fits into its capsule; a
//! larger write takes two, one for the target's request for its data.

use std::time::Duration;

/// Commands in flight of one queue beyond which more queues are better than more depth.
const DEPTH_PREFERRED_MAX: u64 = 128;
/// Surplus of commands over the product of bandwidth and round-trip time: a quarter covers the time at the target.
const SURPLUS_DIVISOR: u64 = 4;

/// Limits within which queues and depth are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepthLimits {
    /// Most queues that the target or the user allows.
    pub queues_max: u16,
    /// Most commands of a queue.
    pub depth_max: u16,
}

/// Queues, depth and size of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDepth {
    /// Number of queues, each a TCP connection.
    pub queues: u16,
    /// Commands in flight of each queue.
    pub depth: u16,
    /// Bytes of a command.
    pub size_bytes: u32,
}

impl ReadDepth {
    /// Chooses queues and depth for `rate_bps` over `rtt`, the fewest queues that suffice but at least `queues_least`.
    #[must_use]
    pub fn choose(
        rate_bps: u64,
        rtt: Duration,
        size_bytes: u32,
        queues_least: u16,
        limits: DepthLimits,
    ) -> Self {
        let commands = commands_needed(rate_bps, rtt, size_bytes);
        let depth_max = u64::from(limits.depth_max.max(1));
        let preferred = depth_max.min(DEPTH_PREFERRED_MAX);
        let queues_max = u64::from(limits.queues_max.max(1));
        let queues = commands.div_ceil(preferred).max(u64::from(queues_least)).clamp(1, queues_max);
        let depth = commands.div_ceil(queues).clamp(1, depth_max);
        // Both are below limits of 16 bits.
        Self { queues: queues as u16, depth: depth as u16, size_bytes }
    }

    /// Bytes in flight at most.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        u64::from(self.queues) * u64::from(self.depth) * u64::from(self.size_bytes)
    }

    /// Rate that these reads reach over `rtt`, in bits per second, were the link no limit.
    #[must_use]
    pub fn rate_bps(&self, rtt: Duration) -> u64 {
        let bits = u128::from(self.bytes_in_flight()) * 8;
        let rate = bits * 1_000_000_000 / rtt.as_nanos().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Commands of `size_bytes` in flight for `rate_bps` over `rtt`, with a surplus of a quarter; at least 4.
#[must_use]
pub fn commands_needed(rate_bps: u64, rtt: Duration, size_bytes: u32) -> u64 {
    let bytes = u128::from(rate_bps) * rtt.as_nanos() / 8_000_000_000;
    let commands = bytes.div_ceil(u128::from(size_bytes.max(1)));
    let commands = u64::try_from(commands).unwrap_or(u64::MAX / 2);
    commands.saturating_add(commands.div_ceil(SURPLUS_DIVISOR)).max(4)
}
